//! `load` and `loadstring`: the compiler, called by a script.

use std::ffi::c_char;
use std::os::raw::{c_int, c_void};

use mlua::ffi::*;

use crate::script::fuel;
use crate::script::globals::pcall::rethrow_if_killed;
use crate::script::interpreter::Interpreter;
use crate::script::lua::stack::bytes;

/// Maximum number of bytes of source text that the compiler receives at once. Each piece consumes fuel.
const PIECE_MAX: usize = 16 << 10;

// SAFETY of the functions below: Lua calls them, with room for twenty values beyond their arguments, and with the upvalues that
// `install` has given them. They own nothing that has a destructor.

/// `loadstring(text [, name])`
pub(super) unsafe extern "C-unwind" fn loadstring(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, and argument 1 is checked to be a string, which stays on the stack while it is read. `pieces` lives
    // until `lua_load` returns, and has no destructor.
    unsafe {
        luaL_checklstring(lua, 1, std::ptr::null_mut());
        let text = bytes(lua, 1).unwrap_or_default();
        let name = luaL_optlstring(lua, 2, text.as_ptr().cast(), std::ptr::null_mut());
        let mut pieces = SourcePieces { begun: false, text, reads_more: false };
        push_loaded(lua, lua_load(lua, SourcePieces::read, (&raw mut pieces).cast(), name))
    }
}

/// `load(function [, name])`
pub(super) unsafe extern "C-unwind" fn load(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, and argument 1 is checked to be a function. `lua_settop` makes index 3 the place of its results,
    // and `pieces`, which has no destructor, lives until `lua_load` returns.
    unsafe {
        let name = luaL_optlstring(lua, 2, c"=(load)".as_ptr(), std::ptr::null_mut());
        luaL_checktype(lua, 1, LUA_TFUNCTION);
        lua_settop(lua, 3);
        let mut pieces = SourcePieces { begun: false, text: b"", reads_more: true };
        push_loaded(lua, lua_load(lua, SourcePieces::read, (&raw mut pieces).cast(), name))
    }
}

/// Source text for the compiler. It begins with a blank, so that bytecode is a syntax error. The text follows in pieces of at most
/// [`PIECE_MAX`] bytes.
struct SourcePieces<'a> {
    begun: bool,
    /// The rest of the text.
    text: &'a [u8],
    /// Whether the function at stack index 1 provides more text.
    reads_more: bool,
}

impl SourcePieces<'_> {
    /// Gives Lua the next piece (`lua_Reader`).
    unsafe extern "C-unwind" fn read(lua: *mut lua_State, pieces: *mut c_void, size: *mut usize) -> *const c_char {
        // SAFETY: called by `lua_load` on behalf of `load` and `loadstring`, in their frame. The result of the function stays at
        // index 3 until its next result.
        unsafe {
            let pieces = &mut *pieces.cast::<SourcePieces>();
            if !std::mem::replace(&mut pieces.begun, true) {
                *size = 1;
                return c" ".as_ptr();
            }
            if pieces.reads_more && pieces.text.is_empty() {
                luaL_checkstack_(lua, 2, c"too many nested functions".as_ptr());
                lua_pushvalue(lua, 1);
                lua_call(lua, 0, 1);
                match lua_type(lua, -1) {
                    LUA_TNIL => pieces.reads_more = false,
                    LUA_TSTRING | LUA_TNUMBER => {
                        lua_replace(lua, 3);
                        pieces.text = bytes(lua, 3).unwrap_or_default();
                        // As in Lua, an empty piece is the end.
                        pieces.reads_more = !pieces.text.is_empty();
                    }
                    _ => {
                        luaL_error(lua, c"reader function must return a string".as_ptr());
                    }
                }
            }
            let (piece, rest) = pieces.text.split_at(pieces.text.len().min(PIECE_MAX));
            pieces.text = rest;
            fuel::consume(lua, Interpreter::of(lua), piece.len() as u64);
            *size = piece.len();
            piece.as_ptr().cast()
        }
    }
}

/// Pushes the results of `load` and `loadstring`: the function, or nil and a message.
unsafe fn push_loaded(lua: *mut lua_State, status: c_int) -> c_int {
    // SAFETY: `lua_load` has left the function or the message on top, and the stack has room for a nil. Nothing in the callers
    // has a destructor when the error of a killed script is raised.
    unsafe {
        rethrow_if_killed(lua, Interpreter::of(lua));
        if status == LUA_OK {
            return 1;
        }
        lua_pushnil(lua);
        lua_insert(lua, -2);
        2
    }
}
