//! The commands that a plan may call: those whose reply is never an aggregate, whatever their arguments.

use crate::engine::command::{Command, Replies};

/// What a command replies with, if not with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// Always a number.
    Integer,
    /// A number, a string, a status or nothing.
    Any,
}

/// What a command with so many arguments replies with; `None` where that may be an aggregate.
pub(super) fn reply(command: &Command, arguments: usize) -> Option<Reply> {
    match command.replies {
        Replies::Integer => Some(Reply::Integer),
        Replies::Scalar => Some(Reply::Any),
        // The count would be one more argument.
        Replies::ScalarWithoutCount => (arguments == 2).then_some(Reply::Any),
        Replies::Any => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands;
    use crate::engine::command::Flags;

    #[test]
    fn scripts_may_call_them() {
        let known = || commands::all().filter(|command| command.replies != Replies::Any);
        for command in known() {
            let waits = command.flags.intersects(Flags::NOSCRIPT.union(Flags::BLOCKING));
            assert!(!waits && command.subcommands.is_empty(), "{}", command.name);
        }
        assert!(known().count() >= 100, "{}", known().count());
    }
}
