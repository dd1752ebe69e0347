//! `WATCH`: keys whose change makes the next `EXEC` of a session do nothing.
//!
//! Every change of a key comes by [`crate::engine::change::Changes::emit`]. There whoever watches the key is marked as touched, and the
//! key has no watchers any more: each `WATCH` costs one such mark at the most, however often the key changes.
//!
//! A key whose deadline has passed is no key, so its removal is no change to who watched it then; but one that ends between
//! `WATCH` and `EXEC` is changed, whether it was removed yet or not.

use crate::engine::interest::{Interests, NIL};
use crate::engine::keyspace::Keyspace;
use crate::engine::time::Now;

/// What is known of a session that watches keys. A link is marked where the key had ended, and was not removed yet, when it was
/// watched.
#[derive(Debug, Default)]
struct Watcher {
    /// A key that it watches has changed.
    touched: bool,
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

    /// Has a watcher, a new one where it is [`NIL`], watch a key; gives its number. `stale` says that the key has ended and is still
    /// there.
    pub fn watch(&mut self, watcher: u32, db: u32, key: &[u8], stale: bool) -> u32 {
        let watcher = if watcher == NIL { self.interests.enter(Watcher::default()) } else { watcher };
        self.interests.link(watcher, db, key, stale);
        watcher
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
    Present,
}

impl Keyspace {
    /// Has a watcher watch a key; see [`Watches::watch`].
    pub fn watch(&mut self, watcher: u32, db: u32, key: &[u8], now: Now) -> u32 {
        let stale = self.state(db, key, now) == State::Stale;
        let watcher = self.changes.watches.watch(watcher, db, key, stale);
        self.changes.update_observed();
        watcher
    }

    /// Whether a key of the watcher was changed, or has ended and was not removed yet.
    pub fn watched_changed(&self, watcher: u32, now: Now) -> bool {
        let Watches { interests } = &self.changes.watches;
        self.changes.watches.touched(watcher)
            || interests.links_of(watcher).any(|link| {
                let (db, key) = interests.key(interests.key_of(link));
                !interests.marked(link) && self.state(db, key, now) == State::Stale
            })
    }

    fn state(&self, db: u32, key: &[u8], now: Now) -> State {
        match self.glance(db, key, now) {
            None => State::Missing,
            Some(true) => State::Stale,
            Some(false) => State::Present,
        }
    }

    /// Before a database is emptied: whoever watches a key in there is touched.
    #[cold]
    pub(crate) fn touch_flushed(&mut self, db: u32, now: Now) {
        let all = &self.changes.watches.interests;
        let watched: Vec<u32> = all.all_keys().filter(|key| key.1 == db).map(|key| key.0).collect();
        for key in watched {
            let name = self.changes.watches.interests.key(key).1;
            if self.state(db, name, now) != State::Missing {
                self.touch_links(key, |ended| if ended { Fate::Same } else { Fate::Changed });
            }
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
