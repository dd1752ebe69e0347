//! List commands. Begin at [`ends`]; BLPOP and the other commands that wait are in [`blocking`].

pub mod blocking;
pub mod ends;
pub mod whole;
