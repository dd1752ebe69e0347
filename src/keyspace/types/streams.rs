//! Streams in a database: every change is reported.
//!
//! Commands that read call [`Db::stream`]. Commands that write take a [`StreamEdit`], change entries, groups and pending entries
//! through it, and publish events with [`StreamEdit::event`]. A stream without entries is kept.

use crate::base::error::{Error, Result};
use crate::keyspace::change::{Classes, Effect, Event};
use crate::keyspace::databases::Db;
use crate::store::dict::Place;
use crate::store::entry::{EntryRef, NewValue, ValueRef};
use crate::store::values::stream::{Group, Stream, StreamId, Trim};
use crate::store::values::value::Value;

/// An effect whose event is published separately.
const SILENT: Event = Event::new(Classes::empty(), "");

impl Event {
    /// An entry was added.
    pub const XADD: Event = Event::new(Classes::STREAM, "xadd");
    /// Entries were deleted.
    pub const XDEL: Event = Event::new(Classes::STREAM, "xdel");
    /// Entries were trimmed.
    pub const XTRIM: Event = Event::new(Classes::STREAM, "xtrim");
    /// The counters were set.
    pub const XSETID: Event = Event::new(Classes::STREAM, "xsetid");
    /// A group was created.
    pub const XGROUP_CREATE: Event = Event::new(Classes::STREAM, "xgroup-create");
    /// The last id of a group was set.
    pub const XGROUP_SETID: Event = Event::new(Classes::STREAM, "xgroup-setid");
    /// A group was removed.
    pub const XGROUP_DESTROY: Event = Event::new(Classes::STREAM, "xgroup-destroy");
    /// A consumer was created.
    pub const XGROUP_CREATECONSUMER: Event = Event::new(Classes::STREAM, "xgroup-createconsumer");
    /// A consumer was removed.
    pub const XGROUP_DELCONSUMER: Event = Event::new(Classes::STREAM, "xgroup-delconsumer");
}

/// A stream that a command changes.
pub struct StreamEdit<'d, 'a> {
    db: &'d mut Db<'a>,
    key: &'d [u8],
    place: Place,
}

impl<'a> Db<'a> {
    /// The stream that a command reads. Counts as an access, and as a hit or a miss. Fails if the key holds another type.
    pub fn stream(&mut self, key: &[u8]) -> Result<Option<&Stream>> {
        match self.read(key).map(EntryRef::value) {
            None => Ok(None),
            Some(ValueRef::Boxed(Value::Stream(stream))) => Ok(Some(stream)),
            Some(_) => Err(Error::WRONG_TYPE),
        }
    }

    /// The stream that a command changes; `None` if the key does not exist.
    pub fn edit_stream<'d>(&'d mut self, key: &'d [u8]) -> Result<Option<StreamEdit<'d, 'a>>> {
        let Some(place) = self.locate(key).1 else { return Ok(None) };
        if !matches!(self.keyspace.space.get(self.dict, place).value(), ValueRef::Boxed(Value::Stream(_))) {
            return Err(Error::WRONG_TYPE);
        }
        self.touch(place);
        Ok(Some(StreamEdit { db: self, key, place }))
    }

    /// As [`Db::edit_stream`] for a command that also reads: counts as a hit or a miss.
    pub fn read_and_edit_stream<'d>(&'d mut self, key: &'d [u8]) -> Result<Option<StreamEdit<'d, 'a>>> {
        let found = self.locate(key).1.is_some();
        self.note_lookup(key, found);
        self.edit_stream(key)
    }

    /// The stream that a command adds an entry to; an empty one if the key does not exist. That one must get an entry, or be
    /// reported by [`StreamEdit::report_created`].
    pub fn edit_or_create_stream<'d>(&'d mut self, key: &'d [u8]) -> Result<StreamEdit<'d, 'a>> {
        let (hash, place) = self.locate(key);
        if place.is_none() {
            let value = Box::new(Value::Stream(Box::default()));
            let place = self.keyspace.space.insert(self.dict, hash, key, NewValue::Boxed(value), None);
            self.keyspace.changes.publish(self.index, Event::NEW, key);
            self.first_use(place);
            return Ok(StreamEdit { db: self, key, place });
        }
        self.edit_stream(key)?.ok_or(Error::NO_SUCH_KEY)
    }
}

impl StreamEdit<'_, '_> {
    /// The current stream.
    pub fn stream(&self) -> &Stream {
        match self.db.keyspace.space.get(self.db.dict, self.place).value() {
            ValueRef::Boxed(Value::Stream(stream)) => stream,
            _ => unreachable!("the place was seen to hold a stream, and nothing else has had the database since"),
        }
    }

    fn stream_mut(&mut self) -> &mut Stream {
        match self.db.keyspace.space.get_mut(self.db.dict, self.place).boxed() {
            Some(Value::Stream(stream)) => stream,
            _ => unreachable!("the place was seen to hold a stream, and nothing else has had the database since"),
        }
    }

    fn emit(&mut self, effect: Effect<'_>) {
        self.db.emit(self.key, SILENT, effect);
    }

