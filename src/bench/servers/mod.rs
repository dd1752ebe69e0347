//! The servers that are measured: their programs and flags, their processes, and what they and the system say about them.
//!
//! - [`kind`]: redis-server, valkey-server, kevy and portcullis, and how each is started;
//! - [`process`]: a server as a child process; [`process_stats`]: its CPU time and memory;
//! - [`target`]: a server, or several, that `portcullis bench` measures;
//! - [`cpu`]: CPU time of the servers of a target;
//! - [`info`]: a server's `INFO`; [`wire`]: requests byte by byte.

pub mod cpu;
pub mod info;
pub mod kind;
pub mod process;
#[cfg(any(test, feature = "internals"))]
pub mod process_stats;
pub mod target;
#[cfg(any(test, feature = "internals"))]
pub mod wire;
