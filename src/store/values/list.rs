//! The list value: elements in order, cheap to change at both ends.
//!
//! ```text
//!   small: one node                                       "listpack"
//!   large: node ─ node ─ node …, each of bounded size      "quicklist"
//!          an element too long for that is a node alone
//! ```
//! The sizes of nodes, and the changes between the two forms, are as in Redis, so that `OBJECT ENCODING` gives the same replies.

mod chain;
mod node;

use chain::{Chain, Link, Spot};
use node::Node;
pub use node::{Digits, Element, Needle, encoded_len};

/// One end of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The beginning.
    Left,
    /// The end.
    Right,
}

/// `list-max-listpack-size`: the maximum size of a node, and of a small list. Above 0: that many elements, and 8 KiB. Below 0: −1
/// to −5 stand for 4 to 64 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits(i32);

impl Default for Limits {
    fn default() -> Self {
        Limits(-2)
    }
}

impl Limits {
    /// Maximum bytes of a node that is bounded by the number of its elements.
    const COUNTED_BYTES: usize = 8192;

    /// Converts the directive's value.
    pub fn new(size: i64) -> Limits {
        Limits(size.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32)
    }

    /// Maximum bytes of a node.
    fn bytes(self) -> usize {
        if self.0 < 0 { 4096 << (self.0.unsigned_abs().min(5) - 1) } else { Self::COUNTED_BYTES }
    }

    /// Whether a node of this size is too large.
    fn exceeded(self, bytes: usize, count: usize) -> bool {
        bytes > self.bytes() || (self.0 >= 0 && count > self.0.max(1) as usize)
    }

    /// Whether an element of this length gets a node of its own.
    fn is_long(self, len: usize) -> bool {
        len > self.bytes()
    }

    /// Whether a node is at most as large as allowed, or at most half as large.
    fn small_again(self, node: &Node, half: bool) -> bool {
        let part = |whole: usize| if half { whole / 2 } else { whole };
        if self.0 < 0 { node.size() <= part(self.bytes()) } else { node.count() <= part(self.0.max(1) as usize) }
    }
}

/// Elements in order.
#[derive(Debug, Clone)]
pub struct List(Form);

#[derive(Debug, Clone)]
enum Form {
    Small(Node),
    Large(Box<Chain>),
}

impl Default for List {
    fn default() -> Self {
        List(Form::Small(Node::default()))
    }
}

