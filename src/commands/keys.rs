//! Keys of any type: deletion, expiry, renaming, copying, scanning.

use crate::engine::command::Command;

/// The rows.
pub const COMMANDS: &[Command] = &[];
