//! Blocked sessions: which keys they wait for, until when, and which keys have become ready for them.
//!
//! The engine adds and serves the sessions; see `engine::blocking`. The databases report changes here.

use std::collections::{BTreeSet, VecDeque};

use crate::base::arguments::Arguments;
use crate::base::ids::SessionId;
use crate::keyspace::change::Effect;
use crate::keyspace::interests::Interests;
use crate::resp::reply::Sink;
use crate::store::entry::ValueRef;
use crate::store::values::value::Value;

bitflags::bitflags! {
    /// What wakes a waiter: the key holds the expected type, or does not hold it any more.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Wake: u8 {
        /// The key is a list.
        const LIST = 1 << 0;
        /// The key is a sorted set.
        const ZSET = 1 << 1;
        /// The key is a stream.
        const STREAM = 1 << 2;
        /// The key was removed or holds another type: the consumer group that a waiter reads is gone.
        const GONE = 1 << 3;
        /// The key is a hash; only tests wait for one.
        const HASH = 1 << 4;
        /// The key is an open latch.
        const LATCH = 1 << 5;
    }
}

impl Wake {
    /// The kind of waiters that a value wakes.
    pub(crate) fn by(value: ValueRef<'_>) -> Wake {
        match value {
            ValueRef::Boxed(Value::List(_)) => Wake::LIST,
            ValueRef::Boxed(Value::ZSet(_)) => Wake::ZSET,
            ValueRef::Boxed(Value::Stream(_)) => Wake::STREAM,
            ValueRef::Boxed(Value::Hash(_)) | ValueRef::Count { .. } => Wake::HASH,
            ValueRef::Boxed(Value::Latch(0)) => Wake::LATCH,
            _ => Wake::empty(),
        }
    }

    /// Whether an effect can wake nobody: bookkeeping of a stream's readers, and removals from a stream.
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

    /// Whether an effect may make a key ready for a waiter.
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

/// The reply to a command that timed out.
#[derive(Clone, Copy, Debug)]
pub enum TimeOut {
    /// A null array, as from commands that reply with arrays.
    NullArray,
    /// Null.
    Null,
    /// OK, for what the driver does, such as `SAVE`. It has no deadline: the driver ends it.
    Driver,
    /// Nothing: a login from an address where others have failed is tried then.
    Login,
    /// 0: no replica has acknowledged.
    NoReplica,
    /// Whether the log is durable up to this position (never for `None`), and 0 for the replicas.
    Acknowledged(Option<u64>),
    /// Nothing: the request waits for a leader. If none is found, it is executed all the same (`answers`), or its connection is closed.
    Leader {
        /// Whether it can be executed without a leader.
        answers: bool,
    },
    /// The number of followers that have the changes so far; for `WAITAOF`, after whether they are settled.
    Followers(Acknowledgement),
}

/// What a `WAIT` or `WAITAOF` of a replicated server waits for.
#[derive(Clone, Copy, Debug)]
pub struct Acknowledgement {
    /// The position in the driver's log behind the changes.
    pub recorded: u64,
    /// Number of followers.
    pub wanted: u64,
    /// An index of the nodes' log at or behind the changes; `None` until they are settled.
    pub reached: Option<u64>,
    /// Whether the reply is that of `WAITAOF`.
    pub aof: bool,
    /// Whether the changes must be settled, too.
    pub local: bool,
}

impl TimeOut {
    /// For someone whose changes are settled and who waits for followers: how many, and up to which index of the nodes' log.
    fn awaited_of_followers(&self) -> Option<(u64, u64)> {
        if let TimeOut::Followers(asked) = self { Some((asked.wanted, asked.reached?)) } else { None }
    }

