//! The keyspace of one database: 1,024 tables, each with the keys whose hashes have the same top bits.
//!
//! No insertion ever moves more than one table's slots, so growth to millions of keys causes no long pause, and a scan's cursor
//! is a position in the space of 29-bit hashes, which neither growth nor shrinking invalidates.

use std::hash::{BuildHasher, Hasher};
use std::num::NonZeroU64;

use foldhash::quality::FixedState;

use crate::store::entry::{Entry, EntryMut, EntryRef};
use crate::store::table::{HASH_BITS, HASH_LIMIT, Position, Table};

const TABLE_BITS: u32 = 10;
const TABLES: usize = 1 << TABLE_BITS;

/// A key's hash: the number of its table, and its hash there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyHash(u32);

impl KeyHash {
    /// The hash 0, as of some keys.
    pub const ZERO: KeyHash = KeyHash(0);

    #[inline]
    fn table(self) -> usize {
        (self.0 >> HASH_BITS) as usize
    }

    #[inline]
    fn in_table(self) -> u32 {
        self.0 & (HASH_LIMIT - 1)
    }

    /// All 29 bits.
    #[inline]
    pub fn bits(self) -> u32 {
        self.0
    }

    /// The number of the table, and the hash within it.
    pub fn parts(self) -> (u32, u32) {
        (self.table() as u32, self.in_table())
    }
}

/// Hashes keys with a seed, so that clients cannot choose keys that collide.
#[derive(Clone, Debug)]
pub struct KeyHasher(FixedState);

impl KeyHasher {
    /// Creates a hasher; each seed has its own.
    pub fn new(seed: u64) -> Self {
        KeyHasher(FixedState::with_seed(seed))
    }

    /// The hash of a key.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        let mut hasher = self.0.build_hasher();
        hasher.write(key);
        KeyHash((hasher.finish() >> (64 - TABLE_BITS - HASH_BITS)) as u32)
    }

    /// The seeded hash state, for maps that live as long as a command.
    pub fn state(&self) -> FixedState {
        self.0.clone()
    }
}

/// The place of a key, valid until the dictionary changes: the number of its table, and its position there plus one. It is a
/// single word, so that an optional place is passed in a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(NonZeroU64);

impl Place {
    #[inline]
    fn new(table: usize, Position(position): Position) -> Self {
        Place(NonZeroU64::MIN.saturating_add(((table as u64) << 32) | u64::from(position)))
    }

    #[inline]
    fn table(self) -> usize {
        (self.0.get() >> 32) as usize
    }

    #[inline]
    fn position(self) -> Position {
        Position(self.0.get() as u32 - 1)
    }
}

/// Keys with their entries. Allocates no memory before the first one.
#[derive(Default)]
pub struct Dict {
    tables: Vec<Table>,
    len: usize,
}

impl Dict {
    /// Number of keys.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of slots and tables, without entries. Walks the 1,024 tables.
    pub fn allocated(&self) -> usize {
        self.tables.iter().map(Table::allocated).sum::<usize>() + self.tables.capacity() * size_of::<Table>()
    }

    /// The place of a key.
    #[inline]
    pub fn find(&self, hash: KeyHash, key: &[u8]) -> Option<Place> {
        let position = self.tables.get(hash.table())?.find(hash.in_table(), key)?;
        Some(Place::new(hash.table(), position))
    }

    /// The place of a key, and its entry.
    #[inline(always)]
    pub fn find_entry(&self, hash: KeyHash, key: &[u8]) -> Option<(Place, EntryRef<'_>)> {
        let (position, entry) = self.tables.get(hash.table())?.find_entry(hash.in_table(), key)?;
        Some((Place::new(hash.table(), position), entry))
    }

    /// The place of the entry with this address; `hash` must be its key's.
    pub fn find_address(&self, hash: KeyHash, address: u64) -> Option<Place> {
        let position = self.tables.get(hash.table())?.find_address(hash.in_table(), address)?;
        Some(Place::new(hash.table(), position))
    }

    /// The place of any key with this hash.
    pub fn find_hash(&self, hash: KeyHash) -> Option<Place> {
        let position = self.tables.get(hash.table())?.find_where(hash.in_table(), |_| true)?;
        Some(Place::new(hash.table(), position))
    }

