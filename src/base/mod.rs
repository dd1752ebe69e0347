//! Foundations of every other layer: time, errors, numbers, patterns, and memory in chunks. It imports nothing else of the crate.

pub mod arguments;
pub mod chunks;
pub mod durations;
pub mod error;
pub mod glob;
pub mod ids;
pub mod integer;
pub mod kept;
pub mod key;
pub mod number;
pub mod prefetch;
pub mod rate;
pub mod segments;
pub mod time;
pub mod version;
pub mod words;
