//! The orders of the table.

use crate::top::facts::Lock;

named! {
    /// What the table is sorted by.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Sort in ORDERS {
        /// The longest present wait first.
        #[default]
        OldestWait = "oldest wait",
        /// The longest queue first.
        Waiters = "waiters",
        /// The longest hold first.
        Held = "held",
        /// By name.
        Name = "name",
    }
}

impl Sort {
    /// The order after this one.
    pub fn next(self) -> Sort {
        Sort::ORDERS[(self as usize + 1) % Sort::ORDERS.len()]
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
