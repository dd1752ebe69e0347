//! What bounds a script's run: its work is counted, and every so often it is asked whether the run may go on.
//!
//! ```text
//!   instructions of Lua ─────▶ hook, every 10,000 of them; fewer once there are long strings or large tables ─┐
//!   functions of libraries ──▶ spend: bytes, elements, comparisons ───────────────────────────────────────────┼─▶ ask
//!   redis.call ──────────────▶ charge_call: what was visited; always, where a command may take long ──────────┘    │
//!                                                                                                                  │
//!                             Engine::script_steps_max, the budget of a simulation ◀───────────────────────────────┤
//!                             Engine::supervisor, the driver: it has the clock and the sockets ◀───────────────────┤
//!                             to end: raise, and raise again ◀─────────────────────────────────────────────────────┘
//! ```
//!
//! There is one thread, and while a script runs it is the script's. What makes the server answer all the same is that nothing in a
//! script takes long without being counted: what is not counted as instructions is a loop of ours that calls `spend`, in
//! proportion to what it does. Work is counted and not timed, so a simulation, which has no clock, ends a script at the same step
//! each time; the driver, which has one, looks at it when it is asked. Between two questions lie some tens of microseconds.
//!
//! What cannot be divided is one step: a command (as on Redis), an instruction that copies a string, the growth of a table, a step
//! of the collector. The memory limit of a run bounds each of them to a fraction of a second.
//!
//! A script that is to end may catch the error that ends it. So everything here that catches errors (`protect`) raises it
//! again, and the hook, from then on, comes with every instruction. Hooks belong to a coroutine; a new one inherits its maker's.

use std::os::raw::c_int;
use std::ptr::NonNull;

use mlua::ffi::*;

use crate::base::error::Error;
use crate::engine::Engine;
use crate::engine::command::Command;
use crate::engine::jobs::long_run::{Run, Verdict};
use crate::script::failure;
use crate::script::functions::loading;
use crate::script::interpreter::Interpreter;

/// Instructions of Lua between two looks at whether the script may go on; other work counts as so many instructions as take its time.
/// Ten times as often as Redis looks: an instruction may call a C function that takes long.
pub(super) const INTERVAL: c_int = 10_000;

/// Nanoseconds by which `os.clock()` advances for an instruction of Lua, the same on every machine. Loops over numbers and tables take 2 to
/// 4 of them, and what counts as work is within a factor of four; a short string that is made takes ten times what is counted for it.
const STEP_NS: u64 = 3;

/// What a call of `os.clock()` counts.
pub(super) const CLOCK: u64 = 10;

/// Bytes that are copied, compared or searched in the time of an instruction.
pub(super) const BYTES_PER_STEP: u64 = 64;

/// What a call of a command counts, each of its arguments, and each element that it visits or replies with.
const CALL: u64 = 20;
const ARGUMENT: u64 = 4;
const ELEMENT: u64 = 8;

/// Once there was a block of this size, in bytes, the hook comes more often, in proportion: one instruction may copy all of it.
pub(super) const LARGE_BLOCK: usize = 64 << 10;

/// The error that ends a script.
pub(super) const KILLED: &[u8] = b"Script killed by user with SCRIPT KILL...";

/// Room on the stack that the error takes which ends a script.
const ERROR_ROOM: c_int = 8;

/// After cycles of the collector that found so many bytes there are more of them.
const WORTHWHILE: usize = 1 << 20;

/// Kilobytes of one step of the collector, and what it counts as.
pub(super) const COLLECTED_KB: c_int = 16;
pub(super) const COLLECTED_WORK: u64 = 5_000;

