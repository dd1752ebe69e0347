//! The documentation that follows from the rows: COMMAND DOCS and the README's table.

use std::fmt::Write;

use crate::commands;
use crate::commands::introspect::{subcommands, write_statuses};
use crate::commands::missing;
use crate::commands::syntax::{self, Arg, Kind, Type};
use crate::engine::command::{Command, Group};
use crate::resp::reply::Sink;

impl Group {
    /// Its name in `COMMAND DOCS`.
    pub fn name(self) -> &'static str {
        match self {
            Group::Generic => "generic",
            Group::String => "string",
            Group::Hash => "hash",
            Group::List => "list",
            Group::Set => "set",
            Group::SortedSet => "sorted-set",
            Group::Stream => "stream",
            Group::Bitmap => "bitmap",
            Group::Hyperloglog => "hyperloglog",
            Group::Geo => "geo",
            Group::PubSub => "pubsub",
            Group::Transactions => "transactions",
            Group::Connection => "connection",
            Group::Server => "server",
            Group::Scripting => "scripting",
            Group::Cluster => "cluster",
            Group::Sentinel => "sentinel",
            Group::Lock => "lock",
        }
    }

    /// Its heading in the README's table, where groups come in this order.
    const HEADINGS: [(Group, &'static str); 18] = [
        (Group::Lock, "Locks"),
        (Group::String, "Strings"),
        (Group::Generic, "Keys"),
        (Group::Hash, "Hashes"),
        (Group::List, "Lists"),
        (Group::Set, "Sets"),
        (Group::SortedSet, "Sorted sets"),
        (Group::Stream, "Streams"),
        (Group::Bitmap, "Bitmaps"),
        (Group::Hyperloglog, "HyperLogLogs"),
        (Group::Geo, "Places"),
        (Group::PubSub, "Publish and subscribe"),
        (Group::Transactions, "Transactions"),
        (Group::Scripting, "Scripts"),
        (Group::Connection, "Connections"),
        (Group::Server, "Server"),
        (Group::Cluster, "Cluster"),
        (Group::Sentinel, "Sentinel"),
    ];
}

/// What `COMMAND DOCS` says of one command, subcommands included.
pub(super) fn write_docs(reply: &mut dyn Sink, command: &'static Command) {
    // A row whose syntax cannot be read has no arguments here; tests/commands_table.rs lets no such row through.
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
        reply.bulk(name.as_bytes());
        reply.bulk(text.as_bytes());
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

/// Which key specification the next argument that is a key belongs to: one after the other, the last for all that remain.
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
    // Either the text it is shown by, or what is inside it.
    reply.map(3 + key.is_some() as usize + arg.token.is_some() as usize + flagged as usize);
    reply.bulk(b"name");
    reply.bulk(arg.name.as_bytes());
    reply.bulk(b"type");
    reply.bulk(arg.type_name().as_bytes());
    let nested = matches!(arg.kind, Kind::OneOf(_) | Kind::Block(_));
    if !nested {
        reply.bulk(b"display_text");
        reply.bulk(arg.name.as_bytes());
    }
    if let Some(number) = key {
        reply.bulk(b"key_spec_index");
        reply.integer(number as i64);
    }
    if let Some(token) = arg.token {
        reply.bulk(b"token");
        reply.bulk(token.as_bytes());
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

/// The rows of a group under their full names in capitals, in order.
fn listed(group: Group) -> Vec<(String, &'static Command)> {
    let mut rows: Vec<(String, &Command)> = commands::all()
        .filter(|command| command.group == group)
        .flat_map(|command| match command.subcommands {
            [] => vec![(command.name.to_uppercase(), command)],
            subs => subs.iter().map(|sub| (format!("{} {}", command.name, sub.name).to_uppercase(), sub)).collect(),
        })
        .collect();
    rows.sort_by(|a, b| a.0.cmp(&b.0));
    rows
}

/// The names of all commands as a Markdown table, a row a group: for the README.
pub fn markdown_names() -> String {
    let mut text = String::from("\n| | |\n| --- | --- |\n");
    for (group, heading) in Group::HEADINGS {
        let names: Vec<String> = listed(group).into_iter().map(|(name, _)| format!("`{name}`")).collect();
        if !names.is_empty() {
            let _ = writeln!(text, "| **{heading}** | {} |", names.join(" "));
        }
    }
    text
}

/// The page of all commands in Markdown: their arguments and options, what they do and cost, and what Redis has and we have not.
pub fn markdown_page() -> String {
    let count = commands::all().count();
    let mut text = format!(
        "# Commands\n\nMade of the command table (`UPDATE_README=1 cargo test --test commands_table`), as are `COMMAND COUNT` ({count}), \
         `COMMAND DOCS` and the checks of every request.\n\n\
         \"Since\" is the version of Redis (or Valkey) that introduced a command.\n",
    );
    for (group, heading) in Group::HEADINGS {
        let rows = listed(group);
        if rows.is_empty() {
            continue;
        }
        let _ = write!(text, "\n## {heading}\n\n| command | what it does | cost | since |\n| --- | --- | --- | --- |\n");
        for (name, command) in rows {
            let args = syntax::parse(command.syntax).unwrap_or_default();
            let line = format!("{name} {}", syntax::display(&args));
            // A bar would end the cell, even within code.
            let cell = |text: &str| text.trim_end().replace('|', "\\|");
            let (summary, cost) = (cell(command.summary), cell(command.complexity));
            let _ = writeln!(text, "| `{}` | {summary} | {cost} | {} |", cell(&line), command.since);
        }
    }
    reasons(&mut text, "What Redis 7.4 has and Portcullis has not", &[missing::COMMANDS, missing::OPTIONS]);
    reasons(&mut text, "What is there to be refused", &[missing::REFUSED]);
    text
}

fn reasons(text: &mut String, heading: &str, all: &[missing::Reasons]) {
    let _ = write!(text, "\n## {heading}\n\n");
    for (why, names) in all.iter().copied().flatten() {
        let names: Vec<String> = names.iter().map(|name| format!("`{}`", name.replace('|', " ").to_uppercase())).collect();
        let _ = writeln!(text, "- {why} {}", names.join(" "));
    }
}
