//! Counters: semaphores, a latch and rate limits.
//!
//! [`semaphore`] and [`permits`] admit a number of holders at a time; only the latter has leases. [`latch`] opens when it is
//! counted down. [`rates`] admits a number of requests in a time.

pub mod latch;
pub mod permits;
pub mod rates;
pub mod semaphore;
