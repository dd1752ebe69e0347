//! Commands that wait: who waits for which key, until when, and how they are served.
//!
//! A handler that finds nothing to take calls [`Context::block`]. The engine keeps the request and puts the session at the end of the
//! queue of each of its keys; nothing more is read from its connection. Every change of a key comes by
//! [`crate::engine::change::Changes::emit`], and there a key that somebody waits for is noted as ready, once. When the command, the
//! transaction or the script that did it has ended, in the same step, the waiters of the ready keys are served: in the order in which
//! they came, by executing their requests again, for as long as the key holds what they wait for.
//!
//! ```text
//!   BLPOP ─▶ nothing there ─▶ block ─▶ (database, key) ─▶ waiter ─▶ waiter ─▶ …
//!   LPUSH ─▶ emit ─▶ ready keys ─▶ after the command: waiters, first come first served ─▶ BLPOP again ─▶ reply
//!                       ▲                                                                      │
//!                       └──────────── BLMOVE has fed another key ◀────────────────────────────┘
//! ```

use std::collections::{BTreeSet, VecDeque};

use crate::engine::Engine;
use crate::engine::arguments::Arguments;
use crate::engine::change::Effect;
use crate::engine::command::Command;
use crate::engine::context::{Context, Origin};
use crate::engine::error::{Error, Result};
use crate::engine::interest::{Interests, NIL};
use crate::engine::number::LongDouble;
use crate::engine::session::{SessionFlags, SessionId};
use crate::engine::time::Now;
use crate::resp::reply::{Sink, WireReply};
use crate::store::entry::ValueRef;
use crate::store::value::Value;

bitflags::bitflags! {
    /// What wakes a waiter: the type that the key must hold, or that it holds it no more.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Wake: u8 {
        /// The key is a list.
        const LIST = 1 << 0;
        /// The key is a sorted set.
        const ZSET = 1 << 1;
        /// The key is a stream.
        const STREAM = 1 << 2;
        /// The key was removed, or holds something else: a consumer group that is waited at is gone.
        const GONE = 1 << 3;
        /// The key is a hash: nothing waits for one but tests.
        const HASH = 1 << 4;
        /// The key is a latch that is open.
        const LATCH = 1 << 5;
    }
}

impl Wake {
    /// What a value wakes.
    fn by(value: ValueRef<'_>) -> Wake {
        match value {
            ValueRef::Boxed(Value::List(_)) => Wake::LIST,
            ValueRef::Boxed(Value::ZSet(_)) => Wake::ZSET,
            ValueRef::Boxed(Value::Stream(_)) => Wake::STREAM,
            ValueRef::Boxed(Value::Hash(_)) | ValueRef::Count { .. } => Wake::HASH,
            ValueRef::Boxed(Value::Latch(0)) => Wake::LATCH,
            _ => Wake::empty(),
        }
    }

    /// Whether an effect can wake nobody: what is kept of the readers of a stream, and what a stream loses.
    fn is_bookkeeping(effect: &Effect<'_>) -> bool {
        matches!(
            effect,
            Effect::StreamRemove { .. }
                | Effect::StreamTrim { .. }
                | Effect::StreamSet { .. }
                | Effect::GroupSet { .. }
                | Effect::ConsumerSet { .. }
                | Effect::ConsumerRemove { .. }
                | Effect::PendingSet { .. }
                | Effect::PendingRemove { .. }
        )
    }

    /// Whether an effect may have made a key one that somebody waits for.
    fn is_fed_by(effect: &Effect<'_>) -> bool {
        let takes = matches!(
            effect,
            Effect::Delete
                | Effect::HashRemove { .. }
                | Effect::ListPop { .. }
                | Effect::ListRemove { .. }
                | Effect::ListSet { .. }
                | Effect::ZSetRemove { .. }
        );
        !takes && !matches!(effect, Effect::SetString { .. } | Effect::Deadline(_) | Effect::None)
    }
}

