//! Clocks of native records: those of [`crate::persist::natives`].

pub use crate::persist::natives::clock::{BootClock, Moment};
