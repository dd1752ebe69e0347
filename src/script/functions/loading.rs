//! Loads a library: runs its source once.
//!
//! While it runs, the globals are a table that contains only a small `redis` table with `register_function`. Functions see the
//! ordinary globals. Neither can be modified, so a library shares data between its functions in local variables, which other
//! libraries cannot reach.

use std::collections::BTreeMap;
use std::os::raw::c_void;
use std::ptr::NonNull;

use mlua::ffi::*;

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::Engine;
use crate::script::fuel;
use crate::script::functions::load_context::{LoadContext, RegisteredFunction};
use crate::script::functions::register::register_function;
use crate::script::globals::base::forbid_missing;
use crate::script::globals::{ERROR_HANDLER, read_only};
use crate::script::interpreter::frame::Frame;
use crate::script::interpreter::{GLOBALS, Interpreter, REDIS, Source};
use crate::script::lua::stack::{c_bytes, get_field, set_field};

/// Its address is the registry key of the globals of loading libraries.
static LIBRARY_GLOBALS: u8 = 0;

fn library_globals_key() -> *mut c_void {
    (&raw const LIBRARY_GLOBALS).cast_mut().cast()
}

/// What a loading library can reach: the engine, whose supervisor decides whether the library may continue, and the session that
/// loads it. Without an engine there is no supervisor.
#[derive(Clone, Copy)]
pub(super) struct LoadEnvironment {
    pub engine: *mut Engine,
    pub now: Now,
    pub session: SessionId,
}

impl LoadEnvironment {
    pub(super) fn without_engine() -> Self {
        LoadEnvironment { engine: std::ptr::null_mut(), now: Now::default(), session: SessionId::new(0, 0) }
    }
}

/// Creates an interpreter for functions. Free it with [`Interpreter::free`].
pub(super) fn create(memory_limit: usize) -> NonNull<Interpreter> {
    let interpreter = Interpreter::create(memory_limit);
    let this = interpreter.as_ptr();
    // SAFETY: nothing runs on it, allocations cannot fail, and at most ten values are on the stack.
    unsafe {
        let lua = (*this).lua;
        lua_rawgeti_(lua, LUA_REGISTRYINDEX, GLOBALS);
        lua_pushnil(lua);
        set_field(lua, ERROR_HANDLER);
        lua_pop(lua, 1);
        lua_pushlightuserdata(lua, library_globals_key());
        lua_createtable(lua, 0, 1);
        lua_createtable(lua, 0, 8);
        let library = lua_gettop(lua);
        lua_rawgeti_(lua, LUA_REGISTRYINDEX, REDIS);
        for name in [c"breakpoint", c"debug", c"replicate_commands"] {
            lua_pushnil(lua);
            set_field(lua, name);
        }
        for name in [c"log", c"LOG_DEBUG", c"LOG_VERBOSE", c"LOG_NOTICE", c"LOG_WARNING", c"REDIS_VERSION", c"REDIS_VERSION_NUM"]
        {
            lua_pushvalue(lua, library);
            get_field(lua, library + 1, name);
            set_field(lua, name);
            lua_pop(lua, 1);
        }
        lua_pop(lua, 1);
        Interpreter::set_function(lua, this, c"register_function", register_function);
        forbid_missing(lua, this);
        read_only::wrap(lua);
        set_field(lua, c"redis");
        forbid_missing(lua, this);
        lua_rawset(lua, LUA_REGISTRYINDEX);
        Interpreter::finish(this);
    }
    interpreter
}

/// Runs a library's source. Returns the functions that it has registered, or the text of the error.
///
/// # Safety
/// The interpreter is valid, came from [`create`], and runs nothing. The environment's engine is null, or is reached through the
/// environment only until this returns.
pub(super) unsafe fn load(
    this: *mut Interpreter,
    environment: LoadEnvironment,
    body: &[u8],
) -> Result<BTreeMap<Vec<u8>, RegisteredFunction>, Vec<u8>> {
    // SAFETY: the interpreter came from `create`, so its registry has the globals of libraries, and it runs nothing. Allocations
    // fail only inside of the protected calls.
    unsafe {
        (*this).frame = Frame::new(environment.engine, environment.now, environment.session, 0);
        (*this).frame.is_function = true;
        let lua = (*this).lua;
        (*this).load = Some(LoadContext::default());
        lua_pushlightuserdata(lua, library_globals_key());
        lua_rawget_(lua, LUA_REGISTRYINDEX);
        read_only::show_instead_of_globals(lua);

        // The body begins with a line feed, so it is not bytecode.
        let mut source = Source::new([body, b""]);
        (*this).memory.may_fail = true;
        let compiled = lua_load(lua, Source::read, (&raw mut source).cast(), c"@user_function".as_ptr());
        let mut status = compiled;
        if compiled == LUA_OK {
            fuel::arm_hook(lua);
            ((*this).memory.thread, (*this).memory.largest) = (lua, 0);
            status = lua_pcall(lua, 0, 0, 0);
            lua_sethook(lua, None, 0, 0);
            (*this).memory.thread = std::ptr::null_mut();
        }
        (*this).frame.engine = std::ptr::null_mut();
        (*this).memory.may_fail = false;

        let context = (*this).load.take().unwrap_or_default();
        let result = if status == LUA_OK {
            Ok(context.functions)
        } else {
            for registered in context.functions.values() {
                Interpreter::release(this, registered.function);
            }
            let before: &[u8] = if compiled == LUA_OK { b"Error registering functions: " } else { b"Error compiling function: " };
            Err([b"ERR ", before, &message(lua, compiled == LUA_OK)].concat())
        };
        if status == LUA_ERRMEM {
            lua_gc(lua, LUA_GCCOLLECT, 0);
        }
        read_only::show_globals(lua);
        Interpreter::finish(this);
        (*this).memory.relax_collection(lua);
        result
    }
}

/// The text of the error on top. One that was raised has a code; one of the compiler has none.
unsafe fn message(lua: *mut lua_State, raised: bool) -> Vec<u8> {
    // SAFETY: called by `load`. Bytes are copied while their string is on the stack.
    unsafe {
        if lua_isstring(lua, -1) != 0 {
            let text = c_bytes(lua, -1).unwrap_or_default();
            return if raised { [b"ERR ", text].concat() } else { text.to_vec() };
        }
        if lua_type(lua, -1) == LUA_TTABLE {
            get_field(lua, -1, c"err");
            if lua_isstring(lua, -1) != 0 {
                return c_bytes(lua, -1).unwrap_or_default().to_vec();
            }
        }
        b"ERR unknown error".to_vec()
    }
}
