//! Set commands: members in [`members`], intersections, unions and differences in [`algebra`].

pub mod algebra;
pub mod members;