    /// Writes the reply. `durable` reads the position up to which the log is durable. `followers` is the number of followers that
    /// have what the command waits for.
    pub(crate) fn write(self, reply: &mut dyn Sink, durable: impl FnOnce() -> u64, followers: u64) {
        match self {
            TimeOut::NullArray => reply.null_array(),
            TimeOut::Null => reply.null(),
            TimeOut::Driver => reply.ok(),
            TimeOut::Leader { .. } | TimeOut::Login => {}
            TimeOut::NoReplica => reply.integer(0),
            TimeOut::Acknowledged(position) => {
                reply.array(2);
                reply.integer(i64::from(position.is_some_and(|position| position <= durable())));
                reply.integer(0);
            }
            TimeOut::Followers(asked) => {
                if asked.aof {
                    reply.array(2);
                    reply.integer(i64::from(asked.recorded <= durable()));
                }
                reply.integer(followers as i64);
            }
        }
    }
}

/// A blocked session.
#[derive(Debug)]
pub struct Waiter {
    pub(crate) session: SessionId,
    /// The client's number.
    pub(crate) client: u64,
    pub(crate) args: Arguments,
    pub(crate) wake: Wake,
    /// Monotonic milliseconds.
    pub(crate) deadline: Option<u64>,
    /// The wait ends, as if it timed out, when the log is durable up to this position.
    pub(crate) log_position: Option<u64>,
    pub(crate) time_out: TimeOut,
}

/// All waiters, and the keys that are ready for them. A session knows the number of its waiter, [`NIL`] if it waits for no key.
pub struct Waits {
    pub(crate) interests: Interests<Option<Box<Waiter>>>,
    /// Keys that may serve a waiter, in the order in which they became ready.
    pub(crate) ready: VecDeque<u32>,
    /// Time-outs: monotonic milliseconds, the client's number, that of the waiter.
    pub(crate) deadlines: BTreeSet<(u64, u64, u32)>,
    /// The first of them; `u64::MAX` if there is none.
    next_ms: u64,
    /// Those who wait for the log: the position, and the waiter's number.
    pub(crate) for_log: BTreeSet<(u64, u32)>,
    /// Those whose changes are settled, and who wait for followers: how many, up to which index of the nodes' log, and the waiter's
    /// number.
    pub(crate) for_followers: BTreeSet<(u64, u64, u32)>,
    /// Those who wait for a leader.
    pub(crate) for_leader: BTreeSet<u32>,
    /// Number of waiters that the removal of a key wakes.
    pub(crate) gone: usize,
}

impl Waits {
    /// Creates an empty set of waiters.
    pub fn new(seed: u64) -> Self {
        Waits {
            interests: Interests::new(seed),
            ready: VecDeque::new(),
            deadlines: BTreeSet::new(),
            next_ms: u64::MAX,
            for_log: BTreeSet::new(),
            for_followers: BTreeSet::new(),
            for_leader: BTreeSet::new(),
            gone: 0,
        }
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.interests.is_empty()
    }

    /// Number of sessions that wait for keys.
    pub fn waiters(&self) -> usize {
        self.interests.owners()
    }

    /// Number of sessions that wait for keys with a time-out.
    pub fn timed(&self) -> usize {
        self.deadlines.len()
    }

    /// Number of keys with waiters.
    pub fn keys(&self) -> usize {
        self.interests.keys()
    }

    /// Those who wait for a key, in the order in which they began.
    pub(crate) fn waiters_for(&self, db: u32, key: &[u8]) -> impl Iterator<Item = &Waiter> {
        let links = self.interests.find(db, key).into_iter().flat_map(|key| self.interests.links_to(key));
        links.filter_map(|link| self.interests.owner(self.interests.owner_of(link)?)?.as_deref())
    }

    /// Number of keys whose removal wakes a waiter. Walks all waiters if there is one.
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

    /// Approximate bytes of a waiter's request and keys.
    pub fn bytes(&self, waiter: u32) -> usize {
        let request = self.interests.owner(waiter).and_then(Option::as_ref).map_or(0, |waiter| waiter.args.bytes());
        request + self.interests.bytes(waiter)
    }

    /// When the next waiter times out, in monotonic milliseconds; `u64::MAX` if none will.
    #[inline]
    pub fn next_ms(&self) -> u64 {
        self.next_ms
    }

