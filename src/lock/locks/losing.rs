//! Lost locks: locks are deleted, or their databases are emptied or swapped, and their holders are notified.
//!
//! Waiters are served in the same step. The holders of a few locks are notified in the same step, too; those of many locks, or of
//! one lock that very many share, are notified in batches: [`Locks::tell_some`].

use super::{Found, Keys, Locks};
use crate::base::ids::{Key, KeyBuf};
use crate::base::time::Now;
use crate::lock::LOST_STEPS;
use crate::lock::grant::{Bound, Client, Grant, Reason};
use crate::lock::history::What;
use crate::lock::holders::{Holders, Lock};

/// Maximum number of holders of a lock that are notified at once.
const AT_ONCE: usize = 16;

/// Where, when and by whom something was deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deletion {
    /// Index of the database.
    pub db: u32,
    /// The stable name of the database, which survives swaps: [`Locks::home`].
    pub home: u32,
    /// The time, in monotonic milliseconds.
    pub at_ms: u64,
    /// The client that deleted it.
    pub by: Client,
    /// The token of the first grant after it.
    pub next_token: u64,
}

/// Holders that have lost their lock and are to be notified.
#[derive(Debug)]
pub(super) struct Lost {
    deletion: Deletion,
    name: Box<[u8]>,
    holders: Holders,
    /// Whether the ages of the grants are still counted. Those of an emptied database are not.
    aged: bool,
}

impl Locks {
    /// Handles the deletion of a lock: all its grants end.
    pub fn deleted(&mut self, now: Now, key: Key<'_>, lock: Lock, by: Client) {
        self.held.deleted(key, &lock);
        self.stats.deletions += lock.holders.len() as u64;
        if let Some(queue) = self.queues.find(key) {
            self.queues.unhold_all(queue);
        }
        let deletion = Deletion { db: key.db, home: self.home(key.db), at_ms: now.mono_ms(), by, next_token: self.next_token };
        self.lose_all(deletion, key.name, lock.holders, true);
        self.gone(key);
    }

    /// Handles the emptying of a database. Its names may be granted to their waiters. Its locks are passed to
    /// [`Locks::lost_with_database`] in batches.
    pub fn flushed(&mut self, deletion: Deletion) {
        let held = self.held.flushed(deletion.db);
        self.stats.deletions += held.grants;
        self.lost_holders.iter_mut().filter(|lost| lost.deletion.home == deletion.home).for_each(|lost| lost.aged = false);
        self.changed_as_a_whole(|of| of == deletion.db);
        self.flushes.retain(|other| other.db != deletion.db);
        self.flushes.push(deletion);
    }

    /// Handles a lock that was in an emptied database.
    pub fn lost_with_database(&mut self, deletion: Deletion, name: &[u8], lock: Lock) {
        self.lose_all(deletion, name, lock.holders, false);
    }

    /// Handles a swap of two databases: holds move with the data, and waiters keep waiting for names of the database index they
    /// named.
    pub fn swapped(&mut self, keys: &mut impl Keys, now: Now, a: u32, b: u32) {
        self.held.swapped(a, b);
        let (home_of_a, home_of_b) = (self.home(a), self.home(b));
        let most = a.max(b) as usize;
        while self.homes.len() <= most {
            self.homes.push(self.homes.len() as u32);
        }
        (self.homes[a as usize], self.homes[b as usize]) = (home_of_b, home_of_a);
        // A queue kept for several holders moves to the index that its lock has now.
        let watched = self.queues.iter().filter(|(_, queue)| queue.pinned && (queue.db == a || queue.db == b));
        let watched: Vec<KeyBuf> =
            watched.map(|(_, queue)| KeyBuf { db: if queue.db == a { b } else { a }, name: queue.name.clone() }).collect();
        self.changed_as_a_whole(|of| of == a || of == b);
        for key in &watched {
            let mut lock = Lock::default();
            if self.load(keys, now, key.as_key(), &mut lock) == Found::Lock {
                self.store(keys, key.as_key(), &mut lock);
            }
        }
    }

    /// The holders of all queues of some databases have changed.
    fn changed_as_a_whole(&mut self, db: impl Fn(u32) -> bool) {
        let queues: Vec<u32> = self.queues.iter().filter(|(_, queue)| db(queue.db)).map(|(number, _)| number).collect();
        for &number in &queues {
            self.queues.unhold_all(number);
        }
        self.ready_queues.extend(queues);
    }

    /// The stable name of the database at an index, which survives swaps.
    pub fn home(&self, db: u32) -> u32 {
        self.homes.get(db as usize).copied().unwrap_or(db)
    }

    /// A key under the [`Locks::home`] of its database.
    pub fn at_home<'a>(&self, key: Key<'a>) -> Key<'a> {
        Key { db: self.home(key.db), ..key }
    }

    /// The index of a database by its [`Locks::home`].
    pub fn db_at_home(&self, home: u32) -> u32 {
        self.homes.iter().position(|&of| of == home).map_or(home, |db| db as u32)
    }

    fn lose_all(&mut self, deletion: Deletion, name: &[u8], mut holders: Holders, aged: bool) {
        if holders.len() > AT_ONCE {
            self.lost_holders.push_back(Lost { deletion, name: name.into(), holders, aged });
            return;
        }
        while let Some(grant) = holders.pop() {
            self.lose_deleted(deletion, name, &grant, aged);
        }
    }

    /// Ends a grant together with its deleted lock.
    fn lose_deleted(&mut self, deletion: Deletion, name: &[u8], grant: &Grant, aged: bool) {
        if aged {
            self.held.age_ended(self.db_at_home(deletion.home), grant);
        }
        if grant.bound != Bound::Lease {
            self.unbind(grant);
        }
        if !self.requests.is_empty() {
            self.requests.ended(deletion.home, name, &grant.owner, deletion.at_ms);
        }
        let what = What::Ended { reason: Reason::Deleted, token: grant.token };
        self.history.note_end(name, what, &grant.owner, deletion);
        self.tell_lost(name, grant, Reason::Deleted);
    }

    /// Whether holders of lost locks are still to be notified.
    #[inline]
    pub fn has_lost(&self) -> bool {
        !self.lost_holders.is_empty()
    }

    /// Notifies holders of lost locks, within `budget`.
    pub fn tell_some(&mut self, budget: &mut u32) {
        while *budget > 0
            && let Some(mut lost) = self.lost_holders.pop_front()
        {
            while *budget > 0
                && let Some(grant) = lost.holders.pop()
            {
                *budget = budget.saturating_sub(LOST_STEPS);
                self.lose_deleted(lost.deletion, &lost.name, &grant, lost.aged);
            }
            if !lost.holders.is_empty() {
                self.lost_holders.push_front(lost);
            }
        }
    }

    /// The last flush of a database, if it was at or after a time.
    pub(super) fn flushed_since(&self, db: u32, since_ms: u64) -> Option<Deletion> {
        self.flushes.iter().copied().find(|flush| flush.db == db && flush.at_ms >= since_ms)
    }
}
