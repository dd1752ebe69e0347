//! The databases as commands see them: ended keys are never seen, and every change is reported.

use crate::engine::change::{Change, Changes, Effect, Event};
use crate::engine::error::{Error, Result};
use crate::engine::time::Now;
use crate::store::dict::{KeyHash, Place};
use crate::store::entry::{Entry, EntryRef, Form, NewValue, ValueRef};
use crate::store::hash::Limits;
use crate::store::space::{Due, Space};
use crate::store::value::Value;

/// What becomes of a key's deadline when its value is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ttl {
    /// It has none any more.
    Clear,
    /// It stays.
    Keep,
    /// It is this, in monotonic milliseconds.
    At(u64),
}

/// Counters of `INFO stats`.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyspaceStats {
    /// Lookups that found their key.
    pub hits: u64,
    /// Lookups that did not.
    pub misses: u64,
    /// Keys that reached their deadline.
    pub expired: u64,
    /// Fields of hashes that reached theirs.
    pub expired_fields: u64,
    /// The longest that a key's end came after its deadline, where nobody looked at the key before; milliseconds.
    pub late_ms_max: u64,
    /// Keys that were evicted.
    pub evicted: u64,
}

/// All databases and who is told of their changes.
pub struct Keyspace {
    pub(crate) space: Space,
    /// The dictionary of each database: `SWAPDB` exchanges two numbers.
    numbers: Vec<u16>,
    /// Collects changes.
    pub changes: Changes,
    /// Counters.
    pub stats: KeyspaceStats,
    /// How far a hash may grow as one buffer.
    pub hash_limits: Limits,
    /// `DEBUG SET-ACTIVE-EXPIRE`: off, keys end only when they are looked at.
    pub active_expire: bool,
}

impl Keyspace {
    /// `count` empty databases.
    pub fn new(count: usize, seed: u64, now: Now) -> Self {
        Keyspace {
            space: Space::new(count, seed, now.mono_ms()),
            numbers: (0..count as u16).collect(),
            changes: Changes::default(),
            stats: KeyspaceStats::default(),
            hash_limits: Limits::default(),
            active_expire: true,
        }
    }

    /// Number of databases.
    pub fn databases(&self) -> usize {
        self.numbers.len()
    }

    /// One database at one instant.
    #[inline]
    pub fn db(&mut self, index: u32, now: Now) -> Db<'_> {
        let dict = self.numbers[index as usize] as usize;
        Db { keyspace: self, index, dict, now, touch: true }
    }

    /// Asks memory for the slot of a key that is about to be looked up; see [`Keyspace::prefetch_entry`].
    #[inline]
    pub fn prefetch_slot(&self, db: u32, key: &[u8]) -> KeyHash {
        let hash = self.space.hash(key);
        self.space.dict(self.numbers[db as usize] as usize).prefetch_slot(hash);
        hash
    }

    /// Asks memory for the entry of a key whose slot has arrived.
    #[inline]
    pub fn prefetch_entry(&self, db: u32, hash: KeyHash) {
        self.space.dict(self.numbers[db as usize] as usize).prefetch_entry(hash);
    }

    /// Exchanges two databases.
    pub fn swap(&mut self, a: u32, b: u32, now: Now) {
        self.numbers.swap(a as usize, b as usize);
        let event = Event::new(Default::default(), "swapdb");
        self.changes.emit(Change { now, db: a, key: b"", event, effect: Effect::Swap { with: b } });
    }

    /// When the next key or field ends at the earliest, in monotonic milliseconds.
    pub fn next_wake(&self) -> Option<u64> {
        if self.active_expire { self.space.next_wake() } else { None }
    }

    /// Ends what is due and frees what waits for it, at most `budget` steps of either. Stops after a key so that its events can be
    /// published; gives false when there is nothing more to do.
    pub fn advance(&mut self, now: Now, budget: &mut u32) -> bool {
        if self.active_expire
            && let Some(due) = self.space.next_due(now.mono_ms(), budget)
        {
            match due {
                Due::Key { dict, entry } => {
                    let index = self.index_of(dict);
                    self.stats.expired += 1;
                    let late_ms = entry.read().deadline().map_or(0, |deadline| now.mono_ms().saturating_sub(deadline));
                    self.stats.late_ms_max = self.stats.late_ms_max.max(late_ms);
                    self.changes.emit(Change {
                        now,
                        db: index,
                        key: entry.read().key(),
                        event: Event::EXPIRED,
                        effect: Effect::Delete,
                    });
                    self.space.bury(entry);
                }
                Due::Fields { dict, place } => {
                    let index = self.index_of(dict);
                    self.db(index, now).expire_fields(place, budget);
                }
            }
            return true;
        }
        if self.space.has_graves() {
            self.space.free_some(budget);
        }
        false
    }

    /// Bytes of the tables that find keys, without the keys and values themselves.
    pub fn table_bytes(&self) -> usize {
        (0..self.numbers.len()).map(|dict| self.space.dict(dict).allocated()).sum()
    }

    /// Number of timers on the wheel: keys and hashes that have something to end.
    pub fn timers(&self) -> usize {
        self.space.timers()
    }

    /// Whether memory of what was deleted waits to be freed.
    pub fn has_unfreed(&self) -> bool {
        self.space.has_graves()
    }

    fn index_of(&self, dict: usize) -> u32 {
        self.numbers.iter().position(|&n| n as usize == dict).unwrap_or(dict) as u32
    }
}

