//! State of the driver's log of changes: figures for `INFO`, and whether writes are refused.
//!
//! The engine itself writes no file. The driver writes the changes to the disk, and reports its state here.

use crate::base::error::Error;

/// State of the driver's log.
#[derive(Default)]
pub struct Persistence {
    /// The error reply to commands that write; `None` if the log accepts writes.
    pub refusal: Option<Error>,
    /// The load in progress.
    pub loading: Option<Loading>,
    /// Number of keys that the last load of an RDB left out because they have expired, and of those that it loaded.
    pub last_load: [u64; 2],
    /// Reads the driver's figures; `None` if nothing is written to disk.
    pub figures: Option<Box<dyn Fn() -> Figures>>,
}

/// A load in progress, for `INFO`.
#[derive(Clone, Debug, Default)]
pub struct Loading {
    /// When it began, in Unix seconds.
    pub started_s: i64,
    /// Bytes of the files.
    pub total_bytes: u64,
    /// Bytes that were read.
    pub loaded_bytes: u64,
    /// Bytes of memory that the writer of an RDB used.
    pub used_memory: u64,
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
