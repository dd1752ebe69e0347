//! How commands look keys up, and visit them: what counts as an access, as a hit or as a miss.

use crate::keyspace::change::Event;
use crate::keyspace::databases::{Db, ended};
use crate::store::entry::EntryRef;

impl Db<'_> {
    /// A key; does not count as an access.
    pub fn peek(&mut self, key: &[u8]) -> Option<EntryRef<'_>> {
        let place = self.locate(key).1?;
        Some(self.keyspace.space.get(self.dict, place))
    }

    /// Whether a key exists; does not count as an access.
    pub fn contains(&mut self, key: &[u8]) -> bool {
        self.locate(key).1.is_some()
    }

    /// A key that a command reads. Counts as an access, and as a hit or a miss.
    #[inline]
    pub fn read(&mut self, key: &[u8]) -> Option<EntryRef<'_>> {
        let Some(place) = self.locate_here(key).1 else {
            self.note_lookup(key, false);
            return None;
        };
        let counted = self.keyspace.lru.counted;
        if counted {
            self.touch(place);
        }
        let second = self.now.second();
        let mut entry = self.keyspace.space.get_mut(self.dict, place);
        if self.touch && !counted {
            entry.touch(second);
        }
        self.keyspace.stats.hits += 1;
        Some(entry.into_ref())
    }

    /// A key that a command queries without using its value. Counts as a hit or a miss, but not as an access.
    pub fn look(&mut self, key: &[u8]) -> Option<EntryRef<'_>> {
        let place = self.locate(key).1;
        self.note_lookup(key, place.is_some());
        Some(self.keyspace.space.get(self.dict, place?))
    }

    /// As [`Db::look`], for how a key is stored: publishes no event for a miss.
    pub fn inspect(&mut self, key: &[u8]) -> Option<EntryRef<'_>> {
        let place = self.locate(key).1;
        self.count_lookup(place.is_some());
        Some(self.keyspace.space.get(self.dict, place?))
    }

    /// Counts a lookup and publishes a miss.
    #[inline]
    pub(crate) fn note_lookup(&mut self, key: &[u8], found: bool) {
        self.count_lookup(found);
        if !found {
            self.keyspace.changes.publish(self.index, Event::KEY_MISS, key);
        }
    }

    #[inline]
    fn count_lookup(&mut self, found: bool) {
        let stats = &mut self.keyspace.stats;
        *(if found { &mut stats.hits } else { &mut stats.misses }) += 1;
    }

    /// Visits keys from a cursor on; see [`crate::store::dict::Dict::scan`]. Skips expired keys.
    pub fn scan(&self, cursor: u64, count: usize, mut visit: impl FnMut(EntryRef<'_>)) -> u64 {
        self.keyspace.space.dict(self.dict).scan(cursor, count, |entry| {
            if !ended(entry, self.now) {
                visit(entry);
            }
        })
    }

    /// Number of keys in a cluster slot, in a database that is indexed by slot. Includes expired keys that are not removed yet.
    pub fn slot_len(&self, slot: u16) -> usize {
        self.keyspace.space.slot_len(slot)
    }

    /// Visits the keys of a cluster slot until `visit` returns false. Skips expired keys.
    pub fn visit_slot(&self, slot: u16, mut visit: impl FnMut(EntryRef<'_>) -> bool) {
        self.keyspace.space.visit_slot(slot, |entry| ended(entry, self.now) || visit(entry));
    }

    /// The `index`-th key, for `index` below [`Db::len`]; it may have expired.
    pub fn nth(&self, index: usize) -> Option<EntryRef<'_>> {
        self.keyspace.space.dict(self.dict).nth(index)
    }
}
