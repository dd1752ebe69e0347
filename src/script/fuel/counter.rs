//! The fuel of one run, and what work costs.
//!
//! The unit is a step: the time of one Lua instruction.

use std::os::raw::c_int;
use std::ptr::NonNull;

use crate::engine::command::Command;

/// Steps between two checks. This is ten times as often as Redis checks, because an instruction may call a C function that takes
/// long.
pub(crate) const CHECK_INTERVAL: c_int = 10_000;

/// Nanoseconds by which `os.clock()` advances per step, the same on every machine. An instruction of a loop over numbers and tables
/// takes 2 to 4 ns. Costs of other work are right within a factor of four, except that the creation of a short string takes ten
/// times as long as it costs.
const STEP_NS: u64 = 3;

/// Cost of a call of `os.clock()`.
pub(crate) const CLOCK_COST: u64 = 10;

/// Bytes copied, compared or searched in one step.
pub(crate) const BYTES_PER_STEP: u64 = 64;

/// Costs of a command called by a script: of the call, of each argument, and of each element that the command visits or replies
/// with.
pub(crate) const CALL_COST: u64 = 20;
const ARGUMENT_COST: u64 = 4;
const ELEMENT_COST: u64 = 8;

/// Once there is a block of this size in bytes, the hook runs more often in proportion to the largest block, because one
/// instruction may copy all of it.
pub(crate) const LARGE_BLOCK: usize = 64 << 10;

/// Kilobytes of one step of the garbage collector, and its cost.
pub(crate) const COLLECT_KB: c_int = 16;
pub(crate) const COLLECT_COST: u64 = 5_000;

/// Maximum steps of a library that loads, somewhat less than half a second. Smaller in tests.
pub(crate) const LOAD_STEPS_MAX: u64 = if cfg!(test) { 5_000_000 } else { 50_000_000 };

/// Instructions between two runs of the hook. `largest` is the size of the largest block in bytes.
pub(crate) fn check_interval(largest: usize) -> c_int {
    (CHECK_INTERVAL as usize * LARGE_BLOCK / largest.max(LARGE_BLOCK)).max(1) as c_int
}

/// The fuel that one run has consumed.
#[derive(Default)]
pub(crate) struct Fuel {
    /// Whether the script must end.
    pub killed: bool,
    /// Steps consumed up to the last check.
    pub steps: u64,
    /// Steps consumed since then by C functions. The hook does not count those.
    pub unchecked: u64,
    /// Steps that were added only to cause a check and that took no time.
    pub padding: u64,
    /// Whether the supervisor has been called for this run.
    pub supervised: bool,
    /// The arguments of the command that started the run. They live as long as the run.
    pub command: Option<NonNull<[&'static [u8]]>>,
}

impl Fuel {
    /// The fuel of a run that this command starts. The command must live as long as the run.
    pub(crate) fn of(command: &[&[u8]]) -> Self {
        let command: *const [&[u8]] = command;
        Fuel { command: NonNull::new(command as *mut [&'static [u8]]), ..Fuel::default() }
    }

    /// Estimated duration of the run so far in nanoseconds. The hook counts 10,000 instructions at once, so the value moves in
    /// steps of 30 µs, and with each call of a command.
    pub(crate) fn elapsed_ns(&self) -> u64 {
        self.steps.saturating_add(self.unchecked).saturating_sub(self.padding).saturating_mul(STEP_NS)
    }
}

/// The minimum cost of a call of this command. For a command that may take long, it is high enough that a check follows each call.
pub(crate) fn min_call_cost(command: &Command) -> u64 {
    if command.is_bounded() { CALL_COST } else { CHECK_INTERVAL as u64 }
}

/// The cost of a call that visits no elements. `min_cost` is the command's [`min_call_cost`].
pub(crate) fn unvisited_call_cost(min_cost: u64, arguments: usize) -> u64 {
    call_cost(arguments, 0).max(min_cost)
}

/// The cost of a call with this number of arguments and of visited elements. Never less than [`CALL_COST`].
#[inline]
pub(crate) fn call_cost(arguments: usize, elements: u64) -> u64 {
    (CALL_COST + ARGUMENT_COST * arguments as u64).saturating_add(ELEMENT_COST.saturating_mul(elements))
}
