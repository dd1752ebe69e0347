//! Sorted-set commands. Begin at [`members`]; BZPOPMIN and the other commands that wait are in [`blocking`].

pub mod algebra;
pub mod blocking;
pub mod members;
pub mod pops;
pub mod ranges;