/// One database at one instant: what handlers work on.
pub struct Db<'a> {
    pub(crate) keyspace: &'a mut Keyspace,
    pub(crate) index: u32,
    pub(crate) dict: usize,
    /// The instant of the running command.
    pub now: Now,
    /// Whether lookups count as accesses (`CLIENT NO-TOUCH`).
    pub touch: bool,
}

impl<'a> Db<'a> {
    /// Number of keys, those included that have ended and were not yet removed.
    pub fn len(&self) -> usize {
        self.keyspace.space.dict(self.dict).len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of keys with a deadline.
    pub fn volatile(&self) -> usize {
        self.keyspace.space.volatile(self.dict)
    }

    /// Number of hashes that have fields with a deadline.
    pub fn volatile_hashes(&self) -> usize {
        self.keyspace.space.volatile_hashes(self.dict)
    }

    /// Mean of the milliseconds that are left to the keys with a deadline, among the first `count` keys; 0 where none has one.
    pub fn sampled_ttl_ms(&self, count: usize) -> u64 {
        let entries = self.keyspace.space.dict(self.dict).iter().take(count);
        let (mut total_ms, mut volatile) = (0u128, 0);
        for deadline in entries.filter_map(EntryRef::deadline) {
            total_ms += u128::from(self.now.left_ms(deadline));
            volatile += 1;
        }
        total_ms.checked_div(volatile).unwrap_or(0) as u64
    }

    /// Where a key is. One that has ended is removed on the way.
    #[inline]
    pub(crate) fn locate(&mut self, key: &[u8]) -> (KeyHash, Option<Place>) {
        let space = &self.keyspace.space;
        let hash = space.hash(key);
        let Some(place) = space.find(self.dict, hash, key) else { return (hash, None) };
        if let Some(deadline) = space.get(self.dict, place).deadline()
            && self.now.reached(deadline)
        {
            self.expire(place);
            return (hash, None);
        }
        if let ValueRef::Boxed(Value::Hash(fields)) = space.get(self.dict, place).value()
            && fields.ended(self.now.mono_ms())
        {
            self.expire_hash(place);
            return (hash, None);
        }
        (hash, Some(place))
    }

    fn expire(&mut self, place: Place) {
        self.keyspace.stats.expired += 1;
        self.drop_key(place, Event::EXPIRED);
    }

    fn drop_key(&mut self, place: Place, event: Event) {
        let entry = self.keyspace.space.remove(self.dict, place);
        self.emit(entry.read().key(), event, Effect::Delete);
        self.keyspace.space.bury(entry);
    }

    #[inline]
    pub(crate) fn emit(&mut self, key: &[u8], event: Event, effect: Effect<'_>) {
        self.keyspace.changes.emit(Change { now: self.now, db: self.index, key, event, effect });
    }

    /// A key without counting it as an access.
    pub fn peek(&mut self, key: &[u8]) -> Option<EntryRef<'_>> {
        let place = self.locate(key).1?;
        Some(self.keyspace.space.get(self.dict, place))
    }

