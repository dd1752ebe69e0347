//! Repeated requests: none is carried out twice.
//!
//! ```text
//!   ACQUIRE … REQUEST id ─┬─ waits in a queue ──▶ the newer connection takes its place; the older one is told nil
//!                         ├─ granted, and held ─▶ the same token, no further hold
//!                         ├─ granted, and ended ▶ refused: a late copy must not take the lock again
//!                         └─ not known ─────────▶ a new request
//! ```

use smallvec::SmallVec;

use super::{Acquired, AllAcquired, Found, Keys, LockTimer, Locks, Outcome, Refusal, Request};
use crate::base::ids::Key;
use crate::base::time::Now;
use crate::lock::grant::{Bound, Grant};
use crate::lock::history::What;
use crate::lock::holders::Lock;

impl Locks {
    /// The answer to a repeated acquisition; `None` if the request is new.
    #[cold]
    pub(super) fn repeated(
        &mut self,
        keys: &mut impl Keys,
        now: Now,
        key: Key<'_>,
        request: &Request<'_>,
        id: &[u8],
        wait: Option<Option<u64>>,
    ) -> Option<Result<Acquired, Refusal>> {
        if let Some(waiter) = self.still_waiting(keys, now, key.db, &[key.name], request, id, false) {
            return Some(Ok(match self.take_over(keys, now, waiter, request, wait) {
                true => Acquired::Waits(waiter),
                false => Acquired::Busy,
            }));
        }
        let token = self.requests.granted(self.home(key.db), key.name, request.owner, id)?;
        Some(match self.confirm(keys, now, key, request, token) {
            Ok(()) => {
                self.carry_on(keys, key, request, now);
                Ok(Acquired::Granted(token))
            }
            Err(refusal) => Err(refusal),
        })
    }

    /// As [`Locks::repeated`] for several names. A name without a remembered answer counts as not held if others have one.
    #[allow(clippy::too_many_arguments)]
    #[cold]
    pub(super) fn repeated_all(
        &mut self,
        keys: &mut impl Keys,
        now: Now,
        db: u32,
        names: &[&[u8]],
        request: &Request<'_>,
        id: &[u8],
        wait: Option<Option<u64>>,
    ) -> Option<Result<AllAcquired, Refusal>> {
        if let Some(waiter) = self.still_waiting(keys, now, db, names, request, id, true) {
            return Some(Ok(match self.take_over(keys, now, waiter, request, wait) {
                true => AllAcquired::Waits(waiter),
                false => AllAcquired::Busy,
            }));
        }
        let home = self.home(db);
        let tokens: SmallVec<[Option<u64>; 8]> =
            names.iter().map(|name| self.requests.granted(home, name, request.owner, id)).collect();
        if tokens.iter().all(Option::is_none) {
            return None;
        }
        for (name, token) in names.iter().zip(&tokens) {
            // No grant has the token 0.
            if let Err(refusal) = self.confirm(keys, now, Key { db, name }, request, token.unwrap_or(0)) {
                return Some(Err(refusal));
            }
        }
        names.iter().for_each(|name| self.carry_on(keys, Key { db, name }, request, now));
        Some(Ok(AllAcquired::Granted(tokens.into_iter().flatten().collect())))
    }

    /// The waiter that belongs to this request, after all due events were settled.
    #[allow(clippy::too_many_arguments)]
    fn still_waiting(
        &mut self,
        keys: &mut impl Keys,
        now: Now,
        db: u32,
        names: &[&[u8]],
        request: &Request<'_>,
        id: &[u8],
        all: bool,
    ) -> Option<u32> {
        self.waiting_by(db, names, request, id, all)?;
        for name in names {
            self.look(keys, now, Key { db, name }, |_| ());
        }
        self.work(keys, now);
        self.waiting_by(db, names, request, id, all)
    }

