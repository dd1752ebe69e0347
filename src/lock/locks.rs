//! The operations on locks: each is one step, after which everybody who can be granted something has been.

mod granting;
pub mod losing;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use granting::grantable;
use losing::{Lost, Origin};
use smallvec::SmallVec;

use crate::engine::time::Now;
use crate::lock::grant::{Client, Grant, Mode, Owner, Reason};
use crate::lock::graph::{self, Wish};
use crate::lock::held::HeldByDb;
use crate::lock::history::{History, What};
use crate::lock::holders::Lock;
use crate::lock::queue::{Queues, Wanted};
use crate::lock::stats::{LongWait, Stats};

/// Waits that last as long as this are kept as long ones, in milliseconds.
pub const LONG_WAIT_MS: u64 = 1000;

/// Where locks are kept.
pub trait Keys {
    /// What a name holds. A lock is taken out of there, and comes back by [`Keys::put`] or [`Keys::put_back`] before anything else
    /// happens to the name.
    fn take(&mut self, db: u32, name: &[u8]) -> Found;

    /// Keeps a lock as it is now under its name, or takes the name away where the lock is free.
    fn put(&mut self, db: u32, name: &[u8], lock: Lock);

    /// As [`Keys::put`] for a lock that was not changed.
    fn put_back(&mut self, db: u32, name: &[u8], lock: Lock);

    /// Something has happened to a name.
    fn happened(&mut self, db: u32, name: &[u8], what: What);
}

/// What a name holds.
#[derive(Debug)]
pub enum Found {
    /// Nothing.
    Free,
    /// A lock or a semaphore.
    Lock(Lock),
    /// Something else that is no plain key either: whoever wants a lock of that name is wrong.
    Native,
    /// A plain key: it is in the way until it goes.
    Plain,
}

/// What somebody wants.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The owner.
    pub owner: &'a [u8],
    /// The connection.
    pub client: Client,
    /// What.
    pub wanted: Wanted,
}

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// It was granted, with this token.
    Granted(u64),
    /// Somebody else holds it.
    Busy,
    /// Its connection waits, and has this number as a waiter. An [`Outcome`] will come.
    Waits(u32),
}

/// Why something was refused. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The name holds something of another type.
    WrongType,
    /// The semaphore has another limit.
    Limit {
        /// The one it has.
        has: u32,
    },
    /// The wait would close this cycle.
    Deadlock(Vec<u8>),
    /// Whoever wants to give back or renew something does not hold it.
    NotHeld(Cause),
}

/// Why an owner does not hold a lock. Times are milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It never did, as far as is remembered, and nobody else does.
    Never,
    /// Its lease has ended.
    LeaseEnded {
        /// How long ago.
        ago_ms: u64,
    },
    /// It gave the lock back.
    Released {
        /// How long ago.
        ago_ms: u64,
    },
    /// The lock was deleted.
    Deleted {
        /// By which client.
        client: u64,
        /// How long ago.
        ago_ms: u64,
    },
    /// Its connection was closed.
    SessionEnded {
        /// How long ago.
        ago_ms: u64,
    },
    /// Somebody else holds it.
    HeldBy {
        /// Who.
        owner: Vec<u8>,
        /// For how long.
        for_ms: u64,
    },
}

/// What a connection has to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// What it waited for was granted: the token, or those of all names in their order.
    Granted {
        /// The connection.
        client: Client,
        /// The tokens.
        tokens: SmallVec<[u64; 1]>,
        /// Whether an array is expected.
        all: bool,
        /// How long it has waited.
        waited_ms: u64,
    },
    /// The time it would wait is over.
    TimedOut {
        /// The connection.
        client: Client,
        /// Whether an array was expected.
        all: bool,
        /// How long it has waited.
        waited_ms: u64,
    },
    /// What it waited for has come to be of another type, or another limit.
    Refused {
        /// The connection.
        client: Client,
        /// Why.
        refusal: Refusal,
        /// The name it is about.
        name: Box<[u8]>,
        /// What it wanted.
        wanted: Wanted,
    },
    /// A grant ended that its holder did not give back.
    Lost {
        /// The connection that had acquired it.
        client: Client,
        /// The name.
        name: Box<[u8]>,
        /// The owner.
        owner: Owner,
        /// The fencing token.
        token: u64,
        /// Why.
        reason: Reason,
    },
}