/// The reply to a command whose time to wait is over.
#[derive(Clone, Copy, Debug)]
enum TimeOut {
    /// A null array, as from commands that reply with arrays.
    NullArray,
    /// Null.
    Null,
    /// So many zeros, in an array where there are several: of the replicas and logs that were waited for, none has come.
    Zeros(usize),
}

impl TimeOut {
    fn write(self, reply: &mut dyn Sink) {
        match self {
            TimeOut::NullArray => reply.null_array(),
            TimeOut::Null => reply.null(),
            TimeOut::Zeros(count) => {
                if count > 1 {
                    reply.array(count);
                }
                (0..count).for_each(|_| reply.integer(0));
            }
        }
    }
}

/// A session that waits.
#[derive(Debug)]
pub struct Waiter {
    session: SessionId,
    /// The client's number.
    client: u64,
    command: &'static Command,
    args: Arguments,
    wake: Wake,
    /// Monotonic milliseconds.
    deadline: Option<u64>,
    time_out: TimeOut,
}

/// All who wait, and the keys that are ready for them. A session knows the number of its waiter, [`NIL`] where it waits for no key.
pub struct Waits {
    interests: Interests<Option<Box<Waiter>>>,
    /// Keys that may serve somebody, in the order in which they became ready.
    ready: VecDeque<u32>,
    /// Time-outs: monotonic milliseconds, the client's number, that of the waiter.
    deadlines: BTreeSet<(u64, u64, u32)>,
    /// The first of them; the end of time where there is none.
    next_ms: u64,
    /// Waiters that are woken by the end of a key.
    gone: usize,
}

impl Waits {
    /// Nobody waits.
    pub fn new(seed: u64) -> Self {
        Waits { interests: Interests::new(seed), ready: VecDeque::new(), deadlines: BTreeSet::new(), next_ms: u64::MAX, gone: 0 }
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.interests.is_empty()
    }

    /// Number of sessions that wait for keys.
    pub fn waiters(&self) -> usize {
        self.interests.owners()
    }

    /// Number of sessions that wait for keys no longer than until some time.
    pub fn timed(&self) -> usize {
        self.deadlines.len()
    }

    /// Number of keys that are waited for.
    pub fn keys(&self) -> usize {
        self.interests.keys()
    }

    /// Number of keys whose removal somebody waits for. Walks all waiters where there is one.
    pub fn keys_waited_on_removal(&self) -> usize {
        if self.gone == 0 {
            return 0;
        }
        let wakes = |link| {
            let waiter = self.interests.owner_of(link).and_then(|owner| self.interests.owner(owner)?.as_ref());
            waiter.is_some_and(|waiter| waiter.wake.contains(Wake::GONE))
        };
        self.interests.all_keys().filter(|key| self.interests.links_to(key.0).any(wakes)).count()
    }

    /// Bytes that a waiter's request and keys take up, about.
    pub fn bytes(&self, waiter: u32) -> usize {
        let request = self.interests.owner(waiter).and_then(Option::as_ref).map_or(0, |waiter| waiter.args.bytes());
        request + self.interests.bytes(waiter)
    }

    /// When the next waiter's time is over, in monotonic milliseconds; the end of time where nobody's will be.
    #[inline]
    pub fn next_ms(&self) -> u64 {
        self.next_ms
    }

    /// Whether there are keys that may serve somebody.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// A key was changed; gives whether that may serve somebody.
    pub(super) fn note(&mut self, db: u32, key: &[u8], effect: &Effect<'_>) -> bool {
        if Wake::is_bookkeeping(effect) || (self.gone == 0 && !Wake::is_fed_by(effect)) {
            return false;
        }
        let key = self.interests.find(db, key);
        key.into_iter().for_each(|key| self.make_ready(key));
        key.is_some()
    }

    fn make_ready(&mut self, key: u32) {
        if !self.interests.pinned(key) {
            self.interests.pin(key);
            self.ready.push_back(key);
        }
    }

