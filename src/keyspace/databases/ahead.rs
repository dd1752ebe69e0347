//! What of the databases is asked of memory ahead of the commands that will touch it.

use crate::store::dict::{Dict, KeyHash, KeyHasher};

/// Asks memory for what lookups that are ahead will touch.
#[derive(Clone, Copy)]
pub struct Ahead<'a> {
    pub(crate) hasher: &'a KeyHasher,
    pub(crate) dict: &'a Dict,
}

impl Ahead<'_> {
    /// Asks for the slot of a key, and gives the key's hash.
    #[inline]
    pub fn ask_for_slot(self, key: &[u8]) -> KeyHash {
        let hash = self.hasher.hash(key);
        self.dict.prefetch_slot(hash);
        hash
    }

    /// Asks for the entry of a key whose slot has arrived.
    #[inline]
    pub fn ask_for_entry(self, hash: KeyHash) {
        self.dict.prefetch_entry(hash);
    }
}
