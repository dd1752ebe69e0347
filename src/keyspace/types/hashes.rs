//! Hashes in a database: expired fields are never visible, and every change is reported.
//!
//! Commands that read call [`Db::hash`] for a [`HashView`]. Commands that write take a [`HashEdit`], change fields through it and
//! call [`HashEdit::finish`], which publishes the events and removes the key with its last field. A hash of one field with a
//! small number, as Redis clients use for reentrant locks, is stored inline in its entry; any change that it cannot hold inline
//! turns it into a boxed value. `Db::expire_fields` removes expired fields as soon as they are due; a command that comes before
//! removes a few itself and skips the rest.

use smallvec::SmallVec;

use crate::base::error::{Error, Result};
use crate::keyspace::change::{Change, Classes, Effect, Event};
use crate::keyspace::databases::{Db, Keyspace};
use crate::keyspace::types::collection::Collection;
use crate::store::dict::{KeyHash, KeyHasher, Place};
use crate::store::entry::{COUNT_FIELD_MAX, NewValue, ValueRef};
use crate::store::trie::below;
use crate::store::values::hash::{Field, FieldTtl, Hash, digits, small_number};
use crate::store::values::value::Value;

/// Maximum number of expired fields that a command removes on access.
const EXPIRED_ON_ACCESS: u32 = 64;

/// An effect whose event is published later, once for all fields of a command.
const SILENT: Event = Event::new(Classes::empty(), "");
const HEXPIRED: Event = Event::new(Classes::HASH, "hexpired");

impl Event {
    /// Fields were set.
    pub const HSET: Event = Event::new(Classes::HASH, "hset");
    /// Fields were deleted.
    pub const HDEL: Event = Event::new(Classes::HASH, "hdel");
    /// A field was incremented.
    pub const HINCRBY: Event = Event::new(Classes::HASH, "hincrby");
    /// A field was incremented by a float.
    pub const HINCRBYFLOAT: Event = Event::new(Classes::HASH, "hincrbyfloat");
    /// Fields got a deadline.
    pub const HEXPIRE: Event = Event::new(Classes::HASH, "hexpire");
    /// Fields lost their deadline.
    pub const HPERSIST: Event = Event::new(Classes::HASH, "hpersist");
}

/// A hash that a command reads.
#[derive(Clone, Copy)]
pub struct HashView<'a> {
    hash: Form<'a>,
    hasher: &'a KeyHasher,
    now_ms: u64,
    /// Whether there are expired fields to skip.
    has_expired: bool,
}

/// The representation of a hash.
#[derive(Clone, Copy)]
enum Form<'a> {
    /// Inline in its entry, as one field.
    Count(Field<'a>),
    Hash(&'a Hash),
}

fn counted(field: &[u8], count: u8) -> Field<'_> {
    Field { name: field, value: digits(count), deadline: None }
}

impl<'a> HashView<'a> {
    /// Number of fields.
    pub fn len(&self) -> usize {
        match self.hash {
            Form::Count(_) => 1,
            Form::Hash(hash) => hash.len() - if self.has_expired { hash.expired_fields(self.now_ms) } else { 0 },
        }
    }

    /// The field of this name.
    pub fn get(&self, name: &[u8]) -> Option<Field<'a>> {
        match self.hash {
            Form::Count(field) => (field.name == name).then_some(field),
            Form::Hash(hash) => hash.get(self.hasher, name).filter(|field| !field.is_expired(self.now_ms)),
        }
    }

    /// All fields; those of a hash in one buffer in the order of insertion.
    pub fn iter(&self) -> impl Iterator<Item = Field<'a>> + use<'a> {
        let now_ms = self.now_ms;
        let (one, hash) = match self.hash {
            Form::Count(field) => (Some(field), None),
            Form::Hash(hash) => (None, Some(hash)),
        };
        let fields = hash.into_iter().flat_map(Hash::iter).filter(move |field| !field.is_expired(now_ms));
        one.into_iter().chain(fields)
    }
}

impl<'a> Collection for HashView<'a> {
    type Element = Field<'a>;
    type Name = &'a [u8];

