//! Sets in a database: every change is reported.
//!
//! Commands that read call [`Db::set`] or [`Db::sets`] for a [`SetView`]. Commands that write take a [`SetEdit`], change members
//! through it and call [`SetEdit::finish`], which publishes the events and removes the key with its last member.

use crate::base::error::{Error, Result};
use crate::keyspace::change::{Classes, Effect, Event};
use crate::keyspace::databases::Db;
use crate::keyspace::types::collection::Collection;
use crate::store::dict::{KeyHasher, Place};
use crate::store::entry::{NewValue, ValueRef};
use crate::store::values::set::{Limits, Member, Set};
use crate::store::values::value::Value;

/// If at least this many times more members are popped than stay, the staying members are moved out instead.
const KEEP_FACTOR: usize = 5;

impl Event {
    /// Members were added.
    pub const SADD: Event = Event::new(Classes::SET, "sadd");
    /// Members were removed.
    pub const SREM: Event = Event::new(Classes::SET, "srem");
    /// Random members were removed.
    pub const SPOP: Event = Event::new(Classes::SET, "spop");
    /// An intersection was stored.
    pub const SINTERSTORE: Event = Event::new(Classes::SET, "sinterstore");
    /// A union was stored.
    pub const SUNIONSTORE: Event = Event::new(Classes::SET, "sunionstore");
    /// A difference was stored.
    pub const SDIFFSTORE: Event = Event::new(Classes::SET, "sdiffstore");
}

/// A set that a command reads.
#[derive(Clone, Copy)]
pub struct SetView<'a> {
    set: &'a Set,
    hasher: &'a KeyHasher,
}

impl<'a> SetView<'a> {
    /// Number of members.
    pub fn len(&self) -> usize {
        self.set.len()
    }

    /// Whether it has no members; a set in the database always has some.
    pub fn is_empty(&self) -> bool {
        self.set.is_empty()
    }

    /// The set itself.
    pub fn set(&self) -> &'a Set {
        self.set
    }

    /// Whether it has a member.
    pub fn contains(&self, member: Member<'_>) -> bool {
        self.set.contains(self.hasher, member)
    }

    /// All members; see [`Set::iter`].
    pub fn iter(&self) -> impl Iterator<Item = Member<'a>> + use<'a> {
        self.set.iter()
    }
}

impl<'a> Collection for SetView<'a> {
    type Element = Member<'a>;
    type Name = Member<'a>;

    fn size(&self) -> usize {
        self.len()
    }

    fn elements(&self) -> impl Iterator<Item = Member<'a>> {
        self.iter()
    }

    /// See [`Set::scan`].
    fn scan(&self, cursor: u64, count: usize, visit: impl FnMut(Member<'a>)) -> u64 {
        self.set.scan(self.hasher, cursor, count, visit)
    }

    fn name(member: Member<'a>) -> Member<'a> {
        member
    }

    fn hasher(&self) -> &KeyHasher {
        self.hasher
    }

    fn is_walked(&self) -> bool {
        self.set.is_packed()
    }

    fn draw(&self, mut random: impl FnMut() -> u64) -> Member<'a> {
        // A set in the database is never empty.
        self.set.random(&mut random).unwrap_or(Member::Bytes(b""))
    }
}

/// A set that a command changes.
pub struct SetEdit<'d, 'a> {
    db: &'d mut Db<'a>,
    key: &'d [u8],
    place: Place,
}

impl<'a> Db<'a> {
    /// The set that a command reads. Counts as an access, and as a hit or a miss. Fails if the key holds another type.
    #[inline]
    pub fn set(&mut self, key: &[u8]) -> Result<Option<SetView<'_>>> {
        let place = self.locate_set(key);
        // A key of another type counts as found.
        self.note_lookup(key, !matches!(place, Ok(None)));
        let Some(place) = place? else { return Ok(None) };
        self.touch(place);
        Ok(self.set_at(place))
    }

    /// As [`Db::set`] for several keys at once.
    pub fn sets(&mut self, keys: &[&[u8]]) -> Result<Vec<Option<SetView<'_>>>> {
        for key in keys {
            self.set(key)?;
        }
        Ok(keys.iter().map(|key| self.view_set(key)).collect())
    }

    /// The set under a key that was looked up before.
    pub(crate) fn view_set(&self, key: &[u8]) -> Option<SetView<'_>> {
        match self.present(key)?.value() {
            ValueRef::Boxed(Value::Set(set)) => Some(SetView { set, hasher: self.keyspace.space.hasher() }),
            _ => None,
        }
    }

    #[inline]
    fn set_at(&self, place: Place) -> Option<SetView<'_>> {
        let space = &self.keyspace.space;
        match space.get(self.dict, place).value() {
            ValueRef::Boxed(Value::Set(set)) => Some(SetView { set, hasher: space.hasher() }),
            _ => None,
        }
    }

    /// Fails if the key holds another type.
    pub fn check_set(&mut self, key: &[u8]) -> Result {
        self.locate_set(key).map(drop)
    }

    #[inline]
    fn locate_set(&mut self, key: &[u8]) -> Result<Option<Place>> {
        let Some(place) = self.locate(key).1 else { return Ok(None) };
        if self.set_at(place).is_some() { Ok(Some(place)) } else { Err(Error::WRONG_TYPE) }
    }

    /// The set that a command changes; `None` if the key does not exist.
    pub fn edit_set<'d>(&'d mut self, key: &'d [u8]) -> Result<Option<SetEdit<'d, 'a>>> {
        let Some(place) = self.locate_set(key)? else { return Ok(None) };
        self.touch(place);
        Ok(Some(SetEdit { db: self, key, place }))
    }

    /// The set that a command adds members to, converted to the form for `count` more members, beginning with `first`. A new,
    /// empty one if the key does not exist; it must not be left empty without [`SetEdit::finish`].
    pub fn edit_or_create_set<'d>(&'d mut self, key: &'d [u8], first: &[u8], count: usize) -> Result<SetEdit<'d, 'a>> {
        let limits = self.keyspace.set_limits;
        if let Some(place) = self.locate_set(key)? {
            self.touch(place);
            let mut edit = SetEdit { db: self, key, place };
            edit.change(|set, hasher| set.make_room(hasher, limits, count));
            return Ok(edit);
        }
        let hash = self.keyspace.space.hash(key);
        let value = Box::new(Value::Set(Set::for_members(first, count, limits)));
        let place = self.keyspace.space.insert(self.dict, hash, key, NewValue::Boxed(value), None);
        self.keyspace.changes.publish(self.index, Event::NEW, key);
        self.first_use(place);
        Ok(SetEdit { db: self, key, place })
    }

    /// Up to which size a set stays in its compact forms.
    pub fn set_limits(&self) -> Limits {
        self.keyspace.set_limits
    }

    /// The hasher of members.
    pub fn hasher(&self) -> &KeyHasher {
        self.keyspace.space.hasher()
    }
}

