//! The interpreter's memory: counted, and bounded while a script's own code runs.
//!
//! An allocation that fails makes Lua jump out of whatever C function asked for it. Rust code with destructors must not be jumped
//! over, so allocations fail only while [`Memory::strict`] is set, which is while Lua code runs. Our own functions clear it before
//! they do anything that owns something; what they take beyond the limit then stops the script at its next own allocation.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error, realloc};
use std::os::raw::{c_int, c_void};
use std::ptr::{self, NonNull};

use mlua::ffi::{LUA_GCSETPAUSE, lua_State, lua_gc};

use crate::script::bounds;

/// What an interpreter may take unless it is told otherwise, in bytes; little in tests, so that it is soon reached.
pub const LIMIT: u64 = crate::engine::config::SCRIPT_MEMORY;

/// So much garbage, and as much again as was left by the last collection, is collected when a run ends. Bytes.
const SWOLLEN: usize = 32 << 20;

/// Up to here the collector leaves garbage lying for long: the few live blocks would be walked again and again. Bytes.
const SMALL: usize = 2 << 20;

/// How much memory may grow before it is collected again, in percent of what was live: while it is small, and later.
const PAUSE_SMALL: c_int = 400;
const PAUSE: c_int = 200;

/// Lua's blocks are aligned for any of its values.
const ALIGN: usize = 16;

/// Blocks of up to so many times [`ALIGN`] bytes are kept for their next use: scripts take and leave many small ones.
const CLASSES: usize = 16;

/// Bytes of spare blocks that are kept at most.
const SPARE_MAX: usize = 1 << 20;

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
    /// Bytes that were left when all garbage was last collected.
    kept: usize,
    /// Whether that has happened in the run.
    pub collected: bool,
    lua: *mut lua_State,
    /// The thread of Lua that runs; null while no script does.
    pub thread: *mut lua_State,
    /// Size of the largest block since the run began, where it is a large one, and within a factor of two. Bytes.
    pub largest: usize,
    /// Small blocks that Lua has given back, by size.
    spare: [*mut Spare; CLASSES],
    spare_bytes: usize,
}

