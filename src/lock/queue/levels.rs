//! Levels: an order of owners and queues that usually proves without a search that a wait closes no cycle.
//!
//! Everything that an owner leads to has at least its level: a queue it waits in, the holders of that queue, and the waiters of
//! that queue that also wait elsewhere. This covers more than the real waits-for edges (sharers do not wait for each other), so
//! it may contain circles: all nodes of a circle have one level. An owner whose level is below those of all names it is about to
//! wait for cannot be among those it will wait for.
//!
//! All nodes begin at the same level, which proves nothing. After a long search without a cycle, the wanted queues and everything
//! they lead to are lifted above the owner: as much work once more, and the next such wait needs no search. Levels stay valid
//! when a wait ends, so nothing is done then. (Levels for incremental cycle detection are from Bender, Fineman, Gilbert and
//! Tarjan, 2015.)

use super::Queues;

/// An owner or a queue.
#[derive(Clone, Copy, Debug)]
enum Node {
    Owner(u32),
    Queue(u32),
}

/// An owner that holds more than this many names is not lowered again.
const LOOKED_AT: usize = 8;

impl Queues {
    /// Whether the levels prove that none of these queues leads to an owner that waits nowhere yet.
    pub(in crate::lock) fn is_below(&mut self, owner: u32, queues: &[u32]) -> bool {
        let Some(node) = self.owners.get(owner).filter(|node| node.waits.is_empty()) else { return false };
        // Such an owner leads to nothing: only the names it holds limit its level from below.
        let held = node.holds.iter().take(LOOKED_AT + 1);
        let (count, highest) = held.fold((0, 0), |(count, level), queue| (count + 1, level.max(self.level(Node::Queue(queue)))));
        if count <= LOOKED_AT
            && let Some(node) = self.owners.get_mut(owner)
        {
            node.level = highest;
        }
        let level = self.level(Node::Owner(owner));
        queues.iter().all(|&queue| self.level(Node::Queue(queue)) > level)
    }

    /// Lifts queues, and everything they lead to, above an owner that they do not lead to. Undoes this if it takes more than
    /// `steps`.
    pub(in crate::lock) fn put_above(&mut self, owner: u32, queues: &[u32], steps: u32) {
        let level = self.level(Node::Owner(owner)).saturating_add(1);
        let mut before = Vec::new();
        let mut steps = steps as usize;
        for &queue in queues {
            if !self.lift(Node::Queue(queue), level, &mut steps, Some(&mut before)) {
                before.into_iter().rev().for_each(|(node, level)| self.set_level(node, level));
                return;
            }
        }
    }

    /// Must be called when an owner holds another name.
    pub(super) fn order_holder(&mut self, queue: u32, owner: u32) {
        let level = self.level(Node::Queue(queue));
        self.lift(Node::Owner(owner), level, &mut { usize::MAX }, None);
    }

    /// Must be called when an owner waits in other queues than before.
    pub(super) fn order_waits(&mut self, owner: u32) {
        // Fast path: the owner waits for one name.
        if let Some(node) = self.owners.get(owner)
            && let [waiter] = node.waits[..]
            && let mut queues = self.queues_of(waiter)
            && let (Some(queue), None) = (queues.next(), queues.next())
            && node.level <= self.level(Node::Queue(queue))
        {
            return;
        }
        let mut queues = Vec::new();
        self.successors(Node::Owner(owner), &mut queues);
        let mut level = self.level(Node::Owner(owner));
        // An owner that waits in several queues leads from each of them to the others.
        if queues.len() > 1 {
            level = queues.iter().fold(level, |level, &queue| level.max(self.level(queue)));
        }
        for node in queues.into_iter().chain([Node::Owner(owner)]) {
            self.lift(node, level, &mut { usize::MAX }, None);
        }
    }

    /// Lifts a node and everything it leads to up to a level. Counts `steps` down, and returns false if they run out.
    fn lift(&mut self, from: Node, level: u32, steps: &mut usize, mut before: Option<&mut Vec<(Node, u32)>>) -> bool {
        if self.level(from) >= level {
            return true;
        }
        let mut next = vec![from];
        while let Some(node) = next.pop() {
            let was = self.level(node);
            if was >= level {
                continue;
            }
            self.set_level(node, level);
            if let Some(before) = &mut before {
                before.push((node, was));
            }
            let known = next.len();
            self.successors(node, &mut next);
            if let Some(left) = steps.checked_sub(next.len() - known) { *steps = left } else { return false }
        }
        true
    }

    fn successors(&self, node: Node, into: &mut Vec<Node>) {
        match node {
            Node::Owner(owner) => {
                let waits = self.owners.get(owner).map(|owner| &owner.waits[..]).unwrap_or_default();
                into.extend(waits.iter().flat_map(|&waiter| self.queues_of(waiter)).map(Node::Queue));
            }
            Node::Queue(queue) => {
                let Some(found) = self.queues.get(queue) else { return };
                into.extend(found.holders.iter().map(|&(owner, _)| Node::Owner(owner)));
                if found.complex > 0 {
                    let waiters = self.links_of(queue).filter_map(|link| self.waiters.get(link.waiter));
                    into.extend(waiters.filter(|waiter| waiter.complex).map(|waiter| Node::Owner(waiter.owner)));
                }
            }
        }
    }

    fn level(&self, node: Node) -> u32 {
        match node {
            Node::Owner(owner) => self.owners.get(owner).map_or(0, |owner| owner.level),
            Node::Queue(queue) => self.queues.get(queue).map_or(0, |queue| queue.level),
        }
    }

    fn set_level(&mut self, node: Node, level: u32) {
        match node {
            Node::Owner(owner) => {
                if let Some(owner) = self.owners.get_mut(owner) {
                    owner.level = level;
                }
            }
            Node::Queue(queue) => {
                if let Some(queue) = self.queues.get_mut(queue) {
                    queue.level = level;
                }
            }
        }
    }

    /// Panics if a node leads to a node of a lower level. Walks everything.
    pub(super) fn check_levels(&self) {
        let owners = self.owners.iter().map(|(number, _)| Node::Owner(number));
        for node in owners.chain(self.queues.iter().map(|(number, _)| Node::Queue(number))) {
            let mut next = Vec::new();
            self.successors(node, &mut next);
            for to in next {
                assert!(self.level(node) <= self.level(to), "{node:?} leads to {to:?}, which is lower");
            }
        }
    }
}