impl SetEdit<'_, '_> {
    /// The current set.
    pub fn view(&self) -> SetView<'_> {
        match self.db.set_at(self.place) {
            Some(view) => view,
            None => {
                unreachable!("the place was seen to hold a set when the edit began, and nothing else has had the database since")
            }
        }
    }

    /// Adds a member. Returns true if it is new.
    pub fn add(&mut self, member: &[u8]) -> bool {
        let limits = self.db.keyspace.set_limits;
        let new = self.change(|set, hasher| set.add(hasher, limits, Member::Bytes(member)));
        if new {
            self.db.emit(self.key, Event::SILENT, Effect::SetAdd { member });
        }
        new
    }

    /// Removes a member. Returns false if it does not exist.
    pub fn remove(&mut self, member: &[u8]) -> bool {
        let removed = self.change(|set, hasher| set.remove(hasher, Member::Bytes(member)));
        if removed {
            self.db.emit(self.key, Event::SILENT, Effect::SetRemove { member });
        }
        removed
    }

    /// Removes `count` random members, fewer than there are, and passes each to `visit`.
    pub fn pop(&mut self, count: usize, mut random: impl FnMut() -> u64, mut visit: impl FnMut(&[u8])) {
        let remaining = self.view().len().saturating_sub(count);
        if count / KEEP_FACTOR >= remaining {
            return self.keep(remaining, random, visit);
        }
        if self.view().set().is_packed() {
            let popped: Vec<Vec<u8>> = self.view().sample(count, random).into_iter().map(Member::to_vec).collect();
            for member in popped {
                self.remove(&member);
                visit(&member);
            }
            return;
        }
        for _ in 0..count {
            let Some(member) = self.view().set().random(&mut random).map(|member| member.to_vec()) else { return };
            self.remove(&member);
            visit(&member);
        }
    }

    /// Removes all but `count` random members, which become a new set, and passes each removed one to `visit`.
    fn keep(&mut self, count: usize, mut random: impl FnMut() -> u64, mut visit: impl FnMut(&[u8])) {
        let limits = self.db.keyspace.set_limits;
        let kept = self.change(|set, hasher| {
            let mut kept = if set.is_ints() { Set::default() } else { Set::packed() };
            let view = SetView { set, hasher };
            let sampled: Vec<Vec<u8>> = if set.is_packed() {
                view.sample(count, &mut random).into_iter().map(Member::to_vec).collect()
            } else {
                Vec::new()
            };
            for index in 0..count {
                let drawn = sampled.get(index).cloned().or_else(|| set.random(&mut random).map(|member| member.to_vec()));
                let Some(member) = drawn else { break };
                set.remove(hasher, Member::Bytes(&member));
                kept.add(hasher, limits, Member::Bytes(&member));
            }
            kept
        });
        let popped = self.change(|set, _| std::mem::replace(set, kept));
        let mut digits = itoa::Buffer::new();
        for member in popped.iter() {
            let member = member.text(&mut digits);
            self.db.emit(self.key, Event::SILENT, Effect::SetRemove { member });
            visit(member);
        }
        self.db.keyspace.space.free_value_later(Box::new(Value::Set(popped)));
    }

    /// Publishes the events of the edit. A set without members is removed, with its own event; the report of the last member's
    /// removal covers this.
    pub fn finish(self, events: &[Event]) {
        let empty = self.view().is_empty();
        let db = self.db;
        for event in events {
            db.keyspace.changes.publish(db.index, *event, self.key);
        }
        if empty {
            let entry = db.keyspace.space.remove(db.dict, self.place);
            db.keyspace.changes.publish(db.index, Event::DEL, self.key);
            db.keyspace.space.free_later(entry);
        }
    }

    fn change<T>(&mut self, change: impl FnOnce(&mut Set, &KeyHasher) -> T) -> T {
        let space = &mut self.db.keyspace.space;
        let hasher = space.hasher().clone();
        match space.get_mut(self.db.dict, self.place).boxed() {
            Some(Value::Set(set)) => change(set, &hasher),
            _ => {
                unreachable!("the place was seen to hold a set when the edit began, and nothing else has had the database since")
            }
        }
    }
}
