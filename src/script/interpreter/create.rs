//! The creation of interpreters.

use std::os::raw::c_int;
use std::ptr::{self, NonNull};

use mlua::ffi::*;

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::script::calls::command_cache;
use crate::script::conversion::errors;
use crate::script::globals;
use crate::script::interpreter::frame::Frame;
use crate::script::interpreter::locals::LocalValues;
use crate::script::interpreter::state::{
    ARGV_TABLES, COMMAND_NAMES, GLOBALS, Interpreter, KEYS_TABLES, OK_FIELD, OK_TEXT, REDIS,
};
use crate::script::lua::layout;
use crate::script::lua::memory::{self, Memory};
use crate::script::lua::stack::push_bytes;

/// Minimum number of free stack slots when a run begins.
const STACK_MIN: c_int = 60;

impl Interpreter {
    /// Creates an interpreter whose memory is limited to `memory_limit` bytes. Free it with [`Interpreter::free`].
    pub(crate) fn create(memory_limit: usize) -> NonNull<Interpreter> {
        let frame = Frame::new(ptr::null_mut(), Now::default(), SessionId::new(0, 0), 0);
        let this = Box::into_raw(Box::new(Interpreter::without_state(Memory::new(memory_limit), frame)));
        // SAFETY: `this` is valid until `free`. Allocations cannot fail here, so Lua raises nothing outside of a protected call.
        unsafe {
            let lua = lua_newstate(memory::allocate, (&raw mut (*this).memory).cast());
            assert!(!lua.is_null(), "the state is allocated or the process ends");
            (*this).lua = lua;
            layout::check(lua, (&raw mut (*this).memory).cast());
            for slot in [GLOBALS, REDIS, OK_FIELD, OK_TEXT, COMMAND_NAMES, KEYS_TABLES, ARGV_TABLES] {
                match slot {
                    OK_FIELD => push_bytes(lua, b"ok"),
                    OK_TEXT => push_bytes(lua, b"OK"),
                    // With all its places, so that its size does not depend on which of them are used.
                    COMMAND_NAMES => lua_createtable(lua, command_cache::SLOTS as c_int, 0),
                    _ => lua_createtable(lua, 0, 0),
                }
                let reference = luaL_ref(lua, LUA_REGISTRYINDEX);
                assert_eq!(reference, slot, "references count from one in an empty registry");
            }
            globals::install(lua, this);
            (*this).local_values = LocalValues::read(lua);
            lua_settop(lua, 0);
            lua_checkstack(lua, STACK_MIN);
            lua_pushcclosure(lua, errors::message_handler, 0);
            (*this).memory.attach(lua);
            NonNull::new_unchecked(this)
        }
    }
}
