//! Runs all algorithms under each fault alone, each pair of faults and all faults together; and makes the guide's table of the
//! verdicts.

use std::fmt::Write;
use std::ops::ControlFlow;

use crate::recipes::{self, Live};
use crate::torture::check::Property;
use crate::torture::known::KnownVerdict;
use crate::torture::plan::{Fault, Settings};
use crate::torture::run;
use crate::torture::subject::Subject;

/// Default simulated time of an entry with at most one fault: enough to see events that occur once in some thousand operations.
pub const ENTRY_US: u64 = 10 * HOUR_US;
/// Default simulated time of an entry with several faults, of which there are many.
pub const COMBINED_US: u64 = HOUR_US;

const HOUR_US: u64 = 3_600_000_000;

/// The sets of faults of an algorithm's entries: none, each alone, each pair, all.
pub fn fault_sets() -> Vec<Vec<Fault>> {
    let mut sets = vec![Vec::new()];
    sets.extend(Fault::ALL.map(|fault| vec![fault]));
    for (at, one) in Fault::ALL.into_iter().enumerate() {
        sets.extend(Fault::ALL[at + 1..].iter().map(|other| vec![one, *other]));
    }
    sets.push(Fault::ALL.to_vec());
    sets
}

/// As [`fault_sets`], of an algorithm's entries with durable servers: none, each alone, both that servers have, all.
pub fn durable_fault_sets() -> Vec<Vec<Fault>> {
    let mut sets = vec![Vec::new()];
    sets.extend(Fault::DURABLE.map(|fault| vec![fault]));
    sets.push(vec![Fault::Restart, Fault::PowerLoss]);
    sets.push(Fault::DURABLE.to_vec());
    sets
}

/// The subject and the faults of each entry.
pub fn entries() -> Vec<(Subject, Vec<Fault>)> {
    let of = |subject: Subject| {
        let sets = if subject.durable { durable_fault_sets() } else { fault_sets() };
        sets.into_iter().map(move |faults| (subject.clone(), faults))
    };
    Subject::all().into_iter().chain(Subject::all_durable()).flat_map(of).collect()
}

/// The default simulated time of an entry. What clients and the network do to durable servers is much the same as to others.
pub fn length_us(subject: &Subject, faults: &[Fault]) -> u64 {
    let of_servers = |fault: &Fault| matches!(fault, Fault::Restart | Fault::PowerLoss);
    let combined = if subject.durable { !faults.iter().any(of_servers) || faults.len() > 2 } else { faults.len() > 1 };
    if combined { COMBINED_US } else { ENTRY_US }
}

/// Runs an entry for a simulated time. `None` if there is no such algorithm.
pub fn run_entry(subject: &Subject, faults: &[Fault], simulated_us: u64) -> Option<KnownVerdict> {
    let algorithm = subject.sim_algorithm()?;
    let settings = subject.settings(&Settings { faults: faults.to_vec(), ..Settings::default() });
    let outcome = run::run(&settings, &algorithm, 0, simulated_us, |_, _, _| ControlFlow::Continue(()));
    let violated = outcome.violated().filter_map(|verdict| Some((verdict.property, verdict.first()?.episode))).collect();
    Some(KnownVerdict { label: subject.label(), faults: faults.to_vec(), violated })
}

/// Runs one episode of an entry and returns the violated properties. `None` if there is no such algorithm.
#[cfg(any(test, feature = "internals"))]
pub fn run_episode(subject: &Subject, faults: &[Fault], episode: u64) -> Option<Vec<Property>> {
    let algorithm = subject.sim_algorithm()?;
    let settings = subject.settings(&Settings { faults: faults.to_vec(), ..Settings::default() });
    let outcome = run::run(&settings, &algorithm, episode, 0, |_, _, _| ControlFlow::Continue(()));
    Some(outcome.violated().map(|verdict| verdict.property).collect())
}

fn faults_of(entry: &KnownVerdict) -> String {
    let mut shown: Vec<&str> = Vec::new();
    for (property, _) in &entry.violated {
        // `exclusion` implies `sections`, except for the time between a grant and the critical section.
        let implied = *property == Property::Sections && entry.violated.iter().any(|(other, _)| *other == Property::Exclusion);
        if *property != Property::Fairness && !implied {
            shown.push(property.name());
        }
    }
    if shown.is_empty() { "✓".to_owned() } else { shown.join(", ") }
}

/// The table in Markdown.
pub fn markdown(known: &[KnownVerdict]) -> String {
    let mut out = String::from("| | algorithm | in order |");
    for fault in Fault::ALL {
        let _ = write!(out, " {fault} |");
    }
    out.push_str("\n| --- | --- | --- |");
    out.push_str(&" --- |".repeat(Fault::ALL.len()));
    out.push('\n');
    let facts: Vec<_> = recipes::all::<Live>().into_iter().map(|recipe| recipe.facts).collect();
    for subject in Subject::all() {
        let label = subject.label();
        let of = |faults: &[Fault]| known.iter().find(|entry| entry.label == label && entry.faults == faults);
        let number = facts.iter().find(|facts| facts.name == subject.algorithm).map_or(0, |facts| facts.number);
        let order =
            of(&[]).map_or("?", |entry| match entry.violated.iter().any(|(property, _)| *property == Property::Fairness) {
                true => "",
                false => "✓",
            });
        let _ = write!(out, "| {number} | `{label}` | {order} |");
        for faults in Fault::ALL.iter().map(std::slice::from_ref) {
            let _ = write!(out, " {} |", of(faults).map_or_else(|| "?".to_owned(), faults_of));
        }
        out.push('\n');
    }
    out
}

/// The table of durable servers in Markdown: what their own faults show, beside what they show of servers without files.
pub fn durable_markdown(known: &[KnownVerdict]) -> String {
    let mut out = String::from("| algorithm | restart, without files | restart | powerloss | restart, powerloss | all |\n");
    out.push_str(&format!("|{}\n", " --- |".repeat(6)));
    for subject in Subject::all_durable() {
        let of = |subject: &Subject, faults: &[Fault]| {
            let entry = known.iter().find(|entry| entry.label == subject.label() && entry.faults == faults);
            entry.map_or_else(|| "?".to_owned(), faults_of)
        };
        let plain = Subject { durable: false, ..subject.clone() };
        let _ = write!(out, "| `{}` | {} |", plain.label(), of(&plain, &[Fault::Restart]));
        for faults in [&[Fault::Restart][..], &[Fault::PowerLoss], &[Fault::Restart, Fault::PowerLoss], &Fault::DURABLE] {
            let _ = write!(out, " {} |", of(&subject, faults));
        }
        out.push('\n');
    }
    out
}

/// The contents of `verdicts.txt`.
pub fn verdict_lines(known: &[KnownVerdict]) -> String {
    known.iter().map(KnownVerdict::line).collect()
}
