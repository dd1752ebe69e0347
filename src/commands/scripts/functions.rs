//! FUNCTION, FCALL and FCALL_RO.

use crate::base::error::{Error, Result};
use crate::base::glob;
use crate::base::number::parse_i64;
use crate::commands::reference::help;
use crate::commands::scripts::{RUN, RUN_READ_ONLY};
use crate::engine::command::options::{Tail, choice, flag, upper};
use crate::engine::command::{Command, Flags, Group, Runs, row, rows, subrows};
use crate::engine::context::Context;
use crate::script::Request;
use crate::script::fuel;
use crate::script::functions::{self, Policy};

const FUNCTION: Command = Command { group: Group::Scripting, flags: Flags::NOSCRIPT, since: "7.0.0", ..Command::DEFAULT };

const WRITES: Flags = Flags::WRITE.union(Flags::NOSCRIPT);

const TO_ALL_SHARDS: &[&str] = &["request_policy:all_shards", "response_policy:all_succeeded"];

/// What the rows of `FCALL` and `FCALL_RO` have in common.
const FCALL: Command = Command {
    runs: Runs::Function,
    key_notes: &["The access is not known before the function runs; this is the maximum."],
    since: "7.0.0",
    complexity: "Depends on the function that is executed.",
    syntax: "function numkeys [key [key ...]] [arg [arg ...]]",
    ..RUN
};

/// The rows.
pub const COMMANDS: &[Command] = &rows([
    row!("fcall", |cx, args| call(cx, args, false), "Calls a function."; ..FCALL),
    row!("fcall_ro", |cx, args| call(cx, args, true), "Calls a read-only function.";
        flags: RUN_READ_ONLY.flags, access: RUN_READ_ONLY.access, ..FCALL),
    row!("function", "A container for function library commands.";
        flags: Flags::empty(), complexity: "Depends on subcommand.", subcommands: &subrows([
            row!("delete", delete, "library-name", "Deletes a library and its functions.";
                flags: WRITES, tips: TO_ALL_SHARDS, ..FUNCTION),
            row!("dump", dump, "Returns all libraries in one serialized payload.";
                complexity: "O(N) where N is the number of functions", ..FUNCTION),
            row!("flush", flush, "[ASYNC | SYNC]", "Deletes all libraries.";
                flags: WRITES, complexity: "O(N) where N is the number of functions deleted", tips: TO_ALL_SHARDS, ..FUNCTION),
            help::row(Group::Scripting, "7.0.0"),
            row!("kill", kill, "Terminates the running function.";
                flags: Flags::NOSCRIPT.union(Flags::ALLOW_BUSY),
                tips: &["request_policy:all_shards", "response_policy:one_succeeded"], ..FUNCTION),
            row!("list", list, "[LIBRARYNAME library-name-pattern] [WITHCODE]", "Lists the libraries and their functions.";
                complexity: "O(N) where N is the number of functions", tips: &["nondeterministic_output_order"], ..FUNCTION),
            row!("load", load, "[REPLACE] function-code", "Loads a library.";
                flags: WRITES.union(Flags::DENYOOM), complexity: "O(1) (considering compilation time is redundant)",
                tips: TO_ALL_SHARDS, ..FUNCTION),
            row!("restore", restore, "serialized-value [FLUSH | APPEND | REPLACE]",
                "Restores libraries from a serialized payload.";
                flags: WRITES.union(Flags::DENYOOM), complexity: "O(N) where N is the number of functions on the payload",
                tips: TO_ALL_SHARDS, ..FUNCTION),
            row!("stats", stats, "Returns the running function, and the number of libraries and functions.";
                flags: Flags::NOSCRIPT.union(Flags::ALLOW_BUSY),
                tips: &["nondeterministic_output", "request_policy:all_shards", "response_policy:special"], ..FUNCTION),
        ]), ..FUNCTION),
]);

fn call(cx: &mut Context<'_>, args: &[&[u8]], read_only: bool) -> Result {
    fail_if!(!cx.engine.lua().functions.contains(args[1]), Error::FUNCTION_NOT_FOUND);
    let keys = parse_i64(args[2]).ok_or(Error::new("ERR Bad number of keys provided"))?;
    functions::call(cx, args[1], Request::new(args, keys, read_only)?)
}

