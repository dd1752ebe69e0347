//! Numbers of held locks and permits in each database.

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

/// Counts of what is held in all databases.
#[derive(Clone, Debug, Default)]
pub struct HeldByDb(Vec<Held>);

impl HeldByDb {
    #[inline]
    fn of(&mut self, db: u32) -> &mut Held {
        let db = db as usize;
        if self.0.len() <= db {
            self.0.resize(db + 1, Held::default());
        }
        &mut self.0[db]
    }

    /// Counts a grant of `permits` permits. `lock` contains the grant.
    #[inline]
    pub fn granted(&mut self, db: u32, lock: &Lock, permits: u32) {
        let held = self.of(db);
        let first = u64::from(lock.holders.len() == 1);
        held.grants += 1;
        if lock.limit == 0 {
            held.locks += first;
        } else {
            held.semaphores += first;
            held.permits += u64::from(permits);
        }
    }

    /// Counts the end of a grant of `permits` permits. The grant was taken out of `lock`.
    #[inline]
    pub fn ended(&mut self, db: u32, lock: &Lock, permits: u32) {
        let held = self.of(db);
        let last = u64::from(lock.holders.is_empty());
        held.grants -= 1;
        if lock.limit == 0 {
            held.locks -= last;
        } else {
            held.semaphores -= last;
            held.permits -= u64::from(permits);
        }
    }

    /// Counts the deletion of a lock with its holders.
    pub fn deleted(&mut self, db: u32, lock: &Lock) {
        let held = self.of(db);
        let any = u64::from(!lock.holders.is_empty());
        held.grants -= lock.holders.len() as u64;
        if lock.limit == 0 {
            held.locks -= any;
        } else {
            held.semaphores -= any;
            held.permits -= lock.holders.permits();
        }
    }

    /// Resets the counts of an emptied database. Returns the counts before.
    pub fn flushed(&mut self, db: u32) -> Held {
        std::mem::take(self.of(db))
    }

    /// Exchanges the counts of two databases.
    pub fn swapped(&mut self, a: u32, b: u32) {
        let (of_a, of_b) = (*self.of(a), *self.of(b));
        (*self.of(a), *self.of(b)) = (of_b, of_a);
    }

    /// The sum over all databases.
    pub fn total(&self) -> Held {
        self.0.iter().fold(Held::default(), |sum, held| Held {
            locks: sum.locks + held.locks,
            semaphores: sum.semaphores + held.semaphores,
            grants: sum.grants + held.grants,
            permits: sum.permits + held.permits,
        })
    }
    /// The counts of a database.
    pub fn in_db(&self, db: u32) -> Held {
        self.0.get(db as usize).copied().unwrap_or_default()
    }
}
