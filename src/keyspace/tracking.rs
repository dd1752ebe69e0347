//! `CLIENT TRACKING`: who may have which keys in a cache of its own, and is told when they change.
//!
//! Every change of a key comes by [`crate::keyspace::change::Changes::emit`]. Who has read the key since it was told of it last is noted
//! there as one to be told, and is not among the key's readers any more. Who asked for all keys
//! with a prefix is told of them at the end of the turn, of all that have changed in it at once.
//!
//! ```text
//!   GET k  ─▶ remember ─▶ name ─▶ reader ─▶ reader ─▶ …
//!   SET k  ─▶ emit ─┬─▶ its readers     ─▶ after the command ─▶ >2 invalidate [k]
//!                   └─▶ prefixes of it  ─▶ after the turn    ─▶ >2 invalidate [k, l, m]
//! ```
//!
//! A script is tracked by the keys that it **declares**: once it calls a command that reads, its client may have all of them, whichever
//! key that command read. The client caches the reply of the script, and knows of that script nothing but its declared keys.
//!
//! As in Redis, a key is its name alone, in whichever database it is. What bounds the memory is `tracking-table-max-keys`: where there is no
//! more room, whoever may have some other key, chosen by chance, is told that it changed.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;
use std::ops::Bound;

use slab::Slab;

use crate::base::ids::SessionId;
use crate::keyspace::change::{Change, Classes, Effect};
use crate::keyspace::interests::{AT_ONCE, Interests, NIL};

/// Maximum number of keys that make room for a new one.
const EVICTIONS: u32 = 16;

/// Places of the table that are looked at in the search for a key to make room.
const PROBES: usize = 4096;

/// Bytes that a prefix takes up beside its name, which is kept twice, about.
const PREFIX_BYTES: usize = 192;

bitflags::bitflags! {
    /// How a session tracks.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Options: u8 {
        /// It is told of all keys with one of its prefixes, read or not.
        const BCAST = 1 << 0;
        /// It may have only what it reads after `CLIENT CACHING yes`.
        const OPTIN = 1 << 1;
        /// It may have all but what it reads after `CLIENT CACHING no`.
        const OPTOUT = 1 << 2;
        /// It is not told of what it changes itself.
        const NOLOOP = 1 << 3;
        /// `CLIENT CACHING` was said, for the next command or transaction.
        const CACHING = 1 << 4;
        /// Who was to be told in its place is gone.
        const BROKEN = 1 << 5;
    }
}

/// A client, by its number and where it is, or was, found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// Never given out twice.
    pub number: u64,
    /// Its session.
    pub id: SessionId,
}

/// A session that tracks.
#[derive(Debug)]
pub struct Tracker {
    /// Whose it is.
    pub client: Client,
    /// How.
    pub options: Options,
    /// Who is told in its place.
    pub redirect: Option<Client>,
    /// In order; empty unless it tracks by prefixes. None is the beginning of another one.
    pub prefixes: BTreeSet<Box<[u8]>>,
    /// Bytes of them.
    prefix_bytes: usize,
    /// Its number among those who may have keys; [`NIL`] where it has none.
    reader: u32,
    /// It is gone, and its prefixes are being taken out.
    retired: bool,
}

impl Tracker {
    /// The first of its prefixes that is the beginning of another one, or that begins with it.
    pub fn overlapping(&self, prefix: &[u8]) -> Option<&[u8]> {
        if let Some(all) = self.prefixes.first().filter(|first| first.is_empty()) {
            return Some(all);
        }
        // Only that of all keys comes beside others, as it goes unchecked where none is named: where none is the beginning of another,
        // only its neighbours can be.
        let before = self.prefixes.range::<[u8], _>((Bound::Unbounded, Bound::Included(prefix))).next_back();
        let after = self.prefixes.range::<[u8], _>((Bound::Included(prefix), Bound::Unbounded)).next();
        let shorter = before.filter(|other| prefix.starts_with(other));
        shorter.or_else(|| after.filter(|other| other.starts_with(prefix))).map(|other| &**other)
    }
}

/// What a client is told of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// These keys have changed.
    Keys(Vec<Box<[u8]>>),
    /// All keys are gone.
    Flush,
}

/// Clients that are to be told something. A tracker may be gone by then: its client's number says whether it is still the same.
#[derive(Debug)]
pub struct Message {
    /// Of what.
    pub told: Told,
    /// The trackers, and their clients' numbers.
    pub to: Vec<(u32, u64)>,
}

/// A prefix that somebody wants to be told of.
#[derive(Debug, Default)]
struct Prefix {
    trackers: BTreeSet<u32>,
    /// Keys that have changed since the last turn, each with the number of the client that changed it last; 0 for nobody.
    keys: BTreeMap<Box<[u8]>, u64>,
}

/// All who track, and what they may have. A session knows the number of its tracker, [`NIL`] where it does not track.
pub struct Tracking {
    trackers: Slab<Tracker>,
    /// Who may have which keys. All keys are in database 0 here.
    readers: Interests<u32>,
    prefixes: BTreeMap<Box<[u8]>, Prefix>,
    /// How many prefixes there are of each length.
    lengths: BTreeMap<usize, usize>,
    /// Prefixes with keys that nobody was told of.
    changed: BTreeSet<Box<[u8]>>,
    /// Trackers that are gone, with prefixes that are not yet taken out.
    retired: Vec<u32>,
    /// The number of the client whose command runs; 0 for none.
    pub current: u64,
    /// Whether a script called it. Who tracks by prefixes is told of what its own scripts change, whatever it said of loops.
    pub from_script: bool,
    /// The keys that the running script declared, where its client tracks: the script's reads are tracked by them.
    pub(crate) declared: Vec<Box<[u8]>>,
    /// Maximum number of keys in the table, which shrinks to it bit by bit; 0 for no maximum.
    pub(crate) keys_max: u64,
    /// For others than the current client.
    others: Vec<Message>,
    /// For the current client, after its reply.
    own: Vec<Message>,
    random: u64,
}

