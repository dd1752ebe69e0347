//! A run: episode after episode, until the simulated time is over. Collects a verdict on each property and its first violation.

use std::ops::ControlFlow;

use xxhash_rust::xxh3::Xxh3;

use crate::torture::check::{self, Property, Rules, Violation};
use crate::torture::history::History;
use crate::torture::plan::{Plan, Settings};
use crate::torture::sim::{self, SimAlgorithm};

/// The verdict on a property over all episodes.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The property.
    pub property: Property,
    /// Number of grants, releases, waits or writes that were checked. 0 if the property does not apply to the algorithm.
    pub checked: u64,
    /// Number of violations.
    pub violations: u64,
    /// The first violations, at most [`FOUND_MAX`].
    pub found: Vec<Found>,
}

/// Maximum number of violations of a property that are kept with what they say.
pub const FOUND_MAX: usize = 500;

/// Maximum number of violations of a property that are kept with their events.
pub const DRAWN_MAX: usize = 20;

/// A violation that a run found.
#[derive(Clone, Debug)]
pub struct Found {
    /// The number of its episode.
    pub episode: u64,
    /// The violation.
    pub violation: Violation,
    /// The events of its acquisitions, of the first [`DRAWN_MAX`] violations.
    pub history: Option<History>,
}

impl Verdict {
    /// The first violation.
    pub fn first(&self) -> Option<&Found> {
        self.found.first()
    }
}

/// The outcome of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The verdicts, in the order of [`Property::ALL`].
    pub verdicts: Vec<Verdict>,
    /// Number of episodes.
    pub episodes: u64,
    /// Number of lock operations: calls of `acquire`, `renew` and `release`. Each is one command, or dozens if the algorithm
    /// polls.
    pub operations: u64,
    /// Number of commands that clients sent for these operations and to the guarded resource.
    pub commands: u64,
    /// Simulated time of the episodes. All clients run for this time.
    pub simulated_us: u64,
    /// A digest of all histories.
    pub digest: u64,
}

impl Default for Outcome {
    fn default() -> Outcome {
        let verdict = |property| Verdict { property, checked: 0, violations: 0, found: Vec::new() };
        let verdicts = Property::ALL.into_iter().map(verdict).collect();
        Outcome { verdicts, episodes: 0, operations: 0, commands: 0, simulated_us: 0, digest: 0 }
    }
}

impl Outcome {
    /// The verdicts on properties that were violated.
    pub fn violated(&self) -> impl Iterator<Item = &Verdict> {
        self.verdicts.iter().filter(|verdict| verdict.violations > 0)
    }

    /// The verdict on a property.
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
            let left = FOUND_MAX - verdict.found.len();
            for violation in finding.violations.into_iter().take(left) {
                let drawn = verdict.found.len() < DRAWN_MAX;
                let history = drawn.then(|| history.concerning(&violation.ops));
                verdict.found.push(Found { episode, violation, history });
            }
        }
    }
}

/// The rules by which an algorithm's histories are judged.
pub fn rules(settings: &Settings, algorithm: &SimAlgorithm) -> Rules {
    Rules::new(Some(algorithm.holders()), settings.lease_us)
}

/// Runs episodes from number `from` on, until `simulated_us` have passed in them, and at least one. `seen` is called after each
/// episode and may end the run.
pub fn run(
    settings: &Settings,
    algorithm: &SimAlgorithm,
    from: u64,
    simulated_us: u64,
    mut seen: impl FnMut(u64, &History, &Outcome) -> ControlFlow<()>,
) -> Outcome {
    let rules = rules(settings, algorithm);
    let mut outcome = Outcome::default();
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

/// The outcome of a run that consists of one history.
pub fn judge_history(history: &History, rules: &Rules) -> Outcome {
    let mut outcome = Outcome::default();
    outcome.add(0, history, rules);
    outcome.episodes = 1;
    outcome
}
