//! `cmsgpack`: conversion to and from MessagePack.
//!
//! A table with the keys 1 to n becomes an array, any other table a map. A whole number becomes the shortest integer, any other
//! number a float of four bytes if that is exact, otherwise of eight. Values without counterpart, such as functions, and tables
//! nested too deep become nil. The types `bin` and `ext`, which were added to the format later, are not supported.

use std::os::raw::c_int;

use mlua::ffi::*;

use crate::script::fuel;
use crate::script::globals::read_only;
use crate::script::interpreter::Interpreter;
use crate::script::libraries::buffer::{Kind, Level};
use crate::script::libraries::convert::to_i64;
use crate::script::libraries::raise::{ensure_stack, raise, raise_numbers};
use crate::script::libraries::writer::Writer;
use crate::script::lua::stack::{bytes, push_bytes, set_field};

/// Tables nested deeper than this become nil. This also ends a table that contains itself.
const NESTING_MAX: u32 = 16;

/// Bytes unpacked between two checks of the fuel, and the fuel for each byte, which may be a whole value.
const CHECK_EVERY: usize = 1 << 10;
const STEPS_PER_BYTE: u64 = 4;

/// Pushes the table.
///
/// # Safety
/// The stack has room for five values, the interpreter outlives the state, and allocations cannot fail.
pub(super) unsafe fn push_table(lua: *mut lua_State, interpreter: *mut Interpreter) {
    // SAFETY: the stack has room for five values: the table, and the three above it that `set_function` needs. The interpreter
    // outlives the state.
    unsafe {
        lua_createtable(lua, 0, 6);
        Interpreter::set_function(lua, interpreter, c"pack", pack);
        Interpreter::set_function(lua, interpreter, c"unpack", unpack);
        Interpreter::set_function(lua, interpreter, c"unpack_one", unpack_one);
        Interpreter::set_function(lua, interpreter, c"unpack_limit", unpack_limit);
        push_bytes(lua, b"cmsgpack");
        set_field(lua, c"_NAME");
        push_bytes(lua, b"lua-cmsgpack 0.4.0");
        set_field(lua, c"_VERSION");
    }
}

// SAFETY of the functions below: Lua calls them, with room for twenty values beyond their arguments, and they were set with the
// interpreter; functions for nested values make more room. Nothing has a destructor where errors are raised.

/// `cmsgpack.pack(value, …)`: the values in sequence.
unsafe extern "C-unwind" fn pack(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, and room is made on the stack before each value is pushed. Nothing here has a destructor when an
    // error is raised.
    unsafe {
        let count = lua_gettop(lua);
        if count == 0 {
            return luaL_argerror(lua, 0, c"MessagePack pack needs input.".as_ptr());
        }
        if lua_checkstack(lua, count) == 0 {
            return luaL_argerror(lua, 0, c"Too many arguments for MessagePack pack.".as_ptr());
        }
        let out = Writer::new(lua);
        for index in 1..=count {
            ensure_stack(lua, 1, c"in function mp_check");
            lua_pushvalue(lua, index);
            encode(lua, out, 0);
            out.push();
        }
        lua_concat(lua, count);
    }
    1
}

/// Writes and pops the value on top. `level` tables surround it.
unsafe fn encode(lua: *mut lua_State, out: Writer, level: u32) {
    // SAFETY: a value is on top, where a string stays while it is written, and nothing in `pack` has a destructor when an error
    // is raised. The function calls itself for what is nested, which ends at `NESTING_MAX`.
    unsafe {
        match lua_type(lua, -1) {
            LUA_TSTRING => {
                let text = bytes(lua, -1).unwrap_or_default();
                head(out, text.len(), Some((0xa0, 31)), Some(0xd9), 0xda);
                out.put(text);
            }
            LUA_TBOOLEAN => out.byte(if lua_toboolean(lua, -1) != 0 { 0xc3 } else { 0xc2 }),
            LUA_TNUMBER => encode_number(out, lua_tonumber(lua, -1)),
            LUA_TTABLE if level < NESTING_MAX => encode_table(lua, out, level),
            _ => out.byte(0xc0),
        }
        lua_pop(lua, 1);
    }
}