impl List {
    /// A list of these elements, in the appropriate form.
    pub fn from_elements<'e>(elements: impl Iterator<Item = &'e [u8]>, limits: Limits) -> List {
        let mut chain = Chain::new(limits);
        elements.for_each(|element| chain.push(End::Right, element));
        let mut list = List(Form::Large(Box::new(chain)));
        list.shrink(limits, false);
        list
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        match &self.0 {
            Form::Small(node) => node.count(),
            Form::Large(chain) => chain.len,
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The reply of `OBJECT ENCODING`.
    pub fn encoding(&self) -> &'static str {
        match &self.0 {
            Form::Small(_) => "listpack",
            Form::Large(_) => "quicklist",
        }
    }

    /// Bytes of the value on the heap, without the allocator's overhead. Walks the nodes.
    pub fn allocated(&self) -> usize {
        match &self.0 {
            Form::Small(node) => node.allocated(),
            Form::Large(chain) => {
                let nodes: usize = chain.links.iter().map(|link| link.node.allocated()).sum();
                size_of::<Chain>() + chain.links.capacity() * size_of::<Link>() + nodes
            }
        }
    }

    /// The element at this index.
    pub fn get(&self, index: usize) -> Option<Element<'_>> {
        match &self.0 {
            _ if index >= self.len() => None,
            Form::Small(node) => Some(node.next(node.place(index)).0),
            Form::Large(chain) => Some(chain.get(index)),
        }
    }

    /// The elements from this index on.
    pub fn iter_from(&self, index: usize) -> Iter<'_> {
        self.walk(index, End::Left)
    }

    /// The elements from this index back to the first.
    pub fn iter_back_from(&self, index: usize) -> Iter<'_> {
        self.walk(index, End::Right)
    }

    /// All elements, beginning at an end.
    pub fn iter(&self, from: End) -> Iter<'_> {
        self.walk(if from == End::Left { 0 } else { self.len().saturating_sub(1) }, from)
    }

    fn walk(&self, index: usize, from: End) -> Iter<'_> {
        let len = self.len();
        if index >= len {
            return Iter { list: self, link: 0, at: 0, edge: 0, from, left: 0 };
        }
        let spot = match &self.0 {
            Form::Small(_) => Spot { link: 0, index },
            Form::Large(chain) => chain.spot(index),
        };
        let node = self.node(spot.link);
        let bounds = node.bounds();
        let (at, edge, left) = match from {
            End::Left => (node.place(spot.index), bounds.end, len - index),
            End::Right => (node.place(spot.index + 1), bounds.start, index + 1),
        };
        Iter { list: self, link: spot.link, at, edge, from, left }
    }

    fn node(&self, link: usize) -> &Node {
        match &self.0 {
            Form::Small(node) => node,
            Form::Large(chain) => &chain.links[link].node,
        }
    }

    /// Pushes elements to an end, one after the other.
    pub fn push(&mut self, limits: Limits, end: End, elements: &[&[u8]]) {
        self.make_room(limits, elements.iter().map(|element| element.len()).sum(), elements.len());
        if let Form::Small(node) = &mut self.0
            && elements.len() > 1
        {
            let bytes = elements.iter().map(|element| encoded_len(element)).sum::<usize>();
            if node.size() + bytes > 2 * limits.bytes() {
                // Redis does not count the length bytes of many empty elements; they must not make a node grow without bound.
                self.make_large(limits);
            } else {
                node.reserve(bytes, end == End::Left);
            }
        }
        elements.iter().for_each(|element| self.push_unconverted(end, element));
    }

    /// Pushes an element to an end without changing the form of the list: see [`List::make_room`].
    pub fn push_unconverted(&mut self, end: End, element: &[u8]) {
        match &mut self.0 {
            Form::Small(node) => {
                let bounds = node.bounds();
                node.insert(if end == End::Left { bounds.start } else { bounds.end }, element);
            }
            Form::Large(chain) => chain.push(end, element),
        }
    }

    /// Converts the list to the form for this many more bytes and elements, as Redis predicts it, whether they follow or not.
    pub fn make_room(&mut self, limits: Limits, bytes: usize, count: usize) {
        if let Form::Small(node) = &self.0
            && limits.exceeded(node.size() + bytes, node.count() + count)
        {
            self.make_large(limits);
        }
    }

    fn make_large(&mut self, limits: Limits) {
        if let Form::Small(node) = &mut self.0 {
            self.0 = Form::Large(Box::new(Chain::of(std::mem::take(node), limits)));
        }
    }

    /// Converts the list back to the small form if it fits there or, with `half`, into half of its maximum.
    fn shrink(&mut self, limits: Limits, half: bool) {
        if let Form::Large(chain) = &mut self.0
            && chain.links.len() == 1
            && let Some(link) = chain.links.front_mut()
            && !link.node.is_plain()
            && limits.small_again(&link.node, half)
        {
            self.0 = Form::Small(std::mem::take(&mut link.node));
        }
    }

    /// Removes one element at an end and returns its bytes, without converting to the small form: see
    /// [`List::shrink_after_removal`].
    pub fn take(&mut self, end: End) -> Option<Vec<u8>> {
        let element = self.iter(end).next()?.to_vec();
        drop(self.remove_end(end, 1));
        Some(element)
    }

    /// Converts back to the small form after removals, if that is due.
    pub fn shrink_after_removal(&mut self, limits: Limits) {
        self.shrink(limits, true);
    }

    /// Removes `count` elements at an end, or all. If that frees much memory, returns a list that must be freed in pieces.
    #[must_use]
    pub fn remove_end(&mut self, end: End, count: usize) -> Option<List> {
        match &mut self.0 {
            Form::Small(node) => {
                let len = node.count();
                let count = count.min(len);
                if count > 0 {
                    node.remove(if end == End::Left { 0 } else { len - count }, count);
                }
                None
            }
            Form::Large(chain) => {
                let mut removed = Vec::new();
                chain.remove_end(end, count, &mut removed);
                if removed.is_empty() {
                    return None;
                }
                let mut rest = Chain::new(chain.limits);
                rest.links = removed.into();
                rest.len = rest.links.iter().map(|link| link.count as usize).sum();
                Some(List(Form::Large(Box::new(rest))))
            }
        }
    }

    /// Replaces the element at this index. Returns false if there is none.
    pub fn set(&mut self, limits: Limits, index: usize, element: &[u8]) -> bool {
        self.make_room(limits, element.len(), 1);
        if index >= self.len() {
            return false;
        }
        match &mut self.0 {
            Form::Small(node) => node.replace(node.place(index), element),
            Form::Large(chain) => chain.replace(chain.spot(index), element),
        }
        self.shrink_after_removal(limits);
        true
    }

    /// Inserts an element before or behind the one at this index.
    pub fn insert(&mut self, index: usize, element: &[u8], after: bool) {
        match &mut self.0 {
            Form::Small(node) => node.insert(node.place(index + usize::from(after)), element),
            Form::Large(chain) => chain.insert(chain.spot(index), element, after),
        }
    }

    /// Removes up to `most` elements that equal `needle`, searching from an end. Returns their number.
    pub fn remove_equal(&mut self, needle: &Needle<'_>, from: End, most: usize) -> usize {
        match &mut self.0 {
            Form::Small(node) => {
                let skip = if from == End::Left { 0 } else { node.count_of(needle).saturating_sub(most) };
                node.remove_equal(needle, skip, most)
            }
            Form::Large(chain) => chain.remove_equal(needle, from, most),
        }
    }

    /// Number of budget steps for freeing it.
    pub fn weight(&self) -> usize {
        match &self.0 {
            Form::Small(_) => 1,
            // For a long list the number of nodes is accurate enough.
            Form::Large(chain) => chain.links.iter().take(65).map(Link::weight).sum::<usize>().max(chain.links.len()),
        }
    }

    /// Frees it for up to `budget` steps. Returns true when nothing is left.
    pub fn free_some(&mut self, budget: &mut u32) -> bool {
        let Form::Large(chain) = &mut self.0 else { return true };
        while *budget > 0 {
            let Some(link) = chain.links.pop_back() else { return true };
            *budget = budget.saturating_sub(link.weight() as u32);
            chain.len -= link.count as usize;
        }
        false
    }

    /// Panics if an invariant is broken. Walks everything.
    pub fn check_invariants(&self) {
        match &self.0 {
            Form::Small(node) => {
                node.check_invariants();
                assert!(!node.is_plain(), "a small list is no long element");
            }
            Form::Large(chain) => chain.check_invariants(),
        }
    }
}

/// Iterates over elements in one direction.
#[derive(Clone)]
pub struct Iter<'a> {
    list: &'a List,
    link: usize,
    /// The start of the next element or, going back, its end.
    at: usize,
    /// The end of the node in this direction.
    edge: usize,
    from: End,
    left: usize,
}

impl<'a> Iterator for Iter<'a> {
    type Item = Element<'a>;

    #[inline]
    fn next(&mut self) -> Option<Element<'a>> {
        if self.left == 0 {
            return None;
        }
        if self.at == self.edge {
            self.link = if self.from == End::Left { self.link + 1 } else { self.link - 1 };
            let bounds = self.list.node(self.link).bounds();
            (self.at, self.edge) = if self.from == End::Left { (bounds.start, bounds.end) } else { (bounds.end, bounds.start) };
        }
        self.left -= 1;
        let node = self.list.node(self.link);
        let (element, at) = if self.from == End::Left { node.next(self.at) } else { node.previous(self.at) };
        self.at = at;
        Some(element)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Iter<'_> {}

#[cfg(test)]
#[path = "list/tests.rs"]
mod tests;