    /// Whether a key is there, without counting it as an access.
    pub fn contains(&mut self, key: &[u8]) -> bool {
        self.locate(key).1.is_some()
    }

    /// A key that a command reads: counts as an access, and as a hit or a miss.
    #[inline]
    pub fn read(&mut self, key: &[u8]) -> Option<EntryRef<'_>> {
        let Some(place) = self.locate(key).1 else {
            self.keyspace.stats.misses += 1;
            self.keyspace.changes.publish(self.index, Event::KEY_MISS, key);
            return None;
        };
        self.keyspace.stats.hits += 1;
        if self.touch {
            let second = self.now.mono_us / 1_000_000;
            self.keyspace.space.get_mut(self.dict, place).touch(second);
        }
        Some(self.keyspace.space.get(self.dict, place))
    }

    /// The string that a command reads, an error where the key holds another type.
    #[inline]
    pub fn string(&mut self, key: &[u8]) -> Result<Option<&[u8]>> {
        match self.read(key) {
            None => Ok(None),
            Some(entry) => entry.bytes().map(Some).ok_or(Error::WRONG_TYPE),
        }
    }

    /// Makes the key hold a string, whatever it held before.
    pub fn put_string(&mut self, key: &[u8], value: &[u8], ttl: Ttl, event: Event) {
        let (hash, place) = self.locate(key);
        self.put_string_at(hash, place, key, value, ttl, event);
    }

    /// As [`Db::put_string`] for a key that was just located.
    pub(crate) fn put_string_at(
        &mut self,
        hash: KeyHash,
        place: Option<Place>,
        key: &[u8],
        value: &[u8],
        ttl: Ttl,
        event: Event,
    ) {
        let deadline = self.put_at(hash, place, key, NewValue::Bytes(value), ttl);
        let deadline = deadline.map(|d| self.now.unix_of(d));
        self.emit(key, event, Effect::SetString { value, deadline });
    }

    /// Makes the key hold a boxed value, whatever it held before.
    pub fn put(&mut self, key: &[u8], value: Box<Value>, ttl: Ttl, event: Event) {
        let (hash, place) = self.locate(key);
        let deadline = self.put_at(hash, place, key, NewValue::Boxed(value), ttl);
        let deadline = deadline.map(|d| self.now.unix_of(d));
        let Some(place) = self.keyspace.space.find(self.dict, hash, key) else { return };
        let Keyspace { space, changes, .. } = &mut *self.keyspace;
        let effect = match space.get(self.dict, place).value() {
            ValueRef::Bytes(value) => Effect::SetString { value, deadline },
            ValueRef::Boxed(Value::Bytes(value)) => Effect::SetString { value, deadline },
            ValueRef::Boxed(value) => Effect::Store { value, deadline },
        };
        changes.emit(Change { now: self.now, db: self.index, key, event, effect });
    }

    fn put_at(&mut self, hash: KeyHash, place: Option<Place>, key: &[u8], value: NewValue<'_>, ttl: Ttl) -> Option<u64> {
        let space = &mut self.keyspace.space;
        let deadline = match (ttl, place) {
            (Ttl::At(deadline), _) => Some(deadline),
            (Ttl::Keep, Some(place)) => space.get(self.dict, place).deadline(),
            _ => None,
        };
        let second = self.now.mono_us / 1_000_000;
        let place = match place {
            Some(place) => {
                space.replace(self.dict, place, value, deadline);
                place
            }
            None => {
                let place = space.insert(self.dict, hash, key, value, deadline);
                self.keyspace.changes.publish(self.index, Event::NEW, key);
                place
            }
        };
        self.keyspace.space.get_mut(self.dict, place).touch(second);
        deadline
    }

    /// Removes a key; false where there was none.
    pub fn delete(&mut self, key: &[u8], event: Event) -> bool {
        let Some(place) = self.locate(key).1 else { return false };
        self.drop_key(place, event);
        true
    }

    /// Takes a key out, reporting it as deleted, and gives its entry (without timer, but with its deadline).
    pub fn take(&mut self, key: &[u8], event: Event) -> Option<Entry> {
        let place = self.locate(key).1?;
        let entry = self.keyspace.space.remove(self.dict, place);
        self.emit(key, event, Effect::Delete);
        Some(entry)
    }

    /// Sets or clears a key's deadline (monotonic milliseconds); false where there is no such key.
    pub fn set_deadline(&mut self, key: &[u8], deadline: Option<u64>, event: Event) -> bool {
        let Some(place) = self.locate(key).1 else { return false };
        self.keyspace.space.set_deadline(self.dict, place, deadline);
        let deadline = deadline.map(|d| self.now.unix_of(d));
        self.emit(key, event, Effect::Deadline(deadline));
        true
    }

    /// Reports a second event for a change that was already reported, such as `expire` for a `SET` with a lease.
    pub fn also(&mut self, key: &[u8], event: Event) {
        self.emit(key, event, Effect::None);
    }

    /// Notes how Redis would keep a string whose bytes do not tell; a new value begins as [`Form::Shortest`].
    pub fn set_form(&mut self, key: &[u8], form: Form) {
        if form != Form::Shortest
            && let Some(place) = self.locate(key).1
        {
            self.keyspace.space.get_mut(self.dict, place).set_form(form);
        }
    }

    /// Changes a key's string in place, making an empty one first where there is no such key; gives the new length. The key must not
    /// hold another type.
    pub fn edit_string(&mut self, key: &[u8], event: Event, edit: impl FnOnce(&mut Vec<u8>)) -> usize {
        let (hash, place) = self.locate(key);
        if let Some(place) = place
            && let Some(Value::Bytes(bytes)) = self.keyspace.space.get_mut(self.dict, place).boxed()
        {
            edit(bytes);
            let Keyspace { space, changes, .. } = &mut *self.keyspace;
            let entry = space.get(self.dict, place);
            let (value, deadline) = (entry.bytes().unwrap_or(b""), entry.deadline().map(|d| self.now.unix_of(d)));
            let effect = Effect::SetString { value, deadline };
            changes.emit(Change { now: self.now, db: self.index, key, event, effect });
            return value.len();
        }
        let old = place.and_then(|place| self.keyspace.space.get(self.dict, place).bytes());
        let mut bytes = old.map(<[u8]>::to_vec).unwrap_or_default();
        edit(&mut bytes);
        self.put_string_at(hash, place, key, &bytes, Ttl::Keep, event);
        if place.is_some() {
            self.set_form(key, Form::Raw);
        }
        bytes.len()
    }

    /// Empties the database in one step; gives the number of keys.
    pub fn flush(&mut self) -> usize {
        let len = self.keyspace.space.clear(self.dict);
        let event = Event::new(Default::default(), "flushdb");
        self.emit(b"", event, Effect::Flush);
        len
    }

    /// Visits keys from a cursor on; see [`crate::store::dict::Dict::scan`]. Keys that have ended are passed over.
    pub fn scan(&self, cursor: u64, count: usize, mut visit: impl FnMut(EntryRef<'_>)) -> u64 {
        self.keyspace.space.dict(self.dict).scan(cursor, count, |entry| {
            if !entry.deadline().is_some_and(|d| self.now.reached(d)) {
                visit(entry);
            }
        })
    }

    /// The `index`-th key, for `index` below [`Db::len`], whether it has ended or not.
    pub fn nth(&self, index: usize) -> Option<EntryRef<'_>> {
        self.keyspace.space.dict(self.dict).nth(index)
    }
}
