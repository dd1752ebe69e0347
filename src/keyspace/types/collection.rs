//! What the views of hashes, sets and sorted sets have in common: scans and random elements.

use crate::store::trie::below;

/// A hash, a set or a sorted set that a command reads. It is never empty.
pub trait Collection: Copy {
    /// A field with its value, or a member.
    type Element;
    /// The picker of random elements.
    type Picker: Pick<Element = Self::Element>;

    /// Visits about `count` elements from the cursor on. Returns the next cursor, 0 at the end.
    fn scan(&self, cursor: u64, count: usize, visit: impl FnMut(Self::Element)) -> u64;

    /// Returns a picker, which may list all elements of a small collection.
    fn picker(&self) -> Self::Picker;

    /// A single random element.
    fn pick_one(&self, random: impl FnMut() -> u64) -> Self::Element {
        self.picker().pick(random)
    }

    /// `count` different elements, a uniformly random subset; all of them if there are no more.
    fn sample(&self, count: usize, random: impl FnMut() -> u64) -> Vec<Self::Element>;
}

/// Picks random elements of a collection, each time uniformly.
pub trait Pick {
    /// A field with its value, or a member.
    type Element;

    /// A random element.
    fn pick(&self, random: impl FnMut() -> u64) -> Self::Element;
}

/// Selects `wanted` of the `left` elements of an iterator, a uniformly random subset in the iterator's order (Knuth's algorithm S).
pub(crate) fn select<T>(
    elements: impl Iterator<Item = T>,
    mut left: usize,
    mut wanted: usize,
    mut random: impl FnMut() -> u64,
) -> Vec<T> {
    let mut selected = Vec::with_capacity(wanted);
    for element in elements {
        if wanted == 0 {
            break;
        }
        if below(random(), left) < wanted {
            selected.push(element);
            wanted -= 1;
        }
        left -= 1;
    }
    selected
}
