//! Changes: the single source of keyspace notifications, the change log and invalidations.
//!
//! Every mutator of [`crate::keyspace::databases::Db`] reports a [`Change`] here, so a handler cannot forget to.

mod effect;

pub use effect::Effect;

use crate::base::ids::Key;
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
        /// `k`: events of native locks; an extension of Portcullis.
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

    /// The letters in Redis's order; `A` stands for all classes that it covers.
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

/// An event of a key, as notifications name it.
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

    /// No event of its own: the event is published later, once for the whole command.
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
    /// A key was evicted because memory was used up.
    pub const EVICTED: Event = Event::new(Classes::EVICTED, "evicted");
    /// A key was created.
    pub const NEW: Event = Event::new(Classes::NEW, "new");
    /// A lookup missed.
    pub const KEY_MISS: Event = Event::new(Classes::KEY_MISS, "keymiss");
}

/// One change of the data.
#[derive(Debug)]
pub struct Change<'a> {
    /// The time.
    pub now: Now,
    /// Index of the database.
    pub db: u32,
    /// The key; empty for a change of the whole database.
    pub key: &'a [u8],
    /// Its event.
    pub event: Event,
    /// Its effect.
    pub effect: Effect<'a>,
}

/// Records changes in their order.
///
/// Changes come in units: everything that one request changes, including a script or a transaction of many commands, or
/// everything that one deadline changes. A log that shows its records to others (a follower, a file that is read after a crash)
/// must show whole units only, so that no reader ever sees half a script.
///
/// ```text
///   record ─▶ record ─▶ record ─▶ end_unit      record ─▶ end_unit      record ─▶ dropped: the last one did not happen
/// ```
pub trait ChangeLog {
    /// Records one change. Called in the middle of a command, so it must not fail and should be fast.
    fn record(&mut self, change: &Change<'_>);

    /// Marks the records since the last call as a whole unit. Called only if there are any. If a log is dropped before that, its
    /// last unit must be discarded: the server ended in the middle of it.
    fn end_unit(&mut self);
}

/// An event that is published when its command ends.
#[derive(Debug)]
pub struct PendingEvent {
    /// Index of the database.
    pub db: u32,
    /// The event; `None` for an expired key that is published to the channels of `lock-expiry-publish`.
    pub event: Option<Event>,
    /// The key.
    pub key: Box<[u8]>,
}

/// Collects changes for their observers; costs next to nothing without observers.
pub struct Changes {
    /// The classes of `notify-keyspace-events`.
    pub notify: Classes,
    /// Whether any session listens to channels: events are published to nobody else.
    pub has_listeners: bool,
    /// Whether `lock-expiry-publish` has rules.
    pub expiry_rules: bool,
    /// Events to publish when the running command ends, even inside a script. So there are never more than those of one command.
    pub pending: Vec<PendingEvent>,
    /// The change log.
    pub log: Option<Box<dyn ChangeLog>>,
    /// Nesting depth of the units that have begun.
    depth: u32,
    /// Whether the log has records that are not committed.
    uncommitted: bool,
    /// Changes since the start, counted as Redis counts them for `rdb_changes_since_last_save`: see [`Effect::weight`] and
    /// [`Changes::count_as`].
    pub count: u64,
    /// Keys that sessions watch.
    pub watches: Watches,
    /// Sessions that wait for keys.
    pub waits: Waits,
    /// Sessions with client-side caches (`CLIENT TRACKING`).
    pub tracking: Tracking,
    /// The previous values of the last writes, where a journal is enabled.
    pub(crate) journal: Option<Box<Journal>>,
    /// Whether keys have observers: watchers, waiters, trackers or the journal.
    observed: bool,
    /// Locks and their waiters; taken out while an operation on locks runs.
    pub locks: Option<Box<Locks>>,
    /// When the next event of contended locks is due on its own, in monotonic milliseconds; `u64::MAX` if there is none.
    pub locks_due_ms: u64,
    /// The client whose command runs: it counts as the one that deletes a lock.
    pub client: Client,
    /// Set when a waiter, an outcome of a lock or the journal needs `Engine::follow_up` after the running command.
    pub has_follow_up: bool,
}

impl Changes {
    /// Creates the state without observers. All random sequences follow from the seed.
    pub fn new(seed: u64) -> Self {
        Changes {
            notify: Classes::default(),
            has_listeners: false,
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
            has_follow_up: false,
        }
    }

    /// Counts a change, and reports it if anyone observes changes.
    #[inline(always)]
    pub fn emit(&mut self, change: Change<'_>) {
        self.count += 1;
        if self.must_report() {
            self.report(change);
        }
    }

    /// Counts a change. Returns whether it must be reported: without observers the change need not be built.
    #[inline(always)]
    pub(crate) fn note(&mut self, effect: &Effect<'_>) -> bool {
        self.count += effect.weight();
        self.must_report()
    }

    /// Reports a change that does not count, such as a key that has expired.
    #[inline]
    pub(crate) fn emit_end(&mut self, change: Change<'_>) {
        if self.must_report() {
            self.report(change);
        }
    }

    /// Sets the number of changes since the count was `before`, where Redis counts by another measure than effects.
    #[inline]
    pub(crate) fn count_as(&mut self, before: u64, changes: u64) {
        self.count = before + changes;
    }

    /// Whether changes have any observer.
    #[inline]
    pub(crate) fn must_report(&self) -> bool {
        self.has_listeners || self.observed || self.log.is_some()
    }

    /// Whether all changes are recorded.
    pub(crate) fn is_recorded(&self) -> bool {
        self.log.is_some() || self.journal.is_some()
    }

