//! Sorted set commands. Start with [`members`]. The blocking commands, such as BZPOPMIN, are in [`blocking`].

pub mod algebra;
pub mod blocking;
pub mod members;
pub mod pops;
pub mod ranges;
