//! The members of a large sorted set in a hash table: an entry per member, with its score as the value.
//!
//! There is one table at first. A table that is too full is split by the next bit of the hash, so that an insertion never moves
//! more than a few thousand slots: an extendible hash table.

use crate::store::dict::{KeyHash, KeyHasher};
use crate::store::entry::{Entry, EntryRef, NewValue};
use crate::store::table::{HASH_BITS, HASH_LIMIT, Table};

/// Number of members at which a table is split, while there are bits of the hash left.
const SPLIT_LEN: usize = 2048;
/// Number of bits of the hash that select a table.
const CHOICE_BITS: u32 = 10;

/// A table with the members whose hashes begin with the same `depth` bits.
#[derive(Default)]
struct Part {
    table: Table,
    depth: u32,
}

/// Members with their scores.
pub struct Members {
    /// The index of the part for each value of the first `depth` bits of the hash.
    directory: Vec<u16>,
    depth: u32,
    parts: Vec<Part>,
    len: usize,
}

impl Default for Members {
    fn default() -> Self {
        Members { directory: vec![0], depth: 0, parts: vec![Part::default()], len: 0 }
    }
}

/// The score in a member's entry.
pub fn score_of(entry: EntryRef<'_>) -> f64 {
    // Every entry is created with eight bytes.
    entry.bytes().and_then(|bytes| bytes.first_chunk()).map_or(0.0, |bytes| f64::from_le_bytes(*bytes))
}

fn entry(member: &[u8], score: f64) -> Entry {
    Entry::new(member, NewValue::Bytes(&score.to_le_bytes()), None)
}

impl Members {
    /// Number of members.
    pub fn len(&self) -> usize {
        self.len
    }

    fn part(&self, choice: u32) -> usize {
        usize::from(self.directory[(choice >> (CHOICE_BITS - self.depth)) as usize])
    }

