//! COMMAND: information about commands, from the command table.

use crate::base::error::{Error, Result};
use crate::base::glob;
use crate::commands::reference::help;
use crate::commands::server::command_docs;
use crate::commands::{self, table};
use crate::engine::command::keys::{Begin, Find, KeySpec, KeyUse};
use crate::engine::command::options::upper;
use crate::engine::command::{Access, Categories, Command, Flags, Group, Keys, row, rows, subrows};
use crate::engine::context::Context;
use crate::engine::table::{Named, subcommands};
use crate::engine::users::categories;
use crate::resp::reply::Sink;

/// What the rows of `COMMAND` have in common.
const ROW: Command = Command {
    flags: Flags::LOADING.union(Flags::STALE),
    group: Group::Server,
    categories: Categories::CONNECTION,
    complexity: "O(N) for N requested commands",
    ..Command::DEFAULT
};

const UNORDERED: &[&str] = &["nondeterministic_output_order"];

/// The rows.
pub const COMMANDS: &[Command] = &rows([row!("command", command, "Returns details about all commands.";
    arity: -1, since: "2.8.13", tips: UNORDERED, subcommands: &subrows([
        row!("count", count, "Returns the number of commands."; since: "2.8.13", complexity: "O(1)", ..ROW),
        row!("docs", docs, "[command-name [command-name ...]]",
            "Returns documentation of commands: what they do and their arguments.";
            since: "7.0.0", tips: UNORDERED, ..ROW),
        row!("getkeys", getkeys, "command [arg [arg ...]]", "Returns the keys of a request.";
            since: "2.8.13", complexity: "O(N) where N is the number of arguments.", ..ROW),
        row!("getkeysandflags", getkeysandflags, "command [arg [arg ...]]",
            "Returns the keys of a request and how it accesses them.";
            since: "7.0.0", complexity: "O(N) where N is the number of arguments.", ..ROW),
        Command { categories: ROW.categories, ..help::row(Group::Server, "5.0.0") },
        row!("info", info, "[command-name [command-name ...]]",
            "Returns the arity, flags, key positions and categories of commands.";
            since: "2.8.13", tips: UNORDERED, ..ROW),
        row!("list", list, "[FILTERBY <MODULE module-name | ACLCAT category | PATTERN pattern>]",
            "Returns the names of commands.";
            since: "7.0.0", complexity: "O(N) where N is the number of commands.", tips: UNORDERED, ..ROW),
    ]), ..ROW)]);

/// All commands; each container is followed by its subcommands.
pub(crate) fn with_subcommands() -> impl Iterator<Item = Named> {
    commands::all().flat_map(|command| std::iter::once((command.name.into(), command)).chain(subcommands(command)))
}

fn command(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    cx.reply.array(commands::all().count());
    for command in commands::all() {
        write_info(cx.reply, command.name, command);
    }
    Ok(())
}

fn count(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    cx.reply.integer(commands::all().count() as i64);
    Ok(())
}

fn info(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    if args.len() == 2 {
        return command(cx, args);
    }
    cx.reply.array(args.len() - 2);
    for name in &args[2..] {
        match table().find(name) {
            Some((full_name, command)) => write_info(cx.reply, &full_name, command),
            None => cx.reply.null(),
        }
    }
    Ok(())
}

fn docs(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let requested: Vec<Named> = match &args[2..] {
        [] => commands::all().map(|command| (command.name.into(), command)).collect(),
        names => names.iter().filter_map(|name| table().find(name)).collect(),
    };
    cx.reply.map(requested.len());
    for (full_name, command) in requested {
        cx.reply.bulk(full_name.as_bytes());
        command_docs::write_docs(cx.reply, command);
    }
    Ok(())
}

fn list(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let chosen = |filter: &dyn Fn(&Named) -> bool| with_subcommands().filter(filter).collect::<Vec<_>>();
    let names = match &args[2..] {
        [] => chosen(&|_| true),
        [by, kind, what] if by.eq_ignore_ascii_case(b"filterby") => match &*upper(kind) {
            b"MODULE" => Vec::new(),
            b"ACLCAT" => match categories::category(what) {
                Some(category) => chosen(&|(_, command)| command.acl_categories().contains(category)),
                None => Vec::new(),
            },
            b"PATTERN" => chosen(&|(name, _)| glob::matches(what, name.as_bytes(), true)),
            _ => return Err(Error::SYNTAX),
        },
        _ => return Err(Error::SYNTAX),
    };
    cx.reply.array(names.len());
    for (name, _) in names {
        cx.reply.bulk(name.as_bytes());
    }
    Ok(())
}

