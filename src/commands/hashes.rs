//! Hashes.

use crate::engine::command::Command;

/// The rows.
pub const COMMANDS: &[Command] = &[];
