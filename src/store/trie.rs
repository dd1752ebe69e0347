//! The table of a large value, such as a set or a hash: one [`Table`] while it is small, a tree of tables when it is large.
//!
//! A table with `LEAF_MAX` entries is split into 32 tables by the next five bits of the hash, and each of these again when it is
//! as full. So no insertion moves more than some thousand slots, and the table of a value with a million members grows without a
//! pause. After many removals, 32 tables are merged into one again.
//!
//! ```text
//!   hash, 29 bits    │ 5 │ 5 │ 19 or more: the hash in the leaf's table │
//!   root ─ 32 nodes ───┘   │
//!            └─ 32 leaves ─┘
//! ```
//! Entries are stored in the order of their hashes, as far as the tables keep these, however they are split: a scan's cursor, a
//! hash, survives every change.

use crate::base::prefetch::prefetch;
use crate::store::dict::{KeyHash, KeyHasher};
use crate::store::entry::{Entry, EntryMut, EntryRef};
use crate::store::table::{HASH_BITS, HASH_LIMIT, Position, Table};

/// Number of bits used of a hash.
pub const TRIE_BITS: u32 = HASH_BITS + DEPTH_MAX * FAN_BITS;
/// All hashes are below this.
pub const TRIE_LIMIT: u32 = 1 << TRIE_BITS;
/// Number of entries at which a table is split.
const LEAF_MAX: usize = 1024;
/// Number of entries below which the tables of a branch are merged.
const BRANCH_MIN: usize = LEAF_MAX / 8;
const FAN_BITS: u32 = 5;
const FAN: usize = 1 << FAN_BITS;
/// Maximum number of branches above a leaf: tables at the bottom grow without bound.
const DEPTH_MAX: u32 = 2;
/// How many entries ahead a split prefetches.
const AHEAD: usize = 8;
/// Attempts to hit a random entry before entries are counted off.
const TRIES: u32 = 64;

/// Entries with distinct keys. Owns them. Callers must always pass the same hasher.
#[derive(Default)]
pub struct Trie {
    root: Node,
}

enum Node {
    Leaf(Table),
    Branch(Box<Branch>),
}

struct Branch {
    /// Number of entries below.
    len: usize,
    nodes: [Node; FAN],
}

/// The place of an entry, valid until the trie changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    hash: u32,
    position: Position,
}

impl Default for Node {
    fn default() -> Self {
        Node::Leaf(Table::default())
    }
}

impl Node {
    fn len(&self) -> usize {
        match self {
            Node::Leaf(table) => table.len(),
            Node::Branch(branch) => branch.len,
        }
    }
}

/// The index of the node for a hash, in a branch at this depth.
#[inline]
fn turn(hash: u32, depth: u32) -> usize {
    (hash >> (TRIE_BITS - FAN_BITS * (depth + 1))) as usize & (FAN - 1)
}

/// Number of low bits of a hash that a table at this depth does not keep.
#[inline]
fn dropped(depth: u32) -> u32 {
    TRIE_BITS - HASH_BITS - FAN_BITS * depth
}

/// The hash within a table at this depth.
#[inline]
fn local(hash: u32, depth: u32) -> u32 {
    (hash >> dropped(depth)) & (HASH_LIMIT - 1)
}

