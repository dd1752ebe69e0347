//! Set commands: members in [`members`], SINTER and the like in [`algebra`].

pub mod algebra;
pub mod members;
