//! Fuel: counts the work of a script, and ends scripts that run too long.
//!
//! ```text
//!   Lua instructions ────────▶ count_hook, every 10,000 of them; more often once there are large strings or tables ─┐
//!   functions of libraries ──▶ consume: bytes, elements, comparisons ───────────────────────────────────────────────┼─▶ should_end
//!   redis.call ──────────────▶ consume_call: visited elements; commands that may take long always cause a check ────────┘       │
//!                                                                                                                           │
//!                             Engine::script_steps_max: the limit in a simulation ◀─────────────────────────────────────────┤
//!                             Engine::supervisor: the driver, which has the clock and the sockets ◀─────────────────────────┤
//!                             to end the script: raise_killed, again and again ◀────────────────────────────────────────────┘
//! ```
//!
//! There is one thread, and a running script occupies it. The server still answers other clients, because no part of a script takes
//! long without being counted: our own functions call `consume` in proportion to their work, and Lua's instructions are counted by
//! a hook. A check follows every few tens of microseconds.
//!
//! Fuel counts work rather than time. So a simulation, which has no clock, ends a script at the same step each time. The driver
//! has a clock and reads it in each check.
//!
//! A single step cannot be divided: a command (as on Redis), an instruction that copies a string, the growth of a table, a step of
//! the garbage collector. The memory limit bounds each of them to a fraction of a second.
//!
//! A script can catch the error that is to end it. Therefore all our functions that catch errors (see
//! [`pcall`](crate::script::globals::pcall)) raise that error again, and from then on the hook runs at every instruction. Hooks
//! belong to a coroutine; a new coroutine inherits the hook of the one that creates it.
//!
//! [`counter`] has the counter of a run and the costs, [`meter`] the functions that consume fuel, [`limits`] the hook and the
//! checks.

pub(crate) mod counter;
mod limits;
mod meter;
#[cfg(test)]
mod tests;

pub(crate) use crate::script::fuel::counter::{BYTES_PER_STEP, CLOCK_COST, COLLECT_COST, COLLECT_KB, unvisited_call_cost};
pub(crate) use crate::script::fuel::limits::{KILLED, arm_hook, is_killed, kill, raise_killed};
pub(crate) use crate::script::fuel::meter::{
    check, consume, consume_call, consume_planned_call, consume_unchecked, is_check_due, try_check, try_consume,
};
