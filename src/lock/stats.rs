//! Totals of all locks, the distribution of waiting times, and the longest waits.

use crate::base::kept::{Dated, Kept, block};

/// Buckets per power of two of microseconds: percentiles are accurate to 12.5 %.
const SUB: u64 = 8;
const BUCKETS: usize = (64 - 3) * SUB as usize + SUB as usize;
/// Default number of long waits that are kept.
pub const LONG_MAX: usize = 128;

/// Totals since the start or the last reset.
#[derive(Clone, Debug)]
pub struct Stats {
    /// Grants.
    pub grants: u64,
    /// Grants without a wait.
    pub immediate: u64,
    /// Grants after a wait.
    pub queued: u64,
    /// Releases.
    pub releases: u64,
    /// Grants that ended with their leases.
    pub expiries: u64,
    /// Grants that ended with their connections.
    pub session_ends: u64,
    /// Grants that ended because the lock was deleted or its database emptied.
    pub deletions: u64,
    /// Grants that an administrator broke.
    pub broken: u64,
    /// Connections and named sessions that ended and took grants with them.
    pub session_ends_held: u64,
    /// Waits that ended without a grant.
    pub timeouts: u64,
    /// Waits refused because they would have closed a cycle.
    pub deadlocks: u64,
    /// Maximum number of waiters for one name.
    pub longest_queue: u32,
    waits: Box<[u64]>,
    /// The longest of the waits, in microseconds.
    longest_us: u64,
    /// The last long waits.
    pub long: Kept<LongWait>,
    long_max: usize,
    next_id: u64,
}

/// A wait beyond the threshold of long waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LongWait {
    /// Its number.
    pub id: u64,
    /// When it ended, in monotonic milliseconds.
    pub at_ms: u64,
    /// Its length in milliseconds.
    pub waited_ms: u64,
    /// The database of the name.
    pub db: u32,
    /// The name.
    pub name: Vec<u8>,
    /// The owner.
    pub owner: Vec<u8>,
    /// The client's number.
    pub client: u64,
    /// Whether it ended with a grant.
    pub granted: bool,
}

impl Dated for LongWait {
    fn at_ms(&self) -> u64 {
        self.at_ms
    }

    fn heap_bytes(&self) -> usize {
        block(self.name.len()) + block(self.owner.len())
    }
}

impl Default for Stats {
    fn default() -> Self {
        Stats {
            grants: 0,
            immediate: 0,
            queued: 0,
            releases: 0,
            expiries: 0,
            session_ends: 0,
            deletions: 0,
            broken: 0,
            session_ends_held: 0,
            timeouts: 0,
            deadlocks: 0,
            longest_queue: 0,
            waits: vec![0; BUCKETS].into(),
            longest_us: 0,
            long: Kept::default(),
            long_max: LONG_MAX,
            next_id: 0,
        }
    }
}

impl Stats {
    fn bucket(us: u64) -> usize {
        if us < SUB {
            return us as usize;
        }
        let power = us.ilog2() as u64 - SUB.ilog2() as u64;
        ((power + 1) * SUB + (us >> power) - SUB) as usize
    }

    /// The longest wait that falls into a bucket.
    fn highest(bucket: usize) -> u64 {
        let bucket = bucket as u64;
        if bucket < SUB {
            return bucket;
        }
        let power = bucket / SUB - 1;
        ((bucket % SUB + SUB + 1) << power) - 1
    }

    /// Counts a wait that ended with a grant, in microseconds.
    pub fn waited(&mut self, us: u64) {
        self.waits[Self::bucket(us).min(BUCKETS - 1)] += 1;
        self.longest_us = self.longest_us.max(us);
    }