    /// Two databases have changed places: any of their keys may be ready now. Walks all keys that are waited for.
    pub(super) fn note_swapped(&mut self, a: u32, b: u32) -> bool {
        let keys: Vec<u32> = self.interests.all_keys().filter(|key| [a, b].contains(&key.1)).map(|key| key.0).collect();
        keys.iter().for_each(|&key| self.make_ready(key));
        !keys.is_empty()
    }

    /// A database was emptied, which concerns those who wait for the end of a key in there. Walks all who wait, and of the keys of each only the
    /// first: all are in one database, and are all gone.
    pub(super) fn note_flushed(&mut self, db: u32) -> bool {
        if self.gone == 0 {
            return false;
        }
        let first_key = |owner| self.interests.links_of(owner).next().map(|link| self.interests.key_of(link));
        let waiters =
            self.interests.all_owners().filter(|(_, waiter)| waiter.as_ref().is_some_and(|w| w.wake.contains(Wake::GONE)));
        let keys: Vec<u32> =
            waiters.filter_map(|(owner, _)| first_key(owner)).filter(|&key| self.interests.key(key).0 == db).collect();
        keys.iter().for_each(|&key| self.make_ready(key));
        !keys.is_empty()
    }

    fn enter<'k>(&mut self, waiter: Waiter, db: u32, keys: impl Iterator<Item = &'k [u8]>) -> u32 {
        let Waiter { client, wake, deadline, .. } = waiter;
        let number = self.interests.enter(Some(Box::new(waiter)));
        for key in keys {
            self.interests.link(number, db, key, false);
        }
        if let Some(deadline) = deadline {
            self.deadlines.insert((deadline, client, number));
            self.next_ms = self.next_ms.min(deadline);
        }
        self.gone += usize::from(wake.contains(Wake::GONE));
        number
    }

    /// Takes a waiter out of all queues.
    fn leave(&mut self, number: u32) -> Option<Box<Waiter>> {
        let waiter = self.interests.leave(number)?;
        if let Some(deadline) = waiter.deadline {
            self.deadlines.remove(&(deadline, waiter.client, number));
            if deadline == self.next_ms {
                self.next_ms = self.deadlines.first().map_or(u64::MAX, |first| first.0);
            }
        }
        self.gone -= usize::from(waiter.wake.contains(Wake::GONE));
        Some(waiter)
    }

    /// Whether memory of waiters that are gone waits to be freed.
    pub fn has_retired(&self) -> bool {
        self.interests.has_retired()
    }

    /// Frees what is left of waiters that are gone, at most `budget` of it.
    pub fn free_some(&mut self, budget: &mut u32) {
        self.interests.free_some(budget);
    }

    /// Panics where the state is not what it should be. Walks everything.
    pub fn check_invariants(&self) {
        self.interests.check_invariants();
        for &key in &self.ready {
            assert!(self.interests.pinned(key), "a ready key is pinned");
        }
        let pinned = self.interests.all_keys().filter(|key| self.interests.pinned(key.0)).count();
        assert_eq!(pinned, self.ready.len(), "a pinned key is ready, once");
        assert_eq!(self.next_ms, self.deadlines.first().map_or(u64::MAX, |first| first.0), "the first time-out is known");
        for &(deadline, client, number) in &self.deadlines {
            let waiter = self.interests.owner(number).and_then(Option::as_ref);
            assert!(waiter.is_some_and(|waiter| waiter.deadline == Some(deadline) && waiter.client == client), "whose time-out");
        }
    }

    /// Panics unless a waiter is that of this session.
    pub fn check_waiter(&self, number: u32, id: SessionId) {
        let waiter = self.interests.owner(number).and_then(Option::as_ref);
        assert!(waiter.is_some_and(|waiter| waiter.session == id), "a session knows its waiter");
    }
}

