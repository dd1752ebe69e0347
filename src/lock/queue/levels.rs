//! Levels: an order of owners and queues that most often tells without a search that a wait closes no cycle.
//!
//! Whatever an owner leads to has its level at least: a queue it waits in, whoever holds what is waited for there, and whoever stands
//! there in line and waits for something else, too. That is more than who really waits for whom (those who share a lock do not wait for
//! each other), so it may go round in a circle: all of such a circle have one level. But an owner with a level below that of all it is
//! about to wait for cannot be among those it will wait for.
//!
//! All begin at the same level, which says nothing. When a search was long and found no cycle, what would be waited for is put above the
//! owner, with everything it leads to: as much work once more, and the next search of that kind is none. Levels of what ceases to wait
//! stay right, so nothing is done then. (Levels for incremental cycle detection are from Bender, Fineman, Gilbert and Tarjan, 2015.)

use super::Queues;

/// An owner or a queue.
#[derive(Clone, Copy, Debug)]
enum Node {
    Owner(u32),
    Queue(u32),
}

/// An owner that holds more than this is not put lower again.
const LOOKED_AT: usize = 8;

impl Queues {
    /// Whether the levels say that none of these queues leads to an owner that waits nowhere yet.
    pub(in crate::lock) fn is_below(&mut self, owner: u32, queues: &[u32]) -> bool {
        let Some(node) = self.owners.get(owner).filter(|node| node.waits.is_empty()) else { return false };
        // It leads to nothing: what it holds alone keeps it where it is.
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

    /// Puts queues, and all they lead to, above an owner that they do not lead to; not where that takes more than so many steps.
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

    /// To be called when an owner holds another name.
    pub(super) fn order_holder(&mut self, queue: u32, owner: u32) {
        let level = self.level(Node::Queue(queue));
        self.lift(Node::Owner(owner), level, &mut { usize::MAX }, None);
    }

    /// To be called when an owner waits in other queues than before.
    pub(super) fn order_waits(&mut self, owner: u32) {
        // One that waits for one thing, most often.
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
        // Whoever waits in several leads from each of them to the others.
        if queues.len() > 1 {
            level = queues.iter().fold(level, |level, &queue| level.max(self.level(queue)));
        }
        for node in queues.into_iter().chain([Node::Owner(owner)]) {
            self.lift(node, level, &mut { usize::MAX }, None);
        }
    }

    /// Lifts what is lower, and all it leads to, to a level. Tells whether it took no more than so many steps, which are counted down.
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
            match steps.checked_sub(next.len() - known) {
                Some(left) => *steps = left,
                None => return false,
            }
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

    /// Panics where anything leads to something of a lower level. Walks everything.
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
