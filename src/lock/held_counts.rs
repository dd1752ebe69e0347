//! Numbers of held locks and permits in each database, the names of semaphores, and how long the oldest grant is held.

mod ages;
mod semaphores;

use ages::Ages;
use semaphores::Semaphores;

use crate::base::ids::Key;
use crate::lock::grant::Grant;
use crate::lock::holders::Lock;

/// Counts of what is held in a database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Locks that are held.
    pub locks: u64,
    /// Semaphores with permits out.
    pub semaphores: u64,
    /// Grants of both.
    pub grants: u64,
    /// Permits of semaphores that are out.
    pub permits: u64,
}

/// The counts of a database.
#[derive(Clone, Debug, Default)]
struct Counts {
    held: Held,
    ages: Ages,
    semaphores: Semaphores,
}

/// Counts of what is held in all databases.
#[derive(Clone, Debug, Default)]
pub struct HeldByDb(Vec<Counts>);

impl HeldByDb {
    #[inline]
    fn of(&mut self, db: u32) -> &mut Counts {
        let db = db as usize;
        if self.0.len() <= db {
            self.0.resize(db + 1, Counts::default());
        }
        &mut self.0[db]
    }

    /// Counts a grant of `permits` permits that was made at `granted_ms`. `lock` contains the grant.
    #[inline]
    pub fn granted(&mut self, key: Key<'_>, lock: &Lock, permits: u32, granted_ms: u64) {
        let Counts { held, ages, semaphores } = self.of(key.db);
        let first = u64::from(lock.holders.len() == 1);
        held.grants += 1;
        if lock.limit == 0 {
            held.locks += first;
        } else {
            held.semaphores += first;
            if first > 0 {
                semaphores.opened(key.name);
            }
            held.permits += u64::from(permits);
        }
        ages.granted(granted_ms);
    }

    /// Counts a present grant that was renewed for the first time.
    #[inline]
    pub fn renewed(&mut self, db: u32) {
        self.of(db).ages.renewed += 1;
    }

    /// Counts the end of a grant, which was taken out of `lock`.
    #[inline]
    pub fn ended(&mut self, key: Key<'_>, lock: &Lock, grant: &Grant) {
        // A database with a grant has counts.
        let Some(Counts { held, ages, semaphores }) = self.0.get_mut(key.db as usize) else { return };
        let last = u64::from(lock.holders.is_empty());
        held.grants -= 1;
        if lock.limit == 0 {
            held.locks -= last;
        } else {
            held.semaphores -= last;
            if last > 0 {
                semaphores.closed(key.name);
            }
            held.permits -= u64::from(grant.permits);
        }
        ages.renewed -= u64::from(grant.renewed > 0);
        ages.ended(grant.granted_ms);
    }

    /// Counts the deletion of a lock with its holders. [`HeldByDb::age_ended`] must follow for each of them.
    pub fn deleted(&mut self, key: Key<'_>, lock: &Lock) {
        let Counts { held, semaphores, .. } = self.of(key.db);
        let any = u64::from(!lock.holders.is_empty());
        held.grants -= lock.holders.len() as u64;
        if lock.limit == 0 {
            held.locks -= any;
        } else {
            held.semaphores -= any;
            semaphores.closed(key.name);
            held.permits -= lock.holders.permits();
        }
    }

    /// Forgets the age of a grant of a deleted lock.
    pub fn age_ended(&mut self, db: u32, grant: &Grant) {
        let ages = &mut self.of(db).ages;
        ages.renewed -= u64::from(grant.renewed > 0);
        ages.ended(grant.granted_ms);
    }

    /// Resets the counts of an emptied database. Returns the counts before.
    pub fn flushed(&mut self, db: u32) -> Held {
        std::mem::take(self.of(db)).held
    }

    /// Exchanges the counts of two databases.
    pub fn swapped(&mut self, a: u32, b: u32) {
        self.of(a.max(b));
        self.0.swap(a as usize, b as usize);
    }

    /// The sum over all databases.
    pub fn total(&self) -> Held {
        self.0.iter().fold(Held::default(), |sum, Counts { held, .. }| Held {
            locks: sum.locks + held.locks,
            semaphores: sum.semaphores + held.semaphores,
            grants: sum.grants + held.grants,
            permits: sum.permits + held.permits,
        })
    }

    /// The counts of a database.
    pub fn in_db(&self, db: u32) -> Held {
        self.0.get(db as usize).map(|counts| counts.held).unwrap_or_default()
    }

    /// The names of all semaphores of a database with permits out; `None` if there are too many to know them all.
    pub fn semaphores(&self, db: u32) -> Option<impl Iterator<Item = &[u8]>> {
        let counts = self.0.get(db as usize);
        let all = counts.is_none_or(|counts| counts.semaphores.len() as u64 == counts.held.semaphores);
        all.then(|| counts.into_iter().flat_map(|counts| counts.semaphores.names()))
    }

    /// Number of present grants that were renewed at least once, in all databases.
    pub fn renewed_grants(&self) -> u64 {
        self.0.iter().map(|counts| counts.ages.renewed).sum()
    }

    /// The time of the oldest present grant of all databases, in monotonic milliseconds. It may be up to a second too early.
    pub fn oldest_ms(&self) -> Option<u64> {
        self.0.iter().filter_map(|counts| counts.ages.oldest_ms()).min()
    }

    /// The number of present grants of all databases whose ages are known.
    #[cfg(test)]
    pub fn aged(&self) -> u64 {
        self.0.iter().map(|counts| counts.ages.count()).sum()
    }
}
