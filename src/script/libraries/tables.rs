//! Functions of `table` whose time depends on the size of the table. They behave as Lua's own, without metamethods, but consume
//! fuel while they work.

use std::ffi::CStr;
use std::os::raw::c_int;

use mlua::ffi::*;

use crate::script::fuel;
use crate::script::globals::read_only;
use crate::script::interpreter::Interpreter;
use crate::script::libraries::writer::Writer;
use crate::script::lua::layout;
use crate::script::lua::stack::bytes;

/// Fuel for a comparison in a sort, besides that of the function it may call.
const COMPARISON_COST: u64 = 4;

/// Replaces functions of the library on top of the stack.
///
/// # Safety
/// As for [`crate::script::globals::install`].
pub(crate) unsafe fn install(lua: *mut lua_State, interpreter: *mut Interpreter) {
    let functions: [(&CStr, lua_CFunction); 7] = [
        (c"concat", concat),
        (c"foreach", foreach),
        (c"foreachi", foreachi),
        (c"insert", insert),
        (c"maxn", maxn),
        (c"remove", remove),
        (c"sort", sort),
    ];
    // SAFETY: the library is on top of the stack of the new state, which has room for three more values. The interpreter outlives
    // the state.
    unsafe {
        for (name, function) in functions {
            Interpreter::set_function(lua, interpreter, name, function);
        }
    }
}

// SAFETY of the functions below: Lua calls them, with room for twenty values beyond their arguments and with the interpreter as
// their first upvalue. They own nothing that has a destructor.

/// Number of elements of the first argument. Raises an error if that is not a table.
unsafe fn length(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua called the function that calls this, and nothing there has a destructor when argument 1 is no table.
    unsafe {
        luaL_checktype(lua, 1, LUA_TTABLE);
        lua_objlen(lua, 1) as c_int
    }
}

/// An integer argument, or a default if it is nil or missing.
unsafe fn integer_or(lua: *mut lua_State, index: c_int, default: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: Lua called the function that calls this, and nothing there has a destructor when the argument is no number.
    unsafe { if lua_type(lua, index) <= LUA_TNIL { default() } else { luaL_checkinteger(lua, index) as c_int } }
}

/// `table.concat(table [, separator [, first [, last]]])`
unsafe extern "C-unwind" fn concat(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this. The separator stays on the stack as argument 2, each element while it is written, and nothing here
    // has a destructor when an error is raised.
    unsafe {
        let interpreter = Interpreter::of(lua);
        luaL_optlstring(lua, 2, c"".as_ptr(), std::ptr::null_mut());
        let separator = bytes(lua, 2).unwrap_or_default();
        luaL_checktype(lua, 1, LUA_TTABLE);
        let first = integer_or(lua, 3, || 1);
        let last = integer_or(lua, 4, || lua_objlen(lua, 1) as c_int);
        let out = Writer::new(lua);
        for index in first..=last {
            fuel::consume(lua, interpreter, 2);
            lua_rawgeti_(lua, 1, index);
            let Some(text) = bytes(lua, -1) else {
                let format = c"invalid value (%s) at index %d in table for 'concat'";
                return luaL_error(lua, format.as_ptr(), luaL_typename(lua, -1), index);
            };
            out.put(text);
            lua_pop(lua, 1);
            if index < last {
                out.put(separator);
            }
        }
        out.push();
        1
    }
}

/// `table.foreach(table, function)`
unsafe extern "C-unwind" fn foreach(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, and the arguments are checked to be a table and a function. At most five values are pushed, and
    // nothing here has a destructor when the function raises an error.
    unsafe {
        let interpreter = Interpreter::of(lua);
        luaL_checktype(lua, 1, LUA_TTABLE);
        luaL_checktype(lua, 2, LUA_TFUNCTION);
        read_only::unwrap(lua, 1);
        lua_pushnil(lua);
        while lua_next(lua, 1) != 0 {
            fuel::consume(lua, interpreter, 4);
            lua_pushvalue(lua, 2);
            lua_pushvalue(lua, -3);
            lua_pushvalue(lua, -3);
            lua_call(lua, 2, 1);
            if lua_type(lua, -1) != LUA_TNIL {
                return 1;
            }
            lua_pop(lua, 2);
        }
        0
    }
}

