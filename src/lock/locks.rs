//! The operations on locks. Every operation is atomic. `release` serves the waiters itself; after `acquire` and `renew` the caller
//! calls [`Locks::work`], which grants to all eligible waiters.

pub mod adopting;
mod breaking;
mod ending;
mod figures;
mod granting;
pub mod losing;
mod naming;
mod repeating;
mod unseen;
mod waiting;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use granting::{Granting, grantable};
use losing::{Deletion, Lost};
use smallvec::SmallVec;

use crate::base::ids::{Key, KeyBuf};
use crate::base::time::Now;
use crate::lock::grant::{Bound, Client, Mode, Owner};
use crate::lock::held_counts::HeldByDb;
use crate::lock::history::{History, What};
use crate::lock::holders::{Holder, Lock};
pub use crate::lock::interface::{Acquired, AllAcquired, Cause, Claim, Found, Keys, Outcome, Refusal, Renewed, Request};
use crate::lock::queue::{Queues, Wanted};
use crate::lock::requests::{Answer, Requests};
use crate::lock::sessions::Sessions;
use crate::lock::stats::Stats;

/// Default threshold of long waits, in milliseconds: waits of at least this length are kept for display.
pub const LONG_WAIT_MS: u64 = 1000;

/// Budget steps for settling one due event, such as a lease that ends and the next grant. Freeing an entry takes one step.
pub const DUE_STEPS: u32 = 4;

/// Events that happen on their own, in the order in which they are settled at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LockTimer {
    /// A lease, a delay or a plain key under the name of a queue ends.
    Queue(u32),
    /// A waiter times out: its serial number, and its number.
    Waiter(i64, u32),
    /// The grace of a named session ends.
    Session(u64),
}

/// All state of locks besides the locks themselves.
pub struct Locks {
    /// Queues of waiters.
    pub queues: Queues,
    /// Recent events of each name.
    pub history: History,
    /// Totals for statistics.
    pub stats: Stats,
    /// Numbers of held locks and permits, by database.
    pub held: HeldByDb,
    /// Remembered answers to requests.
    pub requests: Requests,
    /// Named sessions.
    pub sessions: Sessions,
    next_token: u64,
    /// Events that are due on their own, by monotonic milliseconds. The section "Two mechanisms end leases" of [`crate::lock`]
    /// says why these are not on the wheel.
    deadlines: BTreeSet<(u64, LockTimer)>,
    next_ms: u64,
    /// Queues whose first waiters may be eligible for a grant.
    ready_queues: Vec<u32>,
    /// A queue and an owner that was just granted its lock, and that may also wait for that lock on other connections.
    owners_again: Vec<(u32, Owner)>,
    /// Results that connections have to be told.
    pub outcomes: Vec<Outcome>,
    /// Grants that end with their connections or named sessions. The key is the id of the connection or session ([`Bound::key`])
    /// and the token. The value is the database, as an id that SWAPDB does not change ([`Locks::home`]), and the lock's name. A
    /// grant that was lost with its database stays here until its holder is notified.
    bound: BTreeMap<(u64, u64), KeyBuf>,
    /// Ids of connections with bound grants of which it is not known if they live: see [`crate::lock::locks::unseen`].
    unseen: BTreeSet<u64>,
    /// Ids of ended named sessions whose grants are still being ended, with the last connections of those sessions.
    ended_sessions: VecDeque<(u64, Option<Client>)>,
    /// Ids of ended connections and sessions with too many grants to end at once, with the connection to notify. A request that
    /// meets one of the remaining grants ends it first, so that another connection of its owner does not re-enter it.
    ending_clients: Vec<(u64, Option<Client>)>,
    /// [`Locks::home`] of each database index, once databases were swapped.
    homes: Vec<u32>,
    /// Holders that have lost their locks and are still to be notified.
    lost_holders: VecDeque<Lost>,
    /// The last flush of each database.
    flushes: Vec<Deletion>,
    /// Waits of at least this many milliseconds are kept as long waits; `None` keeps none.
    pub long_wait_ms: Option<u64>,
}

