//! The limits of a run: the hook that counts Lua instructions, the check whether a script must end, and the error that ends it.

use std::os::raw::c_int;

use mlua::ffi::*;

use crate::base::error::Error;
use crate::engine::Engine;
use crate::engine::jobs::long_run::{Run, Verdict};
use crate::script::conversion::errors;
use crate::script::fuel::counter::{CHECK_INTERVAL, LOAD_STEPS_MAX, check_interval};
use crate::script::interpreter::Interpreter;

/// The error of a killed script.
pub(crate) const KILLED: &[u8] = b"Script killed by user with SCRIPT KILL...";

/// The error of a library that takes too long to load.
const LOAD_TIMEOUT: &[u8] = b"FUNCTION LOAD timeout";

/// Stack slots for the error that ends a script.
const ERROR_SLOTS: c_int = 8;

/// Installs the hook in a Lua thread when its run begins.
///
/// # Safety
/// The state is valid.
#[inline]
pub(crate) unsafe fn arm_hook(lua: *mut lua_State) {
    // SAFETY: as promised.
    unsafe { lua_sethook(lua, Some(count_hook), LUA_MASKCOUNT, CHECK_INTERVAL) };
}

/// The hook. Lua calls it after each interval of instructions; see [`check_interval`].
unsafe extern "C-unwind" fn count_hook(lua: *mut lua_State, _: *mut lua_Debug) {
    // SAFETY: Lua calls this between two instructions, with room for twenty values. Nothing with a destructor is alive.
    unsafe {
        let interpreter = Interpreter::of(lua);
        let (passed, interval) = (lua_gethookcount(lua), check_interval((*interpreter).memory.largest));
        // With large blocks, fewer instructions count as a whole interval. A library that loads pays only for the instructions that
        // have passed, because its limit is small.
        let steps = if (*interpreter).load.is_none() { CHECK_INTERVAL } else { passed };
        if should_end(interpreter, steps as u64) {
            raise_killed(lua, interpreter);
        }
        if passed != interval {
            lua_sethook(lua, Some(count_hook), LUA_MASKCOUNT, interval);
        }
    }
}

/// Counts steps, asks the supervisor, and returns whether the script must end.
#[cold]
pub(super) unsafe fn should_end(interpreter: *mut Interpreter, steps: u64) -> bool {
    // SAFETY: a script runs, so its frame's engine is valid. Between two instructions, or in a function of the interpreter that
    // has no reference to the engine, no other reference to it exists. The supervisor runs no script.
    unsafe {
        let frame = &raw mut (*interpreter).frame;
        if (*frame).fuel.killed {
            return true;
        }
        (*frame).fuel.steps = (*frame).fuel.steps.saturating_add(steps);
        if (*interpreter).load.is_some() && (*frame).fuel.steps > LOAD_STEPS_MAX {
            (*frame).fuel.killed = true;
            return true;
        }
        if (*frame).engine.is_null() {
            return false;
        }
        let (now, session) = ((*frame).now, (*frame).session);
        let engine = &mut *(*frame).engine;
        let first = !std::mem::replace(&mut (*frame).fuel.supervised, true);
        let (function, wrote) = ((*frame).is_function, (*frame).wrote);
        let command = (*frame).fuel.command.map_or(&[][..], |command| command.as_ref());
        let run = Run { function, wrote, killed: false, ms: 0, command };
        let verdict = engine.supervise(now, session, run, (*frame).fuel.steps, first);
        (*frame).fuel.killed |= verdict == Verdict::Kill;
        (*frame).fuel.killed
    }
}

/// Raises the error that ends a killed script. The script may catch it: from now on the hook runs at every instruction of this
/// thread and of the main thread, which catches errors of coroutines.
///
/// # Safety
/// As for [`consume`](super::consume).
pub(crate) unsafe fn raise_killed(lua: *mut lua_State, interpreter: *mut Interpreter) -> c_int {
    // SAFETY: nothing in the function that Lua called has a destructor. Allocations do not fail here, and a full stack loses
    // eight values, so there is room for the error.
    unsafe {
        for thread in [lua, (*interpreter).lua] {
            lua_sethook(thread, Some(count_hook), LUA_MASKLINE | LUA_MASKCOUNT, 1);
        }
        (*interpreter).memory.may_fail = false;
        if lua_checkstack(lua, ERROR_SLOTS) == 0 {
            // The stack is full of thousands of values that are no longer needed.
            lua_pop(lua, ERROR_SLOTS);
        }
        let timed_out = (*interpreter).load.is_some() && (*interpreter).frame.fuel.steps > LOAD_STEPS_MAX;
        errors::push(lua, if timed_out { LOAD_TIMEOUT } else { KILLED });
        (*interpreter).memory.may_fail = true;
        lua_error(lua)
    }
}

/// Whether the running script must end.
///
/// # Safety
/// The interpreter is valid.
#[inline]
pub(crate) unsafe fn is_killed(interpreter: *mut Interpreter) -> bool {
    // SAFETY: as promised.
    unsafe { (*interpreter).frame.fuel.killed }
}

/// Kills the running script, or the running function if `function` is set, unless it has written something.
pub(crate) fn kill(engine: &mut Engine, function: bool) -> Result<(), Error> {
    match engine.long_run_mut() {
        None => Err(Error::NO_SCRIPT_RUNS),
        Some(run) if run.wrote => Err(Error::UNKILLABLE),
        Some(run) if run.function != function => Err(run.busy()),
        Some(run) => {
            run.killed = true;
            Ok(())
        }
    }
}
