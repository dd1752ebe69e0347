//! Native lock commands: LOCK in [`acquire`], [`info`] and [`sessions`], SEM and LATCH in [`semaphores`], and the rate limiter.
//!
//! The handlers read arguments and write replies. The rules of locks are in [`crate::lock`]; [`crate::engine::locks`]
//! keeps locks under their keys.

pub mod acquire;
pub mod info;
pub mod semaphores;
pub mod sessions;
pub mod throttle;
