//! ACL and its subcommands.

use crate::base::error::{Error, Result};
use crate::commands;
use crate::commands::full_name;
use crate::commands::reference::help;
use crate::engine::command::options::integer;
use crate::engine::command::{Command, Flags, Group, row, rows, subrows};
use crate::engine::context::Context;
use crate::engine::users::DEFAULT_NAME;
use crate::engine::users::categories::{CATEGORIES, category};
use crate::engine::users::selector::{Denial, Selector, has_space};
use crate::engine::users::user::User;
use crate::resp::reply::Sink;

const LOOKING: Flags = Flags::NOSCRIPT.union(Flags::LOADING).union(Flags::STALE);
const ADMIN: Flags = LOOKING.union(Flags::ADMIN);
const TO_ALL_NODES: &[&str] = &["request_policy:all_nodes", "response_policy:all_succeeded"];
const PER_USER: &str = "O(N). Where N is the number of configured users.";

/// Maximum number of bits of a generated password.
const GENPASS_BITS_MAX: i64 = 4096;
/// Default number of entries that `ACL LOG` returns.
const LOG_SHOWN: i64 = 10;

/// The base of the rows of `ACL`.
const SUB: Command = Command { flags: ADMIN, group: Group::Server, since: "6.0.0", ..Command::DEFAULT };

/// The rows.
pub const COMMANDS: &[Command] = &rows([row!("acl", "A container for access control commands.";
    group: Group::Server, since: "6.0.0", complexity: "Depends on subcommand.", subcommands: &subrows([
        row!("cat", cat, "[category]", "Lists the ACL categories, or the commands of a category.";
            flags: LOOKING, complexity: "O(1) since the categories and commands are a fixed set.", ..SUB),
        row!("deluser", deluser, "username [username ...]", "Deletes users and closes their connections.";
            secrets: |args| (2..args.len()).collect(), complexity: "O(1) amortized time considering the typical user.",
            tips: TO_ALL_NODES, ..SUB),
        row!("dryrun", dryrun, "username command [arg [arg ...]]",
            "Checks whether a user may execute a command, without executing it.";
            since: "7.0.0", complexity: "O(1).", ..SUB),
        row!("genpass", genpass, "[bits]", "Generates a random password."; flags: LOOKING, ..SUB),
        row!("getuser", getuser, "username", "Returns the rules of a user.";
            secrets: |args| (2..args.len()).collect(),
            complexity: "O(N). Where N is the number of password, command and pattern rules that the user has.", ..SUB),
        Command { handler: |cx, args| help::reply(cx, args, HELP), ..help::row(Group::Server, "6.0.0") },
        row!("list", list, "Lists the users and their rules in the format of ACL files."; complexity: PER_USER, ..SUB),
        row!("load", load, "Loads the users from the ACL file."; complexity: PER_USER, ..SUB),
        row!("log", log, "[count | RESET]", "Returns or clears the log of denied requests.";
            complexity: "O(N) for N returned entries", ..SUB),
        row!("save", save, "Saves the users to the ACL file."; complexity: PER_USER, tips: TO_ALL_NODES, ..SUB),
        row!("setuser", setuser, "username [rule [rule ...]]", "Creates a user or changes its rules.";
            secrets: |args| (2..args.len()).collect(), complexity: "O(N). Where N is the number of rules provided.",
            tips: TO_ALL_NODES, ..SUB),
        row!("users", users, "Lists the names of the users."; complexity: PER_USER, ..SUB),
        row!("whoami", whoami, "Returns the name of the connection's user."; flags: LOOKING, ..SUB),
    ]), ..Command::DEFAULT)]);

