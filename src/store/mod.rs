//! The store of keys, values and deadlines. It knows nothing about commands, sessions or replies.
//!
//! ```text
//!   Dict ── 1,024 Tables by the top bits of a seeded hash; large sets and hashes are a Trie of Tables
//!     Table ── slots of 8 bytes in the order of hashes: 45 bits of address, 19 bits of hash
//!       Entry ── one allocation: 16-byte head (deadline, timer, lengths, kind), key, short string or a boxed Value
//!   SlotIndex ── in a cluster, the hashes of the keys of each slot
//!   Wheel ── deadlines, one slot per millisecond; its nodes refer to entries
//!   Writers ── who wrote keys that may be locks of Redis clients, by the addresses of entries
//! ```
//!
//! Data of which a session may have a million, such as watched keys, channels and tracked keys, is stored in
//! [`crate::base::chunks`] and [`crate::base::segments`].

pub mod dict;
pub mod entry;
pub mod frequency;
pub mod slots;
pub mod space;
pub mod table;
pub mod trie;
pub mod values;
pub mod wheel;
pub mod writers;
