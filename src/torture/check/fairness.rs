//! Who came first is served first.

use crate::torture::check::{Account, Accounts, Finding, Property, Violation};

/// Asks of each grant whether somebody whose first command had arrived earlier was still waiting, and was granted the lock later.
pub(super) fn check(accounts: &Accounts) -> Finding {
    let mut finding = Finding::default();
    let paused = |account: &Account| {
        let until_us = account.granted_us.unwrap_or(u64::MAX);
        accounts.pauses.iter().any(|(client, from, to)| *client == account.client && *from < until_us && *to > account.asked_us)
    };
    for of_lock in accounts.by_lock() {
        let mut grants: Vec<_> = of_lock
            .iter()
            .filter(|account| account.trace.lost_us.is_none() && !paused(account))
            .filter_map(|account| Some((account.trace.first?.order, account.served()?.order, account.op)))
            .collect();
        grants.sort_unstable();
        finding.checked += grants.len() as u64;
        // By arrival: the latest grant so far; whoever is granted before it has overtaken it.
        let mut latest: Option<(u64, u32)> = None;
        for (_, granted, op) in grants {
            match latest {
                Some((later, other)) if later > granted => {
                    let account = accounts.get(op);
                    finding.violations.push(Violation {
                        property: Property::Fairness,
                        at_us: account.and_then(Account::start_us).unwrap_or(0),
                        ops: vec![other, op],
                        says: format!("#{op} came after #{other} and was served before it"),
                    });
                }
                _ => latest = Some((granted, op)),
            }
        }
    }
    finding
}
