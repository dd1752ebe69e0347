//! Sorted sets in a database: every change is reported.
//!
//! Commands that read call [`Db::zset`] for a [`ZSetView`]. Commands that write take a [`ZSetEdit`], change members through it
//! and call [`ZSetEdit::finish`], which publishes the events and removes the key with its last member. [`Db::store_zset`] stores
//! whole results, as of `ZUNIONSTORE`.

use std::ops::Range;

use crate::base::error::{Error, Result};
use crate::keyspace::change::{Change, Classes, Effect, Event};
use crate::keyspace::databases::{Db, Keyspace, Ttl, ended};
use crate::keyspace::types::collection::Collection;
use crate::keyspace::types::sets::SetView;
use crate::store::dict::{KeyHasher, Place};
use crate::store::entry::{EntryRef, NewValue, ValueRef};
use crate::store::trie::below;
use crate::store::values::set::Member;
use crate::store::values::value::Value;
use crate::store::values::zset::{Item, Items, LexBound, ZSet};

/// An effect whose event is published later, once for all members of a command.
const SILENT: Event = Event::new(Classes::empty(), "");

impl Event {
    /// Members were added to a sorted set, or their scores set.
    pub const ZADD: Event = Event::new(Classes::ZSET, "zadd");
    /// A score was incremented.
    pub const ZINCR: Event = Event::new(Classes::ZSET, "zincr");
    /// Members were removed.
    pub const ZREM: Event = Event::new(Classes::ZSET, "zrem");
    /// Members were popped from the lower end.
    pub const ZPOPMIN: Event = Event::new(Classes::ZSET, "zpopmin");
    /// Members were popped from the upper end.
    pub const ZPOPMAX: Event = Event::new(Classes::ZSET, "zpopmax");
}

/// An end of a sorted set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The lowest score.
    Min,
    /// The highest.
    Max,
}

/// A sorted set that a command reads.
#[derive(Clone, Copy)]
pub struct ZSetView<'a> {
    zset: &'a ZSet,
    hasher: &'a KeyHasher,
}

#[allow(clippy::len_without_is_empty, reason = "a sorted set is never empty")]
impl<'a> ZSetView<'a> {
    /// Number of members.
    pub fn len(&self) -> usize {
        self.zset.len()
    }

    /// The score of a member.
    pub fn score(&self, member: &[u8]) -> Option<f64> {
        self.zset.score(self.hasher, member)
    }

    /// The rank of a member and its score.
    pub fn rank(&self, member: &[u8]) -> Option<(usize, f64)> {
        self.zset.rank(self.hasher, member)
    }

    /// Items of these ranks, in descending order if `reverse`.
    pub fn items(&self, ranks: Range<usize>, reverse: bool) -> Items<'a> {
        self.zset.items(ranks, reverse)
    }

    /// All items in their order.
    pub fn iter(&self) -> Items<'a> {
        self.zset.iter()
    }

    /// The item of a rank.
    pub fn get(&self, rank: usize) -> Option<Item<'a>> {
        self.zset.items(rank..rank.saturating_add(1), false).next()
    }

    /// The ranks of the members with scores in a range.
    pub fn score_ranks(&self, range: &ScoreRange) -> Range<usize> {
        score_ranks(self.zset, range)
    }

    /// The ranks of the members between two bounds; see [`ZSet::lex_ranks`].
    pub fn lex_ranks(&self, min: LexBound<'_>, max: LexBound<'_>, reverse: bool) -> Range<usize> {
        self.zset.lex_ranks(min, max, reverse)
    }

    /// Whether it is one buffer; Redis formats scores differently then.
    pub fn is_small(&self) -> bool {
        self.zset.is_small()
    }
}

impl<'a> Collection for ZSetView<'a> {
    type Element = Item<'a>;
    type Name = &'a [u8];

    fn size(&self) -> usize {
        self.len()
    }

