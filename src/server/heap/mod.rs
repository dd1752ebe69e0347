//! The executor's allocator: small blocks in [`blocks`], the return of their spans to the system in [`spans`], the return of the
//! C library's memory in [`returns`], and the set-up of the C library's allocator in [`allocator`].

pub mod allocator;
pub mod blocks;
pub mod returns;
pub mod spans;
