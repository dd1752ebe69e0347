//! A waiter gets a lock that no client holds: soon after a release (otherwise a lost wake-up), soon after the end of a lease
//! (otherwise a late expiry), and some time at all (otherwise the lock is stuck). Nor is a waiter left at a server that does not lead any
//! more, whoever holds the lock: it is stuck, too.

use crate::torture::check::{Acquisition, Acquisitions, Finding, Property, Rules, Violation};
use crate::torture::history::{Op, Seconds};

/// Maximum time until clients have reconnected to a server that is up again.
const RECONNECT_US: u64 = 3_000_000;
/// Spans longer than this many grace periods are compared with every waiter. There are few of them.
const LONG_GRACES: u64 = 8;

/// A span of time, with its acquisition: start, end, number. [`Op::MAX`] stands for a span of no acquisition.
type Span = (u64, u64, Op);

/// A time in which the lock had a free place.
struct Gap {
    from_us: u64,
    to_us: u64,
    /// The acquisition whose end opened the gap.
    after: Option<Op>,
}

/// Spans of acquisitions, of which those that overlap a given time are found without a look at all.
struct Spans {
    /// Sorted by start.
    sorted: Vec<Span>,
    /// The length of the longest of them.
    longest_us: u64,
    /// Spans that are far longer than the others, such as those without an end.
    long: Vec<Span>,
}

impl Spans {
    fn new(mut sorted: Vec<Span>, long_us: u64) -> Spans {
        sorted.sort_unstable();
        let long = sorted.extract_if(.., |(from, to, _)| to.saturating_sub(*from) > long_us).collect();
        let longest_us = sorted.iter().map(|(from, to, _)| to.saturating_sub(*from)).max().unwrap_or(0);
        Spans { sorted, longest_us, long }
    }

    /// The spans that overlap the time from `from_us` to `to_us`.
    fn overlapping(&self, from_us: u64, to_us: u64) -> impl Iterator<Item = Span> {
        let first = self.sorted.partition_point(|(start, ..)| start.saturating_add(self.longest_us) < from_us);
        let among = self.sorted[first..].iter().take_while(move |(start, ..)| *start < to_us);
        among.chain(&self.long).copied().filter(move |(start, end, _)| *start < to_us && *end > from_us)
    }

    /// The last acquisition that had ended by a time, other than `except`.
    fn last_before(&self, at_us: u64, except: Op) -> Option<Op> {
        let ended = self.sorted.iter().chain(&self.long).filter(|(_, end, op)| *end <= at_us && *op != except && *op != Op::MAX);
        ended.max_by_key(|(_, end, _)| *end).map(|(_, _, op)| *op)
    }
}

