//! Conversion of a script's result, a Lua value, to a reply.
//!
//! Nested tables are written in a loop rather than a recursion, so only the Lua stack limits their depth, as in Redis.

use std::ffi::CStr;
use std::os::raw::c_int;

use mlua::ffi::*;
use smallvec::SmallVec;

use crate::base::error::Error;
use crate::engine::Engine;
use crate::resp::reply::{Protocol, Sink};
use crate::script::conversion::errors;
use crate::script::globals::read_only;
use crate::script::lua::stack::{bytes, c_bytes, get_field};

/// Maximum number of elements of all aggregates of a result together. Otherwise a table that contains itself twice would make an
/// endless reply. Smaller in tests.
const ELEMENTS_MAX: usize = if cfg!(test) { 1 << 18 } else { 1 << 24 };

/// An aggregate that is being written. Its table lies on the stack. Above that of a map or set lie the inner table and a key.
enum Level {
    /// `next` is the index of the next element.
    Array {
        next: c_int,
        len: c_int,
    },
    /// A map whose next element is a key.
    MapKey {
        pairs: usize,
    },
    /// A map whose next element is a value, which already lies on the stack.
    MapValue {
        pairs: usize,
    },
    Set {
        len: usize,
    },
}

type Levels = SmallVec<[Level; 8]>;

impl Level {
    /// Number of its elements.
    fn len(&self) -> usize {
        match *self {
            Level::Array { len, .. } => len as usize,
            Level::MapKey { pairs } | Level::MapValue { pairs } => pairs * 2,
            Level::Set { len } => len,
        }
    }

    /// Brings the next element to the top of the stack. If there is none, pops the aggregate and returns false.
    #[inline]
    unsafe fn push_next(&mut self, lua: *mut lua_State) -> bool {
        // SAFETY: the stack is as described at `Level`, and `write_or_open` has made room for four values above the table.
        // Nothing changes the table meanwhile, so `lua_next` finds the key.
        unsafe {
            match self {
                Level::Array { next, len } if *next <= *len => {
                    lua_rawgeti_(lua, -1, *next);
                    *next += 1;
                    true
                }
                Level::Array { .. } => {
                    lua_pop(lua, 1);
                    false
                }
                Level::MapKey { pairs } => {
                    if lua_next(lua, -2) == 0 {
                        lua_pop(lua, 2);
                        return false;
                    }
                    lua_pushvalue(lua, -2);
                    *self = Level::MapValue { pairs: *pairs };
                    true
                }
                Level::MapValue { pairs } => {
                    *self = Level::MapKey { pairs: *pairs };
                    true
                }
                Level::Set { .. } => {
                    if lua_next(lua, -2) == 0 {
                        lua_pop(lua, 2);
                        return false;
                    }
                    lua_pop(lua, 1);
                    lua_pushvalue(lua, -1);
                    true
                }
            }
        }
    }
}

/// Writes the value on top of the stack as a reply and pops it. Returns whether the reply is or contains an error. `protocol` is
/// the one that the script has chosen (`redis.setresp`).
///
/// # Safety
/// There is a value on the stack, and allocations cannot fail.
pub(crate) unsafe fn write(lua: *mut lua_State, protocol: Protocol, engine: &mut Engine, reply: &mut dyn Sink) -> bool {
    // SAFETY: as promised.
    unsafe {
        if lua_type(lua, -1) != LUA_TTABLE {
            write_scalar(lua, protocol, reply);
            return false;
        }
        write_nested(lua, protocol, engine, reply)
    }
}

/// As [`write()`], for a table. If the result has too many elements or bytes, the reply is an error instead.
unsafe fn write_nested(lua: *mut lua_State, protocol: Protocol, engine: &mut Engine, reply: &mut dyn Sink) -> bool {
    let mut failed = false;
    let mut levels = Levels::new();
    let (begin, bytes_max, mut left) = (reply.mark(), engine.config().proto_max_bulk_len, ELEMENTS_MAX);
    loop {
        let depth = levels.len();
        // SAFETY: the value to write is on top: first that of `write`, and then the one that `push_next` has pushed. Allocations
        // cannot fail.
        failed |= unsafe { write_or_open(lua, protocol, engine, reply, &mut levels) };
        if levels.len() > depth {
            left = left.saturating_sub(levels.last().map_or(0, |level| level.len() + 1));
        }
        if left == 0 || (reply.mark() - begin) as u64 > bytes_max && !levels.is_empty() {
            reply.rewind(begin);
            engine.refuse(&Error::SCRIPT_RESULT_TOO_LARGE, reply);
            return true;
        }
        // SAFETY: `write_or_open` has popped the value or opened it as a level, so the stack is as described at `Level`.
        if !unsafe { push_next(lua, &mut levels) } {
            return failed;
        }
    }
}

