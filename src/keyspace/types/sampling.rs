//! Random subsets of a collection's elements.

use crate::store::trie::below;

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
