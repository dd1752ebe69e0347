//! The outcomes of a measurement, and the forms in which people and programs get them.
//!
//! - [`outcome`]: the figures of one workload on one target. [`table`] and [`json`] render a list of them.
//! - [`page`] and [`run_facts`]: the page of a run, and when, where and how a tool ran. `portcullis torture` shares them.
//! - [`comparison`]: tables of servers side by side with goals, for `cargo bench --bench compare`.
//! - [`statistics`]: medians, quantiles and fairness.

#[cfg(any(test, feature = "internals"))]
pub mod comparison;
pub mod json;
pub mod outcome;
pub mod page;
pub mod run_facts;
pub mod statistics;
pub mod table;

use crate::bench::plan::Plan;
use crate::bench::report::outcome::Outcome;
use crate::bench::report::run_facts::RunFacts;
use crate::bench::{is_stdout, print, write_file};

/// Prints the table of the outcomes and writes the files that the plan names.
///
/// # Errors
/// The reason why a file cannot be written, in words for people.
pub fn publish(plan: &Plan, outcomes: &[Outcome], facts: &RunFacts) -> Result<(), String> {
    if !plan.json.as_deref().is_some_and(is_stdout) {
        // The files are written even if the reader of the table has closed the pipe.
        let _ = print(&table::render(plan, outcomes));
    }
    let mut document = json::document(plan, outcomes, facts);
    if let Some(path) = &plan.json {
        write_file(path, &format!("{document:#}\n"))?;
    }
    if let Some(path) = &plan.html {
        document["table"] = table::json(plan, outcomes);
        write_file(path, &page::render(&document))?;
    }
    Ok(())
}
