//! Rates per second of counters, as `INFO` shows them: means of the last sixteen tenths of a second.

/// Number of samples in a mean.
const SAMPLES: usize = 16;

/// Interval between two samples, in microseconds.
const INTERVAL_US: u64 = 100_000;

/// Growth rates of `N` counters. There is no timer: callers offer the instants they have, and growth between two samples counts
/// as evenly spread.
#[derive(Debug, Clone)]
pub struct Rates<const N: usize> {
    due_us: u64,
    last_us: u64,
    last: [u64; N],
    samples: [[u64; N]; SAMPLES],
    next: usize,
}

impl<const N: usize> Rates<N> {
    /// Starts with counters at zero.
    pub fn new(now_us: u64) -> Self {
        Rates { due_us: now_us.saturating_add(INTERVAL_US), last_us: now_us, last: [0; N], samples: [[0; N]; SAMPLES], next: 0 }
    }

    /// Whether a sample is due.
    #[inline]
    pub fn due(&self, now_us: u64) -> bool {
        now_us >= self.due_us
    }

    /// Takes a sample if one is due. A long pause fills as many samples as it lasted.
    pub fn sample(&mut self, now_us: u64, counters: [u64; N]) {
        if !self.due(now_us) {
            return;
        }
        let elapsed = now_us - self.last_us;
        let mut rates = [0; N];
        for (rate, (now, last)) in rates.iter_mut().zip(counters.into_iter().zip(self.last)) {
            // A counter that was reset counts from zero.
            let grown = now.checked_sub(last).unwrap_or(now);
            *rate = (u128::from(grown) * 1_000_000 / u128::from(elapsed.max(1))) as u64;
        }
        for _ in 0..(elapsed / INTERVAL_US).clamp(1, SAMPLES as u64) {
            self.samples[self.next] = rates;
            self.next = (self.next + 1) % SAMPLES;
        }
        (self.last, self.last_us, self.due_us) = (counters, now_us, now_us.saturating_add(INTERVAL_US));
    }

    /// Means of the samples, per second.
    pub fn per_second(&self) -> [u64; N] {
        std::array::from_fn(|i| self.samples.iter().map(|sample| sample[i]).sum::<u64>() / SAMPLES as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_stream_shows_its_rate_and_silence_ends_it() {
        let mut rates = Rates::<1>::new(0);
        for tenth in 1..=20 {
            rates.sample(tenth * INTERVAL_US, [tenth * 50]);
        }
        assert_eq!(rates.per_second(), [500]);
        rates.sample(2_800_000, [1000]);
        assert_eq!(rates.per_second(), [250]);
        rates.sample(60_000_000, [1000]);
        assert_eq!(rates.per_second(), [0]);
    }

    #[test]
    fn a_clock_at_its_end_takes_samples() {
        let mut rates = Rates::<1>::new(u64::MAX - 1);
        rates.sample(u64::MAX, [1]);
        rates.sample(u64::MAX, [2]);
        assert!(rates.due(u64::MAX));
    }

    #[test]
    fn a_reset_counter_does_not_wrap() {
        let mut rates = Rates::<1>::new(0);
        rates.sample(1_600_000, [1_600_000]);
        assert_eq!(rates.per_second(), [1_000_000]);
        rates.sample(3_200_000, [16]);
        assert_eq!(rates.per_second(), [10]);
    }

    #[test]
    fn samples_are_not_taken_too_often() {
        let mut rates = Rates::<1>::new(0);
        rates.sample(INTERVAL_US - 1, [1_000_000]);
        assert_eq!(rates.per_second(), [0]);
    }
}
