//! Errors as scripts see them: tables with `err`, and where they were raised.

use std::borrow::Cow;
use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::os::raw::c_int;

use mlua::ffi::*;

use crate::script::stack::{c_bytes, get_field, push_bytes, set_field};

/// Set in an error's table when the error has been counted already.
const COUNTED: &CStr = c"ignore_error_stats_update";

/// Pushes the error table for a text: `-CODE message` keeps its code, anything else gets `ERR`.
///
/// # Safety
/// The stack has room for five more values.
pub(super) unsafe fn push(lua: *mut lua_State, text: &[u8]) {
    let (code, message): (&[u8], &[u8]) = match text.strip_prefix(b"-") {
        None => (b"ERR", text),
        Some(rest) => match memchr::memchr(b' ', rest) {
            None => (b"ERR", rest),
            Some(blank) => (&rest[..blank], &rest[blank + 1..]),
        },
    };
    let is_end = |byte: &u8| matches!(byte, b'\r' | b'\n');
    let first = message.iter().position(|byte| !is_end(byte)).unwrap_or(message.len());
    let end = message.iter().rposition(|byte| !is_end(byte)).map_or(first, |last| last + 1);
    // SAFETY: as promised by the caller. No destructor is pending if Lua runs out of memory.
    unsafe {
        lua_createtable(lua, 0, 1);
        push_bytes(lua, code);
        push_bytes(lua, b" ");
        push_bytes(lua, &message[first..end]);
        lua_concat(lua, 3);
        set_field(lua, c"err");
    }
}

/// Pushes the error table for the error reply of a command, which has been counted.
///
/// # Safety
/// As for [`push`].
pub(super) unsafe fn push_counted(lua: *mut lua_State, text: &[u8]) {
    // SAFETY: as promised by the caller.
    unsafe {
        lua_createtable(lua, 0, 2);
        push_bytes(lua, trimmed(text));
        set_field(lua, c"err");
        lua_pushboolean(lua, 1);
        set_field(lua, COUNTED);
    }
}

/// The error reply of a command as scripts see it: without line ends round it, unless it has a code before them.
pub(super) fn trimmed(text: &[u8]) -> &[u8] {
    if memchr::memchr3(b' ', b'\r', b'\n', text).is_some_and(|at| text[at] == b' ') && !text.ends_with(b"\n") {
        return text;
    }
    let line_end = |byte: &u8| matches!(byte, b'\r' | b'\n');
    let first = text.iter().position(|byte| !line_end(byte)).unwrap_or(text.len());
    let end = text.iter().rposition(|byte| !line_end(byte)).map_or(first, |last| last + 1);
    &text[first..end]
}

/// Raises an error with a text of our own. Nothing with a destructor may be alive in the caller.
///
/// # Safety
/// Called from a C function that Lua called.
pub(super) unsafe fn raise(lua: *mut lua_State, text: &'static str) -> c_int {
    // SAFETY: as promised by the caller.
    unsafe {
        push(lua, text.as_bytes());
        lua_error(lua)
    }
}

/// Makes a table of what was raised, and notes where.
pub(super) unsafe extern "C-unwind" fn locate(lua: *mut lua_State) -> c_int {
    let mut place = MaybeUninit::<lua_Debug>::zeroed();
    // SAFETY: Lua calls this with the error on the stack; `lua_getinfo` fills what it was asked for.
    unsafe {
        // A script may call it too, with any arguments.
        lua_settop(lua, 1);
        let place = place.as_mut_ptr();
        let mut known = lua_getstack(lua, 1, place) != 0 && lua_getinfo(lua, c"nSl".as_ptr(), place) != 0;
        if known && is_c_function((*place).what) {
            // Raised by a C function, such as `error` or `redis.call`: what counts is who called it.
            known = lua_getstack(lua, 2, place) != 0 && lua_getinfo(lua, c"nSl".as_ptr(), place) != 0;
        }
        if lua_type(lua, 1) != LUA_TTABLE {
            lua_createtable(lua, 0, 3);
            push_bytes(lua, b"ERR ");
            luaL_tolstring(lua, 1, std::ptr::null_mut());
            lua_concat(lua, 2);
            set_field(lua, c"err");
            lua_replace(lua, 1);
            lua_settop(lua, 1);
        }
        if known {
            lua_pushstring_(lua, (*place).source);
            lua_setfield(lua, 1, c"source".as_ptr());
            lua_pushnumber(lua, (*place).currentline.into());
            lua_setfield(lua, 1, c"line".as_ptr());
        }
        lua_settop(lua, 1);
    }
    1
}

