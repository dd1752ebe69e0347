//! Values, strings and tables as Lua lays them out in memory, for the few places where its own functions cost more than what they do:
//! the arguments and results of `redis.call`, and the tables of keys and arguments.
//!
//! It is the layout of PUC Lua 5.1, which is compiled into this crate and has not changed since 2012. [`check`] compares it with what
//! Lua's functions say of each new state.

use std::os::raw::{c_int, c_void};

use mlua::ffi::*;

use crate::script::memory::{self, Memory};

/// A value on the stack or in a table.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Value {
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

/// The beginning of a state.
#[repr(C)]
struct State {
    next: *const c_void,
    tags: [u8; 3],
    /// The first free slot, and the first one of the function that runs.
    top: *mut Value,
    base: *mut Value,
    global: *const Global,
}

/// The beginning of what the threads of a state share.
#[repr(C)]
struct Global {
    strings: *const c_void,
    strings_len: [u32; 2],
    allocate: *const c_void,
    account: *mut c_void,
}

/// The head of a string; its bytes follow.
#[repr(C)]
struct Text {
    next: *const c_void,
    tags: [u8; 3],
    hash: u32,
    len: usize,
}

/// A table.
#[repr(C)]
pub(super) struct Table {
    next: *const c_void,
    tags: [u8; 4],
    metatable: *const c_void,
    array: *mut Value,
    nodes: *const c_void,
    last_free: *const c_void,
    gray: *const c_void,
    array_len: c_int,
}

/// Where a table has its places outside of the array; the same for all that have none.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Nodes(*const c_void);

/// The hash of the text of a string.
///
/// # Safety
/// The address is that of a string which is in use.
#[inline]
pub(super) unsafe fn text_hash(address: usize) -> u32 {
    // SAFETY: as promised.
    unsafe { (*(address as *const Text)).hash }
}

impl Value {
    /// The address of the string, if it is one: no two strings of a state have the same.
    #[inline]
    pub(super) fn text_address(&self) -> Option<usize> {
        // SAFETY: of this kind, the value is a pointer.
        if self.kind == LUA_TSTRING { Some(unsafe { self.bits.pointer } as usize) } else { None }
    }

    /// The bytes of the string, if it is one.
    ///
    /// # Safety
    /// The value stays where it is, or somewhere else, for as long as the bytes are used.
    #[inline]
    pub(super) unsafe fn text<'a>(&self) -> Option<&'a [u8]> {
        if self.kind != LUA_TSTRING {
            return None;
        }
        // SAFETY: of this kind, the value points to a string, whose bytes do not move while it is in use.
        unsafe {
            let text: *const Text = self.bits.pointer.cast();
            Some(std::slice::from_raw_parts(text.add(1).cast(), (*text).len))
        }
    }

    /// The number, if it is one.
    #[inline]
    pub(super) fn number(&self) -> Option<f64> {
        // SAFETY: of this kind, the value is a number.
        if self.kind == LUA_TNUMBER { Some(unsafe { self.bits.number }) } else { None }
    }
}

/// Number of values on the stack of the function that runs.
///
/// # Safety
/// The state is valid.
#[inline]
pub(super) unsafe fn count(lua: *mut lua_State) -> usize {
    // SAFETY: as promised; both point into one stack, the top never below the base.
    unsafe { (*lua.cast::<State>()).top.offset_from_unsigned((*lua.cast::<State>()).base) }
}

/// The values on the stack of the function that runs.
///
/// # Safety
/// The state is valid, and its stack is not changed for as long as they are used.
#[inline]
pub(super) unsafe fn values<'a>(lua: *mut lua_State) -> &'a [Value] {
    // SAFETY: as promised; the values between base and top are initialized.
    unsafe { std::slice::from_raw_parts((*lua.cast::<State>()).base, count(lua)) }
}

/// The first value of the array of a table on the stack, by its index among the values there.
///
/// # Safety
/// It is a table whose array has a place.
#[inline]
pub(super) unsafe fn first_element(lua: *mut lua_State, table: usize) -> Value {
    // SAFETY: as promised; a table's value points to it, and its array has all its places initialized.
    unsafe { *(*values(lua)[table].bits.pointer.cast::<Table>()).array }
}

/// Puts a value that was read from the same state in the place of one on the stack, by its index among those of the function that runs.
///
/// # Safety
/// There is one, and what the new value points to is alive.
#[inline]
pub(super) unsafe fn replace(lua: *mut lua_State, index: usize, value: Value) {
    // SAFETY: as promised.
    unsafe { (*lua.cast::<State>()).base.add(index).write(value) }
}

/// What was given to `lua_newstate` for the allocation function.
///
/// # Safety
/// The state is valid.
#[inline]
pub(super) unsafe fn account(lua: *mut lua_State) -> *mut c_void {
    // SAFETY: as promised.
    unsafe { (*(*lua.cast::<State>()).global).account }
}