    fn size(&self) -> usize {
        self.len()
    }

    fn elements(&self) -> impl Iterator<Item = Field<'a>> {
        self.iter()
    }

    /// See [`Hash::scan`].
    fn scan(&self, cursor: u64, count: usize, mut visit: impl FnMut(Field<'a>)) -> u64 {
        let hash = match self.hash {
            Form::Count(field) => {
                visit(field);
                return 0;
            }
            Form::Hash(hash) => hash,
        };
        hash.scan(self.hasher, cursor, count, |field| {
            if !field.is_expired(self.now_ms) {
                visit(field);
            }
        })
    }

    fn name(field: Field<'a>) -> &'a [u8] {
        field.name
    }

    fn hasher(&self) -> &KeyHasher {
        self.hasher
    }

    fn is_walked(&self) -> bool {
        self.has_expired || matches!(self.hash, Form::Hash(hash) if hash.is_small())
    }

    fn draw(&self, mut random: impl FnMut() -> u64) -> Field<'a> {
        let field = match self.hash {
            Form::Hash(hash) if !self.has_expired => hash.random(&mut random),
            _ => self.iter().nth(below(random(), self.len())),
        };
        // A hash in the database is never empty.
        field.unwrap_or(Field { name: b"", value: b"", deadline: None })
    }
}

/// A hash that a command changes.
pub struct HashEdit<'d, 'a> {
    db: &'d mut Db<'a>,
    key: &'d [u8],
    hash: KeyHash,
    /// Its place; `None` until it has a field.
    place: Option<Place>,
    /// The earliest field deadline when the edit began.
    first: Option<u64>,
    /// Whether an expired field was removed.
    expired: bool,
}

