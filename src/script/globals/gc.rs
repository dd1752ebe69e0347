//! `collectgarbage`.

use std::os::raw::c_int;

use mlua::ffi::*;

use crate::script::fuel::{self, COLLECT_COST, COLLECT_KB};
use crate::script::globals::base::call_original;
use crate::script::interpreter::Interpreter;

// SAFETY of the functions below: Lua calls `collectgarbage`, with room for twenty values beyond its arguments, and with the
// upvalues that `install` has given it. They own nothing that has a destructor.

/// `collectgarbage([option [, argument]])`. A script can make the collector work, but cannot stop it or slow it down, which would
/// outlast the script.
pub(super) unsafe extern "C-unwind" fn collectgarbage(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, with Lua's own `collectgarbage` as second upvalue. The list of options ends with a null, and
    // nothing here has a destructor when an error is raised.
    unsafe {
        let options = [
            c"collect".as_ptr(),
            c"count".as_ptr(),
            c"step".as_ptr(),
            c"stop".as_ptr(),
            c"restart".as_ptr(),
            c"setpause".as_ptr(),
            c"setstepmul".as_ptr(),
            std::ptr::null(),
        ];
        let option = luaL_checkoption(lua, 1, c"collect".as_ptr(), options.as_ptr());
        let unchanged = match option {
            0 => {
                collect(lua);
                0.0
            }
            1 => return call_original(lua),
            2 => {
                lua_pushboolean(lua, step(lua, luaL_optinteger(lua, 2, 0) as c_int).into());
                return 1;
            }
            3 | 4 => 0.0,
            _ => 200.0,
        };
        lua_pushnumber(lua, unchanged);
        1
    }
}

/// Collects all garbage, in steps that consume fuel.
unsafe fn collect(lua: *mut lua_State) {
    // SAFETY: `collectgarbage` calls this, and nothing here has a destructor when `step` raises an error.
    unsafe {
        // The first cycle may be half done, and does not find what became garbage after its start. The second one does.
        while !step(lua, COLLECT_KB) {}
        while !step(lua, COLLECT_KB) {}
    }
}

/// Runs the collector over `kilobytes` of memory, at least for one small step. Returns whether that ended a cycle.
unsafe fn step(lua: *mut lua_State, kilobytes: c_int) -> bool {
    let mut left = kilobytes.max(0);
    loop {
        let size = left.min(COLLECT_KB);
        // SAFETY: `collectgarbage` calls this while a script runs, and all that the script uses can be reached by the collector.
        // Nothing here has a destructor when `consume` raises an error.
        unsafe {
            if lua_gc(lua, LUA_GCSTEP, size) != 0 {
                return true;
            }
            fuel::consume(lua, Interpreter::of(lua), COLLECT_COST);
        }
        left -= size;
        if left == 0 {
            return false;
        }
    }
}
