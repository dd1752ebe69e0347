//! The native locks and their contract, over TCP.
//!
//! - `rules`: the contract, rule by rule; `contract`: sentence by sentence, where `rules` has no rule of that name;
//! - `retried`: repeated requests, and sessions;
//! - `seen`: what commands show of locks; `broken`: administrators end grants; `shown`: replies as maps;
//! - `watched`: figures, directives, and what happens to holders when databases are emptied or swapped;
//! - `neighbours`: what users learn of each other, and how little they disturb each other;
//! - `expiry`: notifications about expired plain keys of libraries' locks.

#![allow(clippy::unwrap_used)]

#[path = "../bare/mod.rs"]
mod bare;
#[path = "../common/mod.rs"]
mod common;

mod broken;
mod contract;
mod expiry;
mod neighbours;
mod retried;
mod rules;
mod seen;
mod shown;
mod watched;
