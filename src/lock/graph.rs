//! The graph of who waits for whom, and whether one more wait would close a cycle in it.
//!
//! An owner waits for every holder of a name that it does not go with, and for everyone before it in the queue that it does not go
//! with. The edges are not kept: they are what the queues say. Nor are they walked one by one. Whoever stands before a waiter in its
//! queue waits for the same holders, and so leads nowhere else unless its owner waits for something beside; queues count those. So a
//! step of the search is a queue, and one that many thousand wait in is no more than its holders.
//!
//! Most often there is nothing to search: a cycle leads back to the owner that is about to wait, and nobody waits for one that holds
//! nothing that others wait for, and waits nowhere yet.

use std::collections::BTreeMap;

use crate::lock::grant::Mode;
use crate::lock::queue::{Link, Queues};

/// One owner of a cycle, and what it waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The owner.
    pub owner: Vec<u8>,
    /// The name that it waits for.
    pub waits_for: Vec<u8>,
    /// Whether the next owner of the cycle holds that name; otherwise it stands before this one in its queue.
    pub held: bool,
}

/// What is known of a wait that is about to begin.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    /// The owner.
    pub owner: &'a [u8],
    /// How it wants the names.
    pub mode: Mode,
    /// It shares the name already, and will stand before all others.
    pub upgrade: bool,
    /// It wants all of them at once.
    pub all: bool,
    /// The queues that it will stand in.
    pub queues: &'a [u32],
}

/// A queue on the way, as far as what stands in it before some place.
struct Node {
    queue: u32,
    /// What has an order from here on is behind.
    before: i64,
    mode: Mode,
    /// The owner that waits in it there, and whether it was found as a holder of the queue before.
    owner: Option<(u32, bool)>,
    /// Where it was come from.
    from: usize,
}

/// The cycle that a wait would close, from its owner on; `None` where it would close none.
pub fn find_cycle(queues: &Queues, wish: Wish<'_>) -> Option<Vec<Step>> {
    let wanting = queues.find_owner(wish.owner)?;
    let known = queues.owner(wanting)?;
    if known.holds.is_empty() && known.waits.is_empty() {
        return None;
    }
    let mut search = Search { queues, wish, wanting, nodes: Vec::new(), seen: BTreeMap::new() };
    for &queue in wish.queues {
        let before = if wish.upgrade { i64::MIN } else { i64::MAX };
        if !wish.all && search.is_covered(wanting, queue, before, wish.mode) {
            continue;
        }
        search.nodes.push(Node { queue, before, mode: wish.mode, owner: None, from: usize::MAX });
    }
    let roots = search.nodes.len();
    let mut at = 0;
    while at < search.nodes.len() {
        if let Some(held) = search.visit(at, at < roots) {
            return Some(search.path(at, held));
        }
        at += 1;
    }
    None
}

struct Search<'a> {
    queues: &'a Queues,
    wish: Wish<'a>,
    wanting: u32,
    nodes: Vec<Node>,
    /// How far each queue was looked through by those who want it alone, and by those who share it.
    seen: BTreeMap<(u32, bool), i64>,
}

