//! Faults ordered by tests: which requests they affect, and how.
//!
//! Rules are checked in the order in which they were added, and the first one that fires decides. Randomness comes from a seeded
//! sequence of its own: equal rules, seeds and requests give equal faults. The driver checks [`Faults::armed`], and nothing else
//! while no rule can fire.
//!
//! This file has the rules that are in force, and the delayed requests. Begin with `rules.rs` for what a rule is, and with
//! `execute.rs` for how the engine executes a request with its fault.

mod execute;
pub mod gates;
pub mod journal;
pub mod leaks;
pub mod restart;
pub mod rules;
pub mod test_mode;

use std::collections::BTreeMap;

use crate::base::arguments::Arguments;
use crate::base::ids::SessionId;
use crate::engine::faults::rules::{Fault, Rule};

/// Maximum number of rules.
pub const RULES_MAX: usize = 1000;

/// The rules, their random sequence, and delayed requests.
#[derive(Debug, Default)]
pub struct Faults {
    rules: Vec<Rule>,
    armed: bool,
    random: u64,
    /// Delayed requests, by the time of their execution (monotonic milliseconds) and a number.
    delayed: BTreeMap<(u64, u64), (SessionId, Arguments)>,
    last: u64,
    /// Number of last writes that a test wants kept.
    pub journal: u64,
}

impl Faults {
    /// Without rules, with the random sequence of a seed.
    pub fn new(seed: u64) -> Self {
        Faults { random: seed, ..Faults::default() }
    }

    /// Whether any rule can fire.
    #[inline]
    pub fn armed(&self) -> bool {
        self.armed
    }

    /// The rules, in order.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Adds a rule. A rule with the same name is replaced in its place. Returns false if there are too many rules.
    pub fn add(&mut self, rule: Rule) -> bool {
        match self.rules.iter().position(|known| known.name == rule.name) {
            Some(index) => self.rules[index] = rule,
            None if self.rules.len() >= RULES_MAX => return false,
            None => self.rules.push(rule),
        }
        self.update();
        true
    }

    /// Removes a rule. Returns false if no rule has that name.
    pub fn remove(&mut self, name: &[u8]) -> bool {
        let before = self.rules.len();
        self.rules.retain(|rule| rule.name != name);
        self.update();
        self.rules.len() < before
    }

    /// Removes all rules. Returns their number. Delayed requests stay delayed.
    pub fn clear(&mut self) -> usize {
        self.armed = false;
        std::mem::take(&mut self.rules).len()
    }

    /// The maximum number of writes that a rule may lose.
    pub fn loses(&self) -> u64 {
        let lost = self.rules.iter().map(|rule| if let Fault::Restart { lose, .. } = rule.fault { lose.unwrap_or(0) } else { 0 });
        lost.max().unwrap_or(0)
    }

    /// Restarts the random sequence.
    pub fn seed(&mut self, seed: u64) {
        self.random = seed;
    }

    fn update(&mut self) {
        self.armed = self.rules.iter().any(|rule| !rule.spent());
    }

    /// A random number from 0 (included) to 1 (excluded), by splitmix64.
    fn chance(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// The fault for a request, if any: for a command by its full name, from a client with this name and address.
    pub fn decide(&mut self, command: &[u8], client: &[u8], addr: &[u8]) -> Option<Fault> {
        for index in 0..self.rules.len() {
            let rule = &mut self.rules[index];
            if rule.spent() || !rule.is_for(command, client, addr) {
                continue;
            }
            rule.matched += 1;
            if rule.matched <= rule.after {
                continue;
            }
            let probability = rule.probability;
            if probability < 1.0 && self.chance() >= probability {
                continue;
            }
            let rule = &mut self.rules[index];
            rule.fired += 1;
            let fault = rule.fault.clone();
            self.update();
            return Some(fault);
        }
        None
    }

    /// The time of the first delayed request, in monotonic milliseconds; `u64::MAX` without one.
    #[inline]
    pub fn next_ms(&self) -> u64 {
        // Asked at every turn, and nearly always without delayed requests.
        if self.delayed.is_empty() {
            return u64::MAX;
        }
        self.delayed.first_key_value().map_or(u64::MAX, |(&(due_ms, _), _)| due_ms)
    }

    /// Whether a request of the session is delayed.
    pub fn delays(&self, id: SessionId) -> bool {
        self.delayed.values().any(|(session, _)| *session == id)
    }

    /// Drops all delayed requests.
    pub(super) fn forget_all(&mut self) {
        self.delayed.clear();
    }

    /// Drops a session's delayed requests.
    pub(super) fn forget(&mut self, id: SessionId) {
        if !self.delayed.is_empty() {
            self.delayed.retain(|_, (session, _)| *session != id);
        }
    }
}
