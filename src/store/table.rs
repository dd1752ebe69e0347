//! One open-addressed table of entries, ordered by their hashes.
//!
//! A slot is 8 bytes: the upper 19 bits are the entry's hash, the lower 45 its address without the three zero bits. An entry is
//! stored at the first free slot from its home on, and slots are sorted by hash, so growing is one sequential merge without
//! access to any entry, an unsuccessful lookup ends at the first larger hash, and a scan in hash order survives every change: its
//! cursor is a hash.

use crate::base::prefetch::prefetch;
use crate::store::entry::{Entry, EntryMut, EntryRef};

/// All hashes of a table's entries are below this.
pub const HASH_LIMIT: u32 = 1 << HASH_BITS;
/// Bits of hash in a slot.
pub const HASH_BITS: u32 = 19;
/// Home slots of a table when it gets its first entry.
const CAPACITY_MIN: u32 = 4;
/// Home slots that a table keeps once it has grown to as many, even when it is empty: locks come and go.
const CAPACITY_KEPT: u32 = 64;
/// Maximum number of slots between an entry and its home that a shrunk table may begin with.
const DISPLACED_MAX: usize = 128;
/// Bytes of a cache line.
const LINE: usize = 64;
/// Slots from an entry's home on that are searched for its address by a prefetch.
const PREFETCHED_SLOTS: usize = 24;
const ADDRESS_BITS: u32 = 64 - HASH_BITS;
const ADDRESS_MASK: u64 = (1 << ADDRESS_BITS) - 1;

/// A set of entries with distinct keys. Owns them.
#[derive(Default)]
pub struct Table {
    /// `capacity` home slots, some more for entries that are pushed beyond the end, and one that is always empty.
    slots: Vec<u64>,
    /// Number of home slots.
    capacity: u32,
    len: u32,
    /// With fewer entries than this, the table tries to shrink.
    shrink_below: u32,
    /// With this many entries, the slots are checked before another insertion.
    full_at: u32,
}

/// Position of an entry, valid until the table changes. A stale position may refer to another entry; if it refers to none, its
/// use aborts the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position(pub(super) u32);

#[inline]
fn slot_of(hash: u32, address: u64) -> u64 {
    debug_assert!(hash < HASH_LIMIT);
    // An address that the slot cannot represent would be read back as another one.
    assert!(address & !(ADDRESS_MASK << 3) == 0, "{address:#x} does not fit into a slot");
    (u64::from(hash) << ADDRESS_BITS) | (address >> 3)
}

/// The preferred slot of an entry with this hash, among `capacity` home slots.
#[inline]
fn home_among(capacity: u32, hash: u32) -> usize {
    ((u64::from(hash) * u64::from(capacity)) >> HASH_BITS) as usize
}

/// Maximum number of entries for a number of home slots.
fn limit(capacity: u32) -> u32 {
    (u64::from(capacity) * 9 / 10) as u32
}

fn hash_of(slot: u64) -> u32 {
    (slot >> ADDRESS_BITS) as u32
}

fn address_of(slot: u64) -> u64 {
    (slot & ADDRESS_MASK) << 3
}

#[cold]
#[inline(never)]
fn stale() -> ! {
    panic!("a position is used after its table was changed");
}

/// Whether two keys are equal. Keys of 4 to 32 bytes, the usual ones, are compared without a call: both ends are compared, and
/// these meet or overlap.
#[inline]
fn same(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let word = |bytes: &[u8; 8]| u64::from_ne_bytes(*bytes);
    let words = |bytes: &[u8; 16]| u128::from_ne_bytes(*bytes);
    if let (16..=32, Some(a0), Some(b0), Some(a1), Some(b1)) =
        (a.len(), a.first_chunk(), b.first_chunk(), a.last_chunk(), b.last_chunk())
    {
        return (words(a0) ^ words(b0)) | (words(a1) ^ words(b1)) == 0;
    }
    if let (8..16, Some(a0), Some(b0), Some(a1), Some(b1)) =
        (a.len(), a.first_chunk(), b.first_chunk(), a.last_chunk(), b.last_chunk())
    {
        return (word(a0) ^ word(b0)) | (word(a1) ^ word(b1)) == 0;
    }
    let half = |bytes: &[u8; 4]| u32::from_ne_bytes(*bytes);
    if let (4..8, Some(a0), Some(b0), Some(a1), Some(b1)) =
        (a.len(), a.first_chunk(), b.first_chunk(), a.last_chunk(), b.last_chunk())
    {
        return (half(a0) ^ half(b0)) | (half(a1) ^ half(b1)) == 0;
    }
    same_bytes(a, b)
}

