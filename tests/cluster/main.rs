//! Three nodes that replicate, from outside: what a client was told holds, whichever node ends, stops or loses its disk.
//!
//! - `nodes`: the processes, and a client that looks for the leader;
//! - `failover`: leaders that are killed under load;
//! - `faults`: a paused leader, a lost disk, a lost majority, wrong folders;
//! - `disks`: disks that hang, and disks that are full from the start;
//! - `cut`: logs whose ends are torn or damaged;
//! - `shown`: what clients of each node are told;
//! - `members`: nodes that join, leave and are replaced, by `portcullis cluster`;
//! - `mixed`: two clusters that meet, and clusters without ids;
//! - `rolling`: all nodes are restarted under load;
//! - `recovered`: what is left of a lost majority;
//! - `encrypted`: TLS among the nodes;
//! - `strangers`: frames behind the handshake that make no sense;
//! - `trial`: `portcullis cluster try`;
//! - `partitions`, `proxies`: cuts between the nodes, full disks, pauses and lost disks under load;
//! - `clocks`: wall clocks that are wrong and jump;
//! - `own_client`: the client of this crate;
//! - `bound`: clients that hold by a session or wait, of a leader that is cut off, stopped or killed;
//! - `promises`: what a failover means for subscribers, transactions, scripts, sessions and requests that are repeated;
//! - `waits`: `WAIT`, and clients that ask while no node leads;
//! - `session`: a connection that stays open.
//!
//! `PORTCULLIS_FULL_SIZE` makes it 200 kills instead of 3, and 25 rounds of faults instead of one. `PORTCULLIS_PROGRAM` is the program to test, if it is not the debug build.

#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod bound;
mod clocks;
mod cut;
mod disks;
mod encrypted;
mod failover;
mod faults;
mod members;
mod mixed;
mod nodes;
mod own_client;
mod partitions;
mod promises;
mod proxies;
mod recovered;
mod rolling;
mod session;
mod shown;
mod strangers;
mod trial;
mod waits;
