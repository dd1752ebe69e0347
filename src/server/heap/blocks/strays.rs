//! The list of a heap's blocks that other threads have freed: the only part of a heap that other threads access.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Free blocks, each of which begins with the address of the next one. Any thread adds to them; the heap's own takes them all at once,
/// so no block is ever compared with a pointer that may have been freed and added again meanwhile.
pub(super) struct Strays(AtomicPtr<u8>);

impl Strays {
    pub(super) fn new() -> Strays {
        Strays(AtomicPtr::new(ptr::null_mut()))
    }

    /// Whether there are none, as far as this thread has learnt of them.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.load(Ordering::Relaxed).is_null()
    }

    /// Adds a block.
    ///
    /// # Safety
    /// The block has room for an address, and nothing uses it until [`Strays::take_all`] returns it.
    pub(super) unsafe fn push(&self, block: *mut u8) {
        let mut first = self.0.load(Ordering::Relaxed);
        loop {
            // SAFETY: guaranteed by the caller.
            unsafe { block.cast::<*mut u8>().write(first) };
            // Release: whoever takes the block sees what was written to it last, the link among it.
            match self.0.compare_exchange_weak(first, block, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
    }

    /// Takes all blocks. Returns the first one; null if there are none.
    pub(super) fn take_all(&self) -> *mut u8 {
        // Acquire: see `push`. Those who pushed before the last one are seen, too, because each push continues the release sequence.
        self.0.swap(ptr::null_mut(), Ordering::Acquire)
    }
}

#[cfg(test)]
#[cfg(loom)]
mod models {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// A block, with contents whose accesses loom watches.
    #[repr(C)]
    struct Block {
        link: *mut u8,
        contents: UnsafeCell<u32>,
    }

    fn push(strays: &Strays, number: u32) {
        let block = Box::into_raw(Box::new(Block { link: ptr::null_mut(), contents: UnsafeCell::new(0) }));
        // SAFETY: the block is this thread's until it is pushed, and begins with room for an address.
        unsafe {
            (*block).contents.with_mut(|contents| *contents = number);
            strays.push(block.cast());
        }
    }

    fn take(strays: &Strays) -> Vec<u32> {
        let mut numbers = Vec::new();
        let mut next = strays.take_all().cast::<Block>();
        while !next.is_null() {
            // SAFETY: `push` made it, and whoever takes it has it alone.
            let block = unsafe { Box::from_raw(next) };
            // SAFETY: nobody writes to it any more, which is what loom checks.
            numbers.push(block.contents.with(|contents| unsafe { *contents }));
            next = block.link.cast();
        }
        numbers
    }

    #[test]
    fn each_block_comes_back_once_with_what_was_last_written_to_it() {
        loom::model(|| {
            let strays = Arc::new(Strays::new());
            let others = [1, 2].map(|number| {
                let strays = Arc::clone(&strays);
                thread::spawn(move || push(&strays, number))
            });
            // Without a look at `is_empty` first: loom then never comes to an order in which there are some.
            let mut numbers = take(&strays);
            others.into_iter().for_each(|other| other.join().unwrap());
            numbers.extend(take(&strays));
            numbers.sort_unstable();
            assert_eq!(numbers, [1, 2]);
        });
    }
}