fn load(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let Some((source, options)) = args[2..].split_last() else { return Err(Error::SYNTAX) };
    if let Some(unknown) = options.iter().find(|option| !option.eq_ignore_ascii_case(b"replace")) {
        return Err(Error::quoting("ERR Unknown option given: ", unknown, ""));
    }
    let name = functions::load(cx, source, !options.is_empty())?;
    cx.reply.bulk(&name);
    Ok(())
}

fn delete(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    functions::delete(cx, args[2])?;
    cx.reply.ok();
    Ok(())
}

fn flush(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    fail_if!(args.len() > 3, Error::subcommand_syntax(args));
    let known = flag(&args[2..], &["ASYNC", "SYNC"]);
    known.map_err(|_| Error::new("ERR FUNCTION FLUSH only supports SYNC|ASYNC option"))?;
    functions::flush(cx);
    cx.reply.ok();
    Ok(())
}

fn list(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (mut pattern, mut with_code) = (None, false);
    let mut rest = Tail(&args[2..]);
    while let Some(option) = rest.next() {
        match &*upper(option) {
            b"WITHCODE" if !with_code => with_code = true,
            b"LIBRARYNAME" if pattern.is_none() => {
                pattern = Some(rest.next().ok_or(Error::new("ERR library name argument was not given"))?);
            }
            _ => return Err(Error::quoting("ERR Unknown argument ", option, "")),
        }
    }
    let matches = |name: &[u8]| pattern.is_none_or(|pattern| glob::matches(pattern, name, true));
    let libraries: Vec<_> = cx.engine.lua().functions.list().filter(|library| matches(library.name)).collect();
    cx.reply.array(libraries.len());
    for library in libraries {
        cx.reply.map(if with_code { 4 } else { 3 });
        cx.reply.entry("library_name", library.name);
        cx.reply.entry("engine", "LUA");
        cx.reply.bulk(b"functions");
        let functions = library.functions();
        cx.reply.array(functions.len());
        for function in functions {
            cx.reply.map(3);
            cx.reply.entry("name", function.name);
            cx.reply.entry("description", function.description);
            cx.reply.bulk(b"flags");
            cx.reply.set(function.flags.len());
            for flag in function.flags {
                cx.reply.simple(flag);
            }
        }
        if with_code {
            cx.reply.entry("library_code", library.source);
        }
    }
    Ok(())
}

fn stats(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    let functions = &cx.engine.lua().functions;
    let run = cx.engine.long_run();
    // While a library is loaded, there are no statistics.
    if let Some(run) = run.filter(|run| !run.function || run.command().is_empty()) {
        return Err(run.busy());
    }
    cx.reply.map(2);
    cx.reply.bulk(b"running_script");
    match run {
        None => cx.reply.null(),
        Some(run) => {
            let command = run.command();
            cx.reply.map(3);
            cx.reply.entry("name", functions.registered_name(command[1]).unwrap_or(command[1]));
            cx.reply.bulk(b"command");
            cx.reply.array(command.len());
            command.iter().for_each(|arg| cx.reply.bulk(arg));
            cx.reply.entry("duration_ms", run.ms);
        }
    }
    cx.reply.bulk(b"engines");
    cx.reply.map(1);
    cx.reply.bulk(b"LUA");
    cx.reply.map(2);
    cx.reply.entry("libraries_count", functions.libraries());
    cx.reply.entry("functions_count", functions.functions());
    Ok(())
}

fn dump(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    let payload = cx.engine.lua().functions.dump();
    cx.reply.bulk(&payload);
    Ok(())
}

fn restore(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let known = [("APPEND", Policy::Append), ("REPLACE", Policy::Replace), ("FLUSH", Policy::Flush)];
    let wrong = || Error::new("ERR Wrong restore policy given, value should be either FLUSH, APPEND or REPLACE.");
    let policy = match args[3..] {
        [] => Policy::Append,
        [policy] => choice(policy, &known).ok_or_else(wrong)?,
        _ => return Err(Error::subcommand_syntax(args)),
    };
    functions::restore(cx, args[2], policy)?;
    cx.reply.ok();
    Ok(())
}

fn kill(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    fuel::kill(cx.engine, true)?;
    cx.reply.ok();
    Ok(())
}
