//! Times requests with as few clock reads as possible.
//!
//! A clock read costs 25 ns, a request 300. For most commands, the cost is bounded by the sizes of request and reply: up to
//! `GROUP` of them share a clock read, and each is assumed to have taken an equal part of the time. These have a clock read of
//! their own: a command that may take longer regardless of its size, one with many or large arguments or a large reply, a message
//! to many receivers, and a script that has run long. While `slowlog-log-slower-than` is below `EACH_BELOW_US`, every command has
//! one.
//!
//! So the number of calls is exact. The time of commands that share a clock read is a mean. The time of the others is exact,
//! except for up to `GROUP` small commands before them, whose part is estimated. Commands that share a clock read and were slow
//! in total have one entry in the slow log, which names them: most likely the machine was busy elsewhere, which `LATENCY TURNS`
//! shows; `LATENCY` calls it `fast-command`.
//!
//! Without a stopwatch, as in simulations and while the clock is frozen, commands take no time except that of `DEBUG SLEEP`.

use crate::base::time::Now;
use crate::engine::observe::slowlog::Entry;

/// Maximum number of commands that share a clock read.
pub(super) const GROUP: usize = 16;

/// A request whose time continues after its execution, while the driver carries out its actions.
#[derive(Debug)]
pub(super) struct Unfinished {
    /// The number of its command's slot in [`crate::engine::observe::command_stats::CommandStats`].
    pub(super) slot: usize,
    pub(super) began_ns: u64,
    pub(super) entry: Entry,
}

/// State of the timing.
#[derive(Debug, Default)]
pub struct Timing {
    /// Returns nanoseconds since an arbitrary origin.
    pub(super) stopwatch: Option<fn() -> u64>,
    /// The last clock read.
    pub(super) looked_ns: u64,
    /// Commands that wait for the next clock read: slots of [`crate::engine::observe::command_stats::CommandStats`].
    pub(super) group: [u16; GROUP],
    pub(super) waiting: usize,
    /// The last time of one command in a group.
    pub(super) typical_ns: u64,
    /// Whether requests of others interrupt a script: they are not timed.
    pub(crate) suspended: bool,
    /// Whether a script has run so long that the supervisor was called.
    pub(crate) long: bool,
    /// Whether every command has a clock read of its own.
    pub(super) each: bool,
    /// Threshold of the slow log in nanoseconds; all ones if it is off.
    pub(super) slow_ns: u64,
    /// Start of the transaction that is timed as a whole.
    pub(super) began_ns: Option<u64>,
    pub(super) unfinished: Option<Box<Unfinished>>,
}

impl Timing {
    /// Whether the next command has a clock read of its own, or none, for a reason other than the command itself.
    pub(crate) fn is_particular(&self) -> bool {
        self.each | self.suspended | self.long
    }

    /// The stopwatch's time, in nanoseconds; without a stopwatch, the engine's.
    pub(super) fn look(&self, now: Now) -> u64 {
        self.stopwatch.map_or(now.mono_us().saturating_mul(1000), |look| look())
    }
}
