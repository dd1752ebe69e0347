//! Where clients are tortured: what their workload needs beyond what algorithms do.

use std::time::Duration;

use crate::recipes::World;
use crate::torture::history::{Op, Trace, What};

/// The surroundings of one client that is tortured.
pub trait Arena: World {
    /// True time, in microseconds since the beginning: what no client of a real system knows. Only for the history.
    fn true_us(&self) -> u64;

    /// The true time at which [`World::elapsed`] of this client shows this.
    fn true_of(&self, elapsed: Duration) -> u64;

    /// The same client, whose calls from here on are traced apart from those of others.
    fn traced(&self) -> Self;

    /// What servers did for the calls of this handle.
    fn trace(&self) -> Trace;

    /// A number for an acquisition.
    fn next_op(&self) -> Op;

    /// Notes in the history what this client does.
    fn record(&self, what: What);

    /// Number of the server that the guarded resources are on, for [`World::call`].
    fn store(&self) -> usize;
}
