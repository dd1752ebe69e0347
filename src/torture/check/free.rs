//! Who waits for a lock that nobody holds gets it: after a release (lost wake-ups), after the end of a lease (late expiry), and at all (stuck).

use crate::torture::check::{Account, Accounts, Finding, Property, Rules, Violation};
use crate::torture::history::{Op, Seconds};

/// So long after a server is there again, clients have found it.
const FOUND_AGAIN_US: u64 = 3_000_000;
/// What lasts longer than so many times the patience of a waiter is looked at for each.
const LONG_PATIENCES: u64 = 8;

/// A time in which fewer held a lock than may, and what had ended when it began.
struct Gap {
    from_us: u64,
    to_us: u64,
    after: Option<Op>,
}

/// Spans of time, each of an acquisition, among which those that meet another are found without looking at all.
struct Spans {
    /// By their beginnings.
    sorted: Vec<(u64, u64, Op)>,
    /// How long the longest of them is.
    longest_us: u64,
    /// Those that are far longer than the others, such as those without end.
    long: Vec<(u64, u64, Op)>,
}

impl Spans {
    fn new(mut sorted: Vec<(u64, u64, Op)>, long_us: u64) -> Spans {
        sorted.sort_unstable();
        let long = sorted.extract_if(.., |(from, to, _)| to.saturating_sub(*from) > long_us).collect();
        let longest_us = sorted.iter().map(|(from, to, _)| to.saturating_sub(*from)).max().unwrap_or(0);
        Spans { sorted, longest_us, long }
    }

    /// Those that last at some time from one moment to another.
    fn meeting(&self, from_us: u64, to_us: u64) -> impl Iterator<Item = (u64, u64, Op)> {
        let first = self.sorted.partition_point(|(start, ..)| start.saturating_add(self.longest_us) < from_us);
        let among = self.sorted[first..].iter().take_while(move |(start, ..)| *start < to_us);
        among.chain(&self.long).copied().filter(move |(start, end, _)| *start < to_us && *end > from_us)
    }

    /// The last that had ended by then, but for one.
    fn last_before(&self, at_us: u64, but: Op) -> Option<Op> {
        let ended = self.sorted.iter().chain(&self.long).filter(|(_, end, op)| *end <= at_us && *op != but && *op != Op::MAX);
        ended.max_by_key(|(_, end, _)| *end).map(|(_, _, op)| *op)
    }
}

/// The times within `from_us` to `to_us` in which fewer than `most` spans last. Those that end before are not among them.
fn gaps(within: impl Iterator<Item = (u64, u64, Op)>, most: usize, from_us: u64, to_us: u64) -> Vec<Gap> {
    let mut edges: Vec<(u64, i32, Op)> = Vec::new();
    for (start, end, op) in within {
        edges.push((start.max(from_us), 1, op));
        edges.push((end.min(to_us), -1, op));
    }
    edges.sort_unstable_by_key(|(at, step, op)| (*at, *step, *op));
    let (mut held, mut gaps) = (0, Vec::new());
    let mut open = Some((from_us, None));
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
        let spans = Spans::new(spans, LONG_PATIENCES * rules.patience_us);
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
            let of_others = spans.meeting(from_us, to_us).filter(|(_, _, op)| *op != waiter.op);
            let own = pauses(accounts, waiter).filter(|(from, to)| *from < to_us && *to > from_us);
            let own = own.flat_map(|(from, to)| std::iter::repeat_n((from, to, Op::MAX), most as usize));
            let gaps = gaps(of_others.chain(own), most as usize, from_us, to_us);
            let longest = gaps.into_iter().max_by_key(|gap| gap.to_us - gap.from_us);
            if let Some(mut gap) = longest.filter(|gap| gap.to_us - gap.from_us > rules.patience_us) {
                // Where a pause of the waiter or the absence of a server ended, nothing was freed then.
                gap.after = gap.after.filter(|op| *op != Op::MAX).or_else(|| spans.last_before(gap.from_us, waiter.op));
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
