//! The globals of scripts, and the walls round them.
//!
//! Lua 5.1 as it is knows no read-only tables. Each table that all scripts share (the globals, `redis`, the libraries) is therefore
//! hidden behind an empty one, its cover: reading falls through by `__index`, writing meets `__newindex`, and the functions that
//! would go past metatables (`next`, `pairs`, `rawget`, `rawset`, `getmetatable`, `setmetatable`, `table.insert`) know covers.
//!
//! Absent here: what reads files or prints, what makes finalizers (`newproxy`: they would run in the middle of a command), what
//! changes the globals of other functions (`setfenv`, `getfenv`), and bytecode.

use std::ffi::CStr;
use std::os::raw::{c_int, c_void};

use mlua::ffi::*;

use crate::script::api;
use crate::script::bounds::{self, COLLECTED_KB, COLLECTED_WORK};
use crate::script::failure;
use crate::script::interpreter::{GLOBALS, Interpreter, REDIS};
use crate::script::libraries::{self, random, strings, tables};
use crate::script::protect;
use crate::script::stack::{bytes, get_field, push_bytes, set_field, set_function};

/// Its address is the key under which the metatable of a cover keeps what is covered.
static COVERED: u8 = 0;

/// What of Lua's base library is there as it is.
const BASE: [&CStr; 11] = [
    c"assert",
    c"coroutine",
    c"error",
    c"gcinfo",
    c"ipairs",
    c"rawequal",
    c"select",
    c"tonumber",
    c"tostring",
    c"type",
    c"_VERSION",
];

/// What there is instead of its namesakes.
const OWN: [(&CStr, lua_CFunction); 11] = [
    (c"collectgarbage", collectgarbage),
    (c"getmetatable", getmetatable),
    (c"load", load),
    (c"loadstring", loadstring),
    (c"next", next),
    (c"pcall", protect::pcall),
    (c"rawget", rawget),
    (c"rawset", rawset),
    (c"setmetatable", setmetatable),
    (c"unpack", unpack),
    (c"xpcall", protect::xpcall),
];

/// The global that is what Redis makes of errors.
pub(super) const ERROR_FUNCTION: &CStr = c"__redis__err__handler";

/// Bytes of source text that are compiled between two looks at whether the script may go on.
const PIECE_MAX: usize = 16 << 10;

const READ_ONLY: &str = "Attempt to modify a readonly table";

/// Opens the libraries and puts the globals in place.
///
/// # Safety
/// The state is new, the interpreter outlives it, and allocations cannot fail.
pub(super) unsafe fn install(lua: *mut lua_State, interpreter: *mut Interpreter) {
    // SAFETY: as promised; at most ten values are on the stack at once. Nothing here raises an error but for want of memory.
    unsafe {
        for open in [luaopen_base, luaopen_string, luaopen_table, luaopen_math] as [unsafe extern "C-unwind" fn(_) -> _; 4] {
            lua_pushcclosure(lua, open, 0);
            lua_call(lua, 0, 0);
        }
        lua_createtable(lua, 0, 64);
        let globals = lua_gettop(lua);
        for name in BASE {
            lua_getfield_(lua, LUA_GLOBALSINDEX, name.as_ptr());
            set_field(lua, name);
        }
        for (name, function) in OWN {
            // Those that stand in for another get it as their second upvalue.
            lua_pushlightuserdata(lua, interpreter.cast());
            lua_getfield_(lua, LUA_GLOBALSINDEX, name.as_ptr());
            lua_pushcclosure(lua, function, 2);
            set_field(lua, name);
        }
        lua_pushlightuserdata(lua, interpreter.cast());
        get_field(lua, globals, c"next");
        lua_pushcclosure(lua, pairs, 2);
        set_field(lua, c"pairs");
        // Redis leaves its own error function lying about.
        lua_pushcclosure(lua, failure::locate, 0);
        set_field(lua, ERROR_FUNCTION);

        lua_getfield_(lua, LUA_GLOBALSINDEX, c"math".as_ptr());
        set_function(lua, interpreter, c"random", random::random);
        set_function(lua, interpreter, c"randomseed", random::randomseed);
        add_library(lua, globals, &[c"math"]);

        lua_getfield_(lua, LUA_GLOBALSINDEX, c"table".as_ptr());
        tables::install(lua, interpreter);
        add_library(lua, globals, &[c"table"]);

        lua_getfield_(lua, LUA_GLOBALSINDEX, c"string".as_ptr());
        strings::install(lua, interpreter);
        add_library(lua, globals, &[c"string"]);

        get_field(lua, globals, c"coroutine");
        protect::install_coroutines(lua, interpreter);
        add_library(lua, globals, &[c"coroutine"]);

        lua_createtable(lua, 0, 1);
        set_function(lua, interpreter, c"clock", clock);
        add_library(lua, globals, &[c"os"]);

        libraries::install(lua, interpreter, globals);

        api::push_table(lua, interpreter);
        lua_pushvalue(lua, -1);
        lua_rawseti_(lua, LUA_REGISTRYINDEX, REDIS);
        add_library(lua, globals, &[c"redis", c"server"]);

        // The globals themselves: absent names are an error.
        refuse_absent(lua, interpreter);
        lua_pushvalue(lua, globals);
        lua_rawseti_(lua, LUA_REGISTRYINDEX, GLOBALS);
        lua_pushvalue(lua, globals);
        cover(lua);
        lua_pushvalue(lua, -1);
        lua_replace(lua, LUA_GLOBALSINDEX);
        set_field(lua, c"_G");
        lua_settop(lua, globals - 1);
    }
}

