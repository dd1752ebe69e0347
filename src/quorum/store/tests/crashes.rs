//! A crash in every operation of many histories, and errors before it.

use super::history::{Plan, Violation, play};
use super::*;
use crate::persist::disk::simulated::Injected;

/// Number of histories, and the first violation that they found.
#[derive(Debug, Default)]
struct Tally {
    histories: u64,
    violation: Option<(Plan, Violation)>,
}

impl Tally {
    fn play(&mut self, plan: Plan) -> u64 {
        if self.violation.is_some() {
            return 0;
        }
        self.histories += 1;
        play(plan).unwrap_or_else(|violation| {
            self.violation = Some((plan, violation));
            0
        })
    }

    fn crash_everywhere(seeds: std::ops::Range<u64>, planted: Planted) -> Tally {
        let mut tally = Tally::default();
        for seed in seeds {
            let plan = Plan { seed, planted, ..Plan::default() };
            for at in 0..tally.play(plan) {
                tally.play(Plan { crash_at: Some(at), ..plan });
            }
        }
        tally
    }

    /// Two errors, of any kind, and then a crash.
    fn fail_anywhere(seeds: std::ops::Range<u64>, planted: Planted) -> Tally {
        let mut tally = Tally::default();
        for seed in seeds {
            let plan = Plan { seed, planted, ..Plan::default() };
            for at in 0..tally.play(plan) {
                let (how, distance) = match at % 3 {
                    0 => (Injected::Full, 1),
                    1 => (Injected::Failed, 1),
                    _ => (Injected::Failed, 2 + (seed + at) % 30),
                };
                let second = if at % 2 == 0 { Injected::Full } else { Injected::Failed };
                let fails = [Some((at, how)), Some((at + distance, second))];
                let crash_at = Some(at + distance + 1 + (seed * 7 + at * 3) % 40);
                tally.play(Plan { fails, crash_at, ..plan });
                tally.play(Plan { fails, ..plan });
            }
        }
        tally
    }

    fn assert_none(&self) {
        println!("{} histories", self.histories);
        assert!(self.violation.is_none(), "after {} histories: {:?}", self.histories, self.violation);
    }
}

#[test]
fn a_crash_at_any_operation_loses_nothing_that_was_acknowledged() {
    Tally::crash_everywhere(seeds(2), Planted::Nothing).assert_none();
}

#[test]
fn errors_at_any_operation_and_a_later_crash_lose_nothing_that_was_acknowledged() {
    Tally::fail_anywhere(seeds(1), Planted::Nothing).assert_none();
}

#[test]
fn planted_faults_are_found() {
    for planted in [
        Planted::AckBeforeSync,
        Planted::VoteNotSynced,
        Planted::NoChecksum,
        Planted::NoFolderSync,
        Planted::TruncationNotWritten,
        Planted::TailNotCopied,
    ] {
        // Only a sync that fails leaves a tail that the cache shows and the disk does not have.
        let tally = match planted {
            Planted::TailNotCopied => Tally::fail_anywhere(0..6, planted),
            _ => Tally::crash_everywhere(0..6, planted),
        };
        println!("{planted:?}: after {} histories, {:?}", tally.histories, tally.violation);
        assert!(tally.violation.is_some(), "{planted:?} is not found in {} histories", tally.histories);
    }
}
