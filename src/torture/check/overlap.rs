//! Never more holders at once than permitted: grants by the servers' order, critical sections, permits.

use crate::torture::check::{Acquisition, Acquisitions, Finding, Property, Violation};
use crate::torture::history::{Op, Seconds};

/// Finds each span that starts while `most` others last. Returns its start, with the numbers of the others and its own.
fn overlaps(mut spans: Vec<(u64, u64, Op)>, most: u32) -> Vec<(u64, Vec<Op>)> {
    spans.sort_unstable();
    let mut found = Vec::new();
    let mut open: Vec<(u64, Op)> = Vec::new();
    for (start_us, end_us, op) in spans {
        open.retain(|(end_us, _)| *end_us > start_us);
        if open.len() >= most as usize {
            found.push((start_us, open.iter().map(|(_, other)| *other).chain([op]).collect()));
        }
        open.push((end_us, op));
    }
    found
}

fn check(
    acquisitions: &Acquisitions,
    property: Property,
    most: u32,
    span: impl Fn(&Acquisition) -> Option<(u64, u64)>,
    message: impl Fn(&[Op], u64) -> String,
) -> Finding {
    let mut finding = Finding::default();
    for of_lock in acquisitions.by_lock() {
        let spans: Vec<_> =
            of_lock.iter().filter_map(|acquisition| span(acquisition).map(|(from, to)| (from, to, acquisition.op))).collect();
        finding.checked += spans.len() as u64;
        for (at_us, ops) in overlaps(spans, most) {
            let message = message(&ops, at_us);
            finding.violations.push(Violation { property, at_us, ops, message });
        }
    }
    finding
}

fn names(ops: &[Op]) -> String {
    ops.iter().map(|op| format!("#{op}")).collect::<Vec<_>>().join(", ")
}

/// Checks the certain spans of grants.
pub(super) fn grants(acquisitions: &Acquisitions, property: Property, most: u32) -> Finding {
    check(acquisitions, property, most, Acquisition::certain_span, |ops, at_us| {
        format!("{} all hold it at {} s; at most {most} may", names(ops), Seconds(at_us))
    })
}

/// Checks critical sections, in true time.
pub(super) fn sections(acquisitions: &Acquisitions, most: u32) -> Finding {
    let span = |acquisition: &Acquisition| {
        let entered_us = acquisition.entered_us?;
        Some((entered_us, acquisition.exited_us.or(acquisition.crashed_us).unwrap_or(acquisitions.end_us)))
    };
    check(acquisitions, Property::Sections, most, span, |ops, at_us| {
        format!("{} are all in their critical sections at {} s; at most {most} may be", names(ops), Seconds(at_us))
    })
}
