//! Commands that run scripts: EVAL and SCRIPT in [`eval`], FCALL and FUNCTION in [`functions`]. Lua itself is in [`crate::script`].

pub mod eval;
pub mod functions;

use crate::engine::command::{Access, Command, Flags, Group, Keys, Traits};

/// What the rows of `EVAL`, `FCALL` and their variants have in common.
const RUN: Command = Command {
    traits: Traits::BOUNDED_COST,
    flags: Flags::NOSCRIPT
        .union(Flags::STALE)
        .union(Flags::SKIP_MONITOR)
        .union(Flags::NO_MANDATORY_KEYS)
        .union(Flags::MOVABLEKEYS)
        .union(Flags::MAY_REPLICATE),
    keys: Keys::Counted { numkeys: 2, step: 1 },
    access: Access::ReadWrite,
    group: Group::Scripting,
    ..Command::DEFAULT
};

/// What the rows of the read-only variants have in common.
const RUN_READ_ONLY: Command = Command { flags: RUN.flags.difference(Flags::MAY_REPLICATE).union(Flags::READONLY), ..RUN };
