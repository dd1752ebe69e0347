//! Which locks block which: the trees that `LOCK.GRAPH` shows.
//!
//! ```text
//!   root: its holders wait for nothing
//!    └─ a lock that a waiter for the root holds: its own waiters wait for the root, too
//!        └─ …
//! ```
//!
//! Only locks with waiters are nodes, and the lock that is asked for. A semaphore with several permits is a root: none of its
//! holders blocks its waiters alone. A tree has the locks of one database that the user may see. A node says if a holder of its lock
//! waits for another one.
//!
//! The work is bounded. What is beyond the bound is left out: the node above it is marked as cut, and the forest as partial. Each
//! part of the work has a share of the bound, so that what was found can always be shown.
//!
//! The work can be done in slices, and the graph may change between them. Numbers of queues, owners and places may mean others in the
//! next slice, so they are looked up each time. A node is checked and gets its names at the moment when it is added: its lock has
//! waiters then, and its owner holds it and waits for the lock above. What is found late may not fit what was found early: a root
//! may wait by the time it is shown.

mod walk;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};

use foldhash::fast::FixedState;

use crate::base::ids::{Key, KeyBuf};
use crate::lock::grant::{Owner, UserKey};
use crate::lock::graph::forest::walk::{Budget, Down, Edge, Found, Up, View};
use crate::lock::queue::{NIL, Queues};

/// Maximum numbers of holders and waiters that are looked at, 100,000 together: to find the locks whose holders wait for nothing;
/// to climb to them from the locks that were found, if there are too many to look at all; to count who waits behind each; and to
/// show the trees.
const FIND_MAX: u32 = 60_000;
const CLIMB_MAX: u32 = 5_000;
const COUNT_MAX: u32 = 20_000;
const SHOW_MAX: u32 = 15_000;

/// A lock in a tree. The nodes stand in pre-order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Number of locks above it.
    pub depth: u32,
    /// Its name.
    pub name: Box<[u8]>,
    /// The owner that holds it and waits for the lock above.
    pub via: Option<Owner>,
    /// Number of waiters for it. Only the lock that was asked for may have none.
    pub waiters: u64,
    /// Number of waiters here and below. Of a waiter for several names each place counts.
    pub blocked: u64,
    /// Whether what is below it is shown elsewhere or left out.
    pub cut: bool,
    /// That a holder of the lock waits for another database, or for a lock that is not seen.
    pub elsewhere: Option<Elsewhere>,
}

/// A lock that is not in the trees, and a holder that waits for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    /// The lock, if it is seen.
    pub lock: Option<KeyBuf>,
    /// The holder.
    pub owner: Owner,
}

/// The lock that is asked for.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Its name.
    pub name: Box<[u8]>,
    /// Its holders, or some of them.
    pub holders: Vec<(UserKey, Owner)>,
}

/// The locks that trees are made of: those of a database that are seen. A lock that is not seen is like one of another database.
#[derive(Clone, Copy)]
pub struct Among<'a> {
    /// The database.
    pub db: u32,
    /// Whether a name is seen.
    pub sees: &'a dyn Fn(&[u8]) -> bool,
}

/// The parts of the work, in their order. The first one is `Above` if a lock is asked for, and otherwise `Find`.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Part {
    /// Looks at all locks for those whose holders wait for nothing.
    #[default]
    Find,
    /// Climbs to the roots above locks that were not looked at, in as far as they can be reached; otherwise as far as it comes.
    Climb,
    /// Looks for the roots above the lock that is asked for.
    Above,
    /// Computes the sums of waiters.
    Count,
    Show,
    Done,
}

/// A lock to show.
#[derive(Clone, Copy)]
struct Open {
    /// From the lock above.
    edge: Edge,
    depth: u32,
    /// The node above and its queue.
    above: Option<(usize, u32)>,
    /// Whether all of it is shown, not only the path to the lock that is asked for.
    whole: bool,
}

/// A count of the waiters at and below a lock.
struct Counting {
    /// The locks that were found, and those of them whose waiters were not counted yet.
    known: BTreeSet<u32>,
    next: Vec<u32>,
    /// What was found from the last one that was counted.
    found: Vec<Edge>,
    waiters: u64,
}

/// What is known so far of the lock that is being shown.
#[derive(Default)]
struct Visit {
    counting: Option<Counting>,
    blocked: Option<u64>,
    /// The number of its node.
    node: Option<usize>,
}

