//! Which locks block which: the trees that `LOCK.GRAPH` shows.
//!
//! ```text
//!   root: its holders wait for nothing
//!    └─ a lock that a waiter for the root holds: its own waiters wait for the root, too
//!        └─ …
//! ```
//!
//! Only locks with waiters are nodes, and the lock that is asked for. A semaphore with several permits is a root: none of its
//! holders blocks its waiters alone. The work is bounded: what is beyond the bound is left out and marked as cut.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

use foldhash::fast::FixedState;

use crate::lock::grant::Owner;
use crate::lock::queue::{NIL, Queues};

/// Maximum number of holders and waiters that are looked at.
const STEPS_MAX: u32 = 100_000;

/// A lock in a tree. The nodes stand in pre-order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Number of locks above it.
    pub depth: u32,
    /// Its queue; `None` for the lock that was asked for, if nobody waits for it.
    pub queue: Option<u32>,
    /// The number of the owner that holds it and waits for the lock above.
    pub via: Option<u32>,
    /// Number of waiters here and below. Of a waiter for several names each place counts.
    pub blocked: u64,
    /// Whether what is below it is shown elsewhere or left out.
    pub cut: bool,
}

/// The lock that is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// Its holders, or some of them.
    pub holders: &'a [Owner],
}

/// The trees of a database, those with the most blocked waiters first, and then those with the longest wait; with a lock that is asked for, the paths from the roots to
/// it, and what is below it. At most `count` nodes.
pub fn forest(queues: &Queues, db: u32, asked: Option<Asked<'_>>, count: usize) -> Vec<Node> {
    let mut forest = Forest::new(queues, db);
    let roots = match asked {
        Some(asked) => forest.roots_above(asked),
        None => forest.all_roots(),
    };
    forest.trees(roots, count)
}

/// The roots of the trees of a database, in the same order, each without what is below it; and whether these are all of them. At
/// most `count` roots.
pub fn roots(queues: &Queues, db: u32, count: usize) -> (Vec<Node>, bool) {
    let mut forest = Forest::new(queues, db);
    let all = forest.all_roots();
    let first = forest.first(&all, count, |&root| root);
    let is_whole = first.len() == all.len() && forest.steps > 0;
    let node = |queue| {
        let (blocked, cut) = (forest.blocked(queue), !forest.children(queue).1);
        Node { depth: 0, queue: Some(queue), via: None, blocked, cut }
    };
    (first.into_iter().map(node).collect(), is_whole)
}

/// A lock with the owner that holds it and waits for another one.
type Edge = (u32, u32);

struct Forest<'a> {
    queues: &'a Queues,
    db: u32,
    steps: u32,
    /// The queue of the lock that is asked for; [`NIL`] if it has none.
    asked: Option<u32>,
    /// The locks above that one.
    above: BTreeSet<u32>,
    /// The edges from the lock that is asked for, if it has no queue.
    asked_parents: Vec<Edge>,
    /// Waiters at and below each lock, counted once for each path.
    sums: HashMap<u32, u64, FixedState>,
    /// Whether a lock has several locks above it: paths meet there.
    meets: bool,
}

impl<'a> Forest<'a> {
    fn new(queues: &'a Queues, db: u32) -> Self {
        Forest {
            queues,
            db,
            steps: STEPS_MAX,
            asked: None,
            above: BTreeSet::new(),
            asked_parents: Vec::new(),
            sums: HashMap::default(),
            meets: false,
        }
    }

    fn step(&mut self) -> bool {
        self.steps = self.steps.saturating_sub(1);
        self.steps > 0
    }

    fn len(&self, queue: u32) -> u64 {
        self.queues.get(queue).map_or(0, |queue| u64::from(queue.len))
    }

    /// The locks for which an owner waits.
    fn awaited_by(&mut self, owner: u32, into: &mut Vec<Edge>) {
        let queues = self.queues;
        let Some(node) = queues.owner(owner) else { return };
        for &waiter in &node.waits {
            for queue in queues.queues_of(waiter) {
                if !self.step() {
                    return;
                }
                let in_db = queues.get(queue).is_some_and(|found| found.db == self.db);
                if in_db && into.iter().all(|&(known, _)| known != queue) {
                    into.push((queue, owner));
                }
            }
        }
    }

