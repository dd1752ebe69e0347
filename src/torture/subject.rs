//! What is tortured: an algorithm by its name, and how it is run.

use std::sync::Arc;

use crate::recipes::{self, World};
use crate::torture::plan::Settings;
use crate::torture::sim::Simulated;

/// An algorithm and the surroundings that belong to it. Its label is the algorithm's name and, behind plus signs, what is different.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The algorithm's name.
    pub algorithm: String,
    /// Servers that lost something start again only after a lease.
    pub delayed: bool,
    /// Whether the guarded resource looks at fencing tokens.
    pub fenced: bool,
}

impl Subject {
    /// As it is usually run.
    pub fn new(algorithm: &str) -> Subject {
        Subject { algorithm: algorithm.to_owned(), delayed: false, fenced: true }
    }

    /// Reads a label.
    pub fn labelled(label: &str) -> Subject {
        let mut subject = Subject::new(label);
        while let Some((rest, suffix)) = subject.algorithm.rsplit_once('+') {
            match suffix {
                "delayed" => subject.delayed = true,
                "unfenced" => subject.fenced = false,
                // It belongs to the algorithm's name.
                _ => break,
            }
            subject.algorithm = rest.to_owned();
        }
        subject
    }

    /// Its label.
    pub fn label(&self) -> String {
        let delayed = if self.delayed { "+delayed" } else { "" };
        let unfenced = if self.fenced { "" } else { "+unfenced" };
        format!("{}{delayed}{unfenced}", self.algorithm)
    }

    /// All that the table shows: every algorithm, and those that are worth a second look.
    pub fn all() -> Vec<Subject> {
        let mut all = Vec::new();
        for recipe in recipes::all::<recipes::Live>() {
            let facts = recipe.facts;
            if recipe.make.is_none() || facts.number == 0 {
                continue;
            }
            let subject = Subject::new(facts.name);
            all.push(subject.clone());
            if several(facts.name) {
                all.push(Subject { delayed: true, ..subject.clone() });
            }
            if facts.fenced && facts.native {
                all.push(Subject { fenced: false, ..subject });
            }
        }
        all
    }

    /// How many servers it is usually run with.
    pub fn servers(&self) -> u32 {
        if several(&self.algorithm) { 3 } else { 1 }
    }

    /// Settings of a run by which it is usually judged.
    pub fn settings(&self, settings: &Settings) -> Settings {
        Settings {
            servers: self.servers(),
            fencing: self.fenced,
            restart_delay_us: if self.delayed { settings.lease_us } else { 0 },
            ..settings.clone()
        }
    }

    /// The algorithm, for the simulation; `None` where there is none of that name.
    pub fn simulated(&self) -> Option<Simulated> {
        self.make()
    }

    /// The algorithm, for any world.
    pub fn make<W: World>(&self) -> Option<Arc<dyn recipes::Algorithm<W>>> {
        recipes::by_name(&self.algorithm).map(Arc::from)
    }
}

/// Whether it is made for several servers.
fn several(algorithm: &str) -> bool {
    algorithm == "redlock"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_read_back() {
        for label in ["native+unfenced", "redlock+delayed", "set-nx-px", "set-nx-px+watchdog", "a+watchdog+delayed+unfenced"] {
            assert_eq!(Subject::labelled(label).label(), label);
        }
        assert!(Subject::labelled("redlock+delayed").simulated().is_some());
        assert!(Subject::labelled("redlock+daily").simulated().is_none());
    }
}
