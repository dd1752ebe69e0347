//! A long list: a sequence of nodes with the same boundaries as in Redis's quicklist.
//!
//! The number of elements is stored next to each node, so finding an index skips nodes without reading them.

use std::collections::VecDeque;

use crate::store::values::list::node::{Element, Needle, Node};
use crate::store::values::list::{End, Limits};

/// Bytes of a long element that count as one step when it is freed.
const STEP_BYTES: usize = 1 << 16;

/// A node and the number of its elements.
#[derive(Clone, Debug)]
pub struct Link {
    pub node: Node,
    pub count: u32,
}

/// A sequence of nodes.
#[derive(Clone, Debug)]
pub struct Chain {
    pub links: VecDeque<Link>,
    /// Number of elements.
    pub len: usize,
    /// Maximum size of a node, as configured when the chain was created.
    pub limits: Limits,
}

/// The position of an element: the index of its node, and its index in the node.
#[derive(Clone, Copy, Debug)]
pub struct Spot {
    pub link: usize,
    pub index: usize,
}

impl Link {
    fn new(node: Node) -> Link {
        Link { count: node.count() as u32, node }
    }

    fn update_count(&mut self) {
        self.count = self.node.count() as u32;
    }

    /// Number of budget steps for freeing the node.
    pub fn weight(&self) -> usize {
        1 + self.node.allocated() / STEP_BYTES
    }

    fn has_room_for(&self, limits: Limits, element: &[u8]) -> bool {
        // Redis assumes an overhead of eight bytes per entry.
        !self.node.is_plain()
            && !limits.is_long(element.len())
            && !limits.exceeded(self.node.size() + element.len() + 8, self.count as usize + 1)
    }

    fn can_merge(&self, next: &Link, limits: Limits) -> bool {
        !self.node.is_plain()
            && !next.node.is_plain()
            && !limits.exceeded(self.node.size() + next.node.size() - 7, (self.count + next.count) as usize)
    }
}

impl Chain {
    pub fn new(limits: Limits) -> Chain {
        Chain { links: VecDeque::new(), len: 0, limits }
    }

    /// Converts a small list to a chain.
    pub fn of(node: Node, limits: Limits) -> Chain {
        let mut chain = Chain::new(limits);
        if node.count() > 0 {
            chain.len = node.count();
            chain.links.push_back(Link::new(node));
        }
        chain
    }

    fn new_link(&self, element: &[u8]) -> Link {
        if self.limits.is_long(element.len()) {
            return Link { node: Node::plain(element), count: 1 };
        }
        let mut node = Node::default();
        node.insert(node.bounds().end, element);
        Link { node, count: 1 }
    }

    /// Inserts an element into a node, at this index.
    fn put(&mut self, spot: Spot, element: &[u8]) {
        let link = &mut self.links[spot.link];
        let at = link.node.place(spot.index);
        link.node.insert(at, element);
        link.update_count();
    }

    pub fn push(&mut self, end: End, element: &[u8]) {
        self.len += 1;
        let edge = match end {
            End::Left => 0,
            End::Right => self.links.len().saturating_sub(1),
        };
        if let Some(link) = self.links.get(edge)
            && link.has_room_for(self.limits, element)
        {
            let index = if end == End::Left { 0 } else { link.count as usize };
            return self.put(Spot { link: edge, index }, element);
        }
        if let Some(link) = self.links.get_mut(edge) {
            // The node is no longer at an end, so it will hardly grow again.
            link.node.trim();
        }
        let link = self.new_link(element);
        match end {
            End::Left => self.links.push_front(link),
            End::Right => self.links.push_back(link),
        }
    }

    /// The position of the element of this index, which must be below the length. Searches from the nearer end.
    pub fn spot(&self, index: usize) -> Spot {
        if index < self.len / 2 {
            let mut left = index;
            for (number, link) in self.links.iter().enumerate() {
                if left < link.count as usize {
                    return Spot { link: number, index: left };
                }
                left -= link.count as usize;
            }
        } else {
            let mut behind = self.len - index;
            for (number, link) in self.links.iter().enumerate().rev() {
                if behind <= link.count as usize {
                    return Spot { link: number, index: link.count as usize - behind };
                }
                behind -= link.count as usize;
            }
        }
        unreachable!("{index} is not below the length, {}", self.len)
    }

