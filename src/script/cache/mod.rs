//! The cache of scripts.
//!
//! ```text
//!   SCRIPT LOAD ───▶ Scripts: SHA-1 ─▶ script, stays until a flush
//!   EVAL ──────────▶ Scripts: SHA-1 ─▶ script, evicted when many newer ones come
//!   SCRIPT FLUSH ──▶ Lazyfree: frees the interpreter in small steps
//! ```
//!
//! [`scripts`] has the cache, [`script`] one entry, [`lazyfree`] what a flush has removed.

pub(crate) mod lazyfree;
mod script;
pub(crate) mod scripts;
#[cfg(test)]
mod tests;