/// A database by its index, and a name in it.
type Name = (u32, Box<[u8]>);

/// What comes about by itself, in the order in which it does at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// Something about the name of a queue changes.
    Queue(u32),
    /// The time of a waiter is over: its serial number, and its number.
    Waiter(i64, u32),
}

/// All that is known of locks beside the locks themselves.
pub struct Locks {
    /// Who waits.
    pub queues: Queues,
    /// What happened lately.
    pub history: History,
    /// Totals.
    pub stats: Stats,
    /// How much is held.
    pub held: HeldByDb,
    next_token: u64,
    deadlines: BTreeSet<(u64, Due)>,
    next_ms: u64,
    /// Queues whose first waiters may be granted something.
    todo: Vec<u32>,
    /// Owners that were granted the name of a queue to be served, and wait for more, perhaps of it.
    again: Vec<(u32, Owner)>,
    /// What has to be told.
    pub outcomes: Vec<Outcome>,
    /// Grants that end with their connections: the client's number, the token, and the name in the database that is [`Locks::home`] to
    /// it. What was lost with its database goes when its holder is told.
    bound: BTreeMap<(u64, u64), Name>,
    /// What databases are called that have changed places.
    homes: Vec<u32>,
    /// Holders that are to be told that they have lost what they held.
    lost: VecDeque<Lost>,
    /// When each database was last emptied, and by whom.
    flushes: Vec<Origin>,
    /// Waits of so many milliseconds are long; `None` where none is.
    pub long_wait_ms: Option<u64>,
}

impl Locks {
    /// No lock was granted yet; the first token will be this one.
    pub fn new(seed: u64, first_token: u64) -> Self {
        Locks {
            queues: Queues::new(seed),
            history: History::new(seed ^ 0x5851_f42d_4c95_7f2d),
            stats: Stats::default(),
            held: HeldByDb::default(),
            next_token: first_token.max(1),
            deadlines: BTreeSet::new(),
            next_ms: u64::MAX,
            todo: Vec::new(),
            again: Vec::new(),
            outcomes: Vec::new(),
            bound: BTreeMap::new(),
            homes: Vec::new(),
            lost: VecDeque::new(),
            flushes: Vec::new(),
            long_wait_ms: Some(LONG_WAIT_MS),
        }
    }

    /// The token of the next grant.
    pub fn next_token(&self) -> u64 {
        self.next_token
    }

    /// Sets the token of the next grant, which never goes back.
    pub fn set_next_token(&mut self, token: u64) {
        self.next_token = self.next_token.max(token);
    }

    /// When something comes about by itself at the earliest, in monotonic milliseconds; the end of time where nothing will.
    #[inline]
    pub fn next_ms(&self) -> u64 {
        if self.todo.is_empty() { self.next_ms } else { 0 }
    }

    /// Whether somebody has to be told something, or may be granted something.
    #[inline]
    pub fn has_work(&self) -> bool {
        !self.todo.is_empty() || !self.outcomes.is_empty()
    }

