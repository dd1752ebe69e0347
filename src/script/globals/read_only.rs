//! Read-only tables.
//!
//! Lua 5.1 has none. Each table that scripts share is therefore hidden behind an empty table, its proxy: `__index` forwards reads
//! to the table, and `__newindex` refuses writes. Functions that bypass metatables (`next`, `pairs`, `rawget`, `rawset`,
//! `getmetatable`, `setmetatable`, `table.insert`) are replaced by ones that recognize proxies.

use std::ffi::CStr;
use std::os::raw::{c_int, c_void};

use mlua::ffi::*;

use crate::script::lua::stack::{push_bytes, set_field};

/// Its address is the key under which a proxy's metatable keeps the hidden table.
static HIDDEN: u8 = 0;

const READ_ONLY: &CStr = c"Attempt to modify a readonly table";

fn hidden_key() -> *mut c_void {
    (&raw const HIDDEN).cast_mut().cast()
}

/// Replaces the table on top with its proxy.
///
/// # Safety
/// The stack has room for five more values. Allocations cannot fail, or Lua has called the caller, in which nothing has a destructor.
pub(crate) unsafe fn wrap(lua: *mut lua_State) {
    // SAFETY: the table to hide is on top, and four of the five places above it are used at most. Allocations cannot fail.
    unsafe {
        lua_createtable(lua, 0, 0);
        lua_createtable(lua, 0, 3);
        lua_pushvalue(lua, -3);
        set_field(lua, c"__index");
        lua_pushcclosure(lua, refuse_write, 0);
        set_field(lua, c"__newindex");
        lua_pushlightuserdata(lua, hidden_key());
        lua_pushvalue(lua, -4);
        lua_rawset(lua, -3);
        lua_setmetatable(lua, -2);
        lua_remove(lua, -2);
    }
}

/// Replaces a proxy at the positive stack index with the table that it hides. Returns false, and does nothing, for any other value.
///
/// # Safety
/// The stack has room for two more values.
#[inline]
pub(crate) unsafe fn unwrap(lua: *mut lua_State, index: c_int) -> bool {
    // SAFETY: the stack has room for two values: the metatable, and the key, whose place its entry takes.
    unsafe {
        if lua_type(lua, index) != LUA_TTABLE || lua_getmetatable(lua, index) == 0 {
            return false;
        }
        lua_pushlightuserdata(lua, hidden_key());
        lua_rawget_(lua, -2);
        let is_proxy = lua_type(lua, -1) == LUA_TTABLE;
        if is_proxy {
            lua_replace(lua, index);
            lua_pop(lua, 1);
        } else {
            lua_pop(lua, 2);
        }
        is_proxy
    }
}

/// Pops a library's table and adds its proxy to the table of globals under these names. The table of globals lies at the stack
/// index `globals`.
///
/// # Safety
/// As for [`wrap`].
pub(crate) unsafe fn add_library(lua: *mut lua_State, globals: c_int, names: &[&'static CStr]) {
    // SAFETY: the library's table is on top, and the table of globals at `globals`. `wrap` needs more room than the loop, and has
    // it.
    unsafe {
        wrap(lua);
        for name in names {
            lua_pushvalue(lua, globals);
            lua_pushvalue(lua, -2);
            set_field(lua, name);
            lua_pop(lua, 1);
        }
        lua_pop(lua, 1);
    }
}

/// Pops a table and shows it in place of the globals, until [`show_globals`].
///
/// # Safety
/// No script runs, and allocations cannot fail.
pub(crate) unsafe fn show_instead_of_globals(lua: *mut lua_State) {
    // SAFETY: the table to show is on top, and the globals are a proxy, so they have a metatable. No script runs, so the stack
    // has room for it and a key.
    unsafe {
        lua_getmetatable(lua, LUA_GLOBALSINDEX);
        lua_insert(lua, -2);
        set_field(lua, c"__index");
        lua_pop(lua, 1);
    }
}

/// Shows the globals again.
///
/// # Safety
/// As for [`show_instead_of_globals`].
pub(crate) unsafe fn show_globals(lua: *mut lua_State) {
    // SAFETY: the globals are a proxy, and their metatable has the hidden table. No script runs, so the stack has room for both
    // and a key.
    unsafe {
        lua_getmetatable(lua, LUA_GLOBALSINDEX);
        lua_pushlightuserdata(lua, hidden_key());
        lua_rawget_(lua, -2);
        set_field(lua, c"__index");
        lua_pop(lua, 1);
    }
}

/// `__newindex` of proxies.
unsafe extern "C-unwind" fn refuse_write(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, with room for twenty values; nothing with a destructor is alive.
    unsafe { luaL_error(lua, READ_ONLY.as_ptr()) }
}

/// Raises the error of a write to a read-only table, from a function. Unlike that of [`refuse_write`], it does not name the line.
///
/// # Safety
/// Called from a function that Lua called; nothing with a destructor is alive.
pub(crate) unsafe fn raise(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua called the function that calls this, so the stack has room for the message. Nothing there has a destructor when
    // the error is raised.
    unsafe {
        push_bytes(lua, READ_ONLY.to_bytes());
        lua_error(lua)
    }
}