/// Locks that are put in order: those with the most blocked waiters first, then those with the longest wait.
struct Ranking {
    edges: Vec<Edge>,
    /// Number of those that were looked at.
    looked_at: usize,
    /// The first `most` of those: the number of blocked waiters, the start of the longest wait, and the index.
    first: BinaryHeap<(Reverse<u64>, u64, usize)>,
    most: usize,
    /// What they have in common.
    like: Open,
}

/// The trees of a database, those with the most blocked waiters first, and then those with the longest wait; with a lock that is
/// asked for, the paths from the roots to it, and what is below it.
#[derive(Default)]
pub struct Forest {
    asked: Option<Asked>,
    /// The queue of the lock that is asked for; [`NIL`] if it has none.
    start: Option<u32>,
    /// Maximum number of nodes.
    count: usize,
    /// Whether only the roots are nodes.
    roots_only: bool,
    budget: Budget,
    part: Part,
    /// The walks that are under way.
    up: Option<Up>,
    down: Option<Down>,
    nodes: Vec<Node>,
    is_partial: bool,
    /// The next queue or lock of the present part of the work.
    at: usize,
    /// An upper bound of the numbers of the queues when the work began.
    end: Option<u32>,
    /// All locks that were looked at, in the order of their numbers, and the number of those that may not be below a root.
    all: Vec<u32>,
    rest: usize,
    /// Locks for which holders of those wait.
    awaited: Vec<u32>,
    roots: Vec<u32>,
    /// The lock that a climb or a sum has come to.
    here: Option<u32>,
    climbed: BTreeSet<u32>,
    /// The locks above the one that is asked for, those of them that were not looked at, and what was found from the last one that
    /// was.
    above: BTreeSet<u32>,
    next: Vec<u32>,
    found: (u32, std::vec::IntoIter<Edge>),
    /// The edges from the lock that is asked for, if it has no queue, by the locks above it.
    asked_parents: BTreeMap<u32, Edge>,
    /// Waiters at and below each lock, counted once for each path.
    sums: HashMap<u32, u64, FixedState>,
    /// Whether a lock has several locks above it: paths meet there.
    meets: bool,
    /// From the root whose sum is computed to the present lock, each with the locks below it that are left.
    path: Vec<(u32, Vec<Edge>)>,
    /// The locks that are to be shown, the next one last.
    open: Vec<Open>,
    visit: Visit,
    ranking: Option<Ranking>,
    shown: BTreeSet<u32>,
}

impl Forest {
    /// The trees, or those of a lock that is asked for. At most `count` nodes.
    pub fn new(asked: Option<Asked>, count: usize) -> Forest {
        let part = if asked.is_some() { Part::Above } else { Part::Find };
        Forest { asked, count, part, budget: Budget { slice: 0, share: FIND_MAX }, ..Forest::default() }
    }

    /// The roots of the trees in the same order, each without what is below it. At most `count` roots; the result is partial if
    /// there are more.
    pub fn roots(count: usize) -> Forest {
        Forest { roots_only: true, ..Forest::new(None, count) }
    }

    /// Does a slice of the work, of about so many steps: holders, waiters, and whatever else takes as long at most. Returns whether
    /// that was the last one. `among` must be the same each time.
    pub fn go_on(&mut self, queues: &Queues, among: Among<'_>, steps: u32) -> bool {
        self.budget.slice = steps.max(1);
        let view = View { queues, among };
        self.look_for_asked(view);
        while self.part != Part::Done {
            let next = match self.part {
                Part::Find => self.find(view),
                Part::Climb => self.climb(view),
                Part::Above => self.look_above(view),
                Part::Count => self.count(view),
                Part::Show | Part::Done => self.show(view),
            };
            let Some(next) = next else { return false };
            self.part = next;
        }
        true
    }

    /// The nodes, in pre-order. More may come, and they may be marked as cut, until the work is done.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Takes the nodes.
    pub fn take_nodes(&mut self) -> Vec<Node> {
        std::mem::take(&mut self.nodes)
    }

    /// Whether the work met its bound: there may be more locks, other roots, and more blocked waiters.
    pub fn is_partial(&self) -> bool {
        self.is_partial
    }

