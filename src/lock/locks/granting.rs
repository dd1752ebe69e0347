//! Granting: which waiters are eligible, and what a grant changes.

use smallvec::SmallVec;

use super::{Found, Keys, Locks, Outcome, Request, fits};
use crate::base::ids::{Key, KeyBuf};
use crate::base::time::Now;
use crate::lock::grant::{Bound, Grant, Mode, Owner};
use crate::lock::history::What;
use crate::lock::holders::Lock;
use crate::lock::queue::Wanted;
use crate::lock::requests::Answer;

/// A grant to be made.
pub(super) struct Granting<'a> {
    /// The instant.
    pub now: Now,
    /// The lock.
    pub key: Key<'a>,
    /// The queue of the lock, if there is one.
    pub queue: Option<u32>,
    /// The request.
    pub request: &'a Request<'a>,
    /// How long the request has waited in the queue, in microseconds; `None` if it never stood there.
    pub waited_us: Option<u64>,
}

impl Locks {
    /// Grants a lock in hand to the waiters at the head of its queue, as long as they are compatible.
    #[inline]
    pub(super) fn grant_waiters(&mut self, keys: &mut impl Keys, now: Now, key: Key<'_>, lock: &mut Lock) {
        if let Some(queue) = self.queues.find(key) {
            self.grant_queue(keys, now, key, queue, lock);
        }
    }

    #[inline(never)]
    fn grant_queue(&mut self, keys: &mut impl Keys, now: Now, key: Key<'_>, queue: u32, lock: &mut Lock) {
        while let Some(number) = self.queues.first(queue).and_then(|link| self.queues.link(link)).map(|link| link.waiter) {
            let Some(waiter) = self.queues.waiter(number) else { break };
            let (wanted, client, all, since_us) = (waiter.wanted, waiter.client, waiter.all, waiter.since_us);
            let id = waiter.request.clone();
            let Some(node) = self.queues.owner(waiter.owner) else { break };
            let owner = Owner::from_slice(&node.name);
            let waits_again = node.waits.len() > 1 || self.queues.has_namesakes();
            if !lock.is_free()
                && let Err(refusal) = fits(lock, &wanted)
            {
                self.refuse(number, key.name, refusal);
                continue;
            }
            if !grantable(lock, &wanted, &owner) || (all && !self.can_have_all(keys, now, number, key)) {
                break;
            }
            let request = &Request { owner: &owner, client, wanted, id: id.as_deref() };
            let waited_us = now.mono_us().saturating_sub(since_us);
            let granting = Granting { now, key, queue: Some(queue), request, waited_us: Some(waited_us) };
            let all_keys: SmallVec<[KeyBuf; 4]> = if all {
                let of = |queue| self.queues.get(queue).map(|queue| queue.key().to_buf());
                self.queues.queues_of(number).filter_map(of).collect()
            } else {
                SmallVec::new()
            };
            // A holder must not stand in the queue, so that nobody waits for itself.
            self.withdraw(number);
            self.stats.queued += 1;
            self.stats.waited(waited_us);
            let mut tokens = SmallVec::new();
            if all {
                for one in all_keys.iter().map(KeyBuf::as_key) {
                    tokens.push(if one == key {
                        self.make_grant(keys, lock, &granting)
                    } else {
                        self.grant_one_of(keys, now, one, request, Some(waited_us))
                    });
                }
            } else {
                tokens.push(self.make_grant(keys, lock, &granting));
            }
            let waited_ms = waited_us / 1000;
            self.keep_if_long(now, key, &owner, client, waited_ms, true);
            self.outcomes.push(Outcome::Granted { client, tokens, all, waited_ms });
            if waits_again {
                self.owners_again.push((queue, owner));
            }
            // This call serves the queue already.
            self.ready_queues.retain(|&of| of != queue);
        }
        // The waiters before them in the queue were served first.
        while let Some(at) = self.owners_again.iter().position(|&(of, _)| of == queue) {
            let (_, owner) = self.owners_again.remove(at);
            self.grant_same_owner(now, key, queue, lock, &owner);
        }
    }

    /// Schedules the queue of a lock for its new owner, which may also wait for the lock on other connections. [`Locks::work`]
    /// grants these waits.
    pub(super) fn schedule_same_owner(&mut self, queue: u32, owner: &[u8]) {
        if !self.queues.waits_of(owner).is_empty() {
            self.owners_again.push((queue, Owner::from_slice(owner)));
            self.ready_queues.push(queue);
        }
    }