    /// Takes a lock, or waits for it until a deadline where one is given (`Some(None)` waits without limit).
    pub fn acquire(
        &mut self,
        keys: &mut impl Keys,
        now: Now,
        (db, name): (u32, &[u8]),
        request: Request<'_>,
        wait: Option<Option<u64>>,
    ) -> Result<Acquired, Refusal> {
        let found = self.open(keys, now, db, name);
        let wanted = request.wanted;
        let (mut lock, plain) = match found {
            Found::Native => return Err(Refusal::WrongType),
            Found::Plain => (Lock::default(), true),
            Found::Free => (Lock::default(), false),
            Found::Lock(lock) => (lock, false),
        };
        if let Err(refusal) = fits(&lock, wanted) {
            keys.put_back(db, name, lock);
            return Err(refusal);
        }
        let queue = self.queues.find(db, name);
        let client = request.client;
        let held = lock.holders.get(request.owner).map(|grant| (grant.mode, grant.token));
        if let Some((mode, token)) = held
            && (mode == wanted.mode || mode == Mode::Exclusive || wanted.limit > 0)
        {
            self.reenter(now, (db, name), &mut lock, request, false);
            self.history.note(db, name, now.mono_ms(), What::Reentered, request.owner, client);
            self.close(keys, (db, name), lock);
            return Ok(Acquired::Granted(token));
        }
        let (upgrade, waited_for) = (held.is_some(), queue.and_then(|queue| self.queues.first(queue)).is_some());
        if !plain && (upgrade || !waited_for) && grantable(&lock, wanted, request.owner) {
            self.stats.immediate += 1;
            let token = self.give(keys, now, (db, name), queue, &mut lock, request, None);
            if let Some(queue) = queue {
                self.serve_again(queue, request.owner);
            }
            self.close(keys, (db, name), lock);
            return Ok(Acquired::Granted(token));
        }
        let Some(deadline_ms) = wait else {
            self.put_aside(keys, (db, name), lock, plain);
            self.history.note(db, name, now.mono_ms(), What::Refused, request.owner, client);
            return Ok(Acquired::Busy);
        };
        let queue = self.contend(db, name, &lock);
        let waits = self.wait(keys, now, request, deadline_ms, (upgrade, false), &[queue]);
        self.close_unchanged(keys, (db, name), lock, plain);
        waits.map(Acquired::Waits)
    }

    /// Takes all of these locks, or waits until all can be had at once. Their names are different from each other.
    pub fn acquire_all(
        &mut self,
        keys: &mut impl Keys,
        now: Now,
        db: u32,
        names: &[&[u8]],
        request: Request<'_>,
        wait: Option<Option<u64>>,
    ) -> Result<Result<SmallVec<[u64; 1]>, Option<u32>>, Refusal> {
        let mut free = true;
        for name in names {
            match self.open(keys, now, db, name) {
                Found::Native => return Err(Refusal::WrongType),
                Found::Plain => free = false,
                Found::Free => free &= self.is_unclaimed(db, name),
                Found::Lock(lock) => {
                    let fitting = fits(&lock, request.wanted);
                    let held = lock.holders.get(request.owner).is_some_and(|grant| grant.mode == Mode::Exclusive);
                    free &= held || (self.is_unclaimed(db, name) && grantable(&lock, request.wanted, request.owner));
                    keys.put_back(db, name, lock);
                    fitting?;
                }
            }
        }
        if free {
            self.stats.immediate += names.len() as u64;
            return Ok(Ok(names.iter().map(|name| self.give_one_of(keys, now, (db, name), request, None)).collect()));
        }
        let Some(deadline_ms) = wait else {
            for name in names {
                self.history.note(db, name, now.mono_ms(), What::Refused, request.owner, request.client);
            }
            return Ok(Err(None));
        };
        let mut queues: SmallVec<[u32; 8]> = SmallVec::new();
        for name in names {
            let found = keys.take(db, name);
            let lock = if let Found::Lock(lock) = found { lock } else { Lock::default() };
            queues.push(self.contend(db, name, &lock));
            if !lock.is_free() {
                keys.put_back(db, name, lock);
            }
        }
        let waits = self.wait(keys, now, request, deadline_ms, (false, true), &queues);
        queues.iter().for_each(|&queue| self.look_after(keys, queue));
        waits.map(|waiter| Err(Some(waiter)))
    }

    /// Gives a lock back once, or altogether; gives how often it is still held.
    pub fn release(
        &mut self,
        keys: &mut impl Keys,
        now: Now,
        (db, name): (u32, &[u8]),
        owner: &[u8],
        (all, semaphore): (bool, bool),
    ) -> Result<u32, Refusal> {
        let mut lock = self.open_held(keys, now, (db, name), owner, semaphore)?;
        let left = lock.holders.change(owner, |grant| {
            grant.holds = if all { 0 } else { grant.holds - 1 };
            grant.holds
        });
        let left = left.unwrap_or(0);
        if left == 0
            && let Some(grant) = lock.holders.remove(owner)
        {
            self.end(db, name, &lock, &grant);
            self.stats.releases += 1;
            self.history.note(db, name, now.mono_ms(), What::Released, owner, grant.client);
            keys.happened(db, name, What::Released);
            self.serve(keys, now, (db, name), &mut lock);
        }
        self.close(keys, (db, name), lock);
        self.work(keys, now);
        Ok(left)
    }

