//! Replies of commands, pushed directly onto the Lua stack.
//!
//! No reply is serialized. An aggregate is a table on the stack and a [`Level`] that counts its missing elements. The last element
//! completes the aggregate, which then becomes an element of the next outer one.
//!
//! Allocations cannot fail here (see [`crate::script::lua::memory`]), so Lua never jumps out of a handler.

use std::os::raw::c_int;

use mlua::ffi::*;
use smallvec::SmallVec;

use crate::resp::double::{DOUBLE_MAX, format_double};
use crate::resp::reply::{Protocol, Sink};
use crate::script::conversion::errors;
use crate::script::interpreter::{OK_FIELD, OK_TEXT};
use crate::script::lua::layout;
use crate::script::lua::stack::{push_bytes, set_field};

/// Maximum number of elements of an aggregate. Lua raises an error for somewhat larger tables, which must not happen in a handler.
const TABLE_MAX: usize = 1 << 25;

#[derive(Clone, Copy)]
enum Kind {
    Array,
    /// `{map = {…}}`. Its elements are keys and values in turn.
    Map,
    /// `{set = {[element] = true}}`
    Set,
}

/// An aggregate that is not complete.
struct Level {
    kind: Kind,
    /// Number of missing elements.
    left: usize,
    /// Number of elements so far. Only for arrays.
    index: c_int,
}

/// Pushes one reply onto the stack of a Lua thread.
pub(crate) struct LuaSink {
    lua: *mut lua_State,
    protocol: Protocol,
    levels: SmallVec<[Level; 4]>,
    /// Number of elements of all aggregates.
    elements: usize,
    /// Whether the reply is an error.
    failed: bool,
    /// Whether the reply is nested deeper than the stack allows, or an aggregate has more than [`TABLE_MAX`] elements. The rest of
    /// the reply is then discarded.
    too_large: bool,
}

impl LuaSink {
    /// # Safety
    /// `lua` outlives the sink and has room for four more values. Its allocations cannot fail.
    pub(crate) unsafe fn new(lua: *mut lua_State, protocol: Protocol) -> Self {
        LuaSink { lua, protocol, levels: SmallVec::new(), elements: 0, failed: false, too_large: false }
    }

    /// Whether the reply is an error.
    pub(crate) fn failed(&self) -> bool {
        self.failed
    }

    /// Number of its elements, at all levels.
    pub(crate) fn elements(&self) -> usize {
        self.elements
    }

    /// Whether the reply was too large for Lua.
    pub(crate) fn too_large(&self) -> bool {
        self.too_large
    }

    fn resp3(&self) -> bool {
        self.protocol == Protocol::Resp3
    }

    /// Pushes one value with `push` and adds it to the innermost aggregate.
    #[inline]
    fn value(&mut self, push: impl FnOnce(*mut lua_State)) {
        if self.too_large {
            return;
        }
        push(self.lua);
        if !self.levels.is_empty() {
            self.add_to_aggregate();
        }
    }

    /// Pushes `{name = value}`, whose value `push` pushes.
    fn wrapped(&mut self, name: &'static std::ffi::CStr, push: impl FnOnce(*mut lua_State)) {
        self.value(|lua| {
            // SAFETY: `new` or `open` has made room for three values: the table, the one that `push` leaves, and the name that
            // goes between them.
            unsafe {
                lua_createtable(lua, 0, 1);
                push(lua);
                set_field(lua, name);
            }
        });
    }

    /// Begins an aggregate with `len` elements, or `len` pairs for a map.
    fn open(&mut self, kind: Kind, len: usize) {
        let lua = self.lua;
        // SAFETY: `lua_checkstack` makes room for seven values before the tables are pushed. Allocations cannot fail, and Lua
        // refuses no table of up to `TABLE_MAX` elements.
        unsafe {
            if self.too_large || len > TABLE_MAX || lua_checkstack(lua, 7) == 0 {
                self.too_large = true;
                return;
            }
            let room = c_int::try_from(len).unwrap_or(c_int::MAX);
            match kind {
                // In RESP3 a null is a hole, and `#` of a table with holes depends on how the table grew. Redis grows it one by
                // one.
                Kind::Array => lua_createtable(lua, if self.protocol == Protocol::Resp3 { 0 } else { room }, 0),
                // Likewise for the order in which a script iterates over its entries.
                Kind::Map | Kind::Set => {
                    lua_createtable(lua, 0, 1);
                    lua_createtable(lua, 0, 0);
                }
            }
        }
        let left = if matches!(kind, Kind::Map) { len.saturating_mul(2) } else { len };
        self.elements = self.elements.saturating_add(left);
        self.levels.push(Level { kind, left, index: 0 });
        if left == 0 {
            self.close();
            self.add_to_aggregate();
        }
    }

    /// Ends the innermost aggregate and leaves it as one value on the stack.
    fn close(&mut self) {
        let Some(level) = self.levels.pop() else { return };
        let name = match level.kind {
            Kind::Array => return,
            Kind::Map => c"map",
            Kind::Set => c"set",
        };
        // SAFETY: below the filled table lies the one that wraps it.
        unsafe { set_field(self.lua, name) };
    }