/// The error function of every run: what [`locate`] does, and what a table says of itself by its metatable it says plainly afterwards,
/// as it is read where no function of a script can be called any more.
pub(super) unsafe extern "C-unwind" fn settle(lua: *mut lua_State) -> c_int {
    // SAFETY: as above; whatever a metatable's functions raise is an error as any other.
    unsafe {
        locate(lua);
        if lua_getmetatable(lua, 1) != 0 {
            lua_createtable(lua, 0, 4);
            for name in [c"err", c"source", c"line", COUNTED] {
                lua_getfield_(lua, 1, name.as_ptr());
                set_field(lua, name);
            }
        }
    }
    1
}

unsafe fn is_c_function(what: *const c_char) -> bool {
    // SAFETY: `lua_getinfo` gave a constant string.
    unsafe { !what.is_null() && CStr::from_ptr(what) == c"C" }
}

/// Line ends at the beginning of an error that a script made, which are shown as blanks; other errors lose them.
pub(super) fn blank_start(text: &[u8]) -> Cow<'_, [u8]> {
    let is_end = |byte: &u8| matches!(byte, b'\r' | b'\n');
    if !text.first().is_some_and(is_end) {
        return text.into();
    }
    let first = text.iter().position(|byte| !is_end(byte)).unwrap_or(text.len());
    [vec![b' '; first].as_slice(), &text[first..]].concat().into()
}

/// What an error comes to as a reply.
pub(super) struct Failure {
    /// The reply, with its code.
    pub text: Vec<u8>,
    /// Whether it has been counted already.
    pub counted: bool,
}

/// Reads the error of a failed run of the script `sha`, which lies on top of the stack.
///
/// # Safety
/// It does, the stack has room for two more values, and allocations cannot fail.
pub(super) unsafe fn read(lua: *mut lua_State, sha: &[u8]) -> Failure {
    // SAFETY: as promised by the caller.
    unsafe {
        if lua_type(lua, -1) != LUA_TTABLE {
            let message = c_bytes(lua, -1).unwrap_or(b"execution failure");
            let text = [b"ERR Error running script ", sha, b", ", &message[..message.len().min(100)]].concat();
            return Failure { text, counted: false };
        }
        let mut text = field(lua, c"err").unwrap_or_else(|| b"ERR unknown error".to_vec());
        if let (Some(source), Some(line)) = (field(lua, c"source"), field(lua, c"line")) {
            for part in [b" script: ", sha, b", on ", &source, b":", &line, b"."] {
                text.extend_from_slice(part);
            }
        }
        Failure { text, counted: is_counted(lua) }
    }
}

/// Whether the error in the table on top has been counted.
///
/// # Safety
/// As for [`read`].
pub(super) unsafe fn is_counted(lua: *mut lua_State) -> bool {
    // SAFETY: as promised by the caller.
    unsafe {
        get_field(lua, -1, COUNTED);
        let counted = lua_type(lua, -1) == LUA_TBOOLEAN && lua_toboolean(lua, -1) != 0;
        lua_pop(lua, 1);
        counted
    }
}

/// A field of the table on top as a string, numbers included, as far as C reads it.
unsafe fn field(lua: *mut lua_State, name: &'static CStr) -> Option<Vec<u8>> {
    // SAFETY: as for `read`; the bytes are copied before their string is popped.
    unsafe {
        get_field(lua, -1, name);
        let value = if lua_isstring(lua, -1) != 0 { c_bytes(lua, -1).map(<[u8]>::to_vec) } else { None };
        lua_pop(lua, 1);
        value
    }
}
