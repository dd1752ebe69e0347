//! The server itself: INFO, TIME, FLUSHALL, DEBUG, SHUTDOWN.

use crate::engine::command::Command;

/// The rows.
pub const COMMANDS: &[Command] = &[];
