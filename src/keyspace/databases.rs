//! The databases as commands see them: expired keys are never visible, and every change is reported.

mod ahead;
mod reading;
mod strings;

pub use ahead::Ahead;

use crate::base::error::{Error, Result};
use crate::base::ids::Key;
use crate::base::time::Now;
use crate::keyspace::change::{Change, Changes, Effect, Event};
use crate::keyspace::eviction::Evictor;
use crate::keyspace::lru::AccessClock;
use crate::keyspace::natives::may_replace;
use crate::lock::Deletion;
use crate::store::dict::{KeyHash, KeyHasher, Place};
use crate::store::entry::{Entry, EntryRef, Form, NewValue, ValueRef};
use crate::store::space::{Due, Space};
use crate::store::values::hash::Hash;
use crate::store::values::hash::Limits;
use crate::store::values::list;
use crate::store::values::stream::BlockLimits;
use crate::store::values::value::Value;
use crate::store::values::zset;
use crate::store::wheel::TIMER_BYTES;

/// What happens to a key's deadline when its value is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ttl {
    /// It is cleared.
    Clear,
    /// It stays.
    Keep,
    /// It becomes this, in monotonic milliseconds.
    At(u64),
}

/// Counters of `INFO stats`.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyspaceStats {
    /// Lookups that found their key.
    pub hits: u64,
    /// Lookups that missed.
    pub misses: u64,
    /// Keys that expired.
    pub expired: u64,
    /// Hash fields that expired.
    pub expired_fields: u64,
    /// The longest delay between the deadline of a key and its active expiry, in milliseconds.
    pub late_ms_max: u64,
    /// Keys that were evicted.
    pub evicted: u64,
}

/// All databases, and the observers of their changes.
pub struct Keyspace {
    pub(crate) space: Space,
    /// The dictionary of each database. `SWAPDB` exchanges two entries.
    pub(crate) numbers: Vec<u16>,
    /// Collects changes.
    pub changes: Changes,
    /// Counters.
    pub stats: KeyspaceStats,
    /// Records uses of keys, for eviction and `OBJECT`.
    pub lru: AccessClock,
    /// Chooses the keys to evict when memory is used up.
    pub evictor: Evictor,
    /// Up to which size a hash is one buffer.
    pub hash_limits: Limits,
    /// Up to which size a list is one buffer.
    pub list_limits: list::Limits,
    /// Up to which size a sorted set is one buffer.
    pub zset_limits: zset::Limits,
    /// Expired keys are not removed, though they are invisible: during `CLIENT PAUSE`.
    pub keep_expired: bool,
    /// Up to which size a set stays in its compact forms.
    pub set_limits: crate::store::values::set::Limits,
    /// The maximum size of a block of a stream.
    pub stream_limits: BlockLimits,
    /// Whether the keys may include locks, semaphores, latches or guards.
    pub has_natives: bool,
    /// Whether overdue leases may be unsettled: commands must settle those of their own keys.
    pub leases_overdue: bool,
    /// `DEBUG SET-ACTIVE-EXPIRE`: if off, keys expire only when they are accessed.
    pub active_expire: bool,
}

impl Keyspace {
    /// Creates `count` empty databases.
    pub fn new(count: usize, seed: u64, now: Now) -> Self {
        Keyspace {
            space: Space::new(count, seed, now.mono_ms()),
            numbers: (0..count as u16).collect(),
            changes: Changes::new(seed ^ 0x2545_f491_4f6c_dd1d),
            stats: KeyspaceStats::default(),
            lru: AccessClock::new(seed ^ 0x94d0_49bb_1331_11eb),
            evictor: Evictor::default(),
            hash_limits: Limits::default(),
            list_limits: list::Limits::default(),
            zset_limits: zset::Limits::default(),
            keep_expired: false,
            set_limits: Default::default(),
            stream_limits: BlockLimits::default(),
            has_natives: false,
            leases_overdue: false,
            active_expire: true,
        }
    }

    /// The hasher for names of fields and members.
    pub fn hasher(&self) -> &KeyHasher {
        self.space.hasher()
    }

