//! Commands for tests, in test mode only: CLOCK controls the clock, FAULT injects faults into requests and replies.

pub mod clock;
pub mod fault;
