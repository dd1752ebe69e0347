//! Recent events of each lock: the last events of the most recently used names.
//!
//! The grants of present holders and the last end of a grant stay, whatever came since: see `history/record.rs`.

pub mod breaks;
pub mod recent;
mod record;

use std::collections::VecDeque;
use std::hash::BuildHasher;

use foldhash::fast::FixedState;

use crate::base::chunks::Chunks;
use crate::base::ids::Key;
use crate::base::kept::Memory;
use crate::base::prefetch::prefetch;
use crate::base::segments::Segments;
use crate::lock::Deletion;
use crate::lock::grant::{Client, Owner, Reason};
use crate::lock::history::breaks::Breaks;
use crate::lock::history::recent::Recent;
use crate::lock::history::record::Record;

/// Default number of names whose events are kept.
pub const NAMES: usize = 4096;
/// Default number of events kept of a name.
pub const EVENTS: usize = 16;
/// Maximum number of bytes of a name that is remembered: longer ones would push the others out.
pub const NAME_MAX: usize = 4096;

/// The kind of an event.
#[allow(missing_docs, reason = "the documentation of the enum and of its variants has them")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// An owner was granted the lock with this token, after so many milliseconds of waiting.
    Granted { token: u64, waited_ms: u64 },
    /// The holder acquired it once more.
    Reentered,
    /// An owner began to wait.
    Queued,
    /// The holder released it; the token is that of the grant that ended.
    Released { token: u64 },
    /// A grant ended without a release; the token is its own.
    Ended { reason: Reason, token: u64 },
    /// A wait timed out.
    TimedOut,
    /// An owner stopped waiting: its connection was closed, or another client unblocked it.
    Left,
    /// A request without waiting was refused because the lock was held.
    Refused,
    /// A wait was refused because it would have closed a cycle.
    Deadlock,
}

impl What {
    /// Its name in `LOCK.WHY`.
    pub fn name(self) -> &'static str {
        match self {
            What::Granted { .. } => "granted",
            What::Reentered => "reentered",
            What::Queued => "queued",
            What::Released { .. } => "released",
            What::Ended { reason: Reason::Lease | Reason::MaxHold, .. } => "expired",
            What::Ended { reason: Reason::Deleted, .. } => "deleted",
            What::Ended { reason: Reason::Session, .. } => "session-ended",
            What::Ended { reason: Reason::Broken, .. } => "broken",
            What::TimedOut => "timed-out",
            What::Left => "left",
            What::Refused => "refused",
            What::Deadlock => "deadlock",
        }
    }

    /// Whether it ends a grant.
    pub fn is_end(self) -> bool {
        matches!(self, What::Released { .. } | What::Ended { .. })
    }

    /// The token of the grant that it makes or ends.
    pub fn token(self) -> Option<u64> {
        match self {
            What::Granted { token, .. } | What::Released { token } | What::Ended { token, .. } => Some(token),
            _ => None,
        }
    }
}

/// An event of a lock.
#[derive(Clone, Debug)]
pub struct Event {
    /// The time, in monotonic milliseconds.
    pub at_ms: u64,
    /// The kind.
    pub what: What,
    /// The owner.
    pub owner: Owner,
    /// The owner's connection; for [`Reason::Deleted`] and [`Reason::Broken`], the connection that deleted or broke the lock.
    pub client: Client,
}

/// Counts of a lock's events since it is remembered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Grants.
    pub granted: u64,
    /// Waits that began.
    pub contended: u64,
    /// Leases that ended.
    pub expired: u64,
}

const NIL: u32 = u32::MAX;
/// Bytes of a record's place and of its number in the index.
const PLACE: usize = size_of::<Record>() + 16;
/// Capacity that a reused record keeps for its next name, in bytes, and for that name's events.
const KEPT_NAME: usize = 64;
const KEPT_EVENTS: usize = 2;