    pub fn get(&self, index: usize) -> Element<'_> {
        let spot = self.spot(index);
        let node = &self.links[spot.link].node;
        node.next(node.place(spot.index)).0
    }

    /// Removes `count` elements at an end. Whole nodes are moved to `removed`.
    pub fn remove_end(&mut self, end: End, mut count: usize, removed: &mut Vec<Link>) {
        count = count.min(self.len);
        self.len -= count;
        while count > 0 {
            let link = match end {
                End::Left => self.links.pop_front(),
                End::Right => self.links.pop_back(),
            };
            let Some(mut link) = link else { return };
            let here = link.count as usize;
            if here <= count {
                count -= here;
                removed.push(link);
                continue;
            }
            link.node.remove(if end == End::Left { 0 } else { here - count }, count);
            link.update_count();
            count = 0;
            match end {
                End::Left => self.links.push_front(link),
                End::Right => self.links.push_back(link),
            }
        }
        if self.links.capacity() > 64 && self.links.len() < self.links.capacity() / 4 {
            self.links.shrink_to(self.links.len() * 2);
        }
    }

    /// Inserts an element before or after another.
    pub fn insert(&mut self, at: Spot, element: &[u8], after: bool) {
        self.len += 1;
        let Spot { link, index } = at;
        let count = self.links[link].count as usize;
        let at_tail = after && index + 1 == count;
        let at_head = !after && index == 0;
        let behind = usize::from(after);
        let long = self.limits.is_long(element.len());
        if !long && self.links[link].has_room_for(self.limits, element) {
            return self.put(Spot { link, index: index + behind }, element);
        }
        if at_tail && self.links.get(link + 1).is_some_and(|next| next.has_room_for(self.limits, element)) {
            return self.put(Spot { link: link + 1, index: 0 }, element);
        }
        if at_head && link > 0 && self.links[link - 1].has_room_for(self.limits, element) {
            let index = self.links[link - 1].count as usize;
            return self.put(Spot { link: link - 1, index }, element);
        }
        if at_tail || at_head {
            let new_link = self.new_link(element);
            return self.links.insert(link + behind, new_link);
        }
        self.split(Spot { link, index: index + behind });
        if long {
            let new_link = self.new_link(element);
            self.links.insert(link + 1, new_link);
        } else if after {
            self.put(Spot { link: link + 1, index: 0 }, element);
            self.merge_around(link);
        } else {
            let index = self.links[link].count as usize;
            self.put(Spot { link, index }, element);
            self.merge_around(link + 1);
        }
    }

    /// Splits a node before an index. The second half becomes the next node.
    fn split(&mut self, at: Spot) {
        let rest = self.links[at.link].node.split(at.index);
        self.links[at.link].update_count();
        self.links.insert(at.link + 1, Link::new(rest));
    }

    /// Replaces an element.
    pub fn replace(&mut self, at: Spot, element: &[u8]) {
        let Spot { link, index } = at;
        let long = self.limits.is_long(element.len());
        let count = self.links[link].count as usize;
        if self.links[link].node.is_plain() {
            if long {
                self.links[link].node = Node::plain(element);
            } else {
                self.insert(at, element, true);
                self.len -= 1;
                self.links.remove(link);
            }
            return;
        }
        if !long {
            let node = &mut self.links[link].node;
            node.replace(node.place(index), element);
            if node.size() > 2 * self.limits.bytes() && count > 1 {
                // Redis lets such a node grow, which would slow down every later access to it.
                self.split(Spot { link, index: count / 2 });
            }
            return;
        }
        if index + 1 < count {
            self.split(Spot { link, index: index + 1 });
        }
        self.links.insert(link + 1, Link { node: Node::plain(element), count: 1 });
        if index == 0 {
            self.links.remove(link);
        } else {
            self.links[link].node.remove(index, 1);
            self.links[link].update_count();
            self.merge_around(link + 1);
        }
    }

    /// Merges a node with the next one.
    fn merge(&mut self, link: usize) {
        if let Some(next) = self.links.remove(link + 1) {
            self.links[link].node.append(&next.node);
            self.links[link].update_count();
        }
    }

    fn try_merge(&mut self, link: usize) -> bool {
        let can_merge =
            matches!((self.links.get(link), self.links.get(link + 1)), (Some(a), Some(b)) if a.can_merge(b, self.limits));
        if can_merge {
            self.merge(link);
        }
        can_merge
    }

    /// Merges nodes around one if two of them fit into one: first the two before it, then the two after it, then the node with
    /// its neighbours.
    fn merge_around(&mut self, mut center: usize) {
        if center >= 2 && self.try_merge(center - 2) {
            center -= 1;
        }
        self.try_merge(center + 1);
        if center >= 1 && self.try_merge(center - 1) {
            center -= 1;
        }
        self.try_merge(center);
    }

    /// Removes up to `most` elements that equal `needle`, searching from an end. Returns their number.
    pub fn remove_equal(&mut self, needle: &Needle<'_>, from: End, most: usize) -> usize {
        let mut removed = 0;
        let numbers = 0..self.links.len();
        let mut remove = |link: &mut Link| {
            let wanted = most - removed;
            if wanted == 0 {
                return;
            }
            let skip = match from {
                End::Left => 0,
                End::Right if wanted == usize::MAX => 0,
                End::Right => link.node.count_of(needle).saturating_sub(wanted),
            };
            if link.node.is_plain() {
                let found = link.node.count_of(needle);
                removed += found;
                link.count -= found as u32;
                return;
            }
            removed += link.node.remove_equal(needle, skip, wanted);
            link.update_count();
        };
        match from {
            End::Left => numbers.for_each(|number| remove(&mut self.links[number])),
            End::Right => numbers.rev().for_each(|number| remove(&mut self.links[number])),
        }
        if removed > 0 {
            self.links.retain(|link| link.count > 0);
            self.len -= removed;
        }
        removed
    }

    pub fn check_invariants(&self) {
        let mut len = 0;
        for link in &self.links {
            link.node.check_invariants();
            assert_eq!(link.count as usize, link.node.count(), "the count beside a node");
            assert!(link.count > 0, "an empty node");
            len += link.count as usize;
        }
        assert_eq!(len, self.len, "number of elements");
    }
}
