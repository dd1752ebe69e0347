//! What catches errors in a script: `pcall`, `xpcall` and coroutines. None of them catches the end of a script that is killed.

use std::os::raw::{c_int, c_void};

use mlua::ffi::*;

use crate::script::bounds;
use crate::script::interpreter::Interpreter;
use crate::script::stack::{get_field, push_bytes, set_field};

/// What it costs to enter a coroutine, in instructions: a thousand of them in each other must not hide the time they take.
const RESUME_WORK: u64 = 500;

/// Replaces what enters coroutines in the library on top of the stack.
///
/// # Safety
/// As for [`super::globals::install`].
pub(super) unsafe fn install_coroutines(lua: *mut lua_State, interpreter: *mut Interpreter) {
    // SAFETY: as promised.
    unsafe {
        for (name, function) in [(c"resume", resume as lua_CFunction), (c"wrap", wrap)] {
            lua_pushlightuserdata(lua, interpreter.cast());
            get_field(lua, -2, name);
            lua_pushcclosure(lua, function, 2);
            set_field(lua, name);
        }
    }
}

/// Calls the C function that is the second upvalue, with the same arguments.
unsafe fn original(lua: *mut lua_State) -> c_int {
    // SAFETY: called by the functions below, which were given one that needs no upvalues.
    unsafe {
        match lua_tocfunction(lua, lua_upvalueindex(2)) {
            Some(function) => function(lua),
            None => 0,
        }
    }
}

// SAFETY of the functions below: Lua calls them, with room for twenty values beyond their arguments, and with the upvalues they were
// installed with. They own nothing that has a destructor.

/// `pcall(function, …)`: an error that is a table with a text is given as that text, as scripts from before Redis 7 expect.
pub(super) unsafe extern "C-unwind" fn pcall(lua: *mut lua_State) -> c_int {
    // SAFETY: see above.
    unsafe {
        let arguments = lua_gettop(lua) - 1;
        if arguments < 0 {
            // Redis calls the place holder of the result.
            lua_pushboolean(lua, 0);
            push_bytes(lua, b"attempt to call a boolean value");
            return 2;
        }
        lua_pushboolean(lua, 1);
        lua_insert(lua, 1);
        if lua_pcall(lua, arguments, LUA_MULTRET, 0) != LUA_OK {
            caught(lua, Interpreter::of(lua));
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
    // SAFETY: see above.
    unsafe {
        let interpreter = Interpreter::of(lua);
        luaL_checkany(lua, 2);
        lua_settop(lua, 2);
        if lua_type(lua, 2) == LUA_TFUNCTION {
            // What ends a script is raised inside of the hook, and a handler that ran there would not be looked at any more.
            lua_pushlightuserdata(lua, interpreter.cast());
            lua_insert(lua, 2);
            lua_pushcclosure(lua, handle, 2);
        }
        lua_insert(lua, 1);
        // The place of what is to be said first: with as many results as fit there is none for it afterwards.
        lua_pushboolean(lua, 1);
        lua_insert(lua, 1);
        if lua_pcall(lua, 0, LUA_MULTRET, 2) != LUA_OK {
            caught(lua, interpreter);
            lua_pushboolean(lua, 0);
            lua_replace(lua, 1);
        }
        lua_remove(lua, 2);
        lua_gettop(lua)
    }
}

/// Calls the handler of an `xpcall`, unless it is the end of the script that is handled.
unsafe extern "C-unwind" fn handle(lua: *mut lua_State) -> c_int {
    // SAFETY: see above.
    unsafe {
        if !bounds::is_killed(Interpreter::of(lua)) {
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
    // SAFETY: see above; the coroutine's own end is caught by the function called.
    unsafe {
        let interpreter = Interpreter::of(lua);
        enter(lua, interpreter, lua_tothread(lua, 1));
        let results = original(lua);
        caught(lua, interpreter);
        results
    }
}

/// `coroutine.wrap(function)`: Lua's own, with [`resume_wrapped`] round what it makes.
unsafe extern "C-unwind" fn wrap(lua: *mut lua_State) -> c_int {
    // SAFETY: see above; what Lua makes is a C function whose one upvalue is the coroutine.
    unsafe {
        original(lua);
        let Some(function) = lua_tocfunction(lua, -1) else { return 1 };
        lua_getupvalue(lua, -1, 1);
        lua_pushlightuserdata(lua, Interpreter::of(lua).cast());
        lua_pushlightuserdata(lua, function as *mut c_void);
        lua_pushcclosure(lua, resume_wrapped, 3);
        1
    }
}

/// What [`wrap`] gives: its first upvalue is the coroutine, where Lua's own function, the third, looks for it.
unsafe extern "C-unwind" fn resume_wrapped(lua: *mut lua_State) -> c_int {
    // SAFETY: see above; the third upvalue is a function of the type that Lua gave to `wrap`. An error of the coroutine is raised
    // from it: whoever catches that notes which thread runs.
    unsafe {
        let interpreter: *mut Interpreter = lua_touserdata(lua, lua_upvalueindex(2)).cast();
        enter(lua, interpreter, lua_tothread(lua, lua_upvalueindex(1)));
        let function = std::mem::transmute::<*mut c_void, lua_CFunction>(lua_touserdata(lua, lua_upvalueindex(3)));
        let results = function(lua);
        caught(lua, interpreter);
        results
    }
}

/// Notes that a coroutine is about to run.
unsafe fn enter(lua: *mut lua_State, interpreter: *mut Interpreter, coroutine: *mut lua_State) {
    // SAFETY: see above.
    unsafe {
        bounds::spend(lua, interpreter, RESUME_WORK);
        if !coroutine.is_null() && !(*interpreter).memory.thread.is_null() {
            (*interpreter).memory.thread = coroutine;
        }
    }
}

/// After an error was caught in this thread, or it goes on after another: notes that it runs, and raises the end of the script again
/// if that is what was caught.
///
/// # Safety
/// Called from a function of the interpreter; nothing with a destructor is alive.
pub(super) unsafe fn caught(lua: *mut lua_State, interpreter: *mut Interpreter) {
    // SAFETY: as promised.
    unsafe {
        if !(*interpreter).memory.thread.is_null() {
            (*interpreter).memory.thread = lua;
        }
        if bounds::is_killed(interpreter) {
            bounds::raise_killed(lua, interpreter);
        }
    }
}