/// Pushes the next value to write, and closes the levels that are complete. Returns false if there is none.
#[inline]
unsafe fn push_next(lua: *mut lua_State, levels: &mut Levels) -> bool {
    while let Some(level) = levels.last_mut() {
        // SAFETY: the value of this level that was written last is popped, so the stack is as described at `Level`.
        if unsafe { level.push_next(lua) } {
            return true;
        }
        levels.pop();
    }
    false
}

/// Writes and pops the value on top, or opens it as a level. Returns whether it is an error.
unsafe fn write_or_open(
    lua: *mut lua_State,
    protocol: Protocol,
    engine: &mut Engine,
    reply: &mut dyn Sink,
    levels: &mut Levels,
) -> bool {
    // SAFETY: a value is on top, and `lua_checkstack` makes room for four more before a table is read. Allocations cannot fail.
    unsafe {
        if lua_checkstack(lua, 4) == 0 {
            let error = Error::new("ERR reached lua stack limit");
            engine.refuse(&error, reply);
            lua_pop(lua, 1);
            return true;
        }
        if lua_type(lua, -1) == LUA_TTABLE {
            return write_or_open_table(lua, engine, reply, levels);
        }
        write_scalar(lua, protocol, reply);
        false
    }
}

/// Writes and pops the value on top, which is not a table.
unsafe fn write_scalar(lua: *mut lua_State, protocol: Protocol, reply: &mut dyn Sink) {
    // SAFETY: a value is on top that is no table. The reply has its bytes before it is popped.
    unsafe {
        match lua_type(lua, -1) {
            LUA_TSTRING => reply.bulk(bytes(lua, -1).unwrap_or_default()),
            LUA_TNUMBER => reply.integer(truncate(lua_tonumber(lua, -1))),
            LUA_TBOOLEAN => match (lua_toboolean(lua, -1) != 0, protocol) {
                (value, Protocol::Resp3) => reply.boolean(value),
                (true, Protocol::Resp2) => reply.integer(1),
                (false, Protocol::Resp2) => reply.null(),
            },
            _ => reply.null(),
        }
        lua_pop(lua, 1);
    }
}

/// A number without its fraction. Numbers beyond the range of `i64`, and NaN, become `i64::MIN`, as on x86.
pub(crate) fn truncate(value: f64) -> i64 {
    const BEYOND: f64 = 9_223_372_036_854_775_808.0;
    if (-BEYOND..BEYOND).contains(&value) { value as i64 } else { i64::MIN }
}

/// Writes a status reply. Line ends become blanks.
pub(crate) fn write_status(text: &[u8], reply: &mut dyn Sink) {
    if text.iter().any(|byte| matches!(byte, b'\r' | b'\n')) {
        let one_line: Vec<u8> = text.iter().map(|&b| if matches!(b, b'\r' | b'\n') { b' ' } else { b }).collect();
        reply.status(&one_line);
    } else {
        reply.status(text);
    }
}

/// Writes and pops the table on top, or opens it as a level. Returns whether it is an error.
unsafe fn write_or_open_table(lua: *mut lua_State, engine: &mut Engine, reply: &mut dyn Sink, levels: &mut Levels) -> bool {
    // SAFETY: a table is on top, and `write_or_open` has made room for four values above it. Strings are on the stack as long as
    // their bytes are used.
    unsafe {
        let mut failed = false;
        let top = lua_gettop(lua);
        let len = elements(lua);
        if is_list(lua, len) {
            reply.array(len as usize);
            levels.push(Level::Array { next: 1, len });
            return false;
        }
        if field_is(lua, c"err", LUA_TSTRING) {
            let text = c_bytes(lua, -1).unwrap_or_default();
            lua_insert(lua, -2);
            if !errors::is_counted(lua) {
                engine.stats_mut().error(&Error::of_bytes(text.to_vec()));
            }
            reply.error(&errors::blank_leading_line_ends(text));
            failed = true;
        } else if field_is(lua, c"ok", LUA_TSTRING) {
            write_status(c_bytes(lua, -1).unwrap_or_default(), reply);
        } else if field_is(lua, c"double", LUA_TNUMBER) {
            reply.double(lua_tonumber(lua, -1));
        } else if field_is(lua, c"big_number", LUA_TSTRING) {
            let mut text = bytes(lua, -1).unwrap_or_default().to_vec();
            text.iter_mut().filter(|byte| matches!(byte, b'\r' | b'\n')).for_each(|byte| *byte = b' ');
            reply.big_number_of(&text);
        } else if let Some((format, text)) = verbatim(lua) {
            reply.verbatim_of(format, text);
        } else if field_is(lua, c"map", LUA_TTABLE) {
            read_only::unwrap(lua, top + 1);
            let pairs = count(lua);
            reply.map(pairs);
            lua_pushnil(lua);
            levels.push(Level::MapKey { pairs });
            return false;
        } else if field_is(lua, c"set", LUA_TTABLE) {
            read_only::unwrap(lua, top + 1);
            let len = count(lua);
            reply.set(len);
            lua_pushnil(lua);
            levels.push(Level::Set { len });
            return false;
        } else {
            reply.array(len as usize);
            levels.push(Level::Array { next: 1, len });
            return false;
        }
        lua_settop(lua, top - 1);
        failed
    }
}

