//! Server commands: INFO, CONFIG, COMMAND, MEMORY, LATENCY, SLOWLOG, DEBUG, NODE, and the process itself.

pub mod command;
pub mod command_docs;
pub mod config;
pub mod debug;
pub mod debug_digest;
pub mod info;
mod info_replication;
pub mod latency;
pub mod memory;
pub mod node;
pub mod process;
pub mod replication;
pub mod slowlog;
