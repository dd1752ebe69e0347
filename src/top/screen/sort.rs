//! The orders of the table.

use crate::top::facts::Lock;

/// What the table is sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// The longest present wait first.
    #[default]
    OldestWait,
    /// The longest queue first.
    Waiters,
    /// The longest hold first.
    Held,
    /// By name.
    Name,
}

impl Sort {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Sort::OldestWait => "oldest wait",
            Sort::Waiters => "waiters",
            Sort::Held => "held",
            Sort::Name => "name",
        }
    }

    /// The order after this one.
    pub fn next(self) -> Sort {
        match self {
            Sort::OldestWait => Sort::Waiters,
            Sort::Waiters => Sort::Held,
            Sort::Held => Sort::Name,
            Sort::Name => Sort::OldestWait,
        }
    }

    /// Sorts. Locks that are equal are in the order of their names.
    pub fn sort(self, locks: &mut [Lock]) {
        let held = |lock: &Lock| lock.holders.iter().map(|holder| holder.held_ms).max().unwrap_or(0);
        locks.sort_by(|a, b| {
            let order = match self {
                Sort::OldestWait => (b.oldest_ms, b.waiting).cmp(&(a.oldest_ms, a.waiting)),
                Sort::Waiters => b.waiting.cmp(&a.waiting),
                Sort::Held => held(b).cmp(&held(a)),
                Sort::Name => std::cmp::Ordering::Equal,
            };
            order.then_with(|| a.name.cmp(&b.name))
        });
    }
}
