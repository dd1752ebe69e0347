//! The state machine of openraft: passes committed entries on to the executor, in order.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::{FutureExt, Stream, TryStreamExt};
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend};
use tokio::sync::oneshot;

use crate::persist::disk::{Disk, SendDisk};
use crate::quorum::net::Snapshot;
use crate::quorum::node::application::{Application, Applied, Asked, Committed};
use crate::quorum::node::apply_queue::{ApplyQueue, BYTES_MAX, ending};
use crate::quorum::node::snapshot_builder::Builder;
use crate::quorum::node::storage;
use crate::quorum::store::{LogStore, Snapshots};
use crate::quorum::types::{Entry, LogId, Membership, SnapshotFile, SnapshotMeta, Types};

/// Maximum number of entries that are given to the executor at a time.
const ENTRIES_MAX: usize = 1024;

/// The snapshots of a node, shared by those who make, send and receive them.
pub type SharedSnapshots<D> = Arc<Mutex<Snapshots<D>>>;

/// Takes the snapshots of a node. A thread that panicked with them has left no half-made change: each is a file of its own.
pub fn lock<D: Disk>(snapshots: &Mutex<Snapshots<D>>) -> MutexGuard<'_, Snapshots<D>> {
    snapshots.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state machine of a node.
pub struct StateMachine<D: Disk, M> {
    application: M,
    queue: ApplyQueue<M>,
    log: LogStore,
    snapshots: SharedSnapshots<D>,
    applied: Option<LogId>,
    membership: Membership,
}

impl<D: Disk, M: Application> StateMachine<D, M> {
    /// The state after the current snapshot, which the application is given.
    ///
    /// # Errors
    /// The application's.
    pub async fn begin(application: M, log: LogStore, snapshots: SharedSnapshots<D>) -> io::Result<Self> {
        let current = lock(&snapshots).current().cloned();
        let queue = ApplyQueue::new(application.clone());
        let mut state = StateMachine { application, queue, log, snapshots, applied: None, membership: Membership::default() };
        if let Some((meta, file)) = current {
            state.install(Some(file)).await?;
            (state.applied, state.membership) = (meta.last_log_id, meta.last_membership);
        }
        Ok(state)
    }

    async fn install(&self, file: Option<SnapshotFile>) -> io::Result<()> {
        let (done, installed) = oneshot::channel();
        self.application.ask(Asked::Install(file, done));
        installed.await.map_err(|_| ending())?.map_err(storage)
    }

    /// Looks at what became of the entries that were given: of those that are applied, or of `all`, for which it waits.
    async fn look(&mut self, all: bool) -> io::Result<()> {
        if self.queue.applied(all).await? == Applied::StartsAnew {
            self.start_anew().await?;
        }
        Ok(())
    }

    /// Gives the application the snapshot and all entries that were applied since.
    async fn start_anew(&mut self) -> io::Result<()> {
        let current = lock(&self.snapshots).current().cloned();
        let (mut next, file) = match current {
            Some((meta, file)) => (meta.last_log_id.map_or(0, |last| last.index + 1), Some(file)),
            None => (0, None),
        };
        self.install(file).await?;
        let end = self.applied.map_or(0, |applied| applied.index + 1);
        while next < end {
            let entries = self.log.next_entries(next, end).await?;
            let Some(last) = entries.last() else { return Err(io::Error::other(format!("the log has no entry {next}"))) };
            next = last.log_id.index + 1;
            let (done, applied) = oneshot::channel();
            self.application.ask(Asked::Committed(entries.into_iter().filter_map(committed).collect(), done));
            if applied.await.map_err(|_| ending())? != Applied::Done {
                return Err(io::Error::other("the state was dropped while it was built"));
            }
        }
        Ok(())
    }
}

/// The batch of an entry.
pub fn committed(entry: Entry) -> Option<Committed> {
    if let EntryPayload::Normal(batch) = entry.payload { Some(Committed { index: entry.log_id.index, batch }) } else { None }
}

impl<D: SendDisk, M: Application> RaftStateMachine<Types> for StateMachine<D, M> {
    type SnapshotData = SnapshotFile;
    type SnapshotBuilder = Builder<D, M>;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, Membership)> {
        Ok((self.applied, self.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Types>>> + Unpin + OptionalSend,
    {
        while let Some(first) = entries.try_next().await? {
            let (mut batches, mut responders, mut bytes, mut count) = (Vec::new(), Vec::new(), 0, 0);
            let (mut last, mut membership) = (None, None);
            let mut next = Some(first);
            while let Some((entry, responder)) = next.take() {
                last = Some(entry.log_id);
                count += 1;
                responders.extend(responder);
                if let EntryPayload::Membership(of) = &entry.payload {
                    membership = Some(Membership::new(last, of.clone()));
                }
                if let Some(batch) = committed(entry) {
                    bytes += batch.batch.bytes.len();
                    batches.push(batch);
                }
                if count < ENTRIES_MAX && bytes < BYTES_MAX {
                    next = entries.try_next().now_or_never().transpose()?.flatten();
                }
            }
            self.look(self.queue.is_full()).await?;
            self.applied = last;
            match batches.len() == count {
                // A leader's clients wait for it.
                true if !responders.is_empty() => self.queue.give(batches),
                true => self.queue.hold(batches),
                // A leadership begins with an entry without a batch. A state that was dropped is built again before.
                false => {
                    self.queue.give(batches);
                    self.look(true).await?;
                }
            }
            if let Some(membership) = membership {
                self.membership = membership;
            }
            responders.into_iter().for_each(|responder| responder.send(()));
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Builder<D, M> {
        let meta = SnapshotMeta { last_log_id: self.applied, last_membership: self.membership.clone() };
        Builder::new(self.application.clone(), self.log.clone(), Arc::clone(&self.snapshots), meta)
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, snapshot: SnapshotFile) -> io::Result<()> {
        self.queue.forget();
        self.install(Some(snapshot)).await?;
        (self.applied, self.membership) = (meta.last_log_id, meta.last_membership.clone());
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snapshot>> {
        Ok(lock(&self.snapshots).current().cloned().map(|(meta, snapshot)| Snapshot { meta, snapshot }))
    }
}
