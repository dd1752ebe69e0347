//! The memory of an interpreter: counted, and limited while a script's own code runs.
//!
//! If an allocation fails, Lua jumps (`longjmp`) out of the C function that asked for it. Rust frames with destructors must not be
//! jumped over. Allocations therefore fail only while [`Memory::may_fail`] is set, which is while Lua code runs. Our C functions
//! clear it before they own anything with a destructor. Memory that they take beyond the limit ends the script at its own next
//! allocation.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error, realloc};
use std::os::raw::{c_int, c_void};
use std::ptr::{self, NonNull};

use mlua::ffi::{LUA_GCSETPAUSE, LUA_MASKCOUNT, lua_State, lua_gc, lua_gethook, lua_sethook};

use crate::script::fuel::counter::{LARGE_BLOCK, check_interval};

/// Default maximum of an interpreter's memory, in bytes. It is small in tests, so that they reach it soon.
pub(crate) const LIMIT: u64 = crate::engine::config::SCRIPT_MEMORY;

/// Maximum growth since the last full collection before a full collection follows a run, in bytes. See
/// [`Memory::needs_full_collection`].
const GARBAGE_MAX: usize = 32 << 20;

/// Below this size in bytes the collector pauses for longer: otherwise it would walk the few live blocks again and again.
const SMALL: usize = 2 << 20;

/// The collector's pause in percent of the live memory, while memory is small and later.
const PAUSE_SMALL: c_int = 400;
const PAUSE: c_int = 200;

/// Alignment of all blocks in bytes: enough for any of Lua's values.
const ALIGN: usize = 16;

/// Number of size classes. Class `n` has blocks of `(n + 1) * ALIGN` bytes. Freed blocks of a class are kept for reuse, because
/// scripts allocate and free many small blocks.
const CLASSES: usize = 16;

/// Maximum number of bytes in all free lists.
const FREE_MAX: usize = 1 << 20;

/// The memory of one interpreter.
pub(crate) struct Memory {
    /// Allocated bytes.
    pub used: usize,
    /// Maximum of `used` while `may_fail` is set.
    pub limit: usize,
    /// Whether allocations fail beyond `limit`.
    pub may_fail: bool,
    /// Whether the collector works at its faster pace ([`PAUSE`]).
    fast_collection: bool,
    /// `used` after the last full collection.
    used_after_collection: usize,
    /// Whether the current run ended with a full collection.
    pub collected: bool,
    lua: *mut lua_State,
    /// The running Lua thread (the state itself or a coroutine). Its hook is installed. Null while no script runs.
    pub thread: *mut lua_State,
    /// Size in bytes of the largest block since the run began, within a factor of two. 0 until a block has [`LARGE_BLOCK`] bytes.
    pub largest: usize,
    /// Free blocks by size class.
    free: [*mut FreeBlock; CLASSES],
    free_bytes: usize,
}

impl Memory {
    pub(crate) fn new(limit: usize) -> Self {
        Memory {
            used: 0,
            limit,
            may_fail: false,
            fast_collection: false,
            used_after_collection: 0,
            collected: false,
            lua: ptr::null_mut(),
            thread: ptr::null_mut(),
            largest: 0,
            free: [ptr::null_mut(); CLASSES],
            free_bytes: 0,
        }
    }

    /// Starts to control the pace of the state's collector.
    ///
    /// # Safety
    /// `lua` is a valid state, whose allocator data this is.
    pub(crate) unsafe fn attach(&mut self, lua: *mut lua_State) {
        self.lua = lua;
        self.fast_collection = true;
        // SAFETY: the state is valid, and this is its allocator data.
        unsafe { self.relax_collection(lua) }
    }

    /// Whether the memory may hold too much garbage to leave it to the incremental collector: it has grown by more than it held
    /// after the last full collection plus [`GARBAGE_MAX`], or by more than a quarter of the limit. So garbage never takes more
    /// than a quarter of the limit from later scripts.
    #[inline]
    pub(crate) fn needs_full_collection(&self) -> bool {
        let growth_max = GARBAGE_MAX.saturating_add(self.used_after_collection).min(self.limit / 4);
        self.used > self.used_after_collection.saturating_add(growth_max)
    }

