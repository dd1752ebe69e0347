//! The keys of each cluster slot: an index beside the dictionary, kept only on request.
//!
//! It stores hashes instead of keys, in one ordered set by slot: the keys of a slot are a range of it, a change costs a walk down
//! the tree, and there is never a table to grow as a whole, however many keys share a slot. Keys of one slot with the same hash
//! share an entry; the dictionary tells them apart.

use std::collections::BTreeSet;

use crate::store::dict::KeyHash;

/// Bits of a hash.
const HASH_BITS: u32 = 30;
/// Approximate bytes of the index for each key: nodes of eleven numbers are two thirds full.
const BYTES_PER_KEY: usize = 14;

/// The index of keys by slot.
pub struct SlotIndex {
    slot_of: fn(&[u8]) -> u16,
    /// Number of keys, by slot.
    counts: Box<[u32]>,
    /// Slots and hashes of keys.
    hashes: BTreeSet<u64>,
}

/// The content of a cleared index, to be freed in pieces.
pub struct Discarded(BTreeSet<u64>);

fn joined(slot: u16, hash: KeyHash) -> u64 {
    (u64::from(slot) << HASH_BITS) | u64::from(hash.bits())
}

impl SlotIndex {
    /// Creates an index without keys. `slot_of` returns the slot of a key, below `slots`.
    pub fn new(slots: u16, slot_of: fn(&[u8]) -> u16) -> Self {
        SlotIndex { slot_of, counts: vec![0; usize::from(slots)].into(), hashes: BTreeSet::new() }
    }

    /// The slot of a key.
    pub fn slot_of(&self, key: &[u8]) -> u16 {
        (self.slot_of)(key)
    }

    /// Number of keys in a slot.
    pub fn count(&self, slot: u16) -> usize {
        self.counts.get(usize::from(slot)).map_or(0, |&count| count as usize)
    }

    /// The distinct hashes of a slot's keys, in ascending order.
    pub fn hashes(&self, slot: u16) -> impl Iterator<Item = u32> {
        let (first, next) = (u64::from(slot) << HASH_BITS, (u64::from(slot) + 1) << HASH_BITS);
        self.hashes.range(first..next).map(move |joined| (joined - first) as u32)
    }

    /// Approximate bytes of the index.
    pub fn allocated(&self) -> usize {
        self.counts.len() * size_of::<u32>() + self.hashes.len() * BYTES_PER_KEY
    }

    /// Adds a key.
    pub fn add(&mut self, hash: KeyHash, key: &[u8]) {
        let slot = self.slot_of(key);
        self.counts[usize::from(slot)] += 1;
        self.hashes.insert(joined(slot, hash));
    }

    /// Removes a key; `shared` tells that another key of its slot has the same hash.
    pub fn remove(&mut self, hash: KeyHash, slot: u16, shared: bool) {
        self.counts[usize::from(slot)] -= 1;
        if !shared {
            self.hashes.remove(&joined(slot, hash));
        }
    }

    /// Removes all keys.
    pub fn clear(&mut self) -> Discarded {
        self.counts.fill(0);
        Discarded(std::mem::take(&mut self.hashes))
    }

    /// Panics unless it holds exactly these keys.
    pub fn check_invariants<'a>(&self, keys: impl Iterator<Item = (KeyHash, &'a [u8])>) {
        let (mut counts, mut hashes) = (vec![0; self.counts.len()], BTreeSet::new());
        for (hash, key) in keys {
            let slot = self.slot_of(key);
            counts[usize::from(slot)] += 1;
            hashes.insert(joined(slot, hash));
        }
        assert_eq!(counts, &*self.counts, "keys counted by slot");
        assert_eq!(hashes, self.hashes, "hashes of keys by slot");
    }
}

impl Discarded {
    /// Frees some hashes, each for one step of the budget. Returns whether all are freed.
    pub fn free_some(&mut self, budget: &mut u32) -> bool {
        while *budget > 0 {
            if self.0.pop_last().is_none() {
                return true;
            }
            *budget -= 1;
        }
        self.0.is_empty()
    }
}
