//! The memory layout of Lua's values, strings and tables.
//!
//! In a few places a call of a C function costs more than the work itself: the arguments and results of `redis.call`, and the
//! tables `KEYS` and `ARGV`. Those places read and write Lua's memory directly.
//!
//! The layout is that of PUC Lua 5.1, which is compiled into this crate and has not changed since 2012. [`check`] compares it with
//! the answers of Lua's own functions in every new state.

use std::os::raw::{c_int, c_void};

use mlua::ffi::*;

use crate::script::lua::memory::{self, Memory};
use crate::script::lua::stack::push_bytes;

/// A value on the stack or in a table (Lua's `TValue`).
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Value {
    bits: Bits,
    kind: c_int,
}

#[derive(Clone, Copy)]
#[repr(C)]
union Bits {
    number: f64,
    pointer: *const c_void,
    boolean: c_int,
}

/// The first fields of Lua's `lua_State`.
#[repr(C)]
struct State {
    next: *const c_void,
    tags: [u8; 3],
    /// The first free slot of the stack.
    top: *mut Value,
    /// The first slot of the running function.
    base: *mut Value,
    global: *const GlobalState,
}

/// The first fields of Lua's `global_State`, which the threads of a state share.
#[repr(C)]
struct GlobalState {
    strings: *const c_void,
    strings_len: [u32; 2],
    allocate: *const c_void,
    allocator_data: *mut c_void,
}

/// The head of a string (Lua's `TString`). Its bytes follow it.
#[repr(C)]
struct StringHead {
    next: *const c_void,
    tags: [u8; 3],
    hash: u32,
    len: usize,
}

/// A table (Lua's `Table`).
#[repr(C)]
pub(crate) struct Table {
    next: *const c_void,
    tags: [u8; 4],
    metatable: *const c_void,
    array: *mut Value,
    hash_part: *const c_void,
    last_free: *const c_void,
    gray: *const c_void,
    array_len: c_int,
}

/// The address of a table's hash part. All tables with an empty hash part have the same one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct HashPart(*const c_void);

/// The hash of a string.
///
/// # Safety
/// `address` is that of a string in use.
#[inline]
pub(crate) unsafe fn string_hash(address: usize) -> u32 {
    // SAFETY: the address is that of a string in use, which begins with a `StringHead`.
    unsafe { (*(address as *const StringHead)).hash }
}

impl Value {
    /// The address of the string, if the value is one. Equal strings of a state have the same address.
    #[inline]
    pub(crate) fn string_address(&self) -> Option<usize> {
        // SAFETY: of this kind, the value is a pointer.
        if self.kind == LUA_TSTRING { Some(unsafe { self.bits.pointer } as usize) } else { None }
    }

    /// The bytes of the string, if the value is one.
    ///
    /// # Safety
    /// The value stays on the stack or in a table as long as the bytes are used.
    #[inline]
    pub(crate) unsafe fn bytes<'a>(&self) -> Option<&'a [u8]> {
        if self.kind != LUA_TSTRING {
            return None;
        }
        // SAFETY: of this kind, the value points to a string, whose bytes do not move while it is in use.
        unsafe {
            let string: *const StringHead = self.bits.pointer.cast();
            Some(std::slice::from_raw_parts(string.add(1).cast(), (*string).len))
        }
    }

    /// The number, if the value is one.
    #[inline]
    pub(crate) fn number(&self) -> Option<f64> {
        // SAFETY: of this kind, the value is a number.
        if self.kind == LUA_TNUMBER { Some(unsafe { self.bits.number }) } else { None }
    }

    /// Makes the value nil.
    #[inline]
    pub(crate) fn set_nil(&mut self) {
        self.kind = LUA_TNIL;
    }
}

/// Number of values on the stack of the running function.
///
/// # Safety
/// The state is valid.
#[inline]
pub(crate) unsafe fn stack_len(lua: *mut lua_State) -> usize {
    // SAFETY: a valid state begins with a `State`. Both pointers point into one stack, the top never below the base.
    unsafe { (*lua.cast::<State>()).top.offset_from_unsigned((*lua.cast::<State>()).base) }
}

