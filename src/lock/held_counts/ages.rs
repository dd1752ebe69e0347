//! When the present grants of a database were made: the oldest one is known without a walk over all locks.
//!
//! ```text
//!   grants of earlier seconds:  12 ─ 0 ─ 3 ─ …     grants of the latest second: 7
//!                               └── the oldest
//! ```
//!
//! Most grants are made and ended within the latest second: that costs an addition. A grant of an earlier second is found by a
//! binary search.

use std::collections::VecDeque;

/// Number of emptied seconds that are tolerated before they are removed.
const EMPTY_MAX: usize = 64;

/// The grants of about a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Second {
    /// The time of the grants in units of 1,024 ms.
    number: u64,
    /// The time of its first grant, in monotonic milliseconds.
    first_ms: u64,
    /// Number of its grants that have not ended.
    grants: u64,
}

/// The present grants by the second in which they were made.
#[derive(Clone, Debug, Default)]
pub(super) struct Ages {
    latest: Second,
    /// In the order of their numbers. The first one has grants.
    earlier: VecDeque<Second>,
    /// Number of those without grants.
    empty: usize,
    /// Number of grants that were renewed.
    pub(super) renewed: u64,
}

impl Ages {
    fn number(ms: u64) -> u64 {
        ms >> 10
    }

    /// Counts a grant that was made at a time in monotonic milliseconds.
    #[inline]
    pub(super) fn granted(&mut self, granted_ms: u64) {
        if Self::number(granted_ms) != self.latest.number || self.latest.grants == 0 {
            self.begin(granted_ms);
        } else {
            // One that was read from a file may be older.
            self.latest.first_ms = self.latest.first_ms.min(granted_ms);
            self.latest.grants += 1;
        }
    }

    #[inline(never)]
    fn begin(&mut self, first_ms: u64) {
        let new = Second { number: Self::number(first_ms), first_ms, grants: 1 };
        if self.latest.grants == 0 {
            // A grant that was read from a file may be older than others.
            if self.earlier.back().is_none_or(|last| last.number < new.number) {
                self.latest = new;
                return;
            }
        } else if new.number > self.latest.number {
            self.earlier.push_back(std::mem::replace(&mut self.latest, new));
            return;
        }
        match self.earlier.binary_search_by_key(&new.number, |second| second.number) {
            Ok(at) => {
                let second = &mut self.earlier[at];
                self.empty -= usize::from(second.grants == 0);
                second.first_ms = if second.grants == 0 { first_ms } else { second.first_ms.min(first_ms) };
                second.grants += 1;
            }
            Err(at) => self.earlier.insert(at, new),
        }
    }

    /// Counts the end of a grant that was made at a time in monotonic milliseconds.
    #[inline]
    pub(super) fn ended(&mut self, granted_ms: u64) {
        if Self::number(granted_ms) == self.latest.number {
            debug_assert!(self.latest.grants > 0, "what ends was granted");
            self.latest.grants = self.latest.grants.saturating_sub(1);
        } else {
            self.ended_earlier(granted_ms);
        }
    }

    #[inline(never)]
    fn ended_earlier(&mut self, granted_ms: u64) {
        let found = self.earlier.binary_search_by_key(&Self::number(granted_ms), |second| second.number);
        debug_assert!(found.is_ok(), "what ends was granted");
        let Ok(at) = found else { return };
        let second = &mut self.earlier[at];
        second.grants = second.grants.saturating_sub(1);
        self.empty += usize::from(second.grants == 0);
        while self.earlier.front().is_some_and(|second| second.grants == 0) {
            self.earlier.pop_front();
            self.empty -= 1;
        }
        if self.empty > EMPTY_MAX.max(self.earlier.len() / 2) {
            self.earlier.retain(|second| second.grants > 0);
            self.empty = 0;
        }
    }

    /// The time of the oldest grant, in monotonic milliseconds; up to a second too early where the first grant of its second has
    /// ended.
    pub(super) fn oldest_ms(&self) -> Option<u64> {
        let latest = (self.latest.grants > 0).then_some(&self.latest);
        self.earlier.front().or(latest).map(|second| second.first_ms)
    }

    /// Number of grants.
    #[cfg(test)]
    pub(super) fn count(&self) -> u64 {
        self.earlier.iter().map(|second| second.grants).sum::<u64>() + self.latest.grants
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::scaled;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_oldest_grant_is_known_to_the_second(
            steps in proptest::collection::vec((0u64..2_000, any::<bool>(), any::<prop::sample::Index>()), 1..scaled(400, 40)),
        ) {
            let (mut ages, mut held, mut now_ms) = (Ages::default(), Vec::new(), 0);
            for (ms, ends, which) in steps {
                now_ms += ms;
                if ends && !held.is_empty() {
                    let at: u64 = held.swap_remove(which.index(held.len()));
                    ages.ended(at);
                } else {
                    // Some are as old as those of a file.
                    let at = if ms % 7 == 0 { now_ms / 2 } else { now_ms };
                    held.push(at);
                    ages.granted(at);
                }
                prop_assert_eq!(ages.count(), held.len() as u64);
                let (known, oldest) = (ages.oldest_ms(), held.iter().min().copied());
                prop_assert_eq!(known.is_some(), oldest.is_some());
                if let (Some(known), Some(oldest)) = (known, oldest) {
                    prop_assert!(known <= oldest && oldest - known < 1024, "{} for {}", known, oldest);
                }
                prop_assert!(ages.earlier.len() <= 2 * held.len() + 2 * EMPTY_MAX + 1, "emptied seconds are removed");
            }
        }
    }
}
