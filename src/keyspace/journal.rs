//! The journal: an undo log for tests, and not the append-only file.
//!
//! It has the previous values of the last writes, so that a test can make a server lose them, as a failover does.
//!
//! ```text
//!   change ─▶ touched keys ─ end of the request ─▶ unit: what they held before   unit   unit   unit ◀─ at most so many
//!                                       └────────▶ what they hold now
//! ```
//!
//! A write is everything that one request changes, including a script or a transaction of many commands. A grant to a waiter is a
//! write, too. What ends on its own is not a write: it belongs to the write before it, and ends again when that write is lost.
//!
//! Kept only on request: it has a copy of the whole state, and copies again whatever a request changes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::base::ids::KeyBuf;
use crate::keyspace::change::{Change, Effect, Event};
use crate::keyspace::databases::Keyspace;
use crate::keyspace::images::{Image, Images};
use crate::keyspace::lock_records::LockRecords;
use crate::lock::requests::{Remembered, Whose};
use crate::lock::sessions::Session;

/// Maximum number of writes.
pub const WRITES_MAX: u64 = 100_000;

/// Maximum bytes of previous values: beyond them the oldest write is dropped. The last write is always kept.
pub const BYTES_MAX: usize = if cfg!(test) { 1 << 20 } else { 256 << 20 };

/// Sources of libraries of functions, ordered by name.
pub(crate) type Libraries = Vec<Box<[u8]>>;

/// The previous values of one write.
#[derive(Debug, Default)]
struct Unit {
    /// Previous values of keys; `None` for keys that did not exist.
    before: BTreeMap<KeyBuf, Option<Image>>,
    requests: BTreeMap<Whose, Option<Remembered>>,
    sessions: BTreeMap<u64, Option<Session>>,
    libraries: Option<Libraries>,
    bytes: usize,
}

/// The last writes.
#[derive(Debug)]
pub struct Journal {
    pub(crate) limit: usize,
    units: VecDeque<Unit>,
    /// Bytes of all units.
    bytes: usize,
    /// The values of keys at the end of the last unit.
    pub(crate) now: Images,
    pub(crate) records: LockRecords,
    libraries: Libraries,
    pub(crate) touched: BTreeSet<KeyBuf>,
    pub(crate) requests_touched: BTreeSet<Whose>,
    pub(crate) sessions_touched: BTreeSet<u64>,
    pub(crate) libraries_touched: bool,
    /// Whether a request caused the present changes.
    pub(crate) written: bool,
    /// Whether the present changes happen on their own, because their time has come.
    pub(crate) by_time: bool,
    /// Number of writes ever recorded.
    pub(crate) pushed: u64,
    /// The largest fencing token so far.
    last_token: u64,
}

impl Journal {
    pub(crate) fn new(limit: usize, now: Images, records: LockRecords, libraries: Libraries) -> Self {
        let tokens = now.values().filter_map(Image::lock).flat_map(|lock| lock.holders.iter()).map(|grant| grant.token);
        Journal {
            limit,
            units: VecDeque::new(),
            bytes: 0,
            last_token: tokens.max().unwrap_or(0),
            now,
            records,
            libraries,
            touched: BTreeSet::new(),
            requests_touched: BTreeSet::new(),
            sessions_touched: BTreeSet::new(),
            libraries_touched: false,
            written: false,
            by_time: false,
            pushed: 0,
        }
    }

    /// Number of writes that can be lost.
    pub fn len(&self) -> usize {
        self.units.len()
    }

    /// Records a change after it happened. Returns false if it changes nothing.
    pub(crate) fn note(&mut self, change: &Change<'_>) -> bool {
        let of = |dbs: [u32; 2], known: &mut dyn Iterator<Item = &KeyBuf>| -> Vec<KeyBuf> {
            let keys = known.filter(|key| dbs.contains(&key.db));
            keys.flat_map(|key| dbs.map(|db| KeyBuf { db, name: key.name.clone() })).collect()
        };
        match change.effect {
            Effect::None => return false,
            Effect::Flush | Effect::Swap { .. } => {
                let with = if let Effect::Swap { with } = change.effect { with } else { change.db };
                let keys = of([change.db, with], &mut self.now.keys().chain(&self.touched));
                self.touched.extend(keys);
                if with != change.db {
                    self.touch_requests_of([change.db, with]);
                }
            }
            Effect::SetRequests { owner, .. } | Effect::ForgetRequests { owner } => {
                self.requests_touched.insert(Whose { home: change.db, name: change.key.into(), owner: owner.into() });
            }
            Effect::SetSession { number, .. } | Effect::EndSession { number } => {
                self.sessions_touched.insert(number);
            }
            Effect::LoadLibrary { .. } | Effect::DeleteLibrary { .. } | Effect::FlushLibraries => self.libraries_touched = true,
            _ => {
                self.touched.insert(KeyBuf { db: change.db, name: change.key.into() });
            }
        }
        let token = match &change.effect {
            Effect::SetLock { lock } => lock.holders.iter().map(|grant| grant.token).max().unwrap_or(0),
            _ => 0,
        };
        self.written |= token > self.last_token || (!self.by_time && change.event != Event::EXPIRED);
        self.last_token = self.last_token.max(token);
        true
    }

