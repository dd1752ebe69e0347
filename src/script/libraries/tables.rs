//! The functions of `table` that walk a table: where that is one step of Lua, the work is counted before they do it.

use std::ffi::CStr;
use std::os::raw::c_int;

use mlua::ffi::*;

use crate::script::bounds;
use crate::script::globals::uncover;
use crate::script::interpreter::Interpreter;
use crate::script::stack::{get_field, set_field};

/// Puts the counting functions in front of those in the library on top of the stack.
///
/// # Safety
/// As for [`crate::script::globals::install`].
pub(in crate::script) unsafe fn install(lua: *mut lua_State, interpreter: *mut Interpreter) {
    let functions: [(&CStr, lua_CFunction); 5] =
        [(c"concat", walk), (c"foreach", foreach), (c"maxn", walk), (c"remove", remove), (c"sort", sort)];
    // SAFETY: as promised.
    unsafe {
        for (name, function) in functions {
            lua_pushlightuserdata(lua, interpreter.cast());
            get_field(lua, -2, name);
            lua_pushcclosure(lua, function, 2);
            set_field(lua, name);
        }
    }
}

/// Counts the work of walking the table at 1, some number of times.
///
/// # Safety
/// Called from a function of the interpreter; nothing with a destructor is alive.
pub(in crate::script) unsafe fn spend_walk(lua: *mut lua_State, interpreter: *mut Interpreter, times: u64) {
    // SAFETY: as promised.
    unsafe {
        if lua_type(lua, 1) == LUA_TTABLE {
            bounds::spend(lua, interpreter, (lua_objlen(lua, 1) as u64).saturating_mul(times));
        }
    }
}

unsafe fn counted(lua: *mut lua_State, times: u64) -> c_int {
    // SAFETY: called by the functions below; the second upvalue is a C function without upvalues.
    unsafe {
        spend_walk(lua, Interpreter::of(lua), times);
        match lua_tocfunction(lua, lua_upvalueindex(2)) {
            Some(function) => function(lua),
            None => 0,
        }
    }
}

// SAFETY of the functions below: Lua calls them, with the upvalues that `install` has given them.

unsafe extern "C-unwind" fn walk(lua: *mut lua_State) -> c_int {
    // SAFETY: see above.
    unsafe { counted(lua, 1) }
}

unsafe extern "C-unwind" fn sort(lua: *mut lua_State) -> c_int {
    // SAFETY: see above.
    unsafe { counted(lua, 16) }
}

/// To take the last one is no work.
unsafe extern "C-unwind" fn remove(lua: *mut lua_State) -> c_int {
    // SAFETY: see above.
    unsafe { counted(lua, (lua_gettop(lua) > 1).into()) }
}

/// The tables that all scripts share show what they hold.
unsafe extern "C-unwind" fn foreach(lua: *mut lua_State) -> c_int {
    // SAFETY: see above; the work is done by the function that is called.
    unsafe {
        uncover(lua, 1);
        counted(lua, 0)
    }
}
