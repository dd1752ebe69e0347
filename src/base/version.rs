//! The versions the server reports.

/// The Redis version that `HELLO` and `INFO` report, and by which clients decide what they may use: their client-side caches
/// want 7.4 or later.
pub const REDIS_VERSION: &str = "7.4.2";

/// Our own version, in a field beside the other.
pub const PORTCULLIS_VERSION: &str = env!("CARGO_PKG_VERSION");