    /// Number of databases.
    pub fn databases(&self) -> usize {
        self.numbers.len()
    }

    /// One database at one instant.
    #[inline]
    pub fn db(&mut self, index: u32, now: Now) -> Db<'_> {
        let dict = self.numbers[index as usize] as usize;
        Db { keyspace: self, index, dict, now, touch: true, writer: 0 }
    }

    /// Prefetches for later lookups in a database.
    #[inline]
    pub fn ahead(&self, db: u32) -> Ahead<'_> {
        Ahead { hasher: self.space.hasher(), dict: self.space.dict(self.numbers[db as usize] as usize) }
    }

    /// Records the hash of a request's key, which was computed ahead, until [`Keyspace::uncache_hash`]. The request's bytes must
    /// not move until then.
    #[inline]
    pub fn cache_hash(&mut self, key: &[u8], hash: KeyHash) {
        self.space.cache_hash(key, hash);
    }

    /// Must be called at the end of the request.
    #[inline]
    pub fn uncache_hash(&mut self) {
        self.space.uncache_hash();
    }

    /// When a key ends or has ended, in monotonic milliseconds, without touching it: `None` if there is no such key, `u64::MAX`
    /// if it never ends.
    pub(crate) fn end_of(&self, db: u32, key: &[u8]) -> Option<u64> {
        let dict = self.numbers[db as usize] as usize;
        let place = self.space.find(dict, self.space.hash(key), key)?;
        let entry = self.space.get(dict, place);
        let fields_end = if let ValueRef::Boxed(Value::Hash(hash)) = entry.value() { hash.end() } else { None };
        let never = u64::MAX;
        Some(entry.deadline().unwrap_or(never).min(fields_end.unwrap_or(never)))
    }

    /// Exchanges two databases.
    pub fn swap(&mut self, a: u32, b: u32, now: Now) {
        if self.changes.has_key_observers() {
            self.touch_swapped(a, b, now);
        }
        self.numbers.swap(a as usize, b as usize);
        // Reported before the changes of locks that follow from the swap, because these name databases by their new indexes.
        let event = Event::new(Default::default(), "swapdb");
        self.changes.emit(Change { now, db: a, key: b"", event, effect: Effect::Swap { with: b } });
        self.with_locks(now, |locks, keys| locks.swapped(keys, now, a, b));
    }

    /// Moves a key to another name or another database, and replaces the key there. Returns false if the source does not exist.
    /// `events` are the events of the source and of the destination. Fails, and changes nothing, if either key is native.
    pub fn relocate(&mut self, now: Now, from: Key<'_>, to: Key<'_>, events: (Event, Event)) -> Result<bool> {
        self.db(from.db, now).check_plain(from.name)?;
        self.db(to.db, now).make_way(to.name)?;
        let before = self.changes.count;
        let mut source = self.db(from.db, now);
        let Some(place) = source.locate(from.name).1 else { return Ok(false) };
        let dict = source.dict;
        let entry = self.space.remove(dict, place);
        // In Redis's order of events: it adds the destination before it removes the source.
        self.changes.publish(to.db, Event::NEW, to.name);
        self.db(from.db, now).emit(from.name, events.0, Effect::Delete);
        self.db(to.db, now).store_moved(to.name, entry, events.1);
        self.changes.count_as(before, 1);
        Ok(true)
    }

    /// When [`Keyspace::expire_due`] has work next, in monotonic milliseconds: a key or a field expires. 0 if memory waits to be
    /// freed.
    #[inline]
    pub fn next_wake(&self) -> Option<u64> {
        if self.space.has_unfreed() || self.changes.has_retired() || self.changes.has_lost() {
            return Some(0);
        }
        if self.active_expire && !self.keep_expired { self.space.next_wake() } else { None }
    }

    /// Expires what is due, and then frees memory of deleted values, within `budget`. Stops after a key so that its events can be
    /// published. Returns false when there is nothing more to do.
    pub fn expire_due(&mut self, now: Now, budget: &mut u32) -> bool {
        if self.active_expire
            && !self.keep_expired
            && let Some(due) = self.space.take_due(now.ended_ms(), budget)
        {
            match due {
                Due::Key { dict, entry } => {
                    let index = self.index_of(dict);
                    self.stats.expired += 1;
                    let late_ms = entry.read().deadline().map_or(0, |deadline| now.mono_ms().saturating_sub(deadline));
                    self.stats.late_ms_max = self.stats.late_ms_max.max(late_ms);
                    self.changes.emit_end(Change {
                        now,
                        db: index,
                        key: entry.read().key(),
                        event: Event::EXPIRED,
                        effect: Effect::Delete,
                    });
                    self.changes.expired(index, entry.read().key());
                    if entry.read().is_native() {
                        self.lock_lapsed(now, index, entry);
                    } else {
                        self.space.free_later(entry);
                    }
                }
                Due::Fields { dict, place } => {
                    let index = self.index_of(dict);
                    self.db(index, now).expire_fields(place, budget);
                }
            }
            return true;
        }
        self.free_some(budget);
        false
    }

    /// Frees some memory of deleted values.
    #[inline]
    pub(crate) fn free_some(&mut self, budget: &mut u32) {
        if self.space.has_unfreed() {
            self.space.free_some(budget);
            self.lose_flushed();
        }
        if self.changes.has_retired() {
            self.changes.free_some(budget);
        }
        if self.changes.has_lost() {
            self.tell_lost(budget);
        }
    }

    /// Bytes of the hash tables, without the keys and values themselves.
    pub fn table_bytes(&self) -> usize {
        (0..self.numbers.len()).map(|dict| self.space.dict(dict).allocated()).sum::<usize>() + self.space.slot_bytes()
    }

    /// Number of keys in all databases, including expired ones that are not removed yet.
    pub fn len(&self) -> usize {
        (0..self.databases() as u32).map(|db| self.db_len(db)).sum()
    }

    /// Number of keys in a database, including expired ones that are not removed yet.
    pub fn db_len(&self, index: u32) -> usize {
        self.space.dict(self.numbers[index as usize] as usize).len()
    }

    /// Bytes of a database's hash tables and of its keys' timers.
    pub fn db_bytes(&self, index: u32) -> (usize, usize) {
        let dict = self.numbers[index as usize] as usize;
        let slots = if dict == 0 { self.space.slot_bytes() } else { 0 };
        let timers = self.space.volatile(dict) + self.space.volatile_hashes(dict);
        (self.space.dict(dict).allocated() + slots, timers * TIMER_BYTES)
    }

    /// Number of timers on the wheel: keys, and hashes with expiring fields.
    pub fn timers(&self) -> usize {
        self.space.timers()
    }

    /// Whether deleted memory waits to be freed.
    pub fn has_unfreed(&self) -> bool {
        self.space.has_unfreed()
    }

    pub(crate) fn index_of(&self, dict: usize) -> u32 {
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
    /// The last 32 bits of the number of the client that is noted with the locks of Redis clients which the command writes; 0 for none.
    pub(crate) writer: u32,
}

