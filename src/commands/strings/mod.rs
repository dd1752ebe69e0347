//! String commands. Start with [`basic`]. SET, with which most libraries take locks, is in [`set`].

pub mod basic;
pub mod bitfields;
pub mod bitmaps;
pub mod counters;
pub mod set;