    /// Publishes an event.
    pub fn event(&mut self, event: Event) {
        self.db.keyspace.changes.publish(self.db.index, event, self.key);
    }

    /// The time of the running command in unix milliseconds.
    pub fn now_ms(&self) -> i64 {
        self.db.now.unix_ms()
    }

    /// Reports that the stream was created without an entry.
    pub fn report_created(&mut self) {
        self.db.emit_stored(self.place, self.key, SILENT);
    }

    /// Adds an entry. Its id must be greater than the last one; `pairs` are names and values, one after the other.
    pub fn append(&mut self, id: StreamId, pairs: &[&[u8]]) {
        let limits = self.db.keyspace.stream_limits;
        self.stream_mut().append(limits, id, pairs);
        self.emit(Effect::StreamAdd { id, pairs });
    }

    /// Deletes an entry. Returns false if it does not exist.
    pub fn remove(&mut self, id: StreamId) -> bool {
        let removed = self.stream_mut().remove(id);
        if removed {
            self.emit(Effect::StreamRemove { id });
        }
        removed
    }

    /// Removes entries from the front. Returns their number.
    pub fn trim(&mut self, trim: Trim) -> u64 {
        let (removed, below) = self.stream_mut().trim(trim);
        if removed > 0 {
            self.emit(Effect::StreamTrim { below });
        }
        removed
    }

    /// Sets the counters.
    pub fn set_counters(&mut self, last_id: StreamId, entries_added: u64, max_deleted_id: StreamId) {
        let stream = self.stream_mut();
        (stream.last_id, stream.entries_added, stream.max_deleted_id) = (last_id, entries_added, max_deleted_id);
        self.emit(Effect::StreamSet { last_id, entries_added, max_deleted_id });
    }

    /// A group by its name.
    pub fn group(&self, name: &[u8]) -> Option<&Group> {
        self.stream().group(name)
    }

    /// Sets how far a group has read. Creates the group if it does not exist.
    pub fn set_group(&mut self, name: &[u8], last_id: StreamId, entries_read: Option<u64>) {
        let created = match self.stream_mut().group_mut(name) {
            Some(group) => {
                (group.last_id, group.entries_read) = (last_id, entries_read);
                false
            }
            None => {
                self.stream_mut().add_group(name, Group::new(last_id, entries_read));
                true
            }
        };
        self.emit(Effect::GroupSet { group: name, last_id, entries_read, created });
    }

    /// Removes a group. Returns false if it does not exist.
    pub fn remove_group(&mut self, name: &[u8]) -> bool {
        let Some(group) = self.stream_mut().remove_group(name) else { return false };
        // Freed in pieces, as part of a stream without entries.
        let mut rest = Stream::default();
        rest.add_group(name, group);
        self.db.keyspace.space.free_value_later(Box::new(Value::Stream(Box::new(rest))));
        self.emit(Effect::GroupRemove { group: name });
        true
    }

    /// Records a read by a consumer, at a time in Unix milliseconds. Creates the consumer if it does not exist, and returns true then.
    pub fn touch_consumer(&mut self, group: &[u8], name: &[u8], at_ms: i64) -> bool {
        let Some(of) = self.stream_mut().group_mut(group) else { return false };
        let old = of.consumer(name).map(|consumer| consumer.active_ms);
        of.set_consumer(name, at_ms, old.flatten());
        if old.is_none() {
            self.emit(Effect::ConsumerSet { group, consumer: name, seen_ms: at_ms, active_ms: None });
            self.event(Event::XGROUP_CREATECONSUMER);
        }
        old.is_none()
    }

    /// Records a delivery to a consumer, at a time in Unix milliseconds.
    pub fn activate_consumer(&mut self, group: &[u8], name: &[u8], at_ms: i64) {
        let Some(of) = self.stream_mut().group_mut(group) else { return };
        of.set_consumer(name, at_ms, Some(at_ms));
        self.emit(Effect::ConsumerSet { group, consumer: name, seen_ms: at_ms, active_ms: Some(at_ms) });
    }

    /// Removes a consumer and its pending entries. Returns the number of those; `None` if the consumer does not exist.
    pub fn remove_consumer(&mut self, group: &[u8], name: &[u8]) -> Option<usize> {
        let pending = self.stream_mut().group_mut(group)?.remove_consumer(name)?;
        self.emit(Effect::ConsumerRemove { group, consumer: name });
        Some(pending)
    }

    /// Records the delivery of an entry to a consumer, which makes it pending.
    pub fn set_pending(&mut self, group: &[u8], id: StreamId, consumer: &[u8], delivered_ms: i64, count: i64) {
        if let Some(of) = self.stream_mut().group_mut(group) {
            of.set_pending(id, consumer, delivered_ms, count);
            self.emit(Effect::PendingSet { group, id, consumer, delivered_ms, count });
        }
    }

    /// Removes a pending entry. Returns false if it was not pending.
    pub fn remove_pending(&mut self, group: &[u8], id: StreamId) -> bool {
        let removed = self.stream_mut().group_mut(group).is_some_and(|of| of.remove_pending(id));
        if removed {
            self.emit(Effect::PendingRemove { group, id });
        }
        removed
    }
}
