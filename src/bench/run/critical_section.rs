//! A critical section that is independent of the lock that guards it, and that notices when too many holders are inside.

use std::iter::Sum;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The critical section of one lock.
#[derive(Debug)]
pub struct CriticalSection {
    holders: u32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    inside: u32,
    /// Incremented by each holder as a read and a later write, so that concurrent increments are lost.
    count: u64,
    entered: u64,
    overlaps: u64,
    /// When the last holder left, until the next one enters.
    left: Option<Instant>,
}

/// The stay of one holder in the critical section.
#[must_use = "a holder that enters has to leave"]
#[derive(Debug)]
pub struct Visit {
    /// The counter as it was on entry.
    count: u64,
    /// Time from the moment that the previous holder began its release to this entry. `None` if this holder requested the lock
    /// later than that.
    pub hand_off: Option<Duration>,
}

/// Violations of mutual exclusion that a critical section has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Violations {
    /// Entries while the maximum number of holders was inside.
    pub overlaps: u64,
    /// Increments that were lost because two holders counted at once. Always 0 where several holders may be inside.
    pub lost_counts: u64,
}

impl Sum for Violations {
    fn sum<I: Iterator<Item = Violations>>(all: I) -> Violations {
        all.fold(Violations::default(), |sum, one| Violations {
            overlaps: sum.overlaps + one.overlaps,
            lost_counts: sum.lost_counts + one.lost_counts,
        })
    }
}

impl CriticalSection {
    /// A critical section for at most `holders` holders at once.
    pub fn new(holders: u32) -> CriticalSection {
        CriticalSection { holders, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters as a holder of the lock, which it requested at `requested`.
    pub fn enter(&self, requested: Instant) -> Visit {
        let now = Instant::now();
        let mut state = self.state();
        state.overlaps += u64::from(state.inside >= self.holders);
        state.inside += 1;
        state.entered += 1;
        let left = state.left.take().filter(|left| *left > requested);
        Visit { count: state.count, hand_off: left.map(|left| now - left) }
    }

    /// Leaves, right before the holder releases the lock.
    pub fn leave(&self, visit: &Visit) {
        let mut state = self.state();
        state.count = visit.count + 1;
        state.inside -= 1;
        state.left = Some(Instant::now());
    }

    /// The violations so far. Exact only while no holder is inside.
    pub fn violations(&self) -> Violations {
        let state = self.state();
        let lost_counts = if self.holders == 1 { state.entered.saturating_sub(state.count) } else { 0 };
        Violations { overlaps: state.overlaps, lost_counts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_after_the_other_is_no_violation() {
        let section = CriticalSection::new(1);
        for _ in 0..3 {
            let visit = section.enter(Instant::now());
            assert_eq!(visit.hand_off, None);
            section.leave(&visit);
        }
        assert_eq!(section.violations(), Violations::default());
    }

    #[test]
    fn two_at_once_are_noticed_twice() {
        let section = CriticalSection::new(1);
        let (first, second) = (section.enter(Instant::now()), section.enter(Instant::now()));
        section.leave(&first);
        section.leave(&second);
        assert_eq!(section.violations(), Violations { overlaps: 1, lost_counts: 1 });
    }

    #[test]
    fn the_maximum_number_of_holders_is_no_violation() {
        let section = CriticalSection::new(2);
        let (first, second) = (section.enter(Instant::now()), section.enter(Instant::now()));
        assert_eq!(section.violations(), Violations::default());
        let third = section.enter(Instant::now());
        for visit in [&first, &second, &third] {
            section.leave(visit);
        }
        assert_eq!(section.violations(), Violations { overlaps: 1, lost_counts: 0 });
    }

    #[test]
    fn a_hand_off_is_timed_only_for_a_holder_that_waited() {
        let section = CriticalSection::new(1);
        let (first, requested) = (section.enter(Instant::now()), Instant::now());
        section.leave(&first);
        let second = section.enter(requested);
        assert!(second.hand_off.is_some());
        section.leave(&second);
        std::thread::sleep(Duration::from_micros(10));
        assert!(section.enter(Instant::now()).hand_off.is_none());
    }
}
