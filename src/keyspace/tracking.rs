//! `CLIENT TRACKING`: which clients may cache which keys, and the invalidations they get when keys change.
//!
//! If clients track keys, each change of a key is passed to [`Changes::report`](crate::keyspace::change::Changes::report). Each
//! client that has read the key since its last invalidation then gets one queued, and is removed from the key's readers. A client
//! that tracks a prefix is notified at the end of the turn, of all changed keys at once.
//!
//! ```text
//!   GET k  ─▶ remember ─▶ name ─▶ reader ─▶ reader ─▶ …
//!   SET k  ─▶ emit ─┬─▶ its readers     ─▶ after the command ─▶ >2 invalidate [k]
//!                   └─▶ prefixes of it  ─▶ after the turn    ─▶ >2 invalidate [k, l, m]
//! ```
//!
//! A script is tracked by the keys that it **declares**: once it calls a command that reads, its client may cache all of them,
//! whichever key that command read. The client caches the reply of the script, and knows only the declared keys of that script.
//!
//! As in Redis, a key is its name alone, in whichever database it is. `tracking-table-max-keys` bounds the memory: when the table
//! is full, a random other key is evicted, and its readers are told that it changed.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;
use std::ops::Bound;

use slab::Slab;

use crate::base::ids::SessionId;
use crate::keyspace::change::{Change, Classes, Effect};
use crate::keyspace::interests::{AT_ONCE, Interests, NIL};

/// Maximum number of keys that are evicted for a new one.
const EVICTIONS: u32 = 16;

/// Maximum number of places of the table that are examined in the search for a key to evict.
const PROBES: usize = 4096;

/// Approximate bytes of a prefix besides its name, which is kept twice.
const PREFIX_BYTES: usize = 192;

bitflags::bitflags! {
    /// The tracking mode of a session.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Options: u8 {
        /// It is notified of all keys with one of its prefixes, read or not.
        const BCAST = 1 << 0;
        /// It may cache only what it reads after `CLIENT CACHING yes`.
        const OPTIN = 1 << 1;
        /// It may cache everything except what it reads after `CLIENT CACHING no`.
        const OPTOUT = 1 << 2;
        /// It is not notified of its own changes.
        const NOLOOP = 1 << 3;
        /// `CLIENT CACHING` applies to the next command or transaction.
        const CACHING = 1 << 4;
        /// The client that it redirects to is gone.
        const BROKEN = 1 << 5;
    }
}

/// A client: its number, and the session it has or had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// Never reused.
    pub number: u64,
    /// Its session.
    pub id: SessionId,
}

/// A tracking session.
#[derive(Debug)]
pub struct Tracker {
    /// Its client.
    pub client: Client,
    /// Its mode.
    pub options: Options,
    /// The client that gets its notifications.
    pub redirect: Option<Client>,
    /// Its prefixes; empty unless it tracks by prefixes. They do not overlap.
    pub prefixes: BTreeSet<Box<[u8]>>,
    /// Bytes of them.
    prefix_bytes: usize,
    /// Its number among the readers of keys; [`NIL`] if it has none.
    reader: u32,
    /// It is gone, and its prefixes are being removed.
    retired: bool,
}

impl Tracker {
    /// The first of its prefixes that overlaps another one: either is the beginning of the other.
    pub fn overlapping(&self, prefix: &[u8]) -> Option<&[u8]> {
        if let Some(all) = self.prefixes.first().filter(|first| first.is_empty()) {
            return Some(all);
        }
        // Only the empty prefix can overlap others, because it is not checked when a client names no prefix. Without it no prefix
        // is the beginning of another, so only the neighbours can overlap.
        let before = self.prefixes.range::<[u8], _>((Bound::Unbounded, Bound::Included(prefix))).next_back();
        let after = self.prefixes.range::<[u8], _>((Bound::Included(prefix), Bound::Unbounded)).next();
        let shorter = before.filter(|other| prefix.starts_with(other));
        shorter.or_else(|| after.filter(|other| other.starts_with(prefix))).map(|other| &**other)
    }
}

/// The content of an invalidation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// These keys have changed.
    Keys(Vec<Box<[u8]>>),
    /// All keys were removed.
    Flush,
}

