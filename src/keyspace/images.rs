//! Images: copies of the values of keys, to be restored later.

use std::collections::BTreeMap;

use crate::base::ids::{Key, KeyBuf};
use crate::base::time::Now;
use crate::keyspace::change::Event;
use crate::keyspace::databases::{Keyspace, Ttl, ended};
use crate::keyspace::natives::lock_of;
use crate::lock::{Client, Fate, Grant, Holders, Lock};
use crate::store::entry::{EntryRef, Form, ValueRef};
use crate::store::values::hash::Hash;
use crate::store::values::value::Value;

/// Images of all keys, or of some of them.
pub(crate) type Images = BTreeMap<KeyBuf, Image>;

/// The value and the deadline of a key.
#[derive(Clone, Debug)]
pub struct Image {
    value: ImageValue,
    /// In monotonic milliseconds. Locks contain their own times.
    deadline: Option<u64>,
}

#[derive(Clone, Debug)]
enum ImageValue {
    String(Box<[u8]>, Form),
    Lock(Box<Lock>),
    Other(Box<Value>),
}

impl Image {
    /// The image of an entry.
    pub(crate) fn of(entry: EntryRef<'_>) -> Image {
        let value = match (entry.value(), lock_of(entry)) {
            (_, Some(lock)) => ImageValue::Lock(Box::new(lock)),
            (ValueRef::Boxed(Value::Bytes(bytes)), _) => ImageValue::String(bytes.as_slice().into(), entry.form()),
            (ValueRef::Count { field, count }, _) => ImageValue::Other(Box::new(Value::Hash(Hash::of_count(field, count)))),
            (ValueRef::Boxed(value), _) => ImageValue::Other(Box::new(value.clone())),
            (ValueRef::Bytes(bytes) | ValueRef::Grant(bytes), _) => ImageValue::String(bytes.into(), entry.form()),
        };
        Image { value, deadline: entry.deadline() }
    }

    /// Approximate bytes of its value.
    pub(crate) fn bytes(&self) -> usize {
        match &self.value {
            ImageValue::String(bytes, _) => bytes.len(),
            ImageValue::Lock(lock) => size_of::<Lock>() + lock.holders.len() * size_of::<Grant>(),
            ImageValue::Other(value) => value.allocated(),
        }
    }

    /// The value, if it is neither a string nor a lock.
    #[cfg(test)]
    pub(crate) fn other(&self) -> Option<&Value> {
        if let ImageValue::Other(value) = &self.value { Some(value) } else { None }
    }

    /// The lock, if the value is one.
    pub(crate) fn lock(&self) -> Option<&Lock> {
        if let ImageValue::Lock(lock) = &self.value { Some(lock) } else { None }
    }
}

/// A time moved `by_ms` milliseconds later; 0 stays "none".
pub(crate) fn later(at_ms: u64, by_ms: i64) -> u64 {
    if at_ms == 0 { 0 } else { at_ms.saturating_add_signed(by_ms).max(1) }
}

/// A lock with all times moved `by_ms` milliseconds later.
fn later_lock(lock: Lock, by_ms: i64) -> Lock {
    if by_ms == 0 {
        return lock;
    }
    let mut holders = Holders::default();
    for grant in lock.holders.iter() {
        let mut grant = grant.clone();
        grant.granted_ms = later(grant.granted_ms, by_ms);
        grant.end_ms = later(grant.end_ms, by_ms);
        grant.max_end_ms = later(grant.max_end_ms, by_ms);
        holders.insert(grant);
    }
    Lock { held_back_ms: later(lock.held_back_ms, by_ms), holders, ..lock }
}

impl Keyspace {
    /// The image of a key, which may have expired; `None` if there is none.
    pub(crate) fn image(&self, key: Key<'_>) -> Option<Image> {
        let dict = *self.numbers.get(key.db as usize)? as usize;
        let place = self.space.find(dict, self.space.hash(key.name), key.name)?;
        Some(Image::of(self.space.get(dict, place)))
    }

    /// The images of all keys, except those that have expired by `now`, if that is given.
    pub(crate) fn images(&self, now: Option<Now>) -> Images {
        let mut images = Images::new();
        for (index, &dict) in self.numbers.iter().enumerate() {
            for entry in self.space.dict(dict as usize).iter() {
                if !now.is_some_and(|now| ended(entry, now)) {
                    images.insert(KeyBuf { db: index as u32, name: entry.key().into() }, Image::of(entry));
                }
            }
        }
        images
    }

    /// Stores an image under a free key, with all deadlines `later_ms` milliseconds later. Grants that end with connections are
    /// ended if those are gone.
    pub(crate) fn put_image(&mut self, now: Now, key: Key<'_>, image: Image, later_ms: i64, connected: impl Fn(Client) -> bool) {
        let ttl = image.deadline.map_or(Ttl::Clear, |at| Ttl::At(later(at, later_ms)));
        match image.value {
            ImageValue::Lock(lock) => {
                let lock = later_lock(*lock, later_ms);
                self.with_locks(now, |locks, keys| locks.adopt(keys, now, key, lock, |client| Fate::of(connected(client))));
            }
            ImageValue::String(bytes, form) => {
                let mut db = self.db(key.db, now);
                // The key is free, so this cannot fail.
                let _ = db.put_string(key.name, &bytes, ttl, Event::SILENT);
                // A key whose deadline has passed is removed by the lookup.
                if matches!(ttl, Ttl::Clear) || matches!(ttl, Ttl::At(at) if !now.reached(at)) {
                    db.set_form(key.name, form);
                }
            }
            ImageValue::Other(mut value) => {
                self.has_natives |= value.is_native();
                if let Value::Hash(hash) = &mut *value
                    && later_ms != 0
                {
                    let timed: Vec<_> =
                        hash.iter().filter_map(|field| Some((field.name.to_vec(), later(field.deadline?, later_ms)))).collect();
                    for (field, deadline) in timed {
                        hash.set_deadline(self.space.hasher(), &field, Some(deadline));
                    }
                }
                let _ = self.db(key.db, now).put(key.name, value, ttl, Event::SILENT);
            }
        }
    }
}
