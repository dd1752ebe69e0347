//! Members in the order of their scores: a B+-tree whose nodes know the number of members below each child. Finding a rank or the
//! start of a range takes as many steps as the tree is deep.
//!
//! The tree stores the score and the address of each member's entry and knows nothing about members: callers pass comparisons as
//! closures. A parent stores the first key of each child, so a search reads one node per level.

use std::ops::Range;

/// Maximum number of keys in a leaf: 1 KiB.
const LEAF_MAX: usize = 64;
/// Maximum number of children of an inner node.
const INNER_MAX: usize = 32;
/// A node with less than 1/`SMALL` of its maximum is merged with a neighbour, if the result leaves that much room.
const SMALL: usize = 4;

/// A member: its score and the address of its entry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Key {
    /// The score; never NaN.
    pub score: f64,
    /// The address of the member's entry.
    pub address: u64,
}

enum Node {
    Leaf(Vec<Key>),
    Inner(Vec<Child>),
}

struct Child {
    first: Key,
    count: usize,
    node: Node,
}

/// The tree.
pub struct Order {
    root: Node,
    len: usize,
}

impl Default for Order {
    fn default() -> Self {
        Order { root: Node::Leaf(Vec::new()), len: 0 }
    }
}

impl Node {
    fn len(&self) -> usize {
        match self {
            Node::Leaf(keys) => keys.len(),
            Node::Inner(children) => children.len(),
        }
    }

    fn max(&self) -> usize {
        match self {
            Node::Leaf(_) => LEAF_MAX,
            Node::Inner(_) => INNER_MAX,
        }
    }

    /// Number of keys below this node.
    fn count(&self) -> usize {
        match self {
            Node::Leaf(keys) => keys.len(),
            Node::Inner(children) => children.iter().map(|child| child.count).sum(),
        }
    }

    fn first(&self) -> Option<Key> {
        match self {
            Node::Leaf(keys) => keys.first().copied(),
            Node::Inner(children) => children.first().map(|child| child.first),
        }
    }

    /// Adds a key after those for which `before` returns true. Returns the node that was split off after this one, if any.
    fn insert(&mut self, key: Key, before: &impl Fn(Key) -> bool, last: bool) -> Option<Node> {
        match self {
            Node::Leaf(keys) => {
                let at = keys.partition_point(|k| before(*k));
                if keys.len() < LEAF_MAX {
                    keys.insert(at, key);
                    return None;
                }
                let mut right = split(keys, LEAF_MAX, last && at == keys.len());
                if at > keys.len() || right.is_empty() {
                    right.insert(at - keys.len(), key)
                } else {
                    keys.insert(at, key)
                }
                Some(Node::Leaf(right))
            }
            Node::Inner(children) => {
                let at = children.partition_point(|child| before(child.first)).saturating_sub(1);
                let last = last && at + 1 == children.len();
                let new = children[at].node.insert(key, before, last);
                children[at].refresh();
                let new = Child::of(new?)?;
                let at = at + 1;
                if children.len() < INNER_MAX {
                    children.insert(at, new);
                    return None;
                }
                let mut right = split(children, INNER_MAX, last && at == children.len());
                if at > children.len() || right.is_empty() {
                    right.insert(at - children.len(), new)
                } else {
                    children.insert(at, new)
                }
                Some(Node::Inner(right))
            }
        }
    }

    /// Removes the key of a rank, which must exist.
    fn remove(&mut self, mut rank: usize) -> Key {
        match self {
            Node::Leaf(keys) => keys.remove(rank),
            Node::Inner(children) => {
                let at = child_of(children, &mut rank);
                let key = children[at].node.remove(rank);
                if children[at].node.len() == 0 {
                    children.remove(at);
                    return key;
                }
                children[at].refresh();
                let small = children[at].node.len() < children[at].node.max() / SMALL;
                if small && !(at + 1 < children.len() && join(children, at)) && at > 0 {
                    join(children, at - 1);
                }
                key
            }
        }
    }