    fn waiting_by(&self, db: u32, names: &[&[u8]], request: &Request<'_>, id: &[u8], all: bool) -> Option<u32> {
        let is_it = |number: u32| {
            let waiter = self.queues.waiter(number);
            waiter.is_some_and(|waiter| waiter.all == all && waiter.request.as_deref() == Some(id))
                && self.queues.queues_of(number).map(Some).eq(names.iter().map(|name| self.queues.find(Key { db, name })))
        };
        self.queues.waits_of(request.owner).into_iter().find(|&number| is_it(number))
    }

    /// Moves a waiter's place to another connection, whose wait limit applies. Returns false if that request does not wait; the
    /// place is given up then.
    fn take_over(
        &mut self,
        keys: &mut impl Keys,
        now: Now,
        waiter: u32,
        request: &Request<'_>,
        wait: Option<Option<u64>>,
    ) -> bool {
        let Some(found) = self.queues.waiter_mut(waiter) else { return false };
        let (client, all, serial, before_ms) = (found.client, found.all, found.serial, found.deadline_ms);
        let waited_ms = now.mono_us().saturating_sub(found.since_us) / 1000;
        self.outcomes.push(Outcome::TimedOut { client, all, waited_ms });
        let Some(deadline_ms) = wait else {
            self.end_wait(keys, now, waiter, What::Left);
            self.work(keys, now);
            return false;
        };
        (found.client, found.deadline_ms) = (request.client.as_user(client.user), deadline_ms);
        if request.wanted.bound != Bound::Lease {
            found.wanted.bound = request.wanted.bound;
        }
        if let Some(before_ms) = before_ms {
            self.deadlines.remove(&(before_ms, LockTimer::Waiter(serial, waiter)));
        }
        if let Some(deadline_ms) = deadline_ms {
            self.deadlines.insert((deadline_ms, LockTimer::Waiter(serial, waiter)));
        }
        self.update_next();
        true
    }

    /// Refuses a repeated request if its grant of a name has ended.
    fn confirm(
        &mut self,
        keys: &mut impl Keys,
        now: Now,
        key: Key<'_>,
        request: &Request<'_>,
        token: u64,
    ) -> Result<(), Refusal> {
        let mut lock = Lock::default();
        let found = self.load(keys, now, key, &mut lock);
        let holds = lock.holders.get(request.owner).is_some_and(|grant| grant.token == token);
        let refusal = match found {
            Found::Native => Err(Refusal::WrongType),
            _ if holds => Ok(()),
            _ => Err(Refusal::Ended(key.name.into(), self.cause(now, key, &lock, request.owner))),
        };
        self.put_aside(keys, key, &mut lock, found != Found::Lock);
        refusal
    }

    /// Renews a grant that is confirmed to a connection: the lease lasts as long as that connection expects, and the grant is
    /// bound to the connection if the request asked for that.
    fn carry_on(&mut self, keys: &mut impl Keys, key: Key<'_>, request: &Request<'_>, now: Now) {
        let mut lock = Lock::default();
        if self.load(keys, now, key, &mut lock) != Found::Lock {
            return;
        }
        let end_ms = now.deadline_in(request.wanted.lease_ms);
        let bound = self.usable(request.wanted.bound);
        if let Some(holder) = lock.holders.find(request.owner) {
            let changed = lock.holders.change(holder, |grant| {
                grant.renew(end_ms.max(grant.end_ms));
                let before = grant.clone();
                if bound != Bound::Lease {
                    grant.bound = bound;
                }
                // The connection that has the reply is told of a loss. A grant that is bound to another one ends with that.
                if bound != Bound::Lease || grant.bound == Bound::Lease {
                    grant.move_to(request.client);
                }
                (before, grant.clone())
            });
            if let Some((before, after)) = changed {
                self.rebind(key, &before, &after);
            }
        }
        self.store(keys, key, &mut lock);
    }

    pub(super) fn rebind(&mut self, key: Key<'_>, before: &Grant, after: &Grant) {
        if before.bound.key(before.client) != after.bound.key(after.client) {
            // The new binding comes first, so that a session without a connection does not end in between for want of grants.
            self.bind(key, after);
            self.unbind(before);
        }
    }
}