    fn elements(&self) -> impl Iterator<Item = Item<'a>> {
        self.iter()
    }

    /// See [`ZSet::scan`].
    fn scan(&self, cursor: u64, count: usize, visit: impl FnMut(Item<'a>)) -> u64 {
        self.zset.scan(cursor, count, visit)
    }

    fn name(item: Item<'a>) -> &'a [u8] {
        item.member
    }

    fn hasher(&self) -> &KeyHasher {
        self.hasher
    }

    fn is_walked(&self) -> bool {
        self.is_small()
    }

    fn draw(&self, mut random: impl FnMut() -> u64) -> Item<'a> {
        self.get(below(random(), self.len())).unwrap_or_else(|| unreachable!("a sorted set in the database is never empty"))
    }

    fn drawn_below(&self) -> usize {
        self.len() / 8
    }
}

/// A range of scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoreRange {
    /// The lower end.
    pub min: f64,
    /// Whether the lower end itself is excluded.
    pub min_exclusive: bool,
    /// The upper end.
    pub max: f64,
    /// Whether the upper end itself is excluded.
    pub max_exclusive: bool,
}

fn score_ranks(zset: &ZSet, range: &ScoreRange) -> Range<usize> {
    let start = zset.count_below(range.min, range.min_exclusive);
    let end = zset.count_below(range.max, !range.max_exclusive);
    start..end.max(start)
}

/// A sorted set that a command changes.
pub struct ZSetEdit<'d, 'a> {
    db: &'d mut Db<'a>,
    key: &'d [u8],
    place: Place,
}

impl<'a> Db<'a> {
    /// The sorted set that a command reads. Counts as an access, and as a hit or a miss. Fails if the key holds another type.
    pub fn zset(&mut self, key: &[u8]) -> Result<Option<ZSetView<'_>>> {
        if self.read(key).is_none() {
            return Ok(None);
        }
        let hasher = self.keyspace.space.hasher();
        match self.present(key).map(EntryRef::value) {
            Some(ValueRef::Boxed(Value::ZSet(zset))) => Ok(Some(ZSetView { zset, hasher })),
            _ => Err(Error::WRONG_TYPE),
        }
    }

    /// Converts a sorted set to the large form, as Redis does when it sorts its members. Does nothing for other keys.
    pub fn make_zset_large(&mut self, key: &[u8]) {
        let Some(place) = self.locate(key).1 else { return };
        let hasher = self.keyspace.space.hasher().clone();
        if let Some(Value::ZSet(zset)) = self.keyspace.space.get_mut(self.dict, place).boxed() {
            zset.make_large(&hasher);
        }
    }

    /// The sorted set that a command changes; `None` if the key does not exist.
    pub fn edit_zset<'d>(&'d mut self, key: &'d [u8]) -> Result<Option<ZSetEdit<'d, 'a>>> {
        let Some(place) = self.locate(key).1 else { return Ok(None) };
        fail_if!(self.zset_at(place).is_none(), Error::WRONG_TYPE);
        self.touch(place);
        Ok(Some(ZSetEdit { db: self, key, place }))
    }

    /// The sorted set that a command adds members to; a new one if the key does not exist. It must not be left empty.
    pub fn edit_or_create_zset<'d>(&'d mut self, key: &'d [u8]) -> Result<ZSetEdit<'d, 'a>> {
        let (hash, place) = self.locate(key);
        if let Some(place) = place {
            fail_if!(self.zset_at(place).is_none(), Error::WRONG_TYPE);
            self.touch(place);
            return Ok(ZSetEdit { db: self, key, place });
        }
        let value = Box::new(Value::ZSet(ZSet::default()));
        let place = self.keyspace.space.insert(self.dict, hash, key, NewValue::Boxed(value), None);
        self.keyspace.changes.publish(self.index, Event::NEW, key);
        self.first_use(place);
        Ok(ZSetEdit { db: self, key, place })
    }

    /// Stores a whole result under the key; an empty one deletes the key. Fails if the key is native.
    pub fn store_zset(&mut self, key: &[u8], zset: ZSet, event: Event) -> Result {
        if zset.is_empty() {
            self.delete(key, Event::DEL).map(drop)
        } else {
            self.put(key, Box::new(Value::ZSet(zset)), Ttl::Clear, event)
        }
    }

    /// A key that has not expired, without removing it if it has.
    pub(crate) fn present(&self, key: &[u8]) -> Option<EntryRef<'_>> {
        let space = &self.keyspace.space;
        let entry = space.get(self.dict, space.find(self.dict, space.hash(key), key)?);
        (!ended(entry, self.now)).then_some(entry)
    }

    fn zset_at(&self, place: Place) -> Option<&ZSet> {
        if let ValueRef::Boxed(Value::ZSet(zset)) = self.keyspace.space.get(self.dict, place).value() { Some(zset) } else { None }
    }
}