    /// The waiting times, in microseconds, that each percentage of the waits did not exceed; 0 without waits. `present_us` are
    /// waits that last, which count too. They are accurate to 12.5 %, and never above the longest wait.
    pub fn wait_percentiles_us<const N: usize>(&self, present_us: impl Iterator<Item = u64>, percents: [f64; N]) -> [u64; N] {
        let (mut waits, mut longest_us) = (self.waits.clone(), self.longest_us);
        for us in present_us {
            waits[Self::bucket(us).min(BUCKETS - 1)] += 1;
            longest_us = longest_us.max(us);
        }
        let total: u64 = waits.iter().sum();
        percents.map(|percent| {
            let wanted = ((percent / 100.0 * total as f64).ceil() as u64).max(1);
            let mut seen = 0;
            let bucket = waits.iter().position(|&count| {
                seen += count;
                seen >= wanted
            });
            bucket.map_or(0, Self::highest).min(longest_us)
        })
    }

    /// Keeps a long wait and numbers it. The oldest ones beyond the maximum are dropped.
    pub fn keep_long(&mut self, mut wait: LongWait) {
        wait.id = self.next_id;
        self.next_id += 1;
        self.long.push(wait, self.long_max);
    }

    /// Sets how many long waits are kept. Forgets the excess at once.
    pub fn set_long_max(&mut self, long_max: usize) {
        self.long_max = long_max;
        self.long.bound(long_max);
    }

    /// Resets the totals; long waits stay.
    pub fn reset(&mut self) {
        let (long, long_max, next_id) = (std::mem::take(&mut self.long), self.long_max, self.next_id);
        *self = Stats { long, long_max, next_id, ..Stats::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_waits_are_right_to_an_eighth() {
        let mut stats = Stats::default();
        let none = || std::iter::empty();
        assert_eq!(stats.wait_percentiles_us(none(), [50.0]), [0]);
        (1..=1000).for_each(|ms| stats.waited(ms * 1000));
        for (percent, us) in [(50.0, 500_000.0), (99.0, 990_000.0), (100.0, 1_000_000.0)] {
            let [got] = stats.wait_percentiles_us(none(), [percent]).map(|us| us as f64);
            assert!(got >= us && got <= us * 1.125, "{percent}: {got}");
        }
        assert_eq!(stats.wait_percentiles_us(none(), [100.0]), [1_000_000], "not the end of its bucket");
        // Waits that last count as those that are over.
        let [half, most] = stats.wait_percentiles_us(std::iter::repeat_n(44_610_000, 999), [50.0, 99.0]);
        assert!((1_000_000..1_125_000).contains(&half) && most == 44_610_000, "{half} {most}");
        assert_eq!(Stats::default().wait_percentiles_us(std::iter::once(44_610_000), [50.0]), [44_610_000]);
        stats.waited(u64::MAX);
        stats.waited(0);
    }

    #[test]
    fn the_last_long_waits_are_kept() {
        let mut stats = Stats::default();
        let wait =
            LongWait { id: 0, at_ms: 0, waited_ms: 0, db: 0, name: Vec::new(), owner: Vec::new(), client: 0, granted: true };
        (0..200).for_each(|waited_ms| stats.keep_long(LongWait { waited_ms, ..wait.clone() }));
        assert_eq!(stats.long.latest().len(), LONG_MAX);
        assert_eq!(stats.long.latest().next().map(|wait| (wait.id, wait.waited_ms)), Some((199, 199)));
        stats.reset();
        assert_eq!(stats.long.latest().len(), LONG_MAX);
        stats.set_long_max(2);
        assert_eq!(stats.long.latest().map(|wait| wait.id).collect::<Vec<_>>(), [199, 198]);
        stats.keep_long(wait.clone());
        assert_eq!(stats.long.latest().map(|wait| wait.id).collect::<Vec<_>>(), [200, 199]);
        stats.set_long_max(0);
        stats.keep_long(wait);
        assert_eq!(stats.long.latest().len(), 0);
        stats.long.retain(|_| false);
        assert_eq!(stats.long.latest().len(), 0);
    }
}
