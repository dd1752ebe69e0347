//! The sorted set value: members, each with a score, in the order of scores and, where these are equal, of the members' bytes.
//!
//! ```text
//!   small  Compact ── one buffer in that order
//!   large  Members ── member ─▶ entry with its score, by hash: a score in constant time
//!          Order ──── score and entry, a tree that counts: ranks, and ranges by rank, score or member, in logarithmic time
//! ```
//!
//! A small set becomes large when it outgrows its limits, and stays so.

mod compact;
mod members;
mod order;

use std::cmp::Ordering;
use std::ops::Range;

use crate::store::dict::KeyHasher;
use crate::store::entry::EntryRef;

use compact::Compact;
use members::{Members, score_of};
use order::{Key, Order};

/// How far a sorted set may grow as one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// `zset-max-listpack-entries`: number of members.
    pub entries: usize,
    /// `zset-max-listpack-value`: bytes of a member.
    pub value: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { entries: 128, value: 64 }
    }
}

/// A member and its score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Item<'a> {
    /// The member.
    pub member: &'a [u8],
    /// Its score; never NaN.
    pub score: f64,
}

/// Whether one item comes before another.
pub fn precedes(a: Item<'_>, b: Item<'_>) -> bool {
    compare(a, b) == Ordering::Less
}

/// The order of items.
pub fn compare(a: Item<'_>, b: Item<'_>) -> Ordering {
    // No score is NaN.
    a.score.partial_cmp(&b.score).unwrap_or(Ordering::Equal).then_with(|| a.member.cmp(b.member))
}

/// One end of a range by members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LexBound<'a> {
    /// `-`: before every member.
    Least,
    /// `[member`
    Inclusive(&'a [u8]),
    /// `(member`
    Exclusive(&'a [u8]),
    /// `+`: behind every member.
    Greatest,
}

impl LexBound<'_> {
    /// Whether a member lies before a range that begins here.
    fn above(self, member: &[u8]) -> bool {
        match self {
            LexBound::Least => false,
            LexBound::Inclusive(bound) => member < bound,
            LexBound::Exclusive(bound) => member <= bound,
            LexBound::Greatest => true,
        }
    }

    /// Whether a member lies behind a range that ends here.
    fn below(self, member: &[u8]) -> bool {
        match self {
            LexBound::Least => true,
            LexBound::Inclusive(bound) => member > bound,
            LexBound::Exclusive(bound) => member >= bound,
            LexBound::Greatest => false,
        }
    }
}

/// Members and their scores.
#[derive(Clone)]
pub struct ZSet(Form);

#[derive(Clone)]
enum Form {
    Compact(Compact),
    Large(Box<Large>),
}

/// A large sorted set. The order holds the address of every member's entry and of no other: a member enters both and leaves both
/// before anything else is done with either.
#[derive(Default)]
struct Large {
    members: Members,
    order: Order,
}

impl Default for ZSet {
    fn default() -> Self {
        ZSet(Form::Compact(Compact::default()))
    }
}

impl Large {
    fn insert(&mut self, hasher: &KeyHasher, item: Item<'_>) {
        let address = self.members.insert(hasher, item.member, item.score);
        // SAFETY: the order asks at once, for its own keys.
        self.order.insert(Key { score: item.score, address }, unsafe { before(item) });
    }

    fn rank(&self, item: Item<'_>) -> usize {
        // SAFETY: the order asks at once, for its own keys.
        self.order.partition(unsafe { before(item) })
    }
}

/// Whether a key of the order of a large set stands before an item.
///
/// # Safety
/// What is returned is given only to the order of a large set, which asks for keys of its own, and nothing changes the set's members
/// meanwhile.
unsafe fn before(item: Item<'_>) -> impl Fn(Key) -> bool {
    move |key| {
        // Most scores differ: the member is only looked at where they do not.
        // SAFETY: as promised.
        if key.score == item.score { unsafe { item_of(key) }.member < item.member } else { key.score < item.score }
    }
}