impl ZSetEdit<'_, '_> {
    fn zset(&self) -> &ZSet {
        match self.db.zset_at(self.place) {
            Some(zset) => zset,
            None => unreachable!("the place was seen to hold a sorted set, and nothing else has had the database since"),
        }
    }

    /// Number of members.
    pub fn len(&self) -> usize {
        self.zset().len()
    }

    /// The score of a member.
    pub fn score(&self, member: &[u8]) -> Option<f64> {
        self.zset().score(self.db.keyspace.space.hasher(), member)
    }

    /// Converts the set to the form for this many more members, as Redis predicts it.
    pub fn make_room(&mut self, members: usize) {
        if members > self.db.keyspace.zset_limits.entries && self.zset().is_small() {
            self.change(|zset, hasher| zset.make_large(hasher));
        }
    }

    /// Sets the score of a member, which must not be NaN. Returns its previous score.
    pub fn insert(&mut self, member: &[u8], score: f64) -> Option<f64> {
        let limits = self.db.keyspace.zset_limits;
        let old = self.change(|zset, hasher| zset.insert(hasher, limits, member, score));
        self.db.emit(self.key, SILENT, Effect::ZSetAdd { member, score });
        old
    }

    /// Removes a member. Returns false if it does not exist.
    pub fn remove(&mut self, member: &[u8]) -> bool {
        let removed = self.change(|zset, hasher| zset.remove(hasher, member)).is_some();
        if removed {
            self.db.emit(self.key, SILENT, Effect::ZSetRemove { member });
        }
        removed
    }

    /// The ranks of the members with scores in a range.
    pub fn score_ranks(&self, range: &ScoreRange) -> Range<usize> {
        score_ranks(self.zset(), range)
    }

    /// The ranks of the members between two bounds; see [`ZSet::lex_ranks`].
    pub fn lex_ranks(&self, min: LexBound<'_>, max: LexBound<'_>) -> Range<usize> {
        self.zset().lex_ranks(min, max, false)
    }

