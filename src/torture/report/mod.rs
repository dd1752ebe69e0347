//! The report on one algorithm, and its forms for people and for programs.
//!
//! - [`text`] renders it for a terminal, [`json`] for programs and for the page, which draws a [`timeline`] for each violation.

pub mod json;
pub mod text;
pub mod timeline;

use std::fmt::Write;
use std::time::Duration;

use crate::torture::check::Property;
use crate::torture::live::nodes::Toll;
use crate::torture::plan::{Fault, Settings};
use crate::torture::run::Outcome;
use crate::torture::shrink::Counterexample;

/// The report on one algorithm.
#[derive(Default)]
pub struct Report {
    /// The label of the [`Subject`](crate::torture::subject::Subject).
    pub label: String,
    /// A one-line summary of the algorithm.
    pub summary: String,
    /// The settings of the run.
    pub settings: Settings,
    /// The outcome of the run.
    pub outcome: Outcome,
    /// The shortest schedule that was found for each violated property.
    pub counterexamples: Vec<Counterexample>,
    /// The known violations, with the first episode of each if it is known. `None` if the algorithm has no known verdicts.
    pub known: Option<Vec<(Property, Option<u64>)>>,
    /// Whether the run has the settings of the known verdicts, so that the same episodes show the same violations.
    pub comparable: bool,
    /// Real time that the run took.
    pub elapsed: Duration,
    /// User CPU time that the run took. 0 for a live run, which mostly waits.
    pub user_cpu: Duration,
    /// The servers of a live run.
    pub live: Vec<String>,
    /// For each server that was given by its URL: the source of the order in which it granted locks.
    pub order_sources: Vec<String>,
    /// What a live run did to the nodes of a replicated service.
    pub toll: Option<Toll>,
}

impl Report {
    /// Whether the run failed: it violated a property, or, with `expect_known`, its violations differ from the known ones.
    pub fn failed(&self, expect_known: bool) -> bool {
        if self.toll.as_ref().is_some_and(Toll::failed) {
            return true;
        }
        match expect_known {
            false => self.outcome.violated().next().is_some(),
            true => !self.unexpected().is_empty() || !self.missing().is_empty(),
        }
    }

    fn knows(&self, property: Property) -> bool {
        self.known.iter().flatten().any(|(known, _)| *known == property)
    }

    /// The violated properties that are not known to be violated.
    pub fn unexpected(&self) -> Vec<Property> {
        self.outcome.violated().map(|verdict| verdict.property).filter(|property| !self.knows(*property)).collect()
    }

    /// The properties that are known to be violated and were not, although the run was long enough. A run with other settings
    /// than those of the known verdicts counts only if it showed no violation at all.
    pub fn missing(&self) -> Vec<Property> {
        let unseen = |property: &Property| self.outcome.of(*property).violations == 0;
        let known = self.known.iter().flatten().filter(|(property, _)| unseen(property));
        let due = |episode: &Option<u64>| self.comparable && episode.is_some_and(|episode| episode < self.outcome.episodes);
        let none_seen = self.outcome.violated().next().is_none();
        let expected = |episode: &Option<u64>| due(episode) || (none_seen && !(self.comparable && episode.is_some()));
        known.filter(|(_, episode)| expected(episode)).map(|(property, _)| *property).collect()
    }

    /// The command that runs an episode again.
    pub fn command(&self, episode: u64) -> String {
        let settings = &self.settings;
        let usual = Settings::default();
        let subject = crate::torture::subject::Subject::from_label(&self.label);
        let mut command = format!(
            "portcullis torture --algorithm {} --faults {}",
            subject.algorithm,
            Fault::format_list(&self.settings.faults)
        );
        let _ = write!(command, " --seed {}", settings.seed);
        let mut differs = |name: &str, value: u64, usual: u64| {
            if value != usual {
                let _ = write!(command, " --{name} {value}");
            }
        };
        differs("clients", u64::from(settings.clients), u64::from(usual.clients));
        differs("locks", u64::from(settings.locks), u64::from(usual.locks));
        differs("servers", u64::from(settings.servers), u64::from(subject.servers()));
        differs("lease-ms", settings.lease_us / 1000, usual.lease_us / 1000);
        differs("episode-s", settings.episode_us / 1_000_000, usual.episode_us / 1_000_000);
        differs("restart-delay-ms", settings.restart_delay_us / 1000, 0);
        if !settings.fencing {
            command.push_str(" --no-fencing");
        }
        if settings.durable.is_some() {
            command.push_str(" --durable");
        }
        if let Some(replicas) = settings.replicas {
            let _ = write!(command, " --replicas {}", replicas.nodes);
            let planted = replicas.planted.name();
            if !planted.is_empty() {
                let _ = write!(command, " --planted {planted}");
            }
        }
        let _ = write!(command, " --episode {episode}");
        command
    }
}
