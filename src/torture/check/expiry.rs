//! A holder does not lose its lock before the lease ends.

use crate::recipes::ReleaseOutcome;
use crate::torture::check::{Acquisitions, Finding, Property, Violation};
use crate::torture::history::Seconds;

/// Checks for each release that found the lock not held whether the lease had ended.
pub(super) fn early(acquisitions: &Acquisitions) -> Finding {
    let mut finding = Finding::default();
    for acquisition in &acquisitions.all {
        let (Some(_), Some(_), Some(released_us)) = (acquisition.granted_us, acquisition.outcome, acquisition.released_us) else {
            continue;
        };
        finding.checked += 1;
        // If a reply was lost or a command was sent twice, an earlier copy may have released the lock.
        let lost = acquisition.trace.lost_us.or(acquisition.release_trace.lost_us).is_some() || acquisition.release_tries > 1;
        let ends = [acquisition.certain_end_us, acquisition.hung_up_us];
        let over_us = ends.into_iter().flatten().min().unwrap_or(u64::MAX);
        if acquisition.outcome == Some(ReleaseOutcome::NotHeld) && released_us < over_us && !lost {
            finding.violations.push(Violation {
                property: Property::Early,
                at_us: released_us,
                ops: vec![acquisition.op],
                message: format!("#{} was not held any more at {} s", acquisition.op, Seconds(released_us)),
            });
        }
    }
    finding
}
