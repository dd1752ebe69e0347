//! What a node knows of its cluster, for `NODE STATUS`: the driver reads it when it is asked.

use std::fmt;
use std::rc::Rc;

use crate::base::durations::Durations;
use crate::engine::replication::NodeId;

/// What a node knows of a node, itself included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// Its number.
    pub id: NodeId,
    /// Its address among the nodes.
    pub addr: String,
    /// Whether it says that it has no vote yet, because it has just joined or has lost its disk.
    pub joins: bool,
    /// Its version of the program, if it has told it.
    pub version: Option<String>,
    /// Milliseconds since anything was received from it; `None` if never, and of this node itself.
    pub heard_ms: Option<u64>,
    /// Why there is no connection to it.
    pub failure: Option<String>,
    /// The last index of the log that it has, if this node is the leader.
    pub matched: Option<u64>,
    /// Round trips of pings.
    pub pings: Durations,
    /// Round trips of appends, with the other node's flush.
    pub appends: Durations,
}

named! {
    /// How the disk of a node is, in a word of `NODE STATUS`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Disk {
        /// It stores what the node writes.
        #[default]
        Answers = "answers",
        /// An operation has not been done for longer than an election takes.
        Hangs = "hangs",
        /// It takes nothing: it is full, for instance.
        Refuses = "refuses",
    }
}

/// What a node knows of its cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The id of the cluster, or 0 if this node has none yet.
    pub cluster: u64,
    /// The last index of the log that is committed.
    pub committed: u64,
    /// The last index that this node has applied.
    pub applied: u64,
    /// This node's flushes of the log.
    pub flushes: Durations,
    /// This node's disk.
    pub disk: Disk,
    /// For how many milliseconds its oldest operation has not been done; 0 if there is none.
    pub disk_ms: u64,
    /// All nodes, ordered by their numbers.
    pub nodes: Vec<Known>,
    /// The nodes whose connections this one has refused lately, each with the reason.
    pub refused: Vec<String>,
}

/// Reads a report.
#[derive(Clone)]
pub struct Reporter(Rc<dyn Fn() -> Report>);

impl Reporter {
    /// A reporter that calls a function of the driver.
    pub fn new(read: impl Fn() -> Report + 'static) -> Reporter {
        Reporter(Rc::new(read))
    }

    /// The present report.
    pub fn read(&self) -> Report {
        (self.0)()
    }
}

impl fmt::Debug for Reporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reporter")
    }
}