    /// Begins the lease of a holder anew; gives the milliseconds that are left of it.
    pub fn renew(
        &mut self,
        keys: &mut impl Keys,
        now: Now,
        (db, name): (u32, &[u8]),
        owner: &[u8],
        (lease_ms, semaphore): (u64, bool),
    ) -> Result<u64, Refusal> {
        let mut lock = self.open_held(keys, now, (db, name), owner, semaphore)?;
        let end_ms = lock.holders.change(owner, |grant| {
            grant.renew(now.deadline_in(lease_ms));
            grant.end_ms
        });
        self.close(keys, (db, name), lock);
        Ok(now.left_ms(end_ms.unwrap_or(0)))
    }

    /// A lock as it is now, for those who look at it, and then nobody does anything to the name before it is put back.
    pub fn look<T>(
        &mut self,
        keys: &mut impl Keys,
        now: Now,
        (db, name): (u32, &[u8]),
        see: impl FnOnce(Option<&Lock>) -> T,
    ) -> T {
        match self.open(keys, now, db, name) {
            Found::Lock(lock) => {
                let seen = see(Some(&lock));
                keys.put_back(db, name, lock);
                seen
            }
            _ => see(None),
        }
    }

    /// A connection waits no more: it was closed, or somebody else has ended its wait. Those behind it are served by [`Locks::work`].
    pub fn leave(&mut self, keys: &mut impl Keys, now: Now, waiter: u32) {
        self.end_wait(keys, now, waiter, What::Left);
    }

    /// How many grants end with their connections; those among them that were lost are counted until their holders are told.
    pub fn session_grants(&self) -> usize {
        self.bound.len()
    }

    /// Whether any grant is bound to a connection.
    pub fn has_bound(&self, client: u64) -> bool {
        self.bound.range((client, 0)..=(client, u64::MAX)).next().is_some()
    }

    /// Ends all grants that were bound to a connection.
    pub fn end_session(&mut self, keys: &mut impl Keys, now: Now, client: u64) {
        while let Some((&(of, token), _)) = self.bound.range((client, 0)..=(client, u64::MAX)).next() {
            let Some((home, name)) = self.bound.remove(&(of, token)) else { break };
            let db = self.db_at_home(home);
            if let Found::Lock(mut lock) = self.open(keys, now, db, &name) {
                let owner = lock.holders.with_token(token).map(|grant| grant.owner.clone());
                if let Some(grant) = owner.and_then(|owner| lock.holders.remove(&owner)) {
                    self.stats.session_ends += 1;
                    self.lose(keys, now, (db, &name), &mut lock, grant, Reason::Session);
                    // Others are served when all of its grants are over, for it may have several of one name.
                    self.gone(db, &name);
                }
                self.close(keys, (db, &name), lock);
            }
        }
        self.work(keys, now);
    }

    /// The lease of a name's last holder has ended, or it is held back no longer, and it was taken out from under its name. What is to
    /// be kept of it is given.
    pub fn lapsed(&mut self, keys: &mut impl Keys, now: Now, (db, name): (u32, &[u8]), mut lock: Lock) -> Option<Lock> {
        self.expire(keys, now, (db, name), &mut lock);
        if let Some(queue) = self.queues.find(db, name) {
            self.todo.push(queue);
        }
        (!lock.is_free()).then_some(lock)
    }

    /// A name holds nothing any more, or something else: whoever waits for it may be granted it.
    pub fn gone(&mut self, db: u32, name: &[u8]) {
        if let Some(queue) = self.queues.find(db, name) {
            self.todo.push(queue);
        }
    }

