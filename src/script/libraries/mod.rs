//! What scripts find beside the base of Lua.

mod bit;
pub(super) mod buffer;
mod convert;
mod json;
mod msgpack;
mod pattern;
mod raise;
pub(super) mod random;
pub(super) mod strings;
mod structure;
pub(super) mod tables;

use mlua::ffi::lua_State;
use std::os::raw::c_int;

use crate::script::globals::add_library;
use crate::script::interpreter::Interpreter;

/// Adds the libraries that Redis brings to the table of globals at the (positive) index `globals`.
///
/// # Safety
/// The stack has room for ten values, the interpreter outlives the state, and allocations cannot fail.
pub(super) unsafe fn install(lua: *mut lua_State, interpreter: *mut Interpreter, globals: c_int) {
    // SAFETY: as promised.
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
