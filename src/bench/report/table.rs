//! The outcomes as a table, for people.

use std::fmt::Write as _;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::bench::plan::Plan;
use crate::bench::report::outcome::Outcome;
use crate::bench::report::statistics::quantile;

/// The headings of the columns.
#[rustfmt::skip]
const HEAD: [&str; 12] = [
    "workload", "server", "per s", "wait p50", "p99", "max", "commands", "CPU µs", "fairness", "hand-off p50", "late p50/max",
    "exclusion",
];

/// Renders a line on how the figures were measured, a row for each outcome, and notes on errors and refusals.
pub fn render(plan: &Plan, outcomes: &[Outcome]) -> String {
    let mut rows = vec![HEAD.map(str::to_owned).to_vec()];
    rows.extend(outcomes.iter().map(row));
    let widths: Vec<usize> =
        (0..HEAD.len()).map(|column| rows.iter().map(|row| width(&row[column])).max().unwrap_or(0)).collect();
    let mut out = format!("{}\n\n", method(plan));
    for (number, row) in rows.iter().enumerate() {
        if number > 1 && row[0] != rows[number - 1][0] || number == 1 {
            let line: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
            let _ = writeln!(out, "{}", line.join("  "));
        }
        let mut line = String::new();
        for (column, (cell, wide)) in row.iter().zip(&widths).enumerate() {
            let pad = " ".repeat(wide - width(cell));
            let text = matches!(column, 0 | 1) || column == HEAD.len() - 1;
            let _ = if text { write!(line, "{cell}{pad}  ") } else { write!(line, "{pad}{cell}  ") };
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
    for note in notes(outcomes) {
        let _ = writeln!(out, "\n{note}");
    }
    out
}

/// The same as JSON, for the page.
pub fn json(plan: &Plan, outcomes: &[Outcome]) -> Value {
    let rows: Vec<_> = outcomes.iter().map(row).collect();
    json!({ "method": method(plan), "head": HEAD, "rows": rows, "notes": notes(outcomes) })
}

/// How the figures were measured, in one line.
fn method(plan: &Plan) -> String {
    format!(
        "{} clients, {} {}, held for {} ms, lease of {} ms; {} {} of {} ms each, in turns",
        plan.clients,
        plan.locks,
        if plan.locks == 1 { "lock" } else { "locks" },
        plan.hold.as_millis(),
        plan.lease.as_millis(),
        plan.slices,
        if plan.slices == 1 { "slice" } else { "slices" },
        plan.slice.as_millis(),
    )
}

/// A line for each outcome with errors, and for each with refusals.
fn notes(outcomes: &[Outcome]) -> Vec<String> {
    let mut notes = Vec::new();
    for outcome in outcomes {
        let name = format!("{} on {}", outcome.workload, outcome.target);
        if let Some(error) = &outcome.error {
            notes.push(format!("{name}: {} errors, first: {error}", outcome.failed));
        }
        if outcome.refused > 0 {
            notes.push(format!("{name}: not granted in time {} times", outcome.refused));
        }
    }
    notes
}

fn width(cell: &str) -> usize {
    cell.chars().count()
}

/// The cells of an outcome, one for each of [`HEAD`].
fn row(outcome: &Outcome) -> Vec<String> {
    if let Some(reason) = &outcome.skipped {
        let mut row = vec![outcome.workload.clone(), outcome.target.clone()];
        row.resize(HEAD.len() - 1, "–".to_owned());
        row.push(format!("skipped: {reason}"));
        return row;
    }
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| "–".to_owned());
    let late = |part| quantile(&outcome.late_us, part).map(|us| time(us as f64));
    vec![
        outcome.workload.clone(),
        outcome.target.clone(),
        format!("{:.0}", outcome.per_second()),
        or_dash(percentile(&outcome.waits_us, 0.5)),
        or_dash(percentile(&outcome.waits_us, 0.99)),
        or_dash(percentile(&outcome.waits_us, 1.0)),
        or_dash(outcome.commands_each().map(|commands| format!("{commands:.1}"))),
        or_dash(outcome.cpu_us_each().map(|us| format!("{us:.1}"))),
        or_dash(outcome.fairness().map(|index| format!("{index:.3}"))),
        or_dash(percentile(&outcome.hand_offs_us, 0.5)),
        or_dash(late(0.5).zip(late(1.0)).map(|(half, most)| format!("{half}/{most}"))),
        match outcome.violations {
            None => "–".to_owned(),
            Some(_) if outcome.done == 0 => "never granted".to_owned(),
            Some(_) if !outcome.is_broken() => "held".to_owned(),
            Some(violations) => format!("BROKEN {} times, {} counts lost", violations.overlaps, violations.lost_counts),
        },
    ]
}

fn percentile(times: &Histogram<u64>, part: f64) -> Option<String> {
    (!times.is_empty()).then(|| time(times.value_at_quantile(part) as f64))
}

/// Microseconds in a unit that suits them.
pub fn time(us: f64) -> String {
    match us {
        us if us.abs() < 1000.0 => format!("{us:.0} µs"),
        us if us.abs() < 10_000.0 => format!("{:.2} ms", us / 1000.0),
        us if us.abs() < 1_000_000.0 => format!("{:.0} ms", us / 1000.0),
        us => format!("{:.1} s", us / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        let texts = [7.0, 999.0, 1234.0, 12_345.0, 1_500_000.0, -300.0].map(time);
        assert_eq!(texts, ["7 µs", "999 µs", "1.23 ms", "12 ms", "1.5 s", "-300 µs"]);
    }
}
