//! Figures about the present state of all locks. None of them walks the locks.

use super::Locks;
use crate::base::time::Now;

/// Maximum number of present waits that percentiles count: the longest ones.
pub const WAITS_COUNTED: usize = 10_000;

impl Locks {
    /// The names of the figures in `LOCK.STATS`, and their values. `longest-hold-ms` may be up to a second too much.
    pub fn figures(&self, now: Now) -> [(&'static str, u64); 7] {
        let held = self.held.total();
        [
            ("waiting", self.queues.waiters() as u64),
            ("oldest-wait-ms", self.present_waits_us(now).next().unwrap_or(0) / 1000),
            ("held", held.locks + held.semaphores),
            ("longest-hold-ms", self.held.oldest_ms().map_or(0, |since_ms| now.mono_ms().saturating_sub(since_ms))),
            ("grants-renewed", self.held.renewed_grants()),
            ("broken", self.stats.broken),
            ("session-ends-held", self.stats.session_ends_held),
        ]
    }

    /// The waiting times, in microseconds, that each percentage of the waits did not exceed: of the waits that ended with a grant,
    /// and of up to [`WAITS_COUNTED`] that last.
    pub fn wait_percentiles_us<const N: usize>(&self, now: Now, percents: [f64; N]) -> [u64; N] {
        self.stats.wait_percentiles_us(self.present_waits_us(now).take(WAITS_COUNTED), percents)
    }

    /// How long the waiters have waited, in microseconds, the longest wait first.
    fn present_waits_us(&self, now: Now) -> impl Iterator<Item = u64> {
        self.queues.waiters_by_age().map(move |waiter| now.mono_us().saturating_sub(waiter.since_us))
    }

    /// How long the longest present wait for a name lasts, in milliseconds; 0 without waiters.
    pub fn oldest_wait_ms(&self, now: Now, queue: u32) -> u64 {
        self.oldest_wait_us(now, queue) / 1000
    }

    /// As [`Locks::oldest_wait_ms`], in microseconds.
    pub fn oldest_wait_us(&self, now: Now, queue: u32) -> u64 {
        self.queues.oldest_since_us(queue).map_or(0, |since_us| now.mono_us().saturating_sub(since_us))
    }
}
