//! A hash table of numbers that grows and shrinks in small steps.
//!
//! It does not know what its numbers refer to: callers compare. A few numbers are one table. More are spread over `SEGMENTS`
//! tables, selected by the upper bits of the hash, each of which grows and shrinks on its own. With a million numbers, at most a
//! thousand have to be moved in any one step, where a single table would move all of them at once.

use hashbrown::HashTable;

/// Number of tables that many numbers are spread over.
const SEGMENTS: usize = 1 << SEGMENT_BITS;
const SEGMENT_BITS: u32 = 10;
/// More numbers than this are spread over all tables.
const SPREAD_FROM: usize = 2048;
/// Fewer numbers than this are gathered in one table again.
const GATHER_BELOW: usize = 512;
/// A table with at most this capacity keeps it.
const KEPT: usize = 32;

/// A number and its hash, so that its place can be found again without access to the object it refers to.
#[derive(Clone, Copy, Debug)]
struct Slot {
    hash: u32,
    number: u32,
}

impl Slot {
    fn spread(&self) -> u64 {
        spread(self.hash)
    }
}

/// The hash for a table, which uses both its ends: the bits that selected the table are at neither end.
fn spread(hash: u32) -> u64 {
    u64::from(hash << SEGMENT_BITS) << 32 | u64::from(hash)
}

#[derive(Debug, Default)]
struct Segment {
    slots: HashTable<Slot>,
    /// Largest capacity since the last shrink.
    room: usize,
}

impl Segment {
    fn insert(&mut self, slot: Slot) {
        self.slots.insert_unique(slot.spread(), slot, Slot::spread);
        self.room = self.room.max(self.slots.capacity());
    }

    /// Frees memory if most of the table is vacant.
    fn shrink(&mut self) {
        let len = self.slots.len();
        if self.room > KEPT && len < self.room / 4 {
            self.slots.shrink_to(len * 2, Slot::spread);
            self.room = self.slots.capacity();
        }
    }
}

/// A set of numbers by hash.
#[derive(Debug)]
pub struct Segments {
    /// One, or [`SEGMENTS`].
    segments: Vec<Segment>,
    len: usize,
}

impl Default for Segments {
    fn default() -> Self {
        Segments { segments: vec![Segment::default()], len: 0 }
    }
}

impl Segments {
    /// Number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn index(&self, hash: u32) -> usize {
        if self.segments.len() == 1 { 0 } else { (hash >> (32 - SEGMENT_BITS)) as usize }
    }

    /// Adds a number that is not in the set.
    pub fn insert(&mut self, hash: u32, number: u32) {
        if self.len >= SPREAD_FROM && self.segments.len() == 1 {
            self.part(SEGMENTS);
        }
        let index = self.index(hash);
        self.segments[index].insert(Slot { hash, number });
        self.len += 1;
    }

    /// The number with this hash that `is_it` accepts.
    #[inline]
    pub fn find(&self, hash: u32, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let table = &self.segments[self.index(hash)].slots;
        table.find(spread(hash), |slot| slot.hash == hash && is_it(slot.number)).map(|slot| slot.number)
    }

    /// Removes a number. Returns false if it is not in the set.
    pub fn remove(&mut self, hash: u32, number: u32) -> bool {
        let index = self.index(hash);
        let segment = &mut self.segments[index];
        let Ok(entry) = segment.slots.find_entry(spread(hash), |slot| slot.number == number) else { return false };
        entry.remove();
        segment.shrink();
        self.len -= 1;
        if self.len < GATHER_BELOW && self.segments.len() > 1 {
            self.part(1);
        }
        true
    }

    /// Distributes all numbers over `count` tables.
    #[cold]
    fn part(&mut self, count: usize) {
        let old = std::mem::replace(&mut self.segments, std::iter::repeat_with(Segment::default).take(count).collect());
        for slot in old.iter().flat_map(|segment| segment.slots.iter()) {
            let index = self.index(slot.hash);
            self.segments[index].insert(*slot);
        }
    }

    /// Panics if an invariant is broken. Walks everything.
    pub fn check_invariants(&self) {
        assert!([1, SEGMENTS].contains(&self.segments.len()));
        let mut len = 0;
        for (index, segment) in self.segments.iter().enumerate() {
            for slot in &segment.slots {
                assert_eq!(self.index(slot.hash), index, "a number in the table of its hash");
                assert_eq!(self.find(slot.hash, |number| number == slot.number), Some(slot.number), "a number is found");
            }
            assert!(segment.room <= KEPT || segment.slots.len() >= segment.room / 4, "a table of vacant room");
            len += segment.slots.len();
        }
        assert_eq!(len, self.len, "numbers are counted");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::base::scaled;

    fn hash_of(kind: u8, number: u32) -> u32 {
        let mixed = number.wrapping_mul(0x9e37_79b1);
        [mixed, mixed & 0xffc0_0000, mixed & 0x3f_ffff, number % 3][kind as usize]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: scaled(10, 1), ..ProptestConfig::default() })]
        #[test]
        fn it_is_a_set_of_numbers(
            kind in 0..4u8,
            steps in prop::collection::vec((any::<bool>(), 0..6000u32, 1..scaled(2000u32, 60)), 1..scaled(30, 6)),
        ) {
            let mut segments = Segments::default();
            let mut model = BTreeSet::new();
            // What all hash alike takes long to look through.
            let scale = if kind == 3 { 20 } else { 1 };
            for (insert, from, count) in steps {
                for number in (from / scale)..((from + count) / scale) {
                    let hash = hash_of(kind, number);
                    let known = segments.find(hash, |other| other == number);
                    prop_assert_eq!(known.is_some(), model.contains(&number));
                    match insert {
                        true if model.insert(number) => segments.insert(hash, number),
                        true => {}
                        false => prop_assert_eq!(segments.remove(hash, number), model.remove(&number)),
                    }
                }
                segments.check_invariants();
                prop_assert_eq!(segments.len(), model.len());
            }
            for number in 0..scaled(8000, 400) {
                let found = segments.find(hash_of(kind, number), |other| other == number);
                prop_assert_eq!(found.is_some(), model.contains(&number));
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes Miri too long")]
    fn many_numbers_are_in_many_small_tables() {
        let mut segments = Segments::default();
        let hash = |n: u32| n.wrapping_mul(0x9e37_79b1);
        let largest = |segments: &Segments| segments.segments.iter().map(|segment| segment.room).max();
        for n in 0..400_000 {
            segments.insert(hash(n), n);
        }
        assert!(largest(&segments) <= Some(4 * 400_000 / SEGMENTS), "{:?}", largest(&segments));
        for n in 0..400_000 {
            assert!(segments.remove(hash(n), n));
        }
        segments.check_invariants();
        assert!(segments.len() == 0 && segments.segments.len() == 1 && largest(&segments) <= Some(KEPT));
    }
}