/// Writes a type and a length. `fixed` is the type and the maximum length if the length is part of the first byte. Otherwise a
/// length of 8, 16 or 32 bits follows the first byte. The type with 32 bits is that with 16 bits plus one.
unsafe fn head(out: Writer, len: usize, fixed: Option<(u8, usize)>, of_8_bits: Option<u8>, of_16_bits: u8) {
    // SAFETY: the bytes are not part of the buffer, and nothing in the frames of `pack` has a destructor when the writer raises
    // an error.
    unsafe {
        match (fixed, of_8_bits) {
            (Some((first, max)), _) if len <= max => out.byte(first | len as u8),
            (_, Some(first)) if len <= 0xff => out.put(&[first, len as u8]),
            _ if len <= 0xffff => {
                out.byte(of_16_bits);
                out.put(&(len as u16).to_be_bytes());
            }
            _ => {
                out.byte(of_16_bits + 1);
                out.put(&(len as u32).to_be_bytes());
            }
        }
    }
}

/// Writes a number.
unsafe fn encode_number(out: Writer, number: f64) {
    // SAFETY: the bytes are in this frame, and nothing in the frames of `pack` has a destructor when the writer raises an error.
    unsafe {
        let whole = to_i64(number);
        if whole as f64 == number {
            encode_integer(out, whole);
        } else if f64::from(number as f32) == number {
            out.byte(0xca);
            out.put(&(number as f32).to_be_bytes());
        } else {
            out.byte(0xcb);
            out.put(&number.to_be_bytes());
        }
    }
}

/// Writes an integer in the fewest bytes.
unsafe fn encode_integer(out: Writer, number: i64) {
    // SAFETY: the bytes are in this frame, and nothing in the frames of `pack` has a destructor when the writer raises an error.
    unsafe {
        let (first, width) = match number {
            -32..=0x7f => return out.byte(number as u8),
            0x80..=0xff => (0xcc, 1),
            0x100..=0xffff => (0xcd, 2),
            0x1_0000..=0xffff_ffff => (0xce, 4),
            0x1_0000_0000.. => (0xcf, 8),
            -0x80..=-33 => (0xd0, 1),
            -0x8000..=-0x81 => (0xd1, 2),
            -0x8000_0000..=-0x8001 => (0xd2, 4),
            ..=-0x8000_0001 => (0xd3, 8),
        };
        out.byte(first);
        out.put(&number.to_be_bytes()[8 - width..]);
    }
}

/// Writes the table on top without popping it.
unsafe fn encode_table(lua: *mut lua_State, out: Writer, level: u32) {
    // SAFETY: a table is on top, and `ensure_stack` makes room before each value is pushed. No code of a script runs that could
    // add a key to the table, so `lua_next` finds each key.
    unsafe {
        ensure_stack(lua, 2, c"in function table_is_an_array");
        let top = lua_gettop(lua);
        read_only::unwrap(lua, top);
        let (entries, is_array) = count_entries(lua);
        if is_array {
            head(out, entries, Some((0x90, 15)), None, 0xdc);
            ensure_stack(lua, 1, c"in function mp_encode_lua_table_as_array");
            for index in 1..=entries as c_int {
                lua_rawgeti_(lua, top, index);
                encode(lua, out, level + 1);
            }
        } else {
            ensure_stack(lua, 3, c"in function mp_encode_lua_table_as_map");
            head(out, entries, Some((0x80, 15)), None, 0xde);
            lua_pushnil(lua);
            while lua_next(lua, top) != 0 {
                lua_pushvalue(lua, -2);
                encode(lua, out, level + 1);
                encode(lua, out, level + 1);
            }
        }
    }
}

/// Number of entries of the table on top, and whether their keys are 1 to that number.
unsafe fn count_entries(lua: *mut lua_State) -> (usize, bool) {
    let (mut entries, mut only_indices, mut max) = (0, true, 0.0f64);
    // SAFETY: a table is on top, with room for a key and a value above it: `encode_table` has made it. No code of a script runs
    // that could add a key, and nothing has a destructor when `consume` raises an error.
    unsafe {
        let interpreter = Interpreter::of(lua);
        lua_pushnil(lua);
        while lua_next(lua, -2) != 0 {
            fuel::consume(lua, interpreter, 2);
            lua_pop(lua, 1);
            entries += 1;
            if only_indices {
                let key = if lua_type(lua, -1) == LUA_TNUMBER { lua_tonumber(lua, -1) } else { 0.0 };
                only_indices = key >= 1.0 && key <= f64::from(c_int::MAX) && key.fract() == 0.0;
                max = max.max(key);
            }
        }
    }
    (entries, only_indices && max == entries as f64)
}

