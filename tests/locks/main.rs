//! The native locks and their contract, over TCP.
//!
//! - `rules`: the contract, rule by rule; `contract`: sentence by sentence, where `rules` has no rule of that name;
//! - `retried`: repeated requests, and sessions;
//! - `watched`: the view of administrators;
//! - `expiry`: notifications about expired plain keys of libraries' locks.

#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod contract;
mod expiry;
mod retried;
mod rules;
mod watched;
