//! A client does not release a lock that another client holds.

use crate::recipes::ReleaseOutcome;
use crate::torture::check::{Acquisitions, Finding, Property, Violation};
use crate::torture::history::Seconds;

/// Checks for each successful release whether another client held the lock at that time.
pub(super) fn check(acquisitions: &Acquisitions) -> Finding {
    let mut finding = Finding::default();
    for of_lock in acquisitions.by_lock() {
        let mut held: Vec<(u64, u64, u32)> = of_lock
            .iter()
            .filter_map(|acquisition| acquisition.certain_span().map(|(from, to)| (from, to, acquisition.op)))
            .collect();
        held.sort_unstable();
        for acquisition in of_lock {
            let (Some(ReleaseOutcome::Released | ReleaseOutcome::Unchecked), Some(released_us)) =
                (acquisition.outcome, acquisition.released_us)
            else {
                continue;
            };
            finding.checked += 1;
            // The release happened within a span of time, on several servers during all of it. A violation needs another holder
            // during the whole span.
            let trace = acquisition.release_trace;
            let began_us = acquisition.release_us.unwrap_or(released_us);
            // Only the answered copy of a request that was sent twice left a trace. The other copy may have arrived earlier, with
            // the same reply.
            let from_us = trace.first.filter(|_| !trace.resent).map_or(began_us, |first| first.at_us);
            let to_us = trace.last.map_or(released_us, |last| last.at_us);
            // If two clients hold the lock at once, each may release it. A checked release is also right as long as renewals of
            // unknown outcome may have prolonged the lease. An unchecked release is not.
            let own = acquisition.start_us().is_some_and(|start_us| start_us <= to_us) && from_us <= acquisition.latest_us();
            if own && acquisition.outcome == Some(ReleaseOutcome::Released) {
                continue;
            }
            let began = held.partition_point(|(start_us, ..)| *start_us < from_us);
            let other = held[..began].iter().rev().take(64).find(|(_, end_us, op)| *end_us > to_us && *op != acquisition.op);
            if let Some((_, _, other)) = other {
                finding.violations.push(Violation {
                    property: Property::Release,
                    at_us: to_us,
                    ops: vec![acquisition.op, *other],
                    message: format!("#{} released the lock at {} s, when #{other} held it", acquisition.op, Seconds(to_us)),
                });
            }
        }
    }
    finding
}
