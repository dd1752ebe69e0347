//! The server as a process with sockets: which connections are accepted and closed, and that no client can harm others.
//!
//! - `program`: bytes over TCP, flags, signals, and the process from its start to its end;
//! - `configuration`: the directives of Redis and Valkey;
//! - `connection`, `listening`, `tls`, `client_eviction`: the life of connections;
//! - `noticed`, `service_manager`: what the log tells an operator, and the socket a service manager;
//! - `files`: links that others put where the server writes;
//! - `pages`: shell completions and man pages;
//! - `busy`, `hostile`: long scripts, and hostile input.

#![allow(clippy::unwrap_used)]

#[path = "../bare/mod.rs"]
mod bare;
#[path = "../common/mod.rs"]
mod common;

mod busy;
mod client_eviction;
mod configuration;
mod connection;
mod files;
mod hostile;
mod listening;
mod noticed;
mod pages;
mod program;
mod service_manager;
mod tls;

use std::time::{Duration, Instant};

/// Waits until something is so, for 10 s at most.
#[track_caller]
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !done() {
        assert!(Instant::now() < end, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