    /// Removes the last leaf. Returns the number of its keys. An inner node may be left without children.
    fn prune(&mut self) -> usize {
        match self {
            Node::Leaf(keys) => std::mem::take(keys).len(),
            Node::Inner(children) => {
                let Some(last) = children.last_mut() else { return 0 };
                let pruned = last.node.prune();
                if last.node.len() == 0 {
                    children.pop();
                }
                pruned
            }
        }
    }

    fn allocated(&self) -> usize {
        match self {
            Node::Leaf(keys) => keys.capacity() * size_of::<Key>(),
            Node::Inner(children) => {
                children.capacity() * size_of::<Child>() + children.iter().map(|child| child.node.allocated()).sum::<usize>()
            }
        }
    }

    fn duplicate(&self, address: &impl Fn(u64) -> u64) -> Node {
        let copy = |key: &Key| Key { score: key.score, address: address(key.address) };
        match self {
            Node::Leaf(keys) => {
                let mut copies = Vec::with_capacity(LEAF_MAX);
                copies.extend(keys.iter().map(copy));
                Node::Leaf(copies)
            }
            Node::Inner(children) => {
                let mut copies = Vec::with_capacity(INNER_MAX);
                copies.extend(children.iter().map(|child| Child {
                    first: copy(&child.first),
                    count: child.count,
                    node: child.node.duplicate(address),
                }));
                Node::Inner(copies)
            }
        }
    }

    /// Panics if an invariant is broken. Returns the depth.
    fn check(&self, root: bool) -> usize {
        assert!(root || self.len() > 0, "an empty node");
        assert!(self.len() <= self.max(), "a node of {}", self.len());
        match self {
            Node::Leaf(_) => 0,
            Node::Inner(children) => {
                assert!(!root || children.len() > 1, "a root with one child");
                let mut depth = None;
                for child in children {
                    assert_eq!(Some(child.first), child.node.first(), "the first key of a child");
                    assert_eq!(child.count, child.node.count(), "keys below a child");
                    let below = child.node.check(false);
                    assert_eq!(*depth.get_or_insert(below), below, "leaves of one depth");
                }
                depth.unwrap_or(0) + 1
            }
        }
    }
}

impl Child {
    fn of(node: Node) -> Option<Child> {
        Some(Child { first: node.first()?, count: node.count(), node })
    }

    /// Updates the count and the first key after a change of the node.
    fn refresh(&mut self) {
        self.count = self.node.count();
        if let Some(first) = self.node.first() {
            self.first = first;
        }
    }
}

/// Splits off the upper half of a full node. If the new part is appended at the end of everything, splits off nothing, so that
/// appending fills nodes completely.
fn split<T>(parts: &mut Vec<T>, max: usize, append: bool) -> Vec<T> {
    let mut right = Vec::with_capacity(max);
    if !append {
        right.extend(parts.drain(max / 2..));
    }
    right
}

/// The index of the child with this rank. Changes `rank` to the rank within the child.
fn child_of(children: &[Child], rank: &mut usize) -> usize {
    for (at, child) in children.iter().enumerate() {
        if *rank < child.count {
            return at;
        }
        *rank -= child.count;
    }
    children.len()
}

/// Merges a child with the next one, if the result leaves room.
fn join(children: &mut Vec<Child>, at: usize) -> bool {
    let max = children[at].node.max();
    if children[at].node.len() + children[at + 1].node.len() > max - max / SMALL {
        return false;
    }
    let next = children.remove(at + 1);
    match (&mut children[at].node, next.node) {
        (Node::Leaf(keys), Node::Leaf(more)) => keys.extend(more),
        (Node::Inner(nodes), Node::Inner(more)) => nodes.extend(more),
        _ => unreachable!("all leaves have one depth"),
    }
    children[at].refresh();
    true
}

impl Order {
    /// Number of keys.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes of the nodes. Walks them.
    pub fn allocated(&self) -> usize {
        self.root.allocated()
    }

