//! Executes EVAL, EVALSHA and FCALL: runs a script or a function for a session, and replies with its result.

use std::ptr::NonNull;

use crate::base::error::{Error, Result};
use crate::engine::context::Context;
use crate::engine::session::SessionFlags;
use crate::engine::{Action, Engine};
use crate::resp::reply::Sink;
use crate::script::conversion::{errors, to_reply};
use crate::script::fuel::counter::Fuel;
use crate::script::interpreter::Interpreter;
use crate::script::interpreter::frame::Frame;
use crate::script::plan;
use crate::script::program::Program;
use crate::script::shebang::ScriptFlags;
use crate::script::state::ScriptState;

/// The script that a command runs.
#[derive(Clone, Copy)]
pub enum Source<'a> {
    /// A script by its source.
    Text(&'a [u8]),
    /// A cached script by the 40 hexadecimal digits of its SHA-1.
    Sha(&'a [u8]),
}

/// The arguments of a command that runs a script or a function.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// All of them: the command's name, script or function, number of keys, keys, arguments.
    pub command: &'a [&'a [u8]],
    /// The keys among them.
    pub keys: &'a [&'a [u8]],
    /// The script's arguments among them.
    pub args: &'a [&'a [u8]],
    /// Whether commands that write are refused.
    pub read_only: bool,
}

impl<'a> Request<'a> {
    /// The request of a command. `keys` is its number of keys; an error if that is negative or exceeds the number of arguments.
    #[inline]
    pub fn new(command: &'a [&'a [u8]], keys: i64, read_only: bool) -> Result<Request<'a>> {
        /// Index of the first key.
        const KEYS_AT: usize = 3;
        fail_if!(keys < 0, Error::NEGATIVE_KEYS);
        let given = command.get(KEYS_AT..).unwrap_or_default();
        let split = usize::try_from(keys).ok().and_then(|keys| given.split_at_checked(keys));
        let (keys, args) = split.ok_or(Error::MORE_KEYS_THAN_ARGUMENTS)?;
        Ok(Request { command, keys, args, read_only })
    }
}

/// Runs a script and replies with its result.
#[inline]
pub fn run(cx: &mut Context<'_>, source: Source<'_>, request: Request<'_>) -> Result {
    let commands = cx.engine.commands();
    let (scripts, command_stats) = cx.engine.scripts_to_run();
    let scripts = &mut ScriptState::of_mut(scripts).scripts;
    scripts.leak_poisoned_interpreter();
    let index = match source {
        Source::Text(text) => scripts.evaluate(text)?,
        Source::Sha(digits) => scripts.find_to_run(digits).ok_or(Error::NO_SCRIPT)?,
    };
    let Some(interpreter) = scripts.interpreter else { return Err(Error::NO_SCRIPT) };
    let (program, evaluated) = scripts.program(index, commands, command_stats);
    execute(cx, (interpreter, false), program, request, |engine| engine.lua().scripts.sha(index))?;
    if evaluated {
        cx.engine.lua_mut().scripts.touch(index);
    }
    Ok(())
}

/// Runs a program in an interpreter, which is that of functions or not, and replies with its result. `name` returns the program's name in errors; it is called only for an error.
#[inline(always)]
pub(crate) fn execute(
    cx: &mut Context<'_>,
    (interpreter, is_function): (NonNull<Interpreter>, bool),
    program: Program,
    request: Request<'_>,
    name: impl for<'e> FnOnce(&'e Engine) -> &'e [u8],
) -> Result {
    let Program { function, flags, plan } = program;
    let interpreter = interpreter.as_ptr();
    // Without declared flags, only the flags of the called commands matter.
    let declared = !flags.contains(ScriptFlags::COMPAT);
    if declared {
        check_declared_flags(cx, flags, request.read_only)?;
    }

    cx.engine.forget_visited();
    let in_cluster = cx.engine.in_cluster();
    let slot = if in_cluster { cx.engine.slot_of_script(cx.command, request.command) } else { None };
    let unrestricted = cx.session().flags.contains(SessionFlags::UNRESTRICTED);
    let read_only = request.read_only | flags.contains(ScriptFlags::NO_WRITES);
    let skips_checks = unrestricted
        & !read_only
        & !in_cluster
        & (cx.engine.config().maxmemory == 0)
        & cx.engine.persistence().refusal().is_none();
    // From here on the engine is reached through this pointer only: by the calls of the script, and then by this function.
    let engine: *mut Engine = &raw mut *cx.engine;
    // SAFETY: the interpreter is valid and runs nothing, as commands that run scripts are not allowed from scripts. It is not freed
    // meanwhile, as those that flush scripts are not either. `engine` comes from the exclusive reference in `cx`, which is not used
    // until the last use of the pointer. After the run, allocations cannot fail.
    unsafe {
        (*interpreter).frame = Frame {
            fuel: Fuel::of(request.command),
            unrestricted,
            skips_checks,
            read_only,
            is_function,
            slot,
            // Without declared flags, each command may use another slot, as before Redis 7.0.
            cross_slot: !declared | flags.contains(ScriptFlags::ALLOW_CROSS_SLOT),
            allow_oom: flags.contains(ScriptFlags::ALLOW_OOM),
            ..Frame::new(engine, cx.now, cx.session, cx.db)
        };
        if let Some(plan) = plan {
            if let Err(error) = plan::run(&plan, interpreter, request.keys, request.args, cx.reply) {
                let name = name(&*engine);
                reply_error(cx.reply, &mut *engine, &error.reply(name), error.counted);
                (*engine).command_stats_mut().of(cx.command).failed += 1;
            }
            return Ok(());
        }
        let succeeded = Interpreter::run(interpreter, function, request.keys, request.args);
        let lua = (*interpreter).lua;
        let failed = if succeeded {
            to_reply::write(lua, (*interpreter).frame.protocol, &mut *engine, cx.reply)
        } else {
            let error = errors::read(lua, name(&*engine));
            reply_error(cx.reply, &mut *engine, &error.text, error.counted);
            true
        };
        if failed {
            (*engine).command_stats_mut().of(cx.command).failed += 1;
        }
        if Interpreter::finish(interpreter) {
            (*engine).ask(Action::ReturnMemory);
        }
    }
    Ok(())
}

/// Checks whether a program with declared flags may run now.
#[inline(never)]
fn check_declared_flags(cx: &mut Context<'_>, flags: ScriptFlags, read_only: bool) -> Result {
    if flags.contains(ScriptFlags::NO_CLUSTER) && cx.engine.in_cluster() {
        return Err(Error::new("ERR Can not run script on cluster, 'no-cluster' flag is set."));
    }
    if !flags.contains(ScriptFlags::NO_WRITES) {
        fail_if!(read_only, Error::new("ERR Can not execute a script with write flag using *_ro command."));
        if !flags.contains(ScriptFlags::ALLOW_OOM) {
            cx.engine.check_room(cx.now, 0).map_err(|_| Error::OOM_IN_SCRIPT)?;
        }
    }
    Ok(())
}

/// Replies with the error of a run, and counts it unless it has been counted.
#[cold]
fn reply_error(reply: &mut dyn Sink, engine: &mut Engine, text: &[u8], counted: bool) {
    if !counted {
        engine.stats_mut().error(&Error::of_bytes(text.to_vec()));
    }
    reply.error(&errors::blank_leading_line_ends(text));
}
