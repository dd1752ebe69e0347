//! All algorithms under each fault alone, under each pair of them and under all together, and the guide's table of what came of it.

use std::fmt::Write;
use std::ops::ControlFlow;

use crate::recipes::{self, Live};
use crate::torture::check::Property;
use crate::torture::known::Known;
use crate::torture::plan::{Fault, Settings};
use crate::torture::run;
use crate::torture::subject::Subject;

/// Simulated time of each entry for at most one fault, unless told otherwise: enough that what happens once in some thousand operations is seen.
pub const ENTRY_US: u64 = 10 * HOUR_US;
/// Of those for several, of which there are many.
pub const COMBINED_US: u64 = HOUR_US;

const HOUR_US: u64 = 3_600_000_000;

/// The faults of the entries of one algorithm: none, each alone, each pair, all.
pub fn columns() -> Vec<Vec<Fault>> {
    let mut columns = vec![Vec::new()];
    columns.extend(Fault::ALL.map(|fault| vec![fault]));
    for (at, one) in Fault::ALL.into_iter().enumerate() {
        columns.extend(Fault::ALL[at + 1..].iter().map(|other| vec![one, *other]));
    }
    columns.push(Fault::ALL.to_vec());
    columns
}

/// What each entry of the table is about.
pub fn entries() -> Vec<(Subject, Vec<Fault>)> {
    let of = |subject: Subject| columns().into_iter().map(move |faults| (subject.clone(), faults));
    Subject::all().into_iter().flat_map(of).collect()
}

/// How long an entry is run.
pub fn length_us(faults: &[Fault]) -> u64 {
    if faults.len() > 1 { COMBINED_US } else { ENTRY_US }
}

/// Runs one entry for so long; `None` where there is no such algorithm.
pub fn entry(subject: &Subject, faults: &[Fault], simulated_us: u64) -> Option<Known> {
    let algorithm = subject.simulated()?;
    let settings = subject.settings(&Settings { faults: faults.to_vec(), ..Settings::default() });
    let outcome = run::run(&settings, &algorithm, 0, simulated_us, |_, _, _| ControlFlow::Continue(()));
    let violated = outcome.violated().filter_map(|verdict| Some((verdict.property, verdict.first.as_ref()?.0))).collect();
    Some(Known { label: subject.label(), faults: faults.to_vec(), violated })
}

/// Runs one episode of an entry, and gives what is violated in it.
#[cfg(any(test, feature = "internals"))]
pub fn episode(subject: &Subject, faults: &[Fault], episode: u64) -> Option<Vec<Property>> {
    let algorithm = subject.simulated()?;
    let settings = subject.settings(&Settings { faults: faults.to_vec(), ..Settings::default() });
    let outcome = run::run(&settings, &algorithm, episode, 0, |_, _, _| ControlFlow::Continue(()));
    Some(outcome.violated().map(|verdict| verdict.property).collect())
}

fn faults_of(entry: &Known) -> String {
    let mut shown: Vec<&str> = Vec::new();
    for (property, _) in &entry.violated {
        // Which is the same but for the time between a grant and the work.
        let implied = *property == Property::Sections && entry.violated.iter().any(|(other, _)| *other == Property::Exclusion);
        if *property != Property::Fairness && !implied {
            shown.push(property.name());
        }
    }
    if shown.is_empty() { "✓".to_owned() } else { shown.join(", ") }
}

/// The table, in Markdown.
pub fn markdown(known: &[Known]) -> String {
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

/// The lines of `verdicts.txt`.
pub fn lines(known: &[Known]) -> String {
    known.iter().map(Known::line).collect()
}