    /// Pops the value on top into the innermost aggregate, and each complete aggregate into the next outer one.
    fn add_to_aggregate(&mut self) {
        let lua = self.lua;
        while let Some(level) = self.levels.last_mut() {
            level.left -= 1;
            // SAFETY: the table of the level lies under the value, or under the key and the value; a nil or NaN key, which a table
            // cannot take, is thrown away.
            unsafe {
                match level.kind {
                    Kind::Array => {
                        level.index += 1;
                        lua_rawseti_(lua, -2, level.index);
                    }
                    Kind::Map if level.left % 2 == 1 => return,
                    Kind::Map if is_key(lua, -2) => lua_rawset(lua, -3),
                    Kind::Map => lua_pop(lua, 2),
                    Kind::Set if is_key(lua, -1) => {
                        lua_pushboolean(lua, 1);
                        lua_rawset(lua, -3);
                    }
                    Kind::Set => lua_pop(lua, 1),
                }
            }
            if level.left > 0 {
                return;
            }
            self.close();
        }
    }
}

/// Whether the value can be a key of a table: neither nil nor NaN.
unsafe fn is_key(lua: *mut lua_State, index: c_int) -> bool {
    // SAFETY: the caller's index is valid.
    unsafe {
        match lua_type(lua, index) {
            LUA_TNIL => false,
            LUA_TNUMBER => !lua_tonumber(lua, index).is_nan(),
            _ => true,
        }
    }
}

// SAFETY of the pushes below: as promised to `new`, each takes at most four slots, and `open` has made room for those at its level.
impl Sink for LuaSink {
    fn protocol(&self) -> Protocol {
        self.protocol
    }

    fn simple(&mut self, text: &str) {
        self.value(|lua| {
            // SAFETY: `new` or `open` has made room for three values: the table, its key and its value. The registry has the
            // strings of both references.
            unsafe {
                lua_createtable(lua, 0, 1);
                lua_rawgeti_(lua, LUA_REGISTRYINDEX, OK_FIELD);
                if text == "OK" {
                    lua_rawgeti_(lua, LUA_REGISTRYINDEX, OK_TEXT);
                } else {
                    push_bytes(lua, text.as_bytes());
                }
                lua_rawset(lua, -3);
            }
        });
    }

    fn error(&mut self, text: &[u8]) {
        self.failed |= self.levels.is_empty();
        self.value(|lua| {
            // SAFETY: `new` or `open` has made room for the error's table and two values above it.
            unsafe { errors::push_counted(lua, text) }
        });
    }

    #[inline]
    fn integer(&mut self, n: i64) {
        // SAFETY: `new` or `open` has made room for the number.
        self.value(|lua| unsafe { layout::push_number(lua, n as f64) });
    }

    #[inline]
    fn bulk(&mut self, bytes: &[u8]) {
        // SAFETY: `new` or `open` has made room for the string, and allocations cannot fail.
        self.value(|lua| unsafe { push_bytes(lua, bytes) });
    }

    fn null(&mut self) {
        let resp3 = self.resp3();
        // SAFETY: `new` or `open` has made room for the one value.
        self.value(|lua| unsafe { if resp3 { lua_pushnil(lua) } else { layout::push_boolean(lua, false) } });
    }

    fn null_array(&mut self) {
        self.null();
    }

    fn array(&mut self, len: usize) {
        self.open(Kind::Array, len);
    }

    fn map(&mut self, pairs: usize) {
        if self.resp3() { self.open(Kind::Map, pairs) } else { self.open(Kind::Array, pairs * 2) }
    }

    fn set(&mut self, len: usize) {
        self.open(if self.resp3() { Kind::Set } else { Kind::Array }, len);
    }

    fn push(&mut self, len: usize) {
        self.open(Kind::Array, len);
    }

    fn double(&mut self, value: f64) {
        if self.resp3() {
            // SAFETY: `new` or `open` has made room for the number, above the table that `wrapped` has pushed.
            self.wrapped(c"double", |lua| unsafe { lua_pushnumber(lua, value) });
        } else {
            let mut text = [0; DOUBLE_MAX];
            self.bulk(format_double(value, &mut text));
        }
    }

    fn boolean(&mut self, value: bool) {
        if self.resp3() {
            // SAFETY: `new` or `open` has made room for the boolean.
            self.value(|lua| unsafe { lua_pushboolean(lua, value as c_int) });
        } else {
            self.integer(value as i64);
        }
    }

    fn big_number(&mut self, decimal: &str) {
        if self.resp3() {
            // SAFETY: `new` or `open` has made room for the text, above the table that `wrapped` has pushed, and allocations
            // cannot fail.
            self.wrapped(c"big_number", |lua| unsafe { push_bytes(lua, decimal.as_bytes()) });
        } else {
            self.bulk(decimal.as_bytes());
        }
    }

    fn verbatim(&mut self, format: &str, text: &[u8]) {
        if !self.resp3() {
            return self.bulk(text);
        }
        self.wrapped(c"verbatim_string", |lua| {
            // SAFETY: `new` or `open` has made room for the table, its key and its value. Allocations cannot fail.
            unsafe {
                lua_createtable(lua, 0, 2);
                push_bytes(lua, text);
                set_field(lua, c"string");
                push_bytes(lua, format.as_bytes());
                set_field(lua, c"format");
            }
        });
    }
}
