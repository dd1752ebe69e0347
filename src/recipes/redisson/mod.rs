//! The locks of the Java library Redisson: hashes that scripts change, and messages that wake waiters.
//!
//! [`reentrant`] is the place to begin. [`fair`] adds a queue, [`read_write`] adds readers, and [`multi`] combines several locks.
//! Redisson's semaphores and latch are in [`counting`](crate::recipes::counting).

pub mod fair;
pub mod multi;
pub mod read_write;
pub mod reentrant;