    /// The locks for which holders of a lock wait.
    fn parents(&mut self, queue: u32) -> Vec<Edge> {
        let mut parents = Vec::new();
        if queue == NIL {
            return self.asked_parents.clone();
        }
        let queues = self.queues;
        for &(owner, _) in queues.get(queue).map(|queue| &queue.holders[..]).unwrap_or_default() {
            if !self.step() {
                break;
            }
            self.awaited_by(owner, &mut parents);
        }
        parents.retain(|&(parent, _)| parent != queue);
        parents
    }

    /// The locks with waiters that waiters for a lock hold. Returns whether those are all.
    fn children(&mut self, queue: u32) -> (Vec<Edge>, bool) {
        let queues = self.queues;
        let (mut children, mut seen): (Vec<Edge>, BTreeSet<u32>) = (Vec::new(), BTreeSet::new());
        for owner in queues.links_of(queue).filter_map(|link| Some(queues.waiter(link.waiter)?.owner)) {
            for held in queues.owner(owner).into_iter().flat_map(|node| node.holds.iter()) {
                if !self.step() {
                    return (children, false);
                }
                let shown = queues.get(held).is_some_and(|found| found.db == self.db && found.len > 0);
                if shown && held != queue && seen.insert(held) {
                    children.push((held, owner));
                }
            }
            if !self.step() {
                return (children, false);
            }
        }
        if let Some(&(_, owner)) = self.asked_parents.iter().find(|&&(parent, _)| parent == queue) {
            children.push((NIL, owner));
        }
        (children, true)
    }

    fn all_roots(&mut self) -> Vec<u32> {
        let (mut roots, mut all) = (Vec::new(), Vec::new());
        let (queues, db) = (self.queues, self.db);
        for (number, _) in queues.iter().filter(|(_, queue)| queue.db == db && queue.len > 0) {
            if !self.step() {
                break;
            }
            let parents = self.parents(number);
            self.meets |= parents.len() > 1;
            all.push(number);
            if parents.is_empty() {
                roots.push(number);
            }
        }
        roots.iter().for_each(|&root| self.sum(root));
        // Semaphores may wait for each other without a root: no wait for them is refused.
        for number in all {
            if !self.sums.contains_key(&number) && self.steps > 0 {
                self.sum(number);
                roots.push(number);
            }
        }
        roots
    }

    fn roots_above(&mut self, asked: Asked<'_>) -> Vec<u32> {
        let start = self.queues.find(self.db, asked.name).filter(|&queue| self.len(queue) > 0).unwrap_or(NIL);
        self.asked = Some(start);
        if start == NIL {
            let mut parents = Vec::new();
            for owner in asked.holders.iter().filter_map(|owner| self.queues.find_owner(owner)) {
                self.awaited_by(owner, &mut parents);
            }
            self.asked_parents = parents;
        }
        let (mut roots, mut next) = (Vec::new(), vec![start]);
        let mut seen = BTreeSet::from([start]);
        while let Some(queue) = next.pop() {
            let parents = self.parents(queue);
            if parents.is_empty() || self.steps == 0 {
                roots.push(queue);
            }
            self.meets |= parents.len() > 1;
            next.extend(parents.iter().map(|&(parent, _)| parent).filter(|&parent| seen.insert(parent)));
        }
        seen.remove(&start);
        self.above = seen;
        roots.iter().for_each(|&root| self.sum(root));
        roots
    }

    /// The first `most` of these locks: those with the most blocked waiters, then those with the longest wait.
    fn first<T: Copy>(&self, locks: &[T], most: usize, queue: impl Fn(&T) -> u32) -> Vec<T> {
        let since_us = |number: u32| self.queues.oldest_since_us(number).unwrap_or(u64::MAX);
        let blocked = |number: u32| self.sums.get(&number).copied().unwrap_or(0);
        let rank = |(at, lock): (usize, &T)| (Reverse(blocked(queue(lock))), since_us(queue(lock)), at);
        let mut ranked: Vec<_> = locks.iter().enumerate().map(rank).collect();
        if most < ranked.len() {
            ranked.select_nth_unstable(most);
            ranked.truncate(most);
        }
        ranked.sort_unstable();
        ranked.into_iter().map(|(.., at)| locks[at]).collect()
    }