/// Pops a library's table and gives its cover these names among the globals.
///
/// # Safety
/// As for [`install`]; the globals' table lies at `globals`.
pub(super) unsafe fn add_library(lua: *mut lua_State, globals: c_int, names: &[&'static CStr]) {
    // SAFETY: as promised.
    unsafe {
        cover(lua);
        for name in names {
            lua_pushvalue(lua, globals);
            lua_pushvalue(lua, -2);
            set_field(lua, name);
            lua_pop(lua, 1);
        }
        lua_pop(lua, 1);
    }
}

/// Makes it an error to look for what is not in the table on top.
///
/// # Safety
/// As for [`install`].
pub(super) unsafe fn refuse_absent(lua: *mut lua_State, interpreter: *mut Interpreter) {
    // SAFETY: as promised.
    unsafe {
        lua_createtable(lua, 0, 1);
        set_function(lua, interpreter, c"__index", absent);
        lua_setmetatable(lua, -2);
    }
}

/// Pops a table and lets it be seen in place of the globals, until [`show_all`].
///
/// # Safety
/// No script runs, and allocations cannot fail.
pub(super) unsafe fn show(lua: *mut lua_State) {
    // SAFETY: as promised; the globals are a cover.
    unsafe {
        lua_getmetatable(lua, LUA_GLOBALSINDEX);
        lua_insert(lua, -2);
        set_field(lua, c"__index");
        lua_pop(lua, 1);
    }
}

/// Lets all globals be seen again.
///
/// # Safety
/// As for [`show`].
pub(super) unsafe fn show_all(lua: *mut lua_State) {
    // SAFETY: as promised; the globals are a cover.
    unsafe {
        lua_getmetatable(lua, LUA_GLOBALSINDEX);
        lua_pushlightuserdata(lua, covered_key());
        lua_rawget_(lua, -2);
        set_field(lua, c"__index");
        lua_pop(lua, 1);
    }
}

/// Replaces the table on top by its cover.
///
/// # Safety
/// As for [`install`].
pub(super) unsafe fn cover(lua: *mut lua_State) {
    // SAFETY: as for `install`.
    unsafe {
        lua_createtable(lua, 0, 0);
        lua_createtable(lua, 0, 3);
        lua_pushvalue(lua, -3);
        set_field(lua, c"__index");
        lua_pushcclosure(lua, refuse_write, 0);
        set_field(lua, c"__newindex");
        lua_pushlightuserdata(lua, covered_key());
        lua_pushvalue(lua, -4);
        lua_rawset(lua, -3);
        lua_setmetatable(lua, -2);
        lua_remove(lua, -2);
    }
}

fn covered_key() -> *mut c_void {
    (&raw const COVERED).cast_mut().cast()
}

/// Replaces a cover at the (positive) index by what it covers; false, and nothing done, where there is none.
///
/// # Safety
/// The stack has room for two more values.
#[inline]
pub(super) unsafe fn uncover(lua: *mut lua_State, index: c_int) -> bool {
    // SAFETY: as promised.
    unsafe {
        if lua_type(lua, index) != LUA_TTABLE || lua_getmetatable(lua, index) == 0 {
            return false;
        }
        lua_pushlightuserdata(lua, covered_key());
        lua_rawget_(lua, -2);
        let is_cover = lua_type(lua, -1) == LUA_TTABLE;
        if is_cover {
            lua_replace(lua, index);
            lua_pop(lua, 1);
        } else {
            lua_pop(lua, 2);
        }
        is_cover
    }
}

/// Calls the function that this one stands in for, with the same arguments.
unsafe fn original(lua: *mut lua_State) -> c_int {
    // SAFETY: the second upvalue is a C function of Lua's libraries without upvalues of its own; it finds the stack as its caller
    // left it.
    unsafe {
        match lua_tocfunction(lua, lua_upvalueindex(2)) {
            Some(function) => function(lua),
            None => 0,
        }
    }
}

// SAFETY of the functions below: Lua calls them, with room for twenty values beyond their arguments, and with the upvalues that
// `install` has given them. They own nothing that has a destructor.

/// `__newindex` of covers.
unsafe extern "C-unwind" fn refuse_write(lua: *mut lua_State) -> c_int {
    // SAFETY: see above.
    unsafe { luaL_error(lua, c"Attempt to modify a readonly table".as_ptr()) }
}

/// As [`refuse_write`] for functions, which do not say where they were called.
///
/// # Safety
/// Called from a function that Lua called; nothing with a destructor is alive.
pub(super) unsafe fn raise_read_only(lua: *mut lua_State) -> c_int {
    // SAFETY: as promised.
    unsafe {
        push_bytes(lua, READ_ONLY.as_bytes());
        lua_error(lua)
    }
}

/// `__index` of the globals, for what is not there.
unsafe extern "C-unwind" fn absent(lua: *mut lua_State) -> c_int {
    // SAFETY: see above. The name lives on the stack while its error is written.
    unsafe {
        if lua_gettop(lua) != 2 {
            return luaL_error(lua, c"Wrong number of arguments to luaProtectedTableError".as_ptr());
        }
        match lua_type(lua, 2) {
            LUA_TSTRING | LUA_TNUMBER => {}
            _ => return luaL_error(lua, c"Second argument to luaProtectedTableError must be a string or number".as_ptr()),
        }
        luaL_error(lua, c"Script attempted to access nonexistent global variable '%s'".as_ptr(), lua_tostring(lua, 2))
    }
}

/// `next(table [, key])`
unsafe extern "C-unwind" fn next(lua: *mut lua_State) -> c_int {
    // SAFETY: see above.
    unsafe {
        luaL_checktype(lua, 1, LUA_TTABLE);
        lua_settop(lua, 2);
        uncover(lua, 1);
        if lua_next(lua, 1) != 0 {
            return 2;
        }
        lua_pushnil(lua);
        1
    }
}

/// `pairs(table)`
unsafe extern "C-unwind" fn pairs(lua: *mut lua_State) -> c_int {
    // SAFETY: see above; the second upvalue is `next`.
    unsafe {
        luaL_checktype(lua, 1, LUA_TTABLE);
        lua_pushvalue(lua, lua_upvalueindex(2));
        lua_pushvalue(lua, 1);
        lua_pushnil(lua);
        3
    }
}

/// `rawget(table, key)`
unsafe extern "C-unwind" fn rawget(lua: *mut lua_State) -> c_int {
    // SAFETY: see above.
    unsafe {
        uncover(lua, 1);
        original(lua)
    }
}

/// `rawset(table, key, value)`
unsafe extern "C-unwind" fn rawset(lua: *mut lua_State) -> c_int {
    // SAFETY: see above.
    unsafe { if uncover(lua, 1) { raise_read_only(lua) } else { original(lua) } }
}

/// `unpack(table [, first [, last]])`
unsafe extern "C-unwind" fn unpack(lua: *mut lua_State) -> c_int {
    // SAFETY: see above.
    unsafe {
        luaL_checktype(lua, 1, LUA_TTABLE);
        let first = luaL_optinteger(lua, 2, 1) as c_int;
        let last = if lua_type(lua, 3) <= LUA_TNIL { lua_objlen(lua, 1) as c_int } else { luaL_checkinteger(lua, 3) as c_int };
        if first > last {
            return 0;
        }
        // Too many for an int are less than none.
        let count = last.wrapping_sub(first).wrapping_add(1);
        if count <= 0 || lua_checkstack(lua, count) == 0 {
            return luaL_error(lua, c"too many results to unpack".as_ptr());
        }
        bounds::spend(lua, Interpreter::of(lua), count as u64 / 4);
        for index in first..=last {
            lua_rawgeti_(lua, 1, index);
        }
        count
    }
}

/// `getmetatable(value)`: that of strings is copied, and a cover shows what it covers.
unsafe extern "C-unwind" fn getmetatable(lua: *mut lua_State) -> c_int {
    // SAFETY: see above.
    unsafe {
        if lua_type(lua, 1) == LUA_TSTRING {
            lua_createtable(lua, 0, 1);
            lua_getfield_(lua, LUA_GLOBALSINDEX, c"string".as_ptr());
            set_field(lua, c"__index");
            cover(lua);
            return 1;
        }
        if uncover(lua, 1) {
            // That of the globals says that absent names are an error; it cannot be written to either.
            if lua_getmetatable(lua, 1) == 0 {
                lua_pushnil(lua);
            } else {
                cover(lua);
            }
            return 1;
        }
        original(lua)
    }
}

/// `setmetatable(table, metatable)`
unsafe extern "C-unwind" fn setmetatable(lua: *mut lua_State) -> c_int {
    // SAFETY: see above.
    unsafe { if uncover(lua, 1) { raise_read_only(lua) } else { original(lua) } }
}

/// `collectgarbage([option [, argument]])`: the collector can be asked to work, but not to stop or to go slower, which would outlast
/// the script.
unsafe extern "C-unwind" fn collectgarbage(lua: *mut lua_State) -> c_int {
    // SAFETY: see above; the list ends with a null.
    unsafe {
        let options = [
            c"collect".as_ptr(),
            c"count".as_ptr(),
            c"step".as_ptr(),
            c"stop".as_ptr(),
            c"restart".as_ptr(),
            c"setpause".as_ptr(),
            c"setstepmul".as_ptr(),
            std::ptr::null(),
        ];
        let option = luaL_checkoption(lua, 1, c"collect".as_ptr(), options.as_ptr());
        let unchanged = match option {
            0 => {
                collect(lua);
                0.0
            }
            1 => return original(lua),
            2 => {
                lua_pushboolean(lua, step(lua, luaL_optinteger(lua, 2, 0) as c_int).into());
                return 1;
            }
            3 | 4 => 0.0,
            _ => 200.0,
        };
        lua_pushnumber(lua, unchanged);
        1
    }
}

/// Collects all garbage there is, in steps.
unsafe fn collect(lua: *mut lua_State) {
    // SAFETY: see above.
    unsafe {
        // What became garbage after the cycle under way had begun is found by the next one.
        while !step(lua, COLLECTED_KB) {}
        while !step(lua, COLLECTED_KB) {}
    }
}

/// Has the collector take a step of so many kilobytes; whether that ended its cycle.
unsafe fn step(lua: *mut lua_State, kilobytes: c_int) -> bool {
    let mut left = kilobytes.max(0);
    loop {
        let size = left.min(COLLECTED_KB);
        // SAFETY: see above.
        unsafe {
            if lua_gc(lua, LUA_GCSTEP, size) != 0 {
                return true;
            }
            bounds::spend(lua, Interpreter::of(lua), COLLECTED_WORK);
        }
        left -= size;
        if left == 0 {
            return false;
        }
    }
}

/// `loadstring(text [, name])`
unsafe extern "C-unwind" fn loadstring(lua: *mut lua_State) -> c_int {
    // SAFETY: see above. The text stays on the stack while it is read.
    unsafe {
        luaL_checklstring(lua, 1, std::ptr::null_mut());
        let text = bytes(lua, 1).unwrap_or_default();
        let name = luaL_optlstring(lua, 2, text.as_ptr().cast(), std::ptr::null_mut());
        let mut pieces = Pieces { begun: false, text, more: false };
        loaded(lua, lua_load(lua, Pieces::read, (&raw mut pieces).cast(), name))
    }
}

/// `load(function [, name])`
unsafe extern "C-unwind" fn load(lua: *mut lua_State) -> c_int {
    // SAFETY: see above.
    unsafe {
        let name = luaL_optlstring(lua, 2, c"=(load)".as_ptr(), std::ptr::null_mut());
        luaL_checktype(lua, 1, LUA_TFUNCTION);
        lua_settop(lua, 3);
        let mut pieces = Pieces { begun: false, text: b"", more: true };
        loaded(lua, lua_load(lua, Pieces::read, (&raw mut pieces).cast(), name))
    }
}

/// Source text on its way to the compiler: first a blank, so that bytecode is a syntax error, and then no more at once than is
/// compiled soon, each piece counted as work.
struct Pieces<'a> {
    begun: bool,
    /// What comes next.
    text: &'a [u8],
    /// Whether the function at 1 gives more.
    more: bool,
}

