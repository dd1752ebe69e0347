//! All databases, the wheel that expires their keys on time, and the deleted values that are still to be freed, in steps.
//!
//! The wheel's tokens name entries by address. This is sound because an entry with a timer is either in a dictionary or in the
//! list of unfreed values, and its timer is cancelled before it is freed.

mod counts;
mod freeing;
mod invariants;
mod key_cache;
mod names;

use std::cell::Cell;

use counts::Counts;
use freeing::Unfreed;
use key_cache::{CachedHash, CachedPlace, NO_DICT};
use names::Names;

use crate::lock::Deletion;
use crate::store::dict::{Dict, KeyHash, KeyHasher, Place};
use crate::store::entry::{Entry, EntryMut, EntryRef, NewValue, ValueRef};
use crate::store::slots::SlotIndex;
use crate::store::values::value::Value;
use crate::store::wheel::Wheel;
use crate::store::writers::Writers;

const ADDRESS_MASK: u64 = (1 << 48) - 1;
const FIELDS: u64 = 1 << 63;

/// A timer that went off.
#[derive(Debug)]
pub enum Due {
    /// This key expired; its entry was removed from the dictionary.
    Key {
        /// Number of the dictionary.
        dict: usize,
        /// The entry, without a timer.
        entry: Entry,
    },
    /// Fields of this hash may have expired.
    Fields {
        /// Number of the dictionary.
        dict: usize,
        /// The place of the hash.
        place: Place,
    },
}

/// The databases. Dictionaries are identified by number, which `SWAPDB` does not change.
pub struct Space {
    dicts: Vec<Dict>,
    /// Counts of keys, by dictionary.
    counts: Vec<Counts>,
    hasher: KeyHasher,
    /// The key whose hash is cached.
    hashed: CachedHash,
    /// Whether the place of that key is cached, too.
    caches_place: bool,
    /// The dictionary that was searched for it last, [`NO_DICT`] if it must be searched for again, and where it was found there,
    /// if it was.
    searched_dict: Cell<usize>,
    found: Cell<Option<CachedPlace>>,
    wheel: Wheel,
    unfreed: Vec<Unfreed>,
    /// Locks from cleared dictionaries whose holders are still to be notified.
    lost: Vec<(Deletion, Entry)>,
    /// Number of values and entries that are still to be freed, and of those that were freed.
    unfreed_len: usize,
    freed: u64,
    /// The keys of the first dictionary by cluster slot, if they are indexed.
    slots: Option<Box<SlotIndex>>,
    /// Who wrote entries with noted writers.
    writers: Writers,
    /// In tests of key positions, the names that were looked up or added.
    pub(crate) names: Names,
}

impl Space {
    /// Creates `count` empty databases.
    pub fn new(count: usize, seed: u64, now_ms: u64) -> Self {
        Space {
            dicts: (0..count).map(|_| Dict::default()).collect(),
            counts: vec![Counts::default(); count],
            hasher: KeyHasher::new(seed),
            hashed: CachedHash::NONE,
            caches_place: false,
            searched_dict: Cell::new(NO_DICT),
            found: Cell::new(None),
            wheel: Wheel::new(now_ms),
            unfreed: Vec::new(),
            lost: Vec::new(),
            unfreed_len: 0,
            freed: 0,
            slots: None,
            writers: Writers::default(),
            names: Names::default(),
        }
    }

    /// Notes the last 32 bits of the number of the client that wrote the inline value there; 0 for nobody.
    #[inline]
    pub fn note_writer(&mut self, dict: usize, place: Place, writer: u32) {
        let mut entry = self.dicts[dict].get_mut(place);
        if writer == 0 {
            entry.forget_writer();
        } else if entry.note_writer() {
            self.writers.note(entry.read().address(), writer);
        }
    }

    /// As [`Space::note_writer`] for an entry that is about to be inserted, and a writer other than 0.
    #[inline]
    pub fn note_writer_of_new(&mut self, entry: &mut Entry, writer: u32) {
        if entry.change().note_writer() {
            self.writers.note(entry.read().address(), writer);
        }
    }

