//! The guarded resource accepts no write of an earlier holder after a write of a later one.

use crate::torture::check::{Acquisitions, Finding, Property, Violation};

/// Checks for each accepted write whether a later holder had written before.
pub(super) fn check(acquisitions: &Acquisitions) -> Finding {
    let mut finding = Finding::default();
    for (_, ops) in &acquisitions.stored {
        let mut newest = None;
        for op in ops {
            let Some(acquisition) = acquisitions.get(*op) else { continue };
            let Some(order) = acquisition.order() else { continue };
            finding.checked += 1;
            match newest {
                Some((known, by)) if known > order => {
                    let violation = Violation {
                        property: Property::Writes,
                        at_us: acquisition.exited_us.or(acquisition.crashed_us).unwrap_or(acquisitions.end_us),
                        ops: vec![by, *op],
                        message: format!("a write of #{op} was accepted after one of #{by}, which was granted later"),
                    };
                    finding.violations.push(violation);
                }
                _ => newest = Some((order, *op)),
            }
        }
    }
    finding
}