/// An invalidation for some clients. A tracker may be gone by the time it is sent: its client's number tells whether it is still
/// the same.
#[derive(Debug)]
pub struct Message {
    /// The content.
    pub told: Told,
    /// The trackers, and their clients' numbers.
    pub to: Vec<(u32, u64)>,
}

/// A prefix that clients track.
#[derive(Debug, Default)]
struct Prefix {
    trackers: BTreeSet<u32>,
    /// Keys that changed since the last turn, each with the number of the client that changed it last; 0 for no client.
    keys: BTreeMap<Box<[u8]>, u64>,
}

/// All trackers, and the keys that they may have cached. A session knows the number of its tracker, [`NIL`] if it does not track.
pub struct Tracking {
    trackers: Slab<Tracker>,
    /// The readers of each key. All keys are in database 0 here.
    readers: Interests<u32>,
    prefixes: BTreeMap<Box<[u8]>, Prefix>,
    /// Number of prefixes of each length.
    lengths: BTreeMap<usize, usize>,
    /// Prefixes with changed keys that were not reported yet.
    changed: BTreeSet<Box<[u8]>>,
    /// Former trackers whose prefixes are not removed yet.
    retired: Vec<u32>,
    /// The number of the client whose command runs; 0 for none.
    pub current: u64,
    /// Whether a script called it. A client that tracks by prefixes is notified of what its own scripts change, even with
    /// `NOLOOP`.
    pub from_script: bool,
    /// The keys that the running script declared, if its client tracks: the script's reads are tracked by them.
    pub(crate) declared: Vec<Box<[u8]>>,
    /// Maximum number of keys in the table, which shrinks to it in steps; 0 for no maximum.
    pub(crate) keys_max: u64,
    /// Invalidations for other clients than the current one.
    others: Vec<Message>,
    /// Invalidations for the current client, sent after its reply.
    own: Vec<Message>,
    random: u64,
}

impl Tracking {
    /// Creates an empty set of trackers. All random sequences follow from the seed.
    pub fn new(seed: u64) -> Self {
        Tracking {
            trackers: Slab::new(),
            readers: Interests::new(seed),
            prefixes: BTreeMap::new(),
            lengths: BTreeMap::new(),
            changed: BTreeSet::new(),
            retired: Vec::new(),
            current: 0,
            from_script: false,
            declared: Vec::new(),
            keys_max: 0,
            others: Vec::new(),
            own: Vec::new(),
            random: seed,
        }
    }

    /// Whether there are no trackers, nor remains of former ones.
    pub fn is_empty(&self) -> bool {
        self.trackers.is_empty() && self.readers.is_empty()
    }

    /// Number of tracking sessions.
    pub fn trackers(&self) -> usize {
        self.trackers.len() - self.retired.len()
    }

    /// Number of different keys in the table.
    pub fn keys(&self) -> usize {
        self.readers.keys()
    }

    /// Number of pairs of a key and a reader.
    pub fn items(&self) -> usize {
        self.readers.links()
    }

    /// Number of different prefixes.
    pub fn prefixes(&self) -> usize {
        self.prefixes.len()
    }

    /// A tracker; `None` for [`NIL`].
    pub fn get(&self, tracker: u32) -> Option<&Tracker> {
        self.trackers.get(tracker as usize).filter(|tracker| !tracker.retired)
    }

    /// As [`Tracking::get`], mutable.
    pub fn get_mut(&mut self, tracker: u32) -> Option<&mut Tracker> {
        self.trackers.get_mut(tracker as usize).filter(|tracker| !tracker.retired)
    }

    /// Approximate bytes of a tracker, its keys and its prefixes.
    pub fn bytes(&self, tracker: u32) -> usize {
        self.get(tracker).map_or(0, |tracker| {
            let prefixes = tracker.prefix_bytes + tracker.prefixes.len() * PREFIX_BYTES;
            size_of::<Tracker>() + prefixes + self.readers.bytes(tracker.reader)
        })
    }

