//! String commands. Begin at [`basic`]; SET, the lock command of most libraries, is in [`set`].

pub mod basic;
pub mod bitfields;
pub mod bitmaps;
pub mod counters;
pub mod set;