/// `table.foreachi(table, function)`
unsafe extern "C-unwind" fn foreachi(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, and the arguments are checked to be a table and a function. At most three values are pushed, and
    // nothing here has a destructor when the function raises an error.
    unsafe {
        let interpreter = Interpreter::of(lua);
        let len = length(lua);
        luaL_checktype(lua, 2, LUA_TFUNCTION);
        for index in 1..=len {
            fuel::consume(lua, interpreter, 4);
            lua_pushvalue(lua, 2);
            lua_pushinteger(lua, index.into());
            lua_rawgeti_(lua, 1, index);
            lua_call(lua, 2, 1);
            if lua_type(lua, -1) != LUA_TNIL {
                return 1;
            }
            lua_pop(lua, 1);
        }
        0
    }
}

/// `table.maxn(table)`
unsafe extern "C-unwind" fn maxn(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, and argument 1 is checked to be a table. At most a key and a value are pushed, and nothing here has
    // a destructor when `consume` raises an error.
    unsafe {
        let interpreter = Interpreter::of(lua);
        luaL_checktype(lua, 1, LUA_TTABLE);
        let mut max = 0.0;
        lua_pushnil(lua);
        while lua_next(lua, 1) != 0 {
            fuel::consume(lua, interpreter, 2);
            lua_pop(lua, 1);
            if lua_type(lua, -1) == LUA_TNUMBER {
                let key = lua_tonumber(lua, -1);
                if key > max {
                    max = key;
                }
            }
        }
        lua_pushnumber(lua, max);
        1
    }
}

/// `table.insert(table, [position,] value)`
unsafe extern "C-unwind" fn insert(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, and `length` checks that argument 1 is a table. The value is on top when it is inserted, and
    // nothing here has a destructor when an error is raised.
    unsafe {
        if read_only::unwrap(lua, 1) {
            return read_only::raise(lua);
        }
        let end = length(lua).wrapping_add(1);
        let position = match lua_gettop(lua) {
            2 => end,
            3 => {
                let interpreter = Interpreter::of(lua);
                let position = luaL_checkinteger(lua, 2) as c_int;
                let mut index = end.max(position);
                while index > position {
                    fuel::consume(lua, interpreter, 2);
                    lua_rawgeti_(lua, 1, index - 1);
                    lua_rawseti_(lua, 1, index);
                    index -= 1;
                }
                position
            }
            _ => return luaL_error(lua, c"wrong number of arguments to 'insert'".as_ptr()),
        };
        lua_rawseti_(lua, 1, position);
        0
    }
}

/// `table.remove(table [, position])`
unsafe extern "C-unwind" fn remove(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, and `length` checks that argument 1 is a table. At most two values are pushed, and nothing here has
    // a destructor when an error is raised.
    unsafe {
        let end = length(lua);
        let position = integer_or(lua, 2, || end);
        if !(1..=end).contains(&position) {
            return 0;
        }
        let interpreter = Interpreter::of(lua);
        lua_rawgeti_(lua, 1, position);
        for index in position..end {
            fuel::consume(lua, interpreter, 2);
            lua_rawgeti_(lua, 1, index + 1);
            lua_rawseti_(lua, 1, index);
        }
        lua_pushnil(lua);
        lua_rawseti_(lua, 1, end);
        1
    }
}

/// `table.sort(table [, before])`. It makes the same comparisons as Lua's own quicksort, so equal elements end up in the same order.
unsafe extern "C-unwind" fn sort(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this. Argument 1 is checked to be a table, and argument 2 a function if there is one. Nothing here has a
    // destructor when an error is raised.
    unsafe {
        let len = length(lua);
        luaL_checkstack_(lua, 40, c"".as_ptr());
        let function = lua_type(lua, 2) > LUA_TNIL;
        if function {
            luaL_checktype(lua, 2, LUA_TFUNCTION);
        }
        lua_settop(lua, 2);
        Sort { lua, interpreter: Interpreter::of(lua), function }.run(1, len);
        0
    }
}

/// Sorts the table at stack index 1, by the function at index 2 if `function` is set.
struct Sort {
    lua: *mut lua_State,
    interpreter: *mut Interpreter,
    function: bool,
}

impl Sort {
    /// Sorts the elements from `low` to `high`. It calls itself only for the smaller part, so its depth is at most the logarithm
    /// of the length.
    unsafe fn run(&self, mut low: c_int, mut high: c_int) {
        // SAFETY: `sort` has made room for forty values on the stack. All that are pushed are popped before the function calls
        // itself.
        unsafe {
            while low < high {
                let middle = ((i64::from(low) + i64::from(high)) / 2) as c_int;
                self.sort_three(low, middle, high);
                if high - low <= 2 {
                    return;
                }
                let pivot = self.partition(low, middle, high);
                if pivot - low < high - pivot {
                    self.run(low, pivot - 1);
                    low = pivot + 1;
                } else {
                    self.run(pivot + 1, high);
                    high = pivot - 1;
                }
            }
        }
    }

