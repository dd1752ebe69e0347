//! Random numbers from a seed. There is a separate stream for each purpose, so that removing one thing from a run leaves all
//! other random choices as they were.

/// A stream of random numbers (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

/// One step of splitmix64, which also mixes its input well.
fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Random {
    /// The stream of a seed for a purpose: `stream` is one of [`streams`](crate::torture::plan::streams), `part` a number within
    /// it.
    pub fn new(seed: u64, stream: u64, part: u64) -> Random {
        Random(mix(mix(mix(seed) ^ stream) ^ part))
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        let out = mix(self.0);
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        out
    }

    /// A number below `end`, or 0 if `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(end)) >> 64) as u64
    }

    /// A number from `from` up to `end`, exclusive.
    pub fn between(&mut self, from: u64, end: u64) -> u64 {
        from + self.below(end.saturating_sub(from))
    }

    /// True with this probability, in percent.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// A time with about this average, often much shorter and sometimes much longer.
    pub fn around(&mut self, mean_us: u64) -> u64 {
        // Computed by doublings: the last digits of a logarithm differ between machines.
        let doublings = u64::from(self.draw().trailing_ones().min(3));
        self.below(mean_us << doublings)
    }
}
