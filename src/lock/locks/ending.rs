//! Ends of grants without a release: with their leases and with their connections.

use super::{Found, Keys, Locks, Outcome};
use crate::base::ids::Key;
use crate::base::time::Now;
use crate::lock::grant::{Bound, Client, Grant, Reason};
use crate::lock::history::What;
use crate::lock::holders::Lock;

impl Locks {
    /// Number of grants that end with their connections. Lost ones count until their holders are notified.
    pub fn session_grants(&self) -> usize {
        self.bound.len()
    }

    /// Whether any grant ends with this connection or session, by its [`Bound::key`].
    pub fn has_bound(&self, key: u64) -> bool {
        self.bound.range((key, 0)..=(key, u64::MAX)).next().is_some()
    }

    /// Ends the grants that end with a connection, by its number, at most `budget` of them. Returns whether those were all.
    /// Grants the freed locks to their waiters.
    pub fn end_bound(&mut self, keys: &mut impl Keys, now: Now, client: u64, budget: &mut u32) -> bool {
        self.end_bound_to(keys, now, (client, None), budget)
    }

    /// As [`Locks::end_bound`] for a connection or a session, by its [`Bound::key`]. `told` is the connection to notify, where
    /// that is not the one that acquired the grant.
    pub(super) fn end_bound_to(
        &mut self,
        keys: &mut impl Keys,
        now: Now,
        (of, told): (u64, Option<Client>),
        budget: &mut u32,
    ) -> bool {
        self.ending_clients.retain(|&(other, _)| other != of);
        while *budget > 0
            && let Some((&(_, token), _)) = self.bound.range((of, 0)..=(of, u64::MAX)).next()
        {
            *budget -= 1;
            let Some(at_home) = self.bound.remove(&(of, token)) else { break };
            self.unbound(of);
            let key = Key { db: self.db_at_home(at_home.db), name: &at_home.name };
            let mut lock = Lock::default();
            if self.load(keys, now, key, &mut lock) == Found::Lock {
                let owner = lock.holders.with_token(token).map(|grant| grant.owner.clone());
                if let Some(mut grant) = owner.and_then(|owner| lock.holders.remove(&owner)) {
                    grant.move_to(told.unwrap_or(grant.client));
                    self.stats.session_ends += 1;
                    self.lose(keys, now, key, &mut lock, grant, Reason::Session);
                    // Waiters are served once all of its grants have ended, because it may have several of one name.
                    self.gone(key);
                }
                self.store(keys, key, &mut lock);
            }
        }
        let all = !self.has_bound(of);
        if !all {
            self.ending_clients.push((of, told));
        }
        self.work(keys, now);
        all
    }

    /// Whether a grant of this lock ends with a connection or session that has ended.
    #[inline(always)]
    pub(super) fn has_ending(&self, lock: &Lock) -> bool {
        !self.ending_clients.is_empty() && lock.holders.iter().any(|grant| self.ending_of(grant).is_some())
    }

    fn ending_of(&self, grant: &Grant) -> Option<(u64, Option<Client>)> {
        let key = grant.bound.key(grant.client)?;
        self.ending_clients.iter().find(|&&(of, _)| of == key).copied()
    }

    /// Handles a lock that was removed from its key because the lease of its last holder or its delay has ended. Returns the lock
    /// if it must be kept.
    pub fn key_expired(&mut self, keys: &mut impl Keys, now: Now, key: Key<'_>, mut lock: Lock) -> Option<Lock> {
        self.expire(keys, now, key, &mut lock);
        if let Some(queue) = self.queues.find(key) {
            self.ready_queues.push(queue);
        }
        (!lock.is_free()).then_some(lock)
    }

    /// Must be called when a name holds nothing any more, or another value: its waiters may be eligible.
    pub fn gone(&mut self, key: Key<'_>) {
        if let Some(queue) = self.queues.find(key) {
            self.ready_queues.push(queue);
        }
    }