/// The times between `from_us` and `to_us` in which fewer than `most` spans overlap. All spans must overlap that time.
fn gaps(within: impl Iterator<Item = Span>, most: usize, from_us: u64, to_us: u64) -> Vec<Gap> {
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

/// Checks for each waiter whether the lock was free for longer than the grace period while it waited.
pub(super) fn check(acquisitions: &Acquisitions, rules: &Rules) -> Finding {
    let mut finding = Finding::default();
    finding.violations.extend(acquisitions.left_waiting.iter().map(|(op, at_us, server)| Violation {
        property: Property::Stuck,
        at_us: *at_us,
        ops: vec![*op],
        message: format!(
            "#{op} still waits at server {server} at {} s, long after another one has begun to lead",
            Seconds(*at_us)
        ),
    }));
    let Some(most) = rules.holders else { return finding };
    for of_lock in acquisitions.by_lock() {
        let spans = occupied(acquisitions, &of_lock, rules, most as usize);
        for waiter in &of_lock {
            finding.checked += 1;
            if let Some(gap) = gap_of(acquisitions, waiter, &spans, rules, most as usize) {
                finding.violations.push(violation(acquisitions, waiter, &gap, rules));
            }
        }
    }
    finding
}

/// The spans in which the lock may have been occupied.
fn occupied(acquisitions: &Acquisitions, of_lock: &[&Acquisition], rules: &Rules, most: usize) -> Spans {
    let mut spans: Vec<Span> = of_lock
        .iter()
        .filter_map(|acquisition| {
            let (from_us, to_us) = acquisition.possible_span()?;
            Some((from_us, acquisitions.free_at_us(acquisition, to_us), acquisition.op))
        })
        .collect();
    // A waiter that pauses may be granted the lock and learn of it only after the pause.
    for waiter in of_lock {
        let waited_us = (waiter.requested_us, waiter.granted_us.unwrap_or(waiter.waited_until_us()));
        let of_waiter = pauses(acquisitions, waiter).filter(|(from, to)| *from < waited_us.1 && *to > waited_us.0);
        spans.extend(of_waiter.map(|(from, to)| (from, to.saturating_add(waiter.lease_us), waiter.op)));
    }
    // While a server is down, all places count as occupied.
    let down = acquisitions.down.iter().map(|(from, to)| (*from, to.saturating_add(RECONNECT_US), Op::MAX));
    spans.extend(down.flat_map(|span| std::iter::repeat_n(span, most)));
    Spans::new(spans, LONG_GRACES * rules.grace_us)
}

/// The longest gap during a waiter's wait, if it exceeds the grace period.
fn gap_of(acquisitions: &Acquisitions, waiter: &Acquisition, spans: &Spans, rules: &Rules, most: usize) -> Option<Gap> {
    let (from_us, to_us) = (waiter.trace.first.map_or(waiter.requested_us, |first| first.at_us), waiter.waited_until_us());
    let to_us = to_us.min(acquisitions.end_us);
    // A waiter that failed, crashed, or may have held the lock without knowing proves nothing.
    if waiter.failed_us.is_some()
        || waiter.trace.lost_us.is_some()
        || waiter.crashed_us == Some(to_us)
        || to_us.saturating_sub(from_us) <= rules.grace_us
    {
        return None;
    }
    let of_others = spans.overlapping(from_us, to_us).filter(|(_, _, op)| *op != waiter.op);
    let own = pauses(acquisitions, waiter).filter(|(from, to)| *from < to_us && *to > from_us);
    let own = own.flat_map(|(from, to)| std::iter::repeat_n((from, to, Op::MAX), most));
    let longest = gaps(of_others.chain(own), most, from_us, to_us).into_iter().max_by_key(|gap| gap.to_us - gap.from_us);
    let mut gap = longest.filter(|gap| gap.to_us - gap.from_us > rules.grace_us)?;
    // If a pause of the waiter or the absence of a server ended at the start of the gap, the lock had become free earlier.
    gap.after = gap.after.filter(|op| *op != Op::MAX).or_else(|| spans.last_before(gap.from_us, waiter.op));
    Some(gap)
}

fn pauses<'a>(acquisitions: &'a Acquisitions, waiter: &Acquisition) -> impl Iterator<Item = (u64, u64)> + use<'a> {
    let client = waiter.client;
    acquisitions.pauses.iter().filter(move |(paused, ..)| *paused == client).map(|(_, from, to)| (*from, *to))
}

fn violation(acquisitions: &Acquisitions, waiter: &Acquisition, gap: &Gap, rules: &Rules) -> Violation {
    let free_us = gap.to_us - gap.from_us;
    let before = gap.after.and_then(|op| acquisitions.get(op));
    let in_vain = waiter.granted_us.is_none() && free_us > 3 * rules.grace_us;
    let released = before
        .is_none_or(|before| before.outcome.is_some() && before.possible_span().is_none_or(|(_, to)| to < before.latest_us()));
    let (property, since) = match (in_vain, released) {
        (true, _) => (Property::Stuck, "no client held it"),
        (false, true) => (Property::WakeUp, "it was released"),
        (false, false) => (Property::Late, "the lease was over"),
    };
    Violation {
        property,
        at_us: gap.from_us,
        ops: before.map(|before| before.op).into_iter().chain([waiter.op]).collect(),
        message: format!("#{} waited for {} s after {since} at {} s", waiter.op, Seconds(free_us), Seconds(gap.from_us)),
    }
}