/// The values on the stack of the running function.
///
/// # Safety
/// The state is valid, and its stack is not changed as long as the values are used.
#[inline]
pub(crate) unsafe fn stack_values<'a>(lua: *mut lua_State) -> &'a [Value] {
    // SAFETY: the stack is not changed as long as the values are used, as promised, and the values between base and top are
    // initialized.
    unsafe { std::slice::from_raw_parts((*lua.cast::<State>()).base, stack_len(lua)) }
}

/// The first element of a table's array part. `table` is the table's index in [`stack_values`].
///
/// # Safety
/// There is a table, and its array part is not empty.
#[inline]
pub(crate) unsafe fn first_element(lua: *mut lua_State, table: usize) -> Value {
    // SAFETY: there is a table at this index, as promised, so the value points to one. Its array part is not empty, and all
    // places are initialized.
    unsafe { *(*stack_values(lua)[table].bits.pointer.cast::<Table>()).array }
}

/// Overwrites the value at `index` in [`stack_values`] with one that was read from the same state.
///
/// # Safety
/// There is a value at `index`, and the object that the new value points to is alive.
#[inline]
pub(crate) unsafe fn replace(lua: *mut lua_State, index: usize, value: Value) {
    // SAFETY: there is a value at this index, as promised, so its place may be written.
    unsafe { (*lua.cast::<State>()).base.add(index).write(value) }
}

/// The pointer that `lua_newstate` received for the allocation function.
///
/// # Safety
/// The state is valid.
#[inline]
pub(crate) unsafe fn allocator_data(lua: *mut lua_State) -> *mut c_void {
    // SAFETY: a valid state begins with a `State`, and its `global` points to what begins with a `GlobalState`.
    unsafe { (*(*lua.cast::<State>()).global).allocator_data }
}

/// Pushes a value that was read from the same state.
///
/// # Safety
/// The stack has room for it, and the object that it points to is alive.
#[inline]
pub(crate) unsafe fn push(lua: *mut lua_State, value: Value) {
    // SAFETY: the stack has room for the value, as promised, so the place at the top may be written, and its object is alive.
    unsafe {
        let state: *mut State = lua.cast();
        (*state).top.write(value);
        (*state).top = (*state).top.add(1);
    }
}

/// Pushes a number.
///
/// # Safety
/// The stack has room for it.
#[inline]
pub(crate) unsafe fn push_number(lua: *mut lua_State, number: f64) {
    // SAFETY: the stack has room for the value, as promised, which points to no object.
    unsafe { push(lua, Value { bits: Bits { number }, kind: LUA_TNUMBER }) }
}

/// Pushes a boolean.
///
/// # Safety
/// As for [`push_number`].
#[inline]
pub(crate) unsafe fn push_boolean(lua: *mut lua_State, boolean: bool) {
    // SAFETY: the stack has room for the value, as promised, which points to no object.
    unsafe { push(lua, Value { bits: Bits { boolean: boolean.into() }, kind: LUA_TBOOLEAN }) }
}

/// Pushes a table.
///
/// # Safety
/// As for [`push_number`]; the table is alive.
#[inline]
pub(crate) unsafe fn push_table(lua: *mut lua_State, table: *mut Table) {
    // SAFETY: the stack has room for the value, and the table that it points to is alive, as promised.
    unsafe { push(lua, Value { bits: Bits { pointer: table.cast() }, kind: LUA_TTABLE }) }
}

impl Table {
    /// Whether the table has no metatable, an array part of `len` places, and the hash part `empty`.
    #[inline]
    pub(crate) fn is_plain_array(&self, len: usize, empty: HashPart) -> bool {
        self.metatable.is_null() && self.hash_part == empty.0 && self.array_len as usize == len
    }