impl<'a> Db<'a> {
    /// Fails if the key holds a lock, a semaphore, a latch or a guard.
    pub(crate) fn check_plain(&mut self, key: &[u8]) -> Result {
        if self.peek(key).is_some_and(EntryRef::is_native) { Err(Error::WRONG_TYPE) } else { Ok(()) }
    }

    /// Number of keys, including expired ones that are not removed yet.
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

    /// Number of hashes with expiring fields.
    pub fn volatile_hashes(&self) -> usize {
        self.keyspace.space.volatile_hashes(self.dict)
    }

    /// Mean remaining milliseconds of the keys with a deadline among the first `count` keys; 0 if there are none.
    pub fn sampled_ttl_ms(&self, count: usize) -> u64 {
        let entries = self.keyspace.space.dict(self.dict).iter().take(count);
        let (mut total_ms, mut volatile) = (0u128, 0);
        for deadline in entries.filter_map(EntryRef::deadline) {
            total_ms += u128::from(self.now.left_ms(deadline));
            volatile += 1;
        }
        total_ms.checked_div(volatile).unwrap_or(0) as u64
    }

    /// The place of a key. Removes the key if it has expired.
    #[inline(never)]
    pub(crate) fn locate(&mut self, key: &[u8]) -> (KeyHash, Option<Place>) {
        self.locate_here(key)
    }

