//! The program's allocator: sets up the C library's allocator for a process that must never pause, adds the executor's own
//! blocks, and counts what both have given out.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use crate::server::heap::blocks;

/// Threshold for mapped blocks, in bytes: every block that the executor's heap does not hold is mapped separately, and returns to
/// the system as soon as it is freed. A growing list leaves none of its smaller predecessors behind.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAPPED_FROM: libc::c_int = blocks::SPAN as libc::c_int;

/// Makes glibc consolidate freed memory piece by piece. Must be called once, when the program starts.
///
/// By default glibc keeps freed small blocks as they are, and consolidates all of them in some later call. After a few hundred
/// thousand keys have ended, that call takes 9 ms and more. Without the default, the slowest call takes 0.15 ms, and all calls
/// together take no longer.
pub fn prepare() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: sets parameters of the allocator under its own lock; correctness does not depend on them.
    unsafe {
        libc::mallopt(libc::M_MXFAST, 0);
        // Nearly all memory belongs to one thread, so further arenas would be wasted.
        libc::mallopt(libc::M_ARENA_MAX, 1);
        // Otherwise glibc raises the threshold as blocks are freed, and must search for blocks that are not mapped.
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM);
    }
}

/// Makes glibc consolidate recently freed blocks now. Must be called after a few hundred blocks were freed, and only then.
///
/// glibc consolidates freed blocks at the next request that has no ready match, up to 10,000 of them in one call, which takes 2
/// ms and more when they are cold. When half a million leases end at once, nothing is requested until tables begin to shrink;
/// their calls then add up to pauses of 20 ms. A request now and then keeps each call short.
pub fn consolidate() {
    // Too large for glibc's caches of ready blocks, small enough not to be mapped.
    const LAYOUT: Layout = Layout::new::<[u64; 256]>();
    // SAFETY: the layout is not empty, and the block is freed with the layout it was allocated with.
    unsafe {
        let block = std::hint::black_box(System.alloc(LAYOUT));
        if !block.is_null() {
            System.dealloc(block, LAYOUT);
        }
    }
}

/// Returns free memory to the system. Must be called once after a large amount was freed: it takes some 0.1 s per GiB.
pub fn return_free() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the allocator does this under its own lock.
    unsafe {
        libc::malloc_trim(0);
    }
}

thread_local! {
    /// Bytes given out to this thread minus those it freed.
    static BALANCE: Cell<i64> = const { Cell::new(0) };
    /// Whether this thread's allocations were found to be counted.
    static CHARGED: Cell<bool> = const { Cell::new(false) };
}

/// The system's allocator, with a count of each thread's bytes.
///
/// The allocator's own statistics are no use to a server: asking glibc for them walks every free block, which took 14 ms after
/// half a million keys had ended. All data belongs to the executor's thread, so its balance is the size of the data.
pub struct Counting;

/// Size of a block in glibc: one word more, in steps of 16 bytes, at least 32.
fn block_bytes(size: usize) -> i64 {
    (size.saturating_add(8 + 15) & !15).max(32) as i64
}

#[inline]
fn count(bytes: i64) {
    // A thread that is being torn down no longer counts.
    let _ = BALANCE.try_with(|balance| balance.set(balance.get().wrapping_add(bytes)));
}

/// Bytes that the calling thread holds; `None` if [`Counting`] is not the program's allocator.
pub fn balance() -> Option<u64> {
    library_balance().map(|bytes| bytes.saturating_add(blocks::in_use())).filter(|&bytes| bytes > 0).map(|bytes| bytes as u64)
}

/// As [`balance`], but without the small blocks of a thread with its own heap: only the C library's blocks.
#[inline]
pub fn library_balance() -> Option<i64> {
    // A thread may free blocks that other threads were given.
    BALANCE.try_with(Cell::get).ok().filter(|&bytes| bytes > 0 || CHARGED.try_with(Cell::get).is_ok_and(|charged| charged))
}