impl Locks {
    /// Creates the state without any lock. The first grant gets the token `first_token`, or 1 where that is 0.
    pub fn new(seed: u64, first_token: u64) -> Self {
        Locks {
            queues: Queues::new(seed),
            history: History::new(seed ^ 0x5851_f42d_4c95_7f2d),
            stats: Stats::default(),
            held: HeldByDb::default(),
            requests: Requests::new(seed ^ 0x9216_d5d9_8979_fb1b),
            sessions: Sessions::default(),
            next_token: first_token.max(1),
            deadlines: BTreeSet::new(),
            next_ms: u64::MAX,
            ready_queues: Vec::new(),
            owners_again: Vec::new(),
            outcomes: Vec::new(),
            bound: BTreeMap::new(),
            unseen: BTreeSet::new(),
            ended_sessions: VecDeque::new(),
            ending_clients: Vec::new(),
            homes: Vec::new(),
            lost_holders: VecDeque::new(),
            flushes: Vec::new(),
            long_wait_ms: Some(LONG_WAIT_MS),
        }
    }

    /// The token of the next grant.
    pub fn next_token(&self) -> u64 {
        self.next_token
    }

    /// Raises the token of the next grant; a smaller value has no effect.
    pub fn set_next_token(&mut self, token: u64) {
        self.next_token = self.next_token.max(token);
    }

    /// Sets the token of the next grant, even to one that was given: a fault that simulations plant.
    #[cfg(feature = "torture")]
    pub fn force_next_token(&mut self, token: u64) {
        self.next_token = token;
    }

    /// The instant of the next event that happens on its own, in monotonic milliseconds; `u64::MAX` if there is none.
    #[inline]
    pub fn next_ms(&self) -> u64 {
        if self.ready_queues.is_empty() { self.next_ms } else { 0 }
    }

    /// Whether there are outcomes to deliver, or queues to serve.
    #[inline]
    pub fn has_work(&self) -> bool {
        !self.ready_queues.is_empty() || !self.outcomes.is_empty()
    }

    /// Whether a remembered request or a session has changed.
    #[inline]
    pub fn has_news(&self) -> bool {
        !self.requests.news.is_empty() || !self.sessions.news.is_empty()
    }

    /// Takes a lock. If it is not available, waits until a deadline where one is given (`Some(None)` waits without limit).
    // See `renew`.
    #[inline(always)]
    pub fn acquire(
        &mut self,
        keys: &mut impl Keys,
        now: Now,
        key: Key<'_>,
        request: &Request<'_>,
        wait: Option<Option<u64>>,
    ) -> Result<Acquired, Refusal> {
        if let Some(id) = request.id
            && let Some(answer) = self.repeated(keys, now, key, request, id, wait)
        {
            return answer;
        }
        match self.try_acquire(keys, now, key, request, wait) {
            // The cycle may go through overdue leases. They end first.
            Err(Refusal::Deadlock(cycle)) if cycle.is_empty() => {
                self.end_due(keys, now, &mut { u32::MAX });
                self.try_acquire(keys, now, key, request, wait)
            }
            acquired => acquired,
        }
    }

