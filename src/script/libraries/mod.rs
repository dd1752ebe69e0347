//! The libraries of scripts: those that Redis adds to Lua, and replacements for functions of `string`, `table` and `math`.
//!
//! [`writer`] writes results and [`buffer`] holds them, [`raise`] raises errors in deep nesting, [`convert`] converts numbers as C
//! does.

mod bit;
pub(crate) mod buffer;
mod convert;
mod format;
mod json;
mod msgpack;
mod pattern;
mod raise;
pub(crate) mod random;
pub(crate) mod strings;
mod structure;
pub(crate) mod tables;
mod writer;

use mlua::ffi::lua_State;
use std::os::raw::c_int;

use crate::script::globals::read_only::add_library;
use crate::script::interpreter::Interpreter;

/// Adds the libraries of Redis to the table of globals, which lies at the positive stack index `globals`.
///
/// # Safety
/// The stack has room for ten values, the interpreter outlives the state, and allocations cannot fail.
pub(crate) unsafe fn install(lua: *mut lua_State, interpreter: *mut Interpreter, globals: c_int) {
    // SAFETY: the stack has room for ten values: a `push_table` needs at most seven, and `add_library` a table and five above it.
    // The interpreter outlives the state.
    unsafe {
        bit::push_table(lua, interpreter);
        add_library(lua, globals, &[c"bit"]);
        structure::push_table(lua, interpreter);
        add_library(lua, globals, &[c"struct"]);
        msgpack::push_table(lua, interpreter);
        add_library(lua, globals, &[c"cmsgpack"]);
        json::push_table(lua, interpreter);
        add_library(lua, globals, &[c"cjson"]);
    }
}
