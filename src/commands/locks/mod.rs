//! Native lock commands: LOCK in [`acquire`] and [`sessions`], SEM and LATCH in [`semaphores`], and the rate limiter. Commands for
//! people: [`info`], [`list`], [`graph`], [`doctor`], [`stats`], [`leaks`] and [`help`] show, and [`breaking`] ends, what others hold.
//!
//! The handlers read arguments and write replies. The rules of locks are in [`crate::lock`]; [`crate::engine::locks`]
//! keeps locks under their keys.

pub mod acquire;
pub mod breaking;
pub mod doctor;
pub mod graph;
pub mod help;
pub mod info;
pub mod leaks;
pub mod list;
mod plain;
pub mod semaphores;
pub mod sessions;
pub mod stats;
pub mod throttle;
