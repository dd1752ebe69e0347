//! The sorted set value: members with scores, in the order of scores and, for equal scores, of the members' bytes.
//!
//! ```text
//!   small  Compact ── one buffer in this order
//!   large  Members ── member ─▶ entry with its score, in a hash table: the score of a member in constant time
//!          Order ──── score and entry, in a counted B+-tree: ranks, and ranges by rank, score or member, in logarithmic time
//! ```
//!
//! A small set that outgrows its limits becomes large, and stays large.

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

/// Maximum size of a small sorted set.
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

/// A bound of a lexicographical range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LexBound<'a> {
    /// `-`: before all members.
    Least,
    /// `[member`.
    Inclusive(&'a [u8]),
    /// `(member`.
    Exclusive(&'a [u8]),
    /// `+`: after all members.
    Greatest,
}

impl LexBound<'_> {
    /// Whether a member is below a range that starts here.
    fn above(self, member: &[u8]) -> bool {
        match self {
            LexBound::Least => false,
            LexBound::Inclusive(bound) => member < bound,
            LexBound::Exclusive(bound) => member <= bound,
            LexBound::Greatest => true,
        }
    }

    /// Whether a member is above a range that ends here.
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

/// A large sorted set. The order contains the address of every member's entry and no other address: a member is added to both, or
/// removed from both, before anything else happens to either.
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
        // SAFETY: the order calls it immediately, with its own keys.
        self.order.insert(Key { score: item.score, address }, unsafe { before(item) });
    }

    fn rank(&self, item: Item<'_>) -> usize {
        // SAFETY: the order calls it immediately, with its own keys.
        self.order.partition(unsafe { before(item) })
    }
}

/// Whether a key of the order of a large set comes before an item.
///
/// # Safety
/// The returned function is called only by the order of a large set, with its own keys, and the set's members do not change
/// meanwhile.
unsafe fn before(item: Item<'_>) -> impl Fn(Key) -> bool {
    move |key| {
        // Most scores differ: the member is read only if they are equal.
        // SAFETY: the order of a large set calls this with its own key, and no member is removed meanwhile.
        if key.score == item.score { unsafe { item_of(key) }.member < item.member } else { key.score < item.score }
    }
}

/// The item of a key.
///
/// # Safety
/// The key is in the order of a large set or was just removed from it, and its member is not removed during `'a`, so the entry at
/// its address is alive: see [`Large`].
unsafe fn item_of<'a>(key: Key) -> Item<'a> {
    // SAFETY: the address is that of a member's entry, which is alive during `'a`, as promised. The item keeps only the key of
    // the entry, which never changes.
    Item { member: unsafe { EntryRef::at(key.address) }.key(), score: key.score }
}

/// Members and scores in order.
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

/// Items of a sorted set, in ascending or descending order.
pub struct Items<'a>(Source<'a>);

enum Source<'a> {
    /// A buffer, forward.
    Compact(std::iter::Take<std::iter::Skip<compact::Iter<'a>>>),
    /// A buffer, backward.
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
            // SAFETY: the walk visits the order of a large set that is borrowed for `'a`.
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

    /// Whether it has no members.
    pub fn is_empty(&self) -> bool {
        match &self.0 {
            Form::Compact(compact) => compact.is_empty(),
            Form::Large(large) => large.members.len() == 0,
        }
    }

    /// The reply of `OBJECT ENCODING`.
    pub fn encoding(&self) -> &'static str {
        if self.is_small() { "listpack" } else { "skiplist" }
    }

    /// Whether it is one buffer.
    pub fn is_small(&self) -> bool {
        matches!(self.0, Form::Compact(_))
    }

    /// Bytes of the value on the heap, without the allocator's overhead. Walks a large set.
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

    /// The rank of a member, from 0, and its score.
    pub fn rank(&self, hasher: &KeyHasher, member: &[u8]) -> Option<(usize, f64)> {
        match &self.0 {
            Form::Compact(compact) => compact.find(member).map(|(rank, score, _)| (rank, score)),
            Form::Large(large) => {
                let score = score_of(large.members.get(hasher.hash(member), member)?);
                Some((large.rank(Item { member, score }), score))
            }
        }
    }

    /// Sets the score of a member, which must not be NaN. Returns its previous score.
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
        let large = self.large_mut(hasher);
        let hash = hasher.hash(member);
        let Some(old) = large.members.get(hash, member).map(score_of) else {
            large.insert(hasher, item);
            return None;
        };
        let rank = large.rank(Item { member, score: old });
        if let Some(key) = large.order.remove(rank) {
            large.members.set_score(hash, member, score);
            // SAFETY: the order calls it immediately, with its own keys.
            large.order.insert(Key { score, ..key }, unsafe { before(item) });
        }
        Some(old)
    }

    /// Removes a member. Returns its score.
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

    /// Removes the members of these ranks, after passing each to `visit`.
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
                    // SAFETY: the key was just removed from the order; its member is removed below, after the last use of the
                    // item.
                    let item = unsafe { item_of(key) };
                    visit(item);
                    let hash = hasher.hash(item.member);
                    drop(large.members.remove(hash, key.address));
                }
            }
        }
    }

    /// Converts it to the large form.
    pub fn make_large(&mut self, hasher: &KeyHasher) {
        self.large_mut(hasher);
    }

    fn large_mut(&mut self, hasher: &KeyHasher) -> &mut Large {
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

    /// A sorted set of different members that are given in their order; small if the limits allow it.
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

    /// Items of these ranks, in descending order if `reverse`. Ranks beyond the last one are ignored.
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

    /// All items in order.
    pub fn iter(&self) -> Items<'_> {
        self.items(0..usize::MAX, false)
    }

    /// The number of members with scores below `score`; if `inclusive`, also those equal to it.
    pub fn count_below(&self, score: f64, inclusive: bool) -> usize {
        let below = |other: f64| if inclusive { other <= score } else { other < score };
        match &self.0 {
            Form::Compact(compact) => compact.iter().take_while(|item| below(item.score)).count(),
            Form::Large(large) => large.order.partition(|key| below(key.score)),
        }
    }

    /// The ranks of the members between two bounds, if all members have the same score.
    ///
    /// If scores differ, the result is undefined in Redis. Here it is Redis's result for a small set: from the first member that
    /// is not below the range to the last one before a member above it (searched from the end if `reverse`), and nothing if the
    /// last member is below the range or the first one above it.
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
                // SAFETY: the order belongs to a large set that is borrowed.
                let member = |key| unsafe { item_of(key) }.member;
                let start = large.order.partition(|key| min.above(member(key)));
                let end = large.order.partition(|key| !max.below(member(key)));
                start..end.max(start)
            }
        }
    }

    /// Visits about `count` members from the cursor on. Returns the next cursor, 0 at the end. A small set is visited completely,
    /// in order.
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

    /// Number of budget steps for freeing it.
    pub fn weight(&self) -> usize {
        match &self.0 {
            Form::Compact(_) => 1,
            Form::Large(large) => large.members.len(),
        }
    }

    /// Frees up to `budget` members. Returns true when nothing is left.
    pub fn free_some(&mut self, budget: &mut u32) -> bool {
        let Form::Large(large) = &mut self.0 else { return true };
        while *budget > 0 {
            *budget -= 1;
            // Freeing a leaf costs as much as freeing a member.
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
                    // SAFETY: the order belongs to this set, which is borrowed.
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