    /// Lets come about what has by now, at most `budget` of it.
    pub fn advance(&mut self, keys: &mut impl Keys, now: Now, budget: &mut u32) {
        while *budget > 0
            && let Some(&(at_ms, due)) = self.deadlines.first()
            && now.reached(at_ms)
        {
            *budget -= 1;
            match due {
                Due::Queue(queue) => {
                    self.set_due(queue, 0);
                    self.todo.push(queue);
                }
                Due::Waiter(_, waiter) => self.end_wait(keys, now, waiter, What::TimedOut),
            }
            self.work(keys, now);
        }
        self.work(keys, now);
    }

    /// Serves the queues of which something has become free.
    pub fn work(&mut self, keys: &mut impl Keys, now: Now) {
        while let Some(number) = self.todo.pop() {
            let Some(queue) = self.queues.get(number) else { continue };
            let (db, name) = (queue.db, queue.name.clone());
            match self.open(keys, now, db, &name) {
                Found::Plain => {
                    self.track((db, &name), &Lock::default());
                }
                Found::Native => {
                    self.turn_away(number, &name);
                    self.track((db, &name), &Lock::default());
                }
                Found::Free => {
                    let mut lock = Lock::default();
                    self.serve(keys, now, (db, &name), &mut lock);
                    self.close(keys, (db, &name), lock);
                }
                Found::Lock(mut lock) => {
                    self.mirror(number, &lock);
                    self.serve(keys, now, (db, &name), &mut lock);
                    self.close(keys, (db, &name), lock);
                }
            }
        }
        self.again.clear();
    }

    /// Takes what a name holds, without grants whose leases have ended.
    fn open(&mut self, keys: &mut impl Keys, now: Now, db: u32, name: &[u8]) -> Found {
        let found = keys.take(db, name);
        let Found::Lock(mut lock) = found else { return found };
        if lock.due_ms().is_some_and(|at| now.reached(at)) {
            self.expire(keys, now, (db, name), &mut lock);
            self.serve(keys, now, (db, name), &mut lock);
            if lock.is_free() {
                self.close(keys, (db, name), lock);
                return Found::Free;
            }
            self.track((db, name), &lock);
            keys.put(db, name, lock);
            return keys.take(db, name);
        }
        Found::Lock(lock)
    }

    /// As [`Locks::open`] for a holder.
    fn open_held(
        &mut self,
        keys: &mut impl Keys,
        now: Now,
        (db, name): (u32, &[u8]),
        owner: &[u8],
        semaphore: bool,
    ) -> Result<Lock, Refusal> {
        match self.open(keys, now, db, name) {
            Found::Lock(lock) if (lock.limit > 0) != semaphore => {
                keys.put_back(db, name, lock);
                Err(Refusal::WrongType)
            }
            Found::Lock(lock) if lock.holders.get(owner).is_some() => Ok(lock),
            Found::Lock(lock) => {
                let cause = self.cause(now, (db, name), Some(&lock), owner);
                keys.put_back(db, name, lock);
                Err(Refusal::NotHeld(cause))
            }
            Found::Free => Err(Refusal::NotHeld(self.cause(now, (db, name), None, owner))),
            Found::Native | Found::Plain => Err(Refusal::WrongType),
        }
    }

    /// Why an owner does not hold what it thinks it holds.
    fn cause(&self, now: Now, (db, name): (u32, &[u8]), lock: Option<&Lock>, owner: &[u8]) -> Cause {
        if let Some(event) = self.history.last_of(db, name, owner) {
            let ago = |at_ms| now.mono_ms().saturating_sub(at_ms);
            if let What::Granted { .. } = event.what {
                // It was granted, and has not ended, but in a database that was emptied.
                if let Some(flush) = self.flushed_since(db, event.at_ms) {
                    return Cause::Deleted { client: flush.by.id, ago_ms: ago(flush.at_ms) };
                }
            } else {
                let ago_ms = ago(event.at_ms);
                return match event.what {
                    What::Released => Cause::Released { ago_ms },
                    What::Ended(Reason::Deleted) => Cause::Deleted { client: event.client.id, ago_ms },
                    What::Ended(Reason::Session) => Cause::SessionEnded { ago_ms },
                    _ => Cause::LeaseEnded { ago_ms },
                };
            }
        }
        match lock.and_then(|lock| lock.holders.iter().next()) {
            Some(grant) => {
                let for_ms = now.mono_ms().saturating_sub(grant.granted_ms);
                Cause::HeldBy { owner: grant.owner.to_vec(), for_ms }
            }
            None => Cause::Never,
        }
    }

