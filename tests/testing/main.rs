//! The test double, as a test author uses it: its clock (`mode`), its faults, restarts and other helpers.

#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod faults;
mod helpers;
mod mode;
mod restart;
