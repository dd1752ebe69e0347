//! The executor's allocator: small blocks in [`blocks`], their spans' return to the system in [`spans`] and [`returns`], and the set-up of
//! the C library's allocator in [`allocator`].

pub mod allocator;
pub mod blocks;
pub mod returns;
pub mod spans;