    /// Grants the lock to waiters in other connections of the owner that was just granted it.
    fn grant_same_owner(&mut self, now: Now, key: Key<'_>, queue: u32, lock: &mut Lock, owner: &[u8]) {
        let mut waits = self.queues.waits_of(owner);
        // In their order in the queue.
        waits.sort_by_key(|&waiter| {
            let link = self.queues.waiter(waiter).and_then(|waiter| waiter.links.first().copied());
            link.and_then(|link| self.queues.link(link)).map(|link| link.order)
        });
        for number in waits {
            let Some(waiter) = self.queues.waiter(number) else { continue };
            let here = !waiter.all && self.queues.queues_of(number).eq([queue]);
            let Some(grant) = lock.holders.get(owner) else { return };
            if !here || (grant.mode == Mode::Shared && waiter.wanted.mode == Mode::Exclusive) {
                continue;
            }
            let (client, wanted, token, id) = (waiter.client, waiter.wanted, grant.token, waiter.request.clone());
            let waited_us = now.mono_us().saturating_sub(waiter.since_us);
            self.withdraw(number);
            self.reenter(now, key, lock, &Request { owner, client, wanted, id: id.as_deref() }, true);
            self.history.note(key, now.mono_ms(), What::Reentered, owner, client);
            self.stats.queued += 1;
            self.stats.waited(waited_us);
            let tokens = SmallVec::from_slice(&[token]);
            self.outcomes.push(Outcome::Granted { client, tokens, all: false, waited_ms: waited_us / 1000 });
        }
    }

    /// Whether a waiter for several names is first in all of their queues, and all names besides `in_hand` are free.
    fn can_have_all(&mut self, keys: &mut impl Keys, now: Now, waiter: u32, in_hand: Key<'_>) -> bool {
        let Some(wanted) = self.queues.waiter(waiter).map(|waiter| waiter.wanted) else { return false };
        let queues: SmallVec<[u32; 8]> = self.queues.queues_of(waiter).collect();
        let owner = self.queues.waiter(waiter).and_then(|waiter| self.queues.owner(waiter.owner));
        let owner = owner.map(|owner| owner.name.clone()).unwrap_or_default();
        queues.into_iter().all(|queue| {
            let Some(key) = self.queues.get(queue).map(|queue| queue.key().to_buf()) else { return false };
            let key = key.as_key();
            if key == in_hand {
                return true;
            }
            let first =
                self.queues.first(queue).and_then(|link| self.queues.link(link)).is_some_and(|link| link.waiter == waiter);
            let mut lock = Lock::default();
            match keys.take(key, &mut lock) {
                Found::Free => first,
                Found::Plain | Found::Native => false,
                Found::Lock => {
                    // An overdue lease that is not settled yet counts as held; this waiter is served when it is settled.
                    let settled = !lock.due_ms().is_some_and(|at| now.reached(at)) && !self.has_ending(&lock);
                    let free = first && settled && fits(&lock, &wanted).is_ok() && grantable(&lock, &wanted, &owner);
                    keys.put_back(key, &mut lock);
                    free
                }
            }
        })
    }

    /// Grants one of several names that were found to be free.
    pub(super) fn grant_one_of(
        &mut self,
        keys: &mut impl Keys,
        now: Now,
        key: Key<'_>,
        request: &Request<'_>,
        waited_us: Option<u64>,
    ) -> u64 {
        let mut lock = Lock::default();
        keys.take(key, &mut lock);
        let queue = self.queues.find(key);
        let token = self.make_grant(keys, &mut lock, &Granting { now, key, queue, request, waited_us });
        if let Some(queue) = queue {
            self.schedule_same_owner(queue, request.owner);
        }
        self.store(keys, key, &mut lock);
        token
    }

