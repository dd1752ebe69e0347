//! The purpose-built store: where keys, values and deadlines live. It knows nothing of commands, sessions or replies.
//!
//! ```text
//!   Dict ── 1,024 Tables by the top bits of a seeded hash; a Trie of Tables serves as a big set or hash
//!     Table ── 8-byte slots in hash order: 45 bits of address, 19 bits of hash
//!       Entry ── one allocation: 16-byte head (deadline, timer, lengths, kind), key, short string or a boxed Value
//!   SlotIndex ── in a cluster, the hashes of the keys of each slot
//!   Wheel ── deadlines, 1 ms a slot; its nodes name entries
//! ```
//!
//! [`chunks`] and [`segments`] hold what sessions may have a million of: watched keys, channels, keys in caches.

pub mod dict;
pub mod entry;
pub mod frequency;
pub mod slots;
pub mod space;
pub mod table;
pub mod trie;
pub mod values;
pub mod wheel;
