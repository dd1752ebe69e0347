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

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

use foldhash::fast::FixedState;

use crate::lock::grant::{Owner, UserKey};
use crate::lock::queue::{NIL, Queue, Queues};

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
    /// Its queue; `None` for the lock that was asked for, if nobody waits for it.
    pub queue: Option<u32>,
    /// The number of the owner that holds it and waits for the lock above.
    pub via: Option<u32>,
    /// Number of waiters here and below. Of a waiter for several names each place counts.
    pub blocked: u64,
    /// Whether what is below it is shown elsewhere or left out.
    pub cut: bool,
    /// A queue of another database, or of a lock that is not seen, that a holder of the lock waits in, and the number of that holder.
    pub elsewhere: Option<(u32, u32)>,
}

/// The trees of a database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trees {
    /// The nodes, in pre-order.
    pub nodes: Vec<Node>,
    /// Whether the work met its bound: there may be more locks, other roots, and more blocked waiters.
    pub is_partial: bool,
}

/// The lock that is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// Its holders, or some of them.
    pub holders: &'a [(UserKey, Owner)],
}

/// The locks that trees are made of: those of a database that are seen. A lock that is not seen is like one of another database.
#[derive(Clone, Copy)]
pub struct Among<'a> {
    /// The database.
    pub db: u32,
    /// Whether a name is seen.
    pub sees: &'a dyn Fn(&[u8]) -> bool,
}

/// The trees of a database, those with the most blocked waiters first, and then those with the longest wait; with a lock that is
/// asked for, the paths from the roots to it, and what is below it. At most `count` nodes.
pub fn forest(queues: &Queues, among: Among<'_>, asked: Option<Asked<'_>>, count: usize) -> Trees {
    let mut forest = Forest::new(queues, among);
    let roots = match asked {
        Some(asked) => forest.roots_above(asked),
        None => forest.all_roots(),
    };
    let nodes = forest.trees(roots, count);
    forest.end_share();
    Trees { nodes, is_partial: forest.is_partial }
}

/// The roots of the trees of a database, in the same order, each without what is below it. At most `count` roots; the result is
/// partial if there are more.
pub fn roots(queues: &Queues, among: Among<'_>, count: usize) -> Trees {
    let mut forest = Forest::new(queues, among);
    let all = forest.all_roots();
    let first = forest.first(&all, count, |&root| root);
    let left_out = first.len() < all.len();
    let node = |queue| {
        let (blocked, cut) = (forest.blocked(queue), !forest.children(queue).1);
        Node { depth: 0, queue: Some(queue), via: None, blocked, cut, elsewhere: forest.elsewhere(queue) }
    };
    let nodes = first.into_iter().map(node).collect();
    forest.end_share();
    Trees { nodes, is_partial: forest.is_partial || left_out }
}

/// A lock with the owner that holds it and waits for another one.
type Edge = (u32, u32);

struct Forest<'a> {
    queues: &'a Queues,
    among: Among<'a>,
    /// What is left of the present share of the work.
    steps: u32,
    /// Whether a share was too small.
    is_partial: bool,
    /// The queue of the lock that is asked for; [`NIL`] if it has none.
    asked: Option<u32>,
    /// The locks above that one.
    above: BTreeSet<u32>,
    /// The edges from the lock that is asked for, if it has no queue, and one to a lock that trees do not show.
    asked_parents: Vec<Edge>,
    asked_elsewhere: Option<Edge>,
    /// Waiters at and below each lock, counted once for each path.
    sums: HashMap<u32, u64, FixedState>,
    /// Whether a lock has several locks above it: paths meet there.
    meets: bool,
}

impl<'a> Forest<'a> {
    fn new(queues: &'a Queues, among: Among<'a>) -> Self {
        Forest {
            queues,
            among,
            steps: FIND_MAX,
            is_partial: false,
            asked: None,
            above: BTreeSet::new(),
            asked_parents: Vec::new(),
            asked_elsewhere: None,
            sums: HashMap::default(),
            meets: false,
        }
    }

    fn step(&mut self) -> bool {
        self.steps = self.steps.saturating_sub(1);
        self.steps > 0
    }

    /// Ends a share of the work.
    fn end_share(&mut self) {
        self.is_partial |= self.steps == 0;
    }

