//! `WATCH`: keys whose change aborts the next `EXEC` of a session.
//!
//! If sessions watch keys, each change of a key is passed to [`Changes::report`](crate::keyspace::change::Changes::report). It
//! marks all watchers of the key as touched and removes them from the key: each `WATCH` costs at most one such mark, however often
//! the key changes.
//!
//! An expired key does not exist, so its removal is no change to a session that began to watch it after it expired. A key that
//! expires between `WATCH` and `EXEC` counts as changed, whether it was removed yet or not.
//!
//! Until a watcher is touched, all its keys are as they were when it began to watch them, including their deadlines. So the state
//! at that time is enough to tell, without a look at a million keys, whether one of them has expired since, or is removed with
//! its database.

use std::collections::BTreeSet;

use crate::base::ids::Key;
use crate::base::time::Now;
use crate::keyspace::databases::Keyspace;
use crate::keyspace::interests::{Interests, NIL};

/// A session that watches keys. A link is marked if the key had expired, but was not removed yet, when the session began to watch
/// it.
#[derive(Debug)]
struct Watcher {
    /// Whether a watched key has changed.
    touched: bool,
    /// When the first of its keys expires, in monotonic milliseconds; `u64::MAX` if none does.
    first_end_ms: u64,
    /// The databases in which at least one of its keys existed.
    present: BTreeSet<u32>,
}

impl Default for Watcher {
    fn default() -> Self {
        Watcher { touched: false, first_end_ms: u64::MAX, present: BTreeSet::new() }
    }
}

/// All watched keys. A session knows the number of its watcher, [`NIL`] if it watches nothing.
pub struct Watches {
    interests: Interests<Watcher>,
}

impl Watches {
    /// Creates an empty set of watchers.
    pub fn new(seed: u64) -> Self {
        Watches { interests: Interests::new(seed) }
    }

    /// Whether there are no watchers.
    pub fn is_empty(&self) -> bool {
        self.interests.is_empty()
    }

    /// Number of sessions that watch keys.
    pub fn watchers(&self) -> usize {
        self.interests.owners()
    }

    /// Number of watched keys.
    pub fn keys(&self) -> usize {
        self.interests.keys()
    }

    /// Number of keys that a watcher watches.
    pub fn count(&self, watcher: u32) -> u32 {
        self.interests.count(watcher)
    }

    /// Approximate bytes of a watcher's keys.
    pub fn bytes(&self, watcher: u32) -> usize {
        self.interests.bytes(watcher)
    }

    /// Whether a key of the watcher was changed.
    pub fn touched(&self, watcher: u32) -> bool {
        self.interests.owner(watcher).is_some_and(|watcher| watcher.touched)
    }

    /// Adds a key to a watcher; [`NIL`] creates a new watcher. Returns the watcher's number.
    fn watch(&mut self, number: u32, db: u32, key: &[u8], state: State) -> u32 {
        let number = if number == NIL { self.interests.enter(Watcher::default()) } else { number };
        if self.interests.link(number, db, key, state == State::Stale)
            && let State::Present { end_ms } = state
            && let Some(watcher) = self.interests.owner_mut(number)
        {
            watcher.present.insert(db);
            watcher.first_end_ms = watcher.first_end_ms.min(end_ms);
        }
        number
    }

    /// Removes a watcher and all its keys.
    pub fn unwatch(&mut self, watcher: u32) {
        if watcher != NIL {
            self.interests.leave(watcher);
        }
    }

    /// Records a change of a key. `removed` tells that the change may only have removed expired data.
    pub fn touch(&mut self, db: u32, key: &[u8], removed: bool) {
        let Some(key) = self.interests.find(db, key) else { return };
        let mut link = self.interests.first(key);
        while link != NIL {
            let next = self.interests.next(link);
            // The removal of a key that had expired already is no change: an expired key is removed before anything else is done
            // to it.
            if !removed || !self.interests.marked(link) {
                self.touch_link(link);
            }
            link = next;
        }
    }

