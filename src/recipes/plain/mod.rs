//! Locks that are one key, which a plain command sets. Waiters poll.
//!
//! They stand in the order in which the field found them: [`setnx`] and [`time_stamp`] are the early, flawed ones, [`token`] is
//! what most tutorials and libraries use today, [`compare_and_delete`] replaces its scripts by commands, and [`redlock`] runs it on
//! several servers. [`broken`] is no lock, but shows that tests find violations.

pub mod broken;
pub mod compare_and_delete;
pub mod redlock;
pub mod setnx;
pub mod time_stamp;
pub mod token;