    /// Puts a lock back that has changed, and keeps account of it.
    fn close(&mut self, keys: &mut impl Keys, (db, name): (u32, &[u8]), lock: Lock) {
        self.track((db, name), &lock);
        keys.put(db, name, lock);
    }

    fn close_unchanged(&mut self, keys: &mut impl Keys, (db, name): (u32, &[u8]), lock: Lock, plain: bool) {
        self.track((db, name), &lock);
        self.put_aside(keys, (db, name), lock, plain);
    }

    fn put_aside(&mut self, keys: &mut impl Keys, (db, name): (u32, &[u8]), lock: Lock, plain: bool) {
        if !plain && !lock.is_free() {
            keys.put_back(db, name, lock);
        }
    }

    /// The queue of a name that somebody is about to wait for, its holders known to it.
    fn contend(&mut self, db: u32, name: &[u8], lock: &Lock) -> u32 {
        if let Some(queue) = self.queues.find(db, name) {
            return queue;
        }
        let queue = self.queues.find_or_make(db, name);
        self.mirror(queue, lock);
        queue
    }

    /// Has a new queue know the holders of its name; from then on it is told of each.
    fn mirror(&mut self, queue: u32, lock: &Lock) {
        if lock.limit <= 1 && self.queues.get(queue).is_some_and(|queue| queue.holders.is_empty()) {
            for grant in lock.holders.iter() {
                self.queues.hold(queue, &grant.owner, grant.mode);
            }
        }
    }

    /// Notes when something about a name changes by itself, where that is to be known here, and drops its queue where nobody waits.
    fn track(&mut self, (db, name): (u32, &[u8]), lock: &Lock) {
        // What ends before the key does.
        let several = lock.holders.len() > 1 || (lock.held_back_ms != 0 && !lock.holders.is_empty());
        let queue = match self.queues.find(db, name) {
            Some(queue) => queue,
            None if several => self.contend(db, name, lock),
            None => return,
        };
        let waited_for = self.queues.first(queue).is_some();
        if let Some(found) = self.queues.get_mut(queue) {
            found.pinned = several;
        }
        let due_ms = if several || waited_for { lock.due_ms() } else { None };
        self.set_due(queue, due_ms.unwrap_or(0));
        self.queues.forget(queue);
    }

    /// Notes of a queue what [`Locks::track`] does, after a look at what its name holds.
    fn look_after(&mut self, keys: &mut impl Keys, queue: u32) {
        let Some((db, name)) = self.queues.get(queue).map(|queue| (queue.db, queue.name.clone())) else { return };
        match keys.take(db, &name) {
            Found::Lock(lock) => self.close_unchanged(keys, (db, &name), lock, false),
            _ => self.track((db, &name), &Lock::default()),
        }
    }

    fn set_due(&mut self, queue: u32, due_ms: u64) {
        let Some(found) = self.queues.get_mut(queue) else { return };
        let before = std::mem::replace(&mut found.due_ms, due_ms);
        if before != due_ms {
            if before != 0 {
                self.deadlines.remove(&(before, Due::Queue(queue)));
            }
            if due_ms != 0 {
                self.deadlines.insert((due_ms, Due::Queue(queue)));
            }
            self.update_next();
        }
    }

    fn update_next(&mut self) {
        self.next_ms = self.deadlines.first().map_or(u64::MAX, |first| first.0);
    }

    /// Whether nobody waits for a name.
    fn is_unclaimed(&self, db: u32, name: &[u8]) -> bool {
        self.queues.find(db, name).is_none_or(|queue| self.queues.first(queue).is_none())
    }

