//! `struct`: conversion between values and bytes by a format, as in a C structure.
//!
//! ```text
//!   >  <  !n   byte order, and the maximum alignment of elements         x   a byte of padding
//!   b h l i In   signed integers     f d   floats                        s   a string and a NUL
//!   B H L I T    unsigned integers   cn    n bytes; c0: a whole string, or as many bytes as the number before it
//! ```

use std::ffi::CStr;
use std::os::raw::c_int;

use mlua::ffi::*;

use crate::script::fuel;
use crate::script::interpreter::Interpreter;
use crate::script::libraries::convert::{to_i64, to_u64};
use crate::script::libraries::raise::{ensure_stack, raise, raise_numbers};
use crate::script::libraries::writer::Writer;
use crate::script::lua::stack::{bytes, c_bytes, push_bytes};

/// Maximum size of an integer in bytes.
const INTEGER_MAX: usize = 32;

/// The alignment of `!` without a number, in bytes.
const ALIGN: u32 = 8;

/// Pushes the table.
///
/// # Safety
/// The stack has room for five values, the interpreter outlives the state, and allocations cannot fail.
pub(super) unsafe fn push_table(lua: *mut lua_State, interpreter: *mut Interpreter) {
    // SAFETY: the stack has room for five values: the table, and the three above it that `set_function` needs. The interpreter
    // outlives the state.
    unsafe {
        lua_createtable(lua, 0, 3);
        Interpreter::set_function(lua, interpreter, c"pack", pack);
        Interpreter::set_function(lua, interpreter, c"unpack", unpack);
        Interpreter::set_function(lua, interpreter, c"size", size);
    }
}

// SAFETY of the functions below: Lua calls them, with room for twenty values beyond their arguments, and they were set with the
// interpreter. The format and the bytes to unpack stay on the stack as arguments. Nothing has a destructor where errors are raised.

/// The rest of a format, and the state that its letters set.
struct Format {
    lua: *mut lua_State,
    rest: &'static [u8],
    big_endian: bool,
    /// Maximum alignment in bytes. A power of two.
    align: usize,
}

/// One letter of a format.
struct Item {
    letter: u8,
    /// Size in bytes. 0 if the letter has none.
    size: usize,
}

impl Format {
    /// The format in the first argument.
    unsafe fn new(lua: *mut lua_State) -> Self {
        // SAFETY: Lua called the function that calls this, and argument 1 is checked to be a string, which stays on the stack as
        // long as the format is used.
        unsafe {
            luaL_checklstring(lua, 1, std::ptr::null_mut());
            let rest = c_bytes(lua, 1).unwrap_or_default();
            Format { lua, rest, big_endian: cfg!(target_endian = "big"), align: 1 }
        }
    }

    /// The next letter and its size.
    unsafe fn next(&mut self) -> Option<Item> {
        let (&letter, rest) = self.rest.split_first()?;
        self.rest = rest;
        // SAFETY: Lua called the function that reads the format, while a script runs. Nothing there has a destructor when
        // `consume` raises an error.
        unsafe { fuel::consume(self.lua, Interpreter::of(self.lua), 2) };
        let size = match letter {
            b'b' | b'B' | b'x' => 1,
            b'h' | b'H' => 2,
            b'f' => 4,
            b'l' | b'L' | b'T' | b'd' => 8,
            // SAFETY: nothing in the function that Lua called has a destructor when the number is too large.
            b'c' => unsafe { self.number(1) as usize },
            b'i' | b'I' => {
                // SAFETY: nothing in the function that Lua called has a destructor when the number is too large.
                let size = unsafe { self.number(4) };
                if size as usize > INTEGER_MAX {
                    let text = c"integral size %d is larger than limit of %d";
                    // SAFETY: the text has two `%d`, and both numbers fit. Nothing in the function that Lua called has a
                    // destructor.
                    unsafe { raise_numbers(self.lua, text, size as c_int, INTEGER_MAX as c_int) }
                }
                size as usize
            }
            _ => 0,
        };
        Some(Item { letter, size })
    }

    /// The number in the next digits, or `default` if there are none. Raises an error beyond the range of a C int.
    unsafe fn number(&mut self, default: u32) -> u32 {
        if !self.rest.first().is_some_and(u8::is_ascii_digit) {
            return default;
        }
        let mut number = 0u32;
        while let Some((digit, rest)) = self.rest.split_first().filter(|(byte, _)| byte.is_ascii_digit()) {
            let next = u64::from(number) * 10 + u64::from(digit - b'0');
            if next > c_int::MAX as u64 {
                // SAFETY: Lua called the function that reads the format, and nothing there has a destructor.
                unsafe { raise(self.lua, c"integral size overflow") };
            }
            number = next as u32;
            self.rest = rest;
        }
        number
    }

