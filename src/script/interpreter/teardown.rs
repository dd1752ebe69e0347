//! The end of an interpreter: at once, or in small steps.

use std::ptr::NonNull;

use mlua::ffi::*;

use crate::script::interpreter::state::Interpreter;
use crate::script::lua::stack::push_bytes;

impl Interpreter {
    /// Frees an interpreter. If a run has begun and not ended, the interpreter and its memory are leaked instead: the run may
    /// continue, as when the engine's supervisor drops the scripts during a run, or a panic has interrupted it.
    ///
    /// # Safety
    /// The interpreter came from [`Interpreter::create`], and only an unfinished run still uses it.
    pub(crate) unsafe fn free(this: NonNull<Interpreter>) {
        // SAFETY: the interpreter came from `create`, and if no run is unfinished, nothing else uses it. The allocator's memory
        // outlives the state.
        unsafe {
            if Self::is_running(this.as_ptr()) {
                return;
            }
            lua_close(this.as_ref().lua);
            drop(Box::from_raw(this.as_ptr()));
        }
    }

    /// Begins to free an interpreter in steps: removes its globals. Afterwards it can only be freed, at once or after
    /// [`Interpreter::empty_some`] and [`Interpreter::collect_some`].
    ///
    /// # Safety
    /// `this` is valid and no script runs on it.
    pub(crate) unsafe fn empty(this: *mut Interpreter) {
        // SAFETY: the interpreter is valid and runs nothing, so its stack has room for two values. Allocations cannot fail,
        // because `may_fail` is not set.
        unsafe {
            let lua = (*this).lua;
            lua_settop(lua, 0);
            lua_createtable(lua, 0, 0);
            lua_replace(lua, LUA_GLOBALSINDEX);
            // Strings share a metatable, which refers to the string library.
            push_bytes(lua, b"");
            lua_pushnil(lua);
            lua_setmetatable(lua, -2);
            lua_settop(lua, 0);
            // The key from which `empty_some` continues.
            lua_pushnil(lua);
        }
    }

    /// Removes up to `count` entries from the registry, which refers to all scripts. Returns whether the registry is empty.
    ///
    /// # Safety
    /// As for [`Interpreter::empty`], which was called before. Since then, [`Interpreter::collect_some`] has not been called, and
    /// this has not returned true.
    pub(crate) unsafe fn empty_some(this: *mut Interpreter, count: u32) -> bool {
        // SAFETY: the key from which to continue is on top, and nothing is allocated. A table may lose entries while it is
        // walked, and its collector does not run.
        unsafe {
            let lua = (*this).lua;
            for _ in 0..count {
                if lua_next(lua, LUA_REGISTRYINDEX) == 0 {
                    return true;
                }
                lua_pop(lua, 1);
                lua_pushvalue(lua, -1);
                lua_pushnil(lua);
                lua_rawset(lua, LUA_REGISTRYINDEX);
            }
        }
        false
    }

    /// Runs one step of the garbage collector. Returns whether that ended a cycle.
    ///
    /// # Safety
    /// As for [`Interpreter::empty`].
    pub(crate) unsafe fn collect_some(this: *mut Interpreter) -> bool {
        // SAFETY: as promised.
        unsafe { lua_gc((*this).lua, LUA_GCSTEP, 0) != 0 }
    }
}
