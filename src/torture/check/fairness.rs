//! First come, first served.

use crate::torture::check::{Acquisition, Acquisitions, Finding, Property, Violation};

/// Checks for each grant whether another client, whose first command had arrived earlier, was granted the lock later.
pub(super) fn check(acquisitions: &Acquisitions) -> Finding {
    let mut finding = Finding::default();
    let paused = |acquisition: &Acquisition| {
        let until_us = acquisition.granted_us.unwrap_or(u64::MAX);
        acquisitions
            .pauses
            .iter()
            .any(|(client, from, to)| *client == acquisition.client && *from < until_us && *to > acquisition.requested_us)
    };
    for of_lock in acquisitions.by_lock() {
        let mut grants: Vec<_> = of_lock
            .iter()
            .filter(|acquisition| acquisition.trace.lost_us.is_none() && !paused(acquisition))
            .filter_map(|acquisition| Some((acquisition.trace.first?.order, acquisition.served()?.order, acquisition.op)))
            .collect();
        grants.sort_unstable();
        finding.checked += grants.len() as u64;
        // The grants are sorted by arrival. `latest` is the latest grant so far; an earlier grant has overtaken it.
        let mut latest: Option<(u64, u32)> = None;
        for (_, granted, op) in grants {
            match latest {
                Some((later, other)) if later > granted => {
                    let acquisition = acquisitions.get(op);
                    finding.violations.push(Violation {
                        property: Property::Fairness,
                        at_us: acquisition.and_then(Acquisition::start_us).unwrap_or(0),
                        ops: vec![other, op],
                        message: format!("#{op} came after #{other} and was served before it"),
                    });
                }
                _ => latest = Some((granted, op)),
            }
        }
    }
    finding
}