impl Context<'_> {
    /// Whether the command may wait. In a transaction or a script it may not: it replies as if its time were over at once.
    pub fn may_block(&mut self) -> bool {
        self.origin == Origin::Client && !self.session().flags.contains(SessionFlags::IN_EXEC)
    }

    /// Has the session wait until one of the keys holds what wakes it, or until a deadline (monotonic milliseconds): then the request is
    /// executed again, or a null array is its reply. The handler must not have replied, and be allowed to wait.
    pub fn block<'k>(&mut self, args: &[&[u8]], keys: impl Iterator<Item = &'k [u8]>, wake: Wake, deadline: Option<u64>) {
        let time_out = if wake.contains(Wake::LATCH) { TimeOut::Null } else { TimeOut::NullArray };
        self.wait(args, keys, wake, deadline, time_out);
    }

    /// Has the session wait until a deadline (monotonic milliseconds) for what never comes; then its reply is so many zeros.
    pub fn block_in_vain(&mut self, args: &[&[u8]], deadline: Option<u64>, zeros: usize) {
        self.wait(args, std::iter::empty(), Wake::empty(), deadline, TimeOut::Zeros(zeros));
    }

    fn wait<'k>(
        &mut self,
        args: &[&[u8]],
        keys: impl Iterator<Item = &'k [u8]>,
        wake: Wake,
        deadline: Option<u64>,
        time_out: TimeOut,
    ) {
        let (id, command, db) = (self.session, self.command, self.db);
        // Whoever waits on goes on waiting for no longer than it said at first.
        let deadline = self.engine.resumed.unwrap_or(deadline);
        let client = self.session().id;
        let waiter = Waiter { session: id, client, command, args: Arguments::new(args), wake, deadline, time_out };
        let changes = &mut self.engine.keyspace.changes;
        let number = changes.waits.enter(waiter, db, keys);
        changes.update_observed();
        let session = self.session();
        session.waiter = number;
        session.flags |= SessionFlags::BLOCKED;
        // It counts when it is done.
        self.engine.stats.commands -= 1;
    }
}

impl Engine {
    /// After a command, a transaction or a script, or when time has passed: serves those who wait for what has become ready, and
    /// executes what a pause has held back.
    #[cold]
    pub(super) fn attend(&mut self, now: Now) {
        // Not in the middle of a script that lets others be answered.
        if self.long_run.is_some() {
            return;
        }
        self.keyspace.changes.attention = false;
        self.settle_journal();
        self.serve_ready(now);
        self.attend_locks(now);
        self.settle_journal();
        self.resume_held(now);
    }

    pub(super) fn serve_ready(&mut self, now: Now) {
        while let Some(key) = self.keyspace.changes.waits.ready.pop_front() {
            let waits = &mut self.keyspace.changes.waits;
            let (db, name) = waits.interests.key(key);
            let name: Box<[u8]> = name.into();
            if waits.interests.unpin(key) {
                self.serve_key(now, key, db, &name);
            }
        }
        // What happened to be the last waiter for a key leaves nobody to be told.
        self.keyspace.changes.update_observed();
    }

    /// Serves those who wait for a key, in order, each of them once.
    fn serve_key(&mut self, now: Now, key: u32, db: u32, name: &[u8]) {
        let interests = &self.keyspace.changes.waits.interests;
        let (mut left, mut link) = (interests.interested(key), interests.first(key));
        while left > 0 && link != NIL {
            left -= 1;
            let held = self.keyspace.db(db, now).peek(name).map_or(Wake::empty(), |entry| Wake::by(entry.value()));
            let waits = &self.keyspace.changes.waits;
            if held.is_empty() && waits.gone == 0 {
                break;
            }
            let next = waits.interests.next(link);
            let number = waits.interests.owner_of(link);
            let waiter = number.and_then(|number| waits.interests.owner(number)).and_then(Option::as_ref);
            if let Some(number) = number
                && waiter.is_some_and(|waiter| waiter.wake.intersects(held) || waiter.wake.contains(Wake::GONE))
            {
                self.serve(now, number);
            }
            link = next;
        }
    }

