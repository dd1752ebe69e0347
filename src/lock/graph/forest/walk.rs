//! Walks from a lock to those next to it, which can stop at any holder and waiter, and go on later.
//!
//! The graph may change while a walk stands still. What it finds was true when it was found.

use std::collections::BTreeSet;

use crate::lock::graph::forest::{Among, Asked};
use crate::lock::queue::{NIL, Queue, Queues};

/// The queues, and which of them are those of the trees.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) queues: &'a Queues,
    pub(super) among: Among<'a>,
}

impl<'a> View<'a> {
    /// A queue of a lock that is among those that trees are made of.
    pub(super) fn seen(self, queue: u32) -> Option<&'a Queue> {
        self.queues.get(queue).filter(|found| found.db == self.among.db && (self.among.sees)(&found.name))
    }

    /// Such a queue that has waiters.
    pub(super) fn contended(self, queue: u32) -> Option<&'a Queue> {
        self.seen(queue).filter(|found| found.len > 0)
    }

    /// Number of waiters for a lock.
    pub(super) fn len(self, queue: u32) -> u64 {
        self.queues.get(queue).map_or(0, |queue| u64::from(queue.len))
    }
}

/// How much may still be done.
#[derive(Default)]
pub(super) struct Budget {
    /// What is left of the present slice: holders, waiters, and whatever else takes as long at most.
    pub(super) slice: u32,
    /// What is left of the present share of the work.
    pub(super) share: u32,
}

impl Budget {
    /// `None` if the slice has ended.
    pub(super) fn goes_on(&self) -> Option<()> {
        (self.slice > 0).then_some(())
    }

    /// Takes one from the slice only.
    pub(super) fn spend(&mut self) {
        self.slice = self.slice.saturating_sub(1);
    }

    /// Takes one from both. Returns whether the share has more.
    pub(super) fn step(&mut self) -> bool {
        self.spend();
        self.share = self.share.saturating_sub(1);
        self.share > 0
    }
}

/// An owner that holds one lock and waits for another.
#[derive(Clone, Copy)]
pub(super) struct Edge {
    /// The lock that the walk has found: either of the two.
    pub(super) lock: u32,
    pub(super) owner: u32,
    /// Its place in the queue of the lock that it waits for.
    pub(super) link: u32,
}

impl Edge {
    /// From a root upwards is nothing.
    pub(super) fn root(lock: u32) -> Edge {
        Edge { lock, owner: NIL, link: NIL }
    }

    /// Whether its owner still waits for the lock above and holds the one below, which may be the one that was asked for.
    pub(super) fn is_true(self, queues: &Queues, (above, below): (u32, u32), asked: Option<&Asked>) -> bool {
        let Some(owner) = queues.owner(self.owner) else { return false };
        let link = queues.link(self.link).filter(|link| link.queue == above);
        let waits = link.and_then(|link| queues.waiter(link.waiter)).is_some_and(|waiter| waiter.owner == self.owner);
        let holds = || match asked {
            Some(asked) if below == NIL => asked.holders.iter().any(|(user, name)| (*user, name) == (owner.user, &owner.name)),
            _ => owner.holds.contains(below),
        };
        waits && holds()
    }
}

/// The locks next to one.
#[derive(Default)]
pub(super) struct Found {
    pub(super) edges: Vec<Edge>,
    /// An edge upwards to a lock that trees do not show.
    pub(super) elsewhere: Option<Edge>,
    /// Whether those are all.
    pub(super) whole: bool,
}

/// A walk over the locks for which holders of a lock wait.
pub(super) struct Up {
    pub(super) queue: u32,
    /// The present holder, the present one of its waiters, and the next place of that one.
    holder: usize,
    waiter: usize,
    place: usize,
    known: BTreeSet<u32>,
    found: Found,
}

impl Up {
    pub(super) fn new(queue: u32) -> Up {
        Up { queue, holder: 0, waiter: 0, place: 0, known: BTreeSet::new(), found: Found::default() }
    }

