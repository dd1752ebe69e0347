//! RDB files and a real redis-server: what it writes is read here, and what is written here it loads. And files that were damaged,
//! with a bound on the memory that they may use.
//!
//! ```text
//!   redis-server ─ SAVE ─▶ file ─▶ Reader, Loader ─▶ engine ─▶ DUMP, TTL ─▶ equal to those of redis-server
//!   engine ─▶ Writer ─▶ file ─▶ redis-check-rdb; redis-server --dbfilename ─▶ DEBUG DIGEST-VALUE, TTL ─▶ equal
//! ```
//! Without a redis-server on the `PATH` they say so.

#![allow(clippy::unwrap_used)]

#[path = "../../fuzz/bodies/allocation.rs"]
mod allocation;
#[path = "../common/mod.rs"]
mod common;

mod damage;
mod interchange;
mod log_memory;
mod subject;

#[global_allocator]
static ALLOCATOR: allocation::Counting = allocation::Counting;
