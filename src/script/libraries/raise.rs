//! Errors inside nested values. The Lua stack may be full there, so it is emptied before the message is pushed.

use std::ffi::CStr;
use std::os::raw::c_int;

use mlua::ffi::*;

/// Raises an error. Its message begins with the source and line of the call.
///
/// # Safety
/// Called from a function that Lua called. Nothing with a destructor is alive.
pub(super) unsafe fn raise(lua: *mut lua_State, text: &'static CStr) -> ! {
    // SAFETY: Lua called the function that calls this, so the emptied stack has room for the message. Nothing there has a
    // destructor.
    unsafe {
        lua_settop(lua, 0);
        luaL_where(lua, 1);
        lua_pushstring_(lua, text.as_ptr());
        lua_concat(lua, 2);
        lua_error(lua)
    }
}

/// As [`raise`], for a message with up to two numbers, written `%d`.
///
/// # Safety
/// As for [`raise`]. The format has no other conversions.
pub(super) unsafe fn raise_numbers(lua: *mut lua_State, format: &'static CStr, first: c_int, second: c_int) -> ! {
    // SAFETY: Lua called the function that calls this, so the emptied stack has room for the message. The format takes no more
    // than the two numbers, and nothing in that function has a destructor.
    unsafe {
        lua_settop(lua, 0);
        luaL_where(lua, 1);
        lua_pushfstring(lua, format.as_ptr(), first, second);
        lua_concat(lua, 2);
        lua_error(lua)
    }
}

/// Makes room for `values` more values on the stack, or raises an error with `text`.
///
/// # Safety
/// As for [`raise`].
#[inline]
pub(super) unsafe fn ensure_stack(lua: *mut lua_State, values: c_int, text: &'static CStr) {
    // SAFETY: Lua called the function that calls this, so the emptied stack has room for the message. Nothing there has a
    // destructor when the error is raised.
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
