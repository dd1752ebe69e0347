//! Prefetches for commands that are still to run.

use crate::store::dict::{Dict, KeyHash, KeyHasher};

/// Prefetches memory for later lookups.
#[derive(Clone, Copy)]
pub struct Ahead<'a> {
    pub(crate) hasher: &'a KeyHasher,
    pub(crate) dict: &'a Dict,
}

impl Ahead<'_> {
    /// Prefetches the slot of a key. Returns the key's hash.
    #[inline]
    pub fn ask_for_slot(self, key: &[u8]) -> KeyHash {
        let hash = self.hasher.hash(key);
        self.dict.prefetch_slot(hash);
        hash
    }

    /// Prefetches the entry of a key whose slot was prefetched before.
    #[inline]
    pub fn ask_for_entry(self, hash: KeyHash) {
        self.dict.prefetch_entry(hash);
    }
}
