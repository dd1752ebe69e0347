//! Commands for tests, in test mode only: CLOCK moves the clock, FAULT makes requests and replies fail.

pub mod clock;
pub mod fault;
