//! One open-addressed table of entries, kept in the order of their hashes.
//!
//! A slot is 8 bytes: the upper 20 bits are the entry's hash, the lower 44 its address without the four zero bits. An entry
//! stands at the first free slot from its home on, and slots are sorted by hash, so growing is one sequential merge without a
//! look at any entry, an unsuccessful lookup ends at the first larger hash, and a scan in hash order survives every change:
//! its cursor is a hash.

use crate::store::entry::{Entry, EntryMut, EntryRef};

/// Hashes of a table's entries are below this.
pub const HASH_LIMIT: u32 = 1 << HASH_BITS;
/// Bits of hash in a slot.
pub const HASH_BITS: u32 = 20;
const ADDRESS_BITS: u32 = 64 - HASH_BITS;
const ADDRESS_MASK: u64 = (1 << ADDRESS_BITS) - 1;

/// A set of entries with distinct keys. Owns them.
#[derive(Default)]
pub struct Table {
    /// `capacity` home slots, some more for what is pushed over the end, and one that is always empty.
    slots: Vec<u64>,
    /// Home slots.
    capacity: u32,
    len: u32,
}

/// Where an entry stands, until the table is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position(u32);

fn slot_of(hash: u32, address: u64) -> u64 {
    debug_assert!(hash < HASH_LIMIT);
    debug_assert!(address & 15 == 0 && address >> 48 == 0, "{address:#x}");
    (u64::from(hash) << ADDRESS_BITS) | (address >> 4)
}

fn hash_of(slot: u64) -> u32 {
    (slot >> ADDRESS_BITS) as u32
}

fn address_of(slot: u64) -> u64 {
    (slot & ADDRESS_MASK) << 4
}

impl Table {
    /// Number of entries.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes taken by the slots.
    pub fn allocated(&self) -> usize {
        self.slots.capacity() * 8
    }

    #[inline]
    fn home(&self, hash: u32) -> usize {
        ((u64::from(hash) * u64::from(self.capacity)) >> HASH_BITS) as usize
    }

    /// Where the entry with this key stands; `hash` must be the key's.
    #[inline]
    pub fn find(&self, hash: u32, key: &[u8]) -> Option<Position> {
        if self.len == 0 {
            return None;
        }
        let mut at = self.home(hash);
        loop {
            let slot = *self.slots.get(at)?;
            if slot == 0 || hash_of(slot) > hash {
                return None;
            }
            if hash_of(slot) == hash && self.entry_at(at).key() == key {
                return Some(Position(at as u32));
            }
            at += 1;
        }
    }

    /// Where the entry with this address stands.
    pub fn find_address(&self, hash: u32, address: u64) -> Option<Position> {
        if self.len == 0 {
            return None;
        }
        let wanted = slot_of(hash, address);
        let mut at = self.home(hash);
        loop {
            let slot = *self.slots.get(at)?;
            if slot == wanted {
                return Some(Position(at as u32));
            }
            if slot == 0 || hash_of(slot) > hash {
                return None;
            }
            at += 1;
        }
    }

