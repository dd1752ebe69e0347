//! `string.format`.

use std::os::raw::c_int;

use mlua::ffi::*;

use crate::script::libraries::writer::{PIECE, Writer};
use crate::script::lua::stack::{bytes, check_string, push_bytes};

/// Up to this number of bytes in all arguments, Lua's own `format` is used, because it is fast enough.
const SMALL: usize = 64 << 10;
/// Maximum number of characters in the flags, width and precision of a field. Lua accepts fewer.
const FIELD_MAX: usize = 16;

// SAFETY of the functions below: Lua calls `format`, with room for twenty values beyond its arguments and with the interpreter as
// its first upvalue, while a script runs. Nothing has a destructor.

/// `string.format(format, …)`
pub(super) unsafe extern "C-unwind" fn format(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, with Lua's own `format` as second upvalue. That is a C function without upvalues, so it can run in
    // this frame.
    unsafe {
        let Some(original) = lua_tocfunction(lua, lua_upvalueindex(2)) else { return 0 };
        let bytes = |index| if lua_type(lua, index) == LUA_TSTRING { lua_objlen(lua, index) } else { 0 };
        if (1..=lua_gettop(lua)).map(bytes).sum::<usize>() <= SMALL {
            return original(lua);
        }
        format_large(lua, original)
    }
}

/// As Lua's own `format`. Text and plain strings are written here; fields with a width, and numbers, are formatted by Lua's own.
unsafe fn format_large(lua: *mut lua_State, original: lua_CFunction) -> c_int {
    // SAFETY: `format` calls this in its frame. The format and its arguments stay on the stack while they are written, and
    // nothing has a destructor when an error is raised.
    unsafe {
        let last = lua_gettop(lua);
        let mut rest = check_string(lua, 1);
        let out = Writer::new(lua);
        let mut argument = 1;
        while let Some(at) = memchr::memchr(b'%', rest) {
            out.put_pieces(&rest[..at]);
            rest = &rest[at + 1..];
            if rest.first() == Some(&b'%') {
                out.byte(b'%');
                rest = &rest[1..];
                continue;
            }
            argument += 1;
            if argument > last {
                return luaL_argerror(lua, argument, c"no value".as_ptr());
            }
            // Flags, width and precision. Lua's own refuses a field that is too long.
            let field = rest.iter().take_while(|byte| b"-+ #0123456789.".contains(byte)).count().min(FIELD_MAX);
            let (field, letter) = (&rest[..field], rest.get(field).copied().unwrap_or(0));
            match letter {
                b'q' if field.is_empty() => put_quoted(out, check_string(lua, argument)),
                b's' if field.is_empty() && check_string(lua, argument).len() >= 100 => {
                    out.put_pieces(check_string(lua, argument))
                }
                _ => {
                    check_argument(lua, argument, letter);
                    let field = &rest[..(field.len() + 1).min(rest.len())];
                    put_formatted(lua, out, original, field, argument);
                }
            }
            rest = rest.get(field.len() + 1..).unwrap_or_default();
        }
        out.put_pieces(rest);
        out.push();
        1
    }
}

/// Raises an error if an argument has the wrong type for a field with this letter.
unsafe fn check_argument(lua: *mut lua_State, argument: c_int, letter: u8) {
    // SAFETY: `format` is the function that Lua called, and nothing in its frames has a destructor when the argument is of
    // another type.
    unsafe {
        match letter {
            b's' | b'q' => {
                check_string(lua, argument);
            }
            b'c' | b'd' | b'i' | b'o' | b'u' | b'x' | b'X' | b'e' | b'E' | b'f' | b'g' | b'G' => {
                luaL_checknumber(lua, argument);
            }
            _ => {}
        }
    }
}

/// Writes one field, which Lua's own `format` formats. `field` has its flags, width, precision and letter.
unsafe fn put_formatted(lua: *mut lua_State, out: Writer, original: lua_CFunction, field: &[u8], argument: c_int) {
    // SAFETY: the stack has room for three values beyond the arguments, and the result stays there while it is written. Nothing
    // has a destructor when an error is raised.
    unsafe {
        lua_pushcclosure(lua, original, 0);
        push_bytes(lua, b"%");
        push_bytes(lua, field);
        lua_concat(lua, 2);
        lua_pushvalue(lua, argument);
        let status = lua_pcall(lua, 2, 1, 0);
        if status != LUA_OK {
            if status == LUA_ERRRUN {
                // The message names no place in the script, because the function was called from here.
                luaL_where(lua, 1);
                lua_insert(lua, -2);
                lua_concat(lua, 2);
            }
            lua_error(lua);
        }
        out.put(bytes(lua, -1).unwrap_or_default());
        lua_pop(lua, 1);
    }
}

/// Writes a string as a literal in a Lua source (`%q`).
unsafe fn put_quoted(out: Writer, text: &[u8]) {
    // SAFETY: `text` is an argument, which stays on the stack while it is written. Nothing has a destructor when the writer
    // raises an error.
    unsafe {
        out.byte(b'"');
        let mut rest = text;
        while !rest.is_empty() {
            let piece = &rest[..rest.len().min(PIECE)];
            let Some(at) = piece.iter().position(|byte| matches!(byte, b'"' | b'\\' | b'\n' | b'\r' | 0)) else {
                out.put(piece);
                rest = &rest[piece.len()..];
                continue;
            };
            out.put(&rest[..at]);
            match rest[at] {
                b'\r' => out.put(b"\\r"),
                0 => out.put(b"\\000"),
                byte => out.put(&[b'\\', byte]),
            }
            rest = &rest[at + 1..];
        }
        out.byte(b'"');
    }
}
