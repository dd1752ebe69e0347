//! Waiting: how a wait begins, what its queue has to know meanwhile, and how it ends without a grant.

use smallvec::SmallVec;

use super::{Found, Keys, LockTimer, Locks, Outcome, Refusal, Request};
use crate::base::ids::Key;
use crate::base::time::Now;
use crate::lock::grant::Client;
use crate::lock::graph::{self, PendingWait};
use crate::lock::history::{NAME_MAX, What};
use crate::lock::holders::Lock;
use crate::lock::queue::Queues;
use crate::lock::stats::LongWait;

impl Locks {
    /// Ends the wait of a connection that was closed or unblocked by another client. [`Locks::work`] serves the waiters behind
    /// it.
    pub fn leave(&mut self, keys: &mut impl Keys, now: Now, waiter: u32) {
        self.end_wait(keys, now, waiter, What::Left);
    }

    /// The queue of a name that is about to get a waiter. A new queue learns the holders of the name.
    pub(super) fn contend(&mut self, key: Key<'_>, lock: &Lock) -> u32 {
        if let Some(queue) = self.queues.find(key) {
            return queue;
        }
        let queue = self.queues.find_or_make(key);
        self.mirror(queue, lock);
        queue
    }

    /// Registers the holders of a name with its new queue, which is told of every later change.
    pub(super) fn mirror(&mut self, queue: u32, lock: &Lock) {
        if lock.limit <= 1 && self.queues.get(queue).is_some_and(|queue| queue.holders.is_empty()) {
            for grant in lock.holders.iter() {
                self.queues.hold(queue, (grant.client.user, &grant.owner), grant.mode);
            }
        }
    }

    /// Updates the deadline of a name's queue, and drops the queue if nobody waits and nothing keeps it.
    #[inline]
    pub(super) fn update_queue(&mut self, key: Key<'_>, lock: &Lock) {
        // Some events come before the deadline of the key.
        let several = lock.holders.len() > 1 || (lock.held_back_ms != 0 && !lock.holders.is_empty());
        if several || !self.queues.is_empty() {
            self.update_queue_of(key, lock, several);
        }
    }