    /// Executes the request of a waiter again.
    fn serve(&mut self, now: Now, number: u32) {
        let Some(waiter) = self.keyspace.changes.waits.leave(number) else { return };
        let Waiter { session: id, command, args, deadline, .. } = *waiter;
        let session = &mut self.sessions[id.0 as usize];
        session.waiter = NIL;
        session.resume();
        if session.flags.contains(SessionFlags::CLOSE_NOW) {
            return;
        }
        self.resumed = Some(deadline);
        self.perform_again(now, id, Some(command), &args.borrow());
        self.resumed = None;
        self.wake_up(now, id);
    }

    /// Has the shell look at a session that was blocked.
    pub(super) fn wake_up(&mut self, now: Now, id: SessionId) {
        let session = &mut self.sessions[id.0 as usize];
        session.last_ms = now.mono_ms();
        if session.flags.contains(SessionFlags::PACED) {
            self.hold_awaited(now, id);
        }
        self.mark_dirty(id);
    }

    /// Ends the waiting of those whose time is over.
    pub(super) fn time_out(&mut self, now: Now, budget: &mut u32) {
        while *budget > 0
            && let Some(&(deadline, _, number)) = self.keyspace.changes.waits.deadlines.first()
            && now.reached(deadline)
        {
            *budget -= 1;
            self.end_wait(now, number, None);
        }
    }

    /// Ends the waiting of a session for keys with an error, or as if its time were over; false where it does not wait for any.
    pub fn unblock(&mut self, now: Now, id: SessionId, error: Option<&Error>) -> bool {
        let number = self.sessions[id.0 as usize].waiter;
        if number == NIL { self.unblock_from_locks(now, id, error) } else { self.end_wait(now, number, error) }
    }

    fn end_wait(&mut self, now: Now, number: u32, error: Option<&Error>) -> bool {
        let Some(waiter) = self.keyspace.changes.waits.leave(number) else { return false };
        self.keyspace.changes.update_observed();
        // It was counted when it began to wait, and then not any more, as one that is served is executed again.
        self.count(waiter.command);
        if let Some(error) = error {
            self.stats.error(error);
            self.command_stats.of(waiter.command).failed += 1;
        }
        let session = &mut self.sessions[waiter.session.0 as usize];
        session.waiter = NIL;
        session.flags.remove(SessionFlags::BLOCKED);
        if !session.silenced() {
            let mut reply = WireReply::new(&mut session.out, session.protocol);
            match error {
                Some(error) => reply.error(error.text()),
                None => waiter.time_out.write(&mut reply),
            }
        }
        self.wake_up(now, waiter.session);
        true
    }

    /// Forgets that a session waits, for whatever reason.
    pub(crate) fn forget_wait(&mut self, now: Now, id: SessionId) {
        self.forget_lock_wait(now, id);
        self.forget_walk(id);
        let session = &mut self.sessions[id.0 as usize];
        if !session.flags.contains(SessionFlags::BLOCKED) {
            return;
        }
        session.flags.remove(SessionFlags::BLOCKED);
        let number = std::mem::replace(&mut session.waiter, NIL);
        let held = std::mem::take(&mut session.held);
        if number != NIL {
            self.keyspace.changes.waits.leave(number);
            self.keyspace.changes.update_observed();
        }
        self.pause.forget(held);
    }
}

/// The time-out of a command that waits, given in seconds: its deadline in monotonic milliseconds, `None` for 0.
pub fn deadline(now: Now, seconds: &[u8]) -> Result<Option<u64>> {
    let read = LongDouble::parse(seconds).ok_or(Error::TIMEOUT_NOT_FLOAT)?;
    let ms = match (read.to_f64() * 1000.0).ceil() {
        // However short, it is not for ever.
        0.0 if read.is_positive() => 1.0,
        ms => ms,
    };
    if ms >= i64::MAX as f64 - now.unix_ms() as f64 {
        return Err(Error::TIMEOUT_RANGE);
    }
    match ms as i64 {
        ..0 => Err(Error::TIMEOUT_NEGATIVE),
        0 => Ok(None),
        ms => Ok(Some(now.deadline_in(ms as u64))),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