    /// Starts tracking for a client, or changes its mode; `tracker` is [`NIL`] for a new tracker. Adds the prefixes to those it
    /// has. Returns the number of the tracker.
    pub fn track(&mut self, tracker: u32, client: Client, options: Options, redirect: Option<Client>, prefixes: &[&[u8]]) -> u32 {
        let number = match self.trackers.get_mut(tracker as usize) {
            Some(known) => {
                // `CLIENT CACHING` still applies to the next command.
                (known.options, known.redirect) = (options | known.options & Options::CACHING, redirect);
                tracker
            }
            None => self.trackers.insert(Tracker {
                client,
                options,
                redirect,
                prefixes: BTreeSet::new(),
                prefix_bytes: 0,
                reader: NIL,
                retired: false,
            }) as u32,
        };
        if options.contains(Options::BCAST) {
            let all: &[&[u8]] = &[b""];
            for &prefix in if prefixes.is_empty() { all } else { prefixes } {
                self.add_prefix(number, prefix);
            }
        }
        number
    }

    fn add_prefix(&mut self, number: u32, name: &[u8]) {
        let lengths = &mut self.lengths;
        let prefix = self.prefixes.entry(name.into()).or_insert_with(|| {
            *lengths.entry(name.len()).or_default() += 1;
            Prefix::default()
        });
        prefix.trackers.insert(number);
        if let Some(tracker) = self.trackers.get_mut(number as usize)
            && tracker.prefixes.insert(name.into())
        {
            tracker.prefix_bytes += 2 * name.len();
        }
    }

    /// Removes a tracker. If it has many prefixes, they stay for a while without an owner.
    pub fn untrack(&mut self, number: u32) {
        let Some(tracker) = self.trackers.get_mut(number as usize) else { return };
        tracker.retired = true;
        let reader = std::mem::replace(&mut tracker.reader, NIL);
        let is_small = tracker.prefixes.len() <= AT_ONCE as usize;
        if reader != NIL {
            self.readers.leave(reader);
        }
        self.retired.push(number);
        if is_small {
            // It is the last one, which is freed first.
            let mut budget = AT_ONCE + 1;
            self.free_prefixes(&mut budget);
        }
    }

    /// Removes prefixes of former trackers, at most `budget` of them.
    fn free_prefixes(&mut self, budget: &mut u32) {
        while *budget > 0
            && let Some(&number) = self.retired.last()
        {
            *budget -= 1;
            match self.trackers[number as usize].prefixes.pop_first() {
                Some(name) => self.remove_prefix(number, &name),
                None => {
                    self.trackers.remove(number as usize);
                    self.retired.pop();
                    return;
                }
            }
        }
    }

    fn remove_prefix(&mut self, number: u32, name: &[u8]) {
        let Some(prefix) = self.prefixes.get_mut(name) else { return };
        prefix.trackers.remove(&number);
        if prefix.trackers.is_empty() {
            self.prefixes.remove(name);
            self.changed.remove(name);
            if let Some(count) = self.lengths.get_mut(&name.len()) {
                *count -= 1;
                if *count == 0 {
                    self.lengths.remove(&name.len());
                }
            }
        }
    }

    /// Records that a tracker has read a key. The keys of one tracker take at most `bytes_max` bytes.
    pub fn remember(&mut self, number: u32, key: &[u8], bytes_max: u64) {
        let Some(tracker) = self.trackers.get_mut(number as usize) else { return };
        if tracker.reader == NIL {
            tracker.reader = self.readers.enter(number);
        }
        let reader = tracker.reader;
        if self.keys_max > 0 && self.readers.keys() as u64 >= self.keys_max && self.readers.find(0, key).is_none() {
            self.evict(self.keys_max - 1, &mut { EVICTIONS });
        }
        if !self.readers.link(reader, 0, key, false) {
            return;
        }
        // A client that reads very long names evicts its own oldest keys.
        while self.readers.bytes(reader) as u64 > bytes_max {
            let Some(oldest) = self.readers.links_of(reader).next() else { break };
            let name = self.readers.key(self.readers.key_of(oldest)).name.into();
            self.readers.unlink(oldest);
            self.tell(Told::Keys(vec![name]), vec![number]);
        }
    }

