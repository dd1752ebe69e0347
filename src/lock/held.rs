//! How many locks are held and how many permits are out, in each database.

use crate::lock::holders::Lock;

/// What is held in a database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Locks that somebody holds.
    pub locks: u64,
    /// Semaphores of which anybody has permits.
    pub semaphores: u64,
    /// Grants of either.
    pub grants: u64,
    /// Permits of semaphores that are out.
    pub permits: u64,
}

/// What is held in all databases.
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

    /// Somebody was granted a lock, or so many permits, which is as it is with the grant in it.
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

    /// A grant of so many permits is over, and was taken out of its lock.
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

    /// A lock was deleted as it was.
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

    /// A database was emptied; gives what was held there.
    pub fn flushed(&mut self, db: u32) -> Held {
        std::mem::take(self.of(db))
    }

    /// Two databases have changed places.
    pub fn swapped(&mut self, a: u32, b: u32) {
        let (of_a, of_b) = (*self.of(a), *self.of(b));
        (*self.of(a), *self.of(b)) = (of_b, of_a);
    }

    /// What is held in all of them together.
    pub fn total(&self) -> Held {
        self.0.iter().fold(Held::default(), |sum, held| Held {
            locks: sum.locks + held.locks,
            semaphores: sum.semaphores + held.semaphores,
            grants: sum.grants + held.grants,
            permits: sum.permits + held.permits,
        })
    }
    /// What is held in a database.
    pub fn in_db(&self, db: u32) -> Held {
        self.0.get(db as usize).copied().unwrap_or_default()
    }
}
