//! Histogram of durations, for the times of commands and of the executor's turns.

/// Number of buckets per power of two.
const SUB: usize = 32;
/// Longer durations count as this one, in nanoseconds: one second.
const NS_MAX: u64 = 1 << 30;
const BUCKETS: usize = SUB * (NS_MAX.ilog2() as usize - SUB.ilog2() as usize + 2);

/// Histogram of durations: 32 buckets per power of two of nanoseconds, so that results are accurate to 3 %.
#[derive(Debug)]
pub struct Histogram {
    counts: Box<[u32; BUCKETS]>,
    total: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: Box::new([0; BUCKETS]), total: 0 }
    }
}

impl Histogram {
    fn bucket(ns: u64) -> usize {
        let ns = ns.min(NS_MAX);
        if ns < SUB as u64 {
            return ns as usize;
        }
        let power = (ns.ilog2() - SUB.ilog2()) as usize;
        (power + 1) * SUB + (ns >> power) as usize - SUB
    }

    /// The longest duration of a bucket.
    fn highest(bucket: usize) -> u64 {
        if bucket < SUB {
            return bucket as u64;
        }
        let power = bucket / SUB - 1;
        (((bucket % SUB + SUB + 1) as u64) << power) - 1
    }

    /// Counts a duration, in nanoseconds, `times` times.
    pub fn record(&mut self, ns: u64, times: u32) {
        let count = &mut self.counts[Self::bucket(ns.max(1))];
        *count = count.saturating_add(times);
        self.total += u64::from(times);
    }

    /// Number of counted durations.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The duration, in nanoseconds, that `percent` of all durations do not exceed.
    pub fn percentile(&self, percent: f64) -> u64 {
        let wanted = ((percent / 100.0 * self.total as f64).ceil() as u64).max(1);
        let mut seen = 0;
        let bucket = self.counts.iter().position(|&count| {
            seen += u64::from(count);
            seen >= wanted
        });
        bucket.map_or(0, Self::highest)
    }

    /// Cumulative counts, at the powers of two from about a microsecond where the count changes: the bound in microseconds, and
    /// the number of durations below it.
    pub fn cumulative(&self) -> Vec<(u64, u64)> {
        let mut rows = Vec::new();
        let (mut bucket, mut seen, mut shown) = (0, 0, 0);
        for power in 10..=NS_MAX.ilog2() {
            // The end of the first of 128 parts above the power of two, which is the bound in Redis's histogram.
            let bound_ns = (1u64 << power) + (1 << (power - 7)) - 1;
            while bucket < BUCKETS && Self::highest(bucket) <= bound_ns {
                seen += u64::from(self.counts[bucket]);
                bucket += 1;
            }
            if power == NS_MAX.ilog2() {
                seen = self.total;
            }
            if seen > shown {
                rows.push((bound_ns / 1000, seen));
                shown = seen;
            }
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_without_gaps() {
        for bucket in 0..Histogram::bucket(NS_MAX) {
            let highest = Histogram::highest(bucket);
            assert_eq!(Histogram::bucket(highest), bucket);
            assert_eq!(Histogram::bucket(highest + 1), bucket + 1);
        }
        assert!(Histogram::bucket(u64::MAX) < BUCKETS);
    }

    #[test]
    fn percentiles_are_right_to_three_percent() {
        let mut histogram = Histogram::default();
        (1..=1000).for_each(|us| histogram.record(us * 1000, 1));
        for (percent, us) in [(50.0, 500.0), (99.0, 990.0), (99.9, 999.0), (100.0, 1000.0)] {
            let got = histogram.percentile(percent) as f64 / 1000.0;
            assert!(got >= us && got < us * 1.032, "{percent}: {got}");
        }
        let rows = histogram.cumulative();
        assert_eq!(rows.first().map(|row| row.0), Some(1));
        assert_eq!(rows.last(), Some(&(1056, 1000)));
        assert!(rows.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1));
    }
}