/// `cmsgpack.unpack(text)`: all values.
unsafe extern "C-unwind" fn unpack(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, and `unpack_some` checks the argument.
    unsafe { unpack_some(lua, 0, 0) }
}

/// `cmsgpack.unpack_one(text [, offset])`: the next offset, or -1 at the end, and one value.
unsafe extern "C-unwind" fn unpack_one(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, and nothing here has a destructor when the offset is no number. `unpack_some` checks the text.
    unsafe {
        let offset = luaL_optinteger(lua, 2, 0);
        lua_settop(lua, lua_gettop(lua).min(1));
        unpack_some(lua, 1, offset)
    }
}

/// `cmsgpack.unpack_limit(text, limit [, offset])`: the next offset, or -1 at the end, and up to `limit` values.
unsafe extern "C-unwind" fn unpack_limit(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, and nothing here has a destructor when the limit or the offset is no number. `unpack_some` checks
    // the text.
    unsafe {
        let limit = luaL_checkinteger(lua, 2);
        let offset = luaL_optinteger(lua, 3, 0);
        lua_settop(lua, lua_gettop(lua).min(1));
        unpack_some(lua, limit, offset)
    }
}

/// Pushes the offset of their end and up to `limit` values from `offset` on. If both are 0, pushes all values and no offset.
unsafe fn unpack_some(lua: *mut lua_State, limit: lua_Integer, offset: lua_Integer) -> c_int {
    // SAFETY: Lua called the function that calls this, and argument 1, which stays on the stack, is checked to be a string.
    // Nothing there has a destructor when an error is raised.
    unsafe {
        luaL_checklstring(lua, 1, std::ptr::null_mut());
        let text = bytes(lua, 1).unwrap_or_default();
        if offset < 0 || limit < 0 {
            // As in Redis, the second number is not the limit.
            let format = c"Invalid request to unpack with offset of %d and limit of %d.";
            raise_numbers(lua, format, offset as c_int, text.len() as c_int);
        }
        let Some(rest) = text.get(offset as usize..) else {
            let format = c"Start offset %d greater than input length %d.";
            raise_numbers(lua, format, offset as c_int, text.len() as c_int);
        };
        let all = limit == 0 && offset == 0;
        let limit = if all { c_int::MAX as lua_Integer } else { limit };
        let mut input = Input { lua, rest, uncounted: rest.len() };
        let mut count = 0;
        while !input.rest.is_empty() && (count as lua_Integer) < limit {
            input.decode();
            count += 1;
        }
        input.consume_fuel();
        if !all {
            ensure_stack(lua, 1, c"in function mp_unpack_full");
            let end = if input.rest.is_empty() { -1.0 } else { (text.len() - input.rest.len()) as f64 };
            lua_pushnumber(lua, end);
            lua_insert(lua, 2);
            count += 1;
        }
        count
    }
}

/// The bytes left to unpack.
struct Input {
    lua: *mut lua_State,
    rest: &'static [u8],
    /// Length of `rest` when fuel was last consumed.
    uncounted: usize,
}

impl Input {
    /// Consumes fuel for the bytes read since the last call.
    unsafe fn consume_fuel(&mut self) {
        let read = std::mem::replace(&mut self.uncounted, self.rest.len()) - self.rest.len();
        // SAFETY: Lua called a function that unpacks while a script runs. Nothing there has a destructor when `consume` raises an
        // error.
        unsafe { fuel::consume(self.lua, Interpreter::of(self.lua), STEPS_PER_BYTE * read as u64) };
    }

