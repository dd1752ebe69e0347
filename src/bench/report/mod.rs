//! The outcomes of a measurement, and the forms in which people and programs get them.
//!
//! - [`outcome`]: the figures of one workload on one target. [`table`], [`json`] and [`chart`] render a list of them.
//! - [`comparison`]: tables of servers side by side with goals, for `cargo bench --bench compare`.
//! - [`statistics`]: medians, quantiles and fairness.

pub mod chart;
#[cfg(any(test, feature = "internals"))]
pub mod comparison;
pub mod json;
pub mod outcome;
pub mod statistics;
pub mod table;

use std::io::Write;
use std::path::Path;

use crate::bench::plan::Plan;
use crate::bench::report::outcome::Outcome;

/// Prints the table of the outcomes and writes the files that the plan names.
///
/// # Errors
/// The reason why a file cannot be written or the chart cannot be drawn, in words for people.
pub fn publish(plan: &Plan, outcomes: &[Outcome]) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    // The files are written even if the reader of the table has closed the pipe.
    let _ = write!(out, "{}", table::render(plan, outcomes));
    if let Some(path) = &plan.json {
        write_file(path, &json::render(plan, outcomes))?;
    }
    if let Some(path) = &plan.chart {
        write_file(path, &chart::render(plan, outcomes, path)?)?;
    }
    Ok(())
}

fn write_file(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}
