//! The remembered events of one name: the last ones, and those that explain its present state, however long ago they were.

use std::collections::VecDeque;

use crate::base::ids::Key;
use crate::base::kept::block;
use crate::lock::history::{Counts, Event, What};

/// Maximum number of present grants whose events are kept beyond the last events.
const KEPT_MAX: usize = 16;

/// The remembered events of a name.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) db: u32,
    pub(super) name: Vec<u8>,
    pub(super) hash: u32,
    /// The last events, the oldest first.
    pub(super) events: VecDeque<Event>,
    /// Number of ends of grants among those.
    ends: u32,
    /// Events before those, the oldest first: the grants of present holders, and the last end of a grant if there is no later one.
    kept: Vec<Event>,
    /// Bytes of the owners of all events that are too long to be within the events.
    owners: usize,
    /// All bytes of the record besides its place, as [`Record::measure`] counts them.
    pub(super) bytes: usize,
    pub(super) counts: Counts,
    /// Neighbours in the order of last use.
    pub(super) older: u32,
    pub(super) newer: u32,
}

impl Record {
    /// The name and its database.
    #[inline]
    pub(super) fn key(&self) -> Key<'_> {
        Key { db: self.db, name: &self.name }
    }

    /// A record without events.
    pub(super) fn new(db: u32, name: Vec<u8>, hash: u32, events: VecDeque<Event>) -> Record {
        let (kept, counts) = (Vec::new(), Counts::default());
        let mut record =
            Record { db, name, hash, events, ends: 0, kept, owners: 0, bytes: 0, counts, older: u32::MAX, newer: u32::MAX };
        record.bytes = record.measure();
        record
    }

    /// Bytes of the name, of the events and of their owners.
    pub(super) fn measure(&self) -> usize {
        let events = |places: usize| block(places * size_of::<Event>());
        block(self.name.capacity()) + events(self.events.capacity()) + events(self.kept.capacity()) + self.owners
    }

    /// Counts the owner of an event that is added.
    #[inline]
    fn count_owner(&mut self, event: &Event) {
        if event.owner.spilled() {
            self.owners += block(event.owner.len());
            self.bytes = self.measure();
        }
    }

    /// Stops counting the owner of an event that is dropped.
    #[inline]
    fn uncount_owner(&mut self, event: &Event) {
        if event.owner.spilled() {
            self.owners -= block(event.owner.len());
            self.bytes = self.measure();
        }
    }

    /// Makes room for one more event. Beyond the bound there is one, until the oldest is dropped.
    #[cold]
    fn grow(&mut self, events_max: usize) {
        let places = (2 * self.events.len()).min(events_max + 1).max(self.events.len() + 1);
        self.events.reserve_exact(places - self.events.len());
        self.bytes = self.measure();
    }

    /// Forgets all events.
    pub(super) fn clear(&mut self) {
        self.events.clear();
        self.ends = 0;
        self.kept = Vec::new();
        self.owners = 0;
    }

    /// Adds an event behind all others.
    #[inline]
    pub(super) fn push(&mut self, event: Event, events_max: usize) {
        if !self.kept.is_empty() {
            self.outdate(event.what, &event.owner);
        }
        self.make_room(&event, events_max);
        self.events.push_back(event);
        while self.events.len() > events_max {
            self.drop_oldest();
        }
    }

    /// Adds an event before the one at an index.
    pub(super) fn insert(&mut self, at: usize, event: Event, events_max: usize) {
        self.outdate(event.what, &event.owner);
        self.make_room(&event, events_max);
        self.events.insert(at, event);
        while self.events.len() > events_max {
            self.drop_oldest();
        }
    }

    #[inline]
    fn make_room(&mut self, event: &Event, events_max: usize) {
        self.ends += u32::from(event.what.is_end());
        self.count_owner(event);
        if self.events.len() == self.events.capacity() {
            self.grow(events_max);
        }
    }

    /// Drops the oldest of the last events, or keeps it among those that stay. It usually need not stay: others follow it.
    #[inline]
    fn drop_oldest(&mut self) {
        let Some(oldest) = self.events.front() else { return };
        let (end, needed) = match oldest.what {
            What::Granted { token, .. } => (false, !self.is_over(token, &oldest.owner)),
            what if what.is_end() => (true, self.ends == 1),
            _ => (false, false),
        };
        self.ends -= u32::from(end);
        match self.events.pop_front() {
            Some(oldest) if needed => self.keep(oldest),
            Some(oldest) => self.uncount_owner(&oldest),
            None => {}
        }
    }

    /// Whether an event after the oldest one shows that the grant which that one made has ended or was replaced.
    #[inline]
    fn is_over(&self, granted: u64, owner: &[u8]) -> bool {
        // By index: the event is nearly always one of the next few.
        (1..self.events.len()).any(|at| {
            let later = &self.events[at];
            match later.what {
                What::Released { token } | What::Ended { token, .. } => token == granted || later.owner[..] == *owner,
                What::Granted { .. } => later.owner[..] == *owner,
                _ => false,
            }
        })
    }

    #[cold]
    fn keep(&mut self, event: Event) {
        if event.what.is_end() {
            self.retain_kept(|kept| !kept.what.is_end());
        } else if self.kept.len() > KEPT_MAX {
            let oldest = self.kept.iter().position(|kept| !kept.what.is_end()).unwrap_or(0);
            let oldest = self.kept.remove(oldest);
            self.uncount_owner(&oldest);
        }
        self.kept.push(event);
        self.bytes = self.measure();
    }

    fn retain_kept(&mut self, stays: impl Fn(&Event) -> bool) {
        let gone = self.kept.iter().filter(|kept| kept.owner.spilled() && !stays(kept));
        self.owners -= gone.map(|kept| block(kept.owner.len())).sum::<usize>();
        self.kept.retain(stays);
        self.bytes = self.measure();
    }

    /// Removes the kept events that a new one makes unimportant.
    #[cold]
    fn outdate(&mut self, what: What, owner: &[u8]) {
        let (end, grant) = (what.is_end(), matches!(what, What::Granted { .. }));
        self.retain_kept(|kept| match kept.what {
            What::Granted { .. } => !(end || grant) || kept.owner[..] != *owner,
            _ => !end,
        });
    }

    /// Panics if an invariant is broken.
    pub(super) fn check_invariants(&self) {
        assert!(!self.events.is_empty());
        assert_eq!(self.ends as usize, self.events.iter().filter(|event| event.what.is_end()).count(), "ends are counted");
        let events = || self.kept.iter().chain(&self.events);
        assert!(events().is_sorted_by_key(|event| event.at_ms), "events are in order");
        let owners: usize = events().filter(|event| event.owner.spilled()).map(|event| block(event.owner.len())).sum();
        assert_eq!((self.owners, self.bytes), (owners, self.measure()), "bytes are counted");
    }

    /// All events, the oldest first, without those beyond a bound that was lowered.
    pub(super) fn iter(&self, events_max: usize) -> impl DoubleEndedIterator<Item = &Event> {
        self.kept.iter().chain(self.events.range(self.events.len().saturating_sub(events_max)..))
    }
}