/// Creates a heap for the calling thread, which has none yet. Returns `None` if [`Counting`] is not the program's allocator,
/// which would not use the heap, or if the system has no address space for one.
///
/// A library does not choose the allocator of its program, so this tests it: it allocates a block and checks whether the balance
/// changes.
pub fn own_heap() -> Option<blocks::Owner> {
    const LAYOUT: Layout = Layout::new::<[u64; 8]>();
    // A thread that already has a heap gets its blocks there.
    let account = || BALANCE.get().wrapping_add(blocks::in_use());
    let before = account();
    // SAFETY: the layout is not empty, and the block is freed with the layout it was allocated with.
    let charged = unsafe {
        let block = std::hint::black_box(std::alloc::alloc(LAYOUT));
        let charged = account() != before;
        if !block.is_null() {
            std::alloc::dealloc(block, LAYOUT);
        }
        charged
    };
    CHARGED.set(charged);
    charged.then(blocks::Owner::new).flatten()
}

/// Slow path: allocates a block when none is cached.
///
/// # Safety
/// As [`GlobalAlloc::alloc`].
#[inline(never)]
unsafe fn alloc(layout: Layout) -> *mut u8 {
    let block = blocks::take(layout);
    if !block.is_null() {
        return block;
    }
    count(block_bytes(layout.size()));
    // SAFETY: guaranteed by the caller.
    unsafe { System.alloc(layout) }
}

// SAFETY: a block comes either from the executor's heap (`blocks`), which upholds the contract of `GlobalAlloc`, or from the
// system's allocator. `blocks::owns` tells which, so a block goes back to where it came from, with its layout. Counting allocates
// nothing.
unsafe impl GlobalAlloc for Counting {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let block = blocks::at_hand(layout);
        // SAFETY: guaranteed by the caller.
        if block.is_null() { unsafe { alloc(layout) } } else { block }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let block = blocks::take_zeroed(layout);
        if !block.is_null() {
            return block;
        }
        count(block_bytes(layout.size()));
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: guaranteed by the caller: the new size is that of a layout.
        let grown = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        let small = blocks::owns(block);
        if small && blocks::alike(layout, grown) {
            return block;
        }
        if small {
            // SAFETY: guaranteed by the caller: the new size is that of a layout, and both blocks have the smaller one's bytes.
            return unsafe {
                let new = self.alloc(grown);
                if !new.is_null() {
                    std::ptr::copy_nonoverlapping(block, new, layout.size().min(size));
                    self.dealloc(block, layout);
                }
                new
            };
        }
        count(block_bytes(size) - block_bytes(layout.size()));
        // SAFETY: guaranteed by the caller.
        unsafe { System.realloc(block, layout, size) }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if blocks::owns(block) {
            // SAFETY: guaranteed by the caller: a block of ours came from there, with this layout.
            return unsafe { blocks::give_back(block, layout) };
        }
        count(-block_bytes(layout.size()));
        // SAFETY: guaranteed by the caller.
        unsafe { System.dealloc(block, layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_reserved_where_the_program_has_another_allocator() {
        // This test program has another allocator.
        assert!(own_heap().is_none());
    }

    #[test]
    fn a_thread_is_charged_for_what_it_holds() {
        std::thread::spawn(|| {
            let layout = Layout::from_size_align(100, 16).unwrap();
            // SAFETY: the block is freed and reallocated with its own layouts, and not used otherwise.
            unsafe {
                let before = BALANCE.get();
                let block = Counting.alloc(layout);
                assert_eq!(BALANCE.get() - before, 112);
                let block = Counting.realloc(block, layout, 1000);
                assert_eq!(BALANCE.get() - before, 1008);
                Counting.dealloc(block, Layout::from_size_align(1000, 16).unwrap());
                assert_eq!(BALANCE.get() - before, 0);
            }
        })
        .join()
        .unwrap();
    }
}
