//! Functions that catch errors: `pcall`, `xpcall` and those that resume coroutines. After a script was killed they raise its error
//! again.

use std::os::raw::{c_int, c_void};

use mlua::ffi::*;

use crate::script::fuel;
use crate::script::globals::base::call_original;
use crate::script::interpreter::Interpreter;
use crate::script::lua::stack::{get_field, push_bytes, set_field};

/// Fuel for entering a coroutine. It is so high that a thousand nested coroutines pay for their time.
const RESUME_COST: u64 = 500;

/// Replaces the functions that resume coroutines in the library on top of the stack.
///
/// # Safety
/// As for [`install`](super::install).
pub(super) unsafe fn install_coroutines(lua: *mut lua_State, interpreter: *mut Interpreter) {
    // SAFETY: the library is on top of the stack of the new state, which has room for two more values. The interpreter outlives
    // the state.
    unsafe {
        for (name, function) in [(c"resume", resume as lua_CFunction), (c"wrap", wrap)] {
            lua_pushlightuserdata(lua, interpreter.cast());
            get_field(lua, -2, name);
            lua_pushcclosure(lua, function, 2);
            set_field(lua, name);
        }
    }
}

// SAFETY of the functions below: Lua calls them, with room for twenty values beyond their arguments, and with the upvalues they
// were installed with. They own nothing that has a destructor.

/// `pcall(function, …)`. An error table with a text in `err` is returned as that text, as scripts for Redis before 7.0 expect.
pub(super) unsafe extern "C-unwind" fn pcall(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, with room for twenty values, and nothing here has a destructor when an error is raised. The place
    // of the first result exists before the call, after which the stack may be full of results.
    unsafe {
        let arguments = lua_gettop(lua) - 1;
        if arguments < 0 {
            // Redis calls the placeholder of the result, which is a boolean.
            lua_pushboolean(lua, 0);
            push_bytes(lua, b"attempt to call a boolean value");
            return 2;
        }
        lua_pushboolean(lua, 1);
        lua_insert(lua, 1);
        if lua_pcall(lua, arguments, LUA_MULTRET, 0) != LUA_OK {
            rethrow_if_killed(lua, Interpreter::of(lua));
            lua_remove(lua, 1);
            if lua_type(lua, -1) == LUA_TTABLE {
                lua_getfield_(lua, -1, c"err".as_ptr());
                if lua_isstring(lua, -1) != 0 {
                    lua_replace(lua, -2);
                }
            }
            lua_pushboolean(lua, 0);
            lua_insert(lua, 1);
        }
        lua_gettop(lua)
    }
}

/// `xpcall(function, handler)`
pub(super) unsafe extern "C-unwind" fn xpcall(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, and `lua_settop` leaves only the function and the handler, which is at index 2 during the call.
    // Nothing here has a destructor when an error is raised.
    unsafe {
        let interpreter = Interpreter::of(lua);
        luaL_checkany(lua, 2);
        lua_settop(lua, 2);
        if lua_type(lua, 2) == LUA_TFUNCTION {
            // The error of a killed script is raised in the hook. A handler that ran there would never be interrupted.
            lua_pushlightuserdata(lua, interpreter.cast());
            lua_insert(lua, 2);
            lua_pushcclosure(lua, call_handler, 2);
        }
        lua_insert(lua, 1);
        // Reserves the slot of the first result. After the call the stack may be full of results.
        lua_pushboolean(lua, 1);
        lua_insert(lua, 1);
        if lua_pcall(lua, 0, LUA_MULTRET, 2) != LUA_OK {
            rethrow_if_killed(lua, interpreter);
            lua_pushboolean(lua, 0);
            lua_replace(lua, 1);
        }
        lua_remove(lua, 2);
        lua_gettop(lua)
    }
}

/// Calls the handler of an `xpcall`, unless the script was killed.
unsafe extern "C-unwind" fn call_handler(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this with the error as argument, and `xpcall` made the script's handler the second upvalue. Nothing here
    // has a destructor when the handler raises an error.
    unsafe {
        if !fuel::is_killed(Interpreter::of(lua)) {
            lua_settop(lua, 1);
            lua_pushvalue(lua, lua_upvalueindex(2));
            lua_insert(lua, 1);
            lua_call(lua, 1, 1);
        }
        1
    }
}

/// `coroutine.resume(coroutine, …)`
unsafe extern "C-unwind" fn resume(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, with Lua's own `resume` as second upvalue, which catches errors of the coroutine. Nothing here has
    // a destructor when the error of a killed script is raised.
    unsafe {
        let interpreter = Interpreter::of(lua);
        enter_coroutine(lua, interpreter, lua_tothread(lua, 1));
        let results = call_original(lua);
        rethrow_if_killed(lua, interpreter);
        results
    }
}

/// `coroutine.wrap(function)`: calls Lua's own, and wraps its result in [`resume_wrapped`].
unsafe extern "C-unwind" fn wrap(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, with Lua's own `wrap` as second upvalue. What that makes is a C function whose one upvalue is the
    // coroutine.
    unsafe {
        call_original(lua);
        let Some(function) = lua_tocfunction(lua, -1) else { return 1 };
        lua_getupvalue(lua, -1, 1);
        lua_pushlightuserdata(lua, Interpreter::of(lua).cast());
        lua_pushlightuserdata(lua, function as *mut c_void);
        lua_pushcclosure(lua, resume_wrapped, 3);
        1
    }
}

/// The function that [`wrap`] returns. Its first upvalue is the coroutine, because Lua's own function, the third upvalue, expects
/// it there.
unsafe extern "C-unwind" fn resume_wrapped(lua: *mut lua_State) -> c_int {
    // SAFETY: `wrap` made the coroutine, the interpreter and a function of the type that is read here the upvalues. An error of
    // the coroutine is raised from that function: the function that catches it records which thread runs.
    unsafe {
        let interpreter: *mut Interpreter = lua_touserdata(lua, lua_upvalueindex(2)).cast();
        enter_coroutine(lua, interpreter, lua_tothread(lua, lua_upvalueindex(1)));
        let function = std::mem::transmute::<*mut c_void, lua_CFunction>(lua_touserdata(lua, lua_upvalueindex(3)));
        let results = function(lua);
        rethrow_if_killed(lua, interpreter);
        results
    }
}

/// Consumes the fuel for a coroutine that is about to run, and records that it runs.
unsafe fn enter_coroutine(lua: *mut lua_State, interpreter: *mut Interpreter, coroutine: *mut lua_State) {
    // SAFETY: a function that Lua called calls this while a script runs, and nothing there has a destructor. It keeps the
    // coroutine alive, as an argument or an upvalue, until it has returned or its error is caught.
    unsafe {
        fuel::consume(lua, interpreter, RESUME_COST);
        if !coroutine.is_null() && !(*interpreter).memory.thread.is_null() {
            (*interpreter).memory.thread = coroutine;
        }
    }
}

/// Records that this thread runs again, after it has caught an error or a coroutine has returned. If the script was killed, raises
/// that error again.
///
/// # Safety
/// Called from a function of the interpreter; nothing with a destructor is alive.
pub(super) unsafe fn rethrow_if_killed(lua: *mut lua_State, interpreter: *mut Interpreter) {
    // SAFETY: a function that Lua called calls this, so `lua` runs and is alive. Nothing there has a destructor when the error of
    // a killed script is raised.
    unsafe {
        if !(*interpreter).memory.thread.is_null() {
            (*interpreter).memory.thread = lua;
        }
        if fuel::is_killed(interpreter) {
            fuel::raise_killed(lua, interpreter);
        }
    }
}