    /// Evicts random keys, until at most `keys` are left or the budget is used up.
    fn evict(&mut self, keys: u64, budget: &mut u32) {
        while *budget > 0 && self.readers.keys() as u64 > keys {
            *budget -= 1;
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let from = (self.random >> 33) as usize;
            let Some(key) = self.readers.some_key(from, PROBES) else { return };
            let name: Box<[u8]> = self.readers.key(key).name.into();
            self.forget_key(key, name, false);
        }
    }

    /// Whether the table has more keys than its maximum, which was lowered.
    fn is_too_large(&self) -> bool {
        self.keys_max > 0 && self.readers.keys() as u64 > self.keys_max
    }

    /// Records a change of a key, or of a whole database.
    pub(crate) fn note(&mut self, change: &Change<'_>) {
        match change.effect {
            Effect::None | Effect::Swap { .. } => return,
            Effect::LoadLibrary { .. } | Effect::DeleteLibrary { .. } | Effect::FlushLibraries => return,
            Effect::Flush => return self.note_flush(),
            _ => {}
        }
        if !self.lengths.is_empty() {
            // An expiry or eviction counts as no client's change, even if a command triggered it.
            let by_itself = change.event.class.intersects(Classes::EXPIRED | Classes::EVICTED);
            let changer = if by_itself || self.from_script { 0 } else { self.current };
            for &len in self.lengths.keys().take_while(|&&len| len <= change.key.len()) {
                let Some(prefix) = self.prefixes.get_mut(&change.key[..len]) else { continue };
                if prefix.keys.is_empty() {
                    self.changed.insert(change.key[..len].into());
                }
                match prefix.keys.get_mut(change.key) {
                    Some(known) => *known = changer,
                    None => {
                        prefix.keys.insert(change.key.into(), changer);
                    }
                }
            }
        }
        if let Some(key) = self.readers.find(0, change.key) {
            self.forget_key(key, change.key.into(), true);
        }
    }

    /// Removes a key, and queues invalidations for all its readers. If the key was changed, a reader with `NOLOOP` gets none for
    /// its own change.
    fn forget_key(&mut self, key: u32, name: Box<[u8]>, was_changed: bool) {
        let mut to = Vec::new();
        for _ in 0..self.readers.interested(key) {
            let link = self.readers.first(key);
            if let Some(&number) = self.readers.owner_of(link).and_then(|reader| self.readers.owner(reader))
                && let Some(tracker) = self.trackers.get(number as usize)
            {
                let is_loop = tracker.options.contains(Options::NOLOOP) && tracker.client.number == self.current;
                if !(was_changed && is_loop) {
                    to.push(number);
                }
            }
            self.readers.unlink(link);
        }
        if !to.is_empty() {
            self.tell(Told::Keys(vec![name]), to);
        }
    }

    #[cold]
    fn note_flush(&mut self) {
        let mut to = Vec::new();
        for (number, tracker) in self.trackers.iter_mut().filter(|(_, tracker)| !tracker.retired) {
            to.push(number as u32);
            let reader = std::mem::replace(&mut tracker.reader, NIL);
            if reader != NIL {
                self.readers.leave(reader);
            }
        }
        // FLUSHALL empties one database after the other.
        let told_already = |messages: &[Message]| messages.last().is_some_and(|message| message.told == Told::Flush);
        if !told_already(&self.others) && !told_already(&self.own) {
            self.tell(Told::Flush, to);
        }
    }

    /// Queues an invalidation: for the current client after its reply, for all others before.
    fn tell(&mut self, told: Told, to: Vec<u32>) {
        let number_of = |tracker: u32| self.trackers.get(tracker as usize).map_or(0, |tracker| tracker.client.number);
        let numbered = to.into_iter().map(|tracker| (tracker, number_of(tracker)));
        let (own, others): (Vec<_>, Vec<_>) = numbered.partition(|to| to.1 == self.current);
        for (messages, to) in [(&mut self.own, own), (&mut self.others, others)] {
            if !to.is_empty() {
                messages.push(Message { told: told.clone(), to });
            }
        }
    }

    /// Whether there are invalidations for other clients than the current one.
    #[inline]
    pub fn has_others(&self) -> bool {
        !self.others.is_empty()
    }

    /// Takes the invalidations for other clients than the current one.
    pub(crate) fn take_others(&mut self) -> Vec<Message> {
        take(&mut self.others)
    }