/// The remembered events of all names.
pub struct History {
    hasher: FixedState,
    names: Segments,
    records: Chunks<Record>,
    oldest: u32,
    newest: u32,
    /// Maximum number of remembered names.
    names_max: usize,
    /// Maximum number of events of each name.
    events_max: usize,
    /// Bytes of the records besides their places.
    record_bytes: usize,
    /// Bytes that the history and its lists may have before the engine is asked to apply the budget of all memories of diagnosis.
    bytes_max: usize,
    /// Whether the engine is asked to apply that budget.
    is_over: bool,
    /// Who broke locks.
    pub breaks: Breaks,
    /// The latest events of all names that an operator asks about.
    pub recent: Recent,
}

impl History {
    /// Creates an empty history.
    pub fn new(seed: u64) -> Self {
        History {
            hasher: FixedState::with_seed(seed),
            names: Segments::default(),
            records: Chunks::default(),
            oldest: NIL,
            newest: NIL,
            names_max: NAMES,
            events_max: EVENTS,
            record_bytes: 0,
            bytes_max: usize::MAX,
            is_over: false,
            breaks: Breaks::default(),
            recent: Recent::default(),
        }
    }

    /// Sets the number of remembered names, and of events of each. Events beyond that are hidden at once. [`History::free_some`]
    /// and later uses of the names free their memory.
    pub fn set_bounds(&mut self, names: usize, events: usize) {
        (self.names_max, self.events_max) = (names, events);
        if names == 0 {
            // Without a history, there are no latest events either.
            self.recent = Recent::default();
        }
    }

    /// Whether the budget of all memories of diagnosis is to be applied.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Sets how many bytes the budget leaves the history, and ends [`History::is_over`].
    pub fn settle(&mut self, bytes_max: usize) {
        (self.bytes_max, self.is_over) = (bytes_max, false);
    }

    /// Bytes of the names and events, of the breaks and of the latest events.
    pub fn all_bytes(&self) -> usize {
        self.bytes() + self.breaks.0.bytes() + self.recent.bytes()
    }

    /// Asks the engine to apply the budget: another memory has grown.
    pub fn ask_for_budget(&mut self) {
        self.is_over = true;
    }

    /// Must be called when memory was added.
    #[cold]
    fn check_budget(&mut self) {
        self.is_over |= self.all_bytes() > self.bytes_max;
    }

    /// Whether more names are remembered than allowed.
    pub fn exceeds(&self) -> bool {
        self.records.len() > self.names_max
    }

    /// Forgets excess names, at most `budget` of them.
    pub fn free_some(&mut self, budget: &mut u32) {
        while *budget > 0 && self.exceeds() {
            *budget -= 1;
            self.forget_oldest();
        }
    }

    /// Number of names that are remembered.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Fast path of a lookup: several events in a row often have the same name.
    #[inline]
    fn is_newest(&self, key: Key<'_>) -> bool {
        let Some(record) = self.records.get(self.newest) else { return false };
        // Names that differ usually do so at their ends: most need no call to compare them.
        record.name.last() == key.name.last() && record.key() == key
    }

    fn find(&self, key: Key<'_>) -> Option<u32> {
        if self.is_newest(key) {
            return Some(self.newest);
        }
        self.find_by(self.hash(key), key)
    }

    fn hash(&self, key: Key<'_>) -> u32 {
        self.hasher.hash_one(key) as u32
    }

    fn find_by(&self, hash: u32, key: Key<'_>) -> Option<u32> {
        self.names.find(hash, |number| self.records.get(number).is_some_and(|record| record.key() == key))
    }

    /// The last events of a name, the oldest first. The grants of present holders and the last end are among them.
    pub fn events(&self, key: Key<'_>) -> impl DoubleEndedIterator<Item = &Event> {
        let record = self.find(key).and_then(|number| self.records.get(number));
        record.into_iter().flat_map(|record| record.iter(self.events_max))
    }

    /// The last end of a grant of a name.
    pub fn last_end(&self, key: Key<'_>) -> Option<&Event> {
        self.events(key).rev().find(|event| event.what.is_end())
    }

