//! EVAL, EVALSHA and SCRIPT.

use crate::base::error::{Error, Result};
use crate::commands::reference::help;
use crate::commands::scripts::{RUN, RUN_READ_ONLY};
use crate::engine::command::options::{flag, integer, upper};
use crate::engine::command::{Command, Flags, Group, Runs, rows, subrows};
use crate::engine::context::Context;
use crate::script::ScriptState;
use crate::script::fuel;
use crate::script::{self, Request, Source};

const ACCESS_NOTE: &[&str] = &["The access is not known before the script runs; this is the maximum."];
const BY_SOURCE: &str = "script numkeys [key [key ...]] [arg [arg ...]]";
const BY_DIGEST: &str = "sha1 numkeys [key [key ...]] [arg [arg ...]]";
const COST: &str = "Depends on the script that is executed.";

const SCRIPT: Command = Command { group: Group::Scripting, flags: Flags::NOSCRIPT, ..Command::DEFAULT };

/// The rows.
pub const COMMANDS: &[Command] = &rows([
    Command {
        name: "eval",
        runs: Runs::Source,
        key_notes: ACCESS_NOTE,
        since: "2.6.0",
        summary: "Runs a Lua script.",
        complexity: COST,
        syntax: BY_SOURCE,
        handler: eval,
        ..RUN
    },
    Command {
        name: "evalsha",
        runs: Runs::Digest,
        since: "2.6.0",
        summary: "Runs a cached Lua script by its SHA-1 digest.",
        complexity: COST,
        syntax: BY_DIGEST,
        handler: evalsha,
        ..RUN
    },
    Command {
        name: "eval_ro",
        runs: Runs::Source,
        key_notes: ACCESS_NOTE,
        since: "7.0.0",
        summary: "Runs a read-only Lua script.",
        complexity: COST,
        syntax: BY_SOURCE,
        handler: eval_ro,
        ..RUN_READ_ONLY
    },
    Command {
        name: "evalsha_ro",
        runs: Runs::Digest,
        since: "7.0.0",
        summary: "Runs a cached read-only Lua script by its SHA-1 digest.",
        complexity: COST,
        syntax: BY_DIGEST,
        handler: evalsha_ro,
        ..RUN_READ_ONLY
    },
    Command {
        name: "script",
        flags: Flags::empty(),
        since: "2.6.0",
        summary: "A container for script cache commands.",
        complexity: "Depends on subcommand.",
        subcommands: &subrows([
            Command {
                name: "debug",
                since: "3.2.0",
                summary: "Accepts NO. There is no script debugger.",
                syntax: "<YES | SYNC | NO>",
                handler: debug,
                ..SCRIPT
            },
            Command {
                name: "exists",
                since: "2.6.0",
                summary: "Checks which scripts are cached.",
                complexity: "O(N) with N being the number of scripts to check.",
                syntax: "sha1 [sha1 ...]",
                tips: &["request_policy:all_shards", "response_policy:agg_logical_and"],
                handler: exists,
                ..SCRIPT
            },
            Command {
                name: "flush",
                since: "2.6.0",
                summary: "Removes all scripts from the cache.",
                complexity: "O(N) with N being the number of scripts in cache",
                syntax: "[ASYNC | SYNC]",
                tips: &["request_policy:all_nodes", "response_policy:all_succeeded"],
                handler: flush,
                ..SCRIPT
            },
            help::row(Group::Scripting, "5.0.0"),
            Command {
                name: "kill",
                flags: Flags::NOSCRIPT.union(Flags::ALLOW_BUSY),
                since: "2.6.0",
                summary: "Terminates the running script.",
                tips: &["request_policy:all_shards", "response_policy:one_succeeded"],
                handler: kill,
                ..SCRIPT
            },
            Command {
                name: "load",
                flags: Flags::NOSCRIPT.union(Flags::STALE),
                since: "2.6.0",
                summary: "Caches a Lua script and returns its SHA-1 digest.",
                complexity: "O(N) with N being the length in bytes of the script body.",
                syntax: "script",
                tips: &["request_policy:all_nodes", "response_policy:all_succeeded"],
                handler: load,
                ..SCRIPT
            },
            Command {
                name: "show",
                // From Valkey.
                since: "8.0.0",
                summary: "Returns the source of a cached script.",
                complexity: "O(1).",
                syntax: "sha1",
                handler: show,
                ..SCRIPT
            },
        ]),
        ..SCRIPT
    },
]);

fn eval(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    run(cx, Source::Text(args[1]), args, false)
}

fn eval_ro(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    run(cx, Source::Text(args[1]), args, true)
}

fn evalsha(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    run_cached(cx, args, false)
}

fn evalsha_ro(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    run_cached(cx, args, true)
}

fn run_cached(cx: &mut Context<'_>, args: &[&[u8]], read_only: bool) -> Result {
    // An argument that cannot be a SHA-1 is refused before the number of keys is parsed, as in Redis.
    if args[1].len() != 40 {
        return Err(Error::NO_SCRIPT);
    }
    run(cx, Source::Sha(args[1]), args, read_only)
}

fn run(cx: &mut Context<'_>, source: Source<'_>, args: &[&[u8]], read_only: bool) -> Result {
    let keys = match *args[2] {
        // A fast path: most requests have few keys.
        [digit @ b'0'..=b'9'] => i64::from(digit - b'0'),
        _ => integer(args[2])?,
    };
    script::run(cx, source, Request::new(args, keys, read_only)?)
}

fn load(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let sha = cx.engine.lua_mut().scripts.load(args[2])?;
    cx.reply.bulk(&sha);
    Ok(())
}

fn show(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    cx.reply.bulk(cx.engine.lua().scripts.source(args[2]).ok_or(Error::NO_SCRIPT)?);
    Ok(())
}

fn exists(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    cx.reply.array(args.len() - 2);
    for digits in &args[2..] {
        cx.reply.integer(cx.engine.lua().scripts.contains(digits).into());
    }
    Ok(())
}

fn flush(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let known = flag(&args[2..], &["ASYNC", "SYNC"]);
    known.map_err(|_| Error::new("ERR SCRIPT FLUSH only support SYNC|ASYNC option"))?;
    let ScriptState { scripts, lazyfree, .. } = cx.engine.lua_mut();
    scripts.flush(lazyfree);
    cx.reply.ok();
    Ok(())
}

fn kill(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    fuel::kill(cx.engine, false)?;
    cx.reply.ok();
    Ok(())
}

fn debug(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    match &*upper(args[2]) {
        b"NO" => cx.reply.ok(),
        b"YES" | b"SYNC" => return Err(Error::new("ERR The script debugger is not supported")),
        _ => return Err(Error::new("ERR Use SCRIPT DEBUG YES/SYNC/NO")),
    }
    Ok(())
}