    /// The number of the present holder; `None` behind the last one. Nothing may be known of a holder of a lock without a queue.
    fn holder(&self, queues: &Queues, asked: Option<&Asked>) -> Option<Option<u32>> {
        if self.queue == NIL {
            let (user, name) = asked?.holders.get(self.holder)?;
            return Some(queues.find_owner(*user, name));
        }
        queues.get(self.queue)?.holders.get(self.holder).map(|&(owner, _)| Some(owner))
    }

    /// `None` if the slice has ended before the walk.
    pub(super) fn go_on(&mut self, view: View<'_>, asked: Option<&Asked>, budget: &mut Budget) -> Option<Found> {
        let queues = view.queues;
        while let Some(holder) = self.holder(queues, asked) {
            budget.goes_on()?;
            let waits = holder.and_then(|owner| queues.owner(owner)).map(|node| &node.waits[..]).unwrap_or_default();
            let Some((owner, &waiter)) = holder.zip(waits.get(self.waiter)) else {
                (self.holder, self.waiter, self.place) = (self.holder + 1, 0, 0);
                if budget.step() {
                    continue;
                }
                return Some(std::mem::take(&mut self.found));
            };
            let Some(&link) = queues.waiter(waiter).and_then(|waiter| waiter.links.get(self.place)) else {
                (self.waiter, self.place) = (self.waiter + 1, 0);
                continue;
            };
            self.place += 1;
            if !budget.step() {
                return Some(std::mem::take(&mut self.found));
            }
            let Some(lock) = queues.link(link).map(|link| link.queue) else { continue };
            let edge = Edge { lock, owner, link };
            if view.seen(lock).is_none() {
                self.found.elsewhere = self.found.elsewhere.or(Some(edge));
            } else if lock != self.queue && self.known.insert(lock) {
                self.found.edges.push(edge);
            }
        }
        Some(Found { whole: true, ..std::mem::take(&mut self.found) })
    }
}

/// A walk over the locks with waiters that waiters for a lock hold.
pub(super) struct Down {
    pub(super) queue: u32,
    /// The present place in the queue and its order, by which it is known again, and the next lock that its owner holds.
    pub(super) place: Option<(u32, i64)>,
    held: u32,
    known: BTreeSet<u32>,
    found: Found,
}

impl Down {
    pub(super) fn new(queues: &Queues, queue: u32) -> Down {
        let place = place(queues, queues.first(queue));
        Down { queue, place, held: 0, known: BTreeSet::new(), found: Found::default() }
    }

    /// `None` if the slice has ended before the walk. If its place has gone meanwhile, it cannot find the rest.
    pub(super) fn go_on(&mut self, view: View<'_>, budget: &mut Budget) -> Option<Found> {
        let queues = view.queues;
        while let Some((number, order)) = self.place {
            budget.goes_on()?;
            let link = queues.link(number).filter(|link| (link.queue, link.order) == (self.queue, order));
            let owner = link.and_then(|link| queues.waiter(link.waiter)).map(|waiter| waiter.owner);
            let more = budget.step();
            let Some(owner) = owner.filter(|_| more) else { return Some(std::mem::take(&mut self.found)) };
            match queues.owner(owner).and_then(|node| node.holds.next(self.held)) {
                Some((lock, next)) => {
                    self.held = next;
                    if lock != self.queue && view.contended(lock).is_some() && self.known.insert(lock) {
                        self.found.edges.push(Edge { lock, owner, link: number });
                    }
                }
                None => (self.place, self.held) = (place(queues, queues.behind(number)), 0),
            }
        }
        Some(Found { whole: true, ..std::mem::take(&mut self.found) })
    }
}

fn place(queues: &Queues, link: Option<u32>) -> Option<(u32, i64)> {
    let link = link?;
    Some((link, queues.link(link)?.order))
}