    /// The place of a key with this hash that `accept` accepts.
    pub fn find_with_hash(&self, hash: KeyHash, accept: impl FnMut(EntryRef<'_>) -> bool) -> Option<Place> {
        let position = self.tables.get(hash.table())?.find_where(hash.in_table(), accept)?;
        Some(Place::new(hash.table(), position))
    }

    /// Visits keys in the order of hashes from a random place on: `count` of them if there are enough, and more if hashes are
    /// equal.
    pub fn sample(&self, random: u64, count: usize, mut visit: impl FnMut(EntryRef<'_>)) {
        let mut seen = 0;
        let mut count_and_visit = |entry: EntryRef<'_>| {
            seen += 1;
            visit(entry);
        };
        let limit = (TABLES as u64) << HASH_BITS;
        self.scan(random % limit, count, &mut count_and_visit);
        if seen < count.min(self.len) {
            self.scan(0, count - seen, visit);
        }
    }

    /// Prefetches the slot where a key's entry would be.
    #[inline]
    pub fn prefetch_slot(&self, hash: KeyHash) {
        if let Some(table) = self.tables.get(hash.table()) {
            table.prefetch_slot(hash.in_table());
        }
    }

    /// Prefetches the entry that a key's slot refers to.
    #[inline]
    pub fn prefetch_entry(&self, hash: KeyHash) {
        if let Some(table) = self.tables.get(hash.table()) {
            table.prefetch_entry(hash.in_table());
        }
    }

    /// The entry at a place.
    #[inline]
    pub fn get(&self, place: Place) -> EntryRef<'_> {
        self.tables[place.table()].get(place.position())
    }

    /// The entry at a place, mutable.
    #[inline]
    pub fn get_mut(&mut self, place: Place) -> EntryMut<'_> {
        self.tables[place.table()].get_mut(place.position())
    }

    /// Replaces the entry at a place by one with the same key. Returns the old one.
    pub fn replace(&mut self, place: Place, entry: Entry) -> Entry {
        self.tables[place.table()].replace(place.position(), entry)
    }

    /// Adds an entry whose key does not exist.
    #[inline(always)]
    pub fn insert(&mut self, hash: KeyHash, entry: Entry) -> Place {
        if self.tables.is_empty() {
            self.tables.resize_with(TABLES, Table::default);
        }
        self.len += 1;
        Place::new(hash.table(), self.tables[hash.table()].insert(hash.in_table(), entry))
    }

    /// Removes the entry at a place.
    pub fn remove(&mut self, place: Place) -> Entry {
        self.len -= 1;
        self.tables[place.table()].remove(place.position())
    }

    /// Visits entries from a cursor on until `count` were seen. Returns the cursor to continue from, 0 at the end. Start with 0.
    ///
    /// Every key that exists during the whole scan is visited exactly once, whatever is added or removed meanwhile. One call
    /// visits at most `count` keys and those that share the last one's hash.
    pub fn scan(&self, cursor: u64, count: usize, mut visit: impl FnMut(EntryRef<'_>)) -> u64 {
        let mut table = (cursor >> HASH_BITS) as usize;
        let mut from = cursor as u32 & (HASH_LIMIT - 1);
        let mut left = count.max(1);
        while table < self.tables.len() {
            let mut seen = 0;
            let next = self.tables[table].scan(from, left, |entry| {
                seen += 1;
                visit(entry);
            });
            if next < HASH_LIMIT {
                return ((table as u64) << HASH_BITS) | u64::from(next);
            }
            table += 1;
            from = 0;
            left = left.saturating_sub(seen);
            if left == 0 {
                // Cursor 0 is the start: the first table's start is never returned.
                return if table < self.tables.len() { (table as u64) << HASH_BITS } else { 0 };
            }
        }
        0
    }

    /// All entries, in the order of a scan.
    pub fn iter(&self) -> impl Iterator<Item = EntryRef<'_>> {
        self.tables.iter().flat_map(Table::iter)
    }

    /// The `index`-th key in the order of a scan, for `index` below `len`: with a random index, a uniformly random key.
    pub fn nth(&self, mut index: usize) -> Option<EntryRef<'_>> {
        for table in &self.tables {
            if index < table.len() {
                return table.nth(index).map(|position| table.get(position));
            }
            index -= table.len();
        }
        None
    }

    /// Removes an arbitrary entry, to empty a dictionary in pieces.
    pub fn pop(&mut self) -> Option<Entry> {
        while let Some(table) = self.tables.last_mut() {
            if let Some(entry) = table.pop() {
                self.len -= 1;
                return Some(entry);
            }
            self.tables.pop();
        }
        None
    }

    /// Panics if an invariant is broken.
    pub fn check_invariants(&self, hasher: &KeyHasher) {
        let mut len = 0;
        for (number, table) in self.tables.iter().enumerate() {
            if table.len() == 0 && table.allocated() == 0 {
                // Most tables are empty, and fuzzing checks this often.
                continue;
            }
            len += table.len();
            table.check_invariants(|key| {
                let hash = hasher.hash(key);
                assert_eq!(hash.table(), number, "a key in another's table");
                hash.in_table()
            });
        }
        assert_eq!(len, self.len, "len");
    }
}

