//! Persistence, without files: formats, and the rules by which bytes become durable.
//!
//! Start with [`disk`] for what a disk promises, and with [`writer`] for how the log is written so that nothing acknowledged is lost.

pub mod disk;
pub mod writer;
