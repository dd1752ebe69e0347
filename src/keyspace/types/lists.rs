//! Lists in a database: every change is reported, and an empty list is removed.
//!
//! Commands that read call [`Db::list`]. Commands that write take a [`ListEdit`] and call [`ListEdit::finish`], which publishes
//! the events and removes the key with its last element. [`Db::list_push`] and [`Db::list_move`] are complete operations.

use crate::base::error::{Error, Result};
use crate::keyspace::change::{Classes, Effect, Event};
use crate::keyspace::databases::{Db, Ttl};
use crate::store::dict::Place;
use crate::store::entry::{NewValue, ValueRef};
use crate::store::values::list::{Element, End, Limits, List, Needle};
use crate::store::values::value::Value;

impl Event {
    /// Elements were pushed to the beginning of a list.
    pub const LPUSH: Event = Event::new(Classes::LIST, "lpush");
    /// Elements were pushed to its end.
    pub const RPUSH: Event = Event::new(Classes::LIST, "rpush");
    /// Elements were popped from its beginning.
    pub const LPOP: Event = Event::new(Classes::LIST, "lpop");
    /// Elements were popped from its end.
    pub const RPOP: Event = Event::new(Classes::LIST, "rpop");
    /// An element was replaced.
    pub const LSET: Event = Event::new(Classes::LIST, "lset");
    /// An element was inserted.
    pub const LINSERT: Event = Event::new(Classes::LIST, "linsert");
    /// Elements were removed by value.
    pub const LREM: Event = Event::new(Classes::LIST, "lrem");
    /// Elements were removed at both ends.
    pub const LTRIM: Event = Event::new(Classes::LIST, "ltrim");
    /// A sorted result was stored.
    pub const SORTSTORE: Event = Event::new(Classes::LIST, "sortstore");
}

impl End {
    /// The event of a push to this end.
    pub fn pushed(self) -> Event {
        if self == End::Left { Event::LPUSH } else { Event::RPUSH }
    }

    /// The event of a pop from this end.
    pub fn popped(self) -> Event {
        if self == End::Left { Event::LPOP } else { Event::RPOP }
    }
}

/// A list that a command changes.
pub struct ListEdit<'d, 'a> {
    db: &'d mut Db<'a>,
    key: &'d [u8],
    place: Place,
}

impl<'a> Db<'a> {
    /// The list that a command reads. Counts as an access, and as a hit or a miss. Fails if the key holds another type.
    pub fn list(&mut self, key: &[u8]) -> Result<Option<&List>> {
        match self.read(key) {
            None => Ok(None),
            Some(entry) => match entry.value() {
                ValueRef::Boxed(Value::List(list)) => Ok(Some(list)),
                _ => Err(Error::WRONG_TYPE),
            },
        }
    }

    /// The list that a command changes; `None` if the key does not exist.
    pub fn edit_list<'d>(&'d mut self, key: &'d [u8]) -> Result<Option<ListEdit<'d, 'a>>> {
        let Some(place) = self.locate_list(key)? else { return Ok(None) };
        Ok(Some(ListEdit { db: self, key, place }))
    }

    /// The list that a command adds elements to; an empty one if the key does not exist. It must not be left empty without
    /// [`ListEdit::finish`].
    pub fn edit_or_create_list<'d>(&'d mut self, key: &'d [u8]) -> Result<ListEdit<'d, 'a>> {
        let place = match self.locate_list(key)? {
            Some(place) => place,
            None => {
                let space = &mut self.keyspace.space;
                let hash = space.hash(key);
                let value = Box::new(Value::List(List::default()));
                let place = space.insert(self.dict, hash, key, NewValue::Boxed(value), None);
                self.first_use(place);
                self.keyspace.changes.publish(self.index, Event::NEW, key);
                place
            }
        };
        Ok(ListEdit { db: self, key, place })
    }

    fn locate_list(&mut self, key: &[u8]) -> Result<Option<Place>> {
        let Some(place) = self.locate(key).1 else { return Ok(None) };
        let entry = self.keyspace.space.get(self.dict, place);
        fail_if!(!matches!(entry.value(), ValueRef::Boxed(Value::List(_))), Error::WRONG_TYPE);
        self.touch(place);
        Ok(Some(place))
    }

    /// Pushes elements to an end of a list, one after the other. Returns its length. Creates the list if the key does not exist.
    pub fn list_push(&mut self, key: &[u8], end: End, elements: &[&[u8]]) -> Result<usize> {
        let mut edit = self.edit_or_create_list(key)?;
        edit.push(end, elements);
        let len = edit.list().len();
        edit.finish(None);
        Ok(len)
    }

    /// Pops one element from an end of a list and pushes it to an end of another, which may be the same list or a new one.
    /// Returns `None` if there is no list to pop from.
    pub fn list_move(&mut self, from: (&[u8], End), to: (&[u8], End)) -> Result<Option<Vec<u8>>> {
        let before = self.keyspace.changes.count;
        let moved = self.move_element(from, to)?;
        if moved.is_some() {
            self.keyspace.changes.count_as(before, 1);
        }
        Ok(moved)
    }

    fn move_element(&mut self, from: (&[u8], End), to: (&[u8], End)) -> Result<Option<Vec<u8>>> {
        let Some(mut source) = self.edit_list(from.0)? else { return Ok(None) };
        let limits = source.limits();
        if from.0 == to.0 {
            let list = source.list_mut();
            let Some(element) = list.take(from.1) else { return Ok(None) };
            list.push(limits, to.1, &[&element]);
            list.shrink_after_removal(limits);
            // Reported in reverse order, so that a follower keeps a list of one element, and its deadline.
            source.db.emit(from.0, to.1.pushed(), Effect::ListPush { end: to.1, elements: &[&element] });
            source.db.emit(from.0, from.1.popped(), Effect::ListPop { end: from.1, count: 1 });
            return Ok(Some(element));
        }
        // Redis does not count the bytes of an integer that comes from a large list.
        let large = source.list().encoding() == "quicklist";
        let first = source.list().iter(from.1).next();
        let uncounted = large && matches!(first, Some(Element::Integer(_)));
        let Some(element) = first.map(Element::to_vec) else { return Ok(None) };
        let mut target = self.edit_or_create_list(to.0)?;
        target.push_counted(to.1, &element, if uncounted { 0 } else { element.len() });
        target.finish(None);
        if let Some(mut source) = self.edit_list(from.0)? {
            source.pop(from.1, 1);
            source.finish(Some(from.1.popped()));
        }
        Ok(Some(element))
    }

    /// Stores a list of these elements under the key; without elements the key is deleted. Fails if the key is native.
    pub fn store_list(&mut self, key: &[u8], elements: &[&[u8]], event: Event) -> Result {
        if elements.is_empty() {
            return self.delete(key, Event::DEL).map(drop);
        }
        let list = List::from_elements(elements.iter().copied(), self.keyspace.list_limits);
        self.put(key, Box::new(Value::List(list)), Ttl::Clear, event)
    }
}