impl Memory {
    pub(super) fn new(limit: usize) -> Self {
        Memory {
            used: 0,
            limit,
            strict: false,
            hurried: false,
            kept: 0,
            collected: false,
            lua: ptr::null_mut(),
            thread: ptr::null_mut(),
            largest: 0,
            spare: [ptr::null_mut(); CLASSES],
            spare_bytes: 0,
        }
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

    /// Whether there may be too much garbage to leave it for the collector to find in its own time. It never takes more than a quarter of
    /// the limit from the scripts that come after.
    #[inline]
    pub(super) fn is_swollen(&self) -> bool {
        self.used > self.kept.saturating_add(SWOLLEN.saturating_add(self.kept).min(self.limit / 4))
    }

    /// Notes that all garbage was collected.
    pub(super) fn note_collected(&mut self) {
        (self.kept, self.collected) = (self.used, true);
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

/// A block that waits to be used again; it lies in the block's own bytes.
struct Spare {
    next: *mut Spare,
}

/// Lua's allocation function; `account` is the interpreter's [`Memory`].
pub(super) unsafe extern "C" fn allocate(account: *mut c_void, block: *mut c_void, old: usize, new: usize) -> *mut c_void {
    // SAFETY: the interpreter's account outlives its state, and nobody has a reference to it while Lua runs.
    let account = unsafe { &mut *account.cast::<Memory>() };
    let old = if block.is_null() { 0 } else { old };
    // SAFETY: Lua passes back what this function gave it, together with the size it asked for.
    unsafe {
        if new == 0 {
            account.used -= old;
            account.give_back(block, old);
            return ptr::null_mut();
        }
        let used = account.used - old;
        if account.strict && new > old && new > account.limit.saturating_sub(used) {
            return ptr::null_mut();
        }
        let got = if old == 0 { account.take(new) } else { account.resize(block, old, new) };
        if got.is_null() {
            if account.strict && new > old {
                return ptr::null_mut();
            }
            handle_alloc_error(layout(new));
        }
        account.used = used + new;
        // Only when it is twice as large: the hook is set anew, and one that is set again and again never comes.
        if new >= bounds::LARGE_BLOCK && new / 2 >= account.largest && account.strict && !account.thread.is_null() {
            account.largest = new;
            bounds::note_largest(account.thread, new);
        }
        if account.used >= SMALL && !account.hurried && !account.lua.is_null() {
            account.hurried = true;
            lua_gc(account.lua, LUA_GCSETPAUSE, PAUSE);
        }
        got
    }
}

/// The list of spare blocks for a size, if it is a small one.
#[inline]
fn class(size: usize) -> Option<usize> {
    (size <= CLASSES * ALIGN).then(|| size.div_ceil(ALIGN).saturating_sub(1))
}

/// What is asked of the system for a size: small ones are rounded up, so that all of a class are alike.
#[inline]
fn layout(size: usize) -> Layout {
    let size = class(size).map_or(size, |class| (class + 1) * ALIGN);
    // SAFETY: the alignment is a power of two, and Lua asks for no size near `isize::MAX`: its own limits are below that.
    unsafe { Layout::from_size_align_unchecked(size, ALIGN) }
}

impl Memory {
    /// A block for `size` bytes, more than none; null where there is no more.
    #[inline]
    fn take(&mut self, size: usize) -> *mut c_void {
        if let Some(class) = class(size)
            && let Some(spare) = NonNull::new(self.spare[class])
        {
            // SAFETY: blocks in the list are ours and in nobody's use.
            self.spare[class] = unsafe { spare.as_ref().next };
            self.spare_bytes -= (class + 1) * ALIGN;
            return spare.as_ptr().cast();
        }
        // SAFETY: the size is not zero.
        unsafe { alloc(layout(size)).cast() }
    }

    /// Takes a block back that was given for `size` bytes; null with none is nothing.
    ///
    /// # Safety
    /// It was, and is not used any more.
    #[inline]
    unsafe fn give_back(&mut self, block: *mut c_void, size: usize) {
        let Some(class) = class(size) else {
            // SAFETY: as promised.
            return unsafe { dealloc(block.cast(), layout(size)) };
        };
        if block.is_null() {
            return;
        }
        let bytes = (class + 1) * ALIGN;
        if self.spare_bytes + bytes > SPARE_MAX {
            // SAFETY: as promised.
            return unsafe { dealloc(block.cast(), layout(size)) };
        }
        let spare = block.cast::<Spare>();
        // SAFETY: the block has room for a pointer, and is aligned for one.
        unsafe { spare.write(Spare { next: self.spare[class] }) };
        self.spare[class] = spare;
        self.spare_bytes += bytes;
    }

    /// A block for `new` bytes with what the one for `old` bytes held, as far as it fits; null, and the old one kept, where there is
    /// no more.
    ///
    /// # Safety
    /// As for [`Memory::give_back`].
    unsafe fn resize(&mut self, block: *mut c_void, old: usize, new: usize) -> *mut c_void {
        match (class(old), class(new)) {
            // SAFETY: as promised; both sizes are those that were asked of the system.
            (None, None) => unsafe { realloc(block.cast(), layout(old), new).cast() },
            (of_old, of_new) if of_old == of_new => block,
            _ => {
                let got = self.take(new);
                if !got.is_null() {
                    // SAFETY: as promised; the blocks are not the same, and each has so many bytes.
                    unsafe {
                        ptr::copy_nonoverlapping(block.cast::<u8>(), got.cast::<u8>(), old.min(new));
                        self.give_back(block, old);
                    }
                }
                got
            }
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        for (class, list) in self.spare.iter().enumerate() {
            let mut next = *list;
            while let Some(spare) = NonNull::new(next) {
                // SAFETY: blocks in the list are ours and in nobody's use.
                unsafe {
                    next = spare.as_ref().next;
                    dealloc(spare.as_ptr().cast(), layout((class + 1) * ALIGN));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_keep_what_they_hold_and_all_are_accounted_for() {
        let mut memory = Memory::new(1 << 20);
        let account: *mut c_void = (&raw mut memory).cast();
        let mut blocks: Vec<(*mut u8, usize)> = Vec::new();
        let mut random = 1u32;
        for step in 0..20_000usize {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let size = (random >> 16) as usize % 700;
            let (block, old) = if blocks.len() > 50 { blocks.swap_remove(step % 50) } else { (ptr::null_mut(), 0) };
            // SAFETY: blocks are used as Lua uses them.
            unsafe {
                let got = allocate(account, block.cast(), old, size).cast::<u8>();
                assert_eq!(got.is_null(), size == 0);
                for at in 0..old.min(size) {
                    assert_eq!(*got.add(at), old as u8);
                }
                if size > 0 {
                    ptr::write_bytes(got, size as u8, size);
                    blocks.push((got, size));
                }
            }
            assert_eq!(memory.used, blocks.iter().map(|(_, size)| size).sum::<usize>());
            assert!(memory.spare_bytes <= SPARE_MAX);
        }
        for (block, size) in blocks {
            // SAFETY: as above.
            unsafe { allocate(account, block.cast(), size, 0) };
        }
        assert_eq!(memory.used, 0);
    }

    #[test]
    fn the_limit_holds_while_the_account_is_strict() {
        let mut memory = Memory::new(1000);
        let account: *mut c_void = (&raw mut memory).cast();
        // SAFETY: blocks are used as Lua uses them.
        unsafe {
            (*account.cast::<Memory>()).strict = true;
            let block = allocate(account, ptr::null_mut(), 0, 900);
            assert!(!block.is_null());
            assert!(allocate(account, ptr::null_mut(), 0, 101).is_null());
            assert!(allocate(account, block, 900, 1001).is_null());
            (*account.cast::<Memory>()).strict = false;
            let block = allocate(account, block, 900, 5000);
            assert!(!block.is_null());
            (*account.cast::<Memory>()).strict = true;
            let block = allocate(account, block, 5000, 4000);
            assert!(!block.is_null(), "to shrink never fails");
            allocate(account, block, 4000, 0);
        }
    }
}