    /// Number of bytes of padding before an item at offset `at`.
    fn padding(&self, at: usize, item: &Item) -> usize {
        if item.size == 0 || item.letter == b'c' {
            return 0;
        }
        let align = item.size.min(self.align);
        align.wrapping_sub(at & (align - 1)) & (align - 1)
    }

    /// Applies a letter that stands for no value. Raises an error for an unknown letter.
    unsafe fn control(&mut self, letter: u8) {
        match letter {
            b' ' => {}
            b'>' => self.big_endian = true,
            b'<' => self.big_endian = false,
            b'!' => {
                // SAFETY: nothing in the function that Lua called has a destructor when the number is too large.
                let align = unsafe { self.number(ALIGN) };
                if !align.is_power_of_two() {
                    // SAFETY: the text has one `%d`, and the number fits. Nothing in the function that Lua called has a
                    // destructor.
                    unsafe { raise_numbers(self.lua, c"alignment %d is not a power of 2", align as c_int, 0) };
                }
                self.align = align as usize;
            }
            // SAFETY: only the format remains on the stack, so there is room for the message, which stays there while
            // `luaL_argerror` copies it. Nothing in the function that Lua called has a destructor.
            _ => unsafe {
                lua_settop(self.lua, 1);
                push_bytes(self.lua, b"invalid format option '");
                push_bytes(self.lua, &[letter]);
                push_bytes(self.lua, b"'");
                lua_concat(self.lua, 3);
                luaL_argerror(self.lua, 1, lua_tostring(self.lua, -1));
            },
        }
    }
}

/// `struct.pack(format, …)`
unsafe extern "C-unwind" fn pack(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, and the format and the strings to pack are arguments, which stay on the stack. Nothing here has a
    // destructor when an error is raised.
    unsafe {
        let mut format = Format::new(lua);
        // So that a missing argument is nil.
        lua_pushnil(lua);
        let out = Writer::new(lua);
        let mut argument = 2;
        while let Some(item) = format.next() {
            for _ in 0..format.padding(out.len(), &item) {
                out.byte(0);
            }
            match item.letter {
                b'b' | b'B' | b'h' | b'H' | b'l' | b'L' | b'T' | b'i' | b'I' => {
                    let number = luaL_checknumber(lua, argument);
                    argument += 1;
                    let value = if number < 0.0 { to_i64(number) as u64 } else { to_u64(number) };
                    // Bytes beyond the eighth are 0, even for a negative number.
                    let mut field = [0; INTEGER_MAX];
                    field[..8].copy_from_slice(&value.to_le_bytes());
                    let field = &mut field[..item.size];
                    if format.big_endian {
                        field.reverse();
                    }
                    out.put(field);
                }
                b'x' => out.byte(0),
                b'f' => {
                    let number = luaL_checknumber(lua, argument) as f32;
                    argument += 1;
                    out.put(&if format.big_endian { number.to_be_bytes() } else { number.to_le_bytes() });
                }
                b'd' => {
                    let number = luaL_checknumber(lua, argument);
                    argument += 1;
                    out.put(&if format.big_endian { number.to_be_bytes() } else { number.to_le_bytes() });
                }
                b'c' | b's' => {
                    luaL_checklstring(lua, argument, std::ptr::null_mut());
                    let text = bytes(lua, argument).unwrap_or_default();
                    argument += 1;
                    let size = if item.size == 0 { text.len() } else { item.size };
                    // As in Redis, the error names the number of the next argument.
                    luaL_argcheck(lua, c_int::from(text.len() >= size), argument, c"string too short".as_ptr());
                    out.put(&text[..size.min(text.len())]);
                    if item.letter == b's' {
                        out.byte(0);
                    }
                }
                letter => format.control(letter),
            }
        }
        out.push();
    }
    1
}

/// The integer in a field of up to [`INTEGER_MAX`] bytes.
fn integer(field: &[u8], big_endian: bool, signed: bool) -> f64 {
    let join = |value: u64, byte: &u8| (value << 8) | u64::from(*byte);
    let value = if big_endian { field.iter().fold(0, join) } else { field.iter().rev().fold(0, join) };
    if !signed {
        return value as f64;
    }
    // The shift is taken modulo 64, as on x86, which decides the sign bit of integers beyond eight bytes.
    let sign = u64::MAX.wrapping_shl((field.len() as u32).wrapping_mul(8).wrapping_sub(1));
    let value = if value & sign != 0 { value | sign } else { value };
    value.cast_signed() as f64
}

