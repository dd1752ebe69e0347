//! `maxmemory`: when it is used up, keys are evicted if the policy allows it, and commands that need more memory are refused if
//! no key can be evicted.
//!
//! ```text
//!   command ─▶ room? ── yes ─────────────────────────────▶ runs
//!                └─ no ─▶ free what waits for it, evict ─▶ enough, or more to do: runs; Engine::advance goes on
//!                                                      └─▶ nothing can go: -OOM, if it may need memory
//! ```
//! All allocations of the executor's thread count, including buffers of clients, as in Redis, which excludes only those of
//! replicas and of the append-only file. What is remembered for diagnosis does not count, and has a budget of its own:
//! see [`diagnosis`](crate::engine::observe::diagnosis).
//!
//! This file has the state of the limit. `limit.rs` checks it and evicts keys. `clients` bounds the memory of clients, and
//! `discard.rs` frees large buffers in steps.

pub mod clients;
pub mod discard;
mod limit;

use crate::base::time::Now;

/// State of the memory limit.
#[derive(Debug, Default)]
pub struct MemoryGuard {
    /// Bytes in use at the last measurement.
    measured: u64,
    /// Time of the last measurement, in monotonic milliseconds.
    measured_ms: u64,
    /// Upper bound of the bytes that commands have requested since.
    since: u64,
    /// Whether keys are to be evicted when there is time.
    pub(super) evicting: bool,
    /// Whether the last attempt found no key to evict.
    exhausted: bool,
    /// Start of the current excess over `maxmemory`, in monotonic microseconds.
    over_since_us: Option<u64>,
}

impl MemoryGuard {
    /// Discards the measurement after a change of the limit; keys are to be evicted for the new one, if there is one.
    pub(super) fn measure_again(&mut self, bounded: bool) {
        let over_since_us = self.over_since_us;
        *self = MemoryGuard { over_since_us, evicting: bounded || over_since_us.is_some(), ..MemoryGuard::default() };
    }

    /// Restarts the count of the time above `maxmemory`.
    pub(super) fn begin_anew(&mut self, now: Now) {
        self.over_since_us = self.over_since_us.map(|_| now.mono_us());
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod eviction_tests;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod natives_tests;
