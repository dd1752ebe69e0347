//! Poisons free blocks of the heap for the address sanitizer. Without the sanitizer, this does nothing.
//!
//! The sanitizer knows only the blocks of `malloc`. It would accept any access to the memory that our heap takes from the system.
//! The first word of a free block stays accessible: it links to the next one.

pub(crate) use told::{allow, forbid, forbid_free};

#[cfg(address_sanitizer)]
mod told {
    use std::ffi::c_void;

    unsafe extern "C" {
        fn __asan_poison_memory_region(start: *const c_void, len: usize);
        fn __asan_unpoison_memory_region(start: *const c_void, len: usize);
    }

    /// Forbids access to these bytes.
    pub fn forbid(start: *mut u8, len: usize) {
        // SAFETY: changes only the sanitizer's records.
        unsafe { __asan_poison_memory_region(start.cast(), len) }
    }

    /// Allows access to these bytes.
    pub fn allow(start: *mut u8, len: usize) {
        // SAFETY: changes only the sanitizer's records.
        unsafe { __asan_unpoison_memory_region(start.cast(), len) }
    }

    /// Forbids access to a free block except its link.
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
