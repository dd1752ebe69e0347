//! The append-only file: what was changed, as the requests that change it.
//!
//! ```text
//!   Change ─▶ encode, native ─▶ log: units ─▶ batch: checked ─▶ file ─▶ read ─▶ requests of Redis, and native records
//!                                                                └─── manifest: which files, in which order
//! ```
//!
//! The format is Redis's: RESP arrays of bulk strings, `MULTI` and `EXEC` around a unit of several requests. Lines that begin
//! with
//! `#` are annotations, which Redis skips; ours begin the file and check [batches](batch). Redis loads such a file as long as it has no
//! native locks: those are in it as requests of our own, named `PORTCULLIS.…` (see [`native`]).

pub mod batch;
pub mod clock;
pub mod damage;
pub mod encode;
pub mod files;
pub mod log;
pub mod log_writer;
pub mod manifest;
pub mod native;
pub mod read;
pub mod request;
mod scan;
mod tail;

#[cfg(test)]
mod tests;