    #[inline]
    fn entry_at(&self, at: usize) -> EntryRef<'_> {
        let address = address_of(self.slots[at]);
        debug_assert!(address != 0);
        // SAFETY: a slot that is not zero holds the address of an entry that this table owns; `&self` keeps it as it is.
        unsafe { EntryRef::at(address) }
    }

    /// The entry there.
    #[inline]
    pub fn get(&self, position: Position) -> EntryRef<'_> {
        self.entry_at(position.0 as usize)
    }

    /// The entry there, to be changed in place.
    #[inline]
    pub fn get_mut(&mut self, position: Position) -> EntryMut<'_> {
        let address = address_of(self.slots[position.0 as usize]);
        debug_assert!(address != 0);
        // SAFETY: as in `entry_at`; `&mut self` makes the access unique.
        unsafe { EntryMut::at(address) }
    }

    /// Puts another entry with the same key in the place of the one there, and gives that back.
    pub fn replace(&mut self, position: Position, entry: Entry) -> Entry {
        let at = position.0 as usize;
        let old = self.slots[at];
        debug_assert!(old != 0 && self.entry_at(at).key() == entry.read().key());
        self.slots[at] = slot_of(hash_of(old), entry.into_address());
        // SAFETY: the table owned the entry of this slot and has just forgotten it.
        unsafe { Entry::from_address(address_of(old)) }
    }

    /// Adds an entry whose key is not in the table.
    pub fn insert(&mut self, hash: u32, entry: Entry) -> Position {
        debug_assert!(self.find(hash, entry.read().key()).is_none());
        if (self.len + 1) as u64 * 20 > u64::from(self.capacity) * 17 {
            self.grow();
        } else if self.slots.len() <= self.capacity as usize {
            // Entries were popped off the end.
            self.rebuild(self.capacity);
        }
        let slot = slot_of(hash, entry.into_address());
        loop {
            if let Some(at) = self.place(slot) {
                self.len += 1;
                return Position(at as u32);
            }
            self.grow();
        }
    }

    /// Moves larger hashes up by one and writes the slot; `None` when they would run over the end.
    fn place(&mut self, slot: u64) -> Option<usize> {
        let hash = hash_of(slot);
        let mut at = self.home(hash);
        while self.slots[at] != 0 && hash_of(self.slots[at]) <= hash {
            at += 1;
        }
        let last = self.slots.len() - 1;
        let free = (at..last).find(|&i| self.slots[i] == 0)?;
        self.slots.copy_within(at..free, at + 1);
        self.slots[at] = slot;
        Some(at)
    }

    /// Takes the entry there out.
    pub fn remove(&mut self, position: Position) -> Entry {
        let mut at = position.0 as usize;
        let address = address_of(self.slots[at]);
        debug_assert!(address != 0);
        // What follows and does not stand at its home moves down by one.
        loop {
            let next = self.slots[at + 1];
            if next == 0 || self.home(hash_of(next)) > at {
                break;
            }
            self.slots[at] = next;
            at += 1;
        }
        self.slots[at] = 0;
        self.len -= 1;
        // SAFETY: the table owned this entry and its slot is gone.
        let entry = unsafe { Entry::from_address(address) };
        if self.len == 0 {
            self.slots = Vec::new();
            self.capacity = 0;
        } else if self.capacity > 32 && self.len * 4 < self.capacity {
            self.rebuild(self.len * 2);
        }
        entry
    }

    fn grow(&mut self) {
        // By a quarter: the copy is sequential and cheap, and the slots stay more than two thirds full.
        self.rebuild((self.capacity + self.capacity / 4).max(self.capacity + 4));
    }

    fn rebuild(&mut self, capacity: u32) {
        let old = std::mem::take(&mut self.slots);
        self.capacity = capacity;
        let mut over = 8 + capacity as usize / 32;
        'again: loop {
            let mut slots = vec![0; capacity as usize + over + 1];
            let mut next = 0;
            for &slot in old.iter().filter(|&&slot| slot != 0) {
                let at = next.max(self.home(hash_of(slot)));
                if at + 1 >= slots.len() {
                    over *= 2;
                    continue 'again;
                }
                slots[at] = slot;
                next = at + 1;
            }
            self.slots = slots;
            return;
        }
    }

    /// Visits entries in the order of their hashes, from `from` on, until `count` of them were seen and a hash is done with. Gives
    /// the hash to go on from, [`HASH_LIMIT`] at the end.
    ///
    /// Every entry that is in the table during the whole of a scan is visited exactly once.
    pub fn scan<'a>(&'a self, from: u32, count: usize, mut visit: impl FnMut(EntryRef<'a>)) -> u32 {
        if self.len == 0 || from >= HASH_LIMIT {
            return HASH_LIMIT;
        }
        let mut seen = 0;
        let mut last = None;
        for at in self.home(from)..self.slots.len() {
            let slot = self.slots[at];
            if slot == 0 || hash_of(slot) < from {
                continue;
            }
            if seen >= count && last != Some(hash_of(slot)) {
                return hash_of(slot);
            }
            seen += 1;
            last = Some(hash_of(slot));
            visit(self.entry_at(at));
        }
        HASH_LIMIT
    }

    /// All entries, in the order of their hashes.
    pub fn iter(&self) -> impl Iterator<Item = EntryRef<'_>> {
        (0..self.slots.len()).filter(|&at| self.slots[at] != 0).map(|at| self.entry_at(at))
    }

    /// Number of places for [`Table::at`].
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Where the entry in a slot stands, if there is one.
    pub fn at(&self, slot: usize) -> Option<Position> {
        self.slots.get(slot).filter(|&&slot| slot != 0).map(|_| Position(slot as u32))
    }

    /// The first of the entries with this hash that will do.
    pub fn find_where(&self, hash: u32, mut will_do: impl FnMut(EntryRef<'_>) -> bool) -> Option<Position> {
        if self.len == 0 {
            return None;
        }
        let mut at = self.home(hash);
        loop {
            let slot = *self.slots.get(at)?;
            if slot == 0 || hash_of(slot) > hash {
                return None;
            }
            if hash_of(slot) == hash && will_do(self.entry_at(at)) {
                return Some(Position(at as u32));
            }
            at += 1;
        }
    }

    /// Visits the entries with this hash.
    pub fn each_of(&self, hash: u32, mut visit: impl FnMut(EntryRef<'_>)) {
        self.find_where(hash, |entry| {
            visit(entry);
            false
        });
    }

    /// A table with copies of all entries, which have the same keys.
    pub fn duplicate(&self, mut copy: impl FnMut(EntryRef<'_>) -> Entry) -> Table {
        let mut table = Table { slots: vec![0; self.slots.len()], capacity: self.capacity, len: 0 };
        for (at, &slot) in self.slots.iter().enumerate() {
            if slot != 0 {
                table.slots[at] = slot_of(hash_of(slot), copy(self.entry_at(at)).into_address());
                table.len += 1;
            }
        }
        table
    }

    /// The `index`-th position that is taken.
    pub fn nth(&self, index: usize) -> Option<Position> {
        (0..self.slots.len()).filter(|&at| self.slots[at] != 0).nth(index).map(|at| Position(at as u32))
    }

    /// Takes out some entry, the last by hash. Cheap: nothing moves.
    pub fn pop(&mut self) -> Option<Entry> {
        while let Some(slot) = self.slots.pop() {
            if slot != 0 {
                self.len -= 1;
                // SAFETY: the table owned this entry and its slot is gone.
                let entry = unsafe { Entry::from_address(address_of(slot)) };
                if self.len == 0 {
                    self.slots = Vec::new();
                    self.capacity = 0;
                } else {
                    // Lookups need an empty slot behind the last one.
                    self.slots.push(0);
                }
                return Some(entry);
            }
        }
        None
    }

    /// Panics where the table is not what it should be.
    pub fn check_invariants(&self, hash: impl Fn(&[u8]) -> u32) {
        let mut count = 0;
        let mut previous = None;
        for (at, &slot) in self.slots.iter().enumerate() {
            if slot == 0 {
                continue;
            }
            count += 1;
            let h = hash_of(slot);
            assert_eq!(hash(self.entry_at(at).key()), h, "slot {at} has the hash of another key");
            assert!(previous <= Some(h), "slot {at} breaks the order: {previous:?} > {h}");
            assert!(self.home(h) <= at, "slot {at} stands before its home {}", self.home(h));
            assert!((self.home(h)..at).all(|i| self.slots[i] != 0), "a hole between slot {at} and its home {}", self.home(h));
            previous = Some(h);
        }
        assert_eq!(count, self.len, "len");
        assert_eq!(self.slots.last().copied().unwrap_or(0), 0, "the last slot is taken");
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
