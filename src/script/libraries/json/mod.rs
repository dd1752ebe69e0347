//! `cjson`: conversion to and from JSON, and its settings.
//!
//! The settings belong to the table `cjson`. As in Redis, they outlast the script that changes them, and `cjson.new()` returns a
//! table with its own settings. JSON's null is the null pointer `cjson.null`.

mod decode;
mod encode;
mod number;

use std::os::raw::c_int;

use mlua::ffi::*;

use crate::script::interpreter::Interpreter;
use crate::script::lua::stack::{push_bytes, set_field};

/// The settings of one table of functions.
#[derive(Clone, Copy)]
#[repr(C)]
struct Settings {
    /// Whether an array with too many holes becomes an object instead of an error.
    sparse_convert: c_int,
    /// An array has too many holes if its length is more than its number of elements times this. 0 for no limit.
    sparse_ratio: c_int,
    /// Up to this length, an array never has too many holes.
    sparse_safe: c_int,
    encode_max_depth: c_int,
    decode_max_depth: c_int,
    /// What `encode` does with infinities and NaN: [`INVALID_REFUSED`], [`INVALID_WRITTEN`], or null for any other value.
    encode_invalid_numbers: c_int,
    /// Whether `decode` accepts numbers that JSON does not have.
    decode_invalid_numbers: c_int,
    /// Ignored: the buffer belongs to the interpreter.
    keep_buffer: c_int,
    /// Maximum number of significant digits.
    number_precision: c_int,
}

const DEFAULTS: Settings = Settings {
    sparse_convert: 0,
    sparse_ratio: 2,
    sparse_safe: 10,
    encode_max_depth: 1000,
    decode_max_depth: 1000,
    encode_invalid_numbers: INVALID_REFUSED,
    decode_invalid_numbers: 1,
    keep_buffer: 1,
    number_precision: 14,
};

/// Numbers that JSON does not have are refused, or written as in C.
const INVALID_REFUSED: c_int = 0;
const INVALID_WRITTEN: c_int = 1;

/// Pushes a new table with its own settings.
///
/// # Safety
/// The stack has room for seven values, and the interpreter outlives the state.
pub(super) unsafe fn push_table(lua: *mut lua_State, interpreter: *mut Interpreter) {
    let functions: [(_, lua_CFunction); 10] = [
        (c"encode", encode::encode),
        (c"decode", decode::decode),
        (c"encode_sparse_array", encode_sparse_array),
        (c"encode_max_depth", encode_max_depth),
        (c"decode_max_depth", decode_max_depth),
        (c"encode_number_precision", encode_number_precision),
        (c"encode_keep_buffer", encode_keep_buffer),
        (c"encode_invalid_numbers", encode_invalid_numbers),
        (c"decode_invalid_numbers", decode_invalid_numbers),
        (c"new", new),
    ];
    // SAFETY: the stack has room for seven values, and four are on it at most. Lua's blocks are aligned for any of its values,
    // and so for numbers.
    unsafe {
        lua_createtable(lua, 0, 16);
        lua_newuserdata(lua, size_of::<Settings>()).cast::<Settings>().write(DEFAULTS);
        for (name, function) in functions {
            lua_pushlightuserdata(lua, interpreter.cast());
            lua_pushvalue(lua, -2);
            lua_pushcclosure(lua, function, 2);
            push_bytes(lua, name.to_bytes());
            lua_insert(lua, -2);
            lua_rawset(lua, -4);
        }
        lua_pop(lua, 1);
        lua_pushlightuserdata(lua, std::ptr::null_mut());
        set_field(lua, c"null");
        push_bytes(lua, b"cjson");
        set_field(lua, c"_NAME");
        push_bytes(lua, b"2.1.0");
        set_field(lua, c"_VERSION");
    }
}

// SAFETY of the functions below: Lua calls them, with room for twenty values beyond their arguments, and with the upvalues that
// `push_table` has given them. They own nothing that has a destructor.

/// The settings of the running function.
unsafe fn settings(lua: *mut lua_State) -> *mut Settings {
    // SAFETY: only functions that `push_table` made call this, and their second upvalue is the settings.
    unsafe { lua_touserdata(lua, lua_upvalueindex(2)).cast() }
}

