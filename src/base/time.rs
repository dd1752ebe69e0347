//! Time as the engine sees it: an argument, never a clock.

/// One instant, on two clocks that never drift against each other.
///
/// Deadlines use the monotonic clock, so a step of the system clock neither ends a lease early nor prolongs it. The wall clock is
/// the monotonic one plus an offset of whole milliseconds: the creator of a `Now` changes the offset only when the system clock
/// was stepped. That keeps `PEXPIREAT` followed by `PEXPIRETIME` exact to the millisecond.
///
/// While files are loaded, the clocks show the present, and no deadline has been reached: see [`Now::of_load`]. Who asks whether
/// something has ended must compare its deadline by [`Now::reached`] or with [`Now::ended_ms`], and not with what the clock shows.
///
/// The alignment makes it move as one unit: if it were written as two halves and read as a whole soon after, as happens with each
/// command, the processor would have to wait for both halves to reach the cache.
#[repr(align(16))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Now {
    /// Microseconds since an origin of the caller's choice; never decreases.
    mono_us: u64,
    /// Unix time minus monotonic time, in milliseconds, times two; plus one while files are loaded. Both are seldom asked for.
    wall: i64,
}

impl Now {
    /// The instant `mono_us` after the origin. `wall_offset_ms` is the unix time of the origin.
    pub const fn new(mono_us: u64, wall_offset_ms: i64) -> Self {
        Now { mono_us, wall: wall_offset_ms << 1 }
    }

    /// Microseconds since the origin.
    pub const fn mono_us(self) -> u64 {
        self.mono_us
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

    /// Unix time minus monotonic time, in milliseconds.
    pub const fn wall_offset_ms(self) -> i64 {
        self.wall >> 1
    }

    /// Unix time in milliseconds, rounded down.
    pub const fn unix_ms(self) -> i64 {
        self.mono_ms() as i64 + self.wall_offset_ms()
    }

    /// Unix time in microseconds.
    pub const fn unix_us(self) -> i64 {
        self.mono_us as i64 + self.wall_offset_ms() * 1000
    }

    /// The deadline `ms` from now, rounded up, so that no lease is cut short by a fraction of a millisecond.
    pub const fn deadline_in(self, ms: u64) -> u64 {
        self.mono_us.div_ceil(1000).saturating_add(ms)
    }

    /// The monotonic deadline of an absolute unix time in milliseconds; `None` if that is not in the future. While files are loaded, no
    /// time has come yet: the deadline of one in the past is reached afterwards.
    pub const fn deadline_at(self, unix_ms: i64) -> Option<u64> {
        let mono = unix_ms as i128 - self.wall_offset_ms() as i128;
        if mono > self.ended_ms() as i128 {
            Some(mono as u64)
        } else if self.is_of_load() {
            Some(1)
        } else {
            None
        }
    }

    /// This instant while files are loaded: no deadline has been reached. What has ended since they were written ends afterwards, because
    /// later requests of the file may have changed it.
    pub const fn of_load(self) -> Now {
        Now { mono_us: self.mono_us, wall: self.wall | 1 }
    }

    /// Whether files are being loaded: see [`Now::of_load`].
    pub const fn is_of_load(self) -> bool {
        self.wall & 1 != 0
    }

    /// The unix time in milliseconds of a monotonic deadline.
    pub const fn unix_of(self, deadline_ms: u64) -> i64 {
        (deadline_ms as i64).saturating_add(self.wall_offset_ms())
    }

    /// Whether a deadline has been reached.
    pub const fn reached(self, deadline_ms: u64) -> bool {
        // Avoids a division. A deadline whose microseconds do not fit in a u64 is never reached.
        match deadline_ms.checked_mul(1000) {
            Some(deadline_us) => self.mono_us >= deadline_us && !self.is_of_load(),
            None => false,
        }
    }

    /// The last deadline that has been reached, in monotonic milliseconds; 0, which is none, while files are loaded.
    pub const fn ended_ms(self) -> u64 {
        if self.is_of_load() { 0 } else { self.mono_ms() }
    }

    /// Milliseconds left until a deadline, rounded down; 0 once it is reached.
    pub const fn left_ms(self, deadline_ms: u64) -> u64 {
        deadline_ms.saturating_sub(self.mono_us.div_ceil(1000))
    }

    /// Lets time pass.
    #[cfg(any(test, feature = "internals"))]
    pub const fn advance_us(&mut self, us: u64) {
        self.mono_us += us;
    }

    /// Moves both clocks, forward or back, by microseconds of the monotonic one.
    pub fn shift_us(&mut self, by_us: i64) {
        *self = Now::new(self.mono_us.saturating_add_signed(by_us), self.wall_offset_ms());
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
            assert_eq!(now.deadline_at(now.unix_ms()), None);
        }
    }

    #[test]
    fn while_files_are_loaded_it_is_now_and_nothing_has_ended() {
        let now = Now::new(5_900_000, 1_700_000_000_000);
        let load = now.of_load();
        assert_eq!((load.mono_us(), load.unix_ms(), load.second()), (now.mono_us(), now.unix_ms(), now.second()));
        assert_eq!((load.deadline_in(5), load.unix_of(7)), (now.deadline_in(5), now.unix_of(7)));
        assert!(now.reached(5_900) && !load.reached(5_900) && !load.reached(1));
        assert_eq!((now.ended_ms(), load.ended_ms()), (5_900, 0));
        // A time before the origin, one before the present, and one to come.
        for (unix_ms, deadline) in [(now.unix_of(0) - 5, 1), (now.unix_of(5_000), 5_000), (now.unix_of(6_000), 6_000)] {
            assert_eq!(load.deadline_at(unix_ms), Some(deadline));
        }
        assert!(!Now::default().of_load().reached(1) && !Now::default().of_load().reached(0));
    }
}
