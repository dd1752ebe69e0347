//! What a lock guards accepts no write of an earlier holder after that of a later one.

use crate::torture::check::{Accounts, Finding, Property, Violation};

/// Asks of each write that was accepted whether a later holder had written before.
pub(super) fn check(accounts: &Accounts) -> Finding {
    let mut finding = Finding::default();
    for (_, ops) in &accounts.stored {
        let mut newest = None;
        for op in ops {
            let Some(account) = accounts.get(*op) else { continue };
            let Some(order) = account.order() else { continue };
            finding.checked += 1;
            match newest {
                Some((known, by)) if known > order => {
                    let violation = Violation {
                        property: Property::Writes,
                        at_us: account.exited_us.or(account.crashed_us).unwrap_or(accounts.end_us),
                        ops: vec![by, *op],
                        says: format!("a write of #{op} was accepted after one of #{by}, which was granted later"),
                    };
                    finding.violations.push(violation);
                }
                _ => newest = Some((order, *op)),
            }
        }
    }
    finding
}