    /// Counts of a name's events.
    pub fn counts(&self, key: Key<'_>) -> Counts {
        self.find(key).and_then(|number| self.records.get(number)).map(|record| record.counts).unwrap_or_default()
    }

    /// The last grant to this owner, or the last end of a grant of it.
    pub fn last_of(&self, key: Key<'_>, owner: &[u8]) -> Option<&Event> {
        let is_of = |event: &&Event| event.what.is_end() || matches!(event.what, What::Granted { .. });
        self.events(key).rev().find(|event| is_of(event) && event.owner[..] == *owner)
    }

    /// Records the end of a grant, which may be earlier than the last recorded event. If the grant is not remembered, its end is
    /// recorded only where it is the latest event.
    pub fn note_end(&mut self, name: &[u8], what: What, owner: &[u8], deletion: Deletion) {
        let Deletion { db, at_ms, by: client, next_token, .. } = deletion;
        let key = Key { db, name };
        let record = self.find(key).and_then(|number| self.records.get_mut(number));
        let events_max = self.events_max;
        let granted = |event: &Event| matches!(event.what, What::Granted { token, .. } if Some(token) == what.token());
        if let Some(record) = record
            && let Some(from) = record.events.iter().rposition(granted)
        {
            let since = |event: &Event| matches!(event.what, What::Granted { token, .. } if token >= next_token);
            let later = |event: &Event| event.at_ms > at_ms || since(event);
            let behind = record.events.iter().skip(from + 1).position(later).map_or(record.events.len(), |at| from + 1 + at);
            let event = Event { at_ms, what, owner: Owner::from_slice(owner), client };
            self.recent.note(key, &event);
            let before = record.bytes;
            record.insert(behind, event, events_max);
            self.record_bytes = self.record_bytes + record.bytes - before;
            self.check_budget();
        } else if self.events(key).next_back().is_none_or(|last| last.at_ms <= at_ms) {
            self.note_notable(key, at_ms, what, owner, client);
        }
    }

    /// Records a refused deadlock, or the end of a grant without a release: an event that an operator asks about.
    pub fn note_notable(&mut self, key: Key<'_>, at_ms: u64, what: What, owner: &[u8], client: Client) {
        if self.names_max > 0 && key.name.len() <= NAME_MAX {
            self.recent.note(key, &Event { at_ms, what, owner: Owner::from_slice(owner), client });
            self.check_budget();
        }
        self.note(key, at_ms, what, owner, client);
    }

    /// Records an event other than those of [`History::note_notable`].
    pub fn note(&mut self, key: Key<'_>, at_ms: u64, what: What, owner: &[u8], client: Client) {
        if self.names_max == 0 {
            return;
        }
        if !self.is_newest(key) {
            let hash = self.hash(key);
            let number = match self.find_by(hash, key) {
                Some(number) => number,
                None if key.name.len() > NAME_MAX => return,
                None => self.begin(hash, key),
            };
            if self.newest != number {
                self.make_newest(number);
            }
        }
        let Some(record) = self.records.get_mut(self.newest) else { return };
        match what {
            What::Granted { .. } => record.counts.granted += 1,
            What::Queued => record.counts.contended += 1,
            What::Ended { reason: Reason::Lease | Reason::MaxHold, .. } => record.counts.expired += 1,
            _ => {}
        }
        let owner = Owner::from_slice(owner);
        let before = record.bytes;
        record.push(Event { at_ms, what, owner, client }, self.events_max);
        if record.bytes != before {
            self.record_bytes = self.record_bytes + record.bytes - before;
            self.check_budget();
        }
    }

