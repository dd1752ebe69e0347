//! The critical section, which knows nothing of the lock that is to guard it, and notices when too many are inside.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What one lock guards.
#[derive(Debug)]
pub struct Section {
    holders: u32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    inside: u32,
    /// Counted up by whoever is inside, in a way that loses counts where two are.
    count: u64,
    entered: u64,
    violations: u64,
    /// When the last one left, until the next one enters.
    left: Option<Instant>,
}

/// Being inside.
#[must_use = "whoever is inside has to leave"]
#[derive(Debug)]
pub struct Inside {
    seen: u64,
    /// How long after the one before had begun to give it back; for whoever had asked by then.
    pub handed_on: Option<Duration>,
}

/// What a section has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Times that somebody entered while as many were inside as may be.
    pub violations: u64,
    /// Counts that were lost, as two counted at once. Nothing where several may be inside.
    pub lost: u64,
}

impl Section {
    /// One that so many may be in at once.
    pub fn new(holders: u32) -> Section {
        Section { holders, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody who asked for the lock at that moment has it.
    pub fn enter(&self, asked: Instant) -> Inside {
        let now = Instant::now();
        let mut state = self.state();
        state.violations += u64::from(state.inside >= self.holders);
        state.inside += 1;
        state.entered += 1;
        let left = state.left.take().filter(|left| *left > asked);
        Inside { seen: state.count, handed_on: left.map(|left| now - left) }
    }

    /// Somebody is about to give it back.
    pub fn leave(&self, inside: &Inside) {
        let mut state = self.state();
        state.count = inside.seen + 1;
        state.inside -= 1;
        state.left = Some(Instant::now());
    }

    /// What it has seen so far. To be asked when nobody is inside.
    pub fn seen(&self) -> Seen {
        let state = self.state();
        let lost = if self.holders == 1 { state.entered.saturating_sub(state.count) } else { 0 };
        Seen { violations: state.violations, lost }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_after_the_other_is_no_violation() {
        let section = Section::new(1);
        for _ in 0..3 {
            let inside = section.enter(Instant::now());
            assert_eq!(inside.handed_on, None);
            section.leave(&inside);
        }
        assert_eq!(section.seen(), Seen::default());
    }

    #[test]
    fn two_at_once_are_noticed_twice() {
        let section = Section::new(1);
        let (first, second) = (section.enter(Instant::now()), section.enter(Instant::now()));
        section.leave(&first);
        section.leave(&second);
        assert_eq!(section.seen(), Seen { violations: 1, lost: 1 });
    }

    #[test]
    fn as_many_as_may_are_none_too_many() {
        let section = Section::new(2);
        let (first, second) = (section.enter(Instant::now()), section.enter(Instant::now()));
        assert_eq!(section.seen(), Seen::default());
        let third = section.enter(Instant::now());
        for inside in [&first, &second, &third] {
            section.leave(inside);
        }
        assert_eq!(section.seen(), Seen { violations: 1, lost: 0 });
    }

    #[test]
    fn the_gap_counts_for_whoever_waited() {
        let section = Section::new(1);
        let (first, waiting) = (section.enter(Instant::now()), Instant::now());
        section.leave(&first);
        let second = section.enter(waiting);
        assert!(second.handed_on.is_some());
        section.leave(&second);
        std::thread::sleep(Duration::from_micros(10));
        assert!(section.enter(Instant::now()).handed_on.is_none());
    }
}
