//! `math.random` and `math.randomseed`: the 48-bit generator of `lrand48`. Every server begins with the same numbers, and each run goes
//! on where the one before stopped: a script that draws a token or a delay does not draw the same one each time.

use std::os::raw::c_int;

use mlua::ffi::*;

use crate::script::interpreter::Interpreter;

const MULTIPLIER: u64 = 0x5_deec_e66d;
const INCREMENT: u64 = 0xb;
const MASK: u64 = (1 << 48) - 1;
const MAX: u64 = i32::MAX as u64;

/// The generator's state at the start, that of `lrand48` before any seeding.
pub(in crate::script) const START: u64 = 0x1234_abcd_330e;

/// The generator's state after seeding.
fn seeded(seed: i32) -> u64 {
    (u64::from(seed as u32) << 16) | 0x330e
}

/// The next number from 0 to 2³¹−1.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT) & MASK;
    *state >> 17
}

/// `math.random([m [, n]])`
pub(in crate::script) unsafe extern "C-unwind" fn random(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, and it was set with the interpreter; nothing here has a destructor.
    unsafe {
        let interpreter = Interpreter::of(lua);
        let fraction = (next(&mut (*interpreter).random) % MAX) as f64 / MAX as f64;
        let number = match lua_gettop(lua) {
            0 => fraction,
            1 => {
                let upper = luaL_checkinteger(lua, 1) as c_int;
                luaL_argcheck(lua, (1 <= upper) as c_int, 1, c"interval is empty".as_ptr());
                (fraction * f64::from(upper)).floor() + 1.0
            }
            2 => {
                let lower = luaL_checkinteger(lua, 1) as c_int;
                let upper = luaL_checkinteger(lua, 2) as c_int;
                luaL_argcheck(lua, (lower <= upper) as c_int, 2, c"interval is empty".as_ptr());
                (fraction * f64::from(upper.wrapping_sub(lower).wrapping_add(1))).floor() + f64::from(lower)
            }
            _ => return luaL_error(lua, c"wrong number of arguments".as_ptr()),
        };
        lua_pushnumber(lua, number);
    }
    1
}

/// `math.randomseed(seed)`
pub(in crate::script) unsafe extern "C-unwind" fn randomseed(lua: *mut lua_State) -> c_int {
    // SAFETY: as for `random`.
    unsafe {
        let seed = luaL_checkinteger(lua, 1) as i32;
        (*Interpreter::of(lua)).random = seeded(seed);
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_that_of_lrand48() {
        // The first numbers that lrand48() of a C library gives after srand48(0).
        let mut state = seeded(0);
        assert_eq!([next(&mut state), next(&mut state), next(&mut state)], [366850414, 1610402240, 206956554]);
    }
}