    fn try_acquire(
        &mut self,
        keys: &mut impl Keys,
        now: Now,
        key: Key<'_>,
        request: &Request<'_>,
        wait: Option<Option<u64>>,
    ) -> Result<Acquired, Refusal> {
        let mut lock = Lock::default();
        let plain = match self.load(keys, now, key, &mut lock) {
            Found::Native => return Err(Refusal::WrongType),
            found => found == Found::Plain,
        };
        let wanted = &request.wanted;
        if let Err(refusal) = fits(&lock, wanted) {
            keys.put_back(key, &mut lock);
            return Err(refusal);
        }
        let queue = self.queues.find(key);
        let client = request.client;
        let held = lock.holders.get(request.owner).map(|grant| (grant.mode, grant.token, grant.granted_ms));
        if let Some((mode, token, granted_ms)) = held
            && (mode == wanted.mode || mode == Mode::Exclusive || wanted.limit > 0)
        {
            // The grant would end at the moment of its reply.
            if wanted.max_hold_ms != 0 && now.reached(granted_ms.saturating_add(wanted.max_hold_ms)) {
                keys.put_back(key, &mut lock);
                return Err(Refusal::HeldTooLong {
                    for_ms: now.mono_ms().saturating_sub(granted_ms),
                    at_most_ms: wanted.max_hold_ms,
                });
            }
            self.reenter(now, key, &mut lock, request, false);
            self.history.note(key, now.mono_ms(), What::Reentered, request.owner, client);
            self.store(keys, key, &mut lock);
            return Ok(Acquired::Granted(token));
        }
        let (upgrade, waited_for) = (held.is_some(), queue.and_then(|queue| self.queues.first(queue)).is_some());
        if !plain && (upgrade || !waited_for) && grantable(&lock, wanted, request.owner) {
            self.stats.immediate += 1;
            let token = self.make_grant(keys, &mut lock, &Granting { now, key, queue, request, waited_us: None });
            if let Some(queue) = queue {
                self.schedule_same_owner(queue, request.owner);
            }
            self.store(keys, key, &mut lock);
            return Ok(Acquired::Granted(token));
        }
        let Some(deadline_ms) = wait else {
            self.put_aside(keys, key, &mut lock, plain);
            self.history.note(key, now.mono_ms(), What::Refused, request.owner, client);
            return Ok(Acquired::Busy);
        };
        let queue = self.contend(key, &lock);
        let user = lock.holders.get(request.owner).map_or(client.user, |grant| grant.client.user);
        let request = &Request { client: client.as_user(user), ..*request };
        let waits = self.wait(keys, now, request, deadline_ms, (upgrade, false), &[queue]);
        self.store_unchanged(keys, key, &mut lock, plain);
        if plain {
            self.ready_queues.push(queue);
        }
        waits.map(Acquired::Waits)
    }

    /// Takes all of these locks, or waits until all are available at once. The names must be distinct.
    pub fn acquire_all(
        &mut self,
        keys: &mut impl Keys,
        now: Now,
        db: u32,
        names: &[&[u8]],
        request: &Request<'_>,
        wait: Option<Option<u64>>,
    ) -> Result<AllAcquired, Refusal> {
        if let Some(id) = request.id
            && let Some(answer) = self.repeated_all(keys, now, db, names, request, id, wait)
        {
            return answer;
        }
        match self.try_acquire_all(keys, now, db, names, request, wait) {
            // The cycle may go through overdue leases. They end first.
            Err(Refusal::Deadlock(cycle)) if cycle.is_empty() => {
                self.end_due(keys, now, &mut { u32::MAX });
                self.try_acquire_all(keys, now, db, names, request, wait)
            }
            acquired => acquired,
        }
    }

    fn try_acquire_all(
        &mut self,
        keys: &mut impl Keys,
        now: Now,
        db: u32,
        names: &[&[u8]],
        request: &Request<'_>,
        wait: Option<Option<u64>>,
    ) -> Result<AllAcquired, Refusal> {
        let all = || names.iter().map(|name| Key { db, name });
        let mut free = true;
        for key in all() {
            let mut lock = Lock::default();
            match self.load(keys, now, key, &mut lock) {
                Found::Native => return Err(Refusal::WrongType),
                Found::Plain => free = false,
                Found::Free => free &= self.is_unclaimed(key),
                Found::Lock => {
                    let fitting = fits(&lock, &request.wanted);
                    let held = lock.holders.get(request.owner).is_some_and(|grant| grant.mode == Mode::Exclusive);
                    free &= held || (self.is_unclaimed(key) && grantable(&lock, &request.wanted, request.owner));
                    keys.put_back(key, &mut lock);
                    fitting?;
                }
            }
        }
        if free {
            self.stats.immediate += names.len() as u64;
            let tokens = all().map(|key| self.grant_one_of(keys, now, key, request, None)).collect();
            return Ok(AllAcquired::Granted(tokens));
        }
        let Some(deadline_ms) = wait else {
            for key in all() {
                self.history.note(key, now.mono_ms(), What::Refused, request.owner, request.client);
            }
            return Ok(AllAcquired::Busy);
        };
        let mut queues: SmallVec<[u32; 8]> = SmallVec::new();
        for key in all() {
            let mut lock = Lock::default();
            keys.take(key, &mut lock);
            queues.push(self.contend(key, &lock));
            if !lock.is_free() {
                keys.put_back(key, &mut lock);
            }
        }
        let waits = self.wait(keys, now, request, deadline_ms, (false, true), &queues);
        queues.iter().for_each(|&queue| self.look_after(keys, queue));
        waits.map(AllAcquired::Waits)
    }

