//! Fencing tokens increase from grant to grant.

use crate::torture::check::{Acquisition, Acquisitions, Finding, Property, Violation};

/// Checks whether each token is larger than that of the grant before. The order is that of the servers if known. Otherwise only
/// grants are compared that were requested after the client of the other grant knew its token.
pub(super) fn check(acquisitions: &Acquisitions) -> Finding {
    let mut finding = Finding::default();
    for of_lock in acquisitions.by_lock() {
        let mut grants: Vec<&Acquisition> = of_lock.into_iter().filter(|acquisition| acquisition.token.is_some()).collect();
        grants.sort_by_key(|acquisition| acquisition.order());
        finding.checked += grants.len() as u64;
        let mut largest: Option<&Acquisition> = None;
        for grant in grants {
            if let Some(before) = largest {
                let known = grant.trace.last.is_some() || before.granted_us < Some(grant.requested_us);
                if known && grant.token <= before.token {
                    finding.violations.push(Violation {
                        property: Property::Tokens,
                        at_us: grant.granted_us.unwrap_or(grant.requested_us),
                        ops: vec![before.op, grant.op],
                        message: format!(
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