    fn touch_link(&mut self, link: u32) {
        if let Some(watcher) = self.interests.owner_of(link).and_then(|owner| self.interests.owner_mut(owner)) {
            watcher.touched = true;
        }
        self.interests.unlink(link);
    }

    /// Whether links of former watchers wait to be freed.
    pub fn has_retired(&self) -> bool {
        self.interests.has_retired()
    }

    /// Frees links of former watchers, at most `budget`.
    pub fn free_some(&mut self, budget: &mut u32) {
        self.interests.free_some(budget);
    }

    /// Panics if an invariant is broken. Walks everything.
    pub fn check_invariants(&self) {
        self.interests.check_invariants();
    }
}

/// Whether a key exists and has not expired.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Missing,
    /// It has expired, but was not removed yet.
    Stale,
    Present {
        /// When it expires, in monotonic milliseconds; `u64::MAX` if it does not.
        end_ms: u64,
    },
}

impl Keyspace {
    /// Adds a key to a watcher; see `Watches::watch`.
    pub fn watch(&mut self, watcher: u32, db: u32, key: &[u8], now: Now) -> u32 {
        let state = self.state(db, key, now);
        let watcher = self.changes.watches.watch(watcher, db, key, state);
        self.changes.update_observed();
        watcher
    }

    /// Whether a key of the watcher was changed or has expired, removed yet or not.
    pub fn watched_changed(&self, watcher: u32, now: Now) -> bool {
        let watcher = self.changes.watches.interests.owner(watcher);
        watcher.is_some_and(|watcher| watcher.touched || now.reached(watcher.first_end_ms))
    }

    fn state(&self, db: u32, key: &[u8], now: Now) -> State {
        match self.end_of(db, key) {
            None => State::Missing,
            Some(end_ms) if now.reached(end_ms) => State::Stale,
            Some(end_ms) => State::Present { end_ms },
        }
    }

    /// Must be called before a database is emptied: marks the watchers of keys that exist in it.
    #[cold]
    pub(crate) fn touch_flushed(&mut self, db: u32) {
        for watcher in self.changes.watches.interests.all_owners_mut() {
            watcher.touched |= watcher.present.contains(&db);
        }
    }

    /// Must be called before two databases are swapped: marks the watchers of keys that exist in one of them.
    #[cold]
    pub(crate) fn touch_swapped(&mut self, a: u32, b: u32, now: Now) {
        let all = &self.changes.watches.interests;
        let watched: Vec<u32> = all.all_keys().filter(|key| key.1 == a || key.1 == b).map(|key| key.0).collect();
        for key in watched {
            let Key { db, name } = self.changes.watches.interests.key(key);
            let before = self.state(db, name, now);
            let after = self.state(if db == a { b } else { a }, name, now);
            if (before, after) != (State::Missing, State::Missing) {
                self.touch_links(key, |ended| match (ended, after) {
                    (true, State::Missing | State::Stale) => Fate::Same,
                    (false, State::Stale) if before == State::Missing => Fate::Ended,
                    _ => Fate::Changed,
                });
            }
        }
    }

    /// Decides for each link of a watched key, depending on whether the key had expired already when it was watched.
    fn touch_links(&mut self, key: u32, fate: impl Fn(bool) -> Fate) {
        let watches = &mut self.changes.watches;
        let mut link = watches.interests.first(key);
        while link != NIL {
            let next = watches.interests.next(link);
            match fate(watches.interests.marked(link)) {
                Fate::Same => {}
                Fate::Changed => watches.touch_link(link),
                Fate::Ended => watches.interests.mark(link, true),
            }
            link = next;
        }
    }
}

/// What a swap does to a watched key.
enum Fate {
    /// It did not exist, and does not exist now.
    Same,
    /// It changed.
    Changed,
    /// It did not exist, and an expired key has its name now.
    Ended,
}