    /// Looks for the queue of the lock that is asked for. If the lock has lost it meanwhile, the work begins again, as for a lock
    /// without a queue, so that this happens once.
    fn look_for_asked(&mut self, View { queues, among }: View<'_>) {
        let Some(asked) = self.asked.take_if(|_| self.start != Some(NIL)) else { return };
        let queue = queues.find(Key { db: among.db, name: &asked.name });
        let queue = queue.filter(|&queue| queues.get(queue).is_some_and(|queue| queue.len > 0)).unwrap_or(NIL);
        if self.start.is_some_and(|start| start != queue) {
            let slice = self.budget.slice;
            *self = Forest { start: Some(NIL), ..Forest::new(Some(asked), self.count) };
            self.budget.slice = slice;
        } else {
            (self.asked, self.start) = (Some(asked), Some(queue));
        }
    }

    /// Ends a share of the work.
    fn end_share(&mut self) {
        self.is_partial |= self.budget.share == 0;
    }

    /// Begins the next share, to which the rest of the present one is added.
    fn next_share(&mut self, steps: u32) {
        self.end_share();
        self.budget.share += steps;
        self.at = 0;
    }

    /// The locks for which holders of a lock wait.
    fn parents(&mut self, view: View<'_>, queue: u32) -> Option<Found> {
        self.budget.goes_on()?;
        let mut walk = self.up.take().filter(|walk| walk.queue == queue).unwrap_or_else(|| Up::new(queue));
        let found = walk.go_on(view, self.asked.as_ref(), &mut self.budget);
        match found {
            Some(_) => self.budget.spend(),
            None => self.up = Some(walk),
        }
        found
    }

    /// The locks with waiters that waiters for a lock hold.
    fn children(&mut self, view: View<'_>, queue: u32) -> Option<Found> {
        self.budget.goes_on()?;
        let walk = self.down.take().filter(|walk| walk.queue == queue);
        let mut walk = walk.unwrap_or_else(|| Down::new(view.queues, queue));
        let Some(mut found) = walk.go_on(view, &mut self.budget) else {
            self.down = Some(walk);
            return None;
        };
        self.budget.spend();
        if let Some(&edge) = self.asked_parents.get(&queue).filter(|_| found.whole) {
            found.edges.push(Edge { lock: NIL, ..edge });
        }
        Some(found)
    }

    fn find(&mut self, view: View<'_>) -> Option<Part> {
        let end = *self.end.get_or_insert(view.queues.numbers());
        while let Some(number) = u32::try_from(self.at).ok().filter(|&at| at < end && self.budget.share > 0) {
            self.budget.goes_on()?;
            let queue = view.queues.get(number).filter(|queue| queue.db == view.among.db && queue.len > 0);
            if queue.is_none() {
                self.budget.spend();
            } else if view.seen(number).is_none() {
                self.budget.step();
            } else {
                let parents = self.parents(view, number)?.edges;
                let is_last = !self.budget.step();
                // It is not known whether all of its holders were looked at, and it is no root if one of them waits.
                if is_last && !self.all.is_empty() {
                    break;
                }
                self.meets |= parents.len() > 1;
                self.all.push(number);
                if let Some(parent) = parents.first() { self.awaited.push(parent.lock) } else { self.roots.push(number) }
            }
            self.at += 1;
        }
        self.next_share(CLIMB_MAX);
        if !self.is_partial {
            self.awaited.clear();
        }
        Some(Part::Climb)
    }

    fn climb(&mut self, view: View<'_>) -> Option<Part> {
        loop {
            self.budget.goes_on()?;
            if let Some(here) = self.here {
                let parents = self.parents(view, here)?.edges;
                self.here = None;
                if parents.is_empty() || !self.budget.step() {
                    self.roots.push(here);
                } else {
                    self.here = parents.into_iter().map(|edge| edge.lock).find(|&lock| self.is_new(lock));
                }
                continue;
            }
            let Some(&start) = self.awaited.get(self.at).filter(|_| self.budget.share > 0) else { break };
            self.at += 1;
            self.budget.spend();
            self.here = self.is_new(start).then_some(start);
        }
        self.next_share(COUNT_MAX);
        self.sums.reserve(self.all.len() + self.climbed.len());
        Some(Part::Count)
    }

    /// Whether a climb comes to a lock for the first time, and it was not looked at before.
    fn is_new(&mut self, lock: u32) -> bool {
        self.all.binary_search(&lock).is_err() && self.climbed.insert(lock)
    }

