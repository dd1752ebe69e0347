//! Lua below its C interface: its allocator, the layout of its values in memory, and short helpers for its stack.
//!
//! [`stack`] is the place to begin. [`layout`] reads and writes values where calls of C functions would cost more than the work
//! itself. [`memory`] counts what an interpreter allocates and limits it.

pub(crate) mod layout;
pub(crate) mod memory;
pub(crate) mod stack;