    /// The last 32 bits of the number of the client that wrote the value of a key in these databases, if it is noted.
    pub fn writer_of(&self, entry: EntryRef<'_>) -> Option<u32> {
        entry.has_writer().then(|| self.writers.of(entry.address()))?
    }

    /// Begins to index the keys of the first dictionary, which must be empty, by slot.
    pub fn index_slots(&mut self, slots: u16, slot_of: fn(&[u8]) -> u16) {
        debug_assert!(self.dicts.iter().all(Dict::is_empty), "keys that the index would not have");
        self.slots = Some(Box::new(SlotIndex::new(slots, slot_of)));
    }

    /// Number of keys in a slot, including expired ones; 0 without an index.
    pub fn slot_len(&self, slot: u16) -> usize {
        self.slots.as_ref().map_or(0, |index| index.count(slot))
    }

    /// Visits the keys of a slot until `visit` returns false; none without an index.
    pub fn visit_slot(&self, slot: u16, mut visit: impl FnMut(EntryRef<'_>) -> bool) {
        let Some(index) = &self.slots else { return };
        let mut go_on = true;
        for hash in index.hashes(slot) {
            // A key with this hash exists, so the scan visits exactly the keys with this hash.
            self.dicts[0].scan(u64::from(hash), 1, |entry| {
                go_on = go_on && (index.slot_of(entry.key()) != slot || visit(entry));
            });
            if !go_on {
                return;
            }
        }
    }

    /// Bytes of the index by slot.
    pub fn slot_bytes(&self) -> usize {
        self.slots.as_ref().map_or(0, |index| index.allocated())
    }

    /// The hasher, also for tables inside values.
    pub fn hasher(&self) -> &KeyHasher {
        &self.hasher
    }

    /// A dictionary, for reading.
    pub fn dict(&self, dict: usize) -> &Dict {
        &self.dicts[dict]
    }

    /// Number of a dictionary's keys with a deadline.
    pub fn volatile(&self, dict: usize) -> usize {
        self.counts[dict].volatile
    }

    /// Number of a dictionary's hashes with expiring fields.
    pub fn volatile_hashes(&self, dict: usize) -> usize {
        self.counts[dict].hashes
    }

    /// Number of a dictionary's keys, or only of those with a deadline, except locks, semaphores, latches and guards.
    pub fn plain(&self, dict: usize, volatile: bool) -> usize {
        let counts = self.counts[dict];
        if volatile { counts.volatile - counts.volatile_natives } else { self.dicts[dict].len() - counts.natives }
    }

    /// A key with a deadline in any dictionary, except locks, semaphores, latches and guards; see [`Wheel::sample`].
    pub fn sample_volatile(&self, from: u64, steps: u32) -> Option<(usize, KeyHash, Place)> {
        self.wheel.sample(from, steps, |token| {
            if token & FIELDS != 0 {
                return None;
            }
            let (address, dict) = (token & ADDRESS_MASK, (token >> 48) as usize & 0x7fff);
            // SAFETY: a timer's entry is alive: see the module documentation.
            let entry = unsafe { EntryRef::at(address) };
            if entry.is_native() {
                return None;
            }
            let hash = self.hasher.hash(entry.key());
            // An entry of a cleared dictionary is in no dictionary.
            self.dicts[dict].find_address(hash, address).map(|place| (dict, hash, place))
        })
    }

    /// Number of dictionaries.
    pub fn dicts(&self) -> usize {
        self.dicts.len()
    }

    /// The place of a key, expired or not.
    #[inline]
    pub fn find(&self, dict: usize, hash: KeyHash, key: &[u8]) -> Option<Place> {
        self.names.note(key);
        self.dicts[dict].find(hash, key)
    }

    /// The place of a key, expired or not, and its entry.
    #[inline(always)]
    pub fn find_entry(&self, dict: usize, hash: KeyHash, key: &[u8]) -> Option<(Place, EntryRef<'_>)> {
        self.names.note(key);
        self.dicts[dict].find_entry(hash, key)
    }

    /// The entry at a place.
    #[inline]
    pub fn get(&self, dict: usize, place: Place) -> EntryRef<'_> {
        self.dicts[dict].get(place)
    }

