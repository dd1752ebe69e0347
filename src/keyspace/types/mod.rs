//! Edits of keys by type. Each changes a value in the store and emits the change, so that nothing changes unnoticed.

pub mod collection;
pub mod hashes;
pub mod lists;
pub mod sets;
pub mod streams;
pub mod strings;
pub mod zsets;
