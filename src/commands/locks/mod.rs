//! Native lock commands: LOCK in [`acquire`], [`info`] and [`sessions`], SEM and LATCH in [`semaphores`], and the rate limiter.
//!
//! The handlers read arguments and write replies. What a lock does is in [`crate::lock`], and how it is kept under a key is in
//! [`crate::engine::locks`].

pub mod acquire;
pub mod info;
pub mod semaphores;
pub mod sessions;
pub mod throttle;