    /// The entry at a place, to change its value or access clock. Deadlines are changed by [`Space::set_deadline`]. A hash must
    /// remain a hash, because its timer names this entry.
    #[inline]
    pub fn get_mut(&mut self, dict: usize, place: Place) -> EntryMut<'_> {
        self.dicts[dict].get_mut(place)
    }

    /// Adds a key that does not exist.
    pub fn insert(&mut self, dict: usize, hash: KeyHash, key: &[u8], value: NewValue<'_>, deadline: Option<u64>) -> Place {
        self.insert_entry(dict, hash, Entry::new(key, value, deadline))
    }

    /// Adds a new entry, whose key does not exist.
    pub fn insert_entry(&mut self, dict: usize, hash: KeyHash, mut entry: Entry) -> Place {
        self.names.note(entry.read().key());
        let (new, address) = (entry.read(), entry.read().address());
        assert!(new.timer() == 0, "another entry's timer");
        self.searched_dict.set(NO_DICT);
        let deadline = new.deadline();
        self.counts[dict].add(new, deadline.is_some());
        if let Some(deadline) = deadline {
            let timer = self.wheel.insert(deadline, token(dict, address));
            entry.change().set_timer(timer);
        }
        if dict == 0
            && let Some(index) = &mut self.slots
        {
            index.add(hash, entry.read().key());
        }
        let boxed = entry.read().is_boxed();
        let place = self.dicts[dict].insert(hash, entry);
        if boxed {
            self.arm_fields(dict, place);
        }
        place
    }

    /// Replaces the value and the deadline of the key there.
    #[inline]
    pub fn replace(&mut self, dict: usize, place: Place, value: NewValue<'_>, deadline: Option<u64>) {
        self.replace_where(dict, place, value, deadline, |_, _| true);
    }

    /// As [`Space::replace`], if `may` accepts the present entry. Returns whether it was replaced.
    #[inline(always)]
    pub fn replace_where(
        &mut self,
        dict: usize,
        place: Place,
        value: NewValue<'_>,
        deadline: Option<u64>,
        may: impl FnOnce(EntryRef<'_>, &NewValue<'_>) -> bool,
    ) -> bool {
        let mut entry = self.dicts[dict].get_mut(place);
        if !may(entry.read(), &value) {
            return false;
        }
        let old = entry.read().deadline();
        let overwritten = match value {
            NewValue::Bytes(bytes) => entry.overwrite(bytes),
            NewValue::Grant(bytes) => entry.overwrite_grant(bytes),
            NewValue::Boxed(_) | NewValue::Count { .. } => false,
        };
        if overwritten && entry.set_deadline(deadline) {
            arm(&mut self.wheel, &mut self.counts[dict], dict, entry, old);
        } else {
            self.replace_entry(dict, place, value, deadline, old);
        }
        true
    }

    /// Replaces the entry there, whose deadline was `old`, by a new one.
    #[inline(never)]
    fn replace_entry(&mut self, dict: usize, place: Place, value: NewValue<'_>, deadline: Option<u64>, old: Option<u64>) {
        let current = self.dicts[dict].get(place);
        let (timer, access) = (current.timer(), current.access());
        let mut entry = Entry::new(current.key(), value, deadline);
        entry.change().set_timer(timer);
        entry.change().touch(u64::from(access));
        let mut old_entry = self.exchange(dict, place, entry);
        old_entry.change().set_timer(0);
        self.counts[dict].hashes -= usize::from(field_timer(old_entry.read()) != 0);
        self.counts[dict].replaced(old_entry.read(), self.dicts[dict].get(place), old.is_some());
        if timer != 0 {
            let token = token(dict, self.dicts[dict].get(place).address());
            self.wheel.set_token(timer, token);
        }
        self.free_later(old_entry);
        self.arm(dict, place, old);
        self.arm_fields(dict, place);
    }

    fn arm(&mut self, dict: usize, place: Place, old: Option<u64>) {
        arm(&mut self.wheel, &mut self.counts[dict], dict, self.dicts[dict].get_mut(place), old);
    }

    /// Sets or clears the deadline of the key there.
    pub fn set_deadline(&mut self, dict: usize, place: Place, deadline: Option<u64>) {
        let mut entry = self.dicts[dict].get_mut(place);
        let old = entry.read().deadline();
        if !entry.set_deadline(deadline) {
            // The deadline is too far away for a short head.
            let long = self.take_for_rebuild(dict, place).with_deadline(deadline);
            drop(self.exchange(dict, place, long));
            let entry = self.dicts[dict].get(place);
            let (timer, fields, address) = (entry.timer(), field_timer(entry), entry.address());
            if timer != 0 {
                self.wheel.set_token(timer, token(dict, address));
            }
            if fields != 0 {
                self.wheel.set_token(fields, token(dict, address) | FIELDS);
            }
        }
        self.arm(dict, place, old);
    }

    /// Replaces the entry there by one with the same key. Returns the old one.
    fn exchange(&mut self, dict: usize, place: Place, entry: Entry) -> Entry {
        self.searched_dict.set(NO_DICT);
        self.dicts[dict].replace(place, entry)
    }

    /// Takes an entry out of its place, and leaves an empty one with the same key.
    fn take_for_rebuild(&mut self, dict: usize, place: Place) -> Entry {
        let empty = Entry::new(self.dicts[dict].get(place).key(), NewValue::Bytes(&[]), None);
        self.exchange(dict, place, empty)
    }

    /// Removes a key. Returns its entry, without a timer.
    #[inline]
    pub fn remove(&mut self, dict: usize, place: Place) -> Entry {
        self.searched_dict.set(NO_DICT);
        let mut entry = self.dicts[dict].remove(place);
        self.disarm(dict, &mut entry);
        if self.slots.is_some() && dict == 0 {
            self.unindex_slot(entry.read().key());
        }
        entry
    }

    /// Removes a key, which was removed from the first dictionary, from the index by slot.
    #[cold]
    fn unindex_slot(&mut self, key: &[u8]) {
        let Some(index) = &mut self.slots else { return };
        let (hash, slot) = (self.hasher.hash(key), index.slot_of(key));
        let twin = self.dicts[0].find_with_hash(hash, |entry| index.slot_of(entry.key()) == slot);
        index.remove(hash, slot, twin.is_some());
    }

    #[inline]
    fn disarm(&mut self, dict: usize, entry: &mut Entry) {
        let timer = entry.read().timer();
        if timer != 0 {
            self.wheel.cancel(timer);
            entry.change().set_timer(0);
        }
        self.counts[dict].remove(entry.read());
        if entry.read().is_boxed() {
            self.counts[dict].hashes -= usize::from(field_timer(entry.read()) != 0);
            self.disarm_fields(entry);
        }
    }

    fn disarm_fields(&mut self, entry: &mut Entry) {
        if let Some(Value::Hash(hash)) = entry.change().boxed() {
            let timer = hash.field_timer();
            if timer != 0 {
                self.wheel.cancel(timer);
                hash.set_field_timer(0);
            }
        }
    }

    /// Updates the wheel after the fields of the hash there changed: sets, moves or cancels the timer of its earliest field
    /// deadline. Does nothing for other values.
    #[inline(never)]
    pub fn arm_fields(&mut self, dict: usize, place: Place) {
        let address = self.dicts[dict].get(place).address();
        let Some(Value::Hash(hash)) = self.dicts[dict].get_mut(place).boxed() else { return };
        let timer = hash.field_timer();
        if timer != 0 {
            self.wheel.cancel(timer);
        }
        let armed = hash.next_field_deadline().map_or(0, |d| self.wheel.insert(d, token(dict, address) | FIELDS));
        hash.set_field_timer(armed);
        self.counts[dict].hashes += usize::from(armed != 0);
        self.counts[dict].hashes -= usize::from(timer != 0);
    }

    /// The time of the next [`Space::take_due`].
    pub fn next_wake(&self) -> Option<u64> {
        self.wheel.next_wake()
    }

    /// Number of timers.
    pub fn timers(&self) -> usize {
        self.wheel.len()
    }

    /// The next event that is due; each step on the wheel takes one from the budget. `None` if nothing more is due or the budget
    /// is used up.
    #[inline]
    pub fn take_due(&mut self, now_ms: u64, budget: &mut u32) -> Option<Due> {
        loop {
            let token = self.wheel.poll(now_ms, budget, |token| {
                // SAFETY: a timer's entry is alive: see the module documentation.
                let entry = unsafe { EntryRef::at(token & ADDRESS_MASK) };
                if token & FIELDS == 0 {
                    entry.deadline().unwrap_or(0)
                } else {
                    match entry.value() {
                        ValueRef::Boxed(Value::Hash(hash)) => hash.next_field_deadline().unwrap_or(0),
                        _ => 0,
                    }
                }
            })?;
            let (address, dict) = (token & ADDRESS_MASK, (token >> 48) as usize & 0x7fff);
            // SAFETY: the entry of a timer that went off is alive: see the module documentation.
            let hash = self.hasher.hash(unsafe { EntryRef::at(address) }.key());
            let place = self.dicts[dict].find_address(hash, address);
            if token & FIELDS == 0 {
                let Some(place) = place else {
                    // Its dictionary was cleared, and it is about to be freed.
                    // SAFETY: the entry is alive, in a dictionary that is to be freed, and nothing else refers to it now.
                    unsafe { EntryMut::at(address) }.set_timer(0);
                    continue;
                };
                self.dicts[dict].get_mut(place).set_timer(0);
                return Some(Due::Key { dict, entry: self.remove(dict, place) });
            }
            // SAFETY: the entry of a timer that went off is alive (see the module documentation), and nothing else refers to it
            // now.
            if let Some(Value::Hash(hash)) = unsafe { EntryMut::at(address) }.boxed() {
                hash.set_field_timer(0);
            }
            if let Some(place) = place {
                self.counts[dict].hashes -= 1;
                return Some(Due::Fields { dict, place });
            }
        }
    }
}