    /// As [`Db::locate`], inlined for hot paths.
    #[inline(always)]
    pub(crate) fn locate_here(&mut self, key: &[u8]) -> (KeyHash, Option<Place>) {
        let space = &self.keyspace.space;
        let (hash, found) = space.locate(self.dict, key);
        let Some((place, entry)) = found else { return (hash, None) };
        if ended(entry, self.now) {
            self.end(place);
            return (hash, None);
        }
        (hash, Some(place))
    }

    /// Removes an expired key.
    #[cold]
    #[inline(never)]
    fn end(&mut self, place: Place) {
        if self.keyspace.keep_expired {
            return;
        }
        let entry = self.keyspace.space.get(self.dict, place);
        if entry.deadline().is_some_and(|deadline| self.now.reached(deadline)) {
            self.expire(place);
        } else {
            self.expire_hash(place);
        }
    }

    fn expire(&mut self, place: Place) {
        self.keyspace.stats.expired += 1;
        let entry = self.keyspace.space.remove(self.dict, place);
        let (now, key) = (self.now, entry.read().key());
        self.keyspace.changes.emit_end(Change { now, db: self.index, key, event: Event::EXPIRED, effect: Effect::Delete });
        self.keyspace.changes.expired(self.index, entry.read().key());
        if entry.read().is_native() {
            self.keyspace.lock_lapsed(self.now, self.index, entry);
        } else {
            self.keyspace.space.free_later(entry);
        }
    }

    #[inline(always)]
    pub(crate) fn drop_key(&mut self, place: Place, event: Event) {
        let entry = self.keyspace.space.remove(self.dict, place);
        self.emit(entry.read().key(), event, Effect::Delete);
        if entry.read().is_native() {
            self.keyspace.lock_deleted(self.now, self.index, entry);
        } else {
            self.keyspace.space.free_later(entry);
        }
    }

    #[inline(always)]
    pub(crate) fn emit(&mut self, key: &[u8], event: Event, effect: Effect<'_>) {
        if self.keyspace.changes.note(&effect) {
            self.keyspace.changes.report(Change { now: self.now, db: self.index, key, event, effect });
        }
    }