    /// Releases one hold, or all of them. Returns the remaining hold count. A release that is repeated with the same id gets the
    /// answer of the first one. A release that was refused is judged again, because it has changed nothing.
    pub fn release(
        &mut self,
        keys: &mut impl Keys,
        now: Now,
        key: Key<'_>,
        claim: &Claim<'_>,
        all: bool,
        id: Option<&[u8]>,
    ) -> Result<u32, Refusal> {
        let owner = claim.owner;
        if let Some(id) = id
            && let Some(left) = self.requests.released(self.home(key.db), key.name, owner, id)
        {
            return Ok(left);
        }
        let mut lock = Lock::default();
        let holder = self.load_held(keys, now, key, claim, &mut lock)?;
        let left = lock.holders.change(holder, |grant| {
            grant.holds = if all { 0 } else { grant.holds - 1 };
            grant.holds
        });
        let left = left.unwrap_or(0);
        if left == 0
            && let Some(grant) = lock.holders.take(holder)
        {
            self.end(now.mono_ms(), key, &lock, &grant);
            self.stats.releases += 1;
            let what = What::Released { token: grant.token };
            self.history.note(key, now.mono_ms(), what, owner, grant.client);
            keys.happened(key, what);
            self.grant_waiters(keys, now, key, &mut lock);
        }
        if let Some(id) = id {
            let ended_ms = (left == 0).then(|| now.mono_ms());
            self.requests.answered((self.home(key.db), key.name, owner), id, Answer::Released(left), ended_ms);
        }
        self.store(keys, key, &mut lock);
        self.work(keys, now);
        Ok(left)
    }

    /// Restarts the lease of a holder, or keeps it with `None`, at the request of the connection `by`. That connection takes the grant
    /// over if the one that had it is no longer connected, and the grant is not bound to a session.
    // One command calls it. Without this, the compiler decides anew with each change elsewhere: a call costs a renewal 3 %.
    #[inline(always)]
    pub fn renew(
        &mut self,
        keys: &mut impl Keys,
        now: Now,
        key: Key<'_>,
        claim: &Claim<'_>,
        lease_ms: Option<u64>,
        (by, is_connected): (Client, impl FnOnce(Client) -> bool),
    ) -> Result<Renewed, Refusal> {
        let mut lock = Lock::default();
        let holder = self.load_held(keys, now, key, claim, &mut lock)?;
        let changed = lock.holders.change(holder, |grant| {
            let mut first = false;
            if let Some(lease_ms) = lease_ms {
                grant.renew(now.deadline_in(lease_ms));
                first = grant.renewed == 0;
                grant.renewed = grant.renewed.saturating_add(1);
            }
            let taken_over = grant.client != by && grant.bound == Bound::Lease && !is_connected(grant.client);
            if taken_over {
                grant.move_to(by);
            }
            (grant.end_ms, first, taken_over)
        });
        let (end_ms, first, taken_over) = changed.unwrap_or_default();
        if first {
            self.held.renewed(key.db);
        }
        self.store(keys, key, &mut lock);
        Ok(Renewed { left_ms: now.left_ms(end_ms), taken_over })
    }

    /// Shows a lock in its current state to `see`, and puts it back unchanged.
    pub fn look<T>(&mut self, keys: &mut impl Keys, now: Now, key: Key<'_>, see: impl FnOnce(Option<&Lock>) -> T) -> T {
        let mut lock = Lock::default();
        match self.load(keys, now, key, &mut lock) {
            Found::Lock => {
                let seen = see(Some(&lock));
                keys.put_back(key, &mut lock);
                seen
            }
            _ => see(None),
        }
    }