    /// Records that all garbage was collected.
    pub(crate) fn note_full_collection(&mut self) {
        (self.used_after_collection, self.collected) = (self.used, true);
    }

    /// Returns the collector to its slower pace if memory is small again.
    ///
    /// # Safety
    /// As for [`Memory::attach`].
    #[inline]
    pub(crate) unsafe fn relax_collection(&mut self, lua: *mut lua_State) {
        if self.fast_collection && self.used < SMALL {
            self.fast_collection = false;
            // SAFETY: the state is valid, and this call sets a number and allocates nothing.
            unsafe { lua_gc(lua, LUA_GCSETPAUSE, PAUSE_SMALL) };
        }
    }
}

/// A free block. This header lies in the block's own bytes.
struct FreeBlock {
    next: *mut FreeBlock,
}

/// Lua's allocation function (`lua_Alloc`). `data` is the interpreter's [`Memory`].
pub(crate) unsafe extern "C" fn allocate(data: *mut c_void, block: *mut c_void, old: usize, new: usize) -> *mut c_void {
    // SAFETY: the interpreter's memory outlives its state, and nothing else has a reference to it while Lua runs.
    let memory = unsafe { &mut *data.cast::<Memory>() };
    let old = if block.is_null() { 0 } else { old };
    // SAFETY: Lua passes back what this function gave it, together with the size it asked for.
    unsafe {
        if new == 0 {
            memory.used -= old;
            memory.free_block(block, old);
            return ptr::null_mut();
        }
        let used = memory.used - old;
        if memory.may_fail && new > old && new > memory.limit.saturating_sub(used) {
            return ptr::null_mut();
        }
        let allocated = if old == 0 { memory.alloc_block(new) } else { memory.realloc_block(block, old, new) };
        if allocated.is_null() {
            if memory.may_fail && new > old {
                return ptr::null_mut();
            }
            handle_alloc_error(layout(new));
        }
        memory.used = used + new;
        // One instruction may copy all of a large block, so the hook has to run more often. Its interval is changed only when the
        // largest block has doubled, because a change restarts the count: a hook that is changed all the time never runs.
        if new >= LARGE_BLOCK && new / 2 >= memory.largest && memory.may_fail && !memory.thread.is_null() {
            memory.largest = new;
            debug_assert!(lua_gethook(memory.thread).is_some(), "a running thread has a hook");
            lua_sethook(memory.thread, lua_gethook(memory.thread), LUA_MASKCOUNT, check_interval(new));
        }
        if memory.used >= SMALL && !memory.fast_collection && !memory.lua.is_null() {
            memory.fast_collection = true;
            lua_gc(memory.lua, LUA_GCSETPAUSE, PAUSE);
        }
        allocated
    }
}

/// The size class of a block, if it is small.
#[inline]
fn size_class(size: usize) -> Option<usize> {
    (size <= CLASSES * ALIGN).then(|| size.div_ceil(ALIGN).saturating_sub(1))
}

/// The layout that the global allocator gets for a size. Small sizes are rounded up to that of their class.
#[inline]
fn layout(size: usize) -> Layout {
    let size = size_class(size).map_or(size, |class| (class + 1) * ALIGN);
    // SAFETY: the alignment is a power of two, and Lua asks for no size near `isize::MAX`: its own limits are below that.
    unsafe { Layout::from_size_align_unchecked(size, ALIGN) }
}

impl Memory {
    /// Allocates a block of `size` bytes, which is not 0. Returns null if the global allocator has none.
    #[inline]
    fn alloc_block(&mut self, size: usize) -> *mut c_void {
        if let Some(class) = size_class(size)
            && let Some(block) = NonNull::new(self.free[class])
        {
            // SAFETY: blocks in the list are ours and unused.
            self.free[class] = unsafe { block.as_ref().next };
            self.free_bytes -= (class + 1) * ALIGN;
            return block.as_ptr().cast();
        }
        // SAFETY: the size is not zero.
        unsafe { alloc(layout(size)).cast() }
    }