    #[inline(never)]
    fn update_queue_of(&mut self, key: Key<'_>, lock: &Lock, several: bool) {
        let queue = match self.queues.find(key) {
            Some(queue) => queue,
            None if several => self.contend(key, lock),
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

    /// Does [`Locks::update_queue`] for a queue after a look at the value of its name.
    pub(super) fn look_after(&mut self, keys: &mut impl Keys, queue: u32) {
        let Some(key) = self.queues.get(queue).map(|queue| queue.key().to_buf()) else { return };
        let key = key.as_key();
        let mut lock = Lock::default();
        match keys.take(key, &mut lock) {
            Found::Lock => self.store_unchanged(keys, key, &mut lock, false),
            _ => {
                self.update_queue(key, &lock);
                self.ready_queues.push(queue);
            }
        }
    }

    pub(super) fn set_due(&mut self, queue: u32, due_ms: u64) {
        let Some(found) = self.queues.get_mut(queue) else { return };
        let before = std::mem::replace(&mut found.due_ms, due_ms);
        if before != due_ms {
            if before != 0 {
                self.deadlines.remove(&(before, LockTimer::Queue(queue)));
            }
            if due_ms != 0 {
                self.deadlines.insert((due_ms, LockTimer::Queue(queue)));
            }
            self.update_next();
        }
    }

    pub(super) fn update_next(&mut self) {
        let first_ms = self.deadlines.first().map_or(u64::MAX, |first| first.0);
        self.next_ms = if self.ended_sessions.is_empty() { first_ms } else { 0 };
    }

    /// Whether nobody waits for a name.
    pub(super) fn is_unclaimed(&self, key: Key<'_>) -> bool {
        self.queues.find(key).is_none_or(|queue| self.queues.first(queue).is_none())
    }

    /// Adds a waiter, unless its wait would close a cycle.
    pub(super) fn wait(
        &mut self,
        keys: &mut impl Keys,
        now: Now,
        request: &Request<'_>,
        deadline_ms: Option<u64>,
        (upgrade, all): (bool, bool),
        queues: &[u32],
    ) -> Result<u32, Refusal> {
        let &Request { owner, client, wanted, .. } = request;
        let key_of = |queues: &Queues, queue| queues.get(queue).map(|queue| queue.key().to_buf());
        let cycle = if wanted.limit <= 1 {
            graph::find_cycle(&mut self.queues, PendingWait { user: client.user, owner, mode: wanted.mode, upgrade, queues })
        } else {
            None
        };
        // The cycle may go through overdue leases. The caller settles those and tries again.
        fail_if!(cycle.is_some() && now.reached(self.next_ms), Refusal::Deadlock(Vec::new()));
        if let Some(cycle) = cycle {
            self.stats.deadlocks += 1;
            for &queue in queues {
                if let Some(key) = key_of(&self.queues, queue) {
                    self.history.note_notable(key.as_key(), now.mono_ms(), What::Deadlock, owner, client);
                    keys.happened(key.as_key(), What::Deadlock);
                }
            }
            return Err(Refusal::Deadlock(cycle));
        }
        let waiter = self.queues.enter(request, (deadline_ms, now.mono_us()), (upgrade, all), queues);
        if let Some(deadline_ms) = deadline_ms {
            let serial = self.queues.waiter(waiter).map_or(0, |waiter| waiter.serial);
            self.deadlines.insert((deadline_ms, LockTimer::Waiter(serial, waiter)));
            self.update_next();
        }
        for &queue in queues {
            if let Some(key) = key_of(&self.queues, queue) {
                self.history.note(key.as_key(), now.mono_ms(), What::Queued, owner, client);
                keys.happened(key.as_key(), What::Queued);
            }
            let len = self.queues.get(queue).map_or(0, |queue| queue.len);
            self.stats.longest_queue = self.stats.longest_queue.max(len);
        }
        Ok(waiter)
    }

    /// Ends a wait without a grant.
    pub(super) fn end_wait(&mut self, keys: &mut impl Keys, now: Now, waiter: u32, what: What) {
        let firsts: SmallVec<[u32; 8]> = self.queues.queues_of(waiter).collect();
        let Some(found) = self.queues.waiter(waiter) else { return };
        let owner = self.queues.owner(found.owner).map(|owner| owner.name.clone()).unwrap_or_default();
        let (client, all, waited_ms) = (found.client, found.all, waited_ms(now, found.since_us));
        for &queue in &firsts {
            let Some(key) = self.queues.get(queue).map(|queue| queue.key().to_buf()) else { continue };
            let key = key.as_key();
            self.history.note(key, now.mono_ms(), what, &owner, client);
            self.keep_if_long(now, key, &owner, client, waited_ms, false);
            keys.happened(key, what);
        }
        self.withdraw(waiter);
        if what == What::TimedOut {
            self.stats.timeouts += 1;
            self.outcomes.push(Outcome::TimedOut { client, all, waited_ms });
        }
    }

    /// Takes a waiter out of its queues, and marks those for service.
    pub(super) fn withdraw(&mut self, waiter: u32) {
        if let Some((left, queues)) = self.queues.leave(waiter) {
            if let Some(deadline_ms) = left.deadline_ms {
                self.deadlines.remove(&(deadline_ms, LockTimer::Waiter(left.serial, waiter)));
                self.update_next();
            }
            self.queues.forget_owner(left.owner);
            self.ready_queues.extend(queues);
        }
    }

    pub(super) fn keep_if_long(&mut self, now: Now, key: Key<'_>, owner: &[u8], client: Client, waited_ms: u64, granted: bool) {
        if self.long_wait_ms.is_some_and(|long_ms| waited_ms >= long_ms) && key.name.len() <= NAME_MAX {
            let (name, owner, client) = (key.name.to_vec(), owner.to_vec(), client.id);
            self.stats.keep_long(LongWait { id: 0, at_ms: now.mono_ms(), waited_ms, db: key.db, name, owner, client, granted });
            self.history.ask_for_budget();
        }
    }

    /// Refuses all waiters of a name that holds neither a lock nor a plain key.
    pub(super) fn turn_away(&mut self, queue: u32, name: &[u8]) {
        let waiters: Vec<u32> = self.queues.links_of(queue).map(|link| link.waiter).collect();
        waiters.into_iter().for_each(|waiter| self.refuse(waiter, name, Refusal::WrongType));
    }

    pub(super) fn refuse(&mut self, waiter: u32, name: &[u8], refusal: Refusal) {
        if let Some(found) = self.queues.waiter(waiter) {
            let (client, wanted) = (found.client, found.wanted);
            self.outcomes.push(Outcome::Refused { client, refusal, name: name.into(), wanted });
            self.withdraw(waiter);
        }
    }
}

fn waited_ms(now: Now, since_us: u64) -> u64 {
    now.mono_us().saturating_sub(since_us) / 1000
}
