//! Durability of the program, from outside: what a client was told is there after the process was killed or stopped, and the folder
//! is one that redis-server reads and writes.
//!
//! - `kill`, `load`: SIGKILL under load, and what each client knows that must be there;
//! - `everysec`: what `appendfsync everysec` may lose;
//! - `gate`: nothing that shows a change leaves before the change is durable;
//! - `wait`: WAITAOF;
//! - `latency`: what the log reports of a slow disk, and times in the files;
//! - `interchange`: folders of redis-server here, and ours there;
//! - `refused`: folders that a server must not start from;
//! - `check`: `portcullis check`;
//! - `loading`: what clients are told while files are loaded;
//! - `reload`: files that are loaded into a running server;
//! - `start`: snapshots, and append-only files of Redis 6;
//! - `snapshot`: RDB snapshots that are written;
//! - `times`: everything with a time in it, over every kind of start;
//! - `switch`: the append-only file, switched on and off while the server runs;
//! - `config`: directives, new bases, and restarts one after the other.
//!
//! A *round* is one life of a server between two kills. Environment variables:
//!
//! - `PORTCULLIS_FULL_SIZE`: 1,000 kills with 64 clients instead of 5 with 16;
//! - `PORTCULLIS_SEED`: the seed of `kill`, which each run prints;
//! - `PORTCULLIS_REQUIRE_REDIS=1`: fail where redis-server or redis-check-aof is missing, instead of skipping.

#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod check;
mod config;
mod everysec;
mod gate;
mod interchange;
mod kill;
mod latency;
mod load;
mod loading;
mod process;
mod refused;
mod reload;
mod snapshot;
mod start;
mod stuck;
mod switch;
mod times;
mod wait;
