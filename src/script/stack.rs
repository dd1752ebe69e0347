//! Small steps on the Lua stack that the modules here share.

use std::ffi::CStr;
use std::os::raw::c_int;

use mlua::ffi::*;

/// Pushes a string of bytes.
///
/// # Safety
/// The stack has room for it.
#[inline]
pub(super) unsafe fn push_bytes(lua: *mut lua_State, bytes: &[u8]) {
    // SAFETY: the pointer is valid for the length; an empty slice's pointer is not read.
    unsafe { lua_pushlstring_(lua, bytes.as_ptr().cast(), bytes.len()) }
}

/// The bytes of a string, which live as long as the string does. A number is made a string in its place.
///
/// # Safety
/// The index is valid, and the string is kept on the stack or in a table for as long as the bytes are used.
#[inline]
pub(super) unsafe fn bytes<'a>(lua: *mut lua_State, index: c_int) -> Option<&'a [u8]> {
    let mut len = 0;
    // SAFETY: the caller keeps the string; its bytes do not move while it is there.
    unsafe {
        let text = lua_tolstring(lua, index, &mut len);
        if text.is_null() { None } else { Some(std::slice::from_raw_parts(text.cast(), len)) }
    }
}

/// As [`bytes`], for an index that holds a string or nothing: up to the first NUL, as C reads it.
///
/// # Safety
/// As for [`bytes`].
pub(super) unsafe fn c_bytes<'a>(lua: *mut lua_State, index: c_int) -> Option<&'a [u8]> {
    // SAFETY: as promised by the caller.
    let all = unsafe { bytes(lua, index) }?;
    Some(&all[..memchr::memchr(0, all).unwrap_or(all.len())])
}

/// `table[name] = value` without metamethods, for the value on top and the table under it.
///
/// # Safety
/// There are such values, and room for one more.
pub(super) unsafe fn set_field(lua: *mut lua_State, name: &'static CStr) {
    // SAFETY: as promised; the key goes under the value.
    unsafe {
        push_bytes(lua, name.to_bytes());
        lua_insert(lua, -2);
        lua_rawset(lua, -3);
    }
}

/// Pushes `table[name]` without metamethods, for the table at `index`.
///
/// # Safety
/// There is a table, and room for one more value.
pub(super) unsafe fn get_field(lua: *mut lua_State, index: c_int, name: &'static CStr) {
    // SAFETY: as promised; a relative index shifts by the key.
    unsafe {
        push_bytes(lua, name.to_bytes());
        lua_rawget_(lua, if index < 0 && index > LUA_REGISTRYINDEX { index - 1 } else { index });
    }
}

/// `table[name] = function` for the table on top; the function finds the interpreter by [`super::interpreter::Interpreter::of`].
///
/// # Safety
/// There is a table, and room for three more values; the interpreter outlives the state.
pub(super) unsafe fn set_function(
    lua: *mut lua_State,
    interpreter: *mut super::interpreter::Interpreter,
    name: &'static CStr,
    function: lua_CFunction,
) {
    // SAFETY: as promised.
    unsafe {
        lua_pushlightuserdata(lua, interpreter.cast());
        lua_pushcclosure(lua, function, 1);
        set_field(lua, name);
    }
}