    /// As [`Db::emit`] for an effect that counts as one change, and is made only if anyone observes changes.
    #[inline(always)]
    pub(crate) fn emit_with<'e>(&mut self, key: &'e [u8], event: Event, effect: impl FnOnce(Now) -> Effect<'e>) {
        let (now, db, changes) = (self.now, self.index, &mut self.keyspace.changes);
        changes.count += 1;
        if changes.must_report() {
            changes.report(Change { now, db, key, event, effect: effect(now) });
        }
    }

    /// Stores a boxed value under the key. Fails if the key holds a native value of another kind.
    pub fn put(&mut self, key: &[u8], value: Box<Value>, ttl: Ttl, event: Event) -> Result {
        let (hash, place) = self.locate(key);
        self.put_here(hash, place, key, NewValue::Boxed(value), ttl)?;
        if let Some(place) = self.keyspace.space.find(self.dict, hash, key) {
            self.emit_stored(place, key, event);
        }
        Ok(())
    }

    /// Reports the current value of a key after a store.
    pub(crate) fn emit_stored(&mut self, place: Place, key: &[u8], event: Event) {
        let Keyspace { space, changes, .. } = &mut *self.keyspace;
        let entry = space.get(self.dict, place);
        let deadline = entry.deadline().map(|d| self.now.unix_of(d));
        let hash;
        let effect = match entry.value() {
            ValueRef::Bytes(value) => Effect::SetString { value, deadline },
            ValueRef::Boxed(Value::Bytes(value)) => Effect::SetString { value, deadline },
            ValueRef::Boxed(value) => Effect::Store { value, deadline },
            // Locks report themselves.
            ValueRef::Grant(_) => Effect::None,
            ValueRef::Count { field, count } => {
                hash = Value::Hash(Hash::of_count(field, count));
                Effect::Store { value: &hash, deadline }
            }
        };
        changes.emit(Change { now: self.now, db: self.index, key, event, effect });
    }

    /// Removes a key that another one is about to replace; the replacement will be reported. Fails if it is native.
    pub(crate) fn make_way(&mut self, key: &[u8]) -> Result {
        self.check_plain(key)?;
        if let Some(place) = self.locate(key).1 {
            let entry = self.keyspace.space.remove(self.dict, place);
            self.keyspace.space.free_later(entry);
        }
        Ok(())
    }

    /// Stores an entry that was taken out elsewhere under a free name. It keeps its deadline and its access clock.
    fn store_moved(&mut self, key: &[u8], entry: Entry, event: Event) {
        let old = entry.read();
        let (deadline, form, access) = (old.deadline(), old.form(), old.access());
        let space = &mut self.keyspace.space;
        let hash = space.hash(key);
        let place = if old.is_boxed() {
            let Some(value) = entry.into_boxed() else { return };
            space.insert(self.dict, hash, key, NewValue::Boxed(value), deadline)
        } else {
            let value = match old.value() {
                ValueRef::Grant(bytes) => NewValue::Grant(bytes),
                ValueRef::Count { field, count } => NewValue::Count { field, count },
                _ => NewValue::Bytes(old.bytes().unwrap_or_default()),
            };
            let writer = space.writer_of(old);
            let place = space.insert(self.dict, hash, key, value, deadline);
            if let Some(writer) = writer {
                space.note_writer(self.dict, place, writer);
            }
            place
        };
        let mut new = space.get_mut(self.dict, place);
        new.set_form(form);
        new.touch(u64::from(access));
        self.emit_stored(place, key, event);
    }

    /// Stores a value under the key, and reports nothing but a new key. Returns the deadline. The caller has checked that the
    /// present value has the same type.
    pub(crate) fn put_at(
        &mut self,
        hash: KeyHash,
        place: Option<Place>,
        key: &[u8],
        value: NewValue<'_>,
        ttl: Ttl,
    ) -> Option<u64> {
        self.store_here(hash, place, key, value, ttl, |_, _| true).unwrap_or(None)
    }

    /// Stores a value under the key, and reports nothing but a new key. Notes [`Db::writer`] with it. Returns the deadline. Fails
    /// if the key holds a native value of another kind.
    #[inline(always)]
    fn put_here(
        &mut self,
        hash: KeyHash,
        place: Option<Place>,
        key: &[u8],
        value: NewValue<'_>,
        ttl: Ttl,
    ) -> Result<Option<u64>> {
        self.store_here(hash, place, key, value, ttl, may_replace).ok_or(Error::WRONG_TYPE)
    }

    /// As [`Db::put_here`], where `may` decides whether the present value may be replaced. Returns `None` if not.
    #[inline(always)]
    fn store_here(
        &mut self,
        hash: KeyHash,
        place: Option<Place>,
        key: &[u8],
        value: NewValue<'_>,
        ttl: Ttl,
        may: impl FnOnce(EntryRef<'_>, &NewValue<'_>) -> bool,
    ) -> Option<Option<u64>> {
        let space = &mut self.keyspace.space;
        let deadline = match (ttl, place) {
            (Ttl::At(deadline), _) => Some(deadline),
            (Ttl::Keep, Some(place)) => space.get(self.dict, place).deadline(),
            _ => None,
        };
        match place {
            Some(place) => {
                if !space.replace_where(self.dict, place, value, deadline, may) {
                    return None;
                }
                if self.writer != 0 {
                    space.note_writer(self.dict, place, self.writer);
                }
                self.note_use(place);
            }
            None => {
                let mut entry = Entry::new(key, value, deadline);
                entry.change().touch(self.first_stamp());
                if self.writer != 0 {
                    self.keyspace.space.note_writer_of_new(&mut entry, self.writer);
                }
                let place = self.keyspace.space.insert_entry(self.dict, hash, entry);
                self.keyspace.changes.publish(self.index, Event::NEW, key);
                self.note_first_use(place);
            }
        }
        Some(deadline)
    }

    /// Removes a key. Returns false if it does not exist. Fails if it is native.
    #[inline]
    pub fn delete(&mut self, key: &[u8], event: Event) -> Result<bool> {
        let Some(place) = self.locate_here(key).1 else { return Ok(false) };
        fail_if!(self.keyspace.space.get(self.dict, place).is_native(), Error::WRONG_TYPE);
        self.drop_key(place, event);
        Ok(true)
    }

    /// Removes a key of any type. Returns false if it does not exist. Holds under the name end, and their holders are notified.
    #[inline(always)]
    pub fn force_delete(&mut self, key: &[u8], event: Event) -> bool {
        let Some(place) = self.locate_here(key).1 else { return false };
        self.drop_key(place, event);
        true
    }

    /// Sets or clears a key's deadline (monotonic milliseconds). Returns false if the key does not exist. Fails for a lock, a
    /// semaphore or a latch. A guard may get a deadline, because nothing else would ever end it.
    pub fn set_deadline(&mut self, key: &[u8], deadline: Option<u64>, event: Event) -> Result<bool> {
        let Some(place) = self.locate(key).1 else { return Ok(false) };
        fail_if!(self.keyspace.space.get(self.dict, place).has_own_deadline(), Error::WRONG_TYPE);
        self.keyspace.space.set_deadline(self.dict, place, deadline);
        self.emit_with(key, event, |now| Effect::Deadline(deadline.map(|d| now.unix_of(d))));
        Ok(true)
    }

    /// Reports a second event for a change that was already reported, such as `expire` for a `SET` with a lease.
    #[inline(always)]
    pub fn also(&mut self, key: &[u8], event: Event) {
        self.emit(key, event, Effect::None);
    }

    /// Records how Redis would store a string where the bytes do not determine that. A new value begins as [`Form::Shortest`].
    pub fn set_form(&mut self, key: &[u8], form: Form) {
        if form != Form::Shortest
            && let Some(place) = self.locate(key).1
        {
            self.keyspace.space.get_mut(self.dict, place).set_form(form);
        }
    }

    /// Empties the database in one step. Returns the number of keys.
    pub fn flush(&mut self) -> usize {
        if self.keyspace.changes.has_key_observers() {
            self.keyspace.touch_flushed(self.index);
        }
        let next_token = self.keyspace.changes.locks.as_ref().map_or(0, |locks| locks.next_token());
        let home = self.keyspace.changes.locks.as_ref().map_or(self.index, |locks| locks.home(self.index));
        let deletion = Deletion { db: self.index, home, at_ms: self.now.mono_ms(), by: self.keyspace.changes.client, next_token };
        let len = self.keyspace.space.clear(self.dict, deletion);
        if let Some(locks) = &mut self.keyspace.changes.locks {
            locks.flushed(deletion);
            self.keyspace.changes.has_follow_up |= locks.has_work();
        }
        self.keyspace.has_natives &= (0..self.keyspace.databases()).any(|db| !self.keyspace.space.dict(db).is_empty());
        let event = Event::new(Default::default(), "flushdb");
        let before = self.keyspace.changes.count;
        self.emit(b"", event, Effect::Flush);
        self.keyspace.changes.count_as(before, len as u64);
        len
    }
}

/// Whether a key is a hash whose fields have all expired.
#[inline]
fn fields_ended(entry: EntryRef<'_>, now: Now) -> bool {
    matches!(entry.value(), ValueRef::Boxed(Value::Hash(hash)) if hash.is_expired(now.ended_ms()))
}

/// Whether a key has expired, by its own deadline or with its last field.
#[inline(always)]
pub(crate) fn ended(entry: EntryRef<'_>, now: Now) -> bool {
    entry.deadline().is_some_and(|deadline| now.reached(deadline)) || (entry.is_boxed() && fields_ended(entry, now))
}
