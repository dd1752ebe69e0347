//! `cjson.encode`.

use std::ffi::CStr;
use std::os::raw::c_int;

use mlua::ffi::*;

use super::number::NumberText;
use super::{INVALID_REFUSED, INVALID_WRITTEN, Settings, settings};
use crate::script::fuel;
use crate::script::globals::read_only;
use crate::script::interpreter::Interpreter;
use crate::script::libraries::buffer::{Kind, Level};
use crate::script::libraries::convert::to_i32;
use crate::script::libraries::raise::raise_numbers;
use crate::script::libraries::writer::Writer;
use crate::script::lua::stack::bytes;

/// `cjson.encode(value)`
pub(super) unsafe extern "C-unwind" fn encode(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, with room for twenty values, and it was set with the interpreter and its settings. Nothing has a
    // destructor where errors are raised.
    unsafe {
        luaL_argcheck(lua, c_int::from(lua_gettop(lua) == 1), 1, c"expected 1 argument".as_ptr());
        let encoder = Encoder { lua, settings: *settings(lua), out: Writer::new(lua) };
        encoder.run(&raw mut (*Interpreter::of(lua)).nesting);
        encoder.out.push();
    }
    1
}

// SAFETY of the functions below: as for `encode`; `run` makes room on the stack before it enters a table.

/// Writes one value.
struct Encoder {
    lua: *mut lua_State,
    settings: Settings,
    out: Writer,
}

impl Encoder {
    /// Writes the value on top and everything in it, without popping it. Surrounding tables are in `levels`. On the stack each of
    /// them lies below its current element, or below the key and the value.
    unsafe fn run(&self, levels: *mut Vec<Level>) {
        let (lua, out) = (self.lua, self.out);
        // SAFETY: nothing else uses the levels meanwhile, as nothing here calls a script's code. The value to write is on top,
        // and `open` makes room above each table for a key and a value.
        unsafe {
            (*levels).clear();
            loop {
                if lua_type(lua, -1) == LUA_TTABLE {
                    if let Some(level) = self.open((*levels).len() + 1) {
                        (*levels).push(level);
                        continue;
                    }
                } else {
                    self.scalar();
                }
                // A value is complete. It may complete the tables that surround it.
                loop {
                    let Some(level) = (*levels).last_mut() else { return };
                    lua_pop(lua, 1);
                    level.done += 1;
                    let more = match level.kind {
                        Kind::Array => level.done < level.len,
                        Kind::Map => lua_next(lua, -2) != 0,
                    };
                    if more {
                        out.byte(b',');
                        match level.kind {
                            Kind::Array => lua_rawgeti_(lua, -1, (level.done + 1) as c_int),
                            Kind::Map => self.key(),
                        }
                        break;
                    }
                    out.byte(if level.kind == Kind::Array { b']' } else { b'}' });
                    (*levels).pop();
                }
            }
        }
    }

    /// Begins the table on top, at this depth, and pushes its first value. If the table is empty, writes it and returns `None`.
    unsafe fn open(&self, depth: usize) -> Option<Level> {
        let lua = self.lua;
        // SAFETY: a table is on top, and `lua_checkstack` makes room for three values above it. Nothing in `encode` has a
        // destructor when an error is raised.
        unsafe {
            if depth > self.settings.encode_max_depth as usize || lua_checkstack(lua, 3) == 0 {
                raise_numbers(lua, c"Cannot serialise, excessive nesting (%d)", depth as c_int, 0);
            }
            read_only::unwrap(lua, lua_gettop(lua));
            let len = self.array_length();
            if len > 0 {
                self.out.byte(b'[');
                lua_rawgeti_(lua, -1, 1);
                return Some(Level { kind: Kind::Array, done: 0, len: len as u64 });
            }
            self.out.byte(b'{');
            lua_pushnil(lua);
            if lua_next(lua, -2) == 0 {
                self.out.byte(b'}');
                return None;
            }
            self.key();
            Some(Level { kind: Kind::Map, done: 0, len: 0 })
        }
    }

    /// The largest index of the table on top if it is an array. Less than 1 if it is an object.
    unsafe fn array_length(&self) -> c_int {
        let lua = self.lua;
        let (mut max, mut items) = (0, 0);
        // SAFETY: a table is on top, with room for a key and a value above it. No code of a script runs that could add a key, so
        // `lua_next` finds each key, and nothing has a destructor when `consume` raises an error.
        unsafe {
            let interpreter = Interpreter::of(lua);
            lua_pushnil(lua);
            while lua_next(lua, -2) != 0 {
                fuel::consume(lua, interpreter, 2);
                let key = if lua_type(lua, -2) == LUA_TNUMBER { lua_tonumber(lua, -2) } else { 0.0 };
                if key < 1.0 || key.floor() != key {
                    lua_pop(lua, 2);
                    return -1;
                }
                if key > f64::from(max) {
                    // An index beyond the range of an int becomes negative, so the table becomes an object.
                    max = to_i32(key);
                }
                items += 1;
                lua_pop(lua, 1);
            }
            let Settings { sparse_convert, sparse_ratio, sparse_safe, .. } = self.settings;
            if sparse_ratio > 0 && max > sparse_ratio.wrapping_mul(items) && max > sparse_safe {
                if sparse_convert == 0 {
                    self.refuse(LUA_TTABLE, c"excessively sparse array");
                }
                return -1;
            }
        }
        max
    }

