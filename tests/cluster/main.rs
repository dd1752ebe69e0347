//! Three nodes that replicate, from outside: what a client was told holds, whichever node ends, stops or loses its disk.
//!
//! - `nodes`: the processes, and a client that looks for the leader;
//! - `failover`: leaders that are killed under load;
//! - `faults`: a paused leader, a lost disk, a lost majority, wrong folders;
//! - `shown`: what clients of each node are told;
//! - `members`: nodes that join, leave and are replaced, by `portcullis cluster`;
//! - `rolling`: all nodes are restarted under load;
//! - `recovered`: what is left of a lost majority;
//! - `encrypted`: TLS among the nodes;
//! - `trial`: `portcullis cluster try`.
//!
//! `PORTCULLIS_FULL_SIZE` makes it 200 kills instead of 3.

#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod encrypted;
mod failover;
mod faults;
mod members;
mod nodes;
mod recovered;
mod rolling;
mod shown;
mod trial;
