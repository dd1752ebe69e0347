//! What changed: the one place from which keyspace notifications, the change log and (later) invalidations come.
//!
//! Every mutator of [`crate::keyspace::databases::Db`] reports a [`Change`] here, so a handler cannot forget to.

mod effect;

pub use effect::Effect;

use crate::base::time::Now;
use crate::keyspace::journal::Journal;
use crate::keyspace::tracking::Tracking;
use crate::keyspace::waits::Waits;
use crate::keyspace::watches::Watches;
use crate::lock::{Client, Locks};

bitflags::bitflags! {
    /// Classes of keyspace events, as `notify-keyspace-events` names them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Classes: u32 {
        /// `K`: publish to `__keyspace@<db>__:<key>`.
        const KEYSPACE = 1 << 0;
        /// `E`: publish to `__keyevent@<db>__:<event>`.
        const KEYEVENT = 1 << 1;
        /// `g`: commands of no type, such as DEL, EXPIRE, RENAME.
        const GENERIC = 1 << 2;
        /// `$`
        const STRING = 1 << 3;
        /// `l`
        const LIST = 1 << 4;
        /// `s`
        const SET = 1 << 5;
        /// `h`
        const HASH = 1 << 6;
        /// `z`
        const ZSET = 1 << 7;
        /// `x`
        const EXPIRED = 1 << 8;
        /// `e`
        const EVICTED = 1 << 9;
        /// `t`
        const STREAM = 1 << 10;
        /// `m`
        const KEY_MISS = 1 << 11;
        /// `d`
        const MODULE = 1 << 12;
        /// `n`
        const NEW = 1 << 13;
        /// `k`: what happens to native locks; of Portcullis.
        const LOCK = 1 << 14;
        /// `A`: all but `m`, `n` and `k`.
        const ALL = Self::GENERIC.bits() | Self::STRING.bits() | Self::LIST.bits() | Self::SET.bits() | Self::HASH.bits()
            | Self::ZSET.bits() | Self::EXPIRED.bits() | Self::EVICTED.bits() | Self::STREAM.bits() | Self::MODULE.bits();
    }
}

impl Classes {
    const LETTERS: [(u8, Classes); 16] = [
        (b'A', Classes::ALL),
        (b'g', Classes::GENERIC),
        (b'$', Classes::STRING),
        (b'l', Classes::LIST),
        (b's', Classes::SET),
        (b'h', Classes::HASH),
        (b'z', Classes::ZSET),
        (b'x', Classes::EXPIRED),
        (b'e', Classes::EVICTED),
        (b't', Classes::STREAM),
        (b'd', Classes::MODULE),
        (b'n', Classes::NEW),
        (b'K', Classes::KEYSPACE),
        (b'E', Classes::KEYEVENT),
        (b'm', Classes::KEY_MISS),
        (b'k', Classes::LOCK),
    ];

    /// Reads the letters of `notify-keyspace-events`; `None` where one is unknown.
    pub fn parse(letters: &[u8]) -> Option<Classes> {
        letters.iter().try_fold(Classes::default(), |all, letter| {
            Self::LETTERS.iter().find(|(l, _)| l == letter).map(|(_, class)| all | *class)
        })
    }

    /// The letters, in Redis's order, `A` where it covers all it stands for.
    pub fn letters(self) -> String {
        let mut text = String::new();
        let whole = self.contains(Classes::ALL);
        for (letter, class) in Self::LETTERS {
            let part_of_all = class != Classes::ALL && Classes::ALL.contains(class);
            if self.contains(class) && !(whole && part_of_all) {
                text.push(letter as char);
            }
        }
        text
    }
}

/// What happened to a key, as notifications name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its class.
    pub class: Classes,
    /// Its name, such as `set` or `expired`.
    pub name: &'static str,
}

impl Event {
    /// An event of a class.
    pub const fn new(class: Classes, name: &'static str) -> Self {
        Event { class, name }
    }

