//! A small sorted set as one buffer: scores and members in their order, a score as eight bytes, a member behind its length, seven bits
//! of it to a byte, lowest first.
//!
//! It is read from front to back; whoever holds one keeps it small. The sign of a zero is lost in it, as in Redis.

use std::ops::Range;

use crate::store::values::packed::{part, push_part};
use crate::store::values::zset::{Item, precedes};

/// Scores and members in one allocation without spare room.
#[derive(Clone, Default)]
pub struct Compact(Box<[u8]>);

/// Reads from front to back: an item, and where it ends.
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

    /// Whether there is none.
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

    /// A member's rank and score, and the bytes that hold them.
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

    /// Adds a member that is not there.
    pub fn insert(&mut self, item: Item<'_>) {
        // Adding a positive zero makes a negative one positive and changes nothing else.
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

    /// Takes these bytes out, which must be those of whole members.
    pub fn cut(&mut self, span: Range<usize>) {
        let mut bytes = std::mem::take(&mut self.0).into_vec();
        bytes.drain(span);
        self.0 = bytes.into_boxed_slice();
    }

    /// The bytes of these ranks.
    pub fn span(&self, ranks: Range<usize>) -> Range<usize> {
        let mut iter = self.iter();
        iter.by_ref().take(ranks.start).for_each(drop);
        let start = iter.at;
        iter.by_ref().take(ranks.len()).for_each(drop);
        start..iter.at
    }

    /// The members in the given order, which must be theirs.
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
