//! Many episodes, one after the other, until the hours are full: what each property came to, and the first time it was violated.

use std::ops::ControlFlow;

use xxhash_rust::xxh3::Xxh3;

use crate::torture::check::{self, Property, Rules, Violation};
use crate::torture::history::History;
use crate::torture::plan::{Plan, Settings};
use crate::torture::sim::{self, Simulated};

/// A property, over all episodes.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Which.
    pub property: Property,
    /// Grants, releases, waits or writes that it was asked of; where there are none, it has no meaning for this algorithm.
    pub checked: u64,
    /// How often it did not hold.
    pub violations: u64,
    /// The first episode in which it did not, and the first time in that.
    pub first: Option<(u64, Violation)>,
}

/// What a run came to.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// In the order of [`Property::ALL`].
    pub verdicts: Vec<Verdict>,
    /// Episodes.
    pub episodes: u64,
    /// Lock operations: calls of `acquire`, `renew` and `release`. Each is one command or, where an algorithm polls, dozens.
    pub operations: u64,
    /// Commands that clients sent for them, and to the guarded resource.
    pub commands: u64,
    /// Simulated time of all clients together is this times their number.
    pub simulated_us: u64,
    /// Digest of all histories.
    pub digest: u64,
}

impl Outcome {
    fn new() -> Outcome {
        let verdict = |property| Verdict { property, checked: 0, violations: 0, first: None };
        let verdicts = Property::ALL.into_iter().map(verdict).collect();
        Outcome { verdicts, episodes: 0, operations: 0, commands: 0, simulated_us: 0, digest: 0 }
    }

    /// Properties that were violated.
    pub fn violated(&self) -> impl Iterator<Item = &Verdict> {
        self.verdicts.iter().filter(|verdict| verdict.violations > 0)
    }

    /// What became of a property.
    pub fn of(&self, property: Property) -> &Verdict {
        &self.verdicts[property as usize]
    }

    fn add(&mut self, episode: u64, history: &History, rules: &Rules) {
        self.operations += history.operations();
        self.commands += history.commands;
        self.simulated_us += history.events.last().map_or(0, |event| event.at_us);
        for (verdict, (_, finding)) in self.verdicts.iter_mut().zip(check::judge(history, rules)) {
            verdict.checked += finding.checked;
            verdict.violations += finding.violations.len() as u64;
            if verdict.first.is_none()
                && let Some(violation) = finding.violations.into_iter().next()
            {
                verdict.first = Some((episode, violation));
            }
        }
    }
}

/// What an algorithm's histories are judged by.
pub fn rules(settings: &Settings, algorithm: &Simulated) -> Rules {
    Rules::new(Some(algorithm.holders()), settings.lease_us)
}

/// Runs episodes, beginning with the number `from`, until `simulated_us` have passed in them, at least one. `seen` is told of each, and may
/// end it.
pub fn run(
    settings: &Settings,
    algorithm: &Simulated,
    from: u64,
    simulated_us: u64,
    mut seen: impl FnMut(u64, &History, &Outcome) -> ControlFlow<()>,
) -> Outcome {
    let rules = rules(settings, algorithm);
    let mut outcome = Outcome::new();
    let mut digest = Xxh3::new();
    for episode in from.. {
        let history = sim::run(&Plan::draw(settings, episode), algorithm);
        history.digest(&mut digest);
        outcome.add(episode, &history, &rules);
        outcome.episodes += 1;
        outcome.digest = digest.digest();
        if seen(episode, &history, &outcome).is_break() || outcome.simulated_us >= simulated_us {
            break;
        }
    }
    outcome
}

/// The verdicts on one history.
pub fn judged(history: &History, rules: &Rules) -> Outcome {
    let mut outcome = Outcome::new();
    outcome.add(0, history, rules);
    outcome.episodes = 1;
    outcome
}