    /// The next `len` bytes. Raises an error if there are fewer.
    unsafe fn take(&mut self, len: usize) -> &'static [u8] {
        match self.rest.split_at_checked(len) {
            Some((taken, rest)) => {
                self.rest = rest;
                taken
            }
            // SAFETY: Lua called a function that unpacks, and nothing there has a destructor when the error is raised.
            None => unsafe { raise(self.lua, c"Missing bytes in input.") },
        }
    }

    /// The next `N` bytes.
    unsafe fn array<const N: usize>(&mut self) -> [u8; N] {
        // SAFETY: nothing in the function that Lua called has a destructor when `take` raises an error.
        unsafe { self.take(N) }.try_into().unwrap_or([0; N])
    }

    /// A length of 8, 16 or 32 bits.
    unsafe fn length(&mut self, bits: u32) -> usize {
        // SAFETY: nothing in the function that Lua called has a destructor when `array` raises an error.
        unsafe {
            match bits {
                8 => usize::from(self.array::<1>()[0]),
                16 => usize::from(u16::from_be_bytes(self.array())),
                _ => u32::from_be_bytes(self.array()) as usize,
            }
        }
    }

    /// Pushes the next value. Surrounding tables are in the interpreter's list of levels, so only the Lua stack limits the nesting.
    unsafe fn decode(&mut self) {
        let lua = self.lua;
        // SAFETY: nothing else uses the levels meanwhile, as nothing here calls a script's code. A table, a key and a value are
        // on top at `lua_rawset`, `scalar_or_open` has made room for them, and nothing has a destructor when a key is refused.
        unsafe {
            let levels = &raw mut (*Interpreter::of(lua)).nesting;
            (*levels).clear();
            loop {
                if self.uncounted - self.rest.len() >= CHECK_EVERY {
                    self.consume_fuel();
                }
                if let Some(level) = self.scalar_or_open().filter(|level| level.len > 0) {
                    if level.kind == Kind::Array {
                        lua_pushnumber(lua, 1.0);
                    }
                    (*levels).push(level);
                    continue;
                }
                // A value is complete. It may complete the tables that surround it.
                loop {
                    let Some(level) = (*levels).last_mut() else { return };
                    level.done += 1;
                    // A map alternates between keys and values.
                    if level.kind == Kind::Map && level.done % 2 == 1 {
                        break;
                    }
                    let (next, done) = (level.done + 1, level.done >= level.len);
                    let is_array = level.kind == Kind::Array;
                    lua_rawset(lua, -3);
                    if !done {
                        if is_array {
                            lua_pushnumber(lua, next as f64);
                        }
                        break;
                    }
                    (*levels).pop();
                }
            }
        }
    }

    /// Pushes a scalar, or the table for an array or map, which is returned as a level.
    unsafe fn scalar_or_open(&mut self) -> Option<Level> {
        let lua = self.lua;
        // SAFETY: `ensure_stack` makes room before a value is pushed, and `take` gives bytes of the text, which stays on the
        // stack. Nothing has a destructor when an error is raised.
        unsafe {
            let first = self.array::<1>()[0];
            let many = c"too many return values at once; use unpack_one or unpack_limit instead.";
            ensure_stack(lua, 1, many);
            let number = match first {
                0x00..=0x7f => f64::from(first),
                0xe0..=0xff => f64::from(first.cast_signed()),
                0xcc => f64::from(self.array::<1>()[0]),
                0xcd => f64::from(u16::from_be_bytes(self.array())),
                0xce => f64::from(u32::from_be_bytes(self.array())),
                // As in Redis, the largest unsigned integers become negative numbers.
                0xcf | 0xd3 => i64::from_be_bytes(self.array()) as f64,
                0xd0 => f64::from(i8::from_be_bytes(self.array())),
                0xd1 => f64::from(i16::from_be_bytes(self.array())),
                0xd2 => f64::from(i32::from_be_bytes(self.array())),
                0xca => f64::from(f32::from_be_bytes(self.array())),
                0xcb => f64::from_be_bytes(self.array()),
                0xc0 => {
                    lua_pushnil(lua);
                    return None;
                }
                0xc2 | 0xc3 => {
                    lua_pushboolean(lua, c_int::from(first == 0xc3));
                    return None;
                }
                0xa0..=0xbf | 0xd9..=0xdb => {
                    let len = if first < 0xc0 { usize::from(first & 0x1f) } else { self.length(8 << (first - 0xd9)) };
                    push_bytes(lua, self.take(len));
                    return None;
                }
                0x90..=0x9f | 0xdc | 0xdd => {
                    let len = if first < 0xa0 { usize::from(first & 0xf) } else { self.length(16 << (first - 0xdc)) };
                    lua_createtable(lua, 0, 0);
                    ensure_stack(lua, 1, c"in function mp_decode_to_lua_array");
                    return Some(Level { kind: Kind::Array, done: 0, len: len as u64 });
                }
                0x80..=0x8f | 0xde | 0xdf => {
                    let len = if first < 0x90 { usize::from(first & 0xf) } else { self.length(16 << (first - 0xde)) };
                    lua_createtable(lua, 0, 0);
                    return Some(Level { kind: Kind::Map, done: 0, len: len as u64 * 2 });
                }
                _ => raise(lua, c"Bad data format in input."),
            };
            lua_pushnumber(lua, number);
            None
        }
    }
}