    /// No event of its own: what happened is published later, once for all that a command did.
    pub const SILENT: Event = Event::new(Classes::empty(), "");
    /// A string was set.
    pub const SET: Event = Event::new(Classes::STRING, "set");
    /// A key was deleted.
    pub const DEL: Event = Event::new(Classes::GENERIC, "del");
    /// A key's deadline was set.
    pub const EXPIRE: Event = Event::new(Classes::GENERIC, "expire");
    /// A key lost its deadline.
    pub const PERSIST: Event = Event::new(Classes::GENERIC, "persist");
    /// A key reached its deadline.
    pub const EXPIRED: Event = Event::new(Classes::EXPIRED, "expired");
    /// A key gave way because memory was used up.
    pub const EVICTED: Event = Event::new(Classes::EVICTED, "evicted");
    /// A key came into being.
    pub const NEW: Event = Event::new(Classes::NEW, "new");
    /// A key was looked for in vain.
    pub const KEY_MISS: Event = Event::new(Classes::KEY_MISS, "keymiss");
}

/// One change of the data.
#[cfg_attr(not(any(test, feature = "internals")), expect(dead_code, reason = "the log that reads it is to come; tests read it"))]
#[derive(Debug)]
pub struct Change<'a> {
    /// When.
    pub now: Now,
    /// Index of the database.
    pub db: u32,
    /// The key, empty where the whole database is meant.
    pub key: &'a [u8],
    /// What it is called.
    pub event: Event,
    /// What it does.
    pub effect: Effect<'a>,
}

/// Takes changes down, in order, as they happen.
///
/// They come in units: what one request changes, be it a script or a transaction of many commands, and what one deadline changes. Who
/// shows what it has taken down to anybody else (a follower, a file that is read after a crash) shows whole units only, so nobody
/// ever sees half a script.
///
/// ```text
///   record ─▶ record ─▶ record ─▶ commit      record ─▶ commit      record ─▶ dropped: the last one did not happen
/// ```
pub trait ChangeLog {
    /// One change; called in the middle of a command, so it must not fail and should not take long.
    fn record(&mut self, change: &Change<'_>);

    /// What was recorded since the last time is a unit, and it is whole. Called only where something was recorded. A log that is
    /// dropped before that has a unit at its end that is to be thrown away: the server ended in the middle of it.
    fn commit(&mut self);
}

/// An event that waits for its command to end before it is published.
#[derive(Debug)]
pub struct PendingEvent {
    /// Index of the database.
    pub db: u32,
    /// What happened; `None` for a key that has expired, of which those are to be told who wait on channels of `lock-expiry-publish`.
    pub event: Option<Event>,
    /// To which key.
    pub key: Box<[u8]>,
}

/// Collects changes for whoever wants them; costs next to nothing when nobody does.
pub struct Changes {
    /// The classes of `notify-keyspace-events`.
    pub notify: Classes,
    /// Whether anybody listens to channels: events are for nobody else.
    pub heard: bool,
    /// Whether `lock-expiry-publish` has rules.
    pub expiry_rules: bool,
    /// Events to publish when the running command ends, be it one of a script. So there are never more than those of one command.
    pub pending: Vec<PendingEvent>,
    /// The change log.
    pub log: Option<Box<dyn ChangeLog>>,
    /// How many units have begun and not ended, one in the other.
    depth: u32,
    /// Whether the log was told of changes that are not committed.
    uncommitted: bool,
    /// Changes since the start, counted as Redis counts them for `rdb_changes_since_last_save`: see [`Effect::weight`] and
    /// [`Changes::count_as`].
    pub count: u64,
    /// Keys that sessions watch.
    pub watches: Watches,
    /// Sessions that wait for keys.
    pub waits: Waits,
    /// Sessions that are told of changes of keys they may have.
    pub tracking: Tracking,
    /// What the last writes have written over, where that is asked for.
    pub(crate) journal: Option<Box<Journal>>,
    /// Whether anybody watches keys, waits for them or tracks them, or they are journalled.
    observed: bool,
    /// Who waits for locks, and what is known of them; taken out while they are worked on.
    pub locks: Option<Box<Locks>>,
    /// When something about contended locks comes about by itself, in monotonic milliseconds; the end of time where nothing will.
    pub locks_due_ms: u64,
    /// Whose command runs: who deletes a lock.
    pub client: Client,
    /// There is something to do when the running command has ended: see [`crate::engine::Engine::execute`].
    pub attention: bool,
}

impl Changes {
    /// Nobody is interested yet. All that is random follows from the seed.
    pub fn new(seed: u64) -> Self {
        Changes {
            notify: Classes::default(),
            heard: false,
            expiry_rules: false,
            pending: Vec::new(),
            log: None,
            depth: 0,
            uncommitted: false,
            count: 0,
            watches: Watches::new(seed),
            waits: Waits::new(seed),
            tracking: Tracking::new(seed),
            locks: Some(Box::new(Locks::new(seed ^ 0x3c6e_f372_fe94_f82b, 1))),
            locks_due_ms: u64::MAX,
            client: Client::default(),
            journal: None,
            observed: false,
            attention: false,
        }
    }

