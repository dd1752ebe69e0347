//! The interpreter's memory: counted, and bounded while a script's own code runs.
//!
//! An allocation that fails makes Lua jump out of whatever C function asked for it. Rust code with destructors must not be jumped
//! over, so allocations fail only while [`Memory::strict`] is set, which is while Lua code runs. Our own functions clear it before
//! they do anything that owns something; what they take beyond the limit then stops the script at its next own allocation.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error, realloc};
use std::os::raw::{c_int, c_void};
use std::ptr;

use mlua::ffi::{LUA_GCSETPAUSE, lua_State, lua_gc};

/// What an interpreter may take, in bytes; little in tests, so that it is soon reached.
pub(super) const LIMIT: usize = if cfg!(test) { 64 << 20 } else { 1 << 30 };

/// Up to here the collector leaves garbage lying for long: the few live blocks would be walked again and again. Bytes.
const SMALL: usize = 2 << 20;

/// How much memory may grow before it is collected again, in percent of what was live: while it is small, and later.
const PAUSE_SMALL: c_int = 1000;
const PAUSE: c_int = 200;

/// Lua's blocks are aligned for any of its values.
const ALIGN: usize = 16;

/// The account of one interpreter.
pub(super) struct Memory {
    /// Bytes taken.
    pub used: usize,
    /// Bytes that may be taken at most while `strict`.
    pub limit: usize,
    /// Whether an allocation may fail.
    pub strict: bool,
    /// Whether the collector has been told to hurry.
    hurried: bool,
    lua: *mut lua_State,
}

impl Memory {
    pub(super) fn new(limit: usize) -> Self {
        Memory { used: 0, limit, strict: false, hurried: false, lua: ptr::null_mut() }
    }

    /// Begins to set the pace of the collector of the state whose account this is.
    ///
    /// # Safety
    /// It is, and outlives this.
    pub(super) unsafe fn attach(&mut self, lua: *mut lua_State) {
        self.lua = lua;
        self.hurried = true;
        // SAFETY: as promised.
        unsafe { self.pace(lua) }
    }

    /// Lets the collector take its time again, once memory is small again.
    ///
    /// # Safety
    /// As for [`Memory::attach`].
    #[inline]
    pub(super) unsafe fn pace(&mut self, lua: *mut lua_State) {
        if self.hurried && self.used < SMALL {
            self.hurried = false;
            // SAFETY: as promised; this sets a number and allocates nothing.
            unsafe { lua_gc(lua, LUA_GCSETPAUSE, PAUSE_SMALL) };
        }
    }
}

/// Lua's allocation function; `account` is the interpreter's [`Memory`].
pub(super) unsafe extern "C" fn allocate(account: *mut c_void, block: *mut c_void, old: usize, new: usize) -> *mut c_void {
    let account = account.cast::<Memory>();
    let layout = |size| {
        // SAFETY: the alignment is a power of two, and Lua asks for no size near `isize::MAX`: its own limits are below that.
        unsafe { Layout::from_size_align_unchecked(size, ALIGN) }
    };
    // SAFETY: Lua passes back what this function gave it together with the size it asked for, and `account` outlives the state.
    unsafe {
        if new == 0 {
            if !block.is_null() {
                dealloc(block.cast(), layout(old));
                (*account).used -= old;
            }
            return ptr::null_mut();
        }
        let old = if block.is_null() { 0 } else { old };
        let used = (*account).used - old;
        if (*account).strict && new > old && new > (*account).limit.saturating_sub(used) {
            return ptr::null_mut();
        }
        let got = if old == 0 { alloc(layout(new)) } else { realloc(block.cast(), layout(old), new) };
        if got.is_null() {
            if (*account).strict && new > old {
                return ptr::null_mut();
            }
            handle_alloc_error(layout(new));
        }
        (*account).used = used + new;
        if used + new >= SMALL && !(*account).hurried && !(*account).lua.is_null() {
            (*account).hurried = true;
            lua_gc((*account).lua, LUA_GCSETPAUSE, PAUSE);
        }
        got.cast()
    }
}