    /// Creates the record of a new name. Reuses the oldest record when there are enough.
    fn begin(&mut self, hash: u32, key: Key<'_>) -> u32 {
        if self.exceeds() {
            self.forget_oldest();
        }
        let (oldest, full) = (self.oldest, self.records.len() >= self.names_max);
        if let Some(record) = self.records.get_mut(oldest).filter(|_| full) {
            self.names.remove(record.hash, oldest);
            (record.db, record.hash, record.counts) = (key.db, hash, Counts::default());
            record.name.clear();
            record.name.extend_from_slice(key.name);
            record.clear();
            if record.name.capacity() > KEPT_NAME {
                record.name.shrink_to(KEPT_NAME);
            }
            if record.events.capacity() > KEPT_EVENTS {
                record.events.shrink_to(KEPT_EVENTS);
            }
            let (next, before) = (record.newer, record.bytes);
            record.bytes = record.measure();
            self.record_bytes = self.record_bytes + record.bytes - before;
            let grows = record.bytes > before;
            self.names.insert(hash, oldest);
            self.prefetch(next);
            if grows {
                self.check_budget();
            }
            return oldest;
        }
        let record = Record::new(key.db, key.name.into(), hash, VecDeque::with_capacity(KEPT_EVENTS));
        self.record_bytes += record.bytes;
        let number = self.records.insert(record);
        self.names.insert(hash, number);
        self.link(number);
        self.check_budget();
        number
    }

    /// Prefetches the records that the next new names will reuse: they were last touched as many names ago as are remembered.
    fn prefetch(&self, next: u32) {
        if let Some(next) = self.records.get(next) {
            prefetch(next.name.as_ptr());
            prefetch(next.events.as_slices().0.as_ptr().cast());
            self.records.prefetch(next.newer);
        }
    }

    fn unlink(&mut self, number: u32) {
        let Some(Record { older, newer, .. }) = self.records.get(number) else { return };
        let (older, newer) = (*older, *newer);
        match self.records.get_mut(older) {
            Some(record) => record.newer = newer,
            None => self.oldest = newer,
        }
        if let Some(record) = self.records.get_mut(newer) { record.older = older } else { self.newest = older }
    }

    /// Moves a record that is not the newest to that end of the line.
    fn make_newest(&mut self, number: u32) {
        let newest = std::mem::replace(&mut self.newest, number);
        let Some(record) = self.records.get_mut(number) else { return };
        let (older, newer) = (record.older, record.newer);
        (record.older, record.newer) = (newest, NIL);
        match self.records.get_mut(older) {
            Some(record) => record.newer = newer,
            None => self.oldest = newer,
        }
        // The next record may be the newest one so far, which both lines then change.
        if let Some(record) = self.records.get_mut(newer) {
            record.older = older;
        }
        if let Some(record) = self.records.get_mut(newest) {
            record.newer = number;
        }
    }

    fn link(&mut self, number: u32) {
        let newest = std::mem::replace(&mut self.newest, number);
        match self.records.get_mut(newest) {
            Some(record) => record.newer = number,
            None => self.oldest = number,
        }
        if let Some(record) = self.records.get_mut(number) {
            (record.older, record.newer) = (newest, NIL);
        }
    }

    /// Panics if an invariant is broken.
    pub fn check_invariants(&self) {
        let (mut at, mut count) = (self.oldest, 0);
        while let Some(record) = self.records.get(at) {
            assert_eq!(self.find(record.key()), Some(at));
            record.check_invariants();
            (at, count) = (record.newer, count + 1);
        }
        assert_eq!(count, self.records.len(), "all records are in line");
        assert_eq!(self.records.iter().map(|(_, record)| record.bytes).sum::<usize>(), self.record_bytes, "bytes are counted");
    }
}

/// The names and their events. The breaks and the latest events are memories of their own.
impl Memory for History {
    fn bytes(&self) -> usize {
        self.record_bytes + self.records.len() * PLACE
    }

    fn oldest_ms(&self) -> Option<u64> {
        self.records.get(self.oldest).and_then(|record| record.events.back()).map(|event| event.at_ms)
    }

