//! Strings that are changed in part: only the written bytes are reported, not the whole string, and a long string is changed in
//! place.

use crate::base::error::{Error, Result};
use crate::keyspace::change::{Effect, Event};
use crate::keyspace::databases::{Db, Ttl};
use crate::store::dict::{KeyHash, Place};
use crate::store::entry::{Form, INLINE_MAX, NewValue, ValueRef};
use crate::store::values::value::Value;

/// Maximum spare bytes of a growing string.
const SPARE_MAX: usize = 1 << 20;

/// A string that a command changes.
pub struct StringEdit<'d, 'a> {
    db: &'d mut Db<'a>,
    key: &'d [u8],
    hash: KeyHash,
    place: Option<Place>,
    /// The string, if it is short: it is stored in its entry at the end. A longer one is changed in place.
    short: Option<Vec<u8>>,
    /// Whether it has grown without a report so far.
    grown: bool,
}

impl<'a> Db<'a> {
    /// The string that a command changes; empty if the key does not exist. Nothing is stored without [`StringEdit::finish`].
    pub fn edit_string<'d>(&'d mut self, key: &'d [u8]) -> Result<StringEdit<'d, 'a>> {
        let (hash, place) = self.locate(key);
        let mut short = Some(Vec::new());
        if let Some(place) = place {
            short = match self.keyspace.space.get(self.dict, place).value() {
                ValueRef::Bytes(bytes) => Some(bytes.to_vec()),
                ValueRef::Boxed(Value::Bytes(_)) => None,
                ValueRef::Boxed(_) | ValueRef::Grant(_) | ValueRef::Count { .. } => return Err(Error::WRONG_TYPE),
            };
            self.touch(place);
        }
        Ok(StringEdit { db: self, key, hash, place, short, grown: false })
    }
}

impl StringEdit<'_, '_> {
    /// The current string.
    pub fn bytes(&self) -> &[u8] {
        match (&self.short, self.place) {
            (Some(short), _) => short,
            (None, Some(place)) => self.db.keyspace.space.get(self.db.dict, place).bytes().unwrap_or_default(),
            (None, None) => unreachable!("only a string that is in its place is not held here"),
        }
    }

    fn bytes_mut(&mut self) -> &mut Vec<u8> {
        if let Some(short) = &mut self.short {
            return short;
        }
        match self.place.map(|place| self.db.keyspace.space.get_mut(self.db.dict, place).boxed()) {
            Some(Some(Value::Bytes(bytes))) => bytes,
            _ => unreachable!("the place was seen to hold a string, and nothing else has had the database since"),
        }
    }

    /// Extends it with zeros to at least this length.
    pub fn grow(&mut self, len: usize) {
        let have = self.bytes().len();
        if len <= have {
            return;
        }
        self.grown = true;
        if let Some(short) = &self.short
            && len > INLINE_MAX
        {
            let mut long = vec![0; len];
            long[..have].copy_from_slice(short);
            let value = NewValue::Boxed(Box::new(Value::Bytes(long)));
            self.db.put_at(self.hash, self.place, self.key, value, Ttl::Keep);
            self.place = self.db.keyspace.space.find(self.db.dict, self.hash, self.key);
            self.short = None;
            return;
        }
        let bytes = self.bytes_mut();
        if bytes.capacity() < len {
            bytes.reserve_exact(len - have + len.min(SPARE_MAX));
        }
        bytes.resize(len, 0);
    }

    /// Writes bytes at an offset, after zeros if the string was shorter, and reports the write.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.grow(offset + bytes.len());
        self.bytes_mut()[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.report(offset, bytes);
    }

    fn report(&mut self, offset: usize, bytes: &[u8]) {
        let len = self.bytes().len();
        if std::mem::take(&mut self.grown) && offset + bytes.len() < len {
            // The string has grown beyond the written bytes. Its last byte is zero: every write since then would have been
            // reported. The growth does not count as a change of its own.
            let before = self.db.keyspace.changes.count;
            self.db.emit(self.key, Event::SILENT, Effect::SetRange { offset: len - 1, bytes: b"\0", len });
            self.db.keyspace.changes.count_as(before, 0);
        }
        self.db.emit(self.key, Event::SILENT, Effect::SetRange { offset, bytes, len });
    }

    /// Stores the result as a string of this form, and publishes the event.
    pub fn finish(mut self, form: Form, event: Option<Event>) {
        if self.grown {
            self.report(self.bytes().len() - 1, b"\0");
        }
        if let Some(short) = &self.short {
            self.db.put_at(self.hash, self.place, self.key, NewValue::Bytes(short), Ttl::Keep);
            self.db.set_form(self.key, form);
        }
        if let Some(event) = event {
            self.db.keyspace.changes.publish(self.db.index, event, self.key);
        }
    }
}