    /// Adds a key. `before` must return true for exactly the keys before it.
    pub fn insert(&mut self, key: Key, before: impl Fn(Key) -> bool) {
        if let Some(right) = self.root.insert(key, &before, true) {
            let left = std::mem::replace(&mut self.root, Node::Leaf(Vec::new()));
            let mut children = Vec::with_capacity(INNER_MAX);
            children.extend([left, right].into_iter().filter_map(Child::of));
            self.root = Node::Inner(children);
        }
        self.len += 1;
    }

    /// Removes the key of a rank; `None` if there is no such rank.
    pub fn remove(&mut self, rank: usize) -> Option<Key> {
        if rank >= self.len {
            return None;
        }
        self.len -= 1;
        let key = self.root.remove(rank);
        while let Node::Inner(children) = &mut self.root
            && children.len() < 2
        {
            self.root = children.pop().map_or(Node::Leaf(Vec::new()), |child| child.node);
        }
        Some(key)
    }

    /// The number of keys for which `before` returns true; they must be the first keys.
    pub fn partition(&self, before: impl Fn(Key) -> bool) -> usize {
        let (mut node, mut rank) = (&self.root, 0);
        loop {
            match node {
                Node::Leaf(keys) => return rank + keys.partition_point(|key| before(*key)),
                Node::Inner(children) => {
                    let at = children.partition_point(|child| before(child.first)).saturating_sub(1);
                    rank += children[..at].iter().map(|child| child.count).sum::<usize>();
                    node = &children[at].node;
                }
            }
        }
    }

    /// The keys of these ranks, in descending order if `reverse`.
    pub fn walk(&self, ranks: Range<usize>, reverse: bool) -> Walk<'_> {
        let ranks = ranks.start.min(self.len)..ranks.end.min(self.len);
        let mut walk = Walk { path: Vec::new(), keys: &[], at: 0, left: ranks.len(), reverse };
        if walk.left > 0 {
            walk.descend(&self.root, Some(if reverse { ranks.end - 1 } else { ranks.start }));
        }
        walk
    }

    /// Frees one leaf. Returns the number of its keys, 0 if nothing is left. After the first call, nothing else may be called.
    pub fn prune(&mut self) -> usize {
        let pruned = self.root.prune();
        self.len = self.len.saturating_sub(pruned);
        pruned
    }

    /// A copy with converted addresses.
    pub fn duplicate(&self, address: impl Fn(u64) -> u64) -> Order {
        Order { root: self.root.duplicate(&address), len: self.len }
    }

    /// Panics if an invariant is broken. The order of the keys is not checked.
    pub fn check_invariants(&self) {
        self.root.check(true);
        assert_eq!(self.root.count(), self.len, "len");
    }
}

/// Keys in ascending or descending order.
pub struct Walk<'a> {
    /// The inner nodes above the leaf, each with the index of the current child.
    path: Vec<(&'a [Child], usize)>,
    keys: &'a [Key],
    at: usize,
    left: usize,
    reverse: bool,
}

impl<'a> Walk<'a> {
    /// Descends to the leaf with a rank or, without one, to the first leaf in the direction of the walk.
    fn descend(&mut self, mut node: &'a Node, mut rank: Option<usize>) {
        loop {
            let last = if self.reverse { node.len().saturating_sub(1) } else { 0 };
            match node {
                Node::Leaf(keys) => {
                    self.keys = keys;
                    self.at = rank.unwrap_or(last);
                    return;
                }
                Node::Inner(children) => {
                    let at = rank.as_mut().map_or(last, |rank| child_of(children, rank));
                    self.path.push((children, at));
                    node = &children[at].node;
                }
            }
        }
    }

    /// Moves to the next leaf, which exists if keys are left.
    fn turn(&mut self) {
        while let Some((children, at)) = self.path.pop() {
            let next = if self.reverse { at.checked_sub(1) } else { Some(at + 1).filter(|&at| at < children.len()) };
            if let Some(next) = next {
                self.path.push((children, next));
                return self.descend(&children[next].node, None);
            }
        }
    }
}

