//! Replies of commands: over TCP, here and on redis-server if it is installed, or over the engine without sockets. There is a
//! module for each family.

#![allow(clippy::unwrap_used)]

#[path = "../bare/mod.rs"]
mod bare;
#[path = "../common/mod.rs"]
mod common;

mod acl;
mod administration;
mod blocking;
mod counters;
mod crowd;
mod events;
mod info;
mod lists;
mod monitor;
mod pubsub;
mod pubsub_tcp;
mod serialization;
mod tracking;
mod transactions;
