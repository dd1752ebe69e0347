//! Time as the engine sees it: an argument, never a clock.

/// One instant, on two clocks that never drift against each other.
///
/// Deadlines use the monotonic clock, so a step of the system clock neither ends a lease early nor prolongs it. The wall clock is
/// the monotonic one plus an offset of whole milliseconds: the creator of a `Now` changes the offset only when the system clock
/// was stepped. That keeps `PEXPIREAT` followed by `PEXPIRETIME` exact to the millisecond.
///
/// The alignment makes it move as one unit: if it were written as two halves and read as a whole soon after, as happens with each
/// command, the processor would have to wait for both halves to reach the cache.
#[repr(align(16))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Now {
    /// Microseconds since an origin of the caller's choice; never decreases.
    pub mono_us: u64,
    /// Unix time minus monotonic time, in milliseconds.
    pub wall_offset_ms: i64,
}

impl Now {
    /// The instant `mono_us` after the origin. `wall_offset_ms` is the unix time of the origin.
    pub const fn new(mono_us: u64, wall_offset_ms: i64) -> Self {
        Now { mono_us, wall_offset_ms }
    }

    /// Monotonic milliseconds, rounded down.
    pub const fn mono_ms(self) -> u64 {
        self.mono_us / 1000
    }

    /// Monotonic seconds, rounded down.
    pub const fn second(self) -> u64 {
        self.mono_us / 1_000_000
    }

    /// Monotonic minutes, rounded down.
    pub const fn minute(self) -> u64 {
        self.mono_us / 60_000_000
    }

    /// Unix time in milliseconds, rounded down.
    pub const fn unix_ms(self) -> i64 {
        self.mono_ms() as i64 + self.wall_offset_ms
    }

    /// Unix time in microseconds.
    pub const fn unix_us(self) -> i64 {
        self.mono_us as i64 + self.wall_offset_ms * 1000
    }

    /// The deadline `ms` from now, rounded up, so that no lease is cut short by a fraction of a millisecond.
    pub const fn deadline_in(self, ms: u64) -> u64 {
        self.mono_us.div_ceil(1000).saturating_add(ms)
    }

    /// The monotonic deadline of an absolute unix time in milliseconds; `None` if that is not in the future. While files are loaded,
    /// each time is in the future: see [`Now::of_load`].
    pub const fn deadline_at(self, unix_ms: i64) -> Option<u64> {
        let mono = unix_ms as i128 - self.wall_offset_ms as i128;
        if mono > self.mono_ms() as i128 {
            Some(mono as u64)
        } else if self.mono_us == 0 {
            Some(1)
        } else {
            None
        }
    }

    /// The instant at which files are loaded: the origin of the monotonic clock, before all deadlines. What has ended since they were
    /// written ends afterwards, because later requests of the file may have changed it.
    pub const fn of_load(self) -> Now {
        Now { mono_us: 0, wall_offset_ms: self.wall_offset_ms }
    }

    /// The unix time in milliseconds of a monotonic deadline.
    pub const fn unix_of(self, deadline_ms: u64) -> i64 {
        (deadline_ms as i64).saturating_add(self.wall_offset_ms)
    }

    /// Whether a deadline has been reached.
    pub const fn reached(self, deadline_ms: u64) -> bool {
        // Avoids a division. A deadline whose microseconds do not fit in a u64 is never reached.
        match deadline_ms.checked_mul(1000) {
            Some(deadline_us) => self.mono_us >= deadline_us,
            None => false,
        }
    }

    /// Milliseconds left until a deadline, rounded down; 0 once it is reached.
    pub const fn left_ms(self, deadline_ms: u64) -> u64 {
        deadline_ms.saturating_sub(self.mono_us.div_ceil(1000))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_deadline_is_never_cut_short_and_reads_back_whole() {
        let now = Now::new(5_900, 1_000_000);
        let deadline = now.deadline_in(100);
        assert_eq!(deadline, 106);
        assert_eq!(now.left_ms(deadline), 100);
        assert!(!Now::new(105_999, 0).reached(deadline));
        assert!(Now::new(106_000, 0).reached(deadline));
    }

    #[test]
    fn what_is_left_of_the_farthest_deadline_is_no_less_for_being_far() {
        let now = Now::new(1_500, 0);
        assert_eq!(now.left_ms(u64::MAX), u64::MAX - 2);
        assert_eq!(now.left_ms(1), 0);
        assert_eq!(now.left_ms(3), 1);
    }

    #[test]
    fn absolute_times_round_trip_at_any_phase() {
        for us in [0, 1, 999, 1000, 123_456] {
            let now = Now::new(us, 1_700_000_000_000);
            let at = 1_700_000_009_123;
            assert_eq!(now.unix_of(now.deadline_at(at).unwrap_or(0)), at);
            // At the origin, files are loaded: each time is in the future.
            assert_eq!(now.deadline_at(now.unix_ms()), if now.mono_us == 0 { Some(1) } else { None });
            assert_eq!(now.of_load().deadline_at(now.of_load().unix_ms() - 5), Some(1));
        }
    }
}
