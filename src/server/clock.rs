//! The clock: the only place where [`Now`] is made from real time.
//!
//! It runs on `CLOCK_MONOTONIC`. Its wall offset is read once, and again only after the system clock was stepped, so that a
//! deadline given as unix time reads back exactly. A test may freeze it, move it, and step its wall clock.

use rustix::time::{ClockId, clock_gettime};

use crate::base::time::Now;
use crate::engine::faults::test_mode::FAR_MS;

/// Reading of a new clock, in microseconds. Not 0, so that times before the start can be expressed.
const START_US: u64 = 1_000_000_000;
/// Interval between checks of the system clock, in microseconds.
const WALL_CHECK_US: u64 = 10_000;
/// A difference of this many milliseconds or more is a step of the system clock; less is rounding.
const WALL_STEP_MS: i64 = 2;

/// A monotonic clock with a wall clock tied to it.
#[derive(Debug)]
pub struct Clock {
    /// Offset added to `CLOCK_MONOTONIC`, in microseconds.
    skew_us: i64,
    wall_offset_ms: i64,
    /// Milliseconds by which the wall clock differs from the system's, from [`Clock::jump_wall`] and time that was moved or
    /// frozen.
    jumped_ms: i64,
    /// Sum of all steps by [`Clock::jump_wall`].
    stepped_ms: i64,
    wall_checked_us: u64,
    /// The reading at which the clock is frozen, in microseconds.
    frozen_us: Option<u64>,
}