    /// The entry of a member.
    pub fn get(&self, hash: KeyHash, member: &[u8]) -> Option<EntryRef<'_>> {
        let (choice, hash) = hash.parts();
        let table = &self.parts[self.part(choice)].table;
        Some(table.get(table.find(hash, member)?))
    }

    /// Adds a member that does not exist. Returns the address of its entry.
    pub fn insert(&mut self, hasher: &KeyHasher, member: &[u8], score: f64) -> u64 {
        let (choice, hash) = hasher.hash(member).parts();
        let mut part = self.part(choice);
        while self.parts[part].table.len() >= SPLIT_LEN && self.parts[part].depth < CHOICE_BITS {
            self.split(hasher, part, choice);
            part = self.part(choice);
        }
        let entry = entry(member, score);
        let address = entry.read().address();
        self.parts[part].table.insert(hash, entry);
        self.len += 1;
        address
    }

    /// Splits the part for `choice` in two.
    fn split(&mut self, hasher: &KeyHasher, part: usize, choice: u32) {
        if self.parts[part].depth == self.depth {
            self.directory = self.directory.iter().flat_map(|&part| [part, part]).collect();
            self.depth += 1;
        }
        let depth = self.parts[part].depth + 1;
        let mut old = std::mem::replace(&mut self.parts[part], Part { table: Table::default(), depth });
        let new = self.parts.len();
        self.parts.push(Part { table: Table::default(), depth });
        let bit = 1 << (CHOICE_BITS - depth);
        while let Some(entry) = old.table.pop() {
            let (choice, hash) = hasher.hash(entry.read().key()).parts();
            let to = if choice & bit == 0 { part } else { new };
            self.parts[to].table.insert(hash, entry);
        }
        // The upper half of the directory's slots for the old part.
        let width = 1usize << (self.depth - depth);
        let first = (((choice & !(bit - 1)) | bit) >> (CHOICE_BITS - self.depth)) as usize;
        self.directory[first..first + width].fill(new as u16);
    }

    /// Sets the score of a member.
    pub fn set_score(&mut self, hash: KeyHash, member: &[u8], score: f64) {
        let (choice, hash) = hash.parts();
        let part = self.part(choice);
        let table = &mut self.parts[part].table;
        if let Some(position) = table.find(hash, member) {
            let written = table.get_mut(position).overwrite(&score.to_le_bytes());
            debug_assert!(written, "a score has the length that a score had");
        }
    }

    /// Removes the member whose entry has this address.
    pub fn remove(&mut self, hash: KeyHash, address: u64) -> Option<Entry> {
        let (choice, hash) = hash.parts();
        let part = self.part(choice);
        let table = &mut self.parts[part].table;
        let entry = table.remove(table.find_address(hash, address)?);
        self.len -= 1;
        Some(entry)
    }

    /// Visits about `count` members from the cursor on. Returns the next cursor, 0 at the end. Every member that exists during
    /// the whole scan is visited, mostly once; again if its part was split meanwhile.
    pub fn scan<'a>(&'a self, cursor: u64, count: usize, mut visit: impl FnMut(EntryRef<'a>)) -> u64 {
        let mut choice = u32::try_from(cursor >> HASH_BITS).unwrap_or(1 << CHOICE_BITS);
        let mut from = cursor as u32 & (HASH_LIMIT - 1);
        let mut left = count.max(1);
        while choice < 1 << CHOICE_BITS {
            let part = &self.parts[self.part(choice)];
            let mut seen = 0;
            let next = part.table.scan(from, left, |entry| {
                seen += 1;
                visit(entry);
            });
            if next < HASH_LIMIT {
                return (u64::from(choice) << HASH_BITS) | u64::from(next);
            }
            let width = 1 << (CHOICE_BITS - part.depth);
            choice = (choice & !(width - 1)) + width;
            from = 0;
            left = left.saturating_sub(seen);
            if left == 0 {
                return if choice < 1 << CHOICE_BITS { u64::from(choice) << HASH_BITS } else { 0 };
            }
        }
        0
    }

    /// Frees one member. Returns false if there is none. After the first call, nothing else may be called.
    pub fn pop(&mut self) -> bool {
        while let Some(part) = self.parts.last_mut() {
            if part.table.pop().is_some() {
                self.len -= 1;
                return true;
            }
            self.parts.pop();
        }
        false
    }

    /// Bytes of tables and entries. Walks them.
    pub fn allocated(&self) -> usize {
        let tables = self
            .parts
            .iter()
            .map(|part| part.table.allocated() + part.table.iter().map(EntryRef::allocated).sum::<usize>() + size_of::<Part>());
        self.directory.capacity() * 2 + tables.sum::<usize>()
    }

    /// A copy. `copied` gets the old and the new address of each entry.
    pub fn duplicate(&self, mut copied: impl FnMut(u64, u64)) -> Members {
        let mut copy = |old: EntryRef<'_>| {
            let new = entry(old.key(), score_of(old));
            copied(old.address(), new.read().address());
            new
        };
        let parts = self.parts.iter().map(|part| Part { table: part.table.duplicate(&mut copy), depth: part.depth });
        Members { directory: self.directory.clone(), depth: self.depth, parts: parts.collect(), len: self.len }
    }

    /// Panics if an invariant is broken. Walks everything.
    pub fn check_invariants(&self, hasher: &KeyHasher) {
        assert_eq!(self.directory.len(), 1 << self.depth, "the directory");
        for (number, part) in self.parts.iter().enumerate() {
            assert!(part.depth <= self.depth && self.depth <= CHOICE_BITS, "depths");
            let slots = self.directory.iter().filter(|&&at| usize::from(at) == number).count();
            assert_eq!(slots, 1 << (self.depth - part.depth), "slots of a part");
            part.table.check_invariants(|member| {
                let (choice, hash) = hasher.hash(member).parts();
                assert_eq!(self.part(choice), number, "a member in another's part");
                hash
            });
        }
        assert_eq!(self.parts.iter().map(|part| part.table.len()).sum::<usize>(), self.len, "len");
    }
}