#[inline(never)]
fn same_bytes(a: &[u8], b: &[u8]) -> bool {
    a == b
}

impl Table {
    /// An empty table with room for a number of entries.
    pub fn with_capacity(entries: usize) -> Self {
        let mut table = Table::default();
        if entries > 0 {
            table.rebuild((entries as u32 + 1).saturating_mul(10).div_ceil(9));
        }
        table
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Bytes taken by the slots.
    pub fn allocated(&self) -> usize {
        self.slots.capacity() * 8
    }

    #[inline]
    fn home(&self, hash: u32) -> usize {
        home_among(self.capacity, hash)
    }

    /// The position of the entry with this key; `hash` must be the key's.
    #[inline]
    pub fn find(&self, hash: u32, key: &[u8]) -> Option<Position> {
        self.find_where(hash, |entry| same(entry.key(), key))
    }

    /// As [`Table::find`], together with the entry.
    #[inline(always)]
    pub fn find_entry(&self, hash: u32, key: &[u8]) -> Option<(Position, EntryRef<'_>)> {
        self.find_entry_where(hash, |entry| same(entry.key(), key))
    }

    /// Prefetches the slots at a hash's home. In a table that is nearly full, most entries are several slots behind their homes,
    /// so the next cache line is as likely to be needed.
    #[inline]
    pub fn prefetch_slot(&self, hash: u32) {
        let home = self.slots.as_ptr().wrapping_add(self.home(hash));
        prefetch(home.cast());
        prefetch(home.wrapping_add(LINE / 8).cast());
    }

    /// Prefetches the entry with this hash: its beginning, and the next cache line, where most entries have their value.
    #[inline]
    pub fn prefetch_entry(&self, hash: u32) {
        let home = self.home(hash);
        // The few entries farther from their home are not prefetched.
        for &slot in self.slots.iter().skip(home).take(PREFETCHED_SLOTS) {
            if slot == 0 || hash_of(slot) > hash {
                return;
            }
            if hash_of(slot) == hash {
                let address = address_of(slot) as usize;
                prefetch(std::ptr::without_provenance(address));
                prefetch(std::ptr::without_provenance(address + LINE));
                return;
            }
        }
    }

    /// The position of the entry with this address.
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

    /// The address in a slot, which must not be empty. A position that has outlived its entry aborts here, or gets another entry.
    #[inline]
    fn occupied(&self, at: usize) -> u64 {
        let slot = self.slots[at];
        if slot == 0 {
            stale();
        }
        address_of(slot)
    }

    #[inline]
    fn entry_at(&self, at: usize) -> EntryRef<'_> {
        let address = self.occupied(at);
        // SAFETY: a slot that is not zero holds the address of an entry that this table owns; `&self` keeps it as it is.
        unsafe { EntryRef::at(address) }
    }

