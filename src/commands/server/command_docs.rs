//! `COMMAND DOCS`: documentation generated from the rows.

use crate::commands::reference::syntax;
use crate::commands::reference::syntax::{Arg, Kind, Type};
use crate::commands::server::command::write_statuses;
use crate::engine::command::Command;
use crate::engine::table::subcommands;
use crate::resp::reply::Sink;

/// Writes the documentation of a command.
pub(crate) fn write_docs(reply: &mut dyn Sink, command: &'static Command) {
    // An invalid syntax has no arguments here; tests/commands_table.rs rejects such rows.
    let args = syntax::parse(command.syntax).unwrap_or_default();
    let parts = [!args.is_empty(), !command.subcommands.is_empty()];
    reply.map(4 + parts.iter().filter(|part| **part).count());
    let texts = [
        ("summary", command.summary),
        ("since", command.since),
        ("group", command.group.name()),
        ("complexity", command.complexity),
    ];
    for (name, text) in texts {
        reply.entry(name, text);
    }
    if !args.is_empty() {
        reply.bulk(b"arguments");
        let specs = command.key_specs().len();
        write_args(reply, &args, &mut KeyNumbers { specs, next: 0 });
    }
    if !command.subcommands.is_empty() {
        reply.bulk(b"subcommands");
        reply.map(command.subcommands.len());
        for (full_name, sub) in subcommands(command) {
            reply.bulk(full_name.as_bytes());
            write_docs(reply, sub);
        }
    }
}

/// The key specification of the next key argument: they are assigned in order, and the last one applies to all remaining keys.
struct KeyNumbers {
    specs: usize,
    next: usize,
}

impl KeyNumbers {
    fn of(&mut self, arg: &Arg<'_>) -> Option<usize> {
        if arg.kind != Kind::Value(Type::Key) || self.specs == 0 {
            return None;
        }
        let number = self.next.min(self.specs - 1);
        self.next += 1;
        Some(number)
    }
}

fn write_args(reply: &mut dyn Sink, args: &[Arg<'_>], keys: &mut KeyNumbers) {
    reply.array(args.len());
    for arg in args {
        write_arg(reply, arg, keys);
    }
}

fn write_arg(reply: &mut dyn Sink, arg: &Arg<'_>, keys: &mut KeyNumbers) {
    let flags = [(arg.optional, "optional"), (arg.multiple, "multiple"), (arg.multiple_token, "multiple_token")];
    let flags = flags.iter().filter(|(set, _)| *set).map(|(_, name)| *name);
    let flagged = flags.clone().next().is_some();
    let key = keys.of(arg);
    // Either its display text or its inner arguments.
    reply.map(3 + key.is_some() as usize + arg.token.is_some() as usize + flagged as usize);
    reply.entry("name", &*arg.name);
    reply.entry("type", arg.type_name());
    let nested = matches!(arg.kind, Kind::OneOf(_) | Kind::Block(_));
    if !nested {
        reply.entry("display_text", &*arg.name);
    }
    if let Some(number) = key {
        reply.entry("key_spec_index", number);
    }
    if let Some(token) = arg.token {
        reply.entry("token", token);
    }
    if flagged {
        reply.bulk(b"flags");
        write_statuses(reply, flags);
    }
    if nested {
        reply.bulk(b"arguments");
        write_args(reply, arg.children(), keys);
    }
}