    /// Reports a change to channels, observers and the log.
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
        self.end_unit();
    }

    /// Begins a unit of the change log, which lasts until [`Changes::end`]. A nested unit is part of the outer one.
    #[inline]
    pub fn begin(&mut self) {
        self.depth += 1;
    }

    /// Ends a unit.
    #[inline]
    pub fn end(&mut self) {
        self.depth -= 1;
        if self.uncommitted {
            self.end_unit();
        }
    }

    /// Whether a unit has begun and not ended.
    pub fn in_unit(&self) -> bool {
        self.depth > 0
    }

    /// Commits the recorded changes, unless an outer unit goes on.
    #[cold]
    fn end_unit(&mut self) {
        if self.depth > 0 {
            return;
        }
        self.uncommitted = false;
        if let Some(log) = &mut self.log {
            log.end_unit();
        }
    }

    /// Drops the log and with it the unit in progress: the server ends before the unit is whole.
    pub fn abandon(&mut self) {
        self.log = None;
    }

    /// Marks the key's watchers, records its trackers, and records whether its waiters must be served.
    #[cold]
    fn tell(&mut self, change: &Change<'_>) {
        if let Some(journal) = &mut self.journal {
            self.has_follow_up |= journal.note(change);
        }
        if change.effect.is_beside_the_keys() {
            return;
        }
        if change.effect.is_beside_the_value() {
            self.has_follow_up |= self.waits.note(change.db, change.key, &change.effect);
            return;
        }
        self.tracking.note(change);
        match change.effect {
            Effect::None => {}
            // Watchers were marked before, while the keys were still there.
            Effect::Flush => self.has_follow_up |= self.waits.note_flushed(change.db),
            Effect::Swap { with } => self.has_follow_up |= self.waits.note_swapped(change.db, with),
            Effect::LoadLibrary { .. } | Effect::DeleteLibrary { .. } | Effect::FlushLibraries => {}
            _ => {
                let removed = matches!(change.effect, Effect::Delete | Effect::HashRemove { .. });
                self.watches.touch(change.db, change.key, removed);
                self.has_follow_up |= self.waits.note(change.db, change.key, &change.effect);
                if let Some(locks) = &mut self.locks
                    && !matches!(change.effect, Effect::SetLock { .. })
                {
                    locks.gone(Key { db: change.db, name: change.key });
                    self.has_follow_up |= locks.has_work();
                }
            }
        }
    }

    /// Whether changes of keys have observers.
    #[inline]
    pub fn has_key_observers(&self) -> bool {
        self.observed
    }

    /// Must be called after an observer of keys was added or removed.
    pub fn update_observed(&mut self) {
        self.observed = self.has_observers();
    }

    /// Takes note of whether anybody waited for a lock before locks were worked on, and does now. Nothing else that observes keys may have
    /// been removed meanwhile.
    #[inline]
    pub fn update_lock_waits(&mut self, before: bool, now: bool) {
        if now {
            self.observed = true;
        } else if before {
            self.update_observed();
        }
    }

    fn has_observers(&self) -> bool {
        let locks_waited_for = self.locks.as_ref().is_some_and(|locks| !locks.queues.is_empty());
        !self.watches.is_empty()
            || !self.waits.is_empty()
            || !self.tracking.is_empty()
            || locks_waited_for
            || self.journal.is_some()
    }

    /// Must be called after an operation on locks.
    pub fn update_locks_due(&mut self) {
        self.locks_due_ms = self.locks.as_ref().map_or(u64::MAX, |locks| locks.next_ms());
    }

    /// Whether holders of lost locks are still to be notified, or the history of locks exceeds its bound.
    pub fn has_lost(&self) -> bool {
        self.locks.as_ref().is_some_and(|locks| locks.has_lost() || locks.history.exceeds())
    }

    /// Whether memory of removed interests waits to be freed.
    pub fn has_retired(&self) -> bool {
        self.observed && (self.watches.has_retired() || self.waits.has_retired() || self.tracking.has_retired())
    }

    /// Frees memory of removed interests, at most `budget` steps.
    pub fn free_some(&mut self, budget: &mut u32) {
        self.watches.free_some(budget);
        self.waits.free_some(budget);
        self.tracking.free_some(budget);
        self.update_observed();
    }

    /// Panics if an invariant is broken. Walks everything.
    pub fn check_invariants(&self) {
        self.watches.check_invariants();
        self.waits.check_invariants();
        self.tracking.check_invariants();
        assert_eq!(self.observed, self.has_observers(), "who is interested is told");
        let locks = self.locks.as_ref();
        assert!(locks.is_some(), "locks are put back");
        locks.into_iter().for_each(|locks| locks.check_invariants());
        assert_eq!(Some(self.locks_due_ms), locks.map(|locks| locks.next_ms()), "when locks change is known");
        assert!(self.has_follow_up || !self.waits.has_ready(), "what is ready is followed up");
    }

    /// Publishes an event without a change, such as a miss.
    #[inline]
    pub fn publish(&mut self, db: u32, event: Event, key: &[u8]) {
        if self.has_listeners
            && self.notify.intersects(event.class)
            && self.notify.intersects(Classes::KEYSPACE | Classes::KEYEVENT)
        {
            self.pending.push(PendingEvent { db, event: Some(event), key: key.into() });
        }
    }

    /// Queues the notification of an expired key, which was already reported, for the channels of `lock-expiry-publish`.
    #[inline]
    pub fn expired(&mut self, db: u32, key: &[u8]) {
        if self.expiry_rules {
            self.pending.push(PendingEvent { db, event: None, key: key.into() });
        }
    }
}
