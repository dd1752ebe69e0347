//! The types that openraft is used with.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// The number of a node: `--node-id`, at least 1.
pub type NodeId = u64;

/// The id of a cluster: random, drawn when the cluster begins or is recovered. 0 stands for none.
pub type ClusterId = u64;

/// A node as the others know it, in the membership.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Where the other nodes reach it, as `host:port`.
    pub addr: String,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.addr)
    }
}

/// Identifies one leadership of one process: random, never given again.
pub type Origin = u64;

/// A moment of the cluster's clock, which runs only while a leader runs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ClusterTime {
    /// Microseconds since the clock's beginning.
    pub us: u64,
    /// What the leader's wall clock showed more than this clock, in milliseconds. Only shown, never judged by.
    pub wall_offset_ms: i64,
}

/// What a leader proposes: the effects of one or more turns of its executor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// The leadership that it comes from.
    pub origin: Origin,
    /// Its number within that leadership, counted from 1 without gaps.
    pub number: u64,
    /// When it was made.
    pub time: ClusterTime,
    /// Effects as requests, as in an append-only file. Empty if only time has passed.
    pub bytes: Bytes,
}

impl fmt::Display for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "batch {} of {:016x}: {} bytes", self.number, self.origin, self.bytes.len())
    }
}

openraft::declare_raft_types!(
    /// The types of our Raft.
    pub Types:
        D = Batch,
        R = (),
        NodeId = NodeId,
        Node = Peer,
        AsyncRuntime = crate::quorum::runtime::Runtime,
);

/// An entry of the log.
pub type Entry = openraft::alias::EntryOf<Types>;
/// The term and the index of an entry.
pub type LogId = openraft::alias::LogIdOf<Types>;
/// What a node has promised: its term and for whom it voted.
pub type Vote = openraft::alias::VoteOf<Types>;
/// The members, and the entry that has made them so.
pub type Membership = openraft::alias::StoredMembershipOf<Types>;
/// One leadership: its term and its node.
pub type LeaderId = openraft::alias::CommittedLeaderIdOf<Types>;
/// What a snapshot is of.
pub type SnapshotMeta = openraft::alias::SnapshotMetaOf<Types>;

/// A snapshot as a file in the node's folder, whole and durable. Its content is an RDB with the native records in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotFile {
    /// Where it is.
    pub path: std::path::PathBuf,
    /// Its length in bytes.
    pub len: u64,
}
