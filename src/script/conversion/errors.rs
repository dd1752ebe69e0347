//! Errors as scripts see them: tables with the field `err`, and the line that raised them.

use std::borrow::Cow;
use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::os::raw::c_int;

use mlua::ffi::*;

use crate::script::lua::stack::{c_bytes, get_field, push_bytes, set_field};

/// The field of an error table that says that the error has been counted in the statistics.
const COUNTED: &CStr = c"ignore_error_stats_update";

fn is_line_end(byte: &u8) -> bool {
    matches!(byte, b'\r' | b'\n')
}

/// The text without line ends at its beginning and end.
fn strip_line_ends(text: &[u8]) -> &[u8] {
    let first = text.iter().position(|byte| !is_line_end(byte)).unwrap_or(text.len());
    let end = text.iter().rposition(|byte| !is_line_end(byte)).map_or(first, |last| last + 1);
    &text[first..end]
}

/// Pushes the error table for a text. `-CODE message` keeps its code; any other text gets the code `ERR`.
///
/// # Safety
/// The stack has room for five more values.
pub(crate) unsafe fn push(lua: *mut lua_State, text: &[u8]) {
    let (code, message): (&[u8], &[u8]) = match text.strip_prefix(b"-") {
        None => (b"ERR", text),
        Some(rest) => match memchr::memchr(b' ', rest) {
            None => (b"ERR", rest),
            Some(blank) => (&rest[..blank], &rest[blank + 1..]),
        },
    };
    // SAFETY: the stack has room for five more values, and at most four are pushed. Nothing here has a destructor if Lua runs out
    // of memory.
    unsafe {
        lua_createtable(lua, 0, 1);
        push_bytes(lua, code);
        push_bytes(lua, b" ");
        push_bytes(lua, strip_line_ends(message));
        lua_concat(lua, 3);
        set_field(lua, c"err");
    }
}

/// Pushes the error table for a command's error reply, which has been counted.
///
/// # Safety
/// The stack has room for three more values. Lua has called the caller, or allocations cannot fail.
pub(crate) unsafe fn push_counted(lua: *mut lua_State, text: &[u8]) {
    // SAFETY: the stack has room for the table, a key and a value. Nothing here has a destructor if Lua runs out of memory.
    unsafe {
        lua_createtable(lua, 0, 2);
        push_bytes(lua, without_line_ends(text));
        set_field(lua, c"err");
        lua_pushboolean(lua, 1);
        set_field(lua, COUNTED);
    }
}

/// A command's error reply as scripts see it: without line ends at its beginning and end. A text with a blank before its first line
/// end, and without a line feed at its end, is returned as it is.
pub(crate) fn without_line_ends(text: &[u8]) -> &[u8] {
    if memchr::memchr3(b' ', b'\r', b'\n', text).is_some_and(|at| text[at] == b' ') && !text.ends_with(b"\n") {
        return text;
    }
    strip_line_ends(text)
}

/// Raises an error. Nothing with a destructor may be alive in the caller.
///
/// # Safety
/// Called from a C function that Lua called.
pub(crate) unsafe fn raise(lua: *mut lua_State, text: &'static str) -> c_int {
    // SAFETY: Lua called the C function that calls this, so the stack has room for the error. Nothing here has a destructor when
    // it is raised.
    unsafe {
        push(lua, text.as_bytes());
        lua_error(lua)
    }
}

/// The global `__redis__err__handler`: turns an error into a table, and adds the source and line that raised it.
pub(crate) unsafe extern "C-unwind" fn error_handler(lua: *mut lua_State) -> c_int {
    let mut place = MaybeUninit::<lua_Debug>::zeroed();
    // SAFETY: Lua calls this with the error on the stack; `lua_getinfo` fills what it was asked for.
    unsafe {
        // A script may call this too, with any arguments.
        lua_settop(lua, 1);
        let place = place.as_mut_ptr();
        let mut known = lua_getstack(lua, 1, place) != 0 && lua_getinfo(lua, c"nSl".as_ptr(), place) != 0;
        if known && is_c_function((*place).what) {
            // A C function such as `error` or `redis.call` raised it: the place is that of its caller.
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

/// The message handler of every run (`errfunc` of `lua_pcall`): [`error_handler`], and then a copy of the fields that a metatable
/// provides. The error is read after the run, when no function of the script can be called any more.
pub(crate) unsafe extern "C-unwind" fn message_handler(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this with the error at index 1, and with room for twenty values. Nothing here has a destructor when a
    // function of the metatable raises an error.
    unsafe {
        error_handler(lua);
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

/// The text of an error with blanks in place of line ends at its beginning. Only a script can make such an error; errors of
/// commands lose those line ends.
pub(crate) fn blank_leading_line_ends(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.first().is_some_and(is_line_end) {
        return text.into();
    }
    let first = text.iter().position(|byte| !is_line_end(byte)).unwrap_or(text.len());
    [vec![b' '; first].as_slice(), &text[first..]].concat().into()
}

/// The error reply of a failed run.
pub(crate) struct ScriptError {
    /// The reply, with its code.
    pub text: Vec<u8>,
    /// Whether the error has been counted.
    pub counted: bool,
}

/// Reads the error of a failed run from the top of the stack. `sha` identifies the script in the text.
///
/// # Safety
/// The error is there, the stack has room for two more values, and allocations cannot fail.
pub(crate) unsafe fn read(lua: *mut lua_State, sha: &[u8]) -> ScriptError {
    // SAFETY: the error is on top of the stack, with room for a field above it, and its bytes are copied while it is there.
    // Allocations cannot fail, so Lua raises nothing and all destructors run.
    unsafe {
        if lua_type(lua, -1) != LUA_TTABLE {
            let message = c_bytes(lua, -1).unwrap_or(b"execution failure");
            let text = [b"ERR Error running script ", sha, b", ", &message[..message.len().min(100)]].concat();
            return ScriptError { text, counted: false };
        }
        let mut text = field(lua, c"err").unwrap_or_else(|| b"ERR unknown error".to_vec());
        if let (Some(source), Some(line)) = (field(lua, c"source"), field(lua, c"line")) {
            for part in [b" script: ", sha, b", on ", &source, b":", &line, b"."] {
                text.extend_from_slice(part);
            }
        }
        ScriptError { text, counted: is_counted(lua) }
    }
}

/// Whether the error in the table on top has been counted.
///
/// # Safety
/// As for [`read`].
pub(crate) unsafe fn is_counted(lua: *mut lua_State) -> bool {
    // SAFETY: the error on top is a table, and the stack has room for the field above it.
    unsafe {
        get_field(lua, -1, COUNTED);
        let counted = lua_type(lua, -1) == LUA_TBOOLEAN && lua_toboolean(lua, -1) != 0;
        lua_pop(lua, 1);
        counted
    }
}

/// A field of the table on top that is a string or a number, up to the first NUL.
unsafe fn field(lua: *mut lua_State, name: &'static CStr) -> Option<Vec<u8>> {
    // SAFETY: as for `read`; the bytes are copied before their string is popped.
    unsafe {
        get_field(lua, -1, name);
        let value = if lua_isstring(lua, -1) != 0 { c_bytes(lua, -1).map(<[u8]>::to_vec) } else { None };
        lua_pop(lua, 1);
        value
    }
}
