//! The storage of Raft: a node's vote, its log and its snapshots, in one folder.
//!
//! ```text
//!   openraft ─▶ storage: LogStore ─▶ memory: the state and the last entries, answered at once
//!                  │ orders
//!                  ▼
//!               worker (a thread) ─▶ segments: groups of records, one sync for each ─▶ persist::disk
//!                                        ▲
//!                           open: every record checked, a torn tail cut, anything else refused
//!   snapshots: files with a checked record each
//!   joining, cut: marks, as long as the node has no vote
//! ```
//!
//! Votes, entries, truncations, purges and what is known to be committed are records of one log, so that they have one order on the
//! disk and one sync makes all of them durable. Nothing is ever overwritten: a truncation is a record, and what a crash has torn is
//! cut before anything follows.
//!
//! It is not a general store: it has one writer, and keeps the place of every entry in memory (12 bytes each).

pub mod contents;
pub mod forgotten;
pub mod header;
pub mod lock;
pub mod memory;
pub mod open;
pub mod pace;
pub mod progress;
pub mod record;
pub mod segments;
pub mod snapshots;
pub mod storage;
pub mod worker;

pub use forgotten::LogLoss;
pub use header::{Lineage, Owner};
pub use lock::FolderLock;
pub use progress::{DiskNow, Progress};
pub use segments::Planted;
pub use snapshots::{Snapshots, Temporary};
pub use storage::{LogStore, LogThread, Options};
pub use worker::{Step, Woken, Worker};

#[cfg(test)]
mod tests;
