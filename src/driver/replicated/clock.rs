//! The clock of a cluster: the monotonic clock of its leader's engine.

use crate::base::time::Now;
use crate::persist::natives::clock::{BootClock, Moment};
use crate::quorum::types::ClusterTime;

/// The clock of the cluster, as native records know clocks: one boot that never ends.
const CLOCK: [u8; 16] = *b"portcullis-clock";

/// The moment of a batch.
pub(crate) fn moment(time: ClusterTime) -> Moment {
    moment_of(Now::new(time.us, time.wall_offset_ms))
}

/// The moment of a leader's engine.
pub(crate) fn moment_of(now: Now) -> Moment {
    Moment { now, boot: cluster_clock(now) }
}

/// The cluster's clock at a time of a leader's engine.
pub(super) fn cluster_clock(now: Now) -> BootClock {
    BootClock { id: CLOCK, now_ms: now.mono_ms() }
}