    /// The address of its hash part.
    #[inline]
    pub(crate) fn hash_part(&self) -> HashPart {
        HashPart(self.hash_part)
    }

    /// Its array part.
    ///
    /// # Safety
    /// Nothing else uses the table meanwhile. The caller writes only nil.
    #[inline]
    pub(crate) unsafe fn array(&mut self) -> &mut [Value] {
        if self.array_len == 0 {
            return &mut [];
        }
        // SAFETY: the array has `array_len` values, which are all initialized.
        unsafe { std::slice::from_raw_parts_mut(self.array, self.array_len as usize) }
    }
}

/// Panics if Lua's memory layout differs from the one declared here. The server calls this when it starts, before the first script.
/// Each new interpreter is checked again.
pub(crate) fn check_at_start() {
    let mut memory = Memory::new(usize::MAX);
    let data: *mut c_void = (&raw mut memory).cast();
    // SAFETY: `memory` outlives the state, which is new and is closed as it was made. Allocations cannot fail: `may_fail` is not
    // set.
    unsafe {
        let lua = lua_newstate(memory::allocate, data);
        assert!(!lua.is_null(), "the state is allocated or the process ends");
        check(lua, data);
        lua_close(lua);
    }
}

/// Panics if Lua's memory layout differs from the one declared here.
///
/// # Safety
/// The state is new, was made with `data` as the allocator's pointer, and has room for four values. Allocations cannot fail.
pub(crate) unsafe fn check(lua: *mut lua_State, data: *mut c_void) {
    // SAFETY: the stack has room for four values, and allocations cannot fail. What is read lies in the objects that Lua made,
    // which are longer than what is read of them; were the layout another, the first assertions would fail before a pointer is
    // followed that is none.
    unsafe {
        let base = lua_gettop(lua);
        assert_eq!(stack_len(lua), base as usize, "base and top of the stack");
        assert_eq!(allocator_data(lua), data, "the allocator's pointer");
        push_bytes(lua, b"layout");
        push_number(lua, 1.5);
        push_boolean(lua, true);
        lua_createtable(lua, 2, 0);
        assert_eq!(lua_gettop(lua), base + 4, "pushed values");
        let [string, number, _, table] = &stack_values(lua)[base as usize..] else { unreachable!("four values") };
        assert_eq!(string.bytes(), Some(b"layout".as_slice()), "strings");
        let hash = b"layout"
            .iter()
            .rev()
            .fold(6, |hash: u32, &byte| hash ^ (hash << 5).wrapping_add(hash >> 2).wrapping_add(u32::from(byte)));
        assert_eq!(string.string_address().map(|address| string_hash(address)), Some(hash), "the hashes of strings");
        assert_eq!((number.number(), lua_tonumber(lua, -3)), (Some(1.5), 1.5), "numbers");
        assert_eq!((lua_type(lua, -2), lua_toboolean(lua, -2)), (LUA_TBOOLEAN, 1), "booleans");
        assert_eq!((table.kind, table.bits.pointer), (LUA_TTABLE, lua_topointer(lua, -1)), "tables");
        let table: *mut Table = table.bits.pointer.cast_mut().cast();
        let empty = (*table).hash_part();
        assert!((*table).is_plain_array(2, empty) && !(*table).is_plain_array(1, empty), "a table's array part");
        lua_pushnumber(lua, 7.0);
        lua_rawseti_(lua, -2, 2);
        assert_eq!((*table).array().iter().map(Value::number).collect::<Vec<_>>(), [None, Some(7.0)], "a table's elements");
        lua_pushnumber(lua, 5.0);
        lua_rawseti_(lua, -2, 1);
        replace(lua, base as usize, first_element(lua, base as usize + 3));
        assert_eq!(lua_tonumber(lua, base + 1), 5.0, "a value copied from a table to the stack");
        lua_pushnumber(lua, 7.0);
        lua_rawseti_(lua, -2, 3);
        assert!(!(*table).is_plain_array(2, empty), "a table's hash part");
        lua_settop(lua, base);
    }
}
