//! State of the driver's log of changes: figures for `INFO`, and whether writes are refused.
//!
//! The engine itself writes no file. The driver writes the changes to the disk, and reports its state here.

use crate::base::error::Error;

/// State of the driver's log.
#[derive(Default)]
pub struct Persistence {
    /// The error reply to commands that write; `None` if the log accepts writes.
    pub refusal: Option<Error>,
    /// Reads the driver's figures; `None` if nothing is written to disk.
    pub figures: Option<Box<dyn Fn() -> Figures>>,
}

/// Figures of the log for `INFO`.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Bytes of the base and all increments.
    pub size: u64,
    /// Bytes of them after the last rewrite, or at the start.
    pub base_size: u64,
    /// Bytes that wait to be written.
    pub queued: u64,
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
    /// Whether the last new base could not be made.
    pub rewrite_failed: bool,
    /// Seconds that the last new base took; `None` if none was made.
    pub rewrite_s: Option<u64>,
    /// Number of new bases that were made.
    pub rewrites: u64,
}
