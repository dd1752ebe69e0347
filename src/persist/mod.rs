//! Persistence: the contents of the files from which a server starts again, as bytes, and the rules by which bytes become durable.
//! This layer opens no file, and has no clock and no thread: `server::durable` does.
//!
//! ```text
//!   keyspace::change ─▶ append: the append-only file, written and read ─▶ writer: batches, synced ─▶ disk
//!                                                    resume: after a start ──┘
//!   keyspace         ─▶ rdb_file: all keys in one file, written and read
//!   keyspace, changes ─▶ live_copy: all keys at one moment, while they change
//! ```

pub mod append;
pub mod disk;
pub mod increment_file;
pub mod live_copy;
pub mod natives;
pub mod rdb_file;
pub mod resume;