    fn touch_requests_of(&mut self, dbs: [u32; 2]) {
        let known = self.records.requests.keys().chain(&self.requests_touched).filter(|whose| dbs.contains(&whose.home));
        let both = known.flat_map(|whose| dbs.map(|home| Whose { home, ..whose.clone() }));
        let both: Vec<Whose> = both.collect();
        self.requests_touched.extend(both);
    }

    /// As [`Journal::settle`] for the records of locks besides the keys.
    fn settle_records(&mut self, keyspace: &Keyspace) {
        for whose in std::mem::take(&mut self.requests_touched) {
            let before = match keyspace.remembered(&whose) {
                Some(remembered) => self.records.requests.insert(whose.clone(), remembered.clone()),
                None => self.records.requests.remove(&whose),
            };
            if let Some(unit) = self.units.back_mut() {
                unit.requests.entry(whose).or_insert_with_key(|whose| {
                    let bytes = size_of::<(Whose, Option<Remembered>)>() + whose.name.len() + whose.owner.len();
                    unit.bytes += bytes;
                    self.bytes += bytes;
                    before
                });
            }
        }
        for number in std::mem::take(&mut self.sessions_touched) {
            let before = match keyspace.lock_session(number) {
                Some(session) => self.records.sessions.insert(number, session.clone()),
                None => self.records.sessions.remove(&number),
            };
            if let Some(unit) = self.units.back_mut() {
                unit.sessions.entry(number).or_insert_with(|| {
                    unit.bytes += size_of::<(u64, Option<Session>)>();
                    self.bytes += size_of::<(u64, Option<Session>)>();
                    before
                });
            }
        }
    }

    /// Ends a unit: records the values of all touched keys.
    pub(crate) fn settle(&mut self, keyspace: &Keyspace, libraries: Option<Libraries>) {
        let libraries = libraries.map(|libraries| std::mem::replace(&mut self.libraries, libraries));
        let touched = std::mem::take(&mut self.touched);
        if std::mem::take(&mut self.written) {
            self.units.push_back(Unit::default());
            self.pushed += 1;
        }
        for key in touched {
            let before = match keyspace.image(key.as_key()) {
                Some(image) => self.now.insert(key.clone(), image),
                None => self.now.remove(&key),
            };
            if let Some(unit) = self.units.back_mut() {
                // Changes that happened on their own since a write are lost with that write.
                unit.before.entry(key).or_insert_with_key(|key| {
                    let bytes = size_of::<(KeyBuf, Option<Image>)>() + key.name.len() + before.as_ref().map_or(0, Image::bytes);
                    unit.bytes += bytes;
                    self.bytes += bytes;
                    before
                });
            }
        }
        self.settle_records(keyspace);
        if let (Some(unit), Some(libraries)) = (self.units.back_mut(), libraries) {
            unit.libraries.get_or_insert(libraries);
        }
        self.trim();
    }

    pub(crate) fn trim(&mut self) {
        while self.units.len() > self.limit || (self.bytes > BYTES_MAX && self.units.len() > 1) {
            let Some(oldest) = self.units.pop_front() else { return };
            self.bytes -= oldest.bytes;
        }
    }

    /// Goes back to the state before the last writes. Returns their number.
    pub(crate) fn undo(&mut self, writes: u64) -> usize {
        let lost = usize::try_from(writes).unwrap_or(usize::MAX).min(self.units.len());
        for unit in self.units.drain(self.units.len() - lost..).rev() {
            self.bytes -= unit.bytes;
            for (key, before) in unit.before {
                if let Some(image) = before {
                    self.now.insert(key, image)
                } else {
                    self.now.remove(&key)
                };
            }
            for (whose, before) in unit.requests {
                match before {
                    Some(remembered) => self.records.requests.insert(whose, remembered),
                    None => self.records.requests.remove(&whose),
                };
            }
            for (number, before) in unit.sessions {
                match before {
                    Some(session) => self.records.sessions.insert(number, session),
                    None => self.records.sessions.remove(&number),
                };
            }
            if let Some(libraries) = unit.libraries {
                self.libraries = libraries;
            }
        }
        lost
    }

    /// The recorded state.
    pub(crate) fn state(&self) -> (Images, LockRecords, Libraries) {
        (self.now.clone(), self.records.clone(), self.libraries.clone())
    }

    /// Records that everything was lost. No earlier write can be lost any more.
    pub(crate) fn clear(&mut self) {
        *self = Journal {
            last_token: self.last_token,
            ..Journal::new(self.limit, Images::new(), LockRecords::default(), Libraries::new())
        };
    }
}
