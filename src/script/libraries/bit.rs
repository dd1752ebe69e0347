//! `bit`: operations on 32 bits. Arguments are taken modulo 2³², and results are signed.

use std::os::raw::c_int;

use mlua::ffi::*;

use crate::script::interpreter::Interpreter;
use crate::script::lua::stack::push_bytes;

/// Pushes the table.
///
/// # Safety
/// The stack has room for five values, the interpreter outlives the state, and allocations cannot fail.
pub(super) unsafe fn push_table(lua: *mut lua_State, interpreter: *mut Interpreter) {
    let functions: [(_, lua_CFunction); 12] = [
        (c"tobit", tobit),
        (c"bnot", bnot),
        (c"band", band),
        (c"bor", bor),
        (c"bxor", bxor),
        (c"lshift", lshift),
        (c"rshift", rshift),
        (c"arshift", arshift),
        (c"rol", rol),
        (c"ror", ror),
        (c"bswap", bswap),
        (c"tohex", tohex),
    ];
    // SAFETY: the stack has room for five values: the table, and the three above it that `set_function` needs. The interpreter
    // outlives the state.
    unsafe {
        lua_createtable(lua, 0, functions.len() as c_int);
        for (name, function) in functions {
            Interpreter::set_function(lua, interpreter, name, function);
        }
    }
}

// SAFETY of the functions below: Lua calls them, with room for twenty values beyond their arguments. They own nothing.

/// The low 32 bits of a number rounded to the nearest integer. Raises an error for other types.
unsafe fn bits(lua: *mut lua_State, index: c_int) -> u32 {
    /// 2⁵² + 2⁵¹. A sum with this number has the integer in its low bits.
    const SHIFT: f64 = 6_755_399_441_055_744.0;
    // SAFETY: Lua called the function that calls this, and nothing there has a destructor when an argument is no number.
    unsafe {
        let bits = (lua_tonumber(lua, index) + SHIFT).to_bits() as u32;
        if bits == 0 {
            luaL_checknumber(lua, index);
        }
        bits
    }
}

/// Pushes a result.
unsafe fn push_result(lua: *mut lua_State, bits: u32) -> c_int {
    // SAFETY: Lua called the function that calls this, with room for twenty values, and this is the only one.
    unsafe { lua_pushnumber(lua, f64::from(bits.cast_signed())) };
    1
}

/// Combines all arguments.
unsafe fn fold(lua: *mut lua_State, operation: fn(u32, u32) -> u32) -> c_int {
    // SAFETY: Lua called the function that calls this, and nothing there has a destructor when `bits` raises an error.
    unsafe {
        let mut result = bits(lua, 1);
        // From the last to the second, as in the original: an error names the first invalid one in this order.
        for index in (2..=lua_gettop(lua)).rev() {
            result = operation(result, bits(lua, index));
        }
        push_result(lua, result)
    }
}

/// Shifts the first argument by the second modulo 32.
unsafe fn shift(lua: *mut lua_State, operation: fn(u32, u32) -> u32) -> c_int {
    // SAFETY: Lua called the function that calls this, and nothing there has a destructor when `bits` raises an error for either
    // argument.
    unsafe {
        let value = bits(lua, 1);
        let count = bits(lua, 2) & 31;
        push_result(lua, operation(value, count))
    }
}

unsafe extern "C-unwind" fn tobit(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, with room for the result, and `bits` checks the argument.
    unsafe { push_result(lua, bits(lua, 1)) }
}

unsafe extern "C-unwind" fn bnot(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, with room for the result, and `bits` checks the argument.
    unsafe { push_result(lua, !bits(lua, 1)) }
}

unsafe extern "C-unwind" fn bswap(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, with room for the result, and `bits` checks the argument.
    unsafe { push_result(lua, bits(lua, 1).swap_bytes()) }
}

unsafe extern "C-unwind" fn band(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, with room for the result, and `fold` checks all arguments.
    unsafe { fold(lua, |a, b| a & b) }
}

unsafe extern "C-unwind" fn bor(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, with room for the result, and `fold` checks all arguments.
    unsafe { fold(lua, |a, b| a | b) }
}

unsafe extern "C-unwind" fn bxor(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, with room for the result, and `fold` checks all arguments.
    unsafe { fold(lua, |a, b| a ^ b) }
}

unsafe extern "C-unwind" fn lshift(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, with room for the result, and `shift` checks both arguments.
    unsafe { shift(lua, u32::wrapping_shl) }
}

unsafe extern "C-unwind" fn rshift(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, with room for the result, and `shift` checks both arguments.
    unsafe { shift(lua, u32::wrapping_shr) }
}

unsafe extern "C-unwind" fn arshift(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, with room for the result, and `shift` checks both arguments.
    unsafe { shift(lua, |value, count| value.cast_signed().wrapping_shr(count).cast_unsigned()) }
}

unsafe extern "C-unwind" fn rol(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, with room for the result, and `shift` checks both arguments.
    unsafe { shift(lua, u32::rotate_left) }
}

unsafe extern "C-unwind" fn ror(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, with room for the result, and `shift` checks both arguments.
    unsafe { shift(lua, u32::rotate_right) }
}

/// `bit.tohex(value [, digits])`: the last hexadecimal digits, by default eight of them. They are in upper case if `digits` is negative.
unsafe extern "C-unwind" fn tohex(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, with room for the result, and `bits` checks the arguments. Nothing here has a destructor when an
    // error is raised.
    unsafe {
        let value = bits(lua, 1);
        let digits = if lua_type(lua, 2) == LUA_TNONE { 8 } else { bits(lua, 2).cast_signed() };
        let alphabet = if digits < 0 { b"0123456789ABCDEF" } else { b"0123456789abcdef" };
        let mut text = [0; 8];
        for (place, digit) in text.iter_mut().rev().enumerate() {
            *digit = alphabet[(value >> (4 * place)) as usize & 15];
        }
        push_bytes(lua, &text[8 - digits.unsigned_abs().min(8) as usize..]);
    }
    1
}