    /// Whether there are keys that may serve a waiter.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Records a change of a key. Returns whether it may serve a waiter.
    pub(crate) fn note(&mut self, db: u32, key: &[u8], effect: &Effect<'_>) -> bool {
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

    /// Records a swap of two databases: any of their keys may be ready now. Walks all keys with waiters.
    pub(crate) fn note_swapped(&mut self, a: u32, b: u32) -> bool {
        let keys: Vec<u32> = self.interests.all_keys().filter(|key| [a, b].contains(&key.1)).map(|key| key.0).collect();
        keys.iter().for_each(|&key| self.make_ready(key));
        !keys.is_empty()
    }

    /// Records the emptying of a database for the waiters that the removal of a key wakes. Walks all waiters, and only the first
    /// key of each: all of its keys are in one database, and are all gone.
    pub(crate) fn note_flushed(&mut self, db: u32) -> bool {
        if self.gone == 0 {
            return false;
        }
        let first_key = |owner| self.interests.links_of(owner).next().map(|link| self.interests.key_of(link));
        let waiters =
            self.interests.all_owners().filter(|(_, waiter)| waiter.as_ref().is_some_and(|w| w.wake.contains(Wake::GONE)));
        let keys: Vec<u32> =
            waiters.filter_map(|(owner, _)| first_key(owner)).filter(|&key| self.interests.key(key).db == db).collect();
        keys.iter().for_each(|&key| self.make_ready(key));
        !keys.is_empty()
    }

    pub(crate) fn enter<'k>(&mut self, waiter: Waiter, db: u32, keys: impl Iterator<Item = &'k [u8]>) -> u32 {
        let Waiter { client, wake, deadline, log_position, time_out, .. } = waiter;
        let number = self.interests.enter(Some(Box::new(waiter)));
        if let Some(position) = log_position {
            self.for_log.insert((position, number));
        }
        self.for_followers.extend(time_out.awaited_of_followers().map(|(wanted, index)| (wanted, index, number)));
        if let TimeOut::Leader { .. } = time_out {
            self.for_leader.insert(number);
        }
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
    pub(crate) fn leave(&mut self, number: u32) -> Option<Box<Waiter>> {
        let waiter = self.interests.leave(number)?;
        if let Some(deadline) = waiter.deadline {
            self.deadlines.remove(&(deadline, waiter.client, number));
            if deadline == self.next_ms {
                self.next_ms = self.deadlines.first().map_or(u64::MAX, |first| first.0);
            }
        }
        if let Some(position) = waiter.log_position {
            self.for_log.remove(&(position, number));
        }
        if let Some((wanted, index)) = waiter.time_out.awaited_of_followers() {
            self.for_followers.remove(&(wanted, index, number));
        }
        self.for_leader.remove(&number);
        self.gone -= usize::from(waiter.wake.contains(Wake::GONE));
        Some(waiter)
    }

    /// What a waiter waits for, if that is followers.
    pub(crate) fn acknowledgement(&self, number: u32) -> Option<Acknowledgement> {
        if let TimeOut::Followers(asked) = self.interests.owner(number)?.as_ref()?.time_out { Some(asked) } else { None }
    }

    /// Records that the changes of someone who waits for followers are settled, in the nodes' log up to `index`.
    pub(crate) fn note_settled(&mut self, number: u32, index: u64) {
        let Some(waiter) = self.interests.owner_mut(number).and_then(Option::as_mut) else { return };
        let position = waiter.log_position.take();
        let TimeOut::Followers(asked) = &mut waiter.time_out else { return };
        asked.reached = Some(index);
        self.for_followers.insert((asked.wanted, index, number));
        if let Some(position) = position {
            self.for_log.remove(&(position, number));
        }
    }

    /// Whether memory of former waiters waits to be freed.
    pub fn has_retired(&self) -> bool {
        self.interests.has_retired()
    }

    /// Frees memory of former waiters, at most `budget` of it.
    pub fn free_some(&mut self, budget: &mut u32) {
        self.interests.free_some(budget);
    }

    /// Panics if an invariant is broken. Walks everything.
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
        for &(position, number) in &self.for_log {
            let waiter = self.interests.owner(number).and_then(Option::as_ref);
            assert!(waiter.is_some_and(|waiter| waiter.log_position == Some(position)), "who waits for the log");
        }
        for &number in &self.for_leader {
            let waiter = self.interests.owner(number).and_then(Option::as_ref);
            assert!(waiter.is_some_and(|waiter| matches!(waiter.time_out, TimeOut::Leader { .. })), "who waits for a leader");
        }
        for &(wanted, index, number) in &self.for_followers {
            let asked = self.acknowledgement(number);
            assert!(asked.is_some_and(|asked| (asked.wanted, asked.reached) == (wanted, Some(index))), "who waits for followers");
        }
    }

    /// Panics unless a waiter belongs to this session.
    pub fn check_waiter(&self, number: u32, id: SessionId) {
        let waiter = self.interests.owner(number).and_then(Option::as_ref);
        assert!(waiter.is_some_and(|waiter| waiter.session == id), "a session knows its waiter");
    }
}
