//! The test server as the author of a test uses it: its clock (`mode`), faults, restarts and other helpers.

#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod faults;
mod helpers;
mod mode;
mod restart;
