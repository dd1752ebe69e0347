//! A client's clocks: a monotonic clock and a wall clock, both of which may run fast or slow.

use std::time::Duration;

/// The correct wall clock at the beginning, in Unix milliseconds.
pub const BEGIN_UNIX_MS: i64 = 1_700_000_000_000;

/// The clocks of one machine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Clock {
    /// The rate of both clocks in parts per million. Positive is fast.
    pub ppm: i64,
    /// The error of the wall clock, in milliseconds, beside the rate.
    pub set_by_ms: i64,
}

impl Clock {
    /// The reading of the monotonic clock at a true time.
    pub fn elapsed_us(&self, true_us: u64) -> u64 {
        // Times are short enough for this, but for those that stand for no end.
        match (true_us as i64).checked_mul(self.ppm).filter(|_| true_us <= i64::MAX as u64) {
            Some(product) => true_us.saturating_add_signed(product / 1_000_000),
            None => true_us.saturating_add_signed((i128::from(true_us) * i128::from(self.ppm) / 1_000_000) as i64),
        }
    }

    /// The true time at a reading of the monotonic clock.
    pub fn true_us(&self, elapsed_us: u64) -> u64 {
        let rate = (1_000_000 + self.ppm).max(1) as u64;
        match elapsed_us.checked_mul(1_000_000) {
            Some(product) => product / rate,
            None => (u128::from(elapsed_us) * 1_000_000 / u128::from(rate)) as u64,
        }
    }

    /// The true length of a duration that is measured by this clock.
    pub fn true_duration_us(&self, time: Duration) -> u64 {
        self.true_us(time.as_micros().min(u128::from(u64::MAX >> 1)) as u64)
    }

    /// The reading of the wall clock at a true time.
    pub fn unix_ms(&self, true_us: u64) -> i64 {
        BEGIN_UNIX_MS + (self.elapsed_us(true_us) / 1000) as i64 + self.set_by_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_runs_as_it_is_said_to() {
        let fast = Clock { ppm: 5_000, set_by_ms: -60_000 };
        assert_eq!(fast.elapsed_us(1_000_000), 1_005_000);
        assert_eq!(fast.true_us(1_005_000), 1_000_000);
        assert_eq!(fast.true_duration_us(Duration::from_secs(201)), 200_000_000);
        assert_eq!(fast.unix_ms(200_000_000), BEGIN_UNIX_MS + 201_000 - 60_000);
        let slow = Clock { ppm: -5_000, set_by_ms: 0 };
        assert_eq!(slow.elapsed_us(1_000_000), 995_000);
        assert_eq!(slow.true_us(slow.elapsed_us(123_456_789)).abs_diff(123_456_789), 0);
    }
}
