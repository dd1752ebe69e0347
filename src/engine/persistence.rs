//! State of the driver's log of changes: figures for `INFO`, and whether writes are refused.
//!
//! The engine itself writes no file. The driver writes the changes to the disk, and reports its state here.

use crate::base::durations::Durations;
use crate::base::error::Error;
use crate::base::ids::SessionId;
use crate::base::time::Now;

/// State of the driver's log and snapshots.
#[derive(Default)]
pub struct Persistence {
    /// RDB snapshots.
    pub snapshot: Snapshot,
    /// Whether a new base is to be made as soon as nothing else is (`BGREWRITEAOF`).
    pub rewrite_scheduled: bool,
    /// The error reply to commands that write; `None` if the log accepts writes. Set by `Engine::refuse_writes`.
    pub(super) refusal: Option<Error>,
    /// The load in progress. Begun and ended by the engine.
    pub(super) loading: Option<Loading>,
    /// Number of keys that the last load of an RDB left out because they have expired, and of those that it loaded.
    pub last_load: [u64; 2],
    /// Reads the driver's figures; `None` if changes go nowhere.
    pub figures: Option<Box<dyn Fn() -> Figures>>,
    /// Sessions whose `WAIT` or `WAITAOF` has ended, while there is a log. The driver wakes them and clears the list. Their reply shows no change, so it
    /// need not wait as what is written to other sessions does.
    pub answered: Vec<SessionId>,
}

impl Persistence {
    /// The error reply to commands that write; `None` if the log accepts writes.
    #[inline]
    pub fn refusal(&self) -> Option<&Error> {
        self.refusal.as_ref()
    }

    /// The load in progress.
    pub fn loading(&self) -> Option<&Loading> {
        self.loading.as_ref()
    }

    /// The load in progress, to note how far it is.
    pub fn loading_mut(&mut self) -> Option<&mut Loading> {
        self.loading.as_mut()
    }

    /// Whether there is a log whose files are what a start would load: not while it is being switched on.
    pub fn log_runs(&self) -> bool {
        self.position().is_some_and(|position| position.durable > 0)
    }

    /// How far the log is; `None` if changes go nowhere.
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

impl Persistence {
    /// Whether a new base is being made.
    pub fn rewriting(&self) -> bool {
        self.figures.as_ref().is_some_and(|figures| figures().rewriting_since_ms.is_some())
    }
}

/// State of RDB snapshots.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// When the one in progress began, in monotonic milliseconds.
    pub since_ms: Option<u64>,
    /// Whether another one is to be made as soon as nothing else is (`BGSAVE SCHEDULE`).
    pub scheduled: bool,
    /// Unix time in seconds of the last one that succeeded.
    pub last_unix_s: Option<i64>,
    /// Whether the last one failed.
    pub failed: bool,
    /// Seconds that the last one took.
    pub took_s: Option<u64>,
    /// Number of those that succeeded.
    pub made: u64,
    /// The count of changes ([`Changes::count`](crate::keyspace::change::Changes::count)) that the last one has.
    pub saved_changes: u64,
    /// The count of changes that the one in progress has.
    pub copied_changes: u64,
    /// Number of keys that the one in progress has copied, and of those that there were when it began.
    pub keys: [u64; 2],
}

impl Snapshot {
    /// Records the end of one: the count of changes that it has, or `None` if it failed.
    pub fn end(&mut self, now: Now, changes: Option<u64>) {
        self.took_s = self.since_ms.take().map(|since_ms| now.mono_ms().saturating_sub(since_ms) / 1000).or(Some(0));
        self.failed = changes.is_none();
        self.keys = [0; 2];
        if let Some(changes) = changes {
            self.made += 1;
            self.saved_changes = changes;
            self.last_unix_s = Some(now.unix_ms() / 1000);
        }
    }

    /// Number of changes since the last one that succeeded; `count` is the present count.
    pub fn changes_since(&self, count: u64) -> u64 {
        count.saturating_sub(self.saved_changes)
    }
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

/// What is loaded into a running engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReloadFrom {
    /// The snapshot (`DEBUG RELOAD`).
    Snapshot {
        /// Whether it is written first.
        save: bool,
        /// What happens to the keys that there are.
        reload: Reload,
    },
    /// The append-only file (`DEBUG LOADAOF`), in place of the keys that there are.
    Log,
}

/// What a reload does with the keys that the engine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reload {
    /// Whether they are removed first.
    pub flush: bool,
    /// Whether a key that was loaded replaces one of its name. Otherwise such a key is an error.
    pub merge: bool,
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
    /// The syncs.
    pub syncs: Durations,
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
