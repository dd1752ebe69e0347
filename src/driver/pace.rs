//! The pace of a load: how long a slice of it may take, and the delays of `key-load-delay`.

use std::time::Duration;

/// How long a slice of a load takes, unless a single key or request takes longer.
const SLICE: Duration = Duration::from_millis(1);
/// How long a follower applies at a time.
#[cfg(feature = "quorum")]
const APPLYING: Duration = Duration::from_micros(300);
/// Number of looks between two readings of the clock, which costs as much as a small key.
const LOOKS: u32 = 16;
/// Delays that are waited for together: shorter waits take longer than they are told to.
const WAIT_MIN: Duration = Duration::from_millis(1);

/// Time for one slice.
pub struct Pace {
    /// When it is over, in nanoseconds of a clock, and how that is read.
    until: Option<(u64, fn() -> u64)>,
    looks: u32,
    /// What `key-load-delay` asks to wait for.
    owed: Duration,
}

impl Pace {
    /// No bound, and no delays, for a load on a thread of its own.
    pub fn unlimited() -> Pace {
        Pace { until: None, looks: 0, owed: Duration::ZERO }
    }

    /// A slice of a load that begins now. `clock` reads a monotonic clock in nanoseconds.
    pub fn slice(clock: fn() -> u64) -> Pace {
        Pace::lasting(SLICE, clock)
    }

    /// A slice of what a follower applies, which begins now.
    #[cfg(feature = "quorum")]
    pub fn applying(clock: fn() -> u64) -> Pace {
        Pace::lasting(APPLYING, clock)
    }

    pub(in crate::driver) fn lasting(time: Duration, clock: fn() -> u64) -> Pace {
        Pace { until: Some((clock() + time.as_nanos() as u64, clock)), looks: 0, owed: Duration::ZERO }
    }

    /// Whether the slice is over.
    #[inline]
    pub fn is_over(&mut self) -> bool {
        let Some((until_ns, clock)) = self.until else { return false };
        if self.owed >= WAIT_MIN {
            return true;
        }
        self.looks += 1;
        self.looks.is_multiple_of(LOOKS) && clock() >= until_ns
    }

    /// A key or a request was loaded. `delay` is `key-load-delay`: microseconds, or the number of keys for one microsecond,
    /// negated.
    #[inline]
    pub fn loaded(&mut self, delay: i64) {
        if delay != 0 && self.until.is_some() {
            let ns = if delay > 0 { delay.unsigned_abs().saturating_mul(1000) } else { 1000 / delay.unsigned_abs() };
            self.owed = self.owed.saturating_add(Duration::from_nanos(ns));
        }
    }

    /// What is to be waited for after the slice.
    pub fn owed(&self) -> Duration {
        self.owed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_add_up_until_they_are_worth_a_wait() {
        let mut pace = Pace::slice(|| 0);
        (0..999).for_each(|_| pace.loaded(1));
        assert_eq!(pace.owed(), Duration::from_micros(999));
        pace.loaded(1);
        assert!(pace.is_over());
        assert_eq!(pace.owed(), Duration::from_millis(1));
        let mut pace = Pace::slice(|| 0);
        (0..1000).for_each(|_| pace.loaded(-10));
        assert_eq!(pace.owed(), Duration::from_micros(100));
        let mut pace = Pace::unlimited();
        pace.loaded(1_000_000);
        assert!(!pace.is_over() && pace.owed().is_zero());
    }

    #[test]
    fn a_slice_ends_by_itself() {
        thread_local!(static CLOCK: std::cell::Cell<u64> = const { std::cell::Cell::new(5) });
        let clock = || CLOCK.replace(CLOCK.get() + 100_000);
        let mut pace = Pace::slice(clock);
        while !pace.is_over() {}
        assert_eq!(CLOCK.get(), 5 + 11 * 100_000, "it began at the first reading, and the eleventh was a millisecond later");
    }
}