/// The item of a key.
///
/// # Safety
/// The key is from the order of a large set, or has just left it, and its member is not removed during `'a`. The entry whose address
/// it has is alive then: see [`Large`].
unsafe fn item_of<'a>(key: Key) -> Item<'a> {
    // SAFETY: as promised by the caller.
    Item { member: unsafe { EntryRef::at(key.address) }.key(), score: key.score }
}

/// Members and scores, in their order.
impl std::fmt::Debug for ZSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.iter().map(|item| (String::from_utf8_lossy(item.member).into_owned(), item.score))).finish()
    }
}

impl Clone for Large {
    fn clone(&self) -> Self {
        let mut addresses: Vec<(u64, u64)> = Vec::with_capacity(self.members.len());
        let members = self.members.duplicate(|old, new| addresses.push((old, new)));
        addresses.sort_unstable();
        let order = self.order.duplicate(|old| {
            let at = addresses.binary_search_by_key(&old, |pair| pair.0);
            addresses[at.expect("every key of the order names a member's entry")].1
        });
        Large { members, order }
    }
}

/// Items of a sorted set, in their order or in the reverse.
pub struct Items<'a>(Source<'a>);

enum Source<'a> {
    /// A buffer, forwards.
    Compact(std::iter::Take<std::iter::Skip<compact::Iter<'a>>>),
    /// A buffer, backwards.
    Listed(std::iter::Rev<std::vec::IntoIter<Item<'a>>>),
    /// A large set.
    Large(order::Walk<'a>),
}

impl<'a> Iterator for Items<'a> {
    type Item = Item<'a>;

    #[inline]
    fn next(&mut self) -> Option<Item<'a>> {
        match &mut self.0 {
            Source::Compact(iter) => iter.next(),
            Source::Listed(iter) => iter.next(),
            // SAFETY: the walk goes over the order of a large set that is borrowed for `'a`.
            Source::Large(walk) => walk.next().map(|key| unsafe { item_of(key) }),
        }
    }
}

impl ZSet {
    /// Number of members.
    pub fn len(&self) -> usize {
        match &self.0 {
            Form::Compact(compact) => compact.len(),
            Form::Large(large) => large.members.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        match &self.0 {
            Form::Compact(compact) => compact.is_empty(),
            Form::Large(large) => large.members.len() == 0,
        }
    }

    /// What `OBJECT ENCODING` answers.
    pub fn encoding(&self) -> &'static str {
        if self.is_small() { "listpack" } else { "skiplist" }
    }

    /// Whether it is one buffer.
    pub fn is_small(&self) -> bool {
        matches!(self.0, Form::Compact(_))
    }

    /// Bytes of the value on the heap, the allocator's overhead not counted. Walks a large set.
    pub fn allocated(&self) -> usize {
        match &self.0 {
            Form::Compact(compact) => compact.allocated(),
            Form::Large(large) => size_of::<Large>() + large.members.allocated() + large.order.allocated(),
        }
    }

    /// The score of a member.
    pub fn score(&self, hasher: &KeyHasher, member: &[u8]) -> Option<f64> {
        match &self.0 {
            Form::Compact(compact) => compact.find(member).map(|(_, score, _)| score),
            Form::Large(large) => large.members.get(hasher.hash(member), member).map(score_of),
        }
    }

    /// The rank of a member, the first being 0, and its score.
    pub fn rank(&self, hasher: &KeyHasher, member: &[u8]) -> Option<(usize, f64)> {
        match &self.0 {
            Form::Compact(compact) => compact.find(member).map(|(rank, score, _)| (rank, score)),
            Form::Large(large) => {
                let score = score_of(large.members.get(hasher.hash(member), member)?);
                Some((large.rank(Item { member, score }), score))
            }
        }
    }

    /// Gives a member this score, which must not be NaN; gives the score that it had.
    pub fn insert(&mut self, hasher: &KeyHasher, limits: Limits, member: &[u8], score: f64) -> Option<f64> {
        debug_assert!(!score.is_nan());
        let item = Item { member, score };
        if let Form::Compact(compact) = &mut self.0 {
            let old = compact.find(member).map(|(_, score, span)| {
                compact.cut(span);
                score
            });
            if old.is_some() || (member.len() <= limits.value && compact.len() < limits.entries) {
                compact.insert(item);
                return old;
            }
        }
        let large = self.spread(hasher);
        let hash = hasher.hash(member);
        let Some(old) = large.members.get(hash, member).map(score_of) else {
            large.insert(hasher, item);
            return None;
        };
        let rank = large.rank(Item { member, score: old });
        if let Some(key) = large.order.remove(rank) {
            large.members.set_score(hash, member, score);
            // SAFETY: the order asks at once, for its own keys.
            large.order.insert(Key { score, ..key }, unsafe { before(item) });
        }
        Some(old)
    }

    /// Takes a member out; gives its score.
    pub fn remove(&mut self, hasher: &KeyHasher, member: &[u8]) -> Option<f64> {
        match &mut self.0 {
            Form::Compact(compact) => {
                let (_, score, span) = compact.find(member)?;
                compact.cut(span);
                Some(score)
            }
            Form::Large(large) => {
                let hash = hasher.hash(member);
                let score = score_of(large.members.get(hash, member)?);
                let key = large.order.remove(large.rank(Item { member, score }))?;
                drop(large.members.remove(hash, key.address));
                Some(score)
            }
        }
    }

    /// Takes the members of these ranks out, after showing each.
    pub fn take(&mut self, hasher: &KeyHasher, ranks: Range<usize>, mut visit: impl FnMut(Item<'_>)) {
        match &mut self.0 {
            Form::Compact(compact) => {
                let span = compact.span(ranks.clone());
                compact.iter().skip(ranks.start).take(ranks.len()).for_each(visit);
                compact.cut(span);
            }
            Form::Large(large) => {
                for _ in ranks.clone() {
                    let Some(key) = large.order.remove(ranks.start) else { return };
                    // SAFETY: the key has just left the order; its member goes two lines on, when the item is not used any more.
                    let item = unsafe { item_of(key) };
                    visit(item);
                    let hash = hasher.hash(item.member);
                    drop(large.members.remove(hash, key.address));
                }
            }
        }
    }

    /// Makes it a large set, as if it had outgrown a buffer's limits.
    pub fn make_large(&mut self, hasher: &KeyHasher) {
        self.spread(hasher);
    }

    fn spread(&mut self, hasher: &KeyHasher) -> &mut Large {
        if let Form::Compact(compact) = &self.0 {
            let mut large = Box::<Large>::default();
            compact.iter().for_each(|item| large.insert(hasher, item));
            self.0 = Form::Large(large);
        }
        match &mut self.0 {
            Form::Large(large) => large,
            Form::Compact(_) => unreachable!("was made large just above"),
        }
    }

    /// A set of different members that come in their order, small if the limits permit.
    pub fn from_sorted(hasher: &KeyHasher, limits: Limits, items: &[Item<'_>]) -> ZSet {
        debug_assert!(items.is_sorted_by(|a, b| precedes(*a, *b)));
        if items.len() <= limits.entries && items.iter().all(|item| item.member.len() <= limits.value) {
            return ZSet(Form::Compact(Compact::from_sorted(items.iter().copied())));
        }
        let mut large = Box::<Large>::default();
        for item in items {
            let address = large.members.insert(hasher, item.member, item.score);
            large.order.insert(Key { score: item.score, address }, |_| true);
        }
        ZSet(Form::Large(large))
    }

    /// Items of these ranks, the last first where `reverse` says so. Ranks beyond the last are passed over.
    pub fn items(&self, ranks: Range<usize>, reverse: bool) -> Items<'_> {
        match &self.0 {
            Form::Compact(compact) if reverse => {
                let listed: Vec<_> = compact.iter().skip(ranks.start).take(ranks.len()).collect();
                Items(Source::Listed(listed.into_iter().rev()))
            }
            Form::Compact(compact) => Items(Source::Compact(compact.iter().skip(ranks.start).take(ranks.len()))),
            Form::Large(large) => Items(Source::Large(large.order.walk(ranks, reverse))),
        }
    }

    /// All items in their order.
    pub fn iter(&self) -> Items<'_> {
        self.items(0..usize::MAX, false)
    }

    /// The number of members whose scores are below `score`, or equal to it where `inclusive` says so.
    pub fn count_below(&self, score: f64, inclusive: bool) -> usize {
        let below = |other: f64| if inclusive { other <= score } else { other < score };
        match &self.0 {
            Form::Compact(compact) => compact.iter().take_while(|item| below(item.score)).count(),
            Form::Large(large) => large.order.partition(|key| below(key.score)),
        }
    }

    /// The ranks of the members between two bounds, if all have the same score.
    ///
    /// Where scores differ Redis leaves the result open. Here it is what Redis makes of a small set: the members from the first that is
    /// not before the range up to the one before the first that is behind it (looked for from the end where `reverse` says so), and
    /// nothing where the ends of the set say that there is nothing.
    pub fn lex_ranks(&self, min: LexBound<'_>, max: LexBound<'_>, reverse: bool) -> Range<usize> {
        match &self.0 {
            Form::Compact(compact) => {
                let items: Vec<_> = compact.iter().map(|item| item.member).collect();
                let outside = |member: &[u8]| min.above(member) || max.below(member);
                if items.last().is_none_or(|last| min.above(last)) || items.first().is_none_or(|first| max.below(first)) {
                    return 0..0;
                }
                if reverse {
                    let end = items.iter().rposition(|member| !max.below(member)).map_or(0, |last| last + 1);
                    let start = items[..end].iter().rposition(|member| min.above(member)).map_or(0, |before| before + 1);
                    start..end
                } else {
                    let start = items.iter().position(|member| !min.above(member)).unwrap_or(items.len());
                    if items.get(start).is_none_or(|member| outside(member)) {
                        return 0..0;
                    }
                    start..start + items[start..].iter().take_while(|member| !max.below(member)).count()
                }
            }
            Form::Large(large) => {
                // SAFETY: the order is that of a large set, which is borrowed.
                let member = |key| unsafe { item_of(key) }.member;
                let start = large.order.partition(|key| min.above(member(key)));
                let end = large.order.partition(|key| !max.below(member(key)));
                start..end.max(start)
            }
        }
    }

    /// Visits members from a cursor on until `count` were seen; gives the cursor to go on from, 0 at the end. A small set is visited
    /// whole, in its order.
    pub fn scan<'a>(&'a self, cursor: u64, count: usize, mut visit: impl FnMut(Item<'a>)) -> u64 {
        match &self.0 {
            Form::Compact(compact) => {
                compact.iter().for_each(visit);
                0
            }
            Form::Large(large) => {
                large.members.scan(cursor, count, |entry| visit(Item { member: entry.key(), score: score_of(entry) }))
            }
        }
    }

    /// How many pieces it takes to free it.
    pub fn weight(&self) -> usize {
        match &self.0 {
            Form::Compact(_) => 1,
            Form::Large(large) => large.members.len(),
        }
    }

    /// Frees up to `budget` members; true when none is left.
    pub fn free_some(&mut self, budget: &mut u32) -> bool {
        let Form::Large(large) = &mut self.0 else { return true };
        while *budget > 0 {
            *budget -= 1;
            // A leaf costs as much as a member.
            if large.order.prune() == 0 && !large.members.pop() {
                return true;
            }
        }
        false
    }

    /// Panics if an invariant is broken. Walks everything.
    pub fn check_invariants(&self, hasher: &KeyHasher) {
        match &self.0 {
            Form::Compact(compact) => compact.check_invariants(),
            Form::Large(large) => {
                large.members.check_invariants(hasher);
                large.order.check_invariants();
                assert_eq!(large.members.len(), large.order.len(), "members in both");
                let mut last: Option<Item<'_>> = None;
                for key in large.order.walk(0..usize::MAX, false) {
                    // SAFETY: the order is that of this set, which is borrowed.
                    let item = unsafe { item_of(key) };
                    assert!(last.is_none_or(|last| precedes(last, item)), "{last:?} before {item:?}");
                    let entry = large.members.get(hasher.hash(item.member), item.member);
                    let entry = entry.map(|entry| (entry.address(), score_of(entry).to_bits()));
                    assert_eq!(entry, Some((key.address, key.score.to_bits())), "the entry of {item:?}");
                    last = Some(item);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
