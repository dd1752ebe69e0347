//! Functions that replace those of Lua's base library: they recognize [read-only tables](super::read_only).

use std::os::raw::c_int;

use mlua::ffi::*;

use crate::script::fuel;
use crate::script::globals::read_only;
use crate::script::interpreter::Interpreter;
use crate::script::lua::stack::set_field;

/// Makes a read of a missing entry of the table on top an error.
///
/// # Safety
/// The stack has room for five more values, the interpreter outlives the state, and allocations cannot fail.
pub(crate) unsafe fn forbid_missing(lua: *mut lua_State, interpreter: *mut Interpreter) {
    // SAFETY: a table is on top, with room for five values: the metatable, and the three that `set_function` needs. The
    // interpreter outlives the state.
    unsafe {
        lua_createtable(lua, 0, 1);
        Interpreter::set_function(lua, interpreter, c"__index", missing_global);
        lua_setmetatable(lua, -2);
    }
}

/// Calls the function that the running one replaces, with the same arguments.
///
/// # Safety
/// Called from a function of the interpreter that Lua called, which has a C function without upvalues as its second upvalue.
#[inline]
pub(super) unsafe fn call_original(lua: *mut lua_State) -> c_int {
    // SAFETY: the second upvalue is a C function without upvalues, so it can run in the frame of the caller. It finds the stack
    // as its caller left it.
    unsafe { if let Some(function) = lua_tocfunction(lua, lua_upvalueindex(2)) { function(lua) } else { 0 } }
}

// SAFETY of the functions below: Lua calls them, with room for twenty values beyond their arguments, and with the upvalues that
// `install` has given them. They own nothing that has a destructor.

/// `__index` of the globals, for missing names.
unsafe extern "C-unwind" fn missing_global(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, and nothing here has a destructor when an error is raised. The name is on the stack, at index 2,
    // while its error is written.
    unsafe {
        if lua_gettop(lua) != 2 {
            return luaL_error(lua, c"Wrong number of arguments to luaProtectedTableError".as_ptr());
        }
        match lua_type(lua, 2) {
            LUA_TSTRING | LUA_TNUMBER => {}
            _ => return luaL_error(lua, c"Second argument to luaProtectedTableError must be a string or number".as_ptr()),
        }
        luaL_error(lua, c"Script attempted to access nonexistent global variable '%s'".as_ptr(), lua_tostring(lua, 2))
    }
}

/// `next(table [, key])`
pub(super) unsafe extern "C-unwind" fn next(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, and argument 1 is checked to be a table. `lua_settop` puts the key on top, and nothing here has a
    // destructor when an error is raised.
    unsafe {
        luaL_checktype(lua, 1, LUA_TTABLE);
        lua_settop(lua, 2);
        read_only::unwrap(lua, 1);
        if lua_next(lua, 1) != 0 {
            return 2;
        }
        lua_pushnil(lua);
        1
    }
}

/// `pairs(table)`
pub(super) unsafe extern "C-unwind" fn pairs(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, with room for the three results, and with `next` as second upvalue. Nothing here has a destructor
    // when an error is raised.
    unsafe {
        luaL_checktype(lua, 1, LUA_TTABLE);
        lua_pushvalue(lua, lua_upvalueindex(2));
        lua_pushvalue(lua, 1);
        lua_pushnil(lua);
        3
    }
}

/// `rawget(table, key)`
pub(super) unsafe extern "C-unwind" fn rawget(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, with room for the two values of `unwrap`, and with Lua's own `rawget` as second upvalue.
    unsafe {
        read_only::unwrap(lua, 1);
        call_original(lua)
    }
}

/// `rawset(table, key, value)`
pub(super) unsafe extern "C-unwind" fn rawset(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, with room for the two values of `unwrap`, and with Lua's own `rawset` as second upvalue. Nothing
    // here has a destructor when an error is raised.
    unsafe { if read_only::unwrap(lua, 1) { read_only::raise(lua) } else { call_original(lua) } }
}

/// `unpack(table [, first [, last]])`
pub(super) unsafe extern "C-unwind" fn unpack(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, and argument 1 is checked to be a table. `lua_checkstack` makes room for the results, and nothing
    // here has a destructor when an error is raised.
    unsafe {
        luaL_checktype(lua, 1, LUA_TTABLE);
        let first = luaL_optinteger(lua, 2, 1) as c_int;
        let last = if lua_type(lua, 3) <= LUA_TNIL { lua_objlen(lua, 1) as c_int } else { luaL_checkinteger(lua, 3) as c_int };
        if first > last {
            return 0;
        }
        // A count beyond the range of an int wraps to a negative number.
        let count = last.wrapping_sub(first).wrapping_add(1);
        if count <= 0 || lua_checkstack(lua, count) == 0 {
            return luaL_error(lua, c"too many results to unpack".as_ptr());
        }
        fuel::consume(lua, Interpreter::of(lua), count as u64 / 4);
        for index in first..=last {
            lua_rawgeti_(lua, 1, index);
        }
        count
    }
}

/// `getmetatable(value)`. The metatable of strings is copied. A read-only table shows the metatable of the table it hides.
pub(super) unsafe extern "C-unwind" fn getmetatable(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, with room for twenty values beyond its arguments, and nothing here has a destructor.
    unsafe {
        if lua_type(lua, 1) == LUA_TSTRING {
            lua_createtable(lua, 0, 1);
            lua_getfield_(lua, LUA_GLOBALSINDEX, c"string".as_ptr());
            set_field(lua, c"__index");
            read_only::wrap(lua);
            return 1;
        }
        if read_only::unwrap(lua, 1) {
            // The globals have a metatable, which is read-only too.
            if lua_getmetatable(lua, 1) == 0 {
                lua_pushnil(lua);
            } else {
                read_only::wrap(lua);
            }
            return 1;
        }
        call_original(lua)
    }
}

/// `setmetatable(table, metatable)`
pub(super) unsafe extern "C-unwind" fn setmetatable(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, with room for the two values of `unwrap`, and with Lua's own `setmetatable` as second upvalue.
    // Nothing here has a destructor when an error is raised.
    unsafe { if read_only::unwrap(lua, 1) { read_only::raise(lua) } else { call_original(lua) } }
}
