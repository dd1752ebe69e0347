//! What the views of hashes, sets and sorted sets have in common: scans and random elements.

use std::collections::HashSet;
use std::hash::Hash;

use crate::store::dict::KeyHasher;
use crate::store::trie::below;

/// A hash, a set or a sorted set that a command reads. It is never empty.
pub trait Collection: Copy {
    /// A field with its value, or a member.
    type Element: Copy;
    /// What no two elements have in common: the name of the field, or the member.
    type Name: Eq + Hash;

    /// Number of elements.
    fn size(&self) -> usize;

    /// All elements.
    fn elements(&self) -> impl Iterator<Item = Self::Element>;

    /// Visits about `count` elements from the cursor on. Returns the next cursor, 0 at the end.
    fn scan(&self, cursor: u64, count: usize, visit: impl FnMut(Self::Element)) -> u64;

    /// The name of an element.
    fn name(element: Self::Element) -> Self::Name;

    /// The hasher of names.
    fn hasher(&self) -> &KeyHasher;

    /// Whether a random element is found only by a walk over those before it.
    fn is_walked(&self) -> bool;

    /// A single random element.
    fn draw(&self, random: impl FnMut() -> u64) -> Self::Element;

    /// A sample of fewer elements is drawn one by one. For a larger one, all elements are visited.
    fn drawn_below(&self) -> usize {
        if self.is_walked() { 0 } else { self.size() / 3 }
    }

    /// `count` different elements, a uniformly random subset; all of them if there are no more.
    fn sample(&self, count: usize, mut random: impl FnMut() -> u64) -> Vec<Self::Element> {
        let mut left = self.size();
        let wanted = count.min(left);
        let mut sample = Vec::with_capacity(wanted);
        if wanted < self.drawn_below() {
            let picker = Picker::new(*self);
            let mut taken = HashSet::with_capacity_and_hasher(wanted, self.hasher().state());
            while sample.len() < wanted {
                let element = picker.pick(&mut random);
                if taken.insert(Self::name(element)) {
                    sample.push(element);
                }
            }
            return sample;
        }
        // Knuth's algorithm S.
        for element in self.elements() {
            if sample.len() == wanted {
                break;
            }
            if below(random(), left) < wanted - sample.len() {
                sample.push(element);
            }
            left -= 1;
        }
        sample
    }
}

/// Picks random elements of a collection, each time uniformly.
pub struct Picker<C: Collection> {
    of: C,
    /// All elements, if one is found only by a walk over those before it.
    list: Vec<C::Element>,
}

impl<C: Collection> Picker<C> {
    /// A picker of a collection that is not empty. It lists all elements if one is found only by a walk.
    pub fn new(of: C) -> Self {
        Picker { of, list: if of.is_walked() { of.elements().collect() } else { Vec::new() } }
    }

    /// A random element.
    pub fn pick(&self, mut random: impl FnMut() -> u64) -> C::Element {
        debug_assert!(self.of.size() > 0, "an empty collection has nothing to pick");
        match self.list.len() {
            0 => self.of.draw(random),
            len => self.list[below(random(), len)],
        }
    }
}
