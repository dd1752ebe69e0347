//! Takes the snapshots that arrive from other nodes.

use std::io;
use std::sync::Arc;

use bytes::Bytes;

use crate::persist::disk::{Disk, SendDisk};
use crate::quorum::net::{SnapshotSink, SnapshotWriter};
use crate::quorum::node::state_machine::{SharedSnapshots, lock};
use crate::quorum::node::storage;
use crate::quorum::runtime::blocking;
use crate::quorum::store::Temporary;
use crate::quorum::types::{SnapshotFile, SnapshotMeta};

/// Writes what arrives into the node's folder.
pub struct Sink<D: Disk>(pub SharedSnapshots<D>);

/// A snapshot that is arriving.
pub struct Arriving<D: Disk> {
    snapshots: SharedSnapshots<D>,
    temporary: Option<Temporary<D::File>>,
    meta: SnapshotMeta,
}

impl<D: SendDisk> SnapshotSink for Sink<D> {
    type Writer = Arriving<D>;

    async fn begin(&self, meta: &SnapshotMeta, _len: u64) -> io::Result<Arriving<D>> {
        let temporary = lock(&self.0).begin().map_err(storage)?;
        Ok(Arriving { snapshots: Arc::clone(&self.0), temporary: Some(temporary), meta: meta.clone() })
    }
}

impl<D: SendDisk> SnapshotWriter for Arriving<D> {
    async fn write(&mut self, chunk: Bytes) -> io::Result<()> {
        let Some(mut temporary) = self.temporary.take() else { return Err(storage("it was given up")) };
        let snapshots = Arc::clone(&self.snapshots);
        let written = blocking(move || {
            let result = lock(&snapshots).append(&mut temporary, &chunk);
            (temporary, result)
        });
        let (temporary, result) = written.await.map_err(storage)?;
        self.temporary = Some(temporary);
        result.map_err(storage)
    }

    async fn finish(mut self) -> io::Result<SnapshotFile> {
        let Some(temporary) = self.temporary.take() else { return Err(storage("it was given up")) };
        let (snapshots, meta) = (Arc::clone(&self.snapshots), self.meta.clone());
        let finished = blocking(move || lock(&snapshots).finish(temporary, &meta));
        finished.await.map_err(storage)?.map_err(storage)
    }
}

impl<D: Disk> Drop for Arriving<D> {
    fn drop(&mut self) {
        if let Some(temporary) = self.temporary.take()
            && let Err(error) = lock(&self.snapshots).abandon(temporary)
        {
            tracing::debug!(%error, "the next start removes what is left of a snapshot");
        }
    }
}
