//! The struct of an interpreter.

use std::ffi::CStr;
use std::mem::offset_of;
use std::os::raw::c_int;

use mlua::ffi::*;

use crate::script::calls::command_cache::CommandCache;
use crate::script::functions::load_context::LoadContext;
use crate::script::interpreter::frame::Frame;
use crate::script::interpreter::keys_argv::ReusedTables;
use crate::script::interpreter::locals::LocalValues;
use crate::script::libraries::buffer::{Buffer, Level};
use crate::script::lua::layout;
use crate::script::lua::memory::Memory;
use crate::script::lua::stack::set_field;

/// Size in bytes of the memory for short replies in plans. Replies beyond that are allocated.
const PLAN_TEXTS: usize = 1 << 10;

/// Registry references that every interpreter has, in the order in which they are created.
///
/// The table of globals, without the proxy that makes it read-only.
pub(crate) const GLOBALS: c_int = 1;
/// The `redis` table, without its proxy.
pub(crate) const REDIS: c_int = 2;
/// The strings `ok` and `OK`.
pub(crate) const OK_FIELD: c_int = 3;
pub(crate) const OK_TEXT: c_int = 4;
/// Tables that keep objects from being collected: names of commands, and the tables of keys and of arguments.
pub(super) const COMMAND_NAMES: c_int = 5;
pub(super) const KEYS_TABLES: c_int = 6;
pub(super) const ARGV_TABLES: c_int = 7;

/// Where the error function lies on the stack: below everything else.
pub(super) const ERROR_FUNCTION: c_int = 1;

/// A Lua state and all that belongs to it. It does not move.
pub(crate) struct Interpreter {
    pub lua: *mut lua_State,
    pub memory: Memory,
    pub frame: Frame,
    /// Commands that scripts have called.
    pub commands: CommandCache,
    /// The values that scripts receive as locals.
    pub(super) local_values: LocalValues,
    /// The tables of keys and of arguments.
    pub(super) keys_argv: [ReusedTables; 2],
    /// The functions registered so far by a library that loads. `None` while none does.
    pub load: Option<LoadContext>,
    /// The arguments of a `redis.call` with very many.
    pub many_arguments: Vec<&'static [u8]>,
    /// Memory for short replies while a plan runs.
    pub plan_texts: [u8; PLAN_TEXTS],
    /// The result that a library function writes.
    pub buffer: Buffer,
    /// The tables that surround the value which a library function reads or writes.
    pub nesting: Vec<Level>,
}

impl Interpreter {
    /// An interpreter without a Lua state.
    pub(super) fn without_state(memory: Memory, frame: Frame) -> Self {
        Interpreter {
            lua: std::ptr::null_mut(),
            memory,
            frame,
            commands: CommandCache::new(COMMAND_NAMES),
            local_values: LocalValues::default(),
            keys_argv: [ReusedTables::new(KEYS_TABLES), ReusedTables::new(ARGV_TABLES)],
            load: None,
            many_arguments: Vec::new(),
            plan_texts: [0; PLAN_TEXTS],
            buffer: Buffer::default(),
            nesting: Vec::new(),
        }
    }

    /// The interpreter of a Lua state.
    ///
    /// # Safety
    /// The state belongs to an interpreter, as in every C function that Lua calls.
    #[inline]
    pub(crate) unsafe fn of(lua: *mut lua_State) -> *mut Interpreter {
        // SAFETY: `create` gave the state the memory in its interpreter, by a pointer made from that to the interpreter.
        unsafe { layout::allocator_data(lua).byte_sub(offset_of!(Interpreter, memory)).cast() }
    }

    /// Sets `table[name]` to a C function, for the table on top of the stack. The function's first upvalue is the interpreter.
    ///
    /// # Safety
    /// A table lies on top, the stack has room for three more values, and the interpreter outlives the state.
    pub(crate) unsafe fn set_function(
        lua: *mut lua_State,
        interpreter: *mut Interpreter,
        name: &'static CStr,
        function: lua_CFunction,
    ) {
        // SAFETY: a table is on top, with room for the function, whose place the upvalue has first, and for its name.
        unsafe {
            lua_pushlightuserdata(lua, interpreter.cast());
            lua_pushcclosure(lua, function, 1);
            set_field(lua, name);
        }
    }

    /// Whether a run has begun and not ended.
    ///
    /// # Safety
    /// `this` is valid.
    #[inline]
    pub(crate) unsafe fn is_running(this: *mut Interpreter) -> bool {
        // SAFETY: as promised.
        unsafe { !(*this).frame.engine.is_null() }
    }

    /// Empties the stack except for the error function, after a run whose result has been read. Returns whether the run ended with
    /// a full garbage collection.
    ///
    /// # Safety
    /// `this` is valid and no script runs on it.
    pub(crate) unsafe fn finish(this: *mut Interpreter) -> bool {
        // SAFETY: the interpreter is valid and runs nothing, so nothing else uses its stack, its buffer or its memory.
        unsafe {
            lua_settop((*this).lua, ERROR_FUNCTION);
            (*this).buffer.clear(&mut (*this).memory);
            std::mem::take(&mut (*this).memory.collected)
        }
    }
}