    /// Writes the key below the value on top.
    unsafe fn key(&self) {
        // SAFETY: a key lies below the value on top, and stays there while it is written. Nothing in `encode` has a destructor
        // when an error is raised.
        unsafe {
            match lua_type(self.lua, -2) {
                LUA_TNUMBER => {
                    self.out.byte(b'"');
                    self.number(lua_tonumber(self.lua, -2));
                    self.out.byte(b'"');
                }
                LUA_TSTRING => self.text(bytes(self.lua, -2).unwrap_or_default()),
                kind => self.refuse(kind, c"table key must be a number or string"),
            }
            self.out.byte(b':');
        }
    }

    /// Writes the value on top, which is not a table.
    unsafe fn scalar(&self) {
        let lua = self.lua;
        // SAFETY: a value is on top, and a string stays there while it is written. Nothing in `encode` has a destructor when an
        // error is raised.
        unsafe {
            match lua_type(lua, -1) {
                LUA_TSTRING => self.text(bytes(lua, -1).unwrap_or_default()),
                LUA_TNUMBER => self.number(lua_tonumber(lua, -1)),
                LUA_TBOOLEAN if lua_toboolean(lua, -1) != 0 => self.out.put(b"true"),
                LUA_TBOOLEAN => self.out.put(b"false"),
                LUA_TNIL => self.out.put(b"null"),
                LUA_TLIGHTUSERDATA if lua_touserdata(lua, -1).is_null() => self.out.put(b"null"),
                kind => self.refuse(kind, c"type not supported"),
            }
        }
    }

    /// Writes a string.
    unsafe fn text(&self, text: &[u8]) {
        // SAFETY: what is written comes from a string on the stack or from this frame, and so is not part of the buffer. Nothing
        // in `encode` has a destructor when the writer raises an error.
        unsafe {
            self.out.byte(b'"');
            let mut rest = text;
            while let Some(at) = rest.iter().position(|byte| matches!(byte, 0..0x20 | b'"' | b'/' | b'\\' | 0x7f)) {
                self.out.put(&rest[..at]);
                let byte = rest[at];
                let short = match byte {
                    0x08 => b'b',
                    b'\t' => b't',
                    b'\n' => b'n',
                    0x0c => b'f',
                    b'\r' => b'r',
                    b'"' | b'/' | b'\\' => byte,
                    _ => 0,
                };
                if short != 0 {
                    self.out.put(&[b'\\', short]);
                } else {
                    let digit = |value: u8| b"0123456789abcdef"[usize::from(value)];
                    self.out.put(&[b'\\', b'u', b'0', b'0', digit(byte >> 4), digit(byte & 15)]);
                }
                rest = &rest[at + 1..];
            }
            self.out.put(rest);
            self.out.byte(b'"');
        }
    }

    /// Writes a number.
    unsafe fn number(&self, number: f64) {
        // SAFETY: the bytes are constants or a text in this frame, and so not part of the buffer. Nothing in `encode` has a
        // destructor when an error is raised, that text included.
        unsafe {
            if !number.is_finite() {
                match self.settings.encode_invalid_numbers {
                    INVALID_REFUSED => self.refuse(LUA_TNUMBER, c"must not be NaN or Inf"),
                    INVALID_WRITTEN if number.is_nan() => self.out.put(b"nan"),
                    INVALID_WRITTEN if number > 0.0 => self.out.put(b"inf"),
                    INVALID_WRITTEN => self.out.put(b"-inf"),
                    _ => self.out.put(b"null"),
                }
                return;
            }
            let precision = self.settings.number_precision;
            if number.fract() == 0.0 && number.abs() < 10f64.powi(precision) && (number != 0.0 || number.is_sign_positive()) {
                return self.out.put(itoa::Buffer::new().format(number as i64).as_bytes());
            }
            self.out.put(NumberText::new(number, precision as usize).as_bytes());
        }
    }

    /// Raises the error for a value of this type.
    unsafe fn refuse(&self, kind: c_int, reason: &'static CStr) -> ! {
        let lua = self.lua;
        // SAFETY: the emptied stack has room for the message, and names of types are constants. Nothing in `encode` has a
        // destructor.
        unsafe {
            lua_settop(lua, 0);
            luaL_where(lua, 1);
            lua_pushfstring(lua, c"Cannot serialise %s: %s".as_ptr(), lua_typename(lua, kind), reason.as_ptr());
            lua_concat(lua, 2);
            lua_error(lua)
        }
    }
}
