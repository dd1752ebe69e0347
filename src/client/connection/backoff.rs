//! Decides when to try again after a connection broke or could not be opened.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Number of consecutive failures after which a blocking command is given up.
const FAILURES_MAX: u32 = 10;

/// Exponential back-off with jitter.
pub(crate) struct Backoff {
    failures: u32,
    next: Instant,
}

impl Backoff {
    pub fn new() -> Backoff {
        Backoff { failures: 0, next: Instant::now() }
    }

    /// Records a failed attempt and schedules the next one.
    pub fn failed(&mut self, (first, at_most): (Duration, Duration)) {
        let doubled = first.saturating_mul(1 << self.failures.min(16)).min(at_most);
        // From half of the pause to all of it, at random, so that clients that lost the same server do not all reconnect at once.
        // If the system has no randomness, all of it.
        let random = getrandom::u32().unwrap_or(u32::MAX);
        self.next = Instant::now() + doubled.mul_f64(0.5 + 0.5 * f64::from(random) / f64::from(u32::MAX));
        self.failures = self.failures.saturating_add(1);
    }

    /// Forgets the failures.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// Whether so many attempts in a row have failed that the caller has to give up.
    pub fn is_exhausted(&self) -> bool {
        self.failures >= FAILURES_MAX
    }

    /// Waits until the next attempt is due. Returns false at once if that is not before the deadline.
    pub async fn wait(&self, deadline: Instant) -> bool {
        if self.next >= deadline {
            return false;
        }
        sleep_until(self.next).await;
        true
    }
}