    /// Begins the next share, to which the rest of the present one is added.
    fn next_share(&mut self, steps: u32) {
        self.end_share();
        self.steps += steps;
    }

    /// A queue of a lock that is among those that trees are made of.
    fn shown(&self, queue: u32) -> Option<&'a Queue> {
        self.queues.get(queue).filter(|found| found.db == self.among.db && (self.among.sees)(&found.name))
    }

    fn len(&self, queue: u32) -> u64 {
        self.queues.get(queue).map_or(0, |queue| u64::from(queue.len))
    }

    /// The locks for which an owner waits. Returns one that trees do not show.
    fn awaited_by(&mut self, owner: u32, into: &mut Vec<Edge>) -> Option<Edge> {
        let (queues, mut elsewhere) = (self.queues, None);
        let node = queues.owner(owner)?;
        for &waiter in &node.waits {
            for queue in queues.queues_of(waiter) {
                if !self.step() {
                    return elsewhere;
                }
                if self.shown(queue).is_none() {
                    elsewhere = elsewhere.or(Some((queue, owner)));
                } else if into.iter().all(|&(known, _)| known != queue) {
                    into.push((queue, owner));
                }
            }
        }
        elsewhere
    }

    /// The locks for which holders of a lock wait, and one that trees do not show.
    fn awaited_by_holders(&mut self, queue: u32) -> (Vec<Edge>, Option<Edge>) {
        if queue == NIL {
            return (self.asked_parents.clone(), self.asked_elsewhere);
        }
        let (queues, mut parents, mut elsewhere) = (self.queues, Vec::new(), None);
        for &(owner, _) in queues.get(queue).map(|queue| &queue.holders[..]).unwrap_or_default() {
            if !self.step() {
                break;
            }
            elsewhere = elsewhere.or(self.awaited_by(owner, &mut parents));
        }
        parents.retain(|&(parent, _)| parent != queue);
        (parents, elsewhere)
    }

    fn parents(&mut self, queue: u32) -> Vec<Edge> {
        self.awaited_by_holders(queue).0
    }

    /// A lock that trees do not show, and that a holder of a lock waits for.
    fn elsewhere(&mut self, queue: u32) -> Option<Edge> {
        self.awaited_by_holders(queue).1
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
                let shown = self.shown(held).is_some_and(|found| found.len > 0);
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
        let (mut roots, mut all, mut awaited) = (Vec::new(), Vec::new(), Vec::new());
        let (queues, db) = (self.queues, self.among.db);
        for (number, _) in queues.iter().filter(|(_, queue)| queue.db == db && queue.len > 0) {
            if self.shown(number).is_none() {
                if self.step() {
                    continue;
                }
                break;
            }
            let parents = self.parents(number);
            let is_last = !self.step();
            // It is not known whether all of its holders were looked at, and it is no root if one of them waits.
            if is_last && !all.is_empty() {
                break;
            }
            self.meets |= parents.len() > 1;
            all.push(number);
            match parents.first() {
                Some(&(parent, _)) => awaited.push(parent),
                None => roots.push(number),
            }
            if is_last {
                break;
            }
        }
        self.next_share(CLIMB_MAX);
        if self.is_partial {
            let found = self.climb(all.iter().copied().collect(), awaited);
            roots.extend(found);
        }
        self.next_share(COUNT_MAX);
        roots.iter().for_each(|&root| self.sum(root));
        // Semaphores may wait for each other without a root: no wait for them is refused.
        for number in all {
            if !self.sums.contains_key(&number) && self.steps > 0 {
                self.sum(number);
                roots.push(number);
            }
        }
        self.next_share(SHOW_MAX);
        roots
    }

    /// The roots above locks that were not looked at, in as far as they can be reached; otherwise how far it came.
    fn climb(&mut self, mut seen: BTreeSet<u32>, from: Vec<u32>) -> Vec<u32> {
        let mut roots = Vec::new();
        for start in from {
            let mut next = seen.insert(start).then_some(start);
            while let Some(queue) = next.take() {
                let parents = self.parents(queue);
                if parents.is_empty() || !self.step() {
                    roots.push(queue);
                } else {
                    next = parents.into_iter().map(|(parent, _)| parent).find(|&parent| seen.insert(parent));
                }
            }
            if self.steps == 0 {
                break;
            }
        }
        roots
    }

    fn roots_above(&mut self, asked: Asked<'_>) -> Vec<u32> {
        let start = self.queues.find(self.among.db, asked.name).filter(|&queue| self.len(queue) > 0).unwrap_or(NIL);
        self.asked = Some(start);
        if start == NIL {
            let mut parents = Vec::new();
            for owner in asked.holders.iter().filter_map(|(user, owner)| self.queues.find_owner(*user, owner)) {
                let elsewhere = self.awaited_by(owner, &mut parents);
                self.asked_elsewhere = self.asked_elsewhere.or(elsewhere);
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
        self.next_share(COUNT_MAX);
        roots.iter().for_each(|&root| self.sum(root));
        self.next_share(SHOW_MAX);
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
            let (blocked, elsewhere) = (self.blocked(queue), self.elsewhere(queue));
            let at = nodes.len();
            nodes.push(Node { depth, queue: (queue != NIL).then_some(queue), via, blocked, cut: again, elsewhere });
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

    fn all(db: u32) -> Among<'static> {
        Among { db, sees: &|_| true }
    }

    fn hold(queues: &mut Queues, name: &str, owner: &str) {
        hold_in(queues, 0, name, owner);
    }

    fn hold_in(queues: &mut Queues, db: u32, name: &str, owner: &str) {
        let queue = queues.find_or_make(db, name.as_bytes());
        queues.hold(queue, (UserKey(0), owner.as_bytes()), Mode::Exclusive);
    }

    fn wait(queues: &mut Queues, name: &str, owner: &str) {
        wait_in(queues, 0, name, owner);
    }

    fn wait_in(queues: &mut Queues, db: u32, name: &str, owner: &str) {
        let queue = queues.find_or_make(db, name.as_bytes());
        enter(queues, owner, &[queue]);
    }

    fn enter(queues: &mut Queues, owner: &str, names: &[u32]) {
        let (mode, bound) = (Mode::Exclusive, Bound::Lease);
        let wanted = Wanted { mode, permits: 1, limit: 0, lease_ms: 1, max_hold_ms: 0, delay_ms: 0, bound };
        let request = Request { owner: owner.as_bytes(), client: Client::default(), wanted, id: None };
        queues.enter(&request, (None, 0), (false, false), names);
    }

    fn shown(queues: &Queues, asked: Option<(&str, &[&str])>, count: usize) -> Vec<String> {
        let owners = asked.into_iter().flat_map(|(_, owners)| owners);
        let holders: Vec<_> = owners.map(|owner| (UserKey(0), Owner::from_slice(owner.as_bytes()))).collect();
        let asked = asked.map(|(name, _)| Asked { name: name.as_bytes(), holders: &holders });
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let line = |node: Node| {
            let name = node.queue.and_then(|queue| queues.get(queue)).map_or("?".to_owned(), |queue| text(&queue.name));
            let via = node.via.and_then(|owner| queues.owner(owner)).map(|owner| text(&owner.name)).unwrap_or_default();
            format!("{}{name} {via}({}){}", " ".repeat(node.depth as usize), node.blocked, if node.cut { " cut" } else { "" })
        };
        forest(queues, all(0), asked, count).nodes.into_iter().map(line).collect()
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

    #[test]
    fn too_many_locks_are_shown_in_part() {
        // The holders of 50,000 locks wait for `hub`, whose holder waits for `root`: those two are beyond the bound.
        let mut below = Queues::new(1);
        for n in 0..50_000 {
            hold(&mut below, &format!("lock{n}"), &format!("owner{n}"));
            wait(&mut below, &format!("lock{n}"), &format!("waiter{n}"));
        }
        (0..50_000).for_each(|n| wait(&mut below, "hub", &format!("owner{n}")));
        hold(&mut below, "hub", "middle");
        hold(&mut below, "root", "ann");
        wait(&mut below, "root", "middle");
        let trees = forest(&below, all(0), None, 5);
        assert!(trees.is_partial);
        let names = |nodes: &[Node]| -> Vec<String> {
            let name = |node: &Node| below.get(node.queue?).map(|queue| String::from_utf8_lossy(&queue.name).into_owned());
            nodes.iter().filter_map(name).collect()
        };
        assert_eq!(names(&trees.nodes)[..2], ["root", "hub"], "the root is found from below");
        assert_eq!(trees.nodes.len(), 5);
        assert!(trees.nodes[0].blocked > 50_000 && trees.nodes[0].blocked < 100_001, "{:?}", trees.nodes[0]);
        let roots = roots(&below, all(0), 100);
        assert_eq!((names(&roots.nodes), roots.is_partial), (vec!["root".to_owned()], true));

        // As many without any chain: each is shown whole.
        let mut apart = Queues::new(1);
        for n in 0..50_000 {
            hold(&mut apart, &format!("lock{n}"), &format!("owner{n}"));
            wait(&mut apart, &format!("lock{n}"), &format!("waiter{n}"));
        }
        let trees = forest(&apart, all(0), None, 50);
        assert!(trees.is_partial && trees.nodes.len() == 50);
        assert!(trees.nodes.iter().all(|node| !node.cut && node.blocked == 1 && node.depth == 0));
        assert!(!forest(&chain(), all(0), None, 50).is_partial);

        // One lock whose holder waits for more than is looked at.
        let mut one = Queues::new(1);
        hold(&mut one, "one", "boss");
        wait(&mut one, "one", "last");
        let many: Vec<u32> = (0..70_000).map(|n| one.find_or_make(1, format!("lock{n}").as_bytes())).collect();
        enter(&mut one, "boss", &many);
        let trees = forest(&one, all(0), None, 50);
        assert!(trees.is_partial && trees.nodes.len() == 1, "{trees:?}");
    }

    #[test]
    fn a_holder_that_waits_in_another_database_is_told() {
        let mut queues = Queues::new(1);
        for (db, name, owner) in [(0, "here", "bob"), (1, "there", "ann"), (0, "alone", "dan")] {
            hold_in(&mut queues, db, name, owner);
        }
        for (db, name, owner) in [(1, "there", "bob"), (0, "here", "x"), (0, "alone", "y")] {
            wait_in(&mut queues, db, name, owner);
        }
        let told = |nodes: Vec<Node>| -> Vec<Option<(u32, String, String)>> {
            let one = |(queue, owner): (u32, u32)| {
                let (queue, owner) = (queues.get(queue).unwrap(), queues.owner(owner).unwrap());
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                (queue.db, text(&queue.name), text(&owner.name))
            };
            nodes.into_iter().map(|node| node.elsewhere.map(one)).collect()
        };
        let there = Some((1, "there".to_owned(), "bob".to_owned()));
        assert_eq!(told(forest(&queues, all(0), None, 50).nodes), [there.clone(), None]);
        assert_eq!(told(roots(&queues, all(0), 50).nodes), [there.clone(), None]);
        assert_eq!(told(forest(&queues, all(1), None, 50).nodes), [None]);
        // A lock without waiters.
        let holders = [(UserKey(0), Owner::from_slice(b"bob"))];
        let idle = Asked { name: b"idle", holders: &holders };
        assert_eq!(told(forest(&queues, all(0), Some(idle), 50).nodes), [there]);
    }

    #[test]
    fn a_lock_that_is_not_seen_is_only_waited_for() {
        let queues = chain();
        let among = Among { db: 0, sees: &|name| name != b"mid" };
        let line = |node: &Node| {
            let name = |queue| String::from_utf8_lossy(&queues.get(queue).unwrap().name).into_owned();
            (node.depth, node.queue.map(name), node.blocked, node.elsewhere.map(|(queue, _)| name(queue)))
        };
        let named =
            |depth, lock: &str, blocked, behind: Option<&str>| (depth, Some(lock.to_owned()), blocked, behind.map(str::to_owned));
        let all = [named(0, "root", 2, None), named(0, "low", 2, Some("mid")), named(0, "other", 1, None)];
        assert_eq!(forest(&queues, among, None, 100).nodes.iter().map(line).collect::<Vec<_>>(), all);
        assert_eq!(roots(&queues, among, 100).nodes.iter().map(line).collect::<Vec<_>>(), all);
        let holders = [(UserKey(0), Owner::from_slice(b"cy"))];
        let low = Asked { name: b"low", holders: &holders };
        assert_eq!(forest(&queues, among, Some(low), 100).nodes.iter().map(line).collect::<Vec<_>>(), all[1..2]);
    }
}