/// Whether the table on top is a short list with no entries besides its `len` elements, and so has none of the fields (`err`,
/// `map`, …) that would make it another reply. False for long tables: those fields are looked up instead.
unsafe fn is_list(lua: *mut lua_State, len: c_int) -> bool {
    if len > 16 {
        return false;
    }
    // SAFETY: a table is on top, with room for a key and a value above it. Nothing changes it meanwhile, so `lua_next` finds the
    // key.
    unsafe {
        lua_pushnil(lua);
        for _ in 0..len {
            if lua_next(lua, -2) == 0 {
                return true;
            }
            lua_pop(lua, 1);
        }
        let more = lua_next(lua, -2) != 0;
        if more {
            lua_pop(lua, 2);
        }
        !more
    }
}

/// Pushes a field of the table on top if it has this type. Returns whether it has.
unsafe fn field_is(lua: *mut lua_State, name: &'static CStr, kind: c_int) -> bool {
    // SAFETY: a table is on top, with room for a field above it.
    unsafe {
        get_field(lua, -1, name);
        let is = lua_type(lua, -1) == kind;
        if !is {
            lua_pop(lua, 1);
        }
        is
    }
}

/// The format and the text of a `verbatim_string` in the table on top. Their strings remain on the stack above the table.
unsafe fn verbatim<'a>(lua: *mut lua_State) -> Option<([u8; 3], &'a [u8])> {
    // SAFETY: a table is on top, with room for two values above it. The string of the text stays on the stack, which keeps its
    // bytes.
    unsafe {
        if !field_is(lua, c"verbatim_string", LUA_TTABLE) {
            return None;
        }
        if field_is(lua, c"format", LUA_TSTRING) {
            // Three letters, padded with blanks.
            let given = c_bytes(lua, -1).unwrap_or_default();
            let format = std::array::from_fn(|at| given.get(at).copied().unwrap_or(b' '));
            lua_pop(lua, 1);
            if field_is(lua, c"string", LUA_TSTRING) {
                return Some((format, bytes(lua, -1).unwrap_or_default()));
            }
        }
        lua_pop(lua, 1);
        None
    }
}

/// Number of entries of the table on top.
unsafe fn count(lua: *mut lua_State) -> usize {
    let mut count = 0;
    // SAFETY: a table is on top, with room for a key and a value above it. Nothing changes it meanwhile, so `lua_next` finds the
    // key.
    unsafe {
        lua_pushnil(lua);
        while lua_next(lua, -2) != 0 {
            lua_pop(lua, 1);
            count += 1;
        }
    }
    count
}

/// Number of elements of the table on top before the first nil.
unsafe fn elements(lua: *mut lua_State) -> c_int {
    let mut len = 0;
    loop {
        // SAFETY: a table is on top, with room for an element above it.
        unsafe {
            lua_rawgeti_(lua, -1, len + 1);
            let end = lua_type(lua, -1) == LUA_TNIL;
            lua_pop(lua, 1);
            if end {
                return len;
            }
        }
        len += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_lose_their_fraction_and_numbers_out_of_range_become_the_minimum() {
        for (value, whole) in
            [(1.9, 1), (-1.9, -1), (1e30, i64::MIN), (f64::NAN, i64::MIN), (-9.3e18, i64::MIN), (2e9, 2_000_000_000)]
        {
            assert_eq!(truncate(value), whole);
        }
    }
}
