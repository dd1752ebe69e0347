//! Durations, counted by their powers of two from any number of threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Number of powers of two. The last one has all that is longer than a quarter of an hour.
const POWERS: usize = 32;

/// A number of durations, and how long they were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Durations {
    /// Number of durations.
    pub count: u64,
    /// The 50th percentile in microseconds, rounded up to a power of two; 0 without durations.
    pub p50_us: u64,
    /// The same for the 99th percentile.
    pub p99_us: u64,
    /// The longest one in microseconds.
    pub max_us: u64,
}

/// Counts durations.
#[derive(Debug, Default)]
pub struct Histogram {
    /// By the number of bits of their microseconds.
    counts: [AtomicU64; POWERS],
    max_us: AtomicU64,
    last_us: AtomicU64,
}

impl Histogram {
    /// Counts one.
    pub fn record(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bits = (u64::BITS - us.leading_zeros()) as usize;
        self.counts[bits.min(POWERS - 1)].fetch_add(1, Ordering::Relaxed);
        self.max_us.fetch_max(us, Ordering::Relaxed);
        self.note_last_us(us);
    }

    /// Notes a duration that is counted elsewhere as the last one.
    pub fn note_last_us(&self, us: u64) {
        self.last_us.store(us, Ordering::Relaxed);
    }

    /// The last one in microseconds.
    pub fn last_us(&self) -> u64 {
        self.last_us.load(Ordering::Relaxed)
    }

    /// How many there were, and how long.
    pub fn read(&self) -> Durations {
        let counts = self.counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        let (count, max_us) = (counts.iter().sum(), self.max_us.load(Ordering::Relaxed));
        let at = |share: f64| {
            let wanted = (count as f64 * share).ceil() as u64;
            let mut seen = 0;
            let bits = counts.iter().position(|here| {
                seen += here;
                wanted > 0 && seen >= wanted
            });
            bits.map_or(0, |bits| if bits == POWERS - 1 { max_us } else { max_us.min(1 << bits) })
        };
        Durations { count, p50_us: at(0.5), p99_us: at(0.99), max_us }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_rounded_up_to_powers_of_two() {
        let histogram = Histogram::default();
        assert_eq!(histogram.read(), Durations::default());
        for us in [100, 100, 100, 3000] {
            histogram.record(Duration::from_micros(us));
        }
        assert_eq!(histogram.read(), Durations { count: 4, p50_us: 128, p99_us: 3000, max_us: 3000 });
        assert_eq!(histogram.last_us(), 3000);
        histogram.record(Duration::from_secs(10_000));
        histogram.record(Duration::ZERO);
        assert_eq!(histogram.read(), Durations { count: 6, p50_us: 128, p99_us: 10_000_000_000, max_us: 10_000_000_000 });
    }
}

#[cfg(test)]
#[cfg(loom)]
mod models {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    #[test]
    fn no_duration_is_lost_whoever_counts_at_the_same_time() {
        loom::model(|| {
            let histogram = Arc::new(Histogram::default());
            let theirs = Arc::clone(&histogram);
            let other = thread::spawn(move || theirs.record(Duration::from_micros(100)));
            histogram.record(Duration::from_micros(90));
            assert!((1..=2).contains(&histogram.read().count));
            other.join().unwrap();
            assert_eq!(histogram.read(), Durations { count: 2, p50_us: 100, p99_us: 100, max_us: 100 });
        });
    }
}
