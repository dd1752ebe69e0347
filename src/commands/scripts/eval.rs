//! EVAL, EVALSHA and SCRIPT.

use crate::base::error::{Error, Result};
use crate::commands::reference::help;
use crate::commands::scripts::{RUN, RUN_READ_ONLY};
use crate::engine::command::options::{flag, integer, upper};
use crate::engine::command::{Command, Flags, Group, Runs, row, rows, subrows};
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
    row!("eval", |cx, args| run(cx, Source::Text(args[1]), args, false), BY_SOURCE, "Runs a Lua script.";
        runs: Runs::Source, key_notes: ACCESS_NOTE, since: "2.6.0", complexity: COST, ..RUN),
    row!("evalsha", |cx, args| run_cached(cx, args, false), BY_DIGEST, "Runs a cached Lua script by its SHA-1 digest.";
        runs: Runs::Digest, since: "2.6.0", complexity: COST, ..RUN),
    row!("eval_ro", |cx, args| run(cx, Source::Text(args[1]), args, true), BY_SOURCE, "Runs a read-only Lua script.";
        runs: Runs::Source, key_notes: ACCESS_NOTE, since: "7.0.0", complexity: COST, ..RUN_READ_ONLY),
    row!("evalsha_ro", |cx, args| run_cached(cx, args, true), BY_DIGEST,
        "Runs a cached read-only Lua script by its SHA-1 digest.";
        runs: Runs::Digest, since: "7.0.0", complexity: COST, ..RUN_READ_ONLY),
    row!("script", "A container for script cache commands.";
        flags: Flags::empty(), since: "2.6.0", complexity: "Depends on subcommand.", subcommands: &subrows([
            row!("debug", debug, "<YES | SYNC | NO>", "Accepts NO. There is no script debugger."; since: "3.2.0", ..SCRIPT),
            row!("exists", exists, "sha1 [sha1 ...]", "Checks which scripts are cached.";
                since: "2.6.0", complexity: "O(N) with N being the number of scripts to check.",
                tips: &["request_policy:all_shards", "response_policy:agg_logical_and"], ..SCRIPT),
            row!("flush", flush, "[ASYNC | SYNC]", "Removes all scripts from the cache.";
                since: "2.6.0", complexity: "O(N) with N being the number of scripts in cache",
                tips: &["request_policy:all_nodes", "response_policy:all_succeeded"], ..SCRIPT),
            help::row(Group::Scripting, "5.0.0"),
            row!("kill", kill, "Terminates the running script.";
                flags: Flags::NOSCRIPT.union(Flags::ALLOW_BUSY), since: "2.6.0",
                tips: &["request_policy:all_shards", "response_policy:one_succeeded"], ..SCRIPT),
            row!("load", load, "script", "Caches a Lua script and returns its SHA-1 digest.";
                flags: Flags::NOSCRIPT.union(Flags::STALE), since: "2.6.0",
                complexity: "O(N) with N being the length in bytes of the script body.",
                tips: &["request_policy:all_nodes", "response_policy:all_succeeded"], ..SCRIPT),
            // From Valkey.
            row!("show", show, "sha1", "Returns the source of a cached script."; since: "8.0.0", complexity: "O(1).", ..SCRIPT),
        ]), ..SCRIPT),
]);

fn run_cached(cx: &mut Context<'_>, args: &[&[u8]], read_only: bool) -> Result {
    // An argument that cannot be a SHA-1 is refused before the number of keys is parsed, as in Redis.
    fail_if!(args[1].len() != 40, Error::NO_SCRIPT);
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