fn cat(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    match args[2..] {
        [] => {
            cx.reply.array(CATEGORIES.len());
            CATEGORIES.iter().for_each(|(name, _)| cx.reply.bulk(name.as_bytes()));
        }
        [name] => {
            let wanted =
                category(name).ok_or_else(|| Error::quoting("ERR Unknown category '", &name[..name.len().min(128)], "'"))?;
            let rows = commands::all().flat_map(|row| std::iter::once(row).chain(row.subcommands));
            let names: Vec<_> = rows.filter(|row| row.acl_categories().intersects(wanted)).map(full_name).collect();
            cx.reply.array(names.len());
            names.iter().for_each(|name| cx.reply.bulk(name.as_bytes()));
        }
        _ => return Err(Error::subcommand_syntax(args)),
    }
    Ok(())
}

/// Whether a user may give users any rules, itself too.
pub fn may_set_users(user: &User) -> bool {
    let request: [&[u8]; 3] = [b"ACL", b"SETUSER", b"any"];
    commands::table().named(&request).is_some_and(|command| user.check(command, &request).is_ok())
}

fn setuser(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let name = args[2];
    fail_if!(has_space(name), Error::USER_NAME);
    let user = cx.engine.users().changed(name, &args[3..]).map_err(|reason| Error::quoting("ERR ", &reason, ""))?;
    cx.engine.set_user(cx.session, name, user);
    cx.reply.ok();
    Ok(())
}

fn deluser(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    fail_if!(args[2..].contains(&DEFAULT_NAME), Error::DEFAULT_USER_STAYS);
    let removed = args[2..].iter().filter(|name| cx.engine.remove_user(cx.session, name)).count();
    cx.reply.integer(removed as i64);
    Ok(())
}

fn getuser(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let users = cx.engine.users();
    let Some(user) = users.find(args[2]).and_then(|id| users.get(id)) else {
        cx.reply.null();
        return Ok(());
    };
    let reply = &mut *cx.reply;
    reply.map(6);
    reply.bulk(b"flags");
    let flags = user.flags();
    reply.set(flags.len());
    flags.iter().for_each(|flag| reply.bulk(flag.as_bytes()));
    reply.bulk(b"passwords");
    let passwords = user.passwords();
    reply.array(passwords.len());
    passwords.for_each(|hash| reply.bulk(hash.as_bytes()));
    let [own, others @ ..] = user.selectors() else { return Ok(()) };
    write_selector(reply, own);
    reply.bulk(b"selectors");
    reply.array(others.len());
    for selector in others {
        reply.map(3);
        write_selector(reply, selector);
    }
    Ok(())
}

/// Writes the three pairs of name and value that describe a selector.
fn write_selector(reply: &mut dyn Sink, selector: &Selector) {
    reply.entry("commands", &selector.describe_commands());
    reply.entry("keys", &selector.describe_keys());
    reply.entry("channels", &selector.describe_channels());
}

fn list(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    let lines = cx.engine.users().lines();
    cx.reply.array(lines.len());
    lines.iter().for_each(|line| cx.reply.bulk(line));
    Ok(())
}

fn users(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    let names = cx.engine.users().iter();
    cx.reply.array(names.len());
    names.for_each(|(name, _)| cx.reply.bulk(name));
    Ok(())
}

fn whoami(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    cx.reply.element(cx.engine.users().name(cx.engine.sessions()[cx.session].user));
    Ok(())
}

fn load(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    cx.engine.load_users(cx.session)?;
    cx.reply.ok();
    Ok(())
}

fn save(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    let (users, Some(file)) = cx.engine.users_and_file() else { return Err(Error::NO_ACL_FILE) };
    let text: Vec<u8> = users.lines().into_iter().flat_map(|line| [line, b"\n".to_vec()].concat()).collect();
    (file.save)(&text).map_err(|reason| {
        tracing::warn!(path = file.path, reason, "ACL SAVE failed");
        Error::ACL_SAVE_FAILED
    })?;
    cx.reply.ok();
    Ok(())
}