/// As [`settings`], for a function with up to `count` arguments. Missing arguments become nil. Raises an error if there are more.
unsafe fn with_arguments(lua: *mut lua_State, count: c_int) -> *mut Settings {
    // SAFETY: Lua called the function that calls this, and nothing there has a destructor when there are too many arguments.
    unsafe {
        luaL_argcheck(lua, c_int::from(lua_gettop(lua) <= count), count + 1, c"found too many arguments".as_ptr());
        lua_settop(lua, count);
        settings(lua)
    }
}

/// Sets a number from an argument that is not nil, and pushes the setting.
unsafe fn set_number(lua: *mut lua_State, index: c_int, setting: &mut c_int, min: c_int, max: c_int) {
    // SAFETY: `with_arguments` has made the argument exist, and the stack has room for the setting. The error's text stays on the
    // stack while it is copied, and nothing in the function that Lua called has a destructor.
    unsafe {
        if lua_type(lua, index) != LUA_TNIL {
            let value = luaL_checkinteger(lua, index) as c_int;
            if !(min..=max).contains(&value) {
                let text = lua_pushfstring(lua, c"expected integer between %d and %d".as_ptr(), min, max);
                // As in Redis, the error always names the first argument.
                luaL_argerror(lua, 1, text);
            }
            *setting = value;
        }
        lua_pushnumber(lua, f64::from(*setting));
    }
}

/// Sets a choice from an argument that is not nil, and pushes the setting. The choices are `off` and `on`, also as booleans, and
/// with `or_null` also `null`.
unsafe fn set_choice(lua: *mut lua_State, index: c_int, setting: &mut c_int, or_null: bool) {
    // SAFETY: `with_arguments` has made the argument exist, and the stack has room for the setting. The list of options ends with
    // a null, and nothing in the function that Lua called has a destructor.
    unsafe {
        let third = if or_null { c"null".as_ptr() } else { std::ptr::null() };
        let options = [c"off".as_ptr(), c"on".as_ptr(), third, std::ptr::null()];
        match lua_type(lua, index) {
            LUA_TNIL => {}
            LUA_TBOOLEAN => *setting = lua_toboolean(lua, index),
            _ => *setting = luaL_checkoption(lua, index, std::ptr::null(), options.as_ptr()),
        }
        match *setting {
            0 | 1 => lua_pushboolean(lua, *setting),
            _ => push_bytes(lua, b"null"),
        }
    }
}

unsafe extern "C-unwind" fn encode_sparse_array(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, with the settings as second upvalue, which keeps them. Each reference to one of them ends before
    // the next one begins.
    unsafe {
        let settings = with_arguments(lua, 3);
        set_choice(lua, 1, &mut (*settings).sparse_convert, false);
        set_number(lua, 2, &mut (*settings).sparse_ratio, 0, c_int::MAX);
        set_number(lua, 3, &mut (*settings).sparse_safe, 0, c_int::MAX);
    }
    3
}

unsafe extern "C-unwind" fn encode_max_depth(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, with the settings as second upvalue, which keeps them while one is set.
    unsafe { set_number(lua, 1, &mut (*with_arguments(lua, 1)).encode_max_depth, 1, c_int::MAX) };
    1
}

unsafe extern "C-unwind" fn decode_max_depth(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, with the settings as second upvalue, which keeps them while one is set.
    unsafe { set_number(lua, 1, &mut (*with_arguments(lua, 1)).decode_max_depth, 1, c_int::MAX) };
    1
}

unsafe extern "C-unwind" fn encode_number_precision(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, with the settings as second upvalue, which keeps them while one is set.
    unsafe { set_number(lua, 1, &mut (*with_arguments(lua, 1)).number_precision, 1, 14) };
    1
}

unsafe extern "C-unwind" fn encode_keep_buffer(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, with the settings as second upvalue, which keeps them while one is set.
    unsafe { set_choice(lua, 1, &mut (*with_arguments(lua, 1)).keep_buffer, false) };
    1
}

unsafe extern "C-unwind" fn encode_invalid_numbers(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, with the settings as second upvalue, which keeps them while one is set.
    unsafe { set_choice(lua, 1, &mut (*with_arguments(lua, 1)).encode_invalid_numbers, true) };
    1
}

unsafe extern "C-unwind" fn decode_invalid_numbers(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, with the settings as second upvalue, which keeps them while one is set.
    unsafe { set_choice(lua, 1, &mut (*with_arguments(lua, 1)).decode_invalid_numbers, false) };
    1
}

/// `cjson.new()`
unsafe extern "C-unwind" fn new(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, with room for twenty values. The state belongs to an interpreter, which outlives it.
    unsafe { push_table(lua, Interpreter::of(lua)) };
    1
}