    /// Sorts the first, the middle and the last element; of two elements, the first and the last.
    #[inline]
    unsafe fn sort_three(&self, low: c_int, middle: c_int, high: c_int) {
        let lua = self.lua;
        // SAFETY: `sort` has made room for forty values on the stack. Two are pushed besides those of `before`, and all are
        // popped.
        unsafe {
            self.push(low);
            self.push(high);
            if self.before(-1, -2) {
                self.set_two(low, high);
            } else {
                lua_pop(lua, 2);
            }
            if high - low == 1 {
                return;
            }
            self.push(middle);
            self.push(low);
            if self.before(-2, -1) {
                self.set_two(middle, low);
                return;
            }
            lua_pop(lua, 1);
            self.push(high);
            if self.before(-1, -2) {
                self.set_two(middle, high);
            } else {
                lua_pop(lua, 2);
            }
        }
    }

    /// Moves the elements that come before the middle one, the pivot, to its left, and those that come after it to its right.
    /// Returns the new index of the pivot. [`Sort::sort_three`] must have sorted the three.
    #[inline]
    unsafe fn partition(&self, low: c_int, middle: c_int, high: c_int) -> c_int {
        let lua = self.lua;
        // SAFETY: `sort` has made room for forty values on the stack. At most three are pushed besides those of `before`, and all
        // are popped.
        unsafe {
            // The pivot is moved to the last place but one, and a copy stays on the stack.
            self.push(middle);
            lua_pushvalue(lua, -1);
            self.push(high - 1);
            self.set_two(middle, high - 1);
            let (mut left, mut right) = (low, high - 1);
            loop {
                left += 1;
                self.push(left);
                while self.before(-1, -2) {
                    if left > high {
                        self.raise_invalid_order();
                    }
                    lua_pop(lua, 1);
                    left += 1;
                    self.push(left);
                }
                right -= 1;
                self.push(right);
                while self.before(-3, -1) {
                    if right < low {
                        self.raise_invalid_order();
                    }
                    lua_pop(lua, 1);
                    right -= 1;
                    self.push(right);
                }
                if right < left {
                    lua_pop(lua, 3);
                    break;
                }
                self.set_two(left, right);
            }
            self.push(high - 1);
            self.push(left);
            self.set_two(high - 1, left);
            left
        }
    }

    /// Pushes an element.
    unsafe fn push(&self, index: c_int) {
        // SAFETY: `sort` has checked that the value at index 1 is a table, and has made room for more elements than are pushed.
        unsafe { lua_rawgeti_(self.lua, 1, index) };
    }

    /// Pops two values: the upper one becomes the element at `first`, the other that at `second`.
    unsafe fn set_two(&self, first: c_int, second: c_int) {
        // SAFETY: the two values are on top, and `sort` has checked that the value at index 1 is a table.
        unsafe {
            lua_rawseti_(self.lua, 1, first);
            lua_rawseti_(self.lua, 1, second);
        }
    }

    /// Whether the value at stack index `a` comes before that at `b`. Both indices are negative, from the top.
    #[inline]
    unsafe fn before(&self, a: c_int, b: c_int) -> bool {
        let lua = self.lua;
        // SAFETY: two elements are on the stack, at `a` and `b`, with room for three more values. They keep their bytes, and
        // nothing has a destructor when the script's function raises an error.
        unsafe {
            fuel::consume(lua, self.interpreter, COMPARISON_COST);
            if self.function {
                lua_pushvalue(lua, 2);
                lua_pushvalue(lua, a - 1);
                lua_pushvalue(lua, b - 2);
                lua_call(lua, 2, 1);
                let before = lua_toboolean(lua, -1) != 0;
                lua_pop(lua, 1);
                return before;
            }
            let top = layout::stack_values(lua);
            let [a_value, b_value] = [a, b].map(|index| &top[top.len() - index.unsigned_abs() as usize]);
            match (a_value.bytes(), b_value.bytes()) {
                (Some(a), Some(b)) => {
                    fuel::consume(lua, self.interpreter, a.len() as u64 / fuel::BYTES_PER_STEP);
                    // The order of bytes is that of Lua in the C locale.
                    a < b
                }
                _ => lua_lessthan(lua, a, b) != 0,
            }
        }
    }

    /// Raises the error of an inconsistent function.
    unsafe fn raise_invalid_order(&self) {
        // SAFETY: `sort` is the function that Lua called, and nothing there has a destructor when the error is raised.
        unsafe { luaL_error(self.lua, c"invalid order function for sorting".as_ptr()) };
    }
}