    /// Removes the members of these ranks, after passing each to `visit`. Returns their number.
    pub fn take(&mut self, ranks: Range<usize>, mut visit: impl FnMut(Item<'_>)) -> usize {
        let (now, db, key) = (self.db.now, self.db.index, self.key);
        let mut taken = 0;
        let Keyspace { space, changes, .. } = &mut *self.db.keyspace;
        let hasher = space.hasher().clone();
        if let Some(Value::ZSet(zset)) = space.get_mut(self.db.dict, self.place).boxed() {
            zset.take(&hasher, ranks, |item| {
                visit(item);
                taken += 1;
                changes.emit(Change { now, db, key, event: SILENT, effect: Effect::ZSetRemove { member: item.member } });
            });
        }
        taken
    }

    /// Pops up to `count` members from one end, the outermost first.
    pub fn pop(&mut self, end: End, count: usize, mut visit: impl FnMut(Item<'_>)) {
        let len = self.len();
        let count = count.min(len);
        match end {
            End::Min => {
                self.take(0..count, visit);
            }
            End::Max => {
                for rank in (len - count..len).rev() {
                    self.take(rank..rank + 1, &mut visit);
                }
            }
        }
    }

    /// Publishes the events of the edit. A set without members is removed, with its own event.
    pub fn finish(self, events: &[Event]) {
        let db = self.db;
        for event in events {
            db.keyspace.changes.publish(db.index, *event, self.key);
        }
        if db.zset_at(self.place).is_some_and(ZSet::is_empty) {
            // The report of its last member's removal covers this.
            let entry = db.keyspace.space.remove(db.dict, self.place);
            db.keyspace.space.free_later(entry);
            db.keyspace.changes.publish(db.index, Event::DEL, self.key);
        }
    }

    fn change<T>(&mut self, change: impl FnOnce(&mut ZSet, &KeyHasher) -> T) -> T {
        let space = &mut self.db.keyspace.space;
        let hasher = space.hasher().clone();
        match space.get_mut(self.db.dict, self.place).boxed() {
            Some(Value::ZSet(zset)) => change(zset, &hasher),
            _ => unreachable!("the place was seen to hold a sorted set, and nothing else has had the database since"),
        }
    }
}

/// An input of `ZUNION` and similar commands.
#[derive(Clone, Copy)]
pub enum Source<'a> {
    /// A sorted set.
    ZSet(ZSetView<'a>),
    /// A set, whose members all have the score 1, and the texts of its integers.
    Set(SetView<'a>, &'a [String]),
}

#[allow(clippy::len_without_is_empty, reason = "no value is empty")]
impl<'a> Source<'a> {
    /// Number of members.
    pub fn len(&self) -> usize {
        match self {
            Source::ZSet(zset) => zset.len(),
            Source::Set(set, _) => set.len(),
        }
    }

    /// The score of a member.
    pub fn score(&self, member: &[u8]) -> Option<f64> {
        match self {
            Source::ZSet(zset) => zset.score(member),
            Source::Set(set, _) => set.contains(Member::Bytes(member)).then_some(1.0),
        }
    }

    /// All members with their scores.
    pub fn iter(&self) -> impl Iterator<Item = Item<'a>> + use<'a> {
        let (zset, set, digits) = match *self {
            Source::ZSet(zset) => (Some(zset), None, &[][..]),
            Source::Set(set, digits) => (None, Some(set), digits),
        };
        let strings = set.into_iter().flat_map(|set| set.iter()).filter_map(|member| match member {
            Member::Int(_) => None,
            Member::Bytes(member) => Some(member),
        });
        let members = digits.iter().map(String::as_bytes).chain(strings);
        zset.into_iter().flat_map(|zset| zset.iter()).chain(members.map(|member| Item { member, score: 1.0 }))
    }

    /// Whether both are the same value.
    pub fn is(&self, other: &Source<'_>) -> bool {
        match (self, other) {
            (Source::ZSet(a), Source::ZSet(b)) => std::ptr::eq(a.zset, b.zset),
            (Source::Set(a, _), Source::Set(b, _)) => std::ptr::eq(a.set(), b.set()),
            _ => false,
        }
    }
}

impl Db<'_> {
    /// The inputs of `ZUNION` and similar commands, `None` for a key that does not exist. Each counts as an access. Fails if a
    /// key holds another type. `digits` is filled with the integers among the members of sets.
    pub fn sources<'s>(&'s mut self, keys: &[&[u8]], digits: &'s mut Vec<Vec<String>>) -> Result<Vec<Option<Source<'s>>>> {
        for key in keys {
            digits.push(match self.read(key).map(EntryRef::value) {
                None | Some(ValueRef::Boxed(Value::ZSet(_))) => Vec::new(),
                Some(ValueRef::Boxed(Value::Set(set))) if set.is_ints() => {
                    set.iter().filter_map(|member| member.integer()).map(|n| n.to_string()).collect()
                }
                Some(ValueRef::Boxed(Value::Set(_))) => Vec::new(),
                Some(_) => return Err(Error::WRONG_TYPE),
            });
        }
        let digits: &'s [Vec<String>] = digits;
        let hasher = self.keyspace.space.hasher();
        let source = |(key, digits): (&&[u8], &'s Vec<String>)| match self.present(key)?.value() {
            ValueRef::Boxed(Value::ZSet(zset)) => Some(Source::ZSet(ZSetView { zset, hasher })),
            ValueRef::Boxed(Value::Set(_)) => self.view_set(key).map(|set| Source::Set(set, digits)),
            _ => None,
        };
        Ok(keys.iter().zip(digits).map(source).collect())
    }

    /// The hasher and the limits for a new sorted set.
    pub fn zset_form(&self) -> (KeyHasher, crate::store::values::zset::Limits) {
        (self.keyspace.space.hasher().clone(), self.keyspace.zset_limits)
    }
}
