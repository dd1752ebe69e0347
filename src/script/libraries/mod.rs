//! What scripts find beside the base of Lua.

pub(super) mod random;