/// The row of a request that is not executed.
fn row_of(args: &[&[u8]]) -> Result<&'static Command> {
    commands::table().named(args).ok_or(Error::INVALID_COMMAND)
}

fn getkeys(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let request = &args[2..];
    let keys = row_of(request)?.checked_key_positions(request)?;
    cx.reply.array(keys.len());
    for key in keys {
        cx.reply.bulk(request[key.position]);
    }
    Ok(())
}

fn getkeysandflags(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let request = &args[2..];
    let keys = row_of(request)?.checked_key_positions(request)?;
    cx.reply.array(keys.len());
    for key in keys {
        cx.reply.array(2);
        cx.reply.bulk(request[key.position]);
        write_key_flags(cx.reply, key.access, key.uses);
    }
    Ok(())
}

/// The flags in replies, in their order.
const FLAGS: [(Flags, &str); 18] = [
    (Flags::WRITE, "write"),
    (Flags::READONLY, "readonly"),
    (Flags::DENYOOM, "denyoom"),
    (Flags::ADMIN, "admin"),
    (Flags::PUBSUB, "pubsub"),
    (Flags::NOSCRIPT, "noscript"),
    (Flags::BLOCKING, "blocking"),
    (Flags::LOADING, "loading"),
    (Flags::STALE, "stale"),
    (Flags::SKIP_MONITOR, "skip_monitor"),
    (Flags::SKIP_SLOWLOG, "skip_slowlog"),
    (Flags::FAST, "fast"),
    (Flags::NO_AUTH, "no_auth"),
    (Flags::NO_MANDATORY_KEYS, "no_mandatory_keys"),
    (Flags::NO_ASYNC_LOADING, "no_async_loading"),
    (Flags::NO_MULTI, "no_multi"),
    (Flags::MOVABLEKEYS, "movablekeys"),
    (Flags::ALLOW_BUSY, "allow_busy"),
];

const KEY_USES: [(KeyUse, &str); 6] = [
    (KeyUse::ACCESS, "access"),
    (KeyUse::UPDATE, "update"),
    (KeyUse::INSERT, "insert"),
    (KeyUse::DELETE, "delete"),
    (KeyUse::NOT_KEY, "not_key"),
    (KeyUse::VARIABLE, "variable_flags"),
];

/// Writes a set of statuses.
pub(crate) fn write_statuses<'a>(reply: &mut dyn Sink, names: impl Iterator<Item = &'a str> + Clone) {
    reply.set(names.clone().count());
    names.for_each(|name| reply.simple(name));
}

fn write_key_flags(reply: &mut dyn Sink, access: Access, uses: KeyUse) {
    let access = match access {
        Access::Read => "RO",
        Access::ReadWrite => "RW",
        Access::Overwrite => "OW",
        Access::Remove => "RM",
    };
    let known = !uses.contains(KeyUse::UNKNOWN);
    let uses = KEY_USES.iter().filter(|(flag, _)| uses.contains(*flag)).map(|(_, name)| *name);
    // An argument that is only hashed like a key has no value to access.
    let access = (known && !uses.clone().any(|name| name == "not_key")).then_some(access);
    write_statuses(reply, access.into_iter().chain(uses));
}

