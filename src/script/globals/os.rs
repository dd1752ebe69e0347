//! `os`, which has only `os.clock`.

use std::os::raw::c_int;

use mlua::ffi::*;

use crate::script::fuel::{self, CLOCK_COST};
use crate::script::interpreter::Interpreter;

/// `os.clock()`, in seconds. While a script runs, the value advances by the fuel that the script consumes and not by a clock, because a
/// simulation has none. A script that waits in a loop for one second ends after about one second of work.
pub(super) unsafe extern "C-unwind" fn clock(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, with room for twenty values, and with the interpreter as its upvalue. Nothing here has a destructor.
    unsafe {
        let interpreter = Interpreter::of(lua);
        fuel::consume(lua, interpreter, CLOCK_COST);
        let frame = &raw const (*interpreter).frame;
        let began_ns = (*frame).now.mono_us().saturating_mul(1000);
        lua_pushnumber(lua, began_ns.saturating_add((*frame).fuel.elapsed_ns()) as f64 / 1e9);
    }
    1
}
