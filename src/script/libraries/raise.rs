//! Errors from within nested values: the Lua stack may be full there, so it is emptied before a message is put on it.

use std::ffi::CStr;
use std::os::raw::c_int;

use mlua::ffi::*;

/// Raises an error with the place of the call.
///
/// # Safety
/// Called from a function that Lua called, where nothing with a destructor is alive.
pub(super) unsafe fn raise(lua: *mut lua_State, text: &'static CStr) -> ! {
    // SAFETY: as promised.
    unsafe {
        lua_settop(lua, 0);
        luaL_where(lua, 1);
        lua_pushstring_(lua, text.as_ptr());
        lua_concat(lua, 2);
        lua_error(lua)
    }
}

/// Raises an error with two numbers in it, written `%d`.
///
/// # Safety
/// As for [`raise`]; the format has no more than those.
pub(super) unsafe fn raise_numbers(lua: *mut lua_State, format: &'static CStr, first: c_int, second: c_int) -> ! {
    // SAFETY: as promised.
    unsafe {
        lua_settop(lua, 0);
        luaL_where(lua, 1);
        lua_pushfstring(lua, format.as_ptr(), first, second);
        lua_concat(lua, 2);
        lua_error(lua)
    }
}

/// Makes sure that the stack has room for so many values more; `text` says for what.
///
/// # Safety
/// As for [`raise`].
#[inline]
pub(super) unsafe fn ensure_stack(lua: *mut lua_State, values: c_int, text: &'static CStr) {
    // SAFETY: as promised.
    unsafe {
        if lua_checkstack(lua, values) == 0 {
            lua_settop(lua, 0);
            luaL_where(lua, 1);
            lua_pushfstring(lua, c"stack overflow (%s)".as_ptr(), text.as_ptr());
            lua_concat(lua, 2);
            lua_error(lua);
        }
    }
}