impl<'a> Db<'a> {
    /// The hash that a command reads. Counts as an access, and as a hit or a miss. Fails if the key holds another type.
    #[inline]
    pub fn hash(&mut self, key: &[u8]) -> Result<Option<HashView<'_>>> {
        let place = self.locate_hash(key).map(|(_, place)| place);
        // A key of another type counts as found.
        self.note_lookup(key, !matches!(place, Ok(None)));
        let Some(place) = place? else { return Ok(None) };
        self.touch(place);
        let space = &self.keyspace.space;
        let (hash, now_ms) = match space.get(self.dict, place).value() {
            ValueRef::Boxed(Value::Hash(hash)) => (Form::Hash(hash), self.now.ended_ms()),
            // Its field has no deadline.
            ValueRef::Count { field, count } => (Form::Count(counted(field, count)), 0),
            _ => return Ok(None),
        };
        let has_expired = matches!(hash, Form::Hash(hash) if hash.has_expired_fields(now_ms));
        Ok(Some(HashView { hash, hasher: space.hasher(), now_ms, has_expired }))
    }

    /// The hash that a command changes; `None` if the key does not exist.
    pub fn edit_hash<'d>(&'d mut self, key: &'d [u8]) -> Result<Option<HashEdit<'d, 'a>>> {
        let (hash, place) = self.locate_hash(key)?;
        let Some(place) = place else { return Ok(None) };
        self.touch(place);
        let first = self.hash_at(place).and_then(|hash| hash.next_field_deadline());
        Ok(Some(HashEdit { db: self, key, hash, place: Some(place), first, expired: false }))
    }

    /// The hash that a command adds fields to. If the key does not exist, the first field creates it.
    pub fn edit_or_create_hash<'d>(&'d mut self, key: &'d [u8]) -> Result<HashEdit<'d, 'a>> {
        let (hash, place) = self.locate_hash(key)?;
        let mut first = None;
        if let Some(place) = place {
            self.touch(place);
            first = self.hash_at(place).and_then(|hash| hash.next_field_deadline());
        }
        Ok(HashEdit { db: self, key, hash, place, first, expired: false })
    }

    /// The place of a hash. Fails if the key holds another type. Removes some of its expired fields.
    #[inline]
    fn locate_hash(&mut self, key: &[u8]) -> Result<(KeyHash, Option<Place>)> {
        let (key_hash, place) = self.locate(key);
        let Some(place) = place else { return Ok((key_hash, None)) };
        let has_expired = match self.keyspace.space.get(self.dict, place).value() {
            // Most have no field with a deadline: the time is not asked for.
            ValueRef::Boxed(Value::Hash(hash)) => hash.next_field_deadline().is_some_and(|deadline| self.now.reached(deadline)),
            ValueRef::Count { .. } => false,
            _ => return Err(Error::WRONG_TYPE),
        };
        if has_expired && !self.keyspace.keep_expired && !self.remove_expired_fields(place, &mut { EXPIRED_ON_ACCESS }) {
            return Ok((key_hash, None));
        }
        Ok((key_hash, Some(place)))
    }

    /// The hash there, if it is a boxed value.
    #[inline]
    fn hash_at(&self, place: Place) -> Option<&Hash> {
        if let ValueRef::Boxed(Value::Hash(hash)) = self.keyspace.space.get(self.dict, place).value() { Some(hash) } else { None }
    }

    /// Expires the fields that are due in the hash there, at most `budget` of them.
    pub(crate) fn expire_fields(&mut self, place: Place, budget: &mut u32) {
        if self.remove_expired_fields(place, budget) {
            self.keyspace.space.arm_fields(self.dict, place);
        }
    }

    /// Removes at most `budget` expired fields, and the key with the last one. Returns false if the key is gone.
    fn remove_expired_fields(&mut self, place: Place, budget: &mut u32) -> bool {
        let (now, db, now_ms) = (self.now, self.index, self.now.ended_ms());
        let Keyspace { space, changes, stats, .. } = &mut *self.keyspace;
        let hasher = space.hasher().clone();
        let key = space.get(self.dict, place).key().to_vec();
        let Some(Value::Hash(hash)) = space.get_mut(self.dict, place).boxed() else { return true };
        let mut taken = 0;
        while *budget > 0
            && let Some(entry) = hash.pop_expired(&hasher, now_ms)
        {
            *budget -= 1;
            taken += 1;
            let effect = Effect::HashRemove { field: entry.read().key() };
            changes.emit(Change { now, db, key: &key, event: SILENT, effect });
        }
        if taken == 0 {
            return true;
        }
        stats.expired_fields += taken;
        let empty = hash.is_empty();
        changes.publish(db, HEXPIRED, &key);
        if empty {
            self.remove_empty(place, &key);
            self.keyspace.changes.expired(self.index, &key);
        }
        !empty
    }

    /// Removes a hash without fields. The report of its last field's removal covers this.
    fn remove_empty(&mut self, place: Place, key: &[u8]) {
        drop(self.keyspace.space.remove(self.dict, place));
        self.keyspace.changes.publish(self.index, Event::DEL, key);
    }

    /// Removes a hash whose fields have all expired.
    pub(crate) fn expire_hash(&mut self, place: Place) {
        let entry = self.keyspace.space.remove(self.dict, place);
        if let ValueRef::Boxed(Value::Hash(hash)) = entry.read().value() {
            self.keyspace.stats.expired_fields += hash.len() as u64;
        }
        self.keyspace.changes.publish(self.index, HEXPIRED, entry.read().key());
        self.emit(entry.read().key(), Event::DEL, Effect::Delete);
        self.keyspace.changes.expired(self.index, entry.read().key());
        self.keyspace.space.free_later(entry);
    }
}