    /// Settles the events that are due, in their order, within `budget`.
    pub fn end_due(&mut self, keys: &mut impl Keys, now: Now, budget: &mut u32) {
        while *budget > 0
            && let Some(&(at_ms, due)) = self.deadlines.first()
            && now.reached(at_ms)
        {
            *budget = budget.saturating_sub(DUE_STEPS);
            match due {
                LockTimer::Queue(queue) => {
                    self.set_due(queue, 0);
                    self.ready_queues.push(queue);
                }
                LockTimer::Waiter(_, waiter) => self.end_wait(keys, now, waiter, What::TimedOut),
                LockTimer::Session(number) => self.end_named(number),
            }
            self.work(keys, now);
        }
        self.end_over(keys, now, budget);
        self.work(keys, now);
    }

    /// Serves the queues that may have eligible waiters.
    #[inline]
    pub fn work(&mut self, keys: &mut impl Keys, now: Now) {
        if !self.ready_queues.is_empty() {
            self.serve_queues(keys, now);
        }
    }

    #[inline(never)]
    fn serve_queues(&mut self, keys: &mut impl Keys, now: Now) {
        while let Some(number) = self.ready_queues.pop() {
            let Some(queue) = self.queues.get(number) else { continue };
            let key = queue.key().to_buf();
            let key = key.as_key();
            let mut lock = Lock::default();
            let found = self.load(keys, now, key, &mut lock);
            match found {
                Found::Plain => {
                    self.update_queue(key, &lock);
                    // The plain key's end is settled in time, so that a request at that instant is not served before the waiters.
                    if let (Some(queue), Some(end_ms)) = (self.queues.find(key), keys.plain_end_ms(key)) {
                        self.set_due(queue, end_ms);
                    }
                }
                Found::Native => {
                    self.turn_away(number, key.name);
                    self.update_queue(key, &lock);
                }
                Found::Free | Found::Lock => {
                    if found == Found::Lock {
                        self.mirror(number, &lock);
                    }
                    self.grant_waiters(keys, now, key, &mut lock);
                    self.store(keys, key, &mut lock);
                }
            }
        }
        self.owners_again.clear();
    }

    /// Takes what a name holds, and ends grants whose leases have ended; see [`Keys::take`].
    #[inline(always)]
    fn load(&mut self, keys: &mut impl Keys, now: Now, key: Key<'_>, lock: &mut Lock) -> Found {
        let found = keys.take(key, lock);
        if found == Found::Lock && (lock.due_ms().is_some_and(|at| now.reached(at)) || self.has_ending(lock)) {
            return self.load_overdue(keys, now, key, lock);
        }
        found
    }

    /// As [`Locks::load`] for a lock that was taken and has something overdue.
    #[cold]
    fn load_overdue(&mut self, keys: &mut impl Keys, now: Now, key: Key<'_>, lock: &mut Lock) -> Found {
        self.expire(keys, now, key, lock);
        self.grant_waiters(keys, now, key, lock);
        let free = lock.is_free();
        self.store(keys, key, lock);
        *lock = Lock::default();
        if free { Found::Free } else { keys.take(key, lock) }
    }

    /// As [`Locks::load`] for a holder. Returns its place in the lock, or refuses where the claim does not hold.
    #[inline(always)]
    fn load_held(
        &mut self,
        keys: &mut impl Keys,
        now: Now,
        key: Key<'_>,
        claim: &Claim<'_>,
        lock: &mut Lock,
    ) -> Result<Holder, Refusal> {
        let found = self.load(keys, now, key, lock);
        if found == Found::Lock
            && (lock.limit > 0) == claim.semaphore
            && let Some(holder) = lock.holders.find(claim.owner)
            && (claim.token.is_none() || claim.token == lock.holders.get(claim.owner).map(|grant| grant.token))
        {
            return Ok(holder);
        }
        Err(self.refuse_claim(keys, now, key, claim, (found, lock)))
    }

    /// Why a claim does not hold. Puts back what was loaded.
    #[cold]
    fn refuse_claim(
        &mut self,
        keys: &mut impl Keys,
        now: Now,
        key: Key<'_>,
        claim: &Claim<'_>,
        (found, lock): (Found, &mut Lock),
    ) -> Refusal {
        let refusal = match found {
            Found::Native | Found::Plain => return Refusal::WrongType,
            Found::Lock if (lock.limit > 0) != claim.semaphore => Refusal::WrongType,
            Found::Lock | Found::Free => Refusal::NotHeld(self.cause(now, key, lock, claim.owner)),
        };
        self.put_aside(keys, key, lock, false);
        refusal
    }