impl Tracking {
    /// Nobody tracks. All that is random follows from the seed.
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

    /// Whether nobody tracks, and nothing is left of those who did.
    pub fn is_empty(&self) -> bool {
        self.trackers.is_empty() && self.readers.is_empty()
    }

    /// Number of sessions that track.
    pub fn trackers(&self) -> usize {
        self.trackers.len() - self.retired.len()
    }

    /// Number of different keys that somebody may have.
    pub fn keys(&self) -> usize {
        self.readers.keys()
    }

    /// Number of keys that somebody may have, each counted for everybody who may.
    pub fn items(&self) -> usize {
        self.readers.links()
    }

    /// Number of different prefixes.
    pub fn prefixes(&self) -> usize {
        self.prefixes.len()
    }

    /// What is known of a tracker; `None` for [`NIL`].
    pub fn get(&self, tracker: u32) -> Option<&Tracker> {
        self.trackers.get(tracker as usize).filter(|tracker| !tracker.retired)
    }

    /// As [`Tracking::get`], to be changed.
    pub fn get_mut(&mut self, tracker: u32) -> Option<&mut Tracker> {
        self.trackers.get_mut(tracker as usize).filter(|tracker| !tracker.retired)
    }

    /// Bytes that a tracker takes up with what it may have, about.
    pub fn bytes(&self, tracker: u32) -> usize {
        self.get(tracker).map_or(0, |tracker| {
            let prefixes = tracker.prefix_bytes + tracker.prefixes.len() * PREFIX_BYTES;
            size_of::<Tracker>() + prefixes + self.readers.bytes(tracker.reader)
        })
    }

    /// Has a client track in this way from now on; gives the number of its tracker, a new one where it is [`NIL`]. Prefixes come to those it
    /// has.
    pub fn track(&mut self, tracker: u32, client: Client, options: Options, redirect: Option<Client>, prefixes: &[&[u8]]) -> u32 {
        let number = match self.trackers.get_mut(tracker as usize) {
            Some(known) => {
                // What was said of the next command holds still.
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

    /// Ends a tracker and all it may have. Where it has many prefixes, they stay for a while, as nobody's.
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
            // It is the last one, which goes first.
            let mut budget = AT_ONCE + 1;
            self.free_prefixes(&mut budget);
        }
    }

    /// Takes prefixes out of those who track no more, at most `budget` of them.
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

    /// Notes that a tracker has read a key. The keys of one tracker take at most `bytes_max` bytes.
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
        // One that reads names of megabytes makes room among its own.
        while self.readers.bytes(reader) as u64 > bytes_max {
            let Some(oldest) = self.readers.links_of(reader).next() else { break };
            let name = self.readers.key(self.readers.key_of(oldest)).1.into();
            self.readers.unlink(oldest);
            self.tell(Told::Keys(vec![name]), vec![number]);
        }
    }

    /// Forgets keys, chosen by chance, until no more than `keys` are left or the budget is used up.
    fn evict(&mut self, keys: u64, budget: &mut u32) {
        while *budget > 0 && self.readers.keys() as u64 > keys {
            *budget -= 1;
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let from = (self.random >> 33) as usize;
            let Some(key) = self.readers.some_key(from, PROBES) else { return };
            let name: Box<[u8]> = self.readers.key(key).1.into();
            self.forget_key(key, name, false);
        }
    }

    /// Whether the table has more keys than it may: the maximum was lowered.
    fn is_too_large(&self) -> bool {
        self.keys_max > 0 && self.readers.keys() as u64 > self.keys_max
    }

    /// A key was changed, or all of a database were.
    pub(crate) fn note(&mut self, change: &Change<'_>) {
        match change.effect {
            Effect::None | Effect::Swap { .. } => return,
            Effect::LoadLibrary { .. } | Effect::DeleteLibrary { .. } | Effect::FlushLibraries => return,
            Effect::Flush => return self.note_flush(),
            _ => {}
        }
        if !self.lengths.is_empty() {
            // What ends by itself is nobody's doing, though a command came across it.
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

    /// All who may have a key are to be told, or, where it was changed, all but those who do not care for what they change themselves;
    /// nobody has it any more.
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

    /// Notes who is to be told: the current client after its reply, all others before.
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

    /// Whether somebody is to be told something that is not for the current client.
    #[inline]
    pub fn has_others(&self) -> bool {
        !self.others.is_empty()
    }

    /// What others than the current client are to be told.
    pub(crate) fn take_others(&mut self) -> Vec<Message> {
        take(&mut self.others)
    }

    /// What the current client is to be told after its reply.
    pub(crate) fn take_own(&mut self) -> Vec<Message> {
        take(&mut self.own)
    }

    /// Whether keys with a prefix that somebody wants to be told of have changed since the last turn.
    #[inline]
    pub fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// What those who track by prefixes are to be told, prefix by prefix.
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

    /// Removes the keys and prefixes of those who track no more, and keys for which there is no room any more, at most `budget` of them.
    pub fn free_some(&mut self, budget: &mut u32) {
        self.readers.free_some(budget);
        self.free_prefixes(budget);
        if self.is_too_large() {
            self.evict(self.keys_max, budget);
        }
    }

    /// Panics where the state is not what it should be. Walks everything.
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
