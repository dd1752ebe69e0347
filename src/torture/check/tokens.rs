//! Fencing tokens grow from grant to grant.

use crate::torture::check::{Account, Accounts, Finding, Property, Violation};

/// Asks of each token whether it is larger than that of the grant before. By the servers' order where it is known; otherwise of those only that
/// were asked for when the one before was known.
pub(super) fn check(accounts: &Accounts) -> Finding {
    let mut finding = Finding::default();
    for of_lock in accounts.by_lock() {
        let mut grants: Vec<&Account> = of_lock.into_iter().filter(|account| account.token.is_some()).collect();
        grants.sort_by_key(|account| account.order());
        finding.checked += grants.len() as u64;
        let mut largest: Option<&Account> = None;
        for grant in grants {
            if let Some(before) = largest {
                let known = grant.trace.last.is_some() || before.granted_us < Some(grant.asked_us);
                if known && grant.token <= before.token {
                    finding.violations.push(Violation {
                        property: Property::Tokens,
                        at_us: grant.granted_us.unwrap_or(grant.asked_us),
                        ops: vec![before.op, grant.op],
                        says: format!(
                            "#{} has token {}, and #{} before it had {}",
                            grant.op,
                            grant.token.unwrap_or(0),
                            before.op,
                            before.token.unwrap_or(0)
                        ),
                    });
                }
            }
            if largest.is_none_or(|before| before.token < grant.token) {
                largest = Some(grant);
            }
        }
    }
    finding
}