impl Search<'_> {
    /// Looks for the wanting owner among those a node waits for: whether it was found, as a holder or not. Puts all others that wait
    /// themselves behind the nodes.
    fn visit(&mut self, at: usize, root: bool) -> Option<bool> {
        let Node { queue: number, before, mode, .. } = self.nodes[at];
        let queue = self.queues.get(number)?;
        if !root && self.wish.upgrade && self.wish.queues.contains(&number) {
            // It will stand before all of them, and holds the name with others until then.
            return Some(true);
        }
        // Those who share wait for what stands before the last one there who does not, and for that one.
        let bound = match mode {
            Mode::Exclusive => Some(before),
            Mode::Shared if queue.exclusive == 0 => None,
            Mode::Shared => self.last_exclusive(number, before),
        };
        let for_all = mode == Mode::Exclusive || bound.is_some();
        for &(holder, held) in &queue.holders {
            if !for_all && held == Mode::Shared {
                continue;
            }
            if holder == self.wanting {
                // What it holds of what it wants itself is what it shares.
                if root {
                    continue;
                }
                return Some(true);
            }
            self.follow(holder, true, at);
        }
        let bound = bound?;
        let stands_before = |link: &Link| link.queue == number && link.order < bound;
        for &waiter in self.queues.owner(self.wanting).map(|owner| &owner.waits[..]).unwrap_or_default() {
            let Some(waiter) = self.queues.waiter(waiter) else { continue };
            let mut links = waiter.links.iter().filter_map(|&link| self.queues.link(link));
            if !root && links.any(|link| stands_before(&link)) {
                return Some(false);
            }
        }
        // One that shares the name, or waits to share it, and wants it alone together with others, has those to wait for who stand
        // before it and wait for it.
        let known = self.queues.owner(self.wanting);
        let twice = root && known.is_some_and(|owner| owner.holds.contains(&number) || self.waits_in(&owner.waits, number));
        if queue.complex > 0 || twice {
            let before: Vec<u32> = self.queues.links_of(number).take_while(stands_before).map(|link| link.waiter).collect();
            for waiter in before {
                if let Some(owner) = self.queues.waiter(waiter).map(|waiter| waiter.owner)
                    && owner != self.wanting
                {
                    self.follow(owner, false, at);
                }
            }
        }
        None
    }

    fn waits_in(&self, waiters: &[u32], queue: u32) -> bool {
        waiters.iter().any(|&waiter| self.queues.queues_of(waiter).any(|of| of == queue))
    }

    /// Whether an owner will be granted what it wants in a queue together with what it waits for there already, before some place.
    fn is_covered(&self, owner: u32, queue: u32, before: i64, mode: Mode) -> bool {
        let waits = self.queues.owner(owner).map(|owner| &owner.waits[..]).unwrap_or_default();
        waits.iter().filter_map(|&waiter| self.queues.waiter(waiter)).any(|waiter| {
            let covers = waiter.wanted.mode == Mode::Exclusive || waiter.wanted.mode == mode;
            let mut links = waiter.links.iter().filter_map(|&link| self.queues.link(link));
            covers && links.any(|link| link.queue == queue && link.order < before)
        })
    }

    /// The order right behind the last waiter before some place that wants to be alone.
    fn last_exclusive(&self, queue: u32, before: i64) -> Option<i64> {
        let ahead = self.queues.links_of(queue).take_while(|link| link.order < before);
        let exclusive =
            ahead.filter(|link| self.queues.waiter(link.waiter).is_some_and(|waiter| waiter.wanted.mode == Mode::Exclusive));
        exclusive.last().map(|link| link.order + 1)
    }

    /// Puts all that an owner waits for behind the nodes, as far as it was not looked through.
    fn follow(&mut self, owner: u32, held: bool, from: usize) {
        let Some(node) = self.queues.owner(owner) else { return };
        for &waiter in &node.waits {
            // Who waits for one of several permits waits for nobody in particular.
            let Some(waiter) = self.queues.waiter(waiter).filter(|waiter| waiter.wanted.limit <= 1) else { continue };
            for link in waiter.links.iter().filter_map(|&link| self.queues.link(link)) {
                if !waiter.all && self.is_covered(owner, link.queue, link.order, waiter.wanted.mode) {
                    continue;
                }
                let exclusive = waiter.wanted.mode == Mode::Exclusive;
                let seen = self.seen.entry((link.queue, exclusive)).or_insert(i64::MIN);
                if *seen < link.order {
                    *seen = link.order;
                    let (mode, before) = (waiter.wanted.mode, link.order);
                    self.nodes.push(Node { queue: link.queue, before, mode, owner: Some((owner, held)), from });
                }
            }
        }
    }

    /// The way to a node, whose queue the wanting owner holds or stands in.
    fn path(&self, mut at: usize, mut held: bool) -> Vec<Step> {
        let mut steps = Vec::new();
        loop {
            let node = &self.nodes[at];
            let waits_for = self.queues.get(node.queue).map(|queue| queue.name.to_vec()).unwrap_or_default();
            let owner = match node.owner {
                Some((owner, _)) => self.queues.owner(owner).map(|owner| owner.name.to_vec()).unwrap_or_default(),
                None => self.wish.owner.to_vec(),
            };
            steps.push(Step { owner, waits_for, held });
            match node.owner {
                Some((_, found_as_holder)) => (at, held) = (node.from, found_as_holder),
                None => break,
            }
        }
        steps.reverse();
        steps
    }
}

/// A cycle in words: `'x' waits for 'a' held by 'y', who waits for 'b' held by 'x'`.
pub fn describe(cycle: &[Step]) -> Vec<u8> {
    let mut text = Vec::new();
    for (at, step) in cycle.iter().enumerate() {
        if at == 0 {
            text.extend_from_slice(b"'");
            text.extend_from_slice(&step.owner);
            text.extend_from_slice(b"' waits for '");
        } else {
            text.extend_from_slice(b", who waits for '");
        }
        text.extend_from_slice(&step.waits_for);
        text.extend_from_slice(if step.held { b"' held by '" } else { b"' asked for before by '" });
        text.extend_from_slice(&cycle[(at + 1) % cycle.len()].owner);
        text.extend_from_slice(b"'");
    }
    text
}
