//! Checks before a command that a script calls: flags, the user's rules, memory, cluster slots.

use crate::base::error::Error;
use crate::engine::Engine;
use crate::engine::cluster;
use crate::engine::command::{Command, Flags, Traits};
use crate::engine::table::CommandTable;
use crate::script::calls::command_cache::CallableCommand;
use crate::script::interpreter::Interpreter;
use crate::script::interpreter::frame::Frame;

const NOT_ALLOWED: &str = "ERR This Redis command is not allowed from script";

/// Checks that the running script may make this call now. A refusal is counted for the command as a rejected call, but not as an
/// error.
///
/// # Safety
/// A script runs, and no reference to its engine exists.
#[inline(always)]
pub(crate) unsafe fn check_call(interpreter: *mut Interpreter, callable: &CallableCommand, args: &[&[u8]]) -> Result<(), Error> {
    // SAFETY: a script runs, so the interpreter and its engine are valid. The callers have no reference to the engine or to the
    // frame.
    unsafe {
        let frame = &mut (*interpreter).frame;
        if frame.skips_checks & callable.allowed {
            frame.wrote |= callable.command.flags.contains(Flags::WRITE);
            return Ok(());
        }
        check_all(frame, callable, args)
    }
}

/// The checks of [`check_call`] for a run or a command that needs them.
#[inline(never)]
unsafe fn check_all(frame: &mut Frame, callable: &CallableCommand, args: &[&[u8]]) -> Result<(), Error> {
    // SAFETY: a script runs, so the frame's engine is valid, and the caller of `check_call` has no reference to it.
    unsafe {
        let engine = &mut *frame.engine;
        let command = callable.command;
        let refused = if !(callable.allowed || engine.scripts_may_debug() && command.traits.contains(Traits::DEBUG)) {
            Err(Error::new(NOT_ALLOWED))
        } else if !frame.unrestricted
            && let Err(error) = engine.check_access_of_script(frame.now, frame.session, command, args)
        {
            Err(error)
        } else if frame.read_only && command.flags.intersects(Flags::WRITE.union(Flags::MAY_REPLICATE)) {
            Err(Error::new("ERR Write commands are not allowed from read-only scripts."))
        } else if !frame.wrote && !frame.allow_oom && engine.check_memory_within(frame.now, command, args).is_err() {
            // A script that has begun to write is not stopped halfway.
            Err(Error::new("OOM command not allowed when used memory > 'maxmemory'."))
        } else if !frame.wrote
            && command.flags.contains(Flags::WRITE)
            && let Some(refusal) = engine.persistence().refusal()
        {
            Err(refusal.clone())
        } else if engine.in_cluster()
            && let Err(error) = check_slot(frame, engine.commands(), command, args)
        {
            Err(error)
        } else {
            frame.wrote |= command.flags.contains(Flags::WRITE);
            return Ok(());
        };
        count_rejected(engine, command);
        refused
    }
}

#[cold]
fn count_rejected(engine: &mut Engine, command: &'static Command) {
    engine.command_stats_mut().of(command).rejected += 1;
}

/// In a cluster, checks that the keys of a call have one slot, and that it is the script's slot.
#[cold]
fn check_slot(frame: &mut Frame, commands: &CommandTable, command: &'static Command, args: &[&[u8]]) -> Result<(), Error> {
    let slot = cluster::request_slot(command, args).map_err(|_| {
        let name = commands.full_name(command);
        Error::new(format!("ERR Command '{name}' in script attempted to access keys that don't hash to the same slot"))
    })?;
    match slot {
        Some(slot) if !frame.cross_slot && *frame.slot.get_or_insert(slot) != slot => {
            Err(Error::new("ERR Script attempted to access keys that do not hash to the same slot"))
        }
        _ => Ok(()),
    }
}
