//! `math.random` and `math.randomseed`: the 48-bit generator of `lrand48`.
//!
//! Every server starts with the same sequence. Each run, of a script or a function, continues where the last one stopped, even
//! after a flush. Redis before 7.0 seeded the generator for every script, because scripts were replicated as a whole and had to
//! draw the same numbers on a replica. Since 7.0 only effects are replicated, and a script that draws a token or a delay gets
//! another one each time. A script that needs the same numbers each time begins with `math.randomseed`.

use std::os::raw::c_int;

use mlua::ffi::*;

use crate::script::interpreter::Interpreter;

const MULTIPLIER: u64 = 0x5_deec_e66d;
const INCREMENT: u64 = 0xb;
const MASK: u64 = (1 << 48) - 1;
const MAX: u64 = i32::MAX as u64;

/// The generator of all scripts and functions of one engine.
#[derive(Clone, Debug)]
pub struct ScriptRandom(u64);

impl Default for ScriptRandom {
    /// The state of `lrand48` before it is seeded.
    fn default() -> Self {
        ScriptRandom(0x1234_abcd_330e)
    }
}

impl ScriptRandom {
    fn seed(&mut self, seed: i32) {
        self.0 = (u64::from(seed as u32) << 16) | 0x330e;
    }

    /// The next number from 0 to 2³¹−1.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT) & MASK;
        self.0 >> 17
    }
}

/// The generator of the engine whose script runs.
///
/// # Safety
/// Called from a function of the interpreter; nothing with a destructor is alive.
unsafe fn generator<'a>(lua: *mut lua_State) -> &'a mut ScriptRandom {
    // SAFETY: while a script runs its frame's engine is valid, and nothing else has a reference to it.
    unsafe {
        let engine = (*Interpreter::of(lua)).frame.engine;
        if engine.is_null() {
            // The engine is null only while a library loads, which has no `math`.
            luaL_error(lua, c"no script runs".as_ptr());
        }
        &mut (*engine).lua_mut().random
    }
}

/// `math.random([m [, n]])`
pub(crate) unsafe extern "C-unwind" fn random(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this; nothing here has a destructor.
    unsafe {
        let fraction = (generator(lua).next() % MAX) as f64 / MAX as f64;
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
pub(crate) unsafe extern "C-unwind" fn randomseed(lua: *mut lua_State) -> c_int {
    // SAFETY: as for `random`.
    unsafe {
        let seed = luaL_checkinteger(lua, 1) as i32;
        generator(lua).seed(seed);
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_that_of_lrand48() {
        // The first results of lrand48() in a C library after srand48(0).
        let mut random = ScriptRandom::default();
        random.seed(0);
        assert_eq!([random.next(), random.next(), random.next()], [366850414, 1610402240, 206956554]);
    }
}
