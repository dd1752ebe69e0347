//! Long work: jobs over many elements, done in slices between the requests of other sessions, and scripts that run long.
//!
//! A job is `KEYS` in a large database, a list of thousands of clients or channels, `LCS` of long strings, `LOCK.GRAPH` or `LOCK.DOCTOR`
//! with thousands of waiters, or the end of very many subscriptions. The client waits until the work is done, and gets the usual reply.
//! A list contains each element that exists during the whole job exactly once; elements that come or go meanwhile may or may not be in
//! it. In a transaction or a script, and without a running clock (simulations), the work is one step, as in Redis.
//!
//! This file has the trait [`Work`] and the list of jobs. `run.rs` begins, continues and ends jobs,
//! `keys.rs` is the job over the keys of a database, and `long_run.rs` has the state of a script that runs long.

pub(crate) mod keys;
pub mod long_run;
mod run;
mod supervise;

use std::collections::VecDeque;

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::Engine;
use crate::engine::command::Command;
use crate::engine::jobs::long_run::Verdict;

/// The work of a job: what it visits, and what it does with each element.
pub(crate) trait Work: Send {
    /// Number of elements visited in one turn of [`Engine::advance`].
    fn slice(&self) -> u32 {
        512
    }

    /// Visits `count` more elements for the session, at least one. Returns whether those were the last. Appends the elements of
    /// the reply to `reply`.
    fn go_on(&mut self, engine: &mut Engine, now: Now, id: SessionId, count: u32, reply: &mut Vec<u8>) -> bool;

    /// The type of the reply, when all elements were visited.
    fn kind(&self) -> ReplyKind;

    /// Releases the engine's resources that the job holds, at its end or before.
    fn leave(&mut self, _: &mut Engine) {}
}

/// The type of a job's reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyKind {
    /// An array with this many elements.
    Array(usize),
    /// A text.
    Text,
    /// The whole reply, with its head.
    Whole,
    /// No final reply: its parts were sent during the job.
    AlreadySent,
}

/// One job.
struct Job {
    session: SessionId,
    command: &'static Command,
    work: Box<dyn Work>,
    /// The elements of the reply so far.
    reply: Vec<u8>,
    /// Time spent so far, in nanoseconds.
    ns: u64,
}

/// The jobs in progress.
#[derive(Default)]
pub struct Jobs(VecDeque<Job>);

impl Jobs {
    /// Whether there are no jobs.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a session waits for a job.
    pub fn has(&self, id: SessionId) -> bool {
        self.0.iter().any(|job| job.session == id)
    }

    /// Bytes of the reply that a session's job has gathered so far.
    pub fn bytes(&self, id: SessionId) -> usize {
        self.0.iter().find(|job| job.session == id).map_or(0, |job| job.reply.len())
    }
}

/// Called repeatedly while a script runs. The arguments are the engine, in the middle of a command; the instant of that command;
/// its session; and whether this is the first call of this run. It may execute other sessions' requests.
pub type Supervisor = Box<dyn FnMut(&mut Engine, Now, SessionId, bool) -> Verdict>;

#[cfg(test)]
mod tests;
