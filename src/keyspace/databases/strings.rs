//! Whole strings: what SET, GET and the counters store and read. Edits in part are in [`crate::keyspace::types::strings`].

use crate::base::error::{Error, Result};
use crate::keyspace::change::{Effect, Event};
use crate::keyspace::databases::{Db, Keyspace, Ttl, ended};
use crate::store::dict::{KeyHash, Place};
use crate::store::entry::{Form, NewValue};

impl Db<'_> {
    /// The string that a command reads. Fails if the key holds another type.
    #[inline]
    pub fn string(&mut self, key: &[u8]) -> Result<Option<&[u8]>> {
        if let Some(entry) = self.read(key) { entry.bytes().map(Some).ok_or(Error::WRONG_TYPE) } else { Ok(None) }
    }

    /// Stores a string under the key. Fails if the key holds a native value.
    pub fn put_string(&mut self, key: &[u8], value: &[u8], ttl: Ttl, event: Event) -> Result {
        let (hash, place) = self.locate_here(key);
        self.put_string_at(hash, place, key, value, ttl, event)
    }

    /// As [`Db::put_string`] for a key that was just located. Notes [`Db::writer`] with it.
    pub(crate) fn put_string_at(
        &mut self,
        hash: KeyHash,
        place: Option<Place>,
        key: &[u8],
        value: &[u8],
        ttl: Ttl,
        event: Event,
    ) -> Result {
        let deadline = self.put_here(hash, place, key, NewValue::Bytes(value), ttl)?;
        self.emit_with(key, event, |now| Effect::SetString { value, deadline: deadline.map(|d| now.unix_of(d)) });
        Ok(())
    }

    /// The last 32 bits of the number of the client that wrote a key last, if that is noted. Does not count as an access.
    pub(crate) fn writer_of(&mut self, key: &[u8]) -> Option<u32> {
        let place = self.locate(key).1?;
        self.keyspace.space.writer_of(self.keyspace.space.get(self.dict, place))
    }

    /// Replaces the string there with one derived from it, and keeps its deadline. Fails if the key holds another type. Optimized
    /// for counters, which usually keep their number of digits.
    #[inline]
    pub(crate) fn rewrite_string<'v>(
        &mut self,
        hash: KeyHash,
        place: Place,
        key: &[u8],
        event: Event,
        new: impl FnOnce(&[u8]) -> Result<&'v [u8]>,
    ) -> Result {
        let mut entry = self.keyspace.space.get_mut(self.dict, place);
        let value = new(entry.read().bytes().ok_or(Error::WRONG_TYPE)?)?;
        if entry.overwrite(value) {
            let deadline = entry.read().deadline();
            self.note_use(place);
            self.emit_with(key, event, |now| Effect::SetString { value, deadline: deadline.map(|d| now.unix_of(d)) });
            Ok(())
        } else {
            self.put_string_at(hash, Some(place), key, value, Ttl::Keep, event)
        }
    }

    /// Adds to a counter of at most eight digits if only its last digit changes, as in most steps of a counter: the value is
    /// neither rewritten nor moved. Otherwise changes nothing, and returns the key's hash and place.
    #[inline]
    pub(crate) fn add_to_last_digit(
        &mut self,
        key: &[u8],
        increment: i64,
        event: Event,
    ) -> std::result::Result<i64, (KeyHash, Option<Place>)> {
        let Keyspace { space, changes, lru, .. } = &mut *self.keyspace;
        let (hash, found) = space.locate_mut(self.dict, key);
        let Some((place, mut entry)) = found else { return Err((hash, None)) };
        if ended(entry.read(), self.now) {
            self.end(place);
            return Err((hash, None));
        }
        let Some((old, last)) = entry.short_number() else { return Err((hash, Some(place))) };
        let digit = increment.wrapping_add(i64::from(*last - b'0'));
        fail_if!(!(0..=9).contains(&digit), (hash, Some(place)));
        *last = b'0' + digit as u8;
        entry.set_form(Form::Shortest);
        if lru.counted || changes.must_report() {
            self.note_use(place);
            self.emit_stored(place, key, event);
        } else {
            entry.touch(self.now.second());
            changes.count += 1;
        }
        Ok(i64::from(old) + increment)
    }
}
