//! What is held is not lost before its lease is over.

use crate::recipes::Given;
use crate::torture::check::{Accounts, Finding, Property, Violation};
use crate::torture::history::Seconds;

/// Asks of each release that found nothing to release whether the lease was over.
pub(super) fn early(accounts: &Accounts) -> Finding {
    let mut finding = Finding::default();
    for account in &accounts.all {
        let (Some(_), Some(_), Some(released_us)) = (account.granted_us, account.given, account.released_us) else { continue };
        finding.checked += 1;
        // The lease began no sooner than it was asked for, and who tried twice may have succeeded the first time.
        let began_us = account.renewed_us.or(account.start_us()).unwrap_or(account.asked_us);
        let over_us = began_us.min(account.valid_until_us.map_or(u64::MAX, |until_us| until_us.saturating_sub(account.lease_us)));
        let over_us = over_us.saturating_add(account.lease_us);
        let again = account.release_tries > 1 || account.release_trace.resent || account.trace.resent;
        if account.given == Some(Given::NotHeld) && released_us < over_us && !again {
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
