//! The flags of a request that runs a script or a function.

use crate::engine::Engine;
use crate::engine::command::{Command, Flags, Runs};

impl Engine {
    /// The flags of a command with these arguments: those of its row, unless it runs a script or a function that declares its own.
    pub(crate) fn flags_of(&self, command: &Command, args: &[&[u8]]) -> Flags {
        if args.len() < 2 || matches!(command.runs, Runs::Nothing) {
            command.flags
        } else {
            self.scripting.interpreters.flags(command.runs, command.flags, args)
        }
    }
}