/// The `size` bytes at offset `at`. Raises an error if there are fewer.
unsafe fn field(lua: *mut lua_State, data: &'static [u8], at: usize, size: usize) -> &'static [u8] {
    match at.checked_add(size).and_then(|end| data.get(at..end)) {
        Some(field) => field,
        // SAFETY: `unpack` is the function that Lua called, and nothing there has a destructor when the error is raised.
        None => unsafe {
            lua_settop(lua, 2);
            luaL_argerror(lua, 2, c"data string too short".as_ptr());
            b""
        },
    }
}

/// `struct.unpack(format, data [, position])`: the values and the position after them.
unsafe extern "C-unwind" fn unpack(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, and format and data are arguments, which stay on the stack. `ensure_stack` makes room for each
    // value, and nothing here has a destructor when an error is raised.
    unsafe {
        let mut format = Format::new(lua);
        luaL_checklstring(lua, 2, std::ptr::null_mut());
        let data = bytes(lua, 2).unwrap_or_default();
        let position = luaL_optinteger(lua, 3, 1) as usize;
        luaL_argcheck(lua, c_int::from(position > 0), 3, c"offset must be 1 or greater".as_ptr());
        let mut at = position - 1;
        let mut count = 0;
        while let Some(item) = format.next() {
            at = at.wrapping_add(format.padding(at, &item));
            let mut size = item.size;
            let bytes = field(lua, data, at, size);
            ensure_stack(lua, 2, c"too many results");
            match item.letter {
                b'b' | b'B' | b'h' | b'H' | b'l' | b'L' | b'T' | b'i' | b'I' => {
                    lua_pushnumber(lua, integer(bytes, format.big_endian, item.letter.is_ascii_lowercase()));
                }
                b'x' => count -= 1,
                b'f' => {
                    let bytes = bytes.try_into().unwrap_or_default();
                    let number = if format.big_endian { f32::from_be_bytes(bytes) } else { f32::from_le_bytes(bytes) };
                    lua_pushnumber(lua, number.into());
                }
                b'd' => {
                    let bytes = bytes.try_into().unwrap_or_default();
                    lua_pushnumber(lua, if format.big_endian { f64::from_be_bytes(bytes) } else { f64::from_le_bytes(bytes) });
                }
                b'c' if size > 0 => push_bytes(lua, bytes),
                b'c' => {
                    if count == 0 || lua_isnumber(lua, -1) == 0 {
                        raise(lua, c"format 'c0' needs a previous size");
                    }
                    size = to_u64(lua_tonumber(lua, -1)) as usize;
                    lua_pop(lua, 1);
                    count -= 1;
                    push_bytes(lua, field(lua, data, at, size));
                }
                b's' => match memchr::memchr(0, &data[at..]) {
                    Some(len) => {
                        push_bytes(lua, &data[at..at + len]);
                        size = len + 1;
                    }
                    None => {
                        raise(lua, c"unfinished string in data");
                    }
                },
                letter => {
                    format.control(letter);
                    count -= 1;
                }
            }
            count += 1;
            at = at.wrapping_add(size);
        }
        lua_pushnumber(lua, at.wrapping_add(1).cast_signed() as f64);
        count + 1
    }
}

/// `struct.size(format)`
unsafe extern "C-unwind" fn size(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, and the format is an argument, which stays on the stack. Nothing here has a destructor when an
    // error is raised.
    unsafe {
        let refuse = |text: &'static CStr| luaL_argerror(lua, 1, text.as_ptr());
        let mut format = Format::new(lua);
        let mut at = 0usize;
        while let Some(item) = format.next() {
            at = at.wrapping_add(format.padding(at, &item));
            match (item.letter, item.size) {
                (b's', _) => {
                    refuse(c"option 's' has no fixed size");
                }
                (b'c', 0) => {
                    refuse(c"option 'c0' has no fixed size");
                }
                // As in Redis, unknown letters are ignored here.
                (letter, _) if !letter.is_ascii_alphanumeric() => format.control(letter),
                _ => {}
            }
            at = at.wrapping_add(item.size);
        }
        lua_pushnumber(lua, at.cast_signed() as f64);
    }
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_of_any_width_are_read() {
        assert_eq!(integer(&[], false, true), 0.0);
        assert_eq!(integer(&[0xff], false, true), -1.0);
        assert_eq!(integer(&[0xff], false, false), 255.0);
        assert_eq!(integer(&[1, 2], true, false), 258.0);
        assert_eq!(integer(&[1, 2], false, false), 513.0);
        assert_eq!(integer(&[0xff; 16], false, true), -1.0);
    }
}
