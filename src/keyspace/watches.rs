//! `WATCH`: keys whose change makes the next `EXEC` of a session do nothing.
//!
//! Every change of a key comes by [`crate::keyspace::change::Changes::emit`]. There whoever watches the key is marked as touched, and the
//! key has no watchers any more: each `WATCH` costs one such mark at the most, however often the key changes.
//!
//! A key whose deadline has passed is no key, so its removal is no change to who watched it then; but one that ends between
//! `WATCH` and `EXEC` is changed, whether it was removed yet or not.
//!
//! Until a watcher is touched all its keys are as they were when it began to watch them, their deadlines included. So what it notes then is
//! enough to tell, without a look at a million keys, whether one of them has ended since, or goes with its database.

use std::collections::BTreeSet;

use crate::base::time::Now;
use crate::keyspace::databases::Keyspace;
use crate::keyspace::interests::{Interests, NIL};

/// What is known of a session that watches keys. A link is marked where the key had ended, and was not removed yet, when it was
/// watched.
#[derive(Debug)]
struct Watcher {
    /// A key that it watches has changed.
    touched: bool,
    /// When the first of its keys ends, in monotonic milliseconds; the end of time where none does.
    first_end_ms: u64,
    /// The databases in which there was a key that it watches, and which had not ended.
    present: BTreeSet<u32>,
}

impl Default for Watcher {
    fn default() -> Self {
        Watcher { touched: false, first_end_ms: u64::MAX, present: BTreeSet::new() }
    }
}

/// All watched keys. A session knows the number of its watcher, [`NIL`] where it watches nothing.
pub struct Watches {
    interests: Interests<Watcher>,
}

impl Watches {
    /// Nobody watches anything.
    pub fn new(seed: u64) -> Self {
        Watches { interests: Interests::new(seed) }
    }

    /// Whether nobody watches anything.
    pub fn is_empty(&self) -> bool {
        self.interests.is_empty()
    }

    /// Number of sessions that watch something.
    pub fn watchers(&self) -> usize {
        self.interests.owners()
    }

    /// Number of keys that are watched.
    pub fn keys(&self) -> usize {
        self.interests.keys()
    }

    /// How many keys a watcher watches.
    pub fn count(&self, watcher: u32) -> u32 {
        self.interests.count(watcher)
    }

    /// Bytes that the keys of a watcher take up, about.
    pub fn bytes(&self, watcher: u32) -> usize {
        self.interests.bytes(watcher)
    }

    /// Whether a key that the watcher watches was changed.
    pub fn touched(&self, watcher: u32) -> bool {
        self.interests.owner(watcher).is_some_and(|watcher| watcher.touched)
    }

    /// Has a watcher, a new one where it is [`NIL`], watch a key; gives its number.
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

    /// Ends a watcher and all it watches.
    pub fn unwatch(&mut self, watcher: u32) {
        if watcher != NIL {
            self.interests.leave(watcher);
        }
    }

    /// A key was changed, and perhaps only by something of it that is gone.
    pub fn touch(&mut self, db: u32, key: &[u8], removed: bool) {
        let Some(key) = self.interests.find(db, key) else { return };
        let mut link = self.interests.first(key);
        while link != NIL {
            let next = self.interests.next(link);
            // What had ended already and is removed now is not changed by that: a key that has ended is removed before
            // anything else is done to it.
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

    /// Whether links of watchers that are gone wait to be freed.
    pub fn has_retired(&self) -> bool {
        self.interests.has_retired()
    }

    /// Frees links of watchers that are gone, at most `budget`.
    pub fn free_some(&mut self, budget: &mut u32) {
        self.interests.free_some(budget);
    }

    /// Panics where the state is not what it should be. Walks everything.
    pub fn check_invariants(&self) {
        self.interests.check_invariants();
    }
}

/// Whether a key is there, and has not ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Missing,
    /// It has ended and was not removed yet.
    Stale,
    Present {
        /// When it will have ended, in monotonic milliseconds; the end of time where it will not.
        end_ms: u64,
    },
}

impl Keyspace {
    /// Has a watcher watch a key; see `Watches::watch`.
    pub fn watch(&mut self, watcher: u32, db: u32, key: &[u8], now: Now) -> u32 {
        let state = self.state(db, key, now);
        let watcher = self.changes.watches.watch(watcher, db, key, state);
        self.changes.update_observed();
        watcher
    }

    /// Whether a key of the watcher was changed, or has ended and was not removed yet.
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

    /// Before a database is emptied: whoever watches a key that is in there is touched.
    #[cold]
    pub(crate) fn touch_flushed(&mut self, db: u32) {
        for watcher in self.changes.watches.interests.all_owners_mut() {
            watcher.touched |= watcher.present.contains(&db);
        }
    }

    /// Before two databases change places: whoever watches a key that is in one of them is touched.
    #[cold]
    pub(crate) fn touch_swapped(&mut self, a: u32, b: u32, now: Now) {
        let all = &self.changes.watches.interests;
        let watched: Vec<u32> = all.all_keys().filter(|key| key.1 == a || key.1 == b).map(|key| key.0).collect();
        for key in watched {
            let (db, name) = self.changes.watches.interests.key(key);
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

    /// Decides for each link of a watched key, by whether the key had ended already when it was watched.
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

/// What becomes of a watched key.
enum Fate {
    /// There is no such key, as before.
    Same,
    /// It is another one.
    Changed,
    /// There was none, and there is one now that has ended already.
    Ended,
}