impl std::fmt::Debug for Dict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use proptest::prelude::*;

    use super::*;
    use crate::base::scaled;
    use crate::store::entry::NewValue;

    #[derive(Clone, Debug)]
    enum Step {
        Set(u16, u16),
        Remove(u16, u16),
        Scan(usize, u16),
    }

    fn step() -> impl Strategy<Value = Step> {
        let many = prop_oneof![1..3u16, 1..scaled(3000u16, 30)];
        prop_oneof![
            (0..scaled(5000u16, 60), many.clone()).prop_map(|(from, n)| Step::Set(from, n)),
            (0..scaled(5000u16, 60), many).prop_map(|(from, n)| Step::Remove(from, n)),
            (0..300usize, 1..scaled(40u16, 4)).prop_map(|(count, calls)| Step::Scan(count, calls)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: scaled(24, 1), ..ProptestConfig::default() })]
        #[test]
        fn behaves_like_a_map(seed in any::<u64>(), steps in prop::collection::vec(step(), 1..scaled(30, 8))) {
            let hasher = KeyHasher::new(seed);
            let mut dict = Dict::default();
            let mut model: HashMap<u16, usize> = HashMap::new();
            let (mut cursor, mut given, mut steady) = (0, HashSet::new(), HashSet::new());
            for (version, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Set(from, many) => {
                        for n in from..from + many {
                            let (key, value) = (n.to_string(), version.to_string());
                            let hash = hasher.hash(key.as_bytes());
                            let entry = Entry::new(key.as_bytes(), NewValue::Bytes(value.as_bytes()), None);
                            match dict.find(hash, key.as_bytes()) {
                                Some(place) => drop(dict.replace(place, entry)),
                                None => {
                                    let place = dict.insert(hash, entry);
                                    prop_assert!(dict.get_mut(place).read().key() == key.as_bytes());
                                }
                            }
                            model.insert(n, version);
                        }
                    }
                    Step::Remove(from, many) => {
                        for n in from..from + many {
                            let key = n.to_string();
                            let place = dict.find(hasher.hash(key.as_bytes()), key.as_bytes());
                            prop_assert_eq!(place.is_some(), model.remove(&n).is_some());
                            if let Some(place) = place {
                                prop_assert!(dict.remove(place).read().key() == key.as_bytes());
                                steady.remove(&n);
                            }
                        }
                    }
                    Step::Scan(count, calls) => {
                        for _ in 0..calls {
                            if cursor == 0 {
                                given.clear();
                                steady = model.keys().copied().collect();
                            }
                            let mut seen = 0;
                            let mut twice = None;
                            cursor = dict.scan(cursor, count, |entry| {
                                seen += 1;
                                let n: u16 = std::str::from_utf8(entry.key()).unwrap().parse().unwrap();
                                twice = twice.or((!given.insert(n)).then_some(n));
                            });
                            prop_assert_eq!(twice, None);
                            prop_assert!(cursor == 0 || seen >= count.max(1));
                            prop_assert!(seen <= count.max(1) + 8, "{seen} for {count}");
                            if cursor == 0 {
                                prop_assert!(steady.iter().all(|n| given.contains(n)), "passed over");
                                prop_assert!(given.len() >= steady.len());
                            }
                        }
                    }
                }
                dict.check_invariants(&hasher);
                prop_assert_eq!(dict.len(), model.len());
                for (n, version) in &model {
                    let key = n.to_string();
                    let place = dict.find(hasher.hash(key.as_bytes()), key.as_bytes()).unwrap();
                    prop_assert!(dict.get(place).bytes() == Some(version.to_string().as_bytes()));
                    prop_assert_eq!(dict.find_address(hasher.hash(key.as_bytes()), dict.get(place).address()), Some(place));
                }
                for index in [0, model.len() / 2, model.len().saturating_sub(1), model.len()] {
                    prop_assert_eq!(dict.nth(index).map(EntryRef::key), dict.iter().nth(index).map(EntryRef::key));
                }
            }
            for left in (0..model.len()).rev() {
                prop_assert!(dict.pop().is_some());
                prop_assert_eq!(dict.len(), left);
            }
            prop_assert!(dict.pop().is_none() && dict.is_empty());
        }
    }

    #[test]
    fn any_cursor_will_do() {
        let hasher = KeyHasher::new(3);
        let mut dict = Dict::default();
        assert_eq!(dict.scan(u64::MAX, 10, |_| panic!("an entry of none")), 0);
        for n in 0..100u8 {
            dict.insert(hasher.hash(&[n]), Entry::new(&[n], NewValue::Bytes(b""), None));
        }
        for cursor in [1, HASH_LIMIT as u64 - 1, HASH_LIMIT as u64, 1 << 30, u64::MAX] {
            assert!(dict.scan(cursor, 1, |_| ()) < 1 << 30);
        }
    }
}
