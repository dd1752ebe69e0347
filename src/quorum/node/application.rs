//! What the executor does for its node.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::base::ids::SessionId;
use crate::quorum::types::{Batch, ClusterId, LeaderId, NodeId, SnapshotFile};

/// A committed batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Its index in the log.
    pub index: u64,
    /// The batch.
    pub batch: Batch,
}

/// What became of committed entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// They are applied.
    Done,
    /// They are not: the executor has dropped its state, and must be given the snapshot and all entries behind it.
    StartsAnew,
}

/// Told what became of committed entries. If it is dropped, the server is ending.
pub type Done = oneshot::Sender<Applied>;

/// Who tells, and who is told.
#[cfg(test)]
pub fn done() -> (Done, oneshot::Receiver<Applied>) {
    oneshot::channel()
}

/// The snapshot that a new one is made from: its file. `None` is the empty state.
pub type Previous = Option<SnapshotFile>;

/// What a node tells of its cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The id of the cluster, or 0 if this node has none yet.
    pub cluster: ClusterId,
    /// The present term.
    pub term: u64,
    /// The node that leads, as far as this one knows.
    pub leader: Option<NodeId>,
    /// Set while this node leads and has applied everything that was committed before.
    pub leads: Option<LeaderId>,
    /// The addresses of all members among themselves, by their numbers.
    pub members: BTreeMap<NodeId, String>,
    /// The members that do not vote.
    pub learners: Vec<NodeId>,
    /// Those that vote. While they change, these are two sets, of each of which a majority must agree.
    pub voters: Vec<BTreeSet<NodeId>>,
    /// The last index that is committed, as far as this node knows.
    pub committed: u64,
    /// The last index that this node has applied, or applies within a moment.
    pub applied: u64,
    /// On the leader: the last index that each node has.
    pub matched: BTreeMap<NodeId, u64>,
}

/// What a node asks of the executor.
#[derive(Debug)]
pub enum Asked {
    /// To settle or apply what is committed: the own batches of a leader, and the entries of a follower, and to tell what became of them.
    Committed(Vec<Committed>, Done),
    /// To replace the whole state by a snapshot, or by the empty state, and to tell when that has happened, or why it cannot.
    Install(Option<SnapshotFile>, oneshot::Sender<Result<(), String>>),
    /// To take a message of another node's user, which is about nothing that is replicated.
    Message(Bytes),
    /// What [`Node::await_followers`](super::Node::await_followers) waits for has come true.
    WaitReached,
    /// Something has changed about the cluster, or about this node's part in it.
    Changed(Status),
    /// Another node asks this one, which leads, to hand its leadership over: to a node, or to the one that has most of the log.
    HandOver(Option<NodeId>),
    /// To tell this session what became of the change of the members that it has asked for.
    MembersChanged(SessionId, Result<(), String>),
    /// The node cannot go on: it is unknown what is on its disk, or something contradicts itself. The process must end.
    Failed(String),
}

/// What a node does its work for: it applies committed entries. The calls come from the node's threads.
pub trait Application: Clone + Send + Sync + 'static {
    /// Orders something of the executor, and returns at once.
    fn ask(&self, asked: Asked);

    /// Makes a snapshot of a previous one and the batches behind it, in a file that exists and is empty. Waits until that is done, and
    /// must not use the state. The file need not be synced.
    ///
    /// # Errors
    /// In words. An error of `batches` is one, too.
    fn compact(
        &self,
        previous: Previous,
        batches: &mut dyn Iterator<Item = io::Result<Batch>>,
        into: &Path,
    ) -> Result<(), String>;
}