fn write_key_spec(reply: &mut dyn Sink, spec: &KeySpec, note: &str) {
    if note.is_empty() {
        reply.map(3);
    } else {
        reply.map(4);
        reply.entry("notes", note);
    }
    reply.bulk(b"flags");
    write_key_flags(reply, spec.access, spec.uses);
    reply.bulk(b"begin_search");
    match spec.begin {
        Begin::Index(index) => write_search(reply, "index", &[("index", index as i64)]),
        Begin::Keyword { word, from } => write_keyword(reply, word, from),
        Begin::Option | Begin::Nowhere => {
            write_search(reply, "unknown", &[]);
            reply.bulk(b"find_keys");
            write_search(reply, "unknown", &[]);
            return;
        }
    }
    reply.bulk(b"find_keys");
    match spec.find {
        Find::Range { last, step, limit } => {
            let spec = [("lastkey", i64::from(last)), ("keystep", i64::from(step)), ("limit", i64::from(limit))];
            write_search(reply, "range", &spec);
        }
        Find::Counted { step } => {
            write_search(reply, "keynum", &[("keynumidx", 0), ("firstkey", 1), ("keystep", step as i64)]);
        }
    }
}

fn write_keyword(reply: &mut dyn Sink, word: &str, from: usize) {
    reply.map(2);
    reply.entry("type", "keyword");
    reply.bulk(b"spec");
    reply.map(2);
    reply.entry("keyword", word);
    reply.entry("startfrom", from);
}

fn write_search(reply: &mut dyn Sink, kind: &str, spec: &[(&str, i64)]) {
    reply.map(2);
    reply.entry("type", kind);
    reply.bulk(b"spec");
    reply.map(spec.len());
    for (name, number) in spec {
        reply.entry(name, *number);
    }
}