impl Pieces<'_> {
    /// Gives Lua the next piece.
    unsafe extern "C-unwind" fn read(lua: *mut lua_State, pieces: *mut c_void, size: *mut usize) -> *const std::ffi::c_char {
        // SAFETY: called by `lua_load` on behalf of `load` and `loadstring`, in their frame. What the function gave is kept at 3 until
        // it gives something else.
        unsafe {
            let pieces = &mut *pieces.cast::<Pieces>();
            if !std::mem::replace(&mut pieces.begun, true) {
                *size = 1;
                return c" ".as_ptr();
            }
            if pieces.more && pieces.text.is_empty() {
                luaL_checkstack_(lua, 2, c"too many nested functions".as_ptr());
                lua_pushvalue(lua, 1);
                lua_call(lua, 0, 1);
                match lua_type(lua, -1) {
                    LUA_TNIL => pieces.more = false,
                    LUA_TSTRING | LUA_TNUMBER => {
                        lua_replace(lua, 3);
                        pieces.text = bytes(lua, 3).unwrap_or_default();
                        // As Lua takes it, an empty piece is the end.
                        pieces.more = !pieces.text.is_empty();
                    }
                    _ => {
                        luaL_error(lua, c"reader function must return a string".as_ptr());
                    }
                }
            }
            let (piece, rest) = pieces.text.split_at(pieces.text.len().min(PIECE_MAX));
            pieces.text = rest;
            bounds::spend(lua, Interpreter::of(lua), piece.len() as u64);
            *size = piece.len();
            piece.as_ptr().cast()
        }
    }
}

/// What `load` and `loadstring` give back: the function, or nil and a message.
unsafe fn loaded(lua: *mut lua_State, status: c_int) -> c_int {
    // SAFETY: see above; the function or the message is on top.
    unsafe {
        protect::caught(lua, Interpreter::of(lua));
        if status == LUA_OK {
            return 1;
        }
        lua_pushnil(lua);
        lua_insert(lua, -2);
        2
    }
}

/// `os.clock()`: seconds. While the script runs they advance by the work that it has done, not by the clock, which a simulation does
/// not have: a script that waits in a loop for a second to pass ends after about as much work.
unsafe extern "C-unwind" fn clock(lua: *mut lua_State) -> c_int {
    // SAFETY: see above.
    unsafe {
        let interpreter = Interpreter::of(lua);
        bounds::spend(lua, interpreter, bounds::CLOCK);
        let frame = &raw const (*interpreter).frame;
        let began_ns = (*frame).now.mono_us.saturating_mul(1000);
        lua_pushnumber(lua, began_ns.saturating_add((*frame).bounds.elapsed_ns()) as f64 / 1e9);
    }
    1
}