/// Pushes a value that was read from the same state.
///
/// # Safety
/// The stack has room for it, and what it points to is alive.
#[inline]
pub(super) unsafe fn push(lua: *mut lua_State, value: Value) {
    // SAFETY: as promised.
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
pub(super) unsafe fn push_number(lua: *mut lua_State, number: f64) {
    // SAFETY: as promised.
    unsafe { push(lua, Value { bits: Bits { number }, kind: LUA_TNUMBER }) }
}

/// Pushes a truth value.
///
/// # Safety
/// As for [`push_number`].
#[inline]
pub(super) unsafe fn push_boolean(lua: *mut lua_State, boolean: bool) {
    // SAFETY: as promised.
    unsafe { push(lua, Value { bits: Bits { boolean: boolean.into() }, kind: LUA_TBOOLEAN }) }
}

/// Pushes a table.
///
/// # Safety
/// As for [`push_number`]; the table is alive.
#[inline]
pub(super) unsafe fn push_table(lua: *mut lua_State, table: *mut Table) {
    // SAFETY: as promised.
    unsafe { push(lua, Value { bits: Bits { pointer: table.cast() }, kind: LUA_TTABLE }) }
}

impl Table {
    /// Whether the table has no metatable, an array of so many places, and its places outside of the array where `empty` has them,
    /// which has none.
    #[inline]
    pub(super) fn is_array_of(&self, places: usize, empty: Nodes) -> bool {
        self.metatable.is_null() && self.nodes == empty.0 && self.array_len as usize == places
    }

    /// Where its places outside of the array are.
    #[inline]
    pub(super) fn nodes(&self) -> Nodes {
        Nodes(self.nodes)
    }

    /// The places of its array.
    ///
    /// # Safety
    /// Nothing else looks at the table meanwhile. What is written is nil.
    #[inline]
    pub(super) unsafe fn places(&mut self) -> &mut [Value] {
        if self.array_len == 0 {
            return &mut [];
        }
        // SAFETY: the array has so many values, which are all initialized.
        unsafe { std::slice::from_raw_parts_mut(self.array, self.array_len as usize) }
    }
}

impl Value {
    /// Makes it nil.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.kind = LUA_TNIL;
    }
}

/// Panics where Lua lays its values out in another way than is believed here: for the start, long before the first script. Each
/// interpreter is checked again when it is made.
pub(crate) fn check_at_start() {
    let mut memory = Memory::new(usize::MAX);
    let account: *mut c_void = (&raw mut memory).cast();
    // SAFETY: the account outlives the state, which is new and is closed as it was made. Allocations cannot fail: they are not strict.
    unsafe {
        let lua = lua_newstate(memory::allocate, account);
        assert!(!lua.is_null(), "the state is allocated or the process ends");
        check(lua, account);
        lua_close(lua);
    }
}

/// Panics where Lua lays its values out in another way than is believed here.
///
/// # Safety
/// The state is new, was given that account, and has room for four values; allocations cannot fail.
pub(super) unsafe fn check(lua: *mut lua_State, given: *mut c_void) {
    // SAFETY: as promised. What is read lies in the objects that Lua made, which are longer than what is read of them; were the
    // layout another, the first assertions would fail before a pointer is followed that is none.
    unsafe {
        let base = lua_gettop(lua);
        assert_eq!(count(lua), base as usize, "where the stack begins and ends");
        assert_eq!(account(lua), given, "where the account is");
        super::stack::push_bytes(lua, b"layout");
        push_number(lua, 1.5);
        push_boolean(lua, true);
        lua_createtable(lua, 2, 0);
        assert_eq!(lua_gettop(lua), base + 4, "what was pushed");
        let [text, number, _, table] = &values(lua)[base as usize..] else { unreachable!("four values") };
        assert_eq!(text.text(), Some(b"layout".as_slice()), "strings");
        let hash = b"layout"
            .iter()
            .rev()
            .fold(6, |hash: u32, &byte| hash ^ (hash << 5).wrapping_add(hash >> 2).wrapping_add(u32::from(byte)));
        assert_eq!(text.text_address().map(|address| text_hash(address)), Some(hash), "the hashes of strings");
        assert_eq!((number.number(), lua_tonumber(lua, -3)), (Some(1.5), 1.5), "numbers");
        assert_eq!((lua_type(lua, -2), lua_toboolean(lua, -2)), (LUA_TBOOLEAN, 1), "truth values");
        assert_eq!((table.kind, table.bits.pointer), (LUA_TTABLE, lua_topointer(lua, -1)), "tables");
        let table: *mut Table = table.bits.pointer.cast_mut().cast();
        let empty = (*table).nodes();
        assert!((*table).is_array_of(2, empty) && !(*table).is_array_of(1, empty), "a table's array");
        lua_pushnumber(lua, 7.0);
        lua_rawseti_(lua, -2, 2);
        assert_eq!((*table).places().iter().map(Value::number).collect::<Vec<_>>(), [None, Some(7.0)], "a table's places");
        lua_pushnumber(lua, 5.0);
        lua_rawseti_(lua, -2, 1);
        replace(lua, base as usize, first_element(lua, base as usize + 3));
        assert_eq!(lua_tonumber(lua, base + 1), 5.0, "what was read from a table and put on the stack");
        lua_pushnumber(lua, 7.0);
        lua_rawseti_(lua, -2, 3);
        assert!(!(*table).is_array_of(2, empty), "a table's other places");
        lua_settop(lua, base);
    }
}