impl Trie {
    /// Number of entries.
    pub fn len(&self) -> usize {
        self.root.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of slots and tables, without entries. Walks the tables.
    pub fn allocated(&self) -> usize {
        fn of(node: &Node) -> usize {
            match node {
                Node::Leaf(table) => table.allocated(),
                Node::Branch(branch) => size_of::<Branch>() + branch.nodes.iter().map(of).sum::<usize>(),
            }
        }
        of(&self.root)
    }

    /// The table for a hash, and the hash within it.
    #[inline]
    fn leaf(&self, hash: u32) -> (&Table, u32) {
        let (mut node, mut depth) = (&self.root, 0);
        loop {
            match node {
                Node::Leaf(table) => return (table, local(hash, depth)),
                Node::Branch(branch) => node = &branch.nodes[turn(hash, depth)],
            }
            depth += 1;
        }
    }

    #[inline]
    fn leaf_mut(&mut self, hash: u32) -> &mut Table {
        let (mut node, mut depth) = (&mut self.root, 0);
        loop {
            match node {
                Node::Leaf(table) => return table,
                Node::Branch(branch) => node = &mut branch.nodes[turn(hash, depth)],
            }
            depth += 1;
        }
    }

    /// The place of the entry with this key; `hash` must be the key's.
    #[inline]
    pub fn find(&self, hash: KeyHash, key: &[u8]) -> Option<Spot> {
        let hash = hash.bits();
        let (table, local) = self.leaf(hash);
        table.find(local, key).map(|position| Spot { hash, position })
    }

    /// The first entry that `accept` accepts among those whose hashes begin with these [`HASH_BITS`] bits. Few entries share so
    /// many bits.
    pub fn find_prefixed(&self, prefix: u32, accept: impl FnMut(EntryRef<'_>) -> bool) -> Option<Spot> {
        let (first, rest) = (prefix << (TRIE_BITS - HASH_BITS), (1 << (TRIE_BITS - HASH_BITS)) - 1);
        let (mut node, mut depth) = (&self.root, 0);
        while let Node::Branch(branch) = node {
            node = &branch.nodes[turn(first, depth)];
            depth += 1;
        }
        let Node::Leaf(table) = node else { return None };
        let position = table.find_among(local(first, depth)..=local(first | rest, depth), accept)?;
        Some(Spot { hash: first, position })
    }

    /// The entry at a place.
    #[inline]
    pub fn get(&self, spot: Spot) -> EntryRef<'_> {
        self.leaf(spot.hash).0.get(spot.position)
    }

    /// The entry at a place, mutable.
    #[inline]
    pub fn get_mut(&mut self, spot: Spot) -> EntryMut<'_> {
        self.leaf_mut(spot.hash).get_mut(spot.position)
    }

    /// Replaces the entry at a place by one with the same key. Returns the old one.
    pub fn replace(&mut self, spot: Spot, entry: Entry) -> Entry {
        self.leaf_mut(spot.hash).replace(spot.position, entry)
    }

    /// Adds an entry whose key does not exist.
    pub fn insert(&mut self, hasher: &KeyHasher, hash: KeyHash, entry: Entry) -> Spot {
        let hash = hash.bits();
        let (mut node, mut depth) = (&mut self.root, 0);
        loop {
            if let Node::Leaf(table) = node
                && table.len() >= LEAF_MAX
                && depth < DEPTH_MAX
            {
                let branch = split(std::mem::take(table), depth, hasher);
                *node = Node::Branch(branch);
            }
            match node {
                Node::Leaf(table) => return Spot { hash, position: table.insert(local(hash, depth), entry) },
                Node::Branch(branch) => {
                    branch.len += 1;
                    node = &mut branch.nodes[turn(hash, depth)];
                }
            }
            depth += 1;
        }
    }

    /// Removes the entry at a place.
    pub fn remove(&mut self, hasher: &KeyHasher, spot: Spot) -> Entry {
        let (mut node, mut depth) = (&mut self.root, 0);
        let entry = loop {
            match node {
                Node::Leaf(table) => break table.remove(spot.position),
                Node::Branch(branch) => {
                    branch.len -= 1;
                    node = &mut branch.nodes[turn(spot.hash, depth)];
                }
            }
            depth += 1;
        };
        self.collapse(hasher, spot.hash);
        entry
    }

