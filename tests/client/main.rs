//! The asynchronous client.
//!
//! - `requests`: commands, pipelines and subscriptions, also against servers that fail;
//! - `locks`: native locks and their guards;
//! - `silence`: holders whom nobody answers;
//! - `faults`: what locks leave behind when futures are dropped, connections break and servers end.

#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod faults;
mod locks;
mod requests;
mod silence;
