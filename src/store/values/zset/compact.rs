//! A small sorted set as one buffer: scores and members in order. A score has eight bytes; a member follows its length, seven
//! bits per byte, lowest first.
//!
//! It is searched from front to back, so its users keep it small. As in Redis, the sign of a zero score is lost.

use std::ops::Range;

use crate::store::values::packed::{part, push_part};
use crate::store::values::zset::{Item, precedes};

/// Scores and members in one allocation without spare capacity.
#[derive(Clone, Default)]
pub struct Compact(Box<[u8]>);

/// Iterates over the items from front to back, with the end of the last item.
#[derive(Clone)]
pub struct Iter<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Iterator for Iter<'a> {
    type Item = Item<'a>;

    #[inline]
    fn next(&mut self) -> Option<Item<'a>> {
        let score = self.bytes.get(self.at..)?.first_chunk::<8>()?;
        let (start, end) = part(self.bytes, self.at + 8);
        self.at = end;
        Some(Item { score: f64::from_le_bytes(*score), member: &self.bytes[start..end] })
    }
}

impl Compact {
    /// Number of members. Walks them.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Whether it has no members.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes of the allocation.
    pub fn allocated(&self) -> usize {
        self.0.len()
    }

    /// All members in their order.
    pub fn iter(&self) -> Iter<'_> {
        Iter { bytes: &self.0, at: 0 }
    }

    /// A member's rank and score, and the range of its bytes.
    pub fn find(&self, member: &[u8]) -> Option<(usize, f64, Range<usize>)> {
        let mut iter = self.iter();
        for rank in 0.. {
            let start = iter.at;
            let item = iter.next()?;
            if item.member == member {
                return Some((rank, item.score, start..iter.at));
            }
        }
        None
    }

    /// Adds a member that does not exist.
    pub fn insert(&mut self, item: Item<'_>) {
        // Adding +0 turns −0 into +0 and changes no other number.
        let item = Item { score: item.score + 0.0, ..item };
        let mut iter = self.iter();
        let mut at = 0;
        while let Some(other) = iter.next()
            && precedes(other, item)
        {
            at = iter.at;
        }
        let mut new = Vec::with_capacity(10 + item.member.len());
        push(&mut new, item);
        let mut bytes = Vec::with_capacity(self.0.len() + new.len());
        bytes.extend_from_slice(&self.0[..at]);
        bytes.extend_from_slice(&new);
        bytes.extend_from_slice(&self.0[at..]);
        self.0 = bytes.into_boxed_slice();
    }

    /// Removes these bytes, which must be those of whole members.
    pub fn cut(&mut self, span: Range<usize>) {
        let mut bytes = std::mem::take(&mut self.0).into_vec();
        bytes.drain(span);
        self.0 = bytes.into_boxed_slice();
    }

    /// The range of bytes of these ranks.
    pub fn span(&self, ranks: Range<usize>) -> Range<usize> {
        let mut iter = self.iter();
        iter.by_ref().take(ranks.start).for_each(drop);
        let start = iter.at;
        iter.by_ref().take(ranks.len()).for_each(drop);
        start..iter.at
    }

    /// Members that are given in their order.
    pub fn from_sorted<'a>(items: impl Iterator<Item = Item<'a>>) -> Compact {
        let mut bytes = Vec::new();
        items.for_each(|item| push(&mut bytes, Item { score: item.score + 0.0, ..item }));
        Compact(bytes.into_boxed_slice())
    }

    /// Panics if an invariant is broken.
    pub fn check_invariants(&self) {
        let mut members = std::collections::HashSet::new();
        let mut last: Option<Item<'_>> = None;
        let mut bytes = Vec::new();
        for item in self.iter() {
            assert!(members.insert(item.member), "{item:?} twice");
            assert!(last.is_none_or(|last| precedes(last, item)), "{last:?} before {item:?}");
            assert!(!item.score.is_nan(), "{item:?}");
            push(&mut bytes, item);
            last = Some(item);
        }
        assert_eq!(bytes, &self.0[..], "the buffer");
    }
}

fn push(bytes: &mut Vec<u8>, item: Item<'_>) {
    bytes.extend_from_slice(&item.score.to_le_bytes());
    push_part(bytes, item.member);
}
