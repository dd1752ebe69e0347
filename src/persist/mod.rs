//! Persistence: the contents of the files from which a server starts again, as bytes, and the rules by which bytes become durable.
//! This layer opens no file. The server does not use it yet, so it is compiled for tests only (cargo feature `internals`).
//!
//! ```text
//!   keyspace::change ─▶ append: the append-only file, written and read ─▶ writer: batches, synced ─▶ disk
//!                                                    resume: after a start ──┘
//!   keyspace         ─▶ rdb_file: all keys in one file, written and read
//!   lock             ─▶ natives: locks and what belongs to them, as bytes in both files
//! ```

pub mod append;
pub mod disk;
pub mod natives;
pub mod rdb_file;
pub mod resume;
pub mod writer;
