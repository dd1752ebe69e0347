//! List commands. Start with [`ends`]. The blocking commands, such as BLPOP, are in [`blocking`].

pub mod blocking;
pub mod ends;
pub mod whole;
