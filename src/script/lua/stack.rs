//! Helpers for the Lua stack.

use std::ffi::CStr;
use std::os::raw::c_int;

use mlua::ffi::*;

/// Pushes bytes as a string.
///
/// # Safety
/// The stack has room for one value.
#[inline]
pub(crate) unsafe fn push_bytes(lua: *mut lua_State, bytes: &[u8]) {
    // SAFETY: the pointer is valid for the length; an empty slice's pointer is not read.
    unsafe { lua_pushlstring_(lua, bytes.as_ptr().cast(), bytes.len()) }
}

/// The bytes of the string at `index`. A number at `index` is converted to a string in place. `None` for other types.
///
/// # Safety
/// The index is valid, and the string stays on the stack or in a table as long as the bytes are used.
#[inline]
pub(crate) unsafe fn bytes<'a>(lua: *mut lua_State, index: c_int) -> Option<&'a [u8]> {
    let mut len = 0;
    // SAFETY: the caller keeps the string; its bytes do not move while it is there.
    unsafe {
        let text = lua_tolstring(lua, index, &mut len);
        if text.is_null() { None } else { Some(std::slice::from_raw_parts(text.cast(), len)) }
    }
}

/// The string argument at `index`. A number is converted to a string in place. Raises an error for other types.
///
/// # Safety
/// Called from a C function that Lua called; nothing with a destructor is alive. The string stays on the stack as long as the
/// bytes are used.
#[inline]
pub(crate) unsafe fn check_string<'a>(lua: *mut lua_State, index: c_int) -> &'a [u8] {
    // SAFETY: as promised.
    unsafe {
        let mut len = 0;
        let text = luaL_checklstring(lua, index, &mut len);
        std::slice::from_raw_parts(text.cast(), len)
    }
}

/// As [`bytes()`], but only up to the first NUL, as C reads the string.
///
/// # Safety
/// As for [`bytes()`].
pub(crate) unsafe fn c_bytes<'a>(lua: *mut lua_State, index: c_int) -> Option<&'a [u8]> {
    // SAFETY: as promised by the caller.
    let all = unsafe { bytes(lua, index) }?;
    Some(&all[..memchr::memchr(0, all).unwrap_or(all.len())])
}

/// Pops a value and sets `table[name]` to it, without metamethods. The table lies below the value.
///
/// # Safety
/// A value lies on top and a table below it. The stack has room for one more value.
pub(crate) unsafe fn set_field(lua: *mut lua_State, name: &'static CStr) {
    // SAFETY: a table lies below the value on top, and the stack has room for the key, which goes under the value.
    unsafe {
        push_bytes(lua, name.to_bytes());
        lua_insert(lua, -2);
        lua_rawset(lua, -3);
    }
}

/// Pushes `table[name]`, read without metamethods. The table lies at `index`.
///
/// # Safety
/// A table lies at `index`. The stack has room for one more value.
pub(crate) unsafe fn get_field(lua: *mut lua_State, index: c_int, name: &'static CStr) {
    // SAFETY: a table lies at the index, which shifts by the key if it is relative. The stack has room for the key, whose place
    // the value takes.
    unsafe {
        push_bytes(lua, name.to_bytes());
        lua_rawget_(lua, if index < 0 && index > LUA_REGISTRYINDEX { index - 1 } else { index });
    }
}
