//! Nobody ends what another holds.

use crate::recipes::ReleaseOutcome;
use crate::torture::check::{Accounts, Finding, Property, Violation};
use crate::torture::history::Seconds;

/// Asks of each release that was said to have succeeded whether another held the lock then.
pub(super) fn check(accounts: &Accounts) -> Finding {
    let mut finding = Finding::default();
    for of_lock in accounts.by_lock() {
        let mut held: Vec<(u64, u64, u32)> =
            of_lock.iter().filter_map(|account| account.certain().map(|(from, to)| (from, to, account.op))).collect();
        held.sort_unstable();
        for account in of_lock {
            let (Some(ReleaseOutcome::Released | ReleaseOutcome::Unchecked), Some(released_us)) =
                (account.given, account.released_us)
            else {
                continue;
            };
            finding.checked += 1;
            // It happened between two moments, and on several servers all the while. Enough that another held it from before until after.
            let trace = account.release_trace;
            let began_us = account.release_us.unwrap_or(released_us);
            // Of one that was sent twice only the answered copy left a trace. The other may have come sooner, and the reply repeat its own.
            let from_us = trace.first.filter(|_| !trace.resent).map_or(began_us, |first| first.at_us);
            let to_us = trace.last.map_or(released_us, |last| last.at_us);
            // Of two that both hold it, either may release it, and it may hold it for as long as renewals of unknown outcome allow; but for one
            // that does not look whether it does.
            let own = account.start_us().is_some_and(|start_us| start_us <= to_us) && from_us <= account.latest_us();
            if own && account.given == Some(ReleaseOutcome::Released) {
                continue;
            }
            let began = held.partition_point(|(start_us, ..)| *start_us < from_us);
            let other = held[..began].iter().rev().take(64).find(|(_, end_us, op)| *end_us > to_us && *op != account.op);
            if let Some((_, _, other)) = other {
                finding.violations.push(Violation {
                    property: Property::Release,
                    at_us: to_us,
                    ops: vec![account.op, *other],
                    says: format!("#{} released the lock at {} s, when #{other} held it", account.op, Seconds(to_us)),
                });
            }
        }
    }
    finding
}