    /// Removes a grant that was taken out of its lock from all accounts.
    #[inline]
    pub(super) fn end(&mut self, ended_ms: u64, key: Key<'_>, lock: &Lock, grant: &Grant) {
        self.held.ended(key, lock, grant);
        if grant.bound != Bound::Lease {
            self.unbind(grant);
        }
        if !self.requests.is_empty() {
            self.requests.ended(self.home(key.db), key.name, &grant.owner, ended_ms);
        }
        if let Some(queue) = self.queues.find(key) {
            self.queues.unhold(queue, (grant.client.user, &grant.owner));
        }
    }

    /// Ends a grant that its holder did not release. The grant was taken out of `lock`, which is in hand.
    pub(super) fn lose(&mut self, keys: &mut impl Keys, now: Now, key: Key<'_>, lock: &mut Lock, grant: Grant, reason: Reason) {
        let by = grant.client;
        self.lose_by(keys, now, key, lock, grant, (reason, by));
    }

    /// As [`Locks::lose`], with the connection that the history names.
    pub(super) fn lose_by(
        &mut self,
        keys: &mut impl Keys,
        now: Now,
        key: Key<'_>,
        lock: &mut Lock,
        grant: Grant,
        (reason, by): (Reason, Client),
    ) {
        self.end(now.mono_ms(), key, lock, &grant);
        // An administrator who breaks a lock wants the next waiter served now, as after a deletion.
        if grant.delay_ms > 0 && reason != Reason::Broken {
            // The delay counts from the end of the grant, not from when that was noticed.
            let ended_ms = if reason == Reason::Session { now.deadline_in(0) } else { grant.end_ms };
            lock.held_back_ms = lock.held_back_ms.max(ended_ms.saturating_add(u64::from(grant.delay_ms)));
        }
        let what = What::Ended { reason, token: grant.token };
        self.history.note_notable(key, now.mono_ms(), what, &grant.owner, by);
        keys.happened(key, what);
        let waiters = self.queues.find(key).and_then(|queue| self.queues.get(queue)).map_or(0, |queue| queue.len);
        if reason == Reason::Session || (waiters > 0 && matches!(reason, Reason::Lease | Reason::MaxHold)) {
            let (owner, token, client) = (grant.owner.clone(), grant.token, grant.client);
            self.outcomes.push(Outcome::Ended { db: key.db, name: key.name.into(), owner, token, reason, client, waiters });
        }
        self.tell_lost(key.name, &grant, reason);
    }

    pub(super) fn tell_lost(&mut self, name: &[u8], grant: &Grant, reason: Reason) {
        // An ended connection is not notified; a connection that has lost its named session is.
        if reason != Reason::Session || matches!(grant.bound, Bound::Session(_)) {
            let session = if let Bound::Session(number) = grant.bound { self.sessions.get(number.get()) } else { None };
            // If the session has no connection now, the connection that acquired the grant may still exist.
            let client = session.and_then(|session| session.client).unwrap_or(grant.client);
            let (owner, token) = (grant.owner.clone(), grant.token);
            self.outcomes.push(Outcome::Lost { client, name: name.into(), owner, token, reason });
        }
    }

    /// Ends the grants of a lock in hand whose leases, connections or sessions have ended, and its delay once that is over.
    pub(super) fn expire(&mut self, keys: &mut impl Keys, now: Now, key: Key<'_>, lock: &mut Lock) {
        if self.has_ending(lock) {
            let ending: Vec<_> =
                lock.holders.iter().filter_map(|grant| Some((grant.owner.clone(), self.ending_of(grant)?.1))).collect();
            for (owner, told) in ending {
                let Some(mut grant) = lock.holders.remove(&owner) else { continue };
                grant.move_to(told.unwrap_or(grant.client));
                self.stats.session_ends += 1;
                self.lose(keys, now, key, lock, grant, Reason::Session);
            }
        }
        while let Some(grant) = lock.holders.take_ended(now.ended_ms()) {
            self.stats.expiries += 1;
            let reason = grant.end_reason();
            self.lose(keys, now, key, lock, grant, reason);
        }
        if lock.held_back_ms != 0 && now.reached(lock.held_back_ms) {
            lock.held_back_ms = 0;
        }
    }
}