impl ListEdit<'_, '_> {
    /// The current list.
    pub fn list(&self) -> &List {
        match self.db.keyspace.space.get(self.db.dict, self.place).value() {
            ValueRef::Boxed(Value::List(list)) => list,
            _ => {
                unreachable!("the place was seen to hold a list when the edit began, and nothing else has had the database since")
            }
        }
    }

    fn list_mut(&mut self) -> &mut List {
        match self.db.keyspace.space.get_mut(self.db.dict, self.place).boxed() {
            Some(Value::List(list)) => list,
            _ => {
                unreachable!("the place was seen to hold a list when the edit began, and nothing else has had the database since")
            }
        }
    }

    fn limits(&self) -> Limits {
        self.db.keyspace.list_limits
    }

    /// Pushes elements to an end, one after the other, and reports it.
    pub fn push(&mut self, end: End, elements: &[&[u8]]) {
        let limits = self.limits();
        self.list_mut().push(limits, end, elements);
        self.db.emit(self.key, end.pushed(), Effect::ListPush { end, elements });
    }

    /// As [`ListEdit::push`] for one element that counts as `bytes` bytes for the form of the list.
    fn push_counted(&mut self, end: End, element: &[u8], bytes: usize) {
        let limits = self.limits();
        let list = self.list_mut();
        list.make_room(limits, bytes, 1);
        list.push_unconverted(end, element);
        self.db.emit(self.key, end.pushed(), Effect::ListPush { end, elements: &[element] });
    }

    /// Removes `count` elements at an end, or all.
    pub fn pop(&mut self, end: End, count: usize) {
        let limits = self.limits();
        let list = self.list_mut();
        let count = count.min(list.len());
        let rest = list.remove_end(end, count);
        list.shrink_after_removal(limits);
        if let Some(rest) = rest {
            self.db.keyspace.space.free_value_later(Box::new(Value::List(rest)));
        }
        if count > 0 {
            self.db.emit(self.key, Event::SILENT, Effect::ListPop { end, count });
        }
    }

    /// Removes `first` elements at the beginning and `last` at the end. Removing none is a change for watchers of the key, too,
    /// as in Redis.
    pub fn trim(&mut self, first: usize, last: usize) {
        self.pop(End::Left, first);
        self.pop(End::Right, last);
        if first == 0 && last == 0 {
            self.db.emit(self.key, Event::SILENT, Effect::ListPop { end: End::Right, count: 0 });
        }
    }

    /// Replaces the element of this index. Returns false if there is none.
    pub fn set(&mut self, index: usize, element: &[u8]) -> bool {
        let limits = self.limits();
        let set = self.list_mut().set(limits, index, element);
        if set {
            self.db.emit(self.key, Event::SILENT, Effect::ListSet { index, element });
        }
        set
    }

    /// Inserts an element before or behind the first that equals `pivot`. Returns false if there is none.
    pub fn insert(&mut self, pivot: &[u8], element: &[u8], after: bool) -> bool {
        let (limits, needle) = (self.limits(), Needle::new(pivot));
        let list = self.list_mut();
        list.make_room(limits, element.len(), 1);
        let Some(found) = list.iter(End::Left).position(|held| needle.is(held)) else { return false };
        list.insert(found, element, after);
        let index = found + usize::from(after);
        self.db.emit(self.key, Event::SILENT, Effect::ListInsert { index, element, pivot, after });
        true
    }

    /// Removes up to `most` elements that equal this one, searching from an end. Returns their number.
    pub fn remove(&mut self, element: &[u8], from: End, most: usize) -> usize {
        let limits = self.limits();
        let list = self.list_mut();
        let count = list.remove_equal(&Needle::new(element), from, most);
        if count > 0 {
            list.shrink_after_removal(limits);
            self.db.emit(self.key, Event::SILENT, Effect::ListRemove { from, count, element });
        }
        count
    }

    /// Publishes the event of the edit. A list without elements is removed, with its own event; the report of its last element's
    /// removal covers this.
    pub fn finish(self, event: Option<Event>) {
        if let Some(event) = event {
            self.db.keyspace.changes.publish(self.db.index, event, self.key);
        }
        if self.list().is_empty() {
            drop(self.db.keyspace.space.remove(self.db.dict, self.place));
            self.db.keyspace.changes.publish(self.db.index, Event::DEL, self.key);
        }
    }
}