    /// Merges the uppermost branch above a hash that has become too sparse into one table.
    #[inline]
    fn collapse(&mut self, hasher: &KeyHasher, hash: u32) {
        let (mut node, mut depth) = (&mut self.root, 0);
        while let Node::Branch(branch) = node {
            if branch.len < BRANCH_MIN {
                let mut table = Table::with_capacity(branch.len);
                while let Some(entry) = pop(node) {
                    table.insert(local(hasher.hash(entry.read().key()).bits(), depth), entry);
                }
                *node = Node::Leaf(table);
                return;
            }
            // Borrowed again: the branch was only read before.
            let Node::Branch(branch) = node else { return };
            node = &mut branch.nodes[turn(hash, depth)];
            depth += 1;
        }
    }

    /// Removes an arbitrary entry, the last by hash, to free the trie in pieces.
    pub fn pop(&mut self) -> Option<Entry> {
        pop(&mut self.root)
    }

    fn leaves(&self) -> Leaves<'_> {
        Leaves { next: Some(&self.root), above: [const { None }; DEPTH_MAX as usize], depth: 0 }
    }

    /// All entries, in the order of their hashes.
    pub fn iter(&self) -> impl Iterator<Item = EntryRef<'_>> {
        self.leaves().flat_map(Table::iter)
    }

    /// Visits entries in the order of their hashes, from `from` on, until `count` were seen and a hash is complete. Returns the
    /// hash to continue from, [`TRIE_LIMIT`] at the end.
    ///
    /// Every entry that exists during the whole scan is visited exactly once. One call visits at most `count` entries and those
    /// that share the last one's hash.
    pub fn scan<'a>(&'a self, hasher: &KeyHasher, from: u32, count: usize, mut visit: impl FnMut(EntryRef<'a>)) -> u32 {
        let mut from = from.min(TRIE_LIMIT);
        let mut left = count.max(1);
        while from < TRIE_LIMIT {
            let (mut node, mut depth) = (&self.root, 0);
            while let Node::Branch(branch) = node {
                node = &branch.nodes[turn(from, depth)];
                depth += 1;
            }
            let Node::Leaf(table) = node else { break };
            // A cursor from a deeper table that was merged since lies among entries that have one hash here.
            let within = from & ((1 << dropped(depth)) - 1) != 0;
            let first = local(from, depth);
            let mut seen = 0;
            let next = table.scan(first, left, |entry| {
                seen += 1;
                if !within || hasher.hash(entry.key()).bits() >= from {
                    visit(entry);
                }
            });
            let start = from >> (TRIE_BITS - FAN_BITS * depth) << (TRIE_BITS - FAN_BITS * depth);
            // At the end of the table, this is the start of the next one.
            from = start + (next << dropped(depth));
            left = left.saturating_sub(seen);
            if left == 0 {
                break;
            }
        }
        from
    }

    /// A uniformly random entry.
    pub fn random(&self, random: &mut impl FnMut() -> u64) -> Option<EntryRef<'_>> {
        if self.is_empty() {
            return None;
        }
        let (table, index) = self.leaf_of_nth(below(random(), self.len()))?;
        let slots = table.slots();
        for _ in 0..TRIES {
            if let Some(position) = table.at(below(random(), slots)) {
                return Some(table.get(position));
            }
        }
        table.nth(index).map(|position| table.get(position))
    }

    /// The table with the `index`-th entry in the order of their hashes, and the entry's index within it.
    fn leaf_of_nth(&self, mut index: usize) -> Option<(&Table, usize)> {
        let mut node = &self.root;
        while let Node::Branch(branch) = node {
            node = branch.nodes.iter().find(|node| {
                let here = index < node.len();
                index -= if here { 0 } else { node.len() };
                here
            })?;
        }
        match node {
            Node::Leaf(table) if index < table.len() => Some((table, index)),
            _ => None,
        }
    }

    /// A trie with copies of all entries. The copies must have the same keys.
    pub fn duplicate(&self, mut copy: impl FnMut(EntryRef<'_>) -> Entry) -> Trie {
        fn of(node: &Node, copy: &mut impl FnMut(EntryRef<'_>) -> Entry) -> Node {
            match node {
                Node::Leaf(table) => Node::Leaf(table.duplicate(copy)),
                Node::Branch(branch) => {
                    let nodes = std::array::from_fn(|i| of(&branch.nodes[i], copy));
                    Node::Branch(Box::new(Branch { len: branch.len, nodes }))
                }
            }
        }
        Trie { root: of(&self.root, &mut copy) }
    }

    /// Panics if an invariant is broken. Walks everything.
    pub fn check_invariants(&self, hasher: &KeyHasher) {
        fn check(node: &Node, depth: u32, prefix: u32, hasher: &KeyHasher) {
            match node {
                Node::Leaf(table) => {
                    assert!(table.len() <= LEAF_MAX || depth == DEPTH_MAX, "a table of {} at depth {depth}", table.len());
                    table.check_invariants(|key| {
                        let hash = hasher.hash(key).bits();
                        assert_eq!(hash >> (TRIE_BITS - FAN_BITS * depth), prefix, "an entry in another's table");
                        local(hash, depth)
                    });
                }
                Node::Branch(branch) => {
                    assert!(depth < DEPTH_MAX && branch.len >= BRANCH_MIN, "{} below a branch at {depth}", branch.len);
                    assert_eq!(branch.nodes.iter().map(Node::len).sum::<usize>(), branch.len, "len of a branch");
                    for (at, node) in branch.nodes.iter().enumerate() {
                        check(node, depth + 1, (prefix << FAN_BITS) | at as u32, hasher);
                    }
                }
            }
        }
        check(&self.root, 0, 0, hasher);
    }
}

/// Splits a table at this depth into 32.
#[cold]
fn split(mut table: Table, depth: u32, hasher: &KeyHasher) -> Box<Branch> {
    let len = table.len();
    let mut branch =
        Box::new(Branch { len, nodes: std::array::from_fn(|_| Node::Leaf(Table::with_capacity(len * 5 / 4 / FAN))) });
    let mut entries = Vec::with_capacity(len);
    while let Some(entry) = table.pop() {
        entries.push(entry);
    }
    let ahead: Vec<u64> = entries.iter().skip(AHEAD).map(|entry| entry.read().address()).collect();
    for (at, entry) in entries.into_iter().enumerate() {
        // Entries are scattered in memory: each is prefetched some time before it is read.
        if let Some(address) = ahead.get(at) {
            prefetch(std::ptr::without_provenance(*address as usize));
        }
        let hash = hasher.hash(entry.read().key()).bits();
        if let Node::Leaf(table) = &mut branch.nodes[turn(hash, depth)] {
            table.insert(local(hash, depth + 1), entry);
        }
    }
    branch
}

fn pop(node: &mut Node) -> Option<Entry> {
    match node {
        Node::Leaf(table) => table.pop(),
        Node::Branch(branch) => {
            let entry = branch.nodes.iter_mut().rev().find_map(pop);
            branch.len -= usize::from(entry.is_some());
            entry
        }
    }
}

/// Maps a random number to one below `limit`.
pub fn below(random: u64, limit: usize) -> usize {
    ((u128::from(random) * limit as u128) >> 64) as usize
}

/// Iterates over the tables in the order of hashes.
struct Leaves<'a> {
    next: Option<&'a Node>,
    above: [Option<std::slice::Iter<'a, Node>>; DEPTH_MAX as usize],
    depth: usize,
}

impl<'a> Iterator for Leaves<'a> {
    type Item = &'a Table;

    fn next(&mut self) -> Option<&'a Table> {
        loop {
            match self.next.take() {
                Some(Node::Leaf(table)) => return Some(table),
                Some(Node::Branch(branch)) => {
                    self.above[self.depth] = Some(branch.nodes.iter());
                    self.depth += 1;
                }
                None => {}
            }
            let top = self.depth.checked_sub(1)?;
            self.next = self.above[top].as_mut().and_then(Iterator::next);
            if self.next.is_none() {
                self.depth = top;
            }
        }
    }
}

impl std::fmt::Debug for Trie {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
#[path = "trie_tests.rs"]
mod tests;