impl Iterator for Walk<'_> {
    type Item = Key;

    fn next(&mut self) -> Option<Key> {
        self.left = self.left.checked_sub(1)?;
        let key = *self.keys.get(self.at)?;
        if self.left > 0 {
            match (self.reverse, self.at) {
                (true, 0) => self.turn(),
                (true, at) => self.at = at - 1,
                (false, at) if at + 1 == self.keys.len() => self.turn(),
                (false, at) => self.at = at + 1,
            }
        }
        Some(key)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::scaled;
    use proptest::prelude::*;

    fn insert(order: &mut Order, n: u64) {
        order.insert(Key { score: n as f64, address: n }, |key| key.address < n);
    }

    fn all(order: &Order, reverse: bool) -> Vec<u64> {
        order.walk(0..usize::MAX, reverse).map(|key| key.address).collect()
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes Miri too long")]
    fn appended_keys_fill_their_nodes() {
        let mut order = Order::default();
        for n in 0..100_000 {
            insert(&mut order, n);
        }
        order.check_invariants();
        let bytes = order.allocated();
        assert!(bytes < 100_000 * 20, "{bytes} bytes");
        for n in (0..100_000u64).rev().step_by(7) {
            assert_eq!(order.walk(n as usize..n as usize + 1, false).next().map(|key| key.address), Some(n));
        }
        for _ in 0..99_990 {
            assert!(order.remove(5).is_some());
        }
        order.check_invariants();
        assert!(order.allocated() < 10_000, "{} bytes", order.allocated());
        assert_eq!(all(&order, false), [0, 1, 2, 3, 4, 99_995, 99_996, 99_997, 99_998, 99_999]);
    }

    #[test]
    fn is_freed_leaf_by_leaf() {
        let mut order = Order::default();
        for n in 0..scaled(5000, 300) {
            insert(&mut order, n);
        }
        let mut freed = 0;
        loop {
            match order.prune() {
                0 => break,
                pruned => freed += pruned,
            }
        }
        assert_eq!((freed, order.len()), (scaled(5000, 300), 0));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: scaled(48, 2), ..ProptestConfig::default() })]
        #[test]
        fn behaves_like_a_sorted_list(steps in prop::collection::vec((0..2000u64, 1..scaled(300u64, 80), 0..3u8), 1..scaled(30, 6))) {
            let mut order = Order::default();
            let mut model = std::collections::BTreeSet::new();
            for (from, many, kind) in steps {
                for n in from..from + many {
                    if kind < 2 {
                        // In ascending or in pseudorandom order.
                        let n = if kind == 0 { n } else { n.wrapping_mul(0x9e37_79b9) % 3000 };
                        if model.insert(n) {
                            insert(&mut order, n);
                        }
                    } else if model.remove(&n) {
                        let rank = order.partition(|key| key.address < n);
                        prop_assert_eq!(order.remove(rank).map(|key| key.address), Some(n));
                    }
                }
                order.check_invariants();
                let sorted: Vec<u64> = model.iter().copied().collect();
                prop_assert_eq!(order.len(), sorted.len());
                prop_assert_eq!(all(&order, false), &sorted[..]);
                prop_assert_eq!(all(&order, true), sorted.iter().rev().copied().collect::<Vec<_>>());
                let (low, high) = (from as usize % (sorted.len() + 1), (from + many) as usize % (sorted.len() + 1));
                let (low, high) = (low.min(high), low.max(high));
                let part: Vec<u64> = order.walk(low..high, true).map(|key| key.address).collect();
                prop_assert_eq!(part, sorted[low..high].iter().rev().copied().collect::<Vec<_>>());
                prop_assert_eq!(order.partition(|key| key.address < from), sorted.partition_point(|n| *n < from));
                let copy = order.duplicate(|address| address);
                copy.check_invariants();
                prop_assert_eq!(all(&copy, false), sorted);
            }
            prop_assert_eq!(order.remove(model.len()), None);
        }
    }
}
