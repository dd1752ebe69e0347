//! The server as a process and as sockets: who is let in, who is closed, and what nobody can do to the others.
//!
//! - `program`: bytes over TCP, flags, signals, and the process from its start to its end;
//! - `connection`, `listening`, `tls`, `client_eviction`: the life of connections;
//! - `busy`, `hostile`: scripts that run long, and what nobody should send.

#![allow(clippy::unwrap_used)]

#[path = "../bare/mod.rs"]
mod bare;
#[path = "../common/mod.rs"]
mod common;

mod busy;
mod client_eviction;
mod connection;
mod hostile;
mod listening;
mod program;
mod tls;