/// Updates the wheel after the deadline of an entry changed from `old`: a timer may fire too early (it is then set again), never
/// too late. The dictionary, whose keys are counted, has the entry or is about to get it.
#[inline(always)]
fn arm(wheel: &mut Wheel, counts: &mut Counts, dict: usize, mut entry: EntryMut<'_>, old: Option<u64>) {
    let (new, timer, address) = (entry.read().deadline(), entry.read().timer(), entry.read().address());
    if old.is_some() != new.is_some() {
        counts.deadline_changed(entry.read(), (old.is_some(), new.is_some()));
    }
    let armed = match new {
        None => {
            if timer != 0 {
                wheel.cancel(timer);
            }
            0
        }
        Some(deadline) if timer == 0 => wheel.insert(deadline, token(dict, address)),
        Some(deadline) if old.is_some_and(|old| deadline >= old) => timer,
        Some(deadline) => {
            wheel.cancel(timer);
            wheel.insert(deadline, token(dict, address))
        }
    };
    if armed != timer {
        entry.set_timer(armed);
    }
}

fn token(dict: usize, address: u64) -> u64 {
    ((dict as u64) << 48) | address
}

fn field_timer(entry: EntryRef<'_>) -> u32 {
    if let ValueRef::Boxed(Value::Hash(hash)) = entry.value() { hash.field_timer() } else { 0 }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
