//! Locks that are one key, which a plain command sets. Waiters poll.
//!
//! In historical order: [`setnx`] and [`time_stamp`] are early and flawed. [`token`] is what most tutorials and libraries use
//! today. [`compare_and_delete`] replaces its scripts by commands. [`redlock`] runs it on several servers. [`broken`] is a
//! deliberately broken lock for tests.

pub mod broken;
pub mod compare_and_delete;
pub mod redlock;
pub mod setnx;
pub mod time_stamp;
pub mod token;
