//! The versions that the server reports.

/// The Redis version in `HELLO` and `INFO`. Clients decide by it what they may use: their client-side caches require 7.4 or
/// later.
pub const REDIS_VERSION: &str = "7.4.2";

/// The version of Portcullis, in a separate field.
pub const PORTCULLIS_VERSION: &str = env!("CARGO_PKG_VERSION");
