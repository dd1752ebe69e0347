//! The keyspace: databases, and everything that follows from a change of a key.
//!
//! ```text
//!   command ─▶ databases ─▶ store                    types/  edits by type        rdb/  DUMP and RESTORE
//!                  └──────▶ change: one Change for each ─▶ events, watches, waits, tracking, journal, change log
//! ```
//!
//! Begin at [`databases`] for how a key is found and at [`change`] for what a change triggers. [`interests`] is the structure
//! behind WATCH, blocking commands and tracking: which sessions are interested in which keys. This layer knows sessions by number
//! only.

pub mod change;
pub mod databases;
pub mod eviction;
pub mod images;
pub mod interests;
pub mod journal;
pub mod lock_records;
pub mod lru;
pub mod natives;
pub mod rdb;
pub mod tracking;
pub mod types;
pub mod waits;
pub mod watches;