impl HashEdit<'_, '_> {
    /// The field of this name.
    pub fn get(&self, name: &[u8]) -> Option<Field<'_>> {
        let space = &self.db.keyspace.space;
        let field = match space.get(self.db.dict, self.place?).value() {
            ValueRef::Boxed(Value::Hash(hash)) => hash.get(space.hasher(), name)?,
            ValueRef::Count { field, count } if field == name => counted(field, count),
            _ => return None,
        };
        (!field.is_expired(self.db.now.ended_ms())).then_some(field)
    }

    /// Converts the hash to the form for these fields and values, as Redis predicts it from their number and lengths.
    pub fn make_room(&mut self, pairs: &[&[u8]]) {
        if pairs.len() > 2 && self.place.is_none() {
            self.create_value();
        }
        let limits = self.db.keyspace.hash_limits;
        if pairs.len() / 2 > limits.entries || pairs.iter().any(|part| part.len() > limits.value) {
            self.change(|hash, hasher| hash.make_table(hasher));
        }
    }

    /// Converts the hash to the form whose fields can have deadlines, even if none gets one.
    pub fn make_timed(&mut self) {
        self.change(|hash, hasher| hash.make_timed(hasher));
    }

    /// Sets a field. Returns true if it is new.
    pub fn set(&mut self, name: &[u8], value: &[u8], ttl: FieldTtl) -> bool {
        if let Some(count) = small_number(value)
            && !matches!(ttl, FieldTtl::At(_))
            && let Some(new) = self.set_count(name, count)
        {
            self.db.emit(self.key, SILENT, Effect::HashSet { field: name, value, deadline: None });
            return new;
        }
        self.remove_if_expired(name);
        let limits = self.db.keyspace.hash_limits;
        let (new, deadline) = self.change(|hash, hasher| {
            let new = hash.set(hasher, limits, name, value, ttl);
            let deadline = match ttl {
                FieldTtl::Clear => None,
                FieldTtl::At(deadline) => Some(deadline),
                FieldTtl::Keep => hash.get(hasher, name).and_then(|field| field.deadline),
            };
            (new, deadline)
        });
        let deadline = deadline.map(|d| self.db.now.unix_of(d));
        self.db.emit(self.key, SILENT, Effect::HashSet { field: name, value, deadline });
        new
    }

    /// Adds to the number of an inline hash, if this is its field and the sum is still small: the steps of a reentrant lock are
    /// such additions. Its writer stays the one that set the field. Returns `None`, and changes nothing, for any other hash, field
    /// or sum.
    #[inline]
    pub fn add_to_count(&mut self, name: &[u8], increment: i64) -> Option<i64> {
        let mut entry = self.db.keyspace.space.get_mut(self.db.dict, self.place?);
        let ValueRef::Count { field, count } = entry.read().value() else { return None };
        if field != name {
            return None;
        }
        let sum = u8::try_from(i64::from(count).checked_add(increment)?).ok()?;
        if !entry.set_count(sum) {
            return None;
        }
        self.db.emit(self.key, SILENT, Effect::HashSet { field: name, value: digits(sum), deadline: None });
        Some(i64::from(sum))
    }

    /// Sets a field to a small number if the hash can be inline with it. Returns whether the field is new.
    fn set_count(&mut self, name: &[u8], count: u8) -> Option<bool> {
        let Db { keyspace, dict, writer, .. } = &mut *self.db;
        let limits = keyspace.hash_limits;
        let Some(place) = self.place else {
            if name.len() > COUNT_FIELD_MAX.min(limits.value) || digits(count).len() > limits.value || limits.entries == 0 {
                return None;
            }
            let writer = *writer;
            let place = self.create(NewValue::Count { field: name, count });
            self.db.keyspace.space.note_writer(self.db.dict, place, writer);
            return Some(true);
        };
        match keyspace.space.get(*dict, place).value() {
            ValueRef::Count { field, .. } if field == name => {
                keyspace.space.note_writer(*dict, place, *writer);
                keyspace.space.get_mut(*dict, place).set_count(count).then_some(false)
            }
            _ => None,
        }
    }

    fn create_value(&mut self) -> Place {
        self.create(NewValue::Boxed(Box::new(Value::Hash(Hash::default()))))
    }

    fn create(&mut self, value: NewValue<'_>) -> Place {
        let db = &mut *self.db;
        let place = db.keyspace.space.insert(db.dict, self.hash, self.key, value, None);
        db.keyspace.changes.publish(db.index, Event::NEW, self.key);
        db.first_use(place);
        self.place = Some(place);
        place
    }

    /// Sets or clears the deadline of a field. Returns false if the field does not exist.
    pub fn set_deadline(&mut self, name: &[u8], deadline: Option<u64>) -> bool {
        self.remove_if_expired(name);
        if !self.change(|hash, hasher| hash.set_deadline(hasher, name, deadline)) {
            return false;
        }
        let Db { keyspace, index, dict, now, .. } = &mut *self.db;
        let Keyspace { space, changes, .. } = &mut **keyspace;
        let Some(place) = self.place else { return true };
        let ValueRef::Boxed(Value::Hash(hash)) = space.get(*dict, place).value() else { return true };
        let value = hash.get(space.hasher(), name).map_or(&b""[..], |field| field.value);
        let effect = Effect::HashSet { field: name, value, deadline: deadline.map(|d| now.unix_of(d)) };
        changes.emit(Change { now: *now, db: *index, key: self.key, event: SILENT, effect });
        true
    }

    /// Removes a field. Returns false if it does not exist.
    pub fn remove(&mut self, name: &[u8]) -> bool {
        self.remove_if_expired(name);
        let removed = self.change(|hash, hasher| hash.remove(hasher, name));
        if removed {
            self.db.emit(self.key, SILENT, Effect::HashRemove { field: name });
        }
        removed
    }

    /// Removes a field because its new deadline has passed already. Returns false if it does not exist.
    pub fn end(&mut self, name: &[u8]) -> bool {
        let removed = self.remove(name);
        self.db.keyspace.stats.expired_fields += u64::from(removed);
        removed
    }

    /// Publishes the events of the edit. A hash without fields is removed, with its own event.
    pub fn finish(self, events: &[Event]) {
        let db = self.db;
        if self.expired {
            db.keyspace.changes.publish(db.index, HEXPIRED, self.key);
        }
        for event in events {
            db.keyspace.changes.publish(db.index, *event, self.key);
        }
        let Some(place) = self.place else { return };
        let Some(hash) = db.hash_at(place) else { return };
        if hash.is_empty() {
            db.remove_empty(place, self.key);
            return;
        }
        // A timer that fires too early is set again, so a later deadline needs no change.
        let first = hash.next_field_deadline();
        let sooner = match (self.first, first) {
            (Some(old), Some(new)) => new < old,
            (old, new) => old.is_some() != new.is_some(),
        };
        if sooner {
            db.keyspace.space.arm_fields(db.dict, place);
        } else if let Some((field, count)) = hash.as_count() {
            let field = SmallVec::<[u8; 64]>::from_slice(field);
            let space = &mut db.keyspace.space;
            let deadline = space.get(db.dict, place).deadline();
            space.replace(db.dict, place, NewValue::Count { field: &field, count }, deadline);
            space.note_writer(db.dict, place, db.writer);
        }
    }

    /// Removes a field if it has expired, so that the next step does not find it.
    fn remove_if_expired(&mut self, name: &[u8]) {
        let now_ms = self.db.now.ended_ms();
        let Some(hash) = self.place.and_then(|place| self.db.hash_at(place)) else { return };
        if hash.has_expired_fields(now_ms)
            && hash.get(self.db.keyspace.space.hasher(), name).is_some_and(|field| field.is_expired(now_ms))
        {
            self.change(|hash, hasher| hash.remove(hasher, name));
            self.db.keyspace.stats.expired_fields += 1;
            self.expired = true;
            self.db.emit(self.key, SILENT, Effect::HashRemove { field: name });
        }
    }

    /// Changes the hash as a boxed value; an inline hash becomes one first.
    fn change<T>(&mut self, change: impl FnOnce(&mut Hash, &KeyHasher) -> T) -> T {
        let place = if let Some(place) = self.place { place } else { self.create_value() };
        let space = &mut self.db.keyspace.space;
        let entry = space.get(self.db.dict, place);
        if let ValueRef::Count { field, count } = entry.value() {
            let (value, deadline) = (Box::new(Value::Hash(Hash::of_count(field, count))), entry.deadline());
            space.replace(self.db.dict, place, NewValue::Boxed(value), deadline);
        }
        let hasher = space.hasher().clone();
        match space.get_mut(self.db.dict, place).boxed() {
            Some(Value::Hash(hash)) => change(hash, &hasher),
            _ => {
                unreachable!("the place was seen to hold a hash when the edit began, and nothing else has had the database since")
            }
        }
    }
}