    /// Has a connection wait, unless that would close a cycle.
    fn wait(
        &mut self,
        keys: &mut impl Keys,
        now: Now,
        request: Request<'_>,
        deadline_ms: Option<u64>,
        (upgrade, all): (bool, bool),
        queues: &[u32],
    ) -> Result<u32, Refusal> {
        let Request { owner, client, wanted } = request;
        let name_of = |queues: &Queues, queue| queues.get(queue).map(|queue| (queue.db, queue.name.clone()));
        let cycle = if wanted.limit <= 1 {
            graph::find_cycle(&self.queues, Wish { owner, mode: wanted.mode, upgrade, all, queues })
        } else {
            None
        };
        if let Some(cycle) = cycle {
            self.stats.deadlocks += 1;
            for &queue in queues {
                if let Some((db, name)) = name_of(&self.queues, queue) {
                    self.history.note(db, &name, now.mono_ms(), What::Deadlock, owner, client);
                    keys.happened(db, &name, What::Deadlock);
                }
            }
            return Err(Refusal::Deadlock(graph::describe(&cycle)));
        }
        let waiter = self.queues.enter(owner, client, wanted, (deadline_ms, now.mono_us), (upgrade, all), queues);
        if let Some(deadline_ms) = deadline_ms {
            let serial = self.queues.waiter(waiter).map_or(0, |waiter| waiter.serial);
            self.deadlines.insert((deadline_ms, Due::Waiter(serial, waiter)));
            self.update_next();
        }
        for &queue in queues {
            if let Some((db, name)) = name_of(&self.queues, queue) {
                self.history.note(db, &name, now.mono_ms(), What::Queued, owner, client);
                keys.happened(db, &name, What::Queued);
            }
            let len = self.queues.get(queue).map_or(0, |queue| queue.len);
            self.stats.longest_queue = self.stats.longest_queue.max(len);
        }
        Ok(waiter)
    }

    /// Ends a wait without a grant.
    fn end_wait(&mut self, keys: &mut impl Keys, now: Now, waiter: u32, what: What) {
        let firsts: SmallVec<[u32; 8]> = self.queues.queues_of(waiter).collect();
        let Some(found) = self.queues.waiter(waiter) else { return };
        let owner = self.queues.owner(found.owner).map(|owner| owner.name.clone()).unwrap_or_default();
        let (client, all, waited_ms) = (found.client, found.all, waited_ms(now, found.since_us));
        for &queue in &firsts {
            let Some((db, name)) = self.queues.get(queue).map(|queue| (queue.db, queue.name.clone())) else { continue };
            self.history.note(db, &name, now.mono_ms(), what, &owner, client);
            self.keep_if_long(now, (db, &name), &owner, client, waited_ms, false);
            keys.happened(db, &name, what);
        }
        self.withdraw(waiter);
        if what == What::TimedOut {
            self.stats.timeouts += 1;
            self.outcomes.push(Outcome::TimedOut { client, all, waited_ms });
        }
    }

    /// Takes a waiter out of its queues, which are to be looked at.
    fn withdraw(&mut self, waiter: u32) {
        if let Some((left, queues)) = self.queues.leave(waiter) {
            if let Some(deadline_ms) = left.deadline_ms {
                self.deadlines.remove(&(deadline_ms, Due::Waiter(left.serial, waiter)));
                self.update_next();
            }
            self.queues.forget_owner(left.owner);
            self.todo.extend(queues);
        }
    }

    fn keep_if_long(&mut self, now: Now, (db, name): (u32, &[u8]), owner: &[u8], client: Client, waited_ms: u64, granted: bool) {
        if self.long_wait_ms.is_some_and(|long_ms| waited_ms >= long_ms) {
            let (name, owner, client) = (name.to_vec(), owner.to_vec(), client.id);
            self.stats.keep_long(LongWait { id: 0, at_ms: now.mono_ms(), waited_ms, db, name, owner, client, granted });
        }
    }

    /// Refuses all who wait for a name that holds what is neither a lock nor a plain key.
    fn turn_away(&mut self, queue: u32, name: &[u8]) {
        let waiters: Vec<u32> = self.queues.links_of(queue).map(|link| link.waiter).collect();
        waiters.into_iter().for_each(|waiter| self.refuse(waiter, name, Refusal::WrongType));
    }

