//! Functions that consume fuel.
//!
//! Functions that may raise the error of a killed script take the Lua state. Those for callers that own something with a destructor
//! return instead whether the script must end.

use mlua::ffi::lua_State;

use crate::script::fuel::counter::{CALL_COST, CHECK_INTERVAL, call_cost};
use crate::script::fuel::limits::{raise_killed, should_end};
use crate::script::interpreter::Interpreter;

/// Consumes fuel for the work of a C function, and raises an error if the script must end.
///
/// # Safety
/// Called from a C function of the interpreter while a script runs. Nothing with a destructor is alive.
#[inline]
pub(crate) unsafe fn consume(lua: *mut lua_State, interpreter: *mut Interpreter, steps: u64) {
    // SAFETY: as promised.
    unsafe {
        if try_consume(interpreter, steps) {
            raise_killed(lua, interpreter);
        }
    }
}

/// As [`consume`], but returns whether the script must end.
///
/// # Safety
/// Called from a C function of the interpreter while a script runs.
#[inline]
pub(crate) unsafe fn try_consume(interpreter: *mut Interpreter, steps: u64) -> bool {
    // SAFETY: a script runs, so the interpreter is valid. The callers have no reference to the engine, and the one to the fuel
    // ends before `should_end`.
    unsafe {
        let fuel = &mut (*interpreter).frame.fuel;
        fuel.unchecked = fuel.unchecked.saturating_add(steps);
        if fuel.unchecked < CHECK_INTERVAL as u64 {
            return false;
        }
        let steps = std::mem::take(&mut fuel.unchecked);
        should_end(interpreter, steps)
    }
}

/// Consumes fuel without a check. The caller must call [`check`] or [`try_check`] afterwards.
///
/// # Safety
/// As for [`try_consume`].
#[inline]
pub(crate) unsafe fn consume_unchecked(interpreter: *mut Interpreter, steps: u64) {
    // SAFETY: a script runs, so the interpreter is valid, and nothing else has a reference to its fuel.
    unsafe {
        let fuel = &mut (*interpreter).frame.fuel;
        fuel.unchecked = fuel.unchecked.saturating_add(steps);
    }
}

/// Adds the cost of a command that has replied, from its arguments, the elements that it visited and those of its reply. It is at
/// least `min_cost`, the command's [`min_call_cost`](super::counter::min_call_cost). The caller must call [`check`] as soon as it
/// owns nothing with a destructor.
///
/// # Safety
/// As for [`try_consume`].
#[inline]
pub(crate) unsafe fn consume_call(interpreter: *mut Interpreter, min_cost: u64, arguments: usize, elements: usize) {
    // SAFETY: a command has replied to a script, so the frame's engine is valid and is used nowhere else now.
    unsafe {
        let visited = (elements as u64).saturating_add((*(*interpreter).frame.engine).visited());
        let cost = if visited == 0 { call_cost(arguments, 0) } else { take_visited_cost(interpreter, arguments, visited) };
        consume_unchecked(interpreter, cost);
        if min_cost > CALL_COST {
            add_padding(interpreter, min_cost.saturating_sub(cost));
        }
    }
}

/// Adds steps that stand for no work, so that a check follows.
#[inline(never)]
unsafe fn add_padding(interpreter: *mut Interpreter, steps: u64) {
    // SAFETY: as for `consume_call`.
    unsafe {
        consume_unchecked(interpreter, steps);
        (*interpreter).frame.fuel.padding += steps;
    }
}

/// The cost of a call that has visited elements. Resets the engine's count of visited elements, which is included in `visited`.
#[inline(never)]
unsafe fn take_visited_cost(interpreter: *mut Interpreter, arguments: usize, visited: u64) -> u64 {
    // SAFETY: as for `consume_call`.
    unsafe { (*(*interpreter).frame.engine).forget_visited() };
    call_cost(arguments, visited)
}

/// As [`consume_call`] for a call in a plan. `cost` is its cost if the command visits no elements.
///
/// # Safety
/// As for [`try_consume`].
#[inline]
pub(crate) unsafe fn consume_planned_call(interpreter: *mut Interpreter, cost: u64, (min_cost, arguments): (u64, usize)) {
    // SAFETY: a command has replied to a plan, so the frame's engine is valid and is used nowhere else now.
    unsafe {
        if (*(*interpreter).frame.engine).visited() > 0 {
            consume_call(interpreter, min_cost, arguments, 0);
        } else {
            consume_unchecked(interpreter, cost);
        }
    }
}

/// Whether enough fuel was consumed for a check.
///
/// # Safety
/// As for [`try_consume`].
#[inline]
pub(crate) unsafe fn is_check_due(interpreter: *mut Interpreter) -> bool {
    // SAFETY: a script runs, so the interpreter is valid.
    unsafe { (*interpreter).frame.fuel.unchecked >= CHECK_INTERVAL as u64 }
}

/// Checks the limits if a check is due, and raises an error if the script must end.
///
/// # Safety
/// As for [`consume`].
#[inline]
pub(crate) unsafe fn check(lua: *mut lua_State, interpreter: *mut Interpreter) {
    // SAFETY: as promised.
    unsafe {
        if is_check_due(interpreter) {
            consume(lua, interpreter, 0);
        }
    }
}

/// As [`check`], but returns whether the script must end.
///
/// # Safety
/// As for [`try_consume`].
#[inline]
pub(crate) unsafe fn try_check(interpreter: *mut Interpreter) -> bool {
    // SAFETY: as promised.
    unsafe { is_check_due(interpreter) && try_consume(interpreter, 0) }
}