    /// Frees a block of `size` bytes. Null with size 0 is allowed and does nothing.
    ///
    /// # Safety
    /// The block was allocated with this size and is no longer used.
    #[inline]
    unsafe fn free_block(&mut self, block: *mut c_void, size: usize) {
        let Some(class) = size_class(size) else {
            // SAFETY: the block was allocated with the layout of this size, and is no longer used.
            return unsafe { dealloc(block.cast(), layout(size)) };
        };
        if block.is_null() {
            return;
        }
        let bytes = (class + 1) * ALIGN;
        if self.free_bytes + bytes > FREE_MAX {
            // SAFETY: the block was allocated with the layout of its class, which is that of this size, and is no longer used.
            return unsafe { dealloc(block.cast(), layout(size)) };
        }
        let free = block.cast::<FreeBlock>();
        // SAFETY: the block has room for a pointer, and is aligned for one.
        unsafe { free.write(FreeBlock { next: self.free[class] }) };
        self.free[class] = free;
        self.free_bytes += bytes;
    }

    /// Resizes a block from `old` to `new` bytes and keeps its contents as far as they fit. Returns null, and keeps the old block,
    /// if the global allocator has none.
    ///
    /// # Safety
    /// As for [`Memory::free_block`].
    unsafe fn realloc_block(&mut self, block: *mut c_void, old: usize, new: usize) -> *mut c_void {
        match (size_class(old), size_class(new)) {
            // SAFETY: the block was allocated with the layout of its old size. Both sizes are those that the global allocator was
            // asked for.
            (None, None) => unsafe { realloc(block.cast(), layout(old), new).cast() },
            (of_old, of_new) if of_old == of_new => block,
            _ => {
                let allocated = self.alloc_block(new);
                if !allocated.is_null() {
                    // SAFETY: the blocks do not overlap, and each has at least the number of bytes copied. The old one was
                    // allocated with its old size, and is no longer used.
                    unsafe {
                        ptr::copy_nonoverlapping(block.cast::<u8>(), allocated.cast::<u8>(), old.min(new));
                        self.free_block(block, old);
                    }
                }
                allocated
            }
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        for (class, list) in self.free.iter().enumerate() {
            let mut next = *list;
            while let Some(block) = NonNull::new(next) {
                // SAFETY: blocks in the list are ours and unused.
                unsafe {
                    next = block.as_ref().next;
                    dealloc(block.as_ptr().cast(), layout((class + 1) * ALIGN));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_keep_their_contents_and_all_are_counted() {
        let mut memory = Memory::new(1 << 20);
        let data: *mut c_void = (&raw mut memory).cast();
        let mut blocks: Vec<(*mut u8, usize)> = Vec::new();
        let mut random = 1u32;
        for step in 0..20_000usize {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let size = (random >> 16) as usize % 700;
            let (block, old) = if blocks.len() > 50 { blocks.swap_remove(step % 50) } else { (ptr::null_mut(), 0) };
            // SAFETY: blocks are used as Lua uses them.
            unsafe {
                let got = allocate(data, block.cast(), old, size).cast::<u8>();
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
            assert!(memory.free_bytes <= FREE_MAX);
        }
        for (block, size) in blocks {
            // SAFETY: blocks are freed with the size that they have.
            unsafe { allocate(data, block.cast(), size, 0) };
        }
        assert_eq!(memory.used, 0);
    }

    #[test]
    fn the_limit_holds_while_allocations_may_fail() {
        let mut memory = Memory::new(1000);
        let data: *mut c_void = (&raw mut memory).cast();
        // SAFETY: blocks are used as Lua uses them.
        unsafe {
            (*data.cast::<Memory>()).may_fail = true;
            let block = allocate(data, ptr::null_mut(), 0, 900);
            assert!(!block.is_null());
            assert!(allocate(data, ptr::null_mut(), 0, 101).is_null());
            assert!(allocate(data, block, 900, 1001).is_null());
            (*data.cast::<Memory>()).may_fail = false;
            let block = allocate(data, block, 900, 5000);
            assert!(!block.is_null());
            (*data.cast::<Memory>()).may_fail = true;
            let block = allocate(data, block, 5000, 4000);
            assert!(!block.is_null(), "shrinking never fails");
            allocate(data, block, 4000, 0);
        }
    }
}
