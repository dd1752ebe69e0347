//! The compilation of scripts.

use std::ffi::c_char;
use std::os::raw::{c_int, c_void};
use std::ptr;

use mlua::ffi::*;

use crate::script::interpreter::function::Function;
use crate::script::interpreter::locals::{self, Locals};
use crate::script::interpreter::state::{ERROR_FUNCTION, Interpreter};
use crate::script::lua::stack::bytes;

impl Interpreter {
    /// Compiles a script. The error is Lua's message.
    ///
    /// # Safety
    /// `this` is valid and no script runs on it.
    pub(crate) unsafe fn compile(this: *mut Interpreter, script: &[u8]) -> Result<Function, Vec<u8>> {
        let locals = Locals::of(script);
        let sets_globals = locals.is_none() || locals::may_read_globals(script);
        let prefix = locals.map_or_else(|| b" ".to_vec(), Locals::prefix);
        // SAFETY: no script runs, and allocations fail only inside of `load_source`, so Lua raises no error in this function. The
        // message is copied before it is popped.
        unsafe {
            let lua = (*this).lua;
            let mut function = Function { reference: 0, locals, sets_globals, reuses_tables: true };
            if Self::load_source(this, [&prefix, script]) != LUA_OK {
                lua_settop(lua, ERROR_FUNCTION);
                // The additional locals may be too many for Lua: the script must compile without them.
                if Self::load_source(this, [b" ", script]) != LUA_OK {
                    let message = bytes(lua, -1).unwrap_or_default().to_vec();
                    lua_settop(lua, ERROR_FUNCTION);
                    return Err(message);
                }
                function = Function { locals: None, sets_globals: true, ..function };
            }
            function.reference = luaL_ref(lua, LUA_REGISTRYINDEX);
            Ok(function)
        }
    }

    /// Compiles a source and pushes the function, or the error message.
    unsafe fn load_source(this: *mut Interpreter, pieces: [&[u8]; 2]) -> c_int {
        let mut source = Source::new(pieces);
        // SAFETY: as for `compile`; `lua_load` is protected, so allocations may fail in it.
        unsafe {
            (*this).memory.may_fail = true;
            let status = lua_load((*this).lua, Source::read, (&raw mut source).cast(), c"@user_script".as_ptr());
            (*this).memory.may_fail = false;
            status
        }
    }

    /// Releases a compiled script or a function, so that the garbage collector can free it.
    ///
    /// # Safety
    /// As for [`Interpreter::compile`]; the function came from this interpreter.
    pub(crate) unsafe fn release(this: *mut Interpreter, function: Function) {
        // SAFETY: the function came from this interpreter, so its reference is one of the registry, and no script runs.
        unsafe { luaL_unref((*this).lua, LUA_REGISTRYINDEX, function.reference) }
    }
}

/// Source text for `lua_load`, in two pieces. The first piece is never empty and never begins with the first byte of bytecode, so
/// bytecode is a syntax error.
pub(crate) struct Source {
    pieces: [(*const u8, usize); 2],
    next: usize,
}

impl Source {
    pub(crate) fn new(pieces: [&[u8]; 2]) -> Self {
        Source { pieces: pieces.map(|piece| (piece.as_ptr(), piece.len())), next: 0 }
    }

    /// Gives Lua the next piece (`lua_Reader`).
    pub(crate) unsafe extern "C-unwind" fn read(_: *mut lua_State, source: *mut c_void, size: *mut usize) -> *const c_char {
        // SAFETY: `lua_load` passes on the source it was given and a place for the size. The pieces live as long as it runs.
        unsafe {
            let source = source.cast::<Source>();
            let (text, len) = (*source).pieces.get((*source).next).copied().unwrap_or((ptr::null(), 0));
            (*source).next += 1;
            *size = len;
            text.cast()
        }
    }
}
