//! No more at once than may: grants by the servers' order, critical sections, permits.

use crate::torture::check::{Account, Accounts, Finding, Property, Violation};
use crate::torture::history::{Op, Seconds};

/// Whether more than `most` of what lasts from one time to another last at once: gives those that make it too many, each with the others.
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
    accounts: &Accounts,
    property: Property,
    most: u32,
    span: impl Fn(&Account) -> Option<(u64, u64)>,
    says: impl Fn(&[Op], u64) -> String,
) -> Finding {
    let mut finding = Finding::default();
    for of_lock in accounts.by_lock() {
        let spans: Vec<_> = of_lock.iter().filter_map(|account| span(account).map(|(from, to)| (from, to, account.op))).collect();
        finding.checked += spans.len() as u64;
        for (at_us, ops) in overlaps(spans, most) {
            let says = says(&ops, at_us);
            finding.violations.push(Violation { property, at_us, ops, says });
        }
    }
    finding
}

fn names(ops: &[Op]) -> String {
    ops.iter().map(|op| format!("#{op}")).collect::<Vec<_>>().join(", ")
}

/// Grants, as far as they were held for certain.
pub(super) fn grants(accounts: &Accounts, property: Property, most: u32) -> Finding {
    check(accounts, property, most, Account::certain, |ops, at_us| {
        format!("{} are all granted at {} s, where {most} may be", names(ops), Seconds(at_us))
    })
}

/// Critical sections, in truth.
pub(super) fn sections(accounts: &Accounts, most: u32) -> Finding {
    let span = |account: &Account| {
        let entered_us = account.entered_us?;
        Some((entered_us, account.exited_us.or(account.crashed_us).unwrap_or(accounts.end_us)))
    };
    check(accounts, Property::Sections, most, span, |ops, at_us| {
        format!("{} are all at work at {} s, where {most} may be", names(ops), Seconds(at_us))
    })
}