    /// Reports a change.
    #[inline(always)]
    pub fn emit(&mut self, change: Change<'_>) {
        self.count += 1;
        if self.is_heeded() {
            self.report(change);
        }
    }

    /// Counts a change, and tells whether it is to be reported: one nobody wants to know of need not even be formed.
    #[inline(always)]
    pub(crate) fn note(&mut self, effect: &Effect<'_>) -> bool {
        self.count += effect.weight();
        self.is_heeded()
    }

    /// Reports a change that does not count: a key has ended.
    #[inline]
    pub(crate) fn emit_end(&mut self, change: Change<'_>) {
        if self.is_heeded() {
            self.report(change);
        }
    }

    /// Has everything since the count was `before` count as so many changes, where Redis counts by another measure than effects.
    #[inline]
    pub(crate) fn count_as(&mut self, before: u64, changes: u64) {
        self.count = before + changes;
    }

    /// Whether anybody wants to know of changes.
    #[inline]
    pub(crate) fn is_heeded(&self) -> bool {
        self.heard || self.observed || self.log.is_some()
    }

    /// Whether all changes are taken down.
    pub(crate) fn is_followed(&self) -> bool {
        self.log.is_some() || self.journal.is_some()
    }

    /// Reports a change that was counted.
    #[inline(never)]
    pub(crate) fn report(&mut self, change: Change<'_>) {
        self.publish(change.db, change.event, change.key);
        if self.observed {
            self.tell(&change);
        }
        if self.log.is_some() {
            self.record(&change);
        }
    }

    #[cold]
    fn record(&mut self, change: &Change<'_>) {
        let Some(log) = &mut self.log else { return };
        log.record(change);
        self.uncommitted = true;
        self.commit();
    }

    /// Begins a unit of the change log: what happens until [`Changes::end`] happens together. A unit within a unit is part of it.
    #[inline]
    pub fn begin(&mut self) {
        self.depth += 1;
    }

    /// Ends what [`Changes::begin`] began.
    #[inline]
    pub fn end(&mut self) {
        self.depth -= 1;
        if self.uncommitted {
            self.commit();
        }
    }

    /// Commits what was recorded, unless it is part of a unit that goes on.
    #[cold]
    fn commit(&mut self) {
        if self.depth > 0 {
            return;
        }
        self.uncommitted = false;
        if let Some(log) = &mut self.log {
            log.commit();
        }
    }

    /// Leaves the unit that is under way without its end, and the log without all that follows: the server ends before it could be
    /// whole.
    pub fn abandon(&mut self) {
        self.log = None;
    }

