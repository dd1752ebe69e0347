//! A subject of a test: an algorithm by its name, with its environment.

use std::sync::Arc;

use crate::recipes::{self, World};
use crate::torture::plan::{Replicas, Servers, Settings};
use crate::torture::sim::SimAlgorithm;
use crate::torture::sim::disk::Planted;
use crate::torture::sim::replica::Flaw;

/// An algorithm and its environment. The label is the algorithm's name, followed by a plus sign and a word for each difference
/// from the default environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The algorithm's name.
    pub algorithm: String,
    /// Whether servers that lost data start again only after a lease.
    pub delayed: bool,
    /// Whether the guarded resource checks fencing tokens.
    pub fenced: bool,
    /// Whether the servers are durable.
    pub durable: bool,
    /// Number of nodes of the replicated service, or 0.
    pub replicas: u32,
}

impl Subject {
    /// An algorithm in the default environment.
    pub fn new(algorithm: &str) -> Subject {
        Subject { algorithm: algorithm.to_owned(), delayed: false, fenced: true, durable: false, replicas: 0 }
    }

    /// Parses a label.
    pub fn from_label(label: &str) -> Subject {
        let mut subject = Subject::new(label);
        while let Some((rest, suffix)) = subject.algorithm.rsplit_once('+') {
            match suffix {
                "delayed" => subject.delayed = true,
                "unfenced" => subject.fenced = false,
                "durable" => subject.durable = true,
                "replicas3" => subject.replicas = 3,
                "replicas5" => subject.replicas = 5,
                // The suffix is part of the algorithm's name.
                _ => break,
            }
            subject.algorithm = rest.to_owned();
        }
        subject
    }

    /// The label.
    pub fn label(&self) -> String {
        let delayed = if self.delayed { "+delayed" } else { "" };
        let unfenced = if self.fenced { "" } else { "+unfenced" };
        let durable = if self.durable { "+durable" } else { "" };
        let replicas = if self.replicas > 0 { format!("+replicas{}", self.replicas) } else { String::new() };
        format!("{}{delayed}{unfenced}{durable}{replicas}", self.algorithm)
    }

    /// What kind of servers there are.
    pub fn kind(&self) -> Servers {
        Servers::of(self.durable, self.replicas > 0)
    }

    /// All subjects of the second table: those of the first one, on durable servers.
    pub fn all_durable() -> Vec<Subject> {
        let durable = |subject: Subject| Subject { durable: true, ..subject };
        Subject::all().into_iter().filter(|subject| !subject.delayed).map(durable).collect()
    }

    /// All subjects of the first table: every algorithm, and some also in another environment.
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

    /// Whether it makes sense: an algorithm for several independent servers has no use for a replicated one.
    pub fn is_possible(&self) -> bool {
        self.replicas == 0 || !several(&self.algorithm)
    }

    /// The default number of servers.
    pub fn servers(&self) -> u32 {
        if several(&self.algorithm) { 3 } else { 1 }
    }

    /// The settings of a run of this subject, based on `settings`.
    pub fn settings(&self, settings: &Settings) -> Settings {
        Settings {
            servers: self.servers(),
            fencing: self.fenced,
            durable: if self.durable { settings.durable.or(Some(Planted::Nothing)) } else { None },
            replicas: (self.replicas > 0).then(|| {
                let planted = settings.replicas.map_or(Flaw::Nothing, |replicas| replicas.planted);
                Replicas { nodes: self.replicas, planted }
            }),
            restart_delay_us: if self.delayed { settings.lease_us } else { 0 },
            ..settings.clone()
        }
    }

    /// The algorithm for the simulation. `None` if there is no algorithm of that name.
    pub fn sim_algorithm(&self) -> Option<SimAlgorithm> {
        self.make()
    }

    /// The algorithm for any world. `None` if there is no algorithm of that name.
    pub fn make<W: World>(&self) -> Option<Arc<dyn recipes::Algorithm<W>>> {
        recipes::by_name(&self.algorithm).map(Arc::from)
    }
}

/// Whether an algorithm needs several servers.
fn several(algorithm: &str) -> bool {
    algorithm == "redlock"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_read_back() {
        for label in [
            "native+unfenced",
            "redlock+delayed",
            "set-nx-px",
            "set-nx-px+watchdog",
            "a+watchdog+delayed+unfenced",
            "native+unfenced+durable",
            "native+unfenced+replicas3",
            "set-nx-px+replicas5",
        ] {
            assert_eq!(Subject::from_label(label).label(), label);
        }
        assert!(Subject::from_label("redlock+delayed").sim_algorithm().is_some());
        assert!(Subject::from_label("redlock+daily").sim_algorithm().is_none());
    }
}