    fn forget_oldest(&mut self) {
        let number = self.oldest;
        if self.records.get(number).is_some() {
            self.unlink(number);
            if let Some(record) = self.records.try_remove(number) {
                self.names.remove(record.hash, number);
                self.record_bytes -= record.bytes;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn present_grants_and_the_last_end_are_remembered_whatever_comes_since() {
        let mut history = History::new(1);
        let mut at_ms = 0;
        let mut note = |history: &mut History, what: What, owner: &str| {
            at_ms += 1;
            history.note(Key { db: 0, name: b"a" }, at_ms, what, owner.as_bytes(), Client::default());
            history.check_invariants();
        };
        let granted = |token| What::Granted { token, waited_ms: 7 };
        let shown = |history: &History| -> Vec<String> {
            let events = history.events(Key { db: 0, name: b"a" }).filter(|event| event.what != What::Refused);
            events.map(|event| format!("{} {}", event.what.name(), event.owner[0] as char)).collect()
        };
        for (token, owner) in [(1, "x"), (2, "y"), (3, "z")] {
            note(&mut history, granted(token), owner);
        }
        note(&mut history, What::Released { token: 2 }, "y");
        (0..100).for_each(|_| note(&mut history, What::Refused, "w"));
        assert_eq!(shown(&history), ["granted x", "granted z", "released y"]);
        note(&mut history, What::Ended { reason: Reason::Broken, token: 1 }, "x");
        assert_eq!(shown(&history), ["granted z", "broken x"], "the end before is not the last one any more");
        assert_eq!(history.last_end(Key { db: 0, name: b"a" }).and_then(|event| event.what.token()), Some(1));
        (0..100).for_each(|_| note(&mut history, What::Refused, "w"));
        note(&mut history, granted(4), "z");
        assert_eq!(shown(&history), ["broken x", "granted z"], "a grant that replaces one");
        // Very many holders: their oldest grants are not kept.
        for token in 10..100 {
            note(&mut history, granted(token), &char::from(token as u8 + 33).to_string());
        }
        assert!(history.events(Key { db: 0, name: b"a" }).count() <= 2 * EVENTS + 2);
        assert_eq!(shown(&history).iter().filter(|event| event.starts_with("broken")).count(), 1);
    }

    #[test]
    fn the_names_used_last_are_remembered_each_with_its_last_events() {
        let mut history = History::new(1);
        history.set_bounds(3, EVENTS);
        for at in 0..100u64 {
            for name in [b"a", b"b", b"c", b"d"] {
                if name != b"d" || at == 50 {
                    history.note(Key { db: 0, name }, at, What::Queued, b"x", Client::default());
                    history.check_invariants();
                }
            }
        }
        assert_eq!(history.len(), 3);
        assert_eq!(history.events(Key { db: 0, name: b"d" }).count(), 0, "the oldest is forgotten");
        let at: Vec<u64> = history.events(Key { db: 0, name: b"b" }).map(|event| event.at_ms).collect();
        assert_eq!(at, (100 - EVENTS as u64..100).collect::<Vec<_>>());
        assert!(history.counts(Key { db: 0, name: b"b" }).contended < 100, "counted anew after it was forgotten");
        history.set_bounds(3, 2);
        assert_eq!(
            history.events(Key { db: 0, name: b"b" }).map(|event| event.at_ms).collect::<Vec<_>>(),
            [98, 99],
            "fewer are shown at once"
        );
        history.note(Key { db: 0, name: b"b" }, 100, What::Queued, b"x", Client::default());
        assert_eq!(history.events(Key { db: 0, name: b"b" }).map(|event| event.at_ms).collect::<Vec<_>>(), [99, 100]);
        history.set_bounds(0, 2);
        history.note(Key { db: 0, name: b"z" }, 1, What::Queued, b"x", Client::default());
        assert_eq!(history.events(Key { db: 0, name: b"z" }).count(), 0);
        assert!(history.exceeds());
        let mut budget = 2;
        history.free_some(&mut budget);
        assert_eq!((history.len(), budget), (1, 0), "in pieces");
        history.free_some(&mut 2);
        assert!(history.len() == 0 && !history.exceeds());
        history.check_invariants();
    }
}
