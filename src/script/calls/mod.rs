//! `redis.call` and `redis.pcall`: commands called by scripts.
//!
//! ```text
//!   redis.call ─▶ call: arguments ─▶ command_cache: name ─▶ command ─▶ checks: may the script call it? ─▶ Context::run
//!   plan: a call ───────────────────────────────────────────────────▶  (the same checks)
//! ```
//!
//! [`call`] is the place to begin.

pub(crate) mod call;
pub(crate) mod checks;
pub(crate) mod command_cache;
