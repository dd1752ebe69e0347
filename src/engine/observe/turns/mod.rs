//! Durations of the executor's turns: stretches of work during which no other session is served.
//!
//! A turn is one run of a connection (it receives, executes requests, writes), of the timer (deadlines and deferred freeing), of
//! the accepting sockets, and so on. The driver of the engine measures and reports it. Everything that delays a client, besides
//! the work of its own request, consists of turns, so the longest turn bounds the pauses that all other clients can see.
//!
//! Turns are measured in wall-clock time, because that is how they affect others. A long turn has two possible causes: its work,
//! or that the system gave the processor to another thread. So for a long turn the driver also reports the processor time of its
//! thread. The slow log and the times of commands are parts of turns, measured with the same clock.
//!
//! This file has the statistics; `note.rs` adds a turn to them.

mod note;

use std::borrow::Cow;

use crate::base::ids::SessionId;
use crate::engine::observe::histogram::Histogram;

/// Turns longer than this many nanoseconds are too long.
pub const LONG_NS: u64 = 1_000_000;

/// The task that a turn belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// A client: its requests, its replies, or its end.
    Client(SessionId),
    /// The timer.
    Timer,
    /// The listening sockets, including TLS handshakes.
    Accept,
    /// The owner of the server: a signal, or a program that embeds it.
    Control,
    /// Files are loaded.
    Load,
    /// Keys were copied for a snapshot or a first base.
    Copy,
}

impl Task {
    /// Its name in `LATENCY TURNS`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Task::Client(_) => "client",
            Task::Timer => "timer",
            Task::Accept => "accept",
            Task::Control => "control",
            Task::Load => "load",
            Task::Copy => "copy",
        }
    }
}

/// The longest turn.
#[derive(Clone, Debug, Default)]
pub struct Longest {
    /// Its duration.
    pub ns: u64,
    /// The processor time of its thread during the turn, in nanoseconds; the whole duration if unknown.
    pub cpu_ns: u64,
    /// Its end, as unix time in milliseconds.
    pub unix_ms: i64,
    /// Its task.
    pub task: &'static str,
    /// The full name of the last command that the client had sent by the end of the turn.
    pub command: Option<Cow<'static, str>>,
}

/// Statistics of all turns since the start or the last `CONFIG RESETSTAT`.
#[derive(Debug, Default)]
pub struct Turns {
    /// Histogram of durations.
    pub histogram: Histogram,
    /// Total duration, in nanoseconds.
    pub ns: u64,
    /// Number of turns longer than a millisecond.
    pub long: u64,
    /// Nanoseconds of those turns during which the thread did not have the processor.
    pub off_cpu_ns: u64,
    /// The longest turn; `None` before the first one.
    pub longest: Option<Longest>,
}