    /// Takes the invalidations for the current client, to be sent after its reply.
    pub(crate) fn take_own(&mut self) -> Vec<Message> {
        take(&mut self.own)
    }

    /// Whether keys with tracked prefixes have changed since the last turn.
    #[inline]
    pub fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Takes the invalidations of tracked prefixes, prefix by prefix.
    pub(crate) fn take_changed(&mut self) -> Vec<Message> {
        let mut messages = Vec::new();
        let trackers = &self.trackers;
        for name in take(&mut self.changed) {
            let Some(prefix) = self.prefixes.get_mut(&name) else { continue };
            let keys = take(&mut prefix.keys);
            let mut to = Vec::new();
            for &number in &prefix.trackers {
                let Some(tracker) = trackers.get(number as usize).filter(|tracker| !tracker.retired) else { continue };
                let client = tracker.client.number;
                if tracker.options.contains(Options::NOLOOP) && keys.values().any(|&changer| changer == client) {
                    let others: Vec<_> =
                        keys.iter().filter(|(_, changer)| **changer != client).map(|(key, _)| key.clone()).collect();
                    if !others.is_empty() {
                        messages.push(Message { told: Told::Keys(others), to: vec![(number, client)] });
                    }
                } else {
                    to.push((number, client));
                }
            }
            if !to.is_empty() {
                messages.push(Message { told: Told::Keys(keys.into_keys().collect()), to });
            }
        }
        messages
    }

    /// Whether [`Tracking::free_some`] has something to do.
    pub fn has_retired(&self) -> bool {
        self.readers.has_retired() || !self.retired.is_empty() || self.is_too_large()
    }

    /// Removes keys and prefixes of former trackers, and keys beyond the table's maximum, at most `budget` of them.
    pub fn free_some(&mut self, budget: &mut u32) {
        self.readers.free_some(budget);
        self.free_prefixes(budget);
        if self.is_too_large() {
            self.evict(self.keys_max, budget);
        }
    }

    /// Panics if an invariant is broken. Walks everything.
    pub fn check_invariants(&self) {
        self.readers.check_invariants();
        let mut readers = 0;
        for (number, tracker) in &self.trackers {
            let number = number as u32;
            if tracker.reader != NIL {
                assert_eq!(self.readers.owner(tracker.reader), Some(&number), "a reader knows its tracker");
                readers += 1;
            }
            assert_eq!(tracker.retired, self.retired.contains(&number), "who is gone waits to be taken out");
            if !tracker.retired {
                assert_eq!(tracker.options.contains(Options::BCAST), !tracker.prefixes.is_empty(), "prefixes are for broadcasts");
                let bytes: usize = tracker.prefixes.iter().map(|prefix| 2 * prefix.len()).sum();
                assert_eq!(tracker.prefix_bytes, bytes, "bytes of prefixes are counted");
            }
            for name in &tracker.prefixes {
                assert!(
                    self.prefixes.get(name).is_some_and(|prefix| prefix.trackers.contains(&number)),
                    "a prefix knows its trackers"
                );
            }
        }
        assert_eq!(self.readers.owners(), readers, "each reader is a tracker's");
        let mut lengths: BTreeMap<usize, usize> = BTreeMap::new();
        for (name, prefix) in &self.prefixes {
            *lengths.entry(name.len()).or_default() += 1;
            assert!(!prefix.trackers.is_empty(), "a prefix has trackers");
            for &number in &prefix.trackers {
                let tracker = self.trackers.get(number as usize);
                assert!(tracker.is_some_and(|tracker| tracker.prefixes.contains(name)), "a tracker knows its prefixes");
            }
            assert_eq!(!prefix.keys.is_empty(), self.changed.contains(name), "a prefix of changed keys is known");
            assert!(prefix.keys.keys().all(|key| key.starts_with(name)), "a prefix's keys begin with it");
        }
        assert_eq!(self.lengths, lengths, "prefixes are counted by their lengths");
        assert!(self.own.is_empty() && self.others.is_empty(), "who is to be told is told with the command");
        assert_eq!(self.current, 0, "no command runs");
        assert!(self.declared.is_empty(), "no script runs");
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