    /// Grants a lock in hand to an owner that may hold it already. Returns the fencing token.
    pub(super) fn make_grant(&mut self, keys: &mut impl Keys, lock: &mut Lock, granting: &Granting<'_>) -> u64 {
        let &Granting { now, key, queue, request, waited_us } = granting;
        let &Request { owner, client, wanted, id } = request;
        let before = lock.holders.get(owner).map(|grant| (grant.mode, grant.token));
        if let Some((mode, token)) = before
            && (mode == wanted.mode || mode == Mode::Exclusive)
        {
            self.reenter(now, key, lock, request, waited_us.is_some());
            self.history.note(key, now.mono_ms(), What::Reentered, owner, client);
            return token;
        }
        // An upgrade from shared to exclusive gets a new grant: its token must be larger than those of all who shared the lock.
        let shared = before.and_then(|_| lock.holders.remove(owner));
        if let Some(grant) = &shared {
            self.held.ended(key, lock, grant);
            self.unbind(grant);
        }
        let token = self.next_token;
        self.next_token += 1;
        let mut grant = Grant {
            owner: Owner::from_slice(owner),
            token,
            holds: 1,
            mode: wanted.mode,
            permits: wanted.permits,
            renewed: 0,
            granted_ms: now.mono_ms(),
            end_ms: 0,
            max_end_ms: if wanted.max_hold_ms == 0 { 0 } else { now.deadline_in(wanted.max_hold_ms) },
            delay_ms: wanted.delay_ms,
            bound: self.usable(wanted.bound),
            client,
        };
        let mut end_ms = now.deadline_in(wanted.lease_ms);
        if let Some(shared) = shared {
            self.keep_shared_terms(granting, &shared, &mut grant);
            if waited_us.is_some() {
                end_ms = end_ms.max(shared.end_ms);
            }
        }
        grant.renew(end_ms);
        let user = grant.client.user;
        self.bind(key, &grant);
        (lock.limit, lock.held_back_ms) = (wanted.limit, 0);
        lock.holders.insert(grant);
        self.held.granted(key, lock, wanted.permits, now.mono_ms());
        if let Some(queue) = queue
            && wanted.limit <= 1
        {
            self.queues.hold(queue, (user, owner), wanted.mode);
        }
        self.stats.grants += 1;
        let what = What::Granted { token, waited_ms: waited_us.unwrap_or(0) / 1000 };
        self.history.note(key, now.mono_ms(), what, owner, client);
        keys.happened(key, what);
        if let Some(id) = id {
            self.requests.answered((self.home(key.db), key.name, owner), id, Answer::Granted(token), None);
        }
        token
    }

    /// Applies to an upgraded grant what was agreed for the owner's shared grant: its holds, its bounds, and its request ids.
    fn keep_shared_terms(&mut self, granting: &Granting<'_>, shared: &Grant, grant: &mut Grant) {
        let key = granting.key;
        grant.holds = shared.holds.saturating_add(1);
        grant.max_end_ms = [grant.max_end_ms, shared.max_end_ms].into_iter().filter(|&at| at != 0).min().unwrap_or(0);
        grant.delay_ms = grant.delay_ms.max(shared.delay_ms);
        grant.client.user = shared.client.user;
        if grant.bound == Bound::Lease {
            grant.bound = self.usable(shared.bound);
        }
        if !self.requests.is_empty() {
            self.requests.retokened(self.home(key.db), key.name, granting.request.owner, shared.token, grant.token);
        }
    }

    /// Adds a hold for an owner that holds the lock. A wait in another connection does not shorten the lease that one connection
    /// was promised.
    pub(super) fn reenter(&mut self, now: Now, key: Key<'_>, lock: &mut Lock, request: &Request<'_>, has_waited: bool) {
        let &Request { owner, client, wanted, id } = request;
        let bound = self.usable(wanted.bound);
        let Some(holder) = lock.holders.find(owner) else { return };
        let newly = lock.holders.change(holder, |grant| {
            grant.holds = grant.holds.saturating_add(1);
            if wanted.max_hold_ms != 0 {
                let max_end_ms = grant.granted_ms.saturating_add(wanted.max_hold_ms).max(1);
                grant.max_end_ms = if grant.max_end_ms == 0 { max_end_ms } else { grant.max_end_ms.min(max_end_ms) };
            }
            let end_ms = now.deadline_in(wanted.lease_ms);
            grant.renew(if has_waited { end_ms.max(grant.end_ms) } else { end_ms });
            grant.delay_ms = grant.delay_ms.max(wanted.delay_ms);
            let newly = bound != Bound::Lease && grant.bound == Bound::Lease;
            if newly {
                grant.bound = bound;
                grant.move_to(client);
            }
            newly
        });
        if newly == Some(true)
            && let Some(grant) = lock.holders.get(owner)
        {
            self.bind(key, grant);
        }
        if let Some(id) = id
            && let Some(grant) = lock.holders.get(owner)
        {
            let answer = Answer::Granted(grant.token);
            self.requests.answered((self.home(key.db), key.name, owner), id, answer, None);
        }
    }
}

/// Whether the current holders allow a grant to an owner. A sharing owner may become exclusive when nobody else holds the lock.
#[inline]
pub(super) fn grantable(lock: &Lock, wanted: &Wanted, owner: &[u8]) -> bool {
    if lock.held_back_ms != 0 {
        return false;
    }
    if wanted.limit > 0 {
        return lock.holders.permits() + u64::from(wanted.permits) <= u64::from(wanted.limit);
    }
    match wanted.mode {
        Mode::Exclusive => lock.holders.is_empty() || lock.holders.only().is_some_and(|grant| grant.owner[..] == *owner),
        Mode::Shared => lock.holders.iter().next().is_none_or(|grant| grant.mode == Mode::Shared),
    }
}
