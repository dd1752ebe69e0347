//! A run of a script.

use std::os::raw::c_int;
use std::ptr;

use mlua::ffi::*;

use crate::script::fuel::{self, COLLECT_COST, COLLECT_KB};
use crate::script::interpreter::function::Function;
use crate::script::interpreter::keys_argv;
use crate::script::interpreter::locals::Locals;
use crate::script::interpreter::state::{ERROR_FUNCTION, GLOBALS, Interpreter};
use crate::script::lua::layout;
use crate::script::lua::stack::set_field;

/// Where a copy of the first key lies on the stack while a script runs. It keeps the string alive when the script changes `KEYS`.
const FIRST_KEY: c_int = 2;

/// Minimum number of bytes that a collection must free for another one to be worth its time.
const COLLECT_MIN: usize = 1 << 20;

impl Interpreter {
    /// Runs a script. Returns whether it succeeded. Its result or its error is then on top of the stack, until
    /// [`Interpreter::finish`].
    ///
    /// # Safety
    /// `this` is valid and no script runs on it, and the function came from it. The frame is that of this run; its engine is valid, and
    /// reached through the frame only until this returns.
    pub(crate) unsafe fn run(this: *mut Interpreter, function: Function, keys: &[&[u8]], args: &[&[u8]]) -> bool {
        // SAFETY: nothing runs on the interpreter, and its stack has room for all that is pushed before the call: see
        // `STACK_MIN`. Allocations fail only inside of the protected call, and the engine is reached only through the frame.
        unsafe {
            let lua = (*this).lua;
            debug_assert_eq!(lua_gettop(lua), ERROR_FUNCTION, "nothing is left of earlier runs");
            lua_pushnil(lua);
            lua_rawgeti_(lua, LUA_REGISTRYINDEX, function.reference);
            for (list, tables) in [keys, args].into_iter().zip(&mut (*this).keys_argv) {
                if function.reuses_tables { tables.push(lua, list) } else { keys_argv::push_new(lua, list, list.len()) }
            }
            if let Some(key) = keys.first() {
                Self::remember_first_key(this, key);
            }
            if function.sets_globals {
                lua_rawgeti_(lua, LUA_REGISTRYINDEX, GLOBALS);
                for (name, index) in [(c"KEYS", -3), (c"ARGV", -2)] {
                    lua_pushvalue(lua, index);
                    set_field(lua, name);
                }
                lua_pop(lua, 1);
            }
            match function.locals {
                None => lua_pop(lua, 2),
                Some(locals) => (*this).local_values.push(lua, locals),
            }
            fuel::arm_hook(lua);
            ((*this).memory.thread, (*this).memory.largest) = (lua, 0);
            (*this).memory.may_fail = true;
            let status = lua_pcall(lua, function.locals.map_or(0, Locals::count), 1, ERROR_FUNCTION);
            (*this).memory.may_fail = false;
            // The result replaces the copy of the first key.
            lua_replace(lua, FIRST_KEY);
            if !keys.is_empty() {
                (*(*this).frame.engine).keyspace_mut().space.uncache_place(true);
            }
            if status == LUA_ERRMEM || (*this).memory.needs_full_collection() {
                Self::collect_all(this);
                (*this).memory.note_full_collection();
            }
            (*this).frame.engine = ptr::null_mut();
            (*this).memory.thread = ptr::null_mut();
            (*this).memory.relax_collection(lua);
            status == LUA_OK
        }
    }

    /// Makes the keyspace remember the location of the first key, because most calls use that key. They receive its copy in the
    /// table of keys, which lies below that of arguments.
    unsafe fn remember_first_key(this: *mut Interpreter, key: &[u8]) {
        // SAFETY: as for `run`, which has put a nil in the place for the copy, and a table with the key in the one for keys.
        unsafe {
            let lua = (*this).lua;
            let copy = layout::first_element(lua, layout::stack_len(lua) - 2);
            layout::replace(lua, FIRST_KEY as usize - 1, copy);
            if let Some(copy) = copy.bytes() {
                (*(*this).frame.engine).keyspace_mut().space.cache_place_of_copy(key, copy);
            }
        }
    }

    /// Collects all garbage of a run that has used much memory, so that the next run finds room. The steps consume fuel, so other
    /// clients are answered meanwhile.
    ///
    /// # Safety
    /// The run has just ended, and the frame still has its engine.
    unsafe fn collect_all(this: *mut Interpreter) {
        // SAFETY: the run has just ended, so nothing has a reference to the engine, which the frame still has for `try_consume`.
        unsafe {
            loop {
                let before = (*this).memory.used;
                // The first cycle may be half done, and does not find what became garbage after its start. The second one does.
                for _ in 0..2 {
                    while lua_gc((*this).lua, LUA_GCSTEP, COLLECT_KB) == 0 {
                        fuel::try_consume(this, COLLECT_COST);
                    }
                }
                // Each cycle frees half of the buffer in which Lua concatenates strings, so several may be needed.
                if before.saturating_sub((*this).memory.used) < COLLECT_MIN {
                    break;
                }
            }
        }
    }
}