    /// Computes the sums of a lock and of those below it.
    fn sum(&mut self, root: u32) {
        let mut path: Vec<(u32, Vec<Edge>)> = Vec::new();
        let mut open = root;
        loop {
            // A lock on the path has a sum meanwhile, so that a circle ends.
            let own = self.len(open);
            self.sums.insert(open, own);
            let children = self.children(open).0;
            if children.is_empty() && path.is_empty() {
                return;
            }
            path.push((open, children));
            loop {
                let Some((queue, children)) = path.last_mut() else { return };
                let queue = *queue;
                match children.pop() {
                    Some((child, _)) => match self.sums.get(&child).copied() {
                        Some(sum) => {
                            self.meets = true;
                            *self.sums.entry(queue).or_default() += sum;
                        }
                        None => {
                            open = child;
                            break;
                        }
                    },
                    None => {
                        path.pop();
                        let sum = self.sums.get(&queue).copied().unwrap_or(0);
                        if let Some(&(above, _)) = path.last() {
                            *self.sums.entry(above).or_default() += sum;
                        }
                    }
                }
            }
        }
    }

    /// Number of waiters at and below a lock.
    fn blocked(&mut self, root: u32) -> u64 {
        let sum = self.sums.get(&root).copied().unwrap_or(0);
        if !self.meets {
            return sum;
        }
        let (mut seen, mut next, mut waiters) = (BTreeSet::from([root]), vec![root], 0);
        while let Some(queue) = next.pop() {
            waiters += self.len(queue);
            let (children, all) = self.children(queue);
            if !all {
                return sum;
            }
            next.extend(children.into_iter().map(|(child, _)| child).filter(|&child| seen.insert(child)));
        }
        waiters
    }

