//! A small set of integers in one buffer: first the width of each integer in bytes, 2, 4 or 8, then all of them in ascending
//! order. An empty set has no bytes at all.

/// The content of a buffer.
#[derive(Clone, Copy)]
pub struct Ints<'b>(&'b [u8]);

/// Width of an integer in bytes: 2, 4 or 8.
fn width_of(n: i64) -> usize {
    match n {
        _ if i16::try_from(n).is_ok() => 2,
        _ if i32::try_from(n).is_ok() => 4,
        _ => 8,
    }
}

fn write(bytes: &mut [u8], n: i64) {
    let len = bytes.len();
    bytes.copy_from_slice(&n.to_le_bytes()[..len]);
}

impl<'b> Ints<'b> {
    /// Reads a buffer.
    pub fn of(buffer: &'b [u8]) -> Self {
        Ints(buffer)
    }

    /// Width of each integer in bytes; 2 for an empty set.
    #[inline]
    fn width(&self) -> usize {
        self.0.first().map_or(2, |width| usize::from(*width))
    }

    /// Number of integers.
    pub fn len(&self) -> usize {
        self.0.len() / self.width()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The `index`-th integer in ascending order.
    #[inline]
    pub fn nth(&self, index: usize) -> Option<i64> {
        let width = self.width();
        let at = index.checked_mul(width)?.checked_add(1)?;
        Some(match *self.0.get(at..at.checked_add(width)?)? {
            [a, b] => i16::from_le_bytes([a, b]).into(),
            [a, b, c, d] => i32::from_le_bytes([a, b, c, d]).into(),
            [a, b, c, d, e, f, g, h] => i64::from_le_bytes([a, b, c, d, e, f, g, h]),
            _ => unreachable!("integers are 2, 4 or 8 bytes wide"),
        })
    }

    /// All integers, in ascending order.
    pub fn iter(self) -> impl Iterator<Item = i64> + use<'b> {
        (0..self.len()).filter_map(move |index| self.nth(index))
    }

    /// The index of an integer, or else the index at which it would be inserted.
    fn search(&self, n: i64) -> Result<usize, usize> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            match self.nth(middle).map(|found| found.cmp(&n)) {
                Some(std::cmp::Ordering::Less) => low = middle + 1,
                Some(std::cmp::Ordering::Equal) => return Ok(middle),
                _ => high = middle,
            }
        }
        Err(low)
    }

    /// Whether an integer is among them.
    pub fn contains(&self, n: i64) -> bool {
        width_of(n) <= self.width() && self.search(n).is_ok()
    }

    /// Panics where they are not in order.
    pub fn check_invariants(&self) {
        assert!(self.is_empty() || matches!(self.width(), 2 | 4 | 8), "a width of {}", self.width());
        assert!(self.is_empty() || self.0.len() == 1 + self.len() * self.width(), "bytes of whole integers");
        assert!(self.iter().zip(self.iter().skip(1)).all(|(a, b)| a < b), "integers out of order");
    }
}

/// Adds an integer to a buffer; true when it is new.
pub fn add(buffer: &mut Box<[u8]>, n: i64) -> bool {
    let ints = Ints(buffer);
    if ints.is_empty() || width_of(n) > ints.width() {
        let width = width_of(n);
        let mut bytes = vec![0; 1 + ints.len() * width];
        bytes[0] = width as u8;
        bytes[1..].chunks_exact_mut(width).zip(ints.iter()).for_each(|(bytes, n)| write(bytes, n));
        *buffer = bytes.into_boxed_slice();
    }
    let ints = Ints(buffer);
    let Err(index) = ints.search(n) else { return false };
    let width = ints.width();
    let mut bytes = std::mem::take(buffer).into_vec();
    bytes.reserve_exact(width);
    let (at, end) = (1 + index * width, bytes.len());
    bytes.resize(end + width, 0);
    bytes.copy_within(at..end, at + width);
    write(&mut bytes[at..at + width], n);
    *buffer = bytes.into_boxed_slice();
    true
}

/// Takes an integer out of a buffer; false where it is not in there.
pub fn remove(buffer: &mut Box<[u8]>, n: i64) -> bool {
    let ints = Ints(buffer);
    if width_of(n) > ints.width() {
        return false;
    }
    let Ok(index) = ints.search(n) else { return false };
    let width = ints.width();
    let at = 1 + index * width;
    let mut bytes = std::mem::take(buffer).into_vec();
    bytes.drain(at..at + width);
    bytes.truncate(if bytes.len() == 1 { 0 } else { bytes.len() });
    *buffer = bytes.into_boxed_slice();
    true
}

impl std::fmt::Debug for Ints<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::base::scaled;

    fn number() -> impl Strategy<Value = i64> {
        prop_oneof![
            6 => -40i64..40,
            1 => prop::sample::select(&[32_767i64, 32_768, -32_768, -32_769, 2_147_483_647, 2_147_483_648][..]),
            1 => prop::sample::select(&[-2_147_483_648i64, -2_147_483_649, i64::MAX, i64::MIN][..]),
        ]
    }

    proptest! {
        #[test]
        fn behave_as_an_ordered_set(steps in prop::collection::vec((any::<bool>(), number()), 1..scaled(200, 60))) {
            let mut buffer = Box::default();
            let mut model = BTreeSet::new();
            for (new, n) in steps {
                if new {
                    prop_assert_eq!(add(&mut buffer, n), model.insert(n));
                } else {
                    prop_assert_eq!(remove(&mut buffer, n), model.remove(&n));
                }
                let ints = Ints::of(&buffer);
                ints.check_invariants();
                prop_assert!(ints.iter().eq(model.iter().copied()));
                prop_assert_eq!(ints.contains(n), model.contains(&n));
                prop_assert_eq!(ints.len(), model.len());
            }
        }
    }
}