fn genpass(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let bits = match args[2..] {
        [] => 256,
        [bits] => integer(bits)?,
        _ => return Err(Error::subcommand_syntax(args)),
    };
    fail_if!(!(1..=GENPASS_BITS_MAX).contains(&bits), Error::GENPASS_BITS);
    let digits = (bits as usize).div_ceil(4);
    let mut bytes = vec![0; digits.div_ceil(2)];
    fail_if!(!cx.engine.fill_with_secrets(&mut bytes), Error::new("ERR The system provides no random bytes"));
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    cx.reply.bulk(&text.as_bytes()[..digits]);
    Ok(())
}

fn log(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let count = match args[2..] {
        [] => LOG_SHOWN,
        [word] if word.eq_ignore_ascii_case(b"reset") => {
            cx.engine.forget_denials();
            cx.reply.ok();
            return Ok(());
        }
        [count] => integer(count)?,
        _ => return Err(Error::subcommand_syntax(args)),
    };
    let entries = cx.engine.users().log.entries();
    let count = entries.len().min(usize::try_from(count).unwrap_or(0));
    let (now_ms, reply) = (cx.now.mono_ms(), &mut *cx.reply);
    reply.array(count);
    for entry in entries.take(count) {
        let denied = &entry.denied;
        reply.map(10);
        reply.entry("count", entry.count);
        for (name, text) in [
            (b"reason".as_slice(), denied.reason.name().as_bytes()),
            (b"context", denied.place.name().as_bytes()),
            (b"object", &denied.object),
            (b"username", &denied.user),
        ] {
            reply.bulk(name);
            reply.bulk(text);
        }
        reply.entry("age-seconds", now_ms.saturating_sub(entry.updated_ms) as f64 / 1000.0);
        reply.entry("client-info", &*denied.client);
        for (name, number) in [
            (b"entry-id".as_slice(), entry.id as i64),
            (b"timestamp-created", entry.created_unix_ms),
            (b"timestamp-last-updated", entry.updated_unix_ms),
        ] {
            reply.bulk(name);
            reply.integer(number);
        }
    }
    Ok(())
}

fn dryrun(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (name, request) = (args[2], &args[3..]);
    let users = cx.engine.users();
    let user = users.find(name).and_then(|id| users.get(id)).ok_or_else(|| Error::quoting("ERR User '", name, "' not found"))?;
    let command = commands::table().named(request).ok_or_else(|| Error::quoting("ERR Command '", request[0], "' not found"))?;
    fail_if!(!command.takes(request.len()), Error::arity(&full_name(command)));
    let what = match user.check(command, request) {
        Ok(()) => {
            cx.reply.ok();
            return Ok(());
        }
        Err(Denial::Command) => [b"run the '", full_name(command).as_bytes(), b"' command"].concat(),
        Err(Denial::Key(position)) => [b"access the '", request[position], b"' key"].concat(),
        Err(Denial::Channel(position)) => [b"access the '", request[position], b"' channel"].concat(),
    };
    cx.reply.bulk(&[b"User ", name, b" has no permissions to ", &*what].concat());
    Ok(())
}

/// What `HELP` replies, as in Redis.
const HELP: &[&str] = &[
    "CAT [<category>]",
    "    List all commands that belong to <category>, or all command categories",
    "    when no category is specified.",
    "DELUSER <username> [<username> ...]",
    "    Delete a list of users.",
    "DRYRUN <username> <command> [<arg> ...]",
    "    Returns whether the user can execute the given command without executing the command.",
    "GETUSER <username>",
    "    Get the user's details.",
    "GENPASS [<bits>]",
    "    Generate a secure 256-bit user password. The optional `bits` argument can",
    "    be used to specify a different size.",
    "LIST",
    "    Show users details in config file format.",
    "LOAD",
    "    Reload users from the ACL file.",
    "LOG [<count> | RESET]",
    "    Show the ACL log entries.",
    "SAVE",
    "    Save the current config to the ACL file.",
    "SETUSER <username> <attribute> [<attribute> ...]",
    "    Create or modify a user with the specified attributes.",
    "USERS",
    "    List all the registered usernames.",
    "WHOAMI",
    "    Return the current connection username.",
];