    fn look_above(&mut self, view: View<'_>) -> Option<Part> {
        let start = self.start.unwrap_or(NIL);
        if self.above.insert(start) {
            self.next.push(start);
        }
        loop {
            self.budget.goes_on()?;
            if let Some(edge) = self.found.1.next() {
                self.budget.spend();
                if self.above.insert(edge.lock) {
                    self.next.push(edge.lock);
                }
                if self.found.0 == NIL {
                    self.asked_parents.insert(edge.lock, edge);
                }
                continue;
            }
            let Some(&queue) = self.next.last() else { break };
            let parents = self.parents(view, queue)?.edges;
            self.next.pop();
            if parents.is_empty() || self.budget.share == 0 {
                self.roots.push(queue);
            }
            self.meets |= parents.len() > 1;
            self.found = (queue, parents.into_iter());
        }
        self.above.remove(&start);
        self.next_share(COUNT_MAX);
        Some(Part::Count)
    }

    fn count(&mut self, view: View<'_>) -> Option<Part> {
        loop {
            self.sum(view)?;
            self.budget.goes_on()?;
            self.budget.spend();
            if let Some(&root) = self.roots.get(self.at) {
                self.at += 1;
                self.here = Some(root);
            } else if let Some(&lock) = self.all.get(self.rest).filter(|_| self.budget.share > 0) {
                // Semaphores may wait for each other without a root: no wait for them is refused.
                self.rest += 1;
                if !self.sums.contains_key(&lock) {
                    self.roots.push(lock);
                }
            } else {
                break;
            }
        }
        self.next_share(SHOW_MAX);
        self.is_partial |= self.roots_only && self.roots.len() > self.count;
        let whole = self.asked.is_none();
        let like = Open { edge: Edge::root(NIL), depth: 0, above: None, whole };
        self.rank(self.roots.iter().copied().map(Edge::root).collect(), self.count, like);
        Some(Part::Show)
    }

    /// Computes the sums of a lock and of those below it.
    fn sum(&mut self, view: View<'_>) -> Option<()> {
        loop {
            if let Some(here) = self.here {
                let children = self.children(view, here)?.edges;
                self.here = None;
                // A lock on the path has a sum meanwhile, so that a circle ends.
                self.sums.insert(here, view.len(here));
                self.path.push((here, children));
            }
            self.budget.goes_on()?;
            let Some((queue, children)) = self.path.last_mut() else { return Some(()) };
            self.budget.spend();
            let queue = *queue;
            match children.pop() {
                Some(child) => match self.sums.get(&child.lock).copied() {
                    Some(sum) => {
                        self.meets = true;
                        *self.sums.entry(queue).or_default() += sum;
                    }
                    None => self.here = Some(child.lock),
                },
                None => {
                    self.path.pop();
                    let sum = self.sums.get(&queue).copied().unwrap_or(0);
                    if let Some(&(above, _)) = self.path.last() {
                        *self.sums.entry(above).or_default() += sum;
                    }
                }
            }
        }
    }

    /// Number of waiters at and below a lock.
    fn blocked(&mut self, view: View<'_>, root: u32) -> Option<u64> {
        let sum = self.sums.get(&root).copied().unwrap_or(0);
        if !self.meets {
            return Some(sum);
        }
        let begin = || Counting { known: BTreeSet::from([root]), next: vec![root], found: Vec::new(), waiters: 0 };
        let mut counting = self.visit.counting.take().unwrap_or_else(begin);
        let all = self.go_on_counting(view, &mut counting);
        let waiters = counting.waiters;
        if all.is_none() {
            self.visit.counting = Some(counting);
        }
        Some(if all? { waiters } else { sum })
    }

    /// Returns whether it has counted all.
    fn go_on_counting(&mut self, view: View<'_>, Counting { known, next, found, waiters }: &mut Counting) -> Option<bool> {
        loop {
            self.budget.goes_on()?;
            if let Some(edge) = found.pop() {
                self.budget.spend();
                if known.insert(edge.lock) {
                    next.push(edge.lock);
                }
                continue;
            }
            let Some(&queue) = next.last() else { return Some(true) };
            let children = self.children(view, queue)?;
            if !children.whole {
                return Some(false);
            }
            next.pop();
            *waiters += view.len(queue);
            *found = children.edges;
        }
    }

    /// Begins to put locks in order, to show the first `most` of them.
    fn rank(&mut self, edges: Vec<Edge>, most: usize, like: Open) {
        self.ranking = Some(Ranking { edges, looked_at: 0, first: BinaryHeap::new(), most, like });
    }

