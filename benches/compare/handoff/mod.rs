//! What handing a lock on costs among those who wait for it. W clients want one lock. Four ways, each with two requests an acquisition if
//! all goes well:
//!
//! - **native**: `LOCK.ACQUIRE … WAIT 0` and `LOCK.RELEASE`; on other servers what comes closest, the next one;
//! - **blpop**: a token in a list; whoever gets it gives it back with `RPUSH` and waits again;
//! - **subscribe**: what libraries do today, here with Redisson's scripts: who cannot have the lock waits for a message to the lock's
//!   channel and tries again. All stay subscribed, so that subscribing is not counted;
//! - **polling**: `SET NX PX`, again every 10 ms until it is granted, and compare-and-delete. The lock is held for 1 ms; with the other ways
//!   for no time at all.
//!
//! Beside the first way stands the floor: what it costs a loop of `epoll_wait`, `recv` and `send` that does nothing else, see [`floor`].
//!
//! The figure is the server's own CPU time per acquisition and release, the median of the slices; beside it, for programs, how many commands
//! an acquisition took, and Jain's index of how fair the shares of the clients were (1: all alike; 1/W: one had everything).

mod client;
mod ring;

use std::io::Result;

use portcullis::bench::report::comparison::{Bar, Cell, Row, Section, Unit};
use portcullis::bench::report::statistics::{jain, median};
use portcullis::bench::servers::kind::ServerKind;
use serde_json::{Map, json};

use crate::floor;
use crate::plan::Plan;
use ring::Ring;

const NAME: &str = "handoff";
const WAITERS: [usize; 5] = [1, 16, 64, 256, 1024];
const QUICK_WAITERS: [usize; 3] = [1, 16, 1024];
/// Between these the cost of a native lock is to be flat.
const FLAT: (usize, usize) = (16, 1024);
/// What counts as flat: that many times the cost.
const FLAT_MOST: f64 = 1.2;
/// How many times the cost of a native lock that of a token in a list on Redis is to be.
const NATIVE_LEAST: f64 = 1.5;

/// How clients hand a lock on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Native,
    Blpop,
    Subscribe,
    Polling,
}

impl Way {
    const fn title(self) -> &'static str {
        match self {
            Way::Native => "native: LOCK.ACQUIRE … WAIT, LOCK.RELEASE (elsewhere blpop)",
            Way::Blpop => "blpop: BLPOP and RPUSH of a token",
            Way::Subscribe => "subscribe: Redisson's scripts, again at each message",
            Way::Polling => "polling: SET NX PX every 10 ms, compare-and-delete",
        }
    }

    /// What there is of it on a server.
    fn on(self, kind: ServerKind) -> Way {
        if self == Way::Native && kind != ServerKind::Portcullis { Way::Blpop } else { self }
    }

    /// Acquisitions of a slice: whole rounds where that is not too many, and where each wakes everybody not more than is worth the time.
    fn hand_offs(self, waiters: usize, quick: bool) -> usize {
        let share = |all: usize| if quick { all / 4 } else { all };
        match self {
            Way::Polling => share(128),
            Way::Subscribe => (share(8_192) / waiters).max(share(32)),
            Way::Native | Way::Blpop => (share(8_192) / waiters).max(1) * waiters,
        }
    }
}

pub fn measure(plan: &Plan) -> Section {
    let mut section = Section::new(NAME, "server CPU per acquisition and release of one lock that all want", "waiters");
    let all: &[usize] = if plan.quick { &QUICK_WAITERS } else { &WAITERS };
    let ways = [Way::Native, Way::Blpop, Way::Subscribe, Way::Polling];
    let mut least = Vec::new();
    for way in ways.into_iter().filter(|way| plan.wants(NAME, way.title())) {
        let first = section.rows.len();
        for waiters in plan.depths(all) {
            plan.say(&format!("{NAME}: {} with {waiters} waiters", way.title()));
            let (row, floor) = measure_way(plan, way, waiters);
            least.extend(floor.map(|ns| format!("{ns:.0} ns with {waiters}")));
            section.rows.push(row);
        }
        if way == Way::Native {
            section.rows.extend(flatness(&section.rows[first..]));
        }
    }
    if !least.is_empty() {
        section.notes.push(format!(
            "the least that native hand-offs can cost here, a loop of `epoll_wait`, `recv` and `send` that knows nothing else: {}",
            least.join(", ")
        ));
    }
    section
}

/// One way, with so many waiters, on all servers by turns; and what the floor costs.
fn measure_way(plan: &Plan, way: Way, waiters: usize) -> (Row, Option<f64>) {
    let mut rings: Vec<(ServerKind, Result<Ring>)> =
        plan.kinds().map(|kind| (kind, plan.start(kind).and_then(|process| Ring::new(process, way.on(kind), waiters)))).collect();
    let mut floor =
        (way == Way::Native).then(|| floor::process(floor::Kind::HandOff).and_then(|process| Ring::new(process, way, waiters)));
    for round in 0..plan.rounds {
        for turn in 0..rings.len() {
            let at = (round + turn) % rings.len();
            slice(&mut rings[at].1, way.hand_offs(waiters, plan.quick));
        }
        floor.iter_mut().for_each(|floor| slice(floor, way.hand_offs(waiters, plan.quick)));
    }
    let bar = (way == Way::Native && waiters >= FLAT.0).then_some(Bar::RatioAtLeast(NATIVE_LEAST));
    let mut row = Row::new(way.title(), waiters.to_string(), Unit::Nanoseconds).bar(bar);
    let mut more = Map::new();
    for (kind, ring) in rings {
        if let Ok(ring) = &ring {
            plan.account(&ring.process);
            let fairness = jain(&ring.shares());
            more.insert(
                kind.name().to_owned(),
                json!({ "commands_each": ring.commands_each(), "fairness_jain": fairness, "slices": ring.costs }),
            );
        }
        row.cells.push((kind, Cell::of(ring.map(|ring| median(&ring.costs)))));
    }
    row.more = more.into();
    (row, floor.and_then(|floor| floor.ok()).map(|floor| median(&floor.costs)))
}

/// Has a ring go round, unless it has failed.
fn slice(ring: &mut Result<Ring>, hand_offs: usize) {
    if let Ok(going) = ring
        && let Err(error) = going.slice(hand_offs)
    {
        *ring = Err(error);
    }
}

/// How many times as much it costs with many waiters as with few.
fn flatness(rows: &[Row]) -> Option<Row> {
    let at = |waiters: usize| rows.iter().find(|row| row.at == waiters.to_string());
    let (few, many) = (at(FLAT.0)?, at(FLAT.1)?);
    let what = format!("native, cost with {} waiters over that with {}", FLAT.1, FLAT.0);
    let mut row = Row::new(what, "", Unit::Ratio).bar(Some(Bar::AtMost(FLAT_MOST)));
    for ((kind, few), (_, many)) in few.cells.iter().zip(&many.cells) {
        let cell = few.figure().zip(many.figure()).map_or(Cell::Unsupported, |(few, many)| Cell::Value(many / few));
        row.cells.push((*kind, cell));
    }
    Some(row)
}
