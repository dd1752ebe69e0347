//! State of the driver's log of changes: figures for `INFO`, and whether writes are refused.
//!
//! The engine itself writes no file. The driver writes the changes to the disk, and reports its state here.

use crate::base::error::Error;
use crate::base::ids::SessionId;

/// State of the driver's log.
#[derive(Default)]
pub struct Persistence {
    /// The error reply to commands that write; `None` if the log accepts writes.
    pub refusal: Option<Error>,
    /// Reads the driver's figures; `None` if nothing is written to disk.
    pub figures: Option<Box<dyn Fn() -> Figures>>,
    /// Sessions whose `WAIT` or `WAITAOF` has ended, while there is a log. The driver wakes them and clears the list. Their reply shows no change, so it
    /// need not wait as what is written to other sessions does.
    pub answered: Vec<SessionId>,
}

impl Persistence {
    /// How far the log is; `None` if nothing is written to disk.
    pub fn position(&self) -> Option<Position> {
        self.figures.as_ref().map(|figures| figures().position)
    }
}

/// How far the log is, in bytes since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Behind all changes so far.
    pub recorded: u64,
    /// All before this is durable.
    pub durable: u64,
}

/// Figures of the log for `INFO`.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Bytes of the base and all increments.
    pub size: u64,
    /// Bytes of them after the last rewrite, or at the start.
    pub base_size: u64,
    /// How far it is recorded and durable.
    pub position: Position,
    /// Bytes that wait to be written.
    pub queued: u64,
    /// Number of times that changes could not be written for two seconds because of a sync.
    pub delayed_syncs: u64,
    /// Whether a sync is in progress.
    pub syncing: bool,
    /// The last batch that is in the file, and the last that is durable.
    pub batches: [u64; 2],
    /// Number of syncs, and in microseconds their median, 99th percentile and maximum.
    pub syncs: [u64; 4],
    /// Number of replies and messages that are held back.
    pub held: usize,
    /// When the new base that is being made was begun, in monotonic milliseconds.
    pub rewriting_since_ms: Option<u64>,
    /// How many new bases could not be made since the last that was.
    pub rewrite_failures: u32,
    /// Seconds that the last new base took; `None` if none was made.
    pub rewrite_s: Option<u64>,
    /// Number of new bases that were made.
    pub rewrites: u64,
}
