//! The C library's allocator, set up for a process that must never pause, the executor's own blocks beside it, and an account of what both
//! have given out.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use crate::server::heap::blocks;

/// Blocks of so many bytes are mapped by themselves, and go back to the system at once when they are freed: all that the executor's heap
/// does not hold. A list that has grown leaves none of its earlier, smaller selves behind.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAPPED_FROM: libc::c_int = blocks::SPAN as libc::c_int;

/// Has freed memory put in order piece by piece. To be called once, when the program starts.
///
/// By default glibc keeps small blocks that are freed as they are, to put all of them in order at some later call. After a few
/// hundred thousand keys have ended that one call takes 9 ms and more; without it, the slowest takes 0.15 ms, and all of them
/// together no longer.
pub fn prepare() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: sets numbers in the allocator, under its own lock; nothing depends on them for being right.
    unsafe {
        libc::mallopt(libc::M_MXFAST, 0);
        // One thread has nearly all of it: a heap for each would be set up for nothing.
        libc::mallopt(libc::M_ARENA_MAX, 1);
        // Or else this grows with what is freed, and what is not mapped by itself has to be searched for.
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM);
    }
}

/// Has what was freed lately put in order now. To be called after a few hundred blocks were freed, and only then.
///
/// glibc puts freed blocks in order when it is next asked for one that it has no ready match for, up to 10,000 of them in one
/// call, which takes 2 ms and more when they are cold. When half a million leases end at once, nothing is asked for until
/// tables begin to shrink; their calls then add up to pauses of 20 ms. Asking now and then keeps each call short.
pub fn put_in_order() {
    // Too large for the caches of ready blocks, small enough not to be mapped.
    const LAYOUT: Layout = Layout::new::<[u64; 256]>();
    // SAFETY: the layout is not empty, and the block is given back as it was taken.
    unsafe {
        let block = std::hint::black_box(System.alloc(LAYOUT));
        if !block.is_null() {
            System.dealloc(block, LAYOUT);
        }
    }
}

/// Has the system get back what is free. To be called when very much was freed, and then once: it takes some 0.1 s a GiB.
pub fn return_free() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the allocator does this under its own lock.
    unsafe {
        libc::malloc_trim(0);
    }
}

thread_local! {
    /// Bytes given out to this thread less those taken back from it.
    static BALANCE: Cell<i64> = const { Cell::new(0) };
    /// Whether what this thread is given was found to be counted.
    static CHARGED: Cell<bool> = const { Cell::new(false) };
}

/// The system's allocator, counting what each thread has of it.
///
/// The allocator's own accounts are no use to a server: asking glibc for them walks every free block, which took 14 ms after
/// half a million keys had ended. All data belongs to the executor's thread, so its balance is what the data takes up.
pub struct Counting;

/// What glibc takes for a block: a word more, in steps of 16 bytes, 32 at least.
fn block_bytes(size: usize) -> i64 {
    (size.saturating_add(8 + 15) & !15).max(32) as i64
}

#[inline]
fn count(bytes: i64) {
    // A thread that is being torn down counts no more.
    let _ = BALANCE.try_with(|balance| balance.set(balance.get().wrapping_add(bytes)));
}

/// Bytes that the calling thread has been given; `None` where [`Counting`] is not the program's allocator.
pub fn balance() -> Option<u64> {
    library_balance().map(|bytes| bytes.saturating_add(blocks::in_use())).filter(|&bytes| bytes > 0).map(|bytes| bytes as u64)
}

/// As [`balance`], but without the small blocks of a thread that has a heap for them: what the C library has given it.
#[inline]
pub fn library_balance() -> Option<i64> {
    // A thread may give back what others have been given.
    BALANCE.try_with(Cell::get).ok().filter(|&bytes| bytes > 0 || CHARGED.try_with(Cell::get).is_ok_and(|charged| charged))
}

/// A heap for the calling thread, which has none yet; `None` where [`Counting`] is not the program's allocator, which would take nothing
/// from it, or where the system has no room for any.
///
/// A library does not choose the allocator of the program that it is part of, so that is tried: a block is asked for and looked for in
/// the account.
pub fn own_heap() -> Option<blocks::Owner> {
    const LAYOUT: Layout = Layout::new::<[u64; 8]>();
    // A thread that has a heap already has its blocks from there.
    let account = || BALANCE.get().wrapping_add(blocks::in_use());
    let before = account();
    // SAFETY: the layout is not empty, and the block is given back as it was taken.
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

/// A block where none is at hand.
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
    // SAFETY: as promised to us.
    unsafe { System.alloc(layout) }
}

// SAFETY: every call is passed on to the system's allocator as it came; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let block = blocks::at_hand(layout);
        // SAFETY: as promised to us.
        if block.is_null() { unsafe { alloc(layout) } } else { block }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let block = blocks::take_zeroed(layout);
        if !block.is_null() {
            return block;
        }
        count(block_bytes(layout.size()));
        // SAFETY: as promised to us.
        unsafe { System.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as promised to us: the new size is that of a layout.
        let grown = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        let small = blocks::owns(block);
        if small && blocks::alike(layout, grown) {
            return block;
        }
        if small {
            // SAFETY: as promised to us: the new size is that of a layout, and both blocks have the smaller one's bytes.
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
        // SAFETY: as promised to us.
        unsafe { System.realloc(block, layout, size) }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if blocks::owns(block) {
            // SAFETY: as promised to us: a block of ours came from there, with this layout.
            return unsafe { blocks::give_back(block, layout) };
        }
        count(-block_bytes(layout.size()));
        // SAFETY: as promised to us.
        unsafe { System.dealloc(block, layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_reserved_where_the_program_has_another_allocator() {
        // As this one has.
        assert!(own_heap().is_none());
    }

    #[test]
    fn a_thread_is_charged_for_what_it_holds() {
        std::thread::spawn(|| {
            let layout = Layout::from_size_align(100, 16).unwrap();
            // SAFETY: the block is given back with the layouts it was asked for with, and not used otherwise.
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
