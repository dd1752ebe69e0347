//! RDB files: the whole state in Redis's form, written slice by slice and read as it arrives.
//!
//! ```text
//!   Keyspace ─▶ Writer::next_chunk ─▶ bytes            bytes ─▶ Reader::feed, next ─▶ Event ─▶ Loader::apply ─▶ Keyspace
//!                                                                    └─▶ Fault                      └─▶ Fault
//!   file   = "REDIS" · version, 4 digits · items · 255 · CRC-64, 8 bytes, of all before; 0 without a checksum
//!   item   = opcode · its numbers and strings      or      [deadline] · [idle time or frequency] · type · key · value
//! ```
//!
//! [`shape`] says of which parts each item consists, so that the reader knows where a value ends before it has seen all of it.
//!
//! [Native records](super::natives) are fields of the kind AUX, which Redis skips if it does not know them: sessions and remembered
//! requests before the first key, locks, latches and guards among the keys. Each is in the section of its database; sessions and
//! the token belong to none.

pub mod consumers;
pub mod fault;
pub mod load;
pub mod read;
pub mod shape;
pub mod write;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

/// The first five bytes of a file.
pub const SIGNATURE: &[u8] = b"REDIS";

/// Items that are not keys, with the names of Redis's source.
pub mod opcode {
    #![allow(missing_docs)]
    /// The number of a cluster's slot, and how many keys it has: Redis 7.4.
    pub const SLOT_INFO: u8 = 244;
    /// The source of a library of functions.
    pub const FUNCTION2: u8 = 245;
    /// The same in the form of the release candidates of Redis 7.0.
    pub const FUNCTION_PRE_GA: u8 = 246;
    pub const MODULE_AUX: u8 = 247;
    /// Seconds since the last use of the next key.
    pub const IDLE: u8 = 248;
    /// The counter of uses of the next key.
    pub const FREQ: u8 = 249;
    /// A name and a value that readers skip if they do not know the name.
    pub const AUX: u8 = 250;
    /// How many keys the database has, and how many of them have deadlines.
    pub const RESIZEDB: u8 = 251;
    /// The deadline of the next key in milliseconds.
    pub const EXPIRETIME_MS: u8 = 252;
    /// The same in seconds.
    pub const EXPIRETIME: u8 = 253;
    pub const SELECTDB: u8 = 254;
    pub const EOF: u8 = 255;
}