    /// Tells those who watch the key, and notes who tracks it and whether those who wait for it are to be served.
    #[cold]
    fn tell(&mut self, change: &Change<'_>) {
        if let Some(journal) = &mut self.journal {
            self.attention |= journal.note(change);
        }
        if change.effect.is_beside_the_keys() {
            return;
        }
        if change.effect.is_beside_the_value() {
            self.attention |= self.waits.note(change.db, change.key, &change.effect);
            return;
        }
        self.tracking.note(change);
        match change.effect {
            Effect::None => {}
            // Watchers were told before, while what is in there was known.
            Effect::Flush => self.attention |= self.waits.note_flushed(change.db),
            Effect::Swap { with } => self.attention |= self.waits.note_swapped(change.db, with),
            Effect::LoadLibrary { .. } | Effect::DeleteLibrary { .. } | Effect::FlushLibraries => {}
            _ => {
                let removed = matches!(change.effect, Effect::Delete | Effect::HashRemove { .. });
                self.watches.touch(change.db, change.key, removed);
                self.attention |= self.waits.note(change.db, change.key, &change.effect);
                if let Some(locks) = &mut self.locks
                    && !matches!(change.effect, Effect::SetLock { .. })
                {
                    locks.gone(change.db, change.key);
                    self.attention |= locks.has_work();
                }
            }
        }
    }

    /// Whether anybody is to be told of changes of keys.
    #[inline]
    pub fn is_observed(&self) -> bool {
        self.observed
    }

    /// To be called after somebody has begun or ceased to be interested in keys.
    pub fn update_observed(&mut self) {
        self.observed = self.has_observers();
    }

    fn has_observers(&self) -> bool {
        let locks_waited_for = self.locks.as_ref().is_some_and(|locks| !locks.queues.is_empty());
        !self.watches.is_empty()
            || !self.waits.is_empty()
            || !self.tracking.is_empty()
            || locks_waited_for
            || self.journal.is_some()
    }

    /// To be called after locks were told of something.
    pub fn update_locks_due(&mut self) {
        self.locks_due_ms = self.locks.as_ref().map_or(u64::MAX, |locks| locks.next_ms());
    }

    /// Whether holders of locks are to be told that these are gone, or more is remembered of locks than is to be.
    pub fn has_lost(&self) -> bool {
        self.locks.as_ref().is_some_and(|locks| locks.has_lost() || locks.history.exceeds())
    }

    /// Whether memory of interests that are gone waits to be freed.
    pub fn has_retired(&self) -> bool {
        self.observed && (self.watches.has_retired() || self.waits.has_retired() || self.tracking.has_retired())
    }

    /// Frees what is left of interests that are gone, at most `budget` of it.
    pub fn free_some(&mut self, budget: &mut u32) {
        self.watches.free_some(budget);
        self.waits.free_some(budget);
        self.tracking.free_some(budget);
        self.update_observed();
    }

    /// Panics where the state is not what it should be. Walks everything.
    pub fn check_invariants(&self) {
        self.watches.check_invariants();
        self.waits.check_invariants();
        self.tracking.check_invariants();
        assert_eq!(self.observed, self.has_observers(), "who is interested is told");
        let locks = self.locks.as_ref();
        assert!(locks.is_some(), "locks are put back");
        locks.into_iter().for_each(|locks| locks.check_invariants());
        assert_eq!(Some(self.locks_due_ms), locks.map(|locks| locks.next_ms()), "when locks change is known");
        assert!(self.attention || !self.waits.has_ready(), "what is ready is attended to");
    }

    /// Publishes an event that changes nothing, such as a miss.
    #[inline]
    pub fn publish(&mut self, db: u32, event: Event, key: &[u8]) {
        if self.heard && self.notify.intersects(event.class) && self.notify.intersects(Classes::KEYSPACE | Classes::KEYEVENT) {
            self.pending.push(PendingEvent { db, event: Some(event), key: key.into() });
        }
    }

    /// A key has expired, which was reported: whoever waits for it on a channel is told when the running command has ended.
    #[inline]
    pub fn expired(&mut self, db: u32, key: &[u8]) {
        if self.expiry_rules {
            self.pending.push(PendingEvent { db, event: None, key: key.into() });
        }
    }
}
