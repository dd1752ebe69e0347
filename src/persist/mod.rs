//! The forms in which the state is written down, as bytes in and bytes out: no files, no threads, no clock.

pub mod rdb_file;
