//! `MULTI`: queues requests until `EXEC` runs them all in one step.
//!
//! ```text
//!   MULTI ─▶ request ─▶ found? may be called? memory? ── yes ─▶ queue ─▶ +QUEUED
//!                                                    └── no ──▶ error; EXEC will refuse
//!   EXEC ─▶ watched keys unchanged? ─▶ run the queue, replies gathered in one array
//! ```
//!
//! The queue counts as part of the session's query buffer: a client whose queue outgrows `client-query-buffer-limit` is closed.
//!
//! This is the queue; [`exec`] has what the engine does with it.

pub mod exec;

use crate::engine::command::flags::Flags;

/// One queued request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queued {
    /// The command's slot in [`crate::engine::observe::command_stats::CommandStats`].
    pub(super) slot: u16,
    /// Number of its arguments, including the command's name.
    pub(super) count: usize,
}

/// The requests queued since `MULTI`. All arguments are in one buffer, so that a queue of any length is freed in one step.
#[derive(Debug, Default)]
pub struct Transaction {
    pub(super) queue: Vec<Queued>,
    /// End offset of each argument in `bytes`.
    pub(super) ends: Vec<usize>,
    pub(super) bytes: Vec<u8>,
    /// The union of the flags of all queued requests.
    pub(super) flags: Flags,
    /// In a cluster, the slot of the queued requests' keys.
    pub(super) slot: Option<u16>,
    /// Whether there are several slots.
    pub(super) crosses: bool,
    /// Whether a request was refused, so that `EXEC` will be refused too.
    pub(super) refused: bool,
}

impl Transaction {
    /// Number of queued requests.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Bytes of the queue.
    pub fn memory(&self) -> usize {
        size_of::<Transaction>()
            + self.bytes.len()
            + self.ends.len() * size_of::<usize>()
            + self.queue.len() * size_of::<Queued>()
    }

    /// Appends a request with the flags that apply to it.
    pub(super) fn push(&mut self, slot: u16, flags: Flags, args: &[&[u8]]) {
        self.queue.push(Queued { slot, count: args.len() });
        for arg in args {
            self.bytes.extend_from_slice(arg);
            self.ends.push(self.bytes.len());
        }
        self.flags |= flags;
    }
}
