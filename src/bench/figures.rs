//! What was measured.

use hdrhistogram::Histogram;

use crate::bench::section::Seen;

/// The longest time that is told apart, in microseconds.
const LONGEST_US: u64 = 600_000_000;

/// What came out of one work on one target.
#[derive(Debug)]
pub struct Outcome {
    /// The work's name.
    pub work: String,
    /// The target's name.
    pub target: String,
    /// Why it was not measured, where it was not.
    pub skipped: Option<String>,
    /// Acquisitions a second, of each slice.
    pub rates: Vec<f64>,
    /// Acquisitions, or times that it was done.
    pub done: u64,
    /// How many of them each client had.
    pub shares: Vec<u64>,
    /// Microseconds from asking to having.
    pub waits_us: Histogram<u64>,
    /// Microseconds from when a holder began to give back to when the next one has it, where that one had asked before.
    pub hand_offs_us: Histogram<u64>,
    /// Commands that clients sent.
    pub commands: u64,
    /// Nanoseconds of CPU that the servers spent.
    pub cpu_ns: u64,
    /// Where that is known from.
    pub cpu_source: &'static str,
    /// Times that a lock was not to be had in time.
    pub refused: u64,
    /// Times that a server failed it.
    pub failed: u64,
    /// The first of these errors.
    pub error: Option<String>,
    /// What the critical sections have seen; `None` where there are none.
    pub seen: Option<Seen>,
    /// Microseconds after the end of a lease that whoever waited had the lock; below 0 where it was before.
    pub late_us: Vec<i64>,
}

impl Outcome {
    /// Nothing yet.
    pub fn new(work: &str, target: &str, clients: usize, cpu_source: &'static str) -> Outcome {
        Outcome {
            work: work.to_owned(),
            target: target.to_owned(),
            skipped: None,
            rates: Vec::new(),
            done: 0,
            shares: vec![0; clients],
            waits_us: times(),
            hand_offs_us: times(),
            commands: 0,
            cpu_ns: 0,
            cpu_source,
            refused: 0,
            failed: 0,
            error: None,
            seen: None,
            late_us: Vec::new(),
        }
    }

    /// Whether more were in a critical section at once than may be.
    pub fn is_broken(&self) -> bool {
        self.seen.is_some_and(|seen| seen != Seen::default())
    }

    /// Whether it never worked, as a server failed it.
    pub fn is_failure(&self) -> bool {
        self.done == 0 && self.failed > 0
    }

    /// Acquisitions a second: the median of the slices.
    pub fn per_second(&self) -> f64 {
        median(&self.rates)
    }

    /// Commands an acquisition.
    pub fn commands_each(&self) -> Option<f64> {
        self.each(self.commands)
    }

    /// Microseconds of the servers' CPU an acquisition.
    pub fn cpu_us_each(&self) -> Option<f64> {
        self.each(self.cpu_ns).map(|ns| ns / 1000.0)
    }

    fn each(&self, sum: u64) -> Option<f64> {
        (self.done > 0).then(|| sum as f64 / self.done as f64)
    }

    /// How fair the clients' shares are; `None` where there was nothing to share.
    pub fn fairness(&self) -> Option<f64> {
        jain(&self.shares)
    }
}

fn times() -> Histogram<u64> {
    Histogram::new_with_max(LONGEST_US, 3).unwrap_or_else(|error| unreachable!("the bounds are constants: {error}"))
}

/// Jain's index: 1 where all shares are alike, 1/n where one has everything.
pub fn jain(shares: &[u64]) -> Option<f64> {
    let sum: f64 = shares.iter().map(|&share| share as f64).sum();
    let squares: f64 = shares.iter().map(|&share| (share as f64).powi(2)).sum();
    (squares > 0.0).then(|| sum * sum / (shares.len() as f64 * squares))
}

/// The median; 0 of nothing.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

/// What a part of the values is not above, of sorted ones.
pub fn quantile(sorted: &[i64], part: f64) -> Option<i64> {
    let last = sorted.len().checked_sub(1)?;
    sorted.get((last as f64 * part).round() as usize).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_that_are_alike_are_fair() {
        assert_eq!(jain(&[5, 5, 5, 5]), Some(1.0));
        assert_eq!(jain(&[20, 0, 0, 0]), Some(0.25));
        assert_eq!(jain(&[0, 0]), None);
        assert_eq!(jain(&[]), None);
    }

    #[test]
    fn medians_and_quantiles() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[]), 0.0);
        assert_eq!(quantile(&[1, 2, 3, 4, 100], 0.5), Some(3));
        assert_eq!(quantile(&[1, 2, 3, 4, 100], 1.0), Some(100));
        assert_eq!(quantile(&[], 0.5), None);
    }
}
