//! COMMAND and its subcommands: the table, told to clients.

use crate::engine::command::Command;

/// The rows.
pub const COMMANDS: &[Command] = &[];
