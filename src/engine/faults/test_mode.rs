//! What only tests ask of a server: to move its clock. The engine has none; it hands these orders on to its driver.

use crate::engine::Engine;
use crate::engine::session::SessionFlags;

/// The farthest that a clock is moved, and the latest time it shows, in milliseconds: a hundred thousand years. What is added to it
/// later does not overflow.
pub const FAR_MS: u64 = 100_000 * 366 * 86_400 * 1000;

/// What a `CLOCK` command asks of the driver, which replies to it when it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockOrder {
    /// Stand still, from the next whole millisecond on.
    Freeze,
    /// Run on from where it stands.
    Resume,
    /// Move forward by so many milliseconds. All that is due on the way happens at its own time.
    Advance(u64),
    /// Show this unix time, in milliseconds: move forward to it, or step the wall clock alone back to it.
    Set(i64),
    /// Step the wall clock alone by so many milliseconds.
    Skew(i64),
    /// Say what it shows, and how many clients wait.
    Info,
}

impl Engine {
    /// How many clients wait, be it for keys, locks, the end of a pause or of a delay. Walks all sessions.
    pub fn blocked_clients(&self) -> usize {
        self.sessions.iter().filter(|(_, session)| session.flags.contains(SessionFlags::BLOCKED)).count()
    }
}