    /// Why an owner does not hold the lock that it claims to hold.
    fn cause(&self, now: Now, key: Key<'_>, lock: &Lock, owner: &[u8]) -> Cause {
        if let Some(grant) = lock.holders.get(owner) {
            return Cause::OtherToken { token: grant.token, for_ms: now.mono_ms().saturating_sub(grant.granted_ms) };
        }
        if let Some(event) = self.history.last_of(key, owner) {
            let ago = |at_ms| now.mono_ms().saturating_sub(at_ms);
            if let What::Granted { .. } = event.what {
                // It was granted and has not ended, but its database was emptied.
                if let Some(flush) = self.flushed_since(key.db, event.at_ms) {
                    return Cause::Deleted { client: flush.by.id, ago_ms: ago(flush.at_ms) };
                }
            } else {
                return Cause::of_end(event, ago(event.at_ms), &self.history.breaks);
            }
        }
        match lock.holders.iter().next() {
            Some(grant) => {
                let for_ms = now.mono_ms().saturating_sub(grant.granted_ms);
                Cause::HeldBy { owner: grant.owner.to_vec(), for_ms }
            }
            None => Cause::Never,
        }
    }

    /// Puts a changed lock back, and updates its queue and deadlines.
    fn store(&mut self, keys: &mut impl Keys, key: Key<'_>, lock: &mut Lock) {
        self.update_queue(key, lock);
        keys.put(key, lock);
    }

    fn store_unchanged(&mut self, keys: &mut impl Keys, key: Key<'_>, lock: &mut Lock, plain: bool) {
        self.update_queue(key, lock);
        self.put_aside(keys, key, lock, plain);
    }

    fn put_aside(&mut self, keys: &mut impl Keys, key: Key<'_>, lock: &mut Lock, plain: bool) {
        if !plain && !lock.is_free() {
            keys.put_back(key, lock);
        }
    }

    /// Panics if an invariant is broken. Walks everything.
    pub fn check_invariants(&self) {
        self.queues.check_invariants();
        self.history.check_invariants();
        self.requests.check_invariants();
        self.sessions.check_invariants();
        assert!(self.ready_queues.is_empty(), "all eligible waiters were granted");
        let first_ms = self.deadlines.first().map_or(u64::MAX, |first| first.0);
        let expected_ms = if self.ended_sessions.is_empty() { first_ms } else { 0 };
        assert_eq!(self.next_ms, expected_ms, "what comes next is known");
        for &(at_ms, due) in &self.deadlines {
            let known = match due {
                LockTimer::Queue(queue) => self.queues.get(queue).is_some_and(|queue| queue.due_ms == at_ms),
                LockTimer::Waiter(_, waiter) => {
                    self.queues.waiter(waiter).is_some_and(|waiter| waiter.deadline_ms == Some(at_ms))
                }
                LockTimer::Session(number) => self.sessions.get(number).is_some_and(|session| session.end_ms == at_ms),
            };
            assert!(known, "a deadline belongs to a queue, a waiter or a session");
        }
        for (number, session) in self.sessions.iter() {
            let key = Bound::session_key(number);
            let bound = self.bound.range((key, 0)..=(key, u64::MAX)).count();
            assert_eq!(session.grants, bound as u64, "a session knows how many grants it has");
            assert!(session.end_ms == 0 || self.deadlines.contains(&(session.end_ms, LockTimer::Session(number))));
        }
        assert!(self.unseen.iter().all(|&client| self.has_bound(client)), "an unseen connection has grants");
        for (number, queue) in self.queues.iter() {
            assert!(queue.len > 0 || queue.pinned, "a queue has a waiter, or is pinned");
            assert!(queue.due_ms == 0 || self.deadlines.contains(&(queue.due_ms, LockTimer::Queue(number))));
        }
    }
}

/// Whether a lock has the wanted kind and limit.
fn fits(lock: &Lock, wanted: &Wanted) -> Result<(), Refusal> {
    if lock.is_free() || lock.limit == wanted.limit {
        return Ok(());
    }
    fail_if!((lock.limit > 0) != (wanted.limit > 0), Refusal::WrongType);
    Err(Refusal::Limit { has: lock.limit })
}