    fn refuse(&mut self, waiter: u32, name: &[u8], refusal: Refusal) {
        if let Some(found) = self.queues.waiter(waiter) {
            let (client, wanted) = (found.client, found.wanted);
            self.outcomes.push(Outcome::Refused { client, refusal, name: name.into(), wanted });
            self.withdraw(waiter);
        }
    }

    /// Keeps no account of a grant any more that is over, and was taken out of its lock.
    fn end(&mut self, db: u32, name: &[u8], lock: &Lock, grant: &Grant) {
        self.held.ended(db, lock, grant);
        if grant.session {
            self.bound.remove(&(grant.client.id, grant.token));
        }
        if let Some(queue) = self.queues.find(db, name) {
            self.queues.unhold(queue, &grant.owner);
        }
    }

    /// A grant, taken out of a lock in hand, ended without its holder's doing.
    fn lose(&mut self, keys: &mut impl Keys, now: Now, (db, name): (u32, &[u8]), lock: &mut Lock, grant: Grant, reason: Reason) {
        self.end(db, name, lock, &grant);
        if grant.delay_ms > 0 {
            // Counted from when it ended, not from when that was noticed.
            let ended_ms = if reason == Reason::Session { now.deadline_in(0) } else { grant.end_ms };
            lock.held_back_ms = lock.held_back_ms.max(ended_ms.saturating_add(u64::from(grant.delay_ms)));
        }
        let what = What::Ended(reason);
        self.history.note(db, name, now.mono_ms(), what, &grant.owner, grant.client);
        keys.happened(db, name, what);
        self.tell_lost(name, &grant, reason);
    }

    fn tell_lost(&mut self, name: &[u8], grant: &Grant, reason: Reason) {
        if reason != Reason::Session {
            let (client, owner, token) = (grant.client, grant.owner.clone(), grant.token);
            self.outcomes.push(Outcome::Lost { client, name: name.into(), owner, token, reason });
        }
    }

    /// Ends the grants of a lock in hand whose leases have ended, and what is held back no more.
    fn expire(&mut self, keys: &mut impl Keys, now: Now, (db, name): (u32, &[u8]), lock: &mut Lock) {
        while let Some(grant) = lock.holders.take_ended(now.mono_ms()) {
            self.stats.expiries += 1;
            let reason = grant.end_reason();
            self.lose(keys, now, (db, name), lock, grant, reason);
        }
        if lock.held_back_ms != 0 && now.reached(lock.held_back_ms) {
            lock.held_back_ms = 0;
        }
    }

    /// Panics where the state is not what it should be. Walks everything.
    pub fn check_invariants(&self) {
        self.queues.check_invariants();
        self.history.check_invariants();
        assert!(self.todo.is_empty(), "everybody was served who could be");
        assert_eq!(self.next_ms, self.deadlines.first().map_or(u64::MAX, |first| first.0));
        for &(at_ms, due) in &self.deadlines {
            let known = match due {
                Due::Queue(queue) => self.queues.get(queue).is_some_and(|queue| queue.due_ms == at_ms),
                Due::Waiter(_, waiter) => self.queues.waiter(waiter).is_some_and(|waiter| waiter.deadline_ms == Some(at_ms)),
            };
            assert!(known, "a deadline is somebody's");
        }
        for (number, queue) in self.queues.iter() {
            assert!(queue.len > 0 || queue.pinned, "a queue is for somebody");
            assert!(queue.due_ms == 0 || self.deadlines.contains(&(queue.due_ms, Due::Queue(number))));
        }
    }
}

/// Whether a lock is of the kind that is wanted.
fn fits(lock: &Lock, wanted: Wanted) -> Result<(), Refusal> {
    if lock.is_free() || lock.limit == wanted.limit {
        return Ok(());
    }
    if (lock.limit > 0) != (wanted.limit > 0) {
        return Err(Refusal::WrongType);
    }
    Err(Refusal::Limit { has: lock.limit })
}

fn waited_ms(now: Now, since_us: u64) -> u64 {
    now.mono_us.saturating_sub(since_us) / 1000
}