/// Nanoseconds of `CLOCK_MONOTONIC`.
#[inline]
pub(super) fn monotonic_ns() -> u64 {
    let t = clock_gettime(ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Nanoseconds of processor time that the calling thread has used. A system call.
pub(super) fn thread_cpu_ns() -> u64 {
    let t = clock_gettime(ClockId::ThreadCPUTime);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

fn read_us(id: ClockId) -> i64 {
    let t = clock_gettime(id);
    t.tv_sec * 1_000_000 + t.tv_nsec / 1000
}

/// Reads both clocks at one moment: of several pairs, returns the one read with the least delay.
fn read_both_us() -> (i64, i64) {
    let read = || {
        let before = read_us(ClockId::Monotonic);
        let real = read_us(ClockId::Realtime);
        (read_us(ClockId::Monotonic) - before, (before, real))
    };
    (0..8).map(|_| read()).min().unwrap_or_else(read).1
}

/// The latest reading that the clock can be advanced to, in microseconds: later additions do not overflow.
const FAR_US: u64 = FAR_MS * 1000;

impl Clock {
    /// A running clock.
    pub fn new() -> Self {
        let (mono_us, real_us) = read_both_us();
        // Milliseconds begin together on both clocks, so that the shown wall clock is right to the microsecond and a key with a
        // unix-time deadline ends neither before it nor half a millisecond after.
        let phase_us = (real_us - START_US as i64).rem_euclid(1000);
        let start_us = START_US + phase_us as u64;
        Clock {
            skew_us: start_us as i64 - mono_us,
            wall_offset_ms: (real_us - start_us as i64) / 1000,
            jumped_ms: 0,
            stepped_ms: 0,
            wall_checked_us: start_us,
            frozen_us: None,
        }
    }

    fn running_us_at(&self, monotonic_ns: u64) -> u64 {
        ((monotonic_ns / 1000) as i64 + self.skew_us) as u64
    }

    /// The offset that the system clock has now, in milliseconds.
    fn real_offset_ms(&self) -> i64 {
        let (mono_us, real_us) = read_both_us();
        self.offset_ms(mono_us + self.skew_us, real_us)
    }

    fn offset_ms(&self, mono_us: i64, real_us: i64) -> i64 {
        // Rounded to the nearest millisecond: after a step, the error of the shown wall clock stays below half of one.
        (real_us - mono_us + 500).div_euclid(1000) + self.jumped_ms
    }

    fn is_step(&self, offset_ms: i64) -> bool {
        (offset_ms - self.wall_offset_ms).abs() >= WALL_STEP_MS
    }

    /// Follows the system clock if it was stepped. `us`: this clock's reading of just now, in microseconds.
    fn check_wall(&mut self, us: u64) {
        self.wall_checked_us = us;
        if !self.is_step(self.offset_ms(us as i64, read_us(ClockId::Realtime))) {
            return;
        }
        // The thread may have rested between the two readings.
        let offset_ms = self.real_offset_ms();
        if self.is_step(offset_ms) {
            self.wall_offset_ms = offset_ms;
        }
    }

    /// The present instant.
    #[inline]
    pub fn now(&mut self) -> Now {
        self.now_and_stopwatch().0
    }

    /// The present instant and the reading of [`Clock::stopwatch_ns`], from one reading of the clock.
    #[inline]
    pub fn now_and_stopwatch(&mut self) -> (Now, u64) {
        if let Some(us) = self.frozen_us {
            return (Now::new(us, self.wall_offset_ms), us.saturating_mul(1000));
        }
        let ns = monotonic_ns();
        let us = self.running_us_at(ns);
        if us - self.wall_checked_us >= WALL_CHECK_US {
            self.check_wall(us);
        }
        (Now::new(us, self.wall_offset_ms), ns)
    }

    /// The instant of a recent reading of the monotonic clock, while the clock runs.
    #[inline]
    pub(super) fn at(&self, monotonic_ns: u64) -> Now {
        Now::new(self.running_us_at(monotonic_ns), self.wall_offset_ms)
    }

    /// The function that times requests, in nanoseconds since any origin; `None` while the clock is frozen.
    pub fn stopwatch(&self) -> Option<fn() -> u64> {
        if self.is_frozen() { None } else { Some(monotonic_ns) }
    }

    /// The stopwatch's reading; while the clock is frozen, its own time.
    pub fn stopwatch_ns(&self) -> u64 {
        self.frozen_us.map_or_else(monotonic_ns, |us| us.saturating_mul(1000))
    }

    /// Whether the clock is frozen.
    pub fn is_frozen(&self) -> bool {
        self.frozen_us.is_some()
    }

    /// Freezes the clock at the next whole millisecond.
    pub fn freeze(&mut self) {
        let us = self.now().mono_us();
        self.frozen_us = Some(us.div_ceil(1000) * 1000);
    }

    /// Lets the clock run on from where it stands.
    pub fn resume(&mut self) {
        if let Some(us) = self.frozen_us.take() {
            self.skew_us = us as i64 - read_us(ClockId::Monotonic);
            self.wall_checked_us = us;
            // The wall clock also continues from its shown time: the time lost while frozen counts as a jump.
            self.jumped_ms = 0;
            self.jumped_ms = self.wall_offset_ms - self.real_offset_ms();
        }
    }

    /// Returns by how many of `us` microseconds [`Clock::advance_us`] would move the clock.
    pub fn reachable_us(&mut self, us: u64) -> u64 {
        us.min(FAR_US.saturating_sub(self.now().mono_us()))
    }

    /// Moves the clock forward by `us` microseconds, frozen or not, up to a hundred thousand years.
    pub fn advance_us(&mut self, us: u64) {
        let us = self.reachable_us(us);
        match &mut self.frozen_us {
            Some(at) => *at = at.saturating_add(us),
            None => {
                self.skew_us = self.skew_us.saturating_add_unsigned(us);
                self.jumped_ms = self.jumped_ms.saturating_add_unsigned(us / 1000);
            }
        }
    }

    /// Sets the running clock, back or forth; the wall clock does not change.
    #[cfg(feature = "quorum")]
    pub fn set_us(&mut self, us: u64) {
        let by_us = us as i64 - self.now().mono_us() as i64;
        self.skew_us += by_us;
        self.wall_checked_us = us;
        self.wall_offset_ms = self.real_offset_ms();
    }

    /// Steps only the wall clock, by `ms` milliseconds; the monotonic clock does not change.
    pub fn jump_wall(&mut self, ms: i64) {
        // The bound of the monotonic clock, in both directions.
        let far_ms = FAR_US as i64 / 1000;
        let jump_ms = self.wall_offset_ms.saturating_add(ms).clamp(-far_ms, far_ms) - self.wall_offset_ms;
        self.jumped_ms += jump_ms;
        self.stepped_ms += jump_ms;
        self.wall_offset_ms += jump_ms;
    }

    /// Sum of the steps that [`Clock::jump_wall`] made, in milliseconds.
    pub fn stepped_ms(&self) -> i64 {
        self.stepped_ms
    }

    /// The reading of `CLOCK_MONOTONIC`, in microseconds, at which the running clock shows `mono_ms`.
    pub fn raw_us_of(&self, mono_ms: u64) -> i64 {
        (mono_ms as i64).saturating_mul(1000).saturating_sub(self.skew_us)
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rest_between_two_readings_is_no_step() {
        let mut clock = Clock::new();
        let before = clock.now();
        for rest_ms in [3, 50, 5_000] {
            clock.check_wall(before.mono_us() - rest_ms * 1000);
            assert_eq!(clock.wall_offset_ms, before.wall_offset_ms());
        }
        clock.jumped_ms = 5;
        clock.check_wall(before.mono_us());
        assert_eq!(clock.wall_offset_ms, before.wall_offset_ms() + 5);
    }

    #[test]
    fn frozen_it_stands_at_a_whole_millisecond_until_moved() {
        let mut clock = Clock::new();
        clock.freeze();
        let at = clock.now();
        assert_eq!(at.mono_us() % 1000, 0);
        assert_eq!(clock.now(), at);
        clock.advance_us(2_500_000);
        assert_eq!(clock.now().mono_us(), at.mono_us() + 2_500_000);
        assert_eq!(clock.now().unix_ms(), at.unix_ms() + 2500);
    }

    #[test]
    fn the_shown_wall_clock_is_the_real_one() {
        let before = read_us(ClockId::Realtime);
        let mut clock = Clock::new();
        let shown = clock.now().unix_us();
        let after = read_us(ClockId::Realtime);
        // The system's two clocks are read one after the other, and on a busy machine time may pass between the two.
        let between = after - before + 200;
        assert!(shown >= before - between && shown <= after + between, "{before} {shown} {after}");
    }

    #[test]
    fn a_jump_of_the_wall_moves_nothing_else() {
        let mut clock = Clock::new();
        clock.freeze();
        let at = clock.now();
        clock.jump_wall(-3_600_000);
        assert_eq!(clock.now().mono_us(), at.mono_us());
        assert_eq!(clock.now().unix_ms(), at.unix_ms() - 3_600_000);
    }

    #[test]
    fn resumed_it_goes_on_from_where_it_stood_on_both_clocks() {
        let mut clock = Clock::new();
        clock.freeze();
        clock.advance_us(86_400_000_000);
        clock.jump_wall(5_000);
        let at = clock.now();
        clock.resume();
        let on = clock.now();
        // Far less than a day.
        assert!(on.mono_us() >= at.mono_us() && on.mono_us() < at.mono_us() + 60_000_000);
        assert_eq!(on.wall_offset_ms(), at.wall_offset_ms());
        clock.wall_checked_us = 0;
        // As above; a second is far less than the jump of five.
        assert!((clock.now().wall_offset_ms() - at.wall_offset_ms()).abs() <= 1_000);
    }
}
