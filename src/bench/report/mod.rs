//! The outcomes of a measurement, and the forms in which people and programs get them.
//!
//! - [`outcome`]: the figures of one workload on one target. [`table`], [`json`] and [`html`] render a list of them.
//! - [`measure`] and [`scale`]: what the page draws, and how long its bars are; [`panel`]: the bars of one measure.
//! - [`page`] and [`run_facts`]: the frame of a page, and when, where and how a tool ran. `portcullis torture` shares them.
//! - [`comparison`]: tables of servers side by side with goals, for `cargo bench --bench compare`.
//! - [`statistics`]: medians, quantiles and fairness.

#[cfg(any(test, feature = "internals"))]
pub mod comparison;
pub mod html;
pub mod json;
pub mod measure;
pub mod outcome;
pub mod page;
pub mod panel;
pub mod run_facts;
pub mod scale;
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
    if let Some(path) = &plan.json {
        write_file(path, &json::render(plan, outcomes, facts))?;
    }
    if let Some(path) = &plan.html {
        write_file(path, &html::render(plan, outcomes, facts))?;
    }
    Ok(())
}
