//! The commands that a plan may call: those whose reply is never an aggregate, whatever their arguments.

use crate::engine::command::{Command, Replies};

/// The type of a command's reply, if that is not an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyType {
    /// Always a number.
    Integer,
    /// A number, a string, a status or null.
    Scalar,
}

/// The type of a command's reply. `arguments` is the number of its arguments, including its name. `None` if the reply may be an
/// aggregate.
pub(super) fn reply_type(command: &Command, arguments: usize) -> Option<ReplyType> {
    match command.replies {
        Replies::Integer => Some(ReplyType::Integer),
        Replies::Scalar => Some(ReplyType::Scalar),
        // Without a count, there are only the name and the key.
        Replies::ScalarWithoutCount => (arguments == 2).then_some(ReplyType::Scalar),
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
