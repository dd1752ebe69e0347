//! A seeded random generator (splitmix64). Equal seeds give equal test runs on every machine.

/// A random generator.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The generator of a seed.
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, which must be above 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// A number in a range.
    pub fn range(&mut self, range: std::ops::RangeInclusive<i64>) -> i64 {
        let span = range.end().wrapping_sub(*range.start()) as u64;
        if span == u64::MAX { self.next() as i64 } else { range.start().wrapping_add(self.below(span + 1) as i64) }
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// A random element.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }

    /// A random index, with a probability proportional to its weight.
    pub fn weighted(&mut self, weights: &[u32]) -> usize {
        let mut left = self.below(weights.iter().map(|&w| u64::from(w)).sum());
        for (index, &weight) in weights.iter().enumerate() {
            match left.checked_sub(u64::from(weight)) {
                Some(rest) => left = rest,
                None => return index,
            }
        }
        weights.len() - 1
    }
}
