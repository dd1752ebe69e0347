//! A bound on the memory that one input may use, checked by a counting allocator.
//!
//! A program declares `#[global_allocator] static ALLOCATOR: allocation::Counting = allocation::Counting;`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Bytes allocated minus bytes freed by this thread. Negative if it frees what another thread allocated.
    static LIVE: Cell<isize> = const { Cell::new(0) };
    /// The maximum of `LIVE` since [`bounded`] began.
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// The system's allocator, with counters for each thread.
pub struct Counting;

fn count(bytes: isize) {
    // The counters of a thread that is ending are gone.
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: every call is passed on to the system's allocator unchanged; the counters do not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // While a block is moved, the old and the new block exist.
        count(size as isize);
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }
}

/// Runs `work` and panics if it had more than `bytes` allocated at once, beyond those that were allocated before.
pub fn bounded<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    let before = LIVE.get();
    PEAK.set(before);
    let done = work();
    let took = (PEAK.get() - before).max(0) as usize;
    assert!(took <= bytes, "took {took} bytes where {bytes} are the bound");
    done
}

/// Runs `work`. Returns the maximum number of bytes that it had allocated at once, beyond those that were allocated before.
#[allow(dead_code, reason = "some targets only have bounds")]
pub fn peak_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = LIVE.get();
    PEAK.set(before);
    let done = work();
    (done, (PEAK.get() - before).max(0) as usize)
}

#[cfg(test)]
mod tests {
    use super::bounded;

    #[test]
    fn what_is_taken_is_counted_and_bounded() {
        bounded(10_000, || drop(vec![1_u8; 9_000]));
        // Allocations that do not overlap do not add up.
        bounded(10_000, || (0..5).for_each(|_| drop(std::hint::black_box(vec![1_u8; 9_000]))));
        let over = std::panic::catch_unwind(|| bounded(10_000, || drop(std::hint::black_box(vec![1_u8; 11_000]))));
        assert!(over.is_err());
    }
}
