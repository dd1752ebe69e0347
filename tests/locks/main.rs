//! The native locks, held against their contract over TCP.
//!
//! - `rules`: the contract, rule by rule; `contract`: sentence by sentence, where `rules` has no rule of that name;
//! - `retried`: requests that are sent again, and sessions;
//! - `watched`: what administrators see;
//! - `expiry`: what clients learn when the plain key of a library's lock expires.

#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod contract;
mod expiry;
mod retried;
mod rules;
mod watched;
