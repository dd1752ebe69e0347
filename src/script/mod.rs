//! Scripts. (placeholder, for now)

/// Cached scripts and their interpreter.
#[derive(Default)]
pub struct Scripts {}
