//! The handshake: AUTH, HELLO, PING, SELECT and the like.

use crate::engine::command::Command;

/// The rows.
pub const COMMANDS: &[Command] = &[];
