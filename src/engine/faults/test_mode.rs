//! What tests have ordered, and their orders about the server's clock. The engine has no clock; it passes these on to its driver.

use crate::engine::faults::Faults;
use crate::engine::faults::gates::Gates;

/// What tests have ordered.
pub(in crate::engine) struct Testing {
    /// Test mode: `CLOCK` and `FAULT` are allowed.
    pub(in crate::engine) mode: bool,
    /// Faults ordered by `FAULT`.
    pub(in crate::engine) faults: Faults,
    /// Replies that a fault holds back.
    pub(in crate::engine) gates: Gates,
}

impl Testing {
    /// Nothing. `seed` is that of the faults with a probability.
    pub(in crate::engine) fn new(seed: u64) -> Testing {
        Testing { mode: false, faults: Faults::new(seed), gates: Gates::default() }
    }
}

/// The farthest that a clock is moved, and the latest time that it shows, in milliseconds: a hundred thousand years. Later
/// additions do not overflow.
pub const FAR_MS: u64 = 100_000 * 366 * 86_400 * 1000;

/// A `CLOCK` command's order for the driver, which replies when it has carried it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockOrder {
    /// Freeze at the next whole millisecond.
    Freeze,
    /// Run on from the current time.
    Resume,
    /// Move forward by this many milliseconds. Everything that falls due on the way happens at its own time.
    Advance(u64),
    /// Set the unix time, in milliseconds: move forward to it, or step only the wall clock back to it.
    Set(i64),
    /// Step only the wall clock by this many milliseconds.
    Skew(i64),
    /// Report the current time, and the number of blocked clients.
    Info,
}
