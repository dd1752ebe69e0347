//! The cost of handing a lock on among its waiters. W clients contend for one lock, with four methods. Each method takes two
//! requests for an acquisition if it succeeds at once:
//!
//! - **native**: `LOCK.ACQUIRE … WAIT 0` and `LOCK.RELEASE`. On other servers the closest method stands in, blpop;
//! - **blpop**: a token in a list. The client that gets it returns it with `RPUSH` and waits again;
//! - **subscribe**: the method of today's libraries, here with Redisson's scripts. A client that cannot get the lock waits for a
//!   message to the lock's channel and tries again. All clients stay subscribed, so that subscribing does not count;
//! - **polling**: `SET NX PX`, every 10 ms until it is granted, and compare-and-delete. The lock is held for 1 ms. With the other
//!   methods it is released at once.
//!
//! The first method is also measured on the floor, a server that does nothing but `epoll_wait`, `recv` and `send`: see [`floor`].
//!
//! The figure is the server's own CPU time per acquisition and release, as the median of the slices. Details for programs are the
//! number of commands per acquisition and Jain's index of the clients' shares (1: all equal; 1/W: one client had everything).

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
/// Numbers of waiters between which the cost of a native lock should be flat.
const FLAT: (usize, usize) = (16, 1024);
/// Maximum ratio of the costs that counts as flat.
const FLAT_MOST: f64 = 1.2;
/// The goal for the ratio of the cost of a token in a list on Redis to the cost of a native lock.
const NATIVE_LEAST: f64 = 1.5;

/// How clients hand the lock on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Method {
    Native,
    Blpop,
    Subscribe,
    Polling,
}

impl Method {
    const fn title(self) -> &'static str {
        match self {
            Method::Native => "native: LOCK.ACQUIRE … WAIT, LOCK.RELEASE (others: blpop)",
            Method::Blpop => "blpop: BLPOP and RPUSH of a token",
            Method::Subscribe => "subscribe: Redisson's scripts, again at each message",
            Method::Polling => "polling: SET NX PX every 10 ms, compare-and-delete",
        }
    }

    /// The method that a kind of server uses for this one.
    fn on(self, kind: ServerKind) -> Method {
        if self == Method::Native && kind != ServerKind::Portcullis { Method::Blpop } else { self }
    }

    /// Number of acquisitions in a slice: whole rounds, but fewer where each of them wakes all waiters.
    fn hand_offs(self, waiters: usize, quick: bool) -> usize {
        let share = |all: usize| if quick { all / 4 } else { all };
        match self {
            Method::Polling => share(128),
            Method::Subscribe => (share(8_192) / waiters).max(share(32)),
            Method::Native | Method::Blpop => (share(8_192) / waiters).max(1) * waiters,
        }
    }
}

pub fn measure(plan: &Plan) -> Section {
    let mut section = Section::new(NAME, "server CPU per acquisition and release of one contended lock", "waiters");
    let all: &[usize] = if plan.quick { &QUICK_WAITERS } else { &WAITERS };
    let methods = [Method::Native, Method::Blpop, Method::Subscribe, Method::Polling];
    let mut bounds = Vec::new();
    for method in methods.into_iter().filter(|method| plan.wants(NAME, method.title())) {
        let first = section.rows.len();
        for waiters in plan.depths(all) {
            plan.say(&format!("{NAME}: {} with {waiters} waiters", method.title()));
            let (row, floor) = measure_method(plan, method, waiters);
            bounds.extend(floor.map(|ns| format!("{ns:.0} ns with {waiters}")));
            section.rows.push(row);
        }
        if method == Method::Native {
            section.rows.extend(flatness(&section.rows[first..]));
        }
    }
    if !bounds.is_empty() {
        section.notes.push(format!(
            "lower bounds of native hand-offs on this machine, from a loop of `epoll_wait`, `recv` and `send` that does nothing else: {}",
            bounds.join(", ")
        ));
    }
    section
}

/// Measures one method with a number of waiters on all servers, in turns. Also returns the floor's cost.
fn measure_method(plan: &Plan, method: Method, waiters: usize) -> (Row, Option<f64>) {
    let mut rings: Vec<(ServerKind, Result<Ring>)> = plan
        .kinds()
        .map(|kind| (kind, plan.start(kind).and_then(|process| Ring::new(process, method.on(kind), waiters))))
        .collect();
    let mut floor = (method == Method::Native)
        .then(|| floor::process(floor::Kind::HandOff).and_then(|process| Ring::new(process, method, waiters)));
    for round in 0..plan.rounds {
        for turn in 0..rings.len() {
            let at = (round + turn) % rings.len();
            slice(&mut rings[at].1, method.hand_offs(waiters, plan.quick));
        }
        floor.iter_mut().for_each(|floor| slice(floor, method.hand_offs(waiters, plan.quick)));
    }
    let bar = (method == Method::Native && waiters >= FLAT.0).then_some(Bar::RatioAtLeast(NATIVE_LEAST));
    let mut row = Row::new(method.title(), waiters.to_string(), Unit::Nanoseconds).bar(bar);
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

/// Runs a slice, unless an earlier one failed.
fn slice(ring: &mut Result<Ring>, hand_offs: usize) {
    if let Ok(going) = ring
        && let Err(error) = going.slice(hand_offs)
    {
        *ring = Err(error);
    }
}

/// The ratio of the cost with many waiters to the cost with few.
fn flatness(rows: &[Row]) -> Option<Row> {
    let at = |waiters: usize| rows.iter().find(|row| row.at == waiters.to_string());
    let (few, many) = (at(FLAT.0)?, at(FLAT.1)?);
    let what = format!("native, cost with {} waiters divided by that with {}", FLAT.1, FLAT.0);
    let mut row = Row::new(what, "", Unit::Ratio).bar(Some(Bar::AtMost(FLAT_MOST)));
    for ((kind, few), (_, many)) in few.cells.iter().zip(&many.cells) {
        let cell = few.figure().zip(many.figure()).map_or(Cell::Unsupported, |(few, many)| Cell::Value(many / few));
        row.cells.push((*kind, cell));
    }
    Some(row)
}