    fn trees(&mut self, roots: Vec<u32>, count: usize) -> Vec<Node> {
        struct Open {
            queue: u32,
            via: Option<u32>,
            depth: u32,
            above: Option<usize>,
            /// Whether all of it is shown, not only the path to the lock that is asked for.
            whole: bool,
        }
        let (mut nodes, mut shown): (Vec<Node>, BTreeSet<u32>) = (Vec::new(), BTreeSet::new());
        let whole = self.asked.is_none();
        let open = |queue| Open { queue, via: None, depth: 0, above: None, whole };
        let mut next: Vec<Open> = self.first(&roots, count, |&root| root).into_iter().rev().map(open).collect();
        while let Some(Open { queue, via, depth, above, whole }) = next.pop() {
            if nodes.len() >= count {
                if let Some(node) = above.and_then(|above| nodes.get_mut(above)) {
                    node.cut = true;
                }
                continue;
            }
            let again = !shown.insert(queue);
            let blocked = self.blocked(queue);
            let at = nodes.len();
            nodes.push(Node { depth, queue: (queue != NIL).then_some(queue), via, blocked, cut: again });
            if again {
                continue;
            }
            let whole = whole || self.asked == Some(queue);
            let (mut children, all) = self.children(queue);
            nodes[at].cut = !all;
            children.retain(|&(child, _)| whole || self.above.contains(&child) || self.asked == Some(child));
            let below = self.first(&children, usize::MAX, |&(child, _)| child).into_iter().rev();
            next.extend(below.map(|(queue, via)| Open { queue, via: Some(via), depth: depth + 1, above: Some(at), whole }));
        }
        nodes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::grant::{Bound, Client, Mode};
    use crate::lock::interface::Request;
    use crate::lock::queue::Wanted;

    fn hold(queues: &mut Queues, name: &str, owner: &str) {
        let queue = queues.find_or_make(0, name.as_bytes());
        queues.hold(queue, owner.as_bytes(), Mode::Exclusive);
    }

    fn wait(queues: &mut Queues, name: &str, owner: &str) {
        let queue = queues.find_or_make(0, name.as_bytes());
        let (mode, bound) = (Mode::Exclusive, Bound::Lease);
        let wanted = Wanted { mode, permits: 1, limit: 0, lease_ms: 1, max_hold_ms: 0, delay_ms: 0, bound };
        let request = Request { owner: owner.as_bytes(), client: Client::default(), wanted, id: None };
        queues.enter(&request, (None, 0), (false, false), &[queue]);
    }

    fn shown(queues: &Queues, asked: Option<(&str, &[&str])>, count: usize) -> Vec<String> {
        let holders: Vec<Owner> =
            asked.into_iter().flat_map(|(_, owners)| owners).map(|owner| Owner::from_slice(owner.as_bytes())).collect();
        let asked = asked.map(|(name, _)| Asked { name: name.as_bytes(), holders: &holders });
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let line = |node: Node| {
            let name = node.queue.and_then(|queue| queues.get(queue)).map_or("?".to_owned(), |queue| text(&queue.name));
            let via = node.via.and_then(|owner| queues.owner(owner)).map(|owner| text(&owner.name)).unwrap_or_default();
            format!("{}{name} {via}({}){}", " ".repeat(node.depth as usize), node.blocked, if node.cut { " cut" } else { "" })
        };
        forest(queues, 0, asked, count).into_iter().map(line).collect()
    }

    /// `ann` holds `root`, for which `bob` waits, who holds `mid`, for which `cy` waits, who holds `low`, for which two wait.
    fn chain() -> Queues {
        let mut queues = Queues::new(1);
        for (name, owner) in [("root", "ann"), ("mid", "bob"), ("low", "cy"), ("other", "dan")] {
            hold(&mut queues, name, owner);
        }
        for (name, owner) in [("root", "bob"), ("mid", "cy"), ("low", "x"), ("low", "y"), ("root", "z"), ("other", "w")] {
            wait(&mut queues, name, owner);
        }
        queues
    }

    #[test]
    fn roots_come_first_and_what_they_block_below_them() {
        let queues = chain();
        assert_eq!(shown(&queues, None, 100), ["root (5)", " mid bob(3)", "  low cy(2)", "other (1)"]);
        assert_eq!(shown(&queues, None, 2), ["root (5)", " mid bob(3) cut"]);
        assert_eq!(shown(&queues, None, 0), [""; 0]);
        // The path to a lock, and what is below it.
        assert_eq!(shown(&queues, Some(("mid", &["bob"])), 100), ["root (5)", " mid bob(3)", "  low cy(2)"]);
        assert_eq!(shown(&queues, Some(("low", &["cy"])), 100), ["root (5)", " mid bob(3)", "  low cy(2)"]);
        assert_eq!(shown(&queues, Some(("other", &["dan"])), 100), ["other (1)"]);
        // A lock that nobody waits for is below the one that its holder waits for.
        assert_eq!(shown(&queues, Some(("idle", &["x"])), 100), ["root (5)", " mid bob(3)", "  low cy(2)", "   ? x(0)"]);
        assert_eq!(shown(&queues, Some(("idle", &["nobody"])), 100), ["? (0)"]);
    }

    #[test]
    fn a_lock_below_two_others_is_shown_once_and_counted_once() {
        let mut queues = Queues::new(1);
        // Two share `q`; each waits for another lock, and the holders of both wait for `root`.
        for (name, owner) in [("root", "ann"), ("a", "bob"), ("b", "cy"), ("q", "x"), ("q", "y")] {
            hold(&mut queues, name, owner);
        }
        for (name, owner) in [("root", "bob"), ("root", "cy"), ("a", "x"), ("b", "y"), ("q", "w")] {
            wait(&mut queues, name, owner);
        }
        let whole = ["root (5)", " a bob(2)", "  q x(1)", " b cy(2)", "  q y(1) cut"];
        assert_eq!(shown(&queues, None, 100), whole);
        assert_eq!(shown(&queues, Some(("q", &["x", "y"])), 100), whole);
    }

    #[test]
    fn long_chains_and_circles_end() {
        let mut queues = Queues::new(1);
        for n in 0..10_000 {
            hold(&mut queues, &format!("lock{n}"), &format!("owner{n}"));
            wait(&mut queues, &format!("lock{}", n + 1), &format!("owner{n}"));
        }
        hold(&mut queues, "lock10000", "end");
        let nodes = shown(&queues, None, 3);
        assert_eq!(nodes, ["lock10000 (10000)", " lock9999 owner9999(9999)", "  lock9998 owner9998(9998) cut"]);
        assert_eq!(shown(&queues, Some(("lock7", &["owner7"])), 1), ["lock10000 (10000) cut"]);
        let mut circle = Queues::new(1);
        for n in 0..3 {
            hold(&mut circle, &format!("lock{n}"), &format!("owner{n}"));
            wait(&mut circle, &format!("lock{}", (n + 1) % 3), &format!("owner{n}"));
        }
        assert_eq!(shown(&circle, None, 100).len(), 4, "three, and the first one again");
    }
}
