//! Snapshots, made of the last one and the entries behind it, beside everything else.

use std::io;
use std::sync::Arc;

use openraft::{RaftLogReader, RaftSnapshotBuilder};
use tokio::sync::mpsc;

use crate::persist::disk::{Disk, SendDisk};
use crate::quorum::net::Snapshot;
use crate::quorum::node::application::Application;
use crate::quorum::node::state_machine::{SharedSnapshots, committed, lock};
use crate::quorum::node::storage;
use crate::quorum::runtime::{blocking, is_simulated};
use crate::quorum::store::LogStore;
use crate::quorum::types::{SnapshotFile, SnapshotMeta, Types};

/// Number of batches that are read ahead.
const AHEAD: usize = 64;

/// Makes one snapshot.
pub struct Builder<D: Disk, M> {
    application: M,
    log: LogStore,
    snapshots: SharedSnapshots<D>,
    /// What it is to be of.
    meta: SnapshotMeta,
}

impl<D: Disk, M> Builder<D, M> {
    /// Makes a snapshot of everything up to `meta`.
    pub fn new(application: M, log: LogStore, snapshots: SharedSnapshots<D>, meta: SnapshotMeta) -> Builder<D, M> {
        Builder { application, log, snapshots, meta }
    }
}

impl<D: SendDisk, M: Application> RaftSnapshotBuilder<Types> for Builder<D, M> {
    type SnapshotData = SnapshotFile;

    async fn build_snapshot(&mut self) -> io::Result<Snapshot> {
        let (previous, temporary) = {
            let mut snapshots = lock(&self.snapshots);
            (snapshots.current().cloned(), snapshots.begin().map_err(storage)?)
        };
        let (mut next, previous) = match previous {
            Some((meta, file)) => (meta.last_log_id.map_or(0, |last| last.index + 1), Some(file)),
            None => (0, None),
        };
        let end = self.meta.last_log_id.map_or(0, |last| last.index + 1);
        // In a simulation the work begins when all is read.
        let ahead = if is_simulated() { (end.saturating_sub(next) as usize).max(1) } else { AHEAD };
        let (batches, mut received) = mpsc::channel(ahead);
        let (application, path) = (self.application.clone(), temporary.path().to_owned());
        let work = blocking(move || {
            let mut batches = std::iter::from_fn(|| received.blocking_recv());
            application.compact(previous, &mut batches, &path)
        });
        'read: while next < end {
            let entries = match self.log.limited_get_log_entries(next, end).await {
                Ok(entries) if entries.is_empty() => Err(io::Error::other(format!("the log has no entry {next}"))),
                read => read,
            };
            let entries = match entries {
                Ok(entries) => entries,
                Err(error) => {
                    // The work fails by it.
                    let _ = batches.send(Err(error)).await;
                    break;
                }
            };
            next = entries.last().map_or(end, |last| last.log_id.index + 1);
            for entry in entries.into_iter().filter_map(committed) {
                if batches.send(Ok(entry.batch)).await.is_err() {
                    break 'read;
                }
            }
        }
        drop(batches);
        let made = work.await.map_err(storage)?;
        let (snapshots, meta) = (Arc::clone(&self.snapshots), self.meta.clone());
        let finished = blocking(move || {
            let mut snapshots = lock(&snapshots);
            match made {
                Ok(()) => snapshots.finish(temporary, &meta).map_err(storage),
                Err(reason) => {
                    tracing::warn!(reason, "cannot make a snapshot");
                    snapshots.abandon(temporary).map_err(storage)?;
                    Err(io::Error::other(reason))
                }
            }
        });
        let snapshot = finished.await.map_err(storage)??;
        Ok(Snapshot { meta: self.meta.clone(), snapshot })
    }
}