    /// The entry at a position.
    #[inline]
    pub fn get(&self, position: Position) -> EntryRef<'_> {
        self.entry_at(position.0 as usize)
    }

    /// The entry at a position, mutable.
    #[inline]
    pub fn get_mut(&mut self, position: Position) -> EntryMut<'_> {
        let address = self.occupied(position.0 as usize);
        // SAFETY: as in `entry_at`; `&mut self` makes the access unique.
        unsafe { EntryMut::at(address) }
    }

    /// Replaces an entry by another one with the same key. Returns the old one.
    pub fn replace(&mut self, position: Position, entry: Entry) -> Entry {
        let at = position.0 as usize;
        let old = self.slots[at];
        if old == 0 {
            stale();
        }
        debug_assert!(self.entry_at(at).key() == entry.read().key());
        self.slots[at] = slot_of(hash_of(old), entry.into_address());
        // SAFETY: the table owned the entry of this slot and has just forgotten it.
        unsafe { Entry::from_address(address_of(old)) }
    }

    /// Adds an entry whose key is not in the table.
    pub fn insert(&mut self, hash: u32, entry: Entry) -> Position {
        debug_assert!(self.find(hash, entry.read().key()).is_none());
        if self.len >= self.full_at {
            self.make_room();
        }
        let address = entry.into_address();
        let home = self.home(hash);
        let slots = self.slots.as_mut_slice();
        let (mut at, mut slot) = (home, slot_of(hash, address));
        while slots[at] != 0 && hash_of(slots[at]) <= hash {
            at += 1;
        }
        // The entries behind it move up by one.
        let mut last = at;
        loop {
            slot = std::mem::replace(&mut slots[last], slot);
            if slot == 0 {
                break;
            }
            last += 1;
        }
        self.len += 1;
        if last + 1 == slots.len() {
            return self.restore_end(hash, address);
        }
        Position(at as u32)
    }

    /// Makes slots available for another entry.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self) {
        if self.len >= limit(self.capacity) {
            self.grow();
        } else {
            // Entries were popped off the end.
            self.rebuild(self.capacity);
        }
    }

    /// Grows the table after an insertion took the last slot, which must stay empty. Returns the new position of the entry.
    #[cold]
    #[inline(never)]
    fn restore_end(&mut self, hash: u32, address: u64) -> Position {
        self.grow();
        self.find_address(hash, address).expect("the entry was put in a moment ago")
    }

    /// Removes the entry at a position.
    pub fn remove(&mut self, position: Position) -> Entry {
        let (mut at, capacity) = (position.0 as usize, self.capacity);
        let address = self.occupied(at);
        let slots = self.slots.as_mut_slice();
        // The entries behind it that are not at their home move down by one.
        loop {
            let next = slots[at + 1];
            if next == 0 || home_among(capacity, hash_of(next)) > at {
                break;
            }
            slots[at] = next;
            at += 1;
        }
        slots[at] = 0;
        self.len -= 1;
        // SAFETY: the table owned this entry and its slot is gone.
        let entry = unsafe { Entry::from_address(address) };
        if self.len < self.shrink_below {
            self.shrink();
        }
        entry
    }

    /// Halves the slots, unless the remaining entries are too close together for that: a client that deletes in the order of a
    /// scan leaves only the entries with the highest hashes. They would all be pushed away from their homes, and each removal
    /// would move the rest.
    #[cold]
    fn shrink(&mut self) {
        let capacity = (self.len * 2).max(CAPACITY_KEPT);
        let mut next = 0;
        let fits = self.slots.iter().filter(|&&slot| slot != 0).all(|&slot| {
            let home = home_among(capacity, hash_of(slot));
            let at = next.max(home);
            next = at + 1;
            at - home <= DISPLACED_MAX
        });
        if fits { self.rebuild(capacity) } else { self.shrink_below = self.len / 2 }
    }

    fn grow(&mut self) {
        // A large table grows by a sixth: the copy is sequential and cheap, and the slots stay more than three quarters full. A
        // small one grows faster; otherwise a keyspace that fills from nothing would copy each slot several times.
        self.rebuild(match self.capacity {
            0 => CAPACITY_MIN,
            small if small < CAPACITY_KEPT => small * 2,
            large => large + large / 6,
        });
    }

    fn rebuild(&mut self, capacity: u32) {
        let old = std::mem::take(&mut self.slots);
        self.capacity = capacity;
        self.shrink_below = if capacity > CAPACITY_KEPT { capacity.div_ceil(4) } else { 0 };
        self.full_at = limit(capacity);
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

    /// Visits entries in the order of their hashes, from `from` on, until `count` were seen and a hash is complete. Returns the
    /// hash to continue from, [`HASH_LIMIT`] at the end.
    ///
    /// Every entry that is in the table during the whole scan is visited exactly once.
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
            if seen >= count.max(1) && last != Some(hash_of(slot)) {
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

    /// Number of slots for [`Table::at`].
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// The position of the entry in a slot, if there is one.
    pub fn at(&self, slot: usize) -> Option<Position> {
        self.slots.get(slot).filter(|&&slot| slot != 0).map(|_| Position(slot as u32))
    }

    /// The first entry with one of these hashes that `accept` accepts. Searches the slots from the home of the first hash to
    /// that of the last.
    pub fn find_among(
        &self,
        hashes: std::ops::RangeInclusive<u32>,
        mut accept: impl FnMut(EntryRef<'_>) -> bool,
    ) -> Option<Position> {
        let last_home = self.home(*hashes.end());
        for at in self.home(*hashes.start())..self.slots.len() {
            let slot = self.slots[at];
            if hash_of(slot) > *hashes.end() || (slot == 0 && at >= last_home) {
                return None;
            }
            if slot != 0 && hashes.contains(&hash_of(slot)) && accept(self.entry_at(at)) {
                return Some(Position(at as u32));
            }
        }
        None
    }

    /// The first entry with this hash that `accept` accepts.
    #[inline(always)]
    pub fn find_where(&self, hash: u32, accept: impl FnMut(EntryRef<'_>) -> bool) -> Option<Position> {
        self.find_entry_where(hash, accept).map(|(position, _)| position)
    }

    #[inline(always)]
    fn find_entry_where(&self, hash: u32, mut accept: impl FnMut(EntryRef<'_>) -> bool) -> Option<(Position, EntryRef<'_>)> {
        // An empty table has no slots.
        let mut at = self.home(hash);
        loop {
            let slot = *self.slots.get(at)?;
            if slot == 0 || hash_of(slot) > hash {
                return None;
            }
            if hash_of(slot) == hash {
                // SAFETY: as in `entry_at`.
                let entry = unsafe { EntryRef::at(address_of(slot)) };
                if accept(entry) {
                    return Some((Position(at as u32), entry));
                }
            }
            at += 1;
        }
    }

    /// A table with copies of all entries. The copies must have the same keys.
    pub fn duplicate(&self, mut copy: impl FnMut(EntryRef<'_>) -> Entry) -> Table {
        let mut table = Table { slots: vec![0; self.slots.len()], len: 0, ..*self };
        for (at, &slot) in self.slots.iter().enumerate() {
            if slot != 0 {
                table.slots[at] = slot_of(hash_of(slot), copy(self.entry_at(at)).into_address());
                table.len += 1;
            }
        }
        table
    }

    /// The `index`-th occupied position.
    pub fn nth(&self, index: usize) -> Option<Position> {
        (0..self.slots.len()).filter(|&at| self.slots[at] != 0).nth(index).map(|at| Position(at as u32))
    }

    /// Removes an arbitrary entry, the last by hash. Cheap: nothing moves.
    pub fn pop(&mut self) -> Option<Entry> {
        while let Some(slot) = self.slots.pop() {
            if slot != 0 {
                self.len -= 1;
                // SAFETY: the table owned this entry and its slot is gone.
                let entry = unsafe { Entry::from_address(address_of(slot)) };
                if self.len == 0 {
                    self.slots = Vec::new();
                    (self.capacity, self.shrink_below) = (0, 0);
                } else {
                    // Lookups need an empty slot at the end.
                    self.slots.push(0);
                }
                if self.slots.len() <= self.capacity as usize + 1 {
                    // Home slots are missing now.
                    self.full_at = 0;
                }
                return Some(entry);
            }
        }
        // All of its slots were empty, and were removed.
        (self.capacity, self.shrink_below, self.full_at) = (0, 0, 0);
        None
    }

    /// Panics if an invariant is broken.
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
        assert!(self.full_at == 0 || self.full_at == limit(self.capacity), "full at {}", self.full_at);
        assert!(self.full_at == 0 || self.slots.len() > self.capacity as usize, "slots are missing");
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
