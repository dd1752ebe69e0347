//! EVAL, EVALSHA and SCRIPT.

use crate::base::error::{Error, Result};
use crate::base::number::parse_i64;
use crate::commands::reference::help;
use crate::engine::command::{Access, Command, Flags, Group, Keys, Runs, Traits};
use crate::engine::context::Context;
use crate::script::ScriptState;
use crate::script::fuel;
use crate::script::{self, Request, Source};

const EVAL: Command = Command {
    name: "eval",
    traits: Traits::BOUNDED,
    runs: Runs::Source,

    arity: -3,
    flags: Flags::NOSCRIPT
        .union(Flags::STALE)
        .union(Flags::SKIP_MONITOR)
        .union(Flags::NO_MANDATORY_KEYS)
        .union(Flags::MOVABLEKEYS)
        .union(Flags::MAY_REPLICATE),
    keys: Keys::Counted { numkeys: 2, step: 1 },
    access: Access::ReadWrite,
    key_notes: &["What the script does with its keys is not known beforehand: this is the most that can be."],
    group: Group::Scripting,
    since: "2.6.0",
    summary: "Runs a Lua script.",
    complexity: "Depends on the script that is executed.",
    syntax: "script numkeys [key [key ...]] [arg [arg ...]]",
    handler: eval,
    ..Command::DEFAULT
};

const SCRIPT: Command = Command { group: Group::Scripting, flags: Flags::NOSCRIPT, ..Command::DEFAULT };

/// The rows.
pub const COMMANDS: &[Command] = &[
    EVAL,
    Command {
        name: "evalsha",
        traits: Traits::BOUNDED,
        runs: Runs::Digest,

        key_notes: &[],
        summary: "Runs a cached script by the SHA-1 of its source.",
        syntax: "sha1 numkeys [key [key ...]] [arg [arg ...]]",
        handler: evalsha,
        ..EVAL
    },
    Command {
        name: "eval_ro",
        traits: Traits::BOUNDED,
        runs: Runs::Source,

        flags: EVAL.flags.difference(Flags::MAY_REPLICATE).union(Flags::READONLY),
        access: Access::Read,
        since: "7.0.0",
        summary: "Runs a Lua script that cannot write.",
        handler: eval_ro,
        ..EVAL
    },
    Command {
        name: "evalsha_ro",
        traits: Traits::BOUNDED,
        runs: Runs::Digest,

        flags: EVAL.flags.difference(Flags::MAY_REPLICATE).union(Flags::READONLY),
        access: Access::Read,
        since: "7.0.0",
        key_notes: &[],
        summary: "Runs a cached script, which cannot write, by the SHA-1 of its source.",
        syntax: "sha1 numkeys [key [key ...]] [arg [arg ...]]",
        handler: evalsha_ro,
        ..EVAL
    },
    Command {
        name: "script",
        arity: -2,
        flags: Flags::empty(),
        since: "2.6.0",
        summary: "Looks after the cache of scripts.",
        complexity: "Depends on subcommand.",
        subcommands: &[
            Command {
                name: "debug",
                arity: 3,
                since: "3.2.0",
                summary: "Accepts NO; there is no debugger to run scripts in.",
                syntax: "<YES | SYNC | NO>",
                handler: debug,
                ..SCRIPT
            },
            Command {
                name: "exists",
                arity: -3,
                since: "2.6.0",
                summary: "Tells which scripts are cached.",
                complexity: "O(N) with N being the number of scripts to check.",
                syntax: "sha1 [sha1 ...]",
                tips: &["request_policy:all_shards", "response_policy:agg_logical_and"],
                handler: exists,
                ..SCRIPT
            },
            Command {
                name: "flush",
                arity: -2,
                since: "2.6.0",
                summary: "Empties the cache of scripts.",
                complexity: "O(N) with N being the number of scripts in cache",
                syntax: "[ASYNC | SYNC]",
                tips: &["request_policy:all_nodes", "response_policy:all_succeeded"],
                handler: flush,
                ..SCRIPT
            },
            Command {
                name: "help",
                arity: 2,
                flags: Flags::LOADING.union(Flags::STALE),
                since: "5.0.0",
                summary: "Lists the subcommands.",
                handler: help::from_rows,
                ..SCRIPT
            },
            Command {
                name: "kill",
                arity: 2,
                flags: Flags::NOSCRIPT.union(Flags::ALLOW_BUSY),
                since: "2.6.0",
                summary: "Ends the script that runs.",
                tips: &["request_policy:all_shards", "response_policy:one_succeeded"],
                handler: kill,
                ..SCRIPT
            },
            Command {
                name: "load",
                arity: 3,
                flags: Flags::NOSCRIPT.union(Flags::STALE),
                since: "2.6.0",
                summary: "Caches a script and gives the SHA-1 of its source.",
                complexity: "O(N) with N being the length in bytes of the script body.",
                syntax: "script",
                tips: &["request_policy:all_nodes", "response_policy:all_succeeded"],
                handler: load,
                ..SCRIPT
            },
            Command {
                name: "show",
                arity: 3,
                // Of Valkey.
                since: "8.0.0",
                summary: "Gives the source of a cached script.",
                complexity: "O(1).",
                syntax: "sha1",
                handler: show,
                ..SCRIPT
            },
        ],
        ..SCRIPT
    },
];

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
    // What cannot be a SHA-1 is refused before the number of keys is looked at.
    if args[1].len() != 40 {
        return Err(Error::NO_SCRIPT);
    }
    run(cx, Source::Sha(args[1]), args, read_only)
}

fn run(cx: &mut Context<'_>, source: Source<'_>, args: &[&[u8]], read_only: bool) -> Result {
    let keys = match *args[2] {
        // As most are.
        [digit @ b'0'..=b'9'] => i64::from(digit - b'0'),
        _ => parse_i64(args[2]).ok_or(Error::NOT_INTEGER)?,
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
    let known = match args {
        [_, _] => true,
        [_, _, mode] => mode.eq_ignore_ascii_case(b"sync") || mode.eq_ignore_ascii_case(b"async"),
        _ => false,
    };
    if !known {
        return Err(Error::new("ERR SCRIPT FLUSH only support SYNC|ASYNC option"));
    }
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
    if args[2].eq_ignore_ascii_case(b"no") {
        cx.reply.ok();
        return Ok(());
    }
    if args[2].eq_ignore_ascii_case(b"yes") || args[2].eq_ignore_ascii_case(b"sync") {
        return Err(Error::new("ERR The script debugger is not supported"));
    }
    Err(Error::new("ERR Use SCRIPT DEBUG YES/SYNC/NO"))
}