/// The bounds of one run.
#[derive(Default)]
pub(super) struct Bounds {
    /// Whether it is to end.
    pub killed: bool,
    /// Steps taken, as far as the hook has counted them.
    steps: u64,
    /// Whether the supervisor was asked about it.
    asked: bool,
    /// Work of C functions that the hook has not counted, in instructions.
    work: u64,
    /// Part of the work and the steps that was counted so that the run is asked about, and took no time.
    padding: u64,
    /// The arguments of the command whose run it is, while it runs.
    command: Option<NonNull<[&'static [u8]]>>,
}

impl Bounds {
    /// Those of a run of this command.
    pub(super) fn of(command: &[&[u8]]) -> Self {
        let command: *const [&[u8]] = command;
        Bounds { command: NonNull::new(command as *mut [&'static [u8]]), ..Bounds::default() }
    }

    /// Nanoseconds that the run has taken so far, judged by what was counted: the hook counts every 10,000 instructions, so the time
    /// moves in jumps of 30 µs, and with every call of a command.
    pub(super) fn elapsed_ns(&self) -> u64 {
        self.steps.saturating_add(self.work).saturating_sub(self.padding).saturating_mul(STEP_NS)
    }
}

/// Arms the hook of a thread of Lua at the beginning of its run.
///
/// # Safety
/// The state is valid.
#[inline]
pub(super) unsafe fn arm(lua: *mut lua_State) {
    // SAFETY: as promised.
    unsafe { lua_sethook(lua, Some(hook), LUA_MASKCOUNT, INTERVAL) };
}

/// Instructions between two hooks where the largest block there was has so many bytes.
fn interval(largest: usize) -> c_int {
    (INTERVAL as usize * LARGE_BLOCK / largest.max(LARGE_BLOCK)).max(1) as c_int
}

/// Notes that a block was allocated which is much larger than any before. Lua allows that at any moment.
///
/// # Safety
/// `lua` is the thread of Lua that runs.
pub(super) unsafe fn note_largest(lua: *mut lua_State, bytes: usize) {
    // SAFETY: as promised.
    unsafe { lua_sethook(lua, Some(hook), LUA_MASKCOUNT, interval(bytes)) };
}

unsafe extern "C-unwind" fn hook(lua: *mut lua_State, _: *mut lua_Debug) {
    // SAFETY: Lua calls this between two instructions, with room for twenty values. Nothing with a destructor is alive.
    unsafe {
        let interpreter = Interpreter::of(lua);
        let (passed, interval) = (lua_gethookcount(lua), interval((*interpreter).memory.largest));
        // Fewer instructions than usual stand for as much work. A library that loads is not held to that: it has little time.
        let steps = if (*interpreter).draft.is_none() { INTERVAL } else { passed };
        if ask(interpreter, steps as u64) {
            raise_killed(lua, interpreter);
        }
        if passed != interval {
            lua_sethook(lua, Some(hook), LUA_MASKCOUNT, interval);
        }
    }
}

/// Counts work of a C function, as many instructions as take its time, and ends the script if it is to end.
///
/// # Safety
/// Called from a function of the interpreter while a script runs; nothing with a destructor is alive.
#[inline]
pub(super) unsafe fn spend(lua: *mut lua_State, interpreter: *mut Interpreter, work: u64) {
    // SAFETY: as promised.
    unsafe {
        if spend_quietly(interpreter, work) {
            raise_killed(lua, interpreter);
        }
    }
}

/// As [`spend`], for a caller that owns something; gives whether the script is to end.
///
/// # Safety
/// Called from a function of the interpreter while a script runs.
#[inline]
pub(super) unsafe fn spend_quietly(interpreter: *mut Interpreter, work: u64) -> bool {
    // SAFETY: as promised.
    unsafe {
        let bounds = &mut (*interpreter).frame.bounds;
        bounds.work = bounds.work.saturating_add(work);
        if bounds.work < INTERVAL as u64 {
            return false;
        }
        let work = std::mem::take(&mut bounds.work);
        ask(interpreter, work)
    }
}

/// What a call of this command counts at least: of one that may take long the run is asked about after each.
pub(super) fn least_work(command: &Command) -> u64 {
    if command.is_bounded() { CALL } else { INTERVAL as u64 }
}

/// Counts the call of a command that has given its reply: its [`least_work`], or more for so many arguments and elements. Whoever calls
/// this calls [`settle`] where it owns nothing any more.
///
/// # Safety
/// As for [`spend_quietly`].
#[inline]
pub(super) unsafe fn charge_call(interpreter: *mut Interpreter, least: u64, arguments: usize, elements: usize) {
    // SAFETY: as promised; the engine is used nowhere else now.
    unsafe {
        let seen = (elements as u64).saturating_add((*(*interpreter).frame.engine).visited);
        let work = if seen == 0 { cost(arguments, 0) } else { long_work(interpreter, arguments, seen) };
        charge(interpreter, work);
        if least > CALL {
            pad(interpreter, least.saturating_sub(work));
        }
    }
}

/// Counts work that is not done, for the run to be asked about.
#[inline(never)]
unsafe fn pad(interpreter: *mut Interpreter, work: u64) {
    // SAFETY: as for `charge_call`.
    unsafe {
        charge(interpreter, work);
        (*interpreter).frame.bounds.padding += work;
    }
}

/// What a call counts that has seen so many elements: those that the engine has visited are in it, and are forgotten.
#[inline(never)]
unsafe fn long_work(interpreter: *mut Interpreter, arguments: usize, seen: u64) -> u64 {
    // SAFETY: as for `charge_call`.
    unsafe { (*(*interpreter).frame.engine).visited = 0 };
    cost(arguments, seen)
}

/// As [`charge_call`] for a call whose work is known where the command visits nothing: what it counts at least, and its arguments.
///
/// # Safety
/// As for [`spend_quietly`].
#[inline]
pub(super) unsafe fn charge_planned(interpreter: *mut Interpreter, work: u64, (least, arguments): (u64, usize)) {
    // SAFETY: as promised; the engine is used nowhere else now.
    unsafe {
        if (*(*interpreter).frame.engine).visited > 0 {
            charge_call(interpreter, least, arguments, 0);
        } else {
            charge(interpreter, work);
        }
    }
}

/// What the call of a command counts that visits no elements: at least its [`least_work`], or more for so many arguments.
pub(super) fn call_work(least: u64, arguments: usize) -> u64 {
    cost(arguments, 0).max(least)
}

/// What it costs to call a command with so many arguments that visits so many elements; never less than [`CALL`].
#[inline]
fn cost(arguments: usize, elements: u64) -> u64 {
    (CALL + ARGUMENT * arguments as u64).saturating_add(ELEMENT.saturating_mul(elements))
}

/// Counts work. Whoever calls this calls [`settle`], too.
///
/// # Safety
/// As for [`spend_quietly`].
#[inline]
pub(super) unsafe fn charge(interpreter: *mut Interpreter, work: u64) {
    // SAFETY: as promised.
    unsafe {
        let bounds = &mut (*interpreter).frame.bounds;
        bounds.work = bounds.work.saturating_add(work);
    }
}

/// Has the work that was counted looked at if it is enough, and ends the script if it is to end.
///
/// # Safety
/// As for [`spend`].
#[inline]
pub(super) unsafe fn settle(lua: *mut lua_State, interpreter: *mut Interpreter) {
    // SAFETY: as promised.
    unsafe {
        if is_due(interpreter) {
            spend(lua, interpreter, 0);
        }
    }
}

/// Whether the work that was counted is enough to be looked at: see [`settle`].
///
/// # Safety
/// As for [`spend_quietly`].
#[inline]
pub(super) unsafe fn is_due(interpreter: *mut Interpreter) -> bool {
    // SAFETY: as promised.
    unsafe { (*interpreter).frame.bounds.work >= INTERVAL as u64 }
}

/// As [`settle`], for a caller that owns something; gives whether the script is to end.
///
/// # Safety
/// As for [`spend_quietly`].
#[inline]
pub(super) unsafe fn settle_quietly(interpreter: *mut Interpreter) -> bool {
    // SAFETY: as promised.
    unsafe { is_due(interpreter) && spend_quietly(interpreter, 0) }
}

/// Collects the garbage of a run that has used much memory, or all, while others are answered: the next run is to find room.
///
/// # Safety
/// The run has just come to its end, and the engine is still the frame's.
pub(super) unsafe fn collect(interpreter: *mut Interpreter) {
    // SAFETY: as promised.
    unsafe {
        loop {
            let before = (*interpreter).memory.used;
            // What became garbage after the cycle under way had begun is found by the next one.
            for _ in 0..2 {
                while lua_gc((*interpreter).lua, LUA_GCSTEP, COLLECTED_KB) == 0 {
                    spend_quietly(interpreter, COLLECTED_WORK);
                }
            }
            // In every cycle, Lua gives back half of the buffer in which it joins strings.
            if before.saturating_sub((*interpreter).memory.used) < WORTHWHILE {
                break;
            }
        }
    }
}

/// Whether the script is to end.
#[cold]
unsafe fn ask(interpreter: *mut Interpreter, steps: u64) -> bool {
    // SAFETY: a script runs, so its frame's engine is valid, and between two instructions or in a function of the interpreter that
    // has no reference to it nobody else has one. The supervisor runs no script.
    unsafe {
        let frame = &raw mut (*interpreter).frame;
        if (*frame).bounds.killed {
            return true;
        }
        (*frame).bounds.steps = (*frame).bounds.steps.saturating_add(steps);
        if (*interpreter).draft.is_some() && (*frame).bounds.steps > loading::STEPS_MAX {
            (*frame).bounds.killed = true;
            return true;
        }
        if (*frame).engine.is_null() {
            return false;
        }
        let (now, session) = ((*frame).now, (*frame).session);
        let engine = &mut *(*frame).engine;
        let mut verdict = Verdict::Continue;
        if engine.script_steps_max.is_some_and(|max| (*frame).bounds.steps > max) {
            verdict = Verdict::Kill;
        } else if let Some(mut supervisor) = engine.supervisor.take() {
            let first = !std::mem::replace(&mut (*frame).bounds.asked, true);
            let (function, wrote) = ((*frame).function, (*frame).wrote);
            let command = (*frame).bounds.command.map_or(&[][..], |command| command.as_ref());
            engine.long_run = Some(Run { function, wrote, killed: false, ms: 0, command });
            engine.timing.suspended = true;
            engine.update_slow_path();
            verdict = supervisor(engine, now, session, first);
            engine.timing.suspended = false;
            engine.timing.long = true;
            engine.supervisor = Some(supervisor);
            if verdict == Verdict::Kill && wrote {
                engine.keyspace.changes.abandon();
            }
            if engine.long_run.take().is_some_and(|run| run.killed) {
                verdict = Verdict::Kill;
            }
            engine.update_slow_path();
        }
        (*frame).bounds.killed |= verdict == Verdict::Kill;
        (*frame).bounds.killed
    }
}

/// Ends a script that is killed, as far as it lets itself be ended: from now on the hook comes with every instruction of this thread
/// and of the first one, which catches what others did.
///
/// # Safety
/// As for [`spend`].
pub(super) unsafe fn raise_killed(lua: *mut lua_State, interpreter: *mut Interpreter) -> c_int {
    // SAFETY: as promised; for the error itself there is always memory.
    unsafe {
        for thread in [lua, (*interpreter).lua] {
            lua_sethook(thread, Some(hook), LUA_MASKLINE | LUA_MASKCOUNT, 1);
        }
        (*interpreter).memory.strict = false;
        if lua_checkstack(lua, ERROR_ROOM) == 0 {
            // There are thousands of values, which nobody needs any more.
            lua_pop(lua, ERROR_ROOM);
        }
        let late = (*interpreter).draft.is_some() && (*interpreter).frame.bounds.steps > loading::STEPS_MAX;
        failure::push(lua, if late { loading::TIMEOUT } else { KILLED });
        (*interpreter).memory.strict = true;
        lua_error(lua)
    }
}

/// Whether the script that runs is to end.
///
/// # Safety
/// The interpreter is valid.
#[inline]
pub(super) unsafe fn is_killed(interpreter: *mut Interpreter) -> bool {
    // SAFETY: as promised.
    unsafe { (*interpreter).frame.bounds.killed }
}

/// Has the script, or the function, that runs end with an error, unless it has written something.
pub(crate) fn kill(engine: &mut Engine, function: bool) -> Result<(), Error> {
    match &mut engine.long_run {
        None => Err(Error::NO_SCRIPT_RUNS),
        Some(run) if run.wrote => Err(Error::UNKILLABLE),
        Some(run) if run.function != function => Err(run.busy()),
        Some(run) => {
            run.killed = true;
            Ok(())
        }
    }
}
