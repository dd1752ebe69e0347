//! The address space of the region: what the heap asks of the system.
//!
//! Miri knows no address space that is reserved but not accessible. Under Miri the region is a block of the program's allocator, and
//! so small that a test can use it up.

pub(super) use calls::{discard, make_accessible, map, region_bytes, unmap};

#[cfg(not(miri))]
mod calls {
    use std::ptr;

    /// How much address space to reserve at first, in bytes: twice the machine's memory. This is address space only, which takes no
    /// memory.
    pub fn region_bytes() -> usize {
        let memory = rustix::system::sysinfo();
        let bytes = (memory.totalram as u64).saturating_mul(u64::from(memory.mem_unit));
        (bytes as usize).next_power_of_two().saturating_mul(2)
    }

    /// Maps this many bytes, which are zeros once they are accessible. Returns null if the system has no address space for them.
    pub fn map(len: usize, accessible: bool) -> *mut u8 {
        let access = if accessible { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_NONE };
        let kind = libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_NORESERVE;
        // SAFETY: new memory.
        let base = unsafe { libc::mmap(ptr::null_mut(), len, access, kind, -1, 0) };
        if base == libc::MAP_FAILED { ptr::null_mut() } else { base.cast() }
    }

    /// Takes back what [`map`] has mapped.
    ///
    /// # Safety
    /// `base` is null, or comes from [`map`] with this length, and nothing uses the memory.
    pub unsafe fn unmap(base: *mut u8, len: usize) {
        if !base.is_null() {
            // SAFETY: guaranteed by the caller.
            unsafe { libc::munmap(base.cast(), len) };
        }
    }

    /// Makes memory accessible that [`map`] has mapped. Returns whether the system had the memory for it.
    ///
    /// # Safety
    /// `start` and `len` are whole pages that [`map`] has mapped.
    pub unsafe fn make_accessible(start: *mut u8, len: usize) -> bool {
        // SAFETY: guaranteed by the caller.
        unsafe { libc::mprotect(start.cast(), len, libc::PROT_READ | libc::PROT_WRITE) == 0 }
    }

    /// Returns memory to the system. It stays accessible, and is all zeros.
    ///
    /// # Safety
    /// `start` and `len` are whole pages that are accessible, and nothing uses what they hold.
    pub unsafe fn discard(start: *mut u8, len: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe { libc::madvise(start.cast(), len, libc::MADV_DONTNEED) };
    }
}

#[cfg(miri)]
mod calls {
    use std::alloc::{Layout, alloc_zeroed, dealloc};

    use crate::server::heap::blocks::{REGION_MIN, SPAN};

    pub fn region_bytes() -> usize {
        REGION_MIN
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, SPAN).expect("a length that was asked for")
    }

    pub fn map(len: usize, _accessible: bool) -> *mut u8 {
        // SAFETY: the length is not 0.
        unsafe { alloc_zeroed(layout(len)) }
    }

    pub unsafe fn unmap(base: *mut u8, len: usize) {
        if !base.is_null() {
            // SAFETY: guaranteed by the caller.
            unsafe { dealloc(base, layout(len)) };
        }
    }

    pub unsafe fn make_accessible(_: *mut u8, _: usize) -> bool {
        true
    }

    pub unsafe fn discard(start: *mut u8, len: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe { start.write_bytes(0, len) };
    }
}
