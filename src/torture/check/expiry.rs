//! What is held is not lost before its lease is over.

use crate::recipes::ReleaseOutcome;
use crate::torture::check::{Accounts, Finding, Property, Violation};
use crate::torture::history::Seconds;

/// Asks of each release that found nothing to release whether the lease was over.
pub(super) fn early(accounts: &Accounts) -> Finding {
    let mut finding = Finding::default();
    for account in &accounts.all {
        let (Some(_), Some(_), Some(released_us)) = (account.granted_us, account.given, account.released_us) else { continue };
        finding.checked += 1;
        // Where a reply was lost, or a command sent twice, it may have been given back before.
        let lost = account.trace.lost_us.or(account.release_trace.lost_us).is_some() || account.release_tries > 1;
        let over_us = account.sure_until_us.unwrap_or(u64::MAX);
        if account.given == Some(ReleaseOutcome::NotHeld) && released_us < over_us && !lost {
            finding.violations.push(Violation {
                property: Property::Early,
                at_us: released_us,
                ops: vec![account.op],
                says: format!("#{} was not held any more at {} s", account.op, Seconds(released_us)),
            });
        }
    }
    finding
}
