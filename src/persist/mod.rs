//! Persistence: the contents of the files from which a server starts again, as bytes. This layer opens no file.
//!
//! ```text
//!   keyspace::change ─▶ append: the append-only file, written and read
//! ```

pub mod append;
