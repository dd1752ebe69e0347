//! Who waits for a lock that nobody holds gets it: after a release (lost wake-ups), after the end of a lease (late expiry), and at all (stuck).

use crate::torture::check::{Account, Accounts, Finding, Property, Rules, Violation};
use crate::torture::history::{Op, Seconds};

/// So long after a server is there again, clients have found it.
const FOUND_AGAIN_US: u64 = 3_000_000;

/// A time in which fewer held a lock than may, and what had ended when it began.
struct Gap {
    from_us: u64,
    to_us: u64,
    after: Option<Op>,
}

/// The times within `from_us` to `to_us` in which fewer than `most` spans last.
fn gaps(spans: &[(u64, u64, Op)], most: usize, from_us: u64, to_us: u64) -> Vec<Gap> {
    let within: Vec<_> = spans.iter().filter(|(start, end, _)| *start < to_us && *end > from_us).collect();
    // What ended before does not count, but for what it was.
    let before = spans.iter().filter(|(_, end, _)| *end <= from_us).max_by_key(|(_, end, _)| *end).map(|(_, _, op)| *op);
    let mut edges: Vec<(u64, i32, Op)> = Vec::with_capacity(2 * within.len());
    for (start, end, op) in within {
        edges.push((*start.max(&from_us), 1, *op));
        edges.push((*end.min(&to_us), -1, *op));
    }
    edges.sort_unstable_by_key(|(at, step, op)| (*at, *step, *op));
    let (mut held, mut gaps) = (0, Vec::new());
    let mut open = Some((from_us, before));
    for (at_us, step, op) in edges {
        held += step;
        if held < most as i32 {
            if open.is_none() {
                open = Some((at_us, Some(op)));
            }
        } else if let Some((since_us, after)) = open.take() {
            gaps.push(Gap { from_us: since_us, to_us: at_us, after });
        }
    }
    if let Some((since_us, after)) = open {
        gaps.push(Gap { from_us: since_us, to_us, after });
    }
    gaps
}

/// Asks of everybody who waited whether the lock was free for long meanwhile.
pub(super) fn check(accounts: &Accounts, rules: &Rules) -> Finding {
    let mut finding = Finding::default();
    let Some(most) = rules.holders else { return finding };
    for of_lock in accounts.by_lock() {
        let mut spans: Vec<(u64, u64, Op)> =
            of_lock.iter().filter_map(|account| account.possible().map(|(from, to)| (from, to, account.op))).collect();
        // One who pauses as he waits may be granted it, and know only when it is over.
        for waiter in &of_lock {
            let waited_us = (waiter.asked_us, waiter.granted_us.unwrap_or(waiter.waited_until_us()));
            let of_waiter = pauses(accounts, waiter).filter(|(from, to)| *from < waited_us.1 && *to > waited_us.0);
            spans.extend(of_waiter.map(|(from, to)| (from, to.saturating_add(waiter.lease_us), waiter.op)));
        }
        // While a server is away, it is as if it were held.
        let away = accounts.away.iter().map(|(from, to)| (*from, to.saturating_add(FOUND_AGAIN_US), Op::MAX));
        spans.extend(away.flat_map(|span| std::iter::repeat_n(span, most as usize)));
        for waiter in &of_lock {
            finding.checked += 1;
            let (from_us, to_us) = (waiter.trace.first.map_or(waiter.asked_us, |first| first.at_us), waiter.waited_until_us());
            let to_us = to_us.min(accounts.end_us);
            // Nor is one that failed, or crashed, or may have had it unknowingly, a witness.
            if waiter.failed_us.is_some()
                || waiter.trace.lost_us.is_some()
                || waiter.crashed_us == Some(to_us)
                || to_us.saturating_sub(from_us) <= rules.patience_us
            {
                continue;
            }
            let of_others: Vec<_> = (spans.iter().copied())
                .filter(|(_, _, op)| *op != waiter.op)
                .chain(pauses(accounts, waiter).flat_map(|(from, to)| std::iter::repeat_n((from, to, Op::MAX), most as usize)))
                .collect();
            let longest = gaps(&of_others, most as usize, from_us, to_us).into_iter().max_by_key(|gap| gap.to_us - gap.from_us);
            if let Some(gap) = longest.filter(|gap| gap.to_us - gap.from_us > rules.patience_us) {
                finding.violations.push(violation(accounts, waiter, &gap, rules));
            }
        }
    }
    finding
}

fn pauses<'a>(accounts: &'a Accounts, waiter: &Account) -> impl Iterator<Item = (u64, u64)> + use<'a> {
    let client = waiter.client;
    accounts.pauses.iter().filter(move |(paused, ..)| *paused == client).map(|(_, from, to)| (*from, *to))
}

fn violation(accounts: &Accounts, waiter: &Account, gap: &Gap, rules: &Rules) -> Violation {
    let free_us = gap.to_us - gap.from_us;
    let before = gap.after.and_then(|op| accounts.get(op));
    let in_vain = waiter.granted_us.is_none() && free_us > 3 * rules.patience_us;
    let released =
        before.is_none_or(|before| before.given.is_some() && before.possible().is_none_or(|(_, to)| to < before.latest_us()));
    let (property, since) = match (in_vain, released) {
        (true, _) => (Property::Stuck, "nobody held it"),
        (false, true) => (Property::WakeUp, "it was released"),
        (false, false) => (Property::Late, "the lease was over"),
    };
    Violation {
        property,
        at_us: gap.from_us,
        ops: before.map(|before| before.op).into_iter().chain([waiter.op]).collect(),
        says: format!("#{} waited for it for {} s after {since} at {} s", waiter.op, Seconds(free_us), Seconds(gap.from_us)),
    }
}
