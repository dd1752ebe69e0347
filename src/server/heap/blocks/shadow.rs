//! Tells the address sanitizer which bytes of the region may be used. Without that sanitizer, it does nothing.
//!
//! The sanitizer knows blocks of `malloc` only, and would take any access to the region for a good one. The first word of a free block
//! stays accessible: it is the link to the next one.

pub(crate) use told::{allow, forbid, forbid_free};

#[cfg(address_sanitizer)]
mod told {
    use std::ffi::c_void;

    unsafe extern "C" {
        fn __asan_poison_memory_region(start: *const c_void, len: usize);
        fn __asan_unpoison_memory_region(start: *const c_void, len: usize);
    }

    /// No access to these bytes is right from here on.
    pub fn forbid(start: *mut u8, len: usize) {
        // SAFETY: changes the sanitizer's notes alone.
        unsafe { __asan_poison_memory_region(start.cast(), len) }
    }

    /// These bytes may be used.
    pub fn allow(start: *mut u8, len: usize) {
        // SAFETY: changes the sanitizer's notes alone.
        unsafe { __asan_unpoison_memory_region(start.cast(), len) }
    }

    /// Forbids all of a free block but its link.
    pub fn forbid_free(block: *mut u8, size: u32) {
        let link = size_of::<*mut u8>();
        allow(block, link);
        forbid(block.wrapping_add(link), size as usize - link);
    }
}

#[cfg(not(address_sanitizer))]
mod told {
    #[inline(always)]
    pub fn forbid(_: *mut u8, _: usize) {}

    #[inline(always)]
    pub fn allow(_: *mut u8, _: usize) {}

    #[inline(always)]
    pub fn forbid_free(_: *mut u8, _: u32) {}
}
