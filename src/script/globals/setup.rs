//! The table of globals.

use std::ffi::CStr;

use mlua::ffi::*;

use crate::script::conversion::errors;
use crate::script::globals::base::{self, forbid_missing};
use crate::script::globals::gc;
use crate::script::globals::load;
use crate::script::globals::os;
use crate::script::globals::pcall;
use crate::script::globals::read_only::{self, add_library};
use crate::script::globals::redis_table;
use crate::script::interpreter::{GLOBALS, Interpreter, REDIS};
use crate::script::libraries::{self, random, strings, tables};
use crate::script::lua::stack::{get_field, set_field};

/// Functions and tables of Lua's base library that are used unchanged.
const UNCHANGED: [&CStr; 11] = [
    c"assert",
    c"coroutine",
    c"error",
    c"gcinfo",
    c"ipairs",
    c"rawequal",
    c"select",
    c"tonumber",
    c"tostring",
    c"type",
    c"_VERSION",
];

/// Functions that replace those of Lua's base library.
const REPLACED: [(&CStr, lua_CFunction); 11] = [
    (c"collectgarbage", gc::collectgarbage),
    (c"getmetatable", base::getmetatable),
    (c"load", load::load),
    (c"loadstring", load::loadstring),
    (c"next", base::next),
    (c"pcall", pcall::pcall),
    (c"rawget", base::rawget),
    (c"rawset", base::rawset),
    (c"setmetatable", base::setmetatable),
    (c"unpack", base::unpack),
    (c"xpcall", pcall::xpcall),
];

/// The name of the global that Redis uses as its error handler and that scripts can see.
pub(crate) const ERROR_HANDLER: &CStr = c"__redis__err__handler";

/// Opens the libraries and installs the globals.
///
/// # Safety
/// The state is new, the interpreter outlives it, and allocations cannot fail.
pub(crate) unsafe fn install(lua: *mut lua_State, interpreter: *mut Interpreter) {
    // SAFETY: the state is new, so its stack has room for twenty values, and at most ten are on it at once. Nothing here raises
    // an error but for want of memory, and allocations cannot fail.
    unsafe {
        for open in [luaopen_base, luaopen_string, luaopen_table, luaopen_math] as [unsafe extern "C-unwind" fn(_) -> _; 4] {
            lua_pushcclosure(lua, open, 0);
            lua_call(lua, 0, 0);
        }
        lua_createtable(lua, 0, 64);
        let globals = lua_gettop(lua);
        for name in UNCHANGED {
            lua_getfield_(lua, LUA_GLOBALSINDEX, name.as_ptr());
            set_field(lua, name);
        }
        for (name, function) in REPLACED {
            // The second upvalue is the function that is replaced.
            lua_pushlightuserdata(lua, interpreter.cast());
            lua_getfield_(lua, LUA_GLOBALSINDEX, name.as_ptr());
            lua_pushcclosure(lua, function, 2);
            set_field(lua, name);
        }
        lua_pushlightuserdata(lua, interpreter.cast());
        get_field(lua, globals, c"next");
        lua_pushcclosure(lua, base::pairs, 2);
        set_field(lua, c"pairs");
        lua_pushcclosure(lua, errors::error_handler, 0);
        set_field(lua, ERROR_HANDLER);

        lua_getfield_(lua, LUA_GLOBALSINDEX, c"math".as_ptr());
        Interpreter::set_function(lua, interpreter, c"random", random::random);
        Interpreter::set_function(lua, interpreter, c"randomseed", random::randomseed);
        add_library(lua, globals, &[c"math"]);

        lua_getfield_(lua, LUA_GLOBALSINDEX, c"table".as_ptr());
        tables::install(lua, interpreter);
        add_library(lua, globals, &[c"table"]);

        lua_getfield_(lua, LUA_GLOBALSINDEX, c"string".as_ptr());
        strings::install(lua, interpreter);
        add_library(lua, globals, &[c"string"]);

        get_field(lua, globals, c"coroutine");
        pcall::install_coroutines(lua, interpreter);
        add_library(lua, globals, &[c"coroutine"]);

        lua_createtable(lua, 0, 1);
        Interpreter::set_function(lua, interpreter, c"clock", os::clock);
        add_library(lua, globals, &[c"os"]);

        libraries::install(lua, interpreter, globals);

        redis_table::push_table(lua, interpreter);
        lua_pushvalue(lua, -1);
        lua_rawseti_(lua, LUA_REGISTRYINDEX, REDIS);
        add_library(lua, globals, &[c"redis", c"server"]);

        // The table of globals itself.
        forbid_missing(lua, interpreter);
        lua_pushvalue(lua, globals);
        lua_rawseti_(lua, LUA_REGISTRYINDEX, GLOBALS);
        lua_pushvalue(lua, globals);
        read_only::wrap(lua);
        lua_pushvalue(lua, -1);
        lua_replace(lua, LUA_GLOBALSINDEX);
        set_field(lua, c"_G");
        lua_settop(lua, globals - 1);
    }
}
