//! RDB files and a real redis-server: what it writes is read here, and what is written here it loads. And files that were damaged,
//! with a bound on the memory that they may use.
//!
//! ```text
//!   redis-server ─ SAVE ─▶ file ─▶ Reader, Loader ─▶ engine ─┐
//!                                                            ├─ DEBUG DIGEST-VALUE, TYPE, PEXPIRETIME of every key are equal
//!   engine ─▶ Writer ─▶ file ─▶ redis-check-rdb ─▶ redis-server: DEBUG RELOAD NOSAVE ─┘
//! ```
//!
//! Without a redis-server on the `PATH` they say so. Environment:
//! - `PORTCULLIS_REQUIRE_REDIS=1`: fail instead, also without redis-check-rdb;
//! - `PORTCULLIS_REDIS8`: a newer redis-server with which files are exchanged as well;
//! - `PORTCULLIS_DAMAGED_FILES`: the number of damaged files;
//! - `PORTCULLIS_FULL_SIZE`: 100,000 corrupted folders instead of some hundreds.

#![allow(clippy::unwrap_used)]

#[path = "../../fuzz/bodies/allocation.rs"]
mod allocation;
#[path = "../common/mod.rs"]
mod common;

mod damage;
mod hostile;
mod interchange;
mod log_memory;
mod subject;

#[global_allocator]
static ALLOCATOR: allocation::Counting = allocation::Counting;
