//! A [`World`] with true time and a history of what happened, for the workload of torture only.

use std::time::Duration;

use crate::recipes::World;
use crate::torture::history::{EventKind, Op, Trace};

/// The world of one client under test.
pub trait TracedWorld: World {
    /// True time since the beginning, in microseconds. For the history only: no client of a real system knows it.
    fn true_us(&self) -> u64;

    /// The true time at which this client's [`World::elapsed`] has this value.
    fn true_of(&self, elapsed: Duration) -> u64;

    /// A handle of the same client with a new trace for its calls.
    fn traced(&self) -> Self;

    /// What servers did for the calls of this handle.
    fn trace(&self) -> Trace;

    /// The number of a new acquisition.
    fn next_op(&self) -> Op;

    /// Records an event of this client in the history.
    fn record(&self, kind: EventKind);

    /// The number of the server that has the guarded resources, for [`World::call`].
    fn store(&self) -> usize;
}
