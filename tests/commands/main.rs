//! What commands answer: over TCP, here and on a redis-server where there is one, or over the engine without a socket. A module a family.

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