/// Writes a command in the ten-element format of `COMMAND INFO`.
fn write_info(reply: &mut dyn Sink, full_name: &str, command: &'static Command) {
    let (first, last, step) = match command.keys {
        Keys::Range { first, last, step } => (first, last, step),
        Keys::Specified(specs) | Keys::Parsed { shown: specs, .. } => match specs {
            [KeySpec { begin: Begin::Index(index), find: Find::Range { last, step, .. }, .. }, ..] => {
                (*index as i32, *index as i32 + last, *step)
            }
            _ => (0, 0, 0),
        },
        Keys::None | Keys::Counted { .. } => (0, 0, 0),
    };
    let movable = matches!(command.keys, Keys::Counted { .. } | Keys::Specified(_) | Keys::Parsed { .. });
    let movable = if movable { Flags::MOVABLEKEYS } else { Flags::empty() };
    let flags = command.flags | movable;
    reply.array(10);
    reply.bulk(full_name.as_bytes());
    reply.integer(command.arity.into());
    write_statuses(reply, FLAGS.iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, name)| *name));
    for position in [first, last, step] {
        reply.integer(position as i64);
    }
    let categories: Vec<&str> = categories::names(command.acl_categories()).collect();
    reply.set(categories.len());
    for category in categories {
        reply.simple(&format!("@{category}"));
    }
    reply.set(command.tips.len());
    for tip in command.tips {
        reply.bulk(tip.as_bytes());
    }
    let specs = command.key_specs();
    reply.set(specs.len());
    for (number, spec) in specs.iter().enumerate() {
        write_key_spec(reply, spec, command.key_notes.get(number).unwrap_or(&""));
    }
    if command.subcommands.is_empty() {
        reply.set(0);
    } else {
        reply.array(command.subcommands.len());
        for (full_name, sub) in subcommands(command) {
            write_info(reply, &full_name, sub);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use redis_protocol::resp3::decode::complete::decode;
    use redis_protocol::resp3::types::OwnedFrame;

    use super::*;
    use crate::engine::harness::Harness;

    #[test]
    fn a_command_is_described_in_ten_elements() {
        Harness::new().script(&[
            (
                "COMMAND INFO get nosuch",
                "*2 *10 $3 get :2 *2 +readonly +fast :1 :1 :1 *3 +@read +@string +@fast *0 \
                 *1 *6 $5 flags *2 +RO +access $12 begin_search *4 $4 type $5 index $4 spec *2 $5 index :1 \
                 $9 find_keys *4 $4 type $5 range $4 spec *6 $7 lastkey :0 $7 keystep :1 $5 limit :0 *0 $-1",
            ),
            ("COMMAND INFO get|x get| |get", "*3 $-1 $-1 $-1"),
            ("COMMAND COUNT x", "-ERR wrong number of arguments for 'command|count' command"),
        ]);
    }

    #[test]
    fn subcommands_are_described_with_their_container_and_by_themselves() {
        let mut harness = Harness::new();
        assert!(
            harness.run("COMMAND INFO COMMAND|COUNT").starts_with("*1 *10 $13 command|count :2 *2 +loading +stale :0 :0 :0 ")
        );
        assert!(harness.run("COMMAND INFO command").contains("$15 command|getkeys "));
    }

    #[test]
    fn keys_are_picked_out_of_command_lines() {
        Harness::new().script(&[
            ("COMMAND GETKEYS MSET a 1 b 2", "*2 $1 a $1 b"),
            ("COMMAND GETKEYS memory usage a", "*1 $1 a"),
            ("COMMAND GETKEYS nosuch", "-ERR Invalid command specified"),
            ("COMMAND GETKEYS config nosuch", "-ERR Invalid command specified"),
            ("COMMAND GETKEYS ping", "-ERR The command has no key arguments"),
            ("COMMAND GETKEYS spublish c m", "-ERR The command has no key arguments"),
            ("COMMAND GETKEYS get", "-ERR Invalid number of arguments specified for command"),
            ("COMMAND GETKEYS xreadgroup NOACK GROUP g STREAMS STREAMS secret >", "*1 $6 secret"),
            ("COMMAND GETKEYS xread streams a b 0", "-ERR Invalid arguments specified for command"),
            ("COMMAND GETKEYS sort mine STORE BY STORE secret", "*2 $4 mine $6 secret"),
            ("COMMAND GETKEYS sort mine GET STORE STORE LIMIT LIMIT 0 1", "*2 $4 mine $5 LIMIT"),
            ("COMMAND GETKEYS sort_ro mine STORE secret", "*1 $4 mine"),
            ("COMMAND GETKEYS georadius mine 1 1 1 m STORE mine2 STORE secret", "*2 $4 mine $6 secret"),
            ("COMMAND GETKEYS georadiusbymember mine m 1 m STORE mine2 STOREDIST secret", "*2 $4 mine $6 secret"),
            ("COMMAND GETKEYSANDFLAGS set a b IFEQ get", "*1 *2 $1 a *3 +RW +access +update"),
            ("COMMAND GETKEYSANDFLAGS set a b", "*1 *2 $1 a *2 +OW +update"),
            ("COMMAND GETKEYSANDFLAGS set a b NX get", "*1 *2 $1 a *3 +RW +access +update"),
            ("COMMAND GETKEYSANDFLAGS rename a b", "*2 *2 $1 a *3 +RW +access +delete *2 $1 b *2 +OW +update"),
        ]);
    }

    #[test]
    fn lists_are_filtered() {
        let mut harness = Harness::new();
        harness.script(&[
            ("COMMAND LIST FILTERBY PATTERN COMMAND|[dl]*", "*2 $12 command|docs $12 command|list"),
            ("COMMAND LIST FILTERBY MODULE x", "*0"),
            ("COMMAND LIST FILTERBY ACLCAT nosuch", "*0"),
            ("COMMAND LIST FILTERBY nosuch x", "-ERR syntax error"),
            ("COMMAND LIST FILTERBY PATTERN", "-ERR syntax error"),
        ]);
        let all = harness.run("COMMAND LIST");
        let reads = harness.run("COMMAND LIST FILTERBY ACLCAT Read");
        assert!(reads.contains(" get ") && !reads.contains(" set ") && reads.len() < all.len());
    }

    /// Replies about all commands are well-formed: every array and map has its announced length.
    #[test]
    fn whole_tables_are_well_formed() {
        let mut harness = Harness::new();
        for request in [&[b"command".as_slice()] as &[&[u8]], &[b"command", b"info"], &[b"command", b"docs"]] {
            let reply = harness.args(request);
            let (_, length) = redis_protocol::resp2::decode::decode(&reply).unwrap().unwrap();
            assert_eq!(length, reply.len());
        }
        harness.run("HELLO 3");
        for name in commands::all().map(|command| command.name) {
            let reply = harness.args(&[b"command", b"docs", name.as_bytes()]);
            let (frame, length) = decode(&reply).unwrap().unwrap();
            assert_eq!(length, reply.len(), "{name}");
            assert!(matches!(frame, OwnedFrame::Map { ref data, .. } if data.len() == 1), "{name}");
        }
    }
}