    /// Goes on putting locks in order, and puts them on top of those that are to be shown.
    fn go_on_ranking(&mut self, view: View<'_>) -> Option<()> {
        let Some(Ranking { edges, looked_at, first, most, like }) = &mut self.ranking else { return Some(()) };
        while let Some(&Edge { lock, .. }) = edges.get(*looked_at) {
            self.budget.goes_on()?;
            self.budget.spend();
            if like.whole || like.depth == 0 || self.above.contains(&lock) || self.start == Some(lock) {
                let blocked = self.sums.get(&lock).copied().unwrap_or(0);
                first.push((Reverse(blocked), view.queues.oldest_since_us(lock).unwrap_or(u64::MAX), *looked_at));
            }
            *looked_at += 1;
            if first.len() > *most {
                first.pop();
            }
        }
        while !first.is_empty() {
            self.budget.goes_on()?;
            self.budget.spend();
            let last = first.pop().and_then(|(.., at)| edges.get(at));
            self.open.extend(last.map(|&edge| Open { edge, ..*like }));
        }
        self.ranking = None;
        Some(())
    }

    fn show(&mut self, view: View<'_>) -> Option<Part> {
        loop {
            self.go_on_ranking(view)?;
            self.budget.goes_on()?;
            let Some(&open) = self.open.last() else { break };
            if self.visit.node.is_none() {
                self.visit.node = self.add_node(view, open)?;
            }
            if let Some(node) = self.visit.node {
                let Found { edges, whole, .. } = self.children(view, open.edge.lock)?;
                self.nodes[node].cut = !whole;
                if !self.roots_only {
                    let (queue, depth) = (open.edge.lock, open.depth + 1);
                    let like = Open { depth, above: Some((node, queue)), whole: open.whole || self.start == Some(queue), ..open };
                    self.rank(edges, usize::MAX, like);
                }
            }
            self.open.pop();
            self.visit = Visit::default();
            self.budget.spend();
        }
        self.end_share();
        Some(Part::Done)
    }

    /// Adds the node of a lock. Returns its number, unless there is nothing more to show of it.
    fn add_node(&mut self, view: View<'_>, open: Open) -> Option<Option<usize>> {
        let (lock, at) = (open.edge.lock, self.nodes.len());
        if at >= self.count {
            if let Some(node) = open.above.and_then(|(above, _)| self.nodes.get_mut(above)) {
                node.cut = true;
            }
            return Some(None);
        }
        if !self.is_true(view, open) {
            return Some(None);
        }
        let blocked = if let Some(blocked) = self.visit.blocked { blocked } else { self.blocked(view, lock)? };
        self.visit.blocked = Some(blocked);
        let elsewhere = self.parents(view, lock)?.elsewhere;
        let asked = self.asked.as_ref();
        let owner = |edge: Edge| view.queues.owner(edge.owner).map(|owner| owner.name.clone());
        let is_elsewhere = |edge: &Edge| view.seen(edge.lock).is_none() && edge.is_true(view.queues, (edge.lock, lock), asked);
        let elsewhere = elsewhere.filter(is_elsewhere).and_then(|edge| {
            let queue = view.queues.get(edge.lock)?;
            let lock = (view.among.sees)(&queue.name).then(|| queue.key().to_buf());
            Some(Elsewhere { lock, owner: owner(edge)? })
        });
        let name = view.queues.get(lock).map(|queue| &queue.name).or(asked.map(|asked| &asked.name)).cloned();
        let again = !self.shown.insert(lock);
        self.nodes.push(Node {
            depth: open.depth,
            name: name.unwrap_or_default(),
            via: owner(open.edge),
            waiters: view.len(lock),
            blocked: blocked.max(view.len(lock)),
            cut: again,
            elsewhere,
        });
        Some((!again).then_some(at))
    }

    /// Whether a lock that is to be shown still has waiters, and an owner that waits for the lock above.
    fn is_true(&self, view: View<'_>, Open { edge, above, .. }: Open) -> bool {
        let is_there = edge.lock == NIL || view.contended(edge.lock).is_some();
        let is_below = |(node, queue): (usize, u32)| {
            // The number may be that of another lock by now.
            let is_same = self.nodes.get(node).zip(view.seen(queue)).is_some_and(|(node, queue)| node.name == queue.name);
            is_same && edge.is_true(view.queues, (queue, edge.lock), self.asked.as_ref())
        };
        is_there && above.is_none_or(is_below)
    }
}

#[cfg(test)]
mod tests;
