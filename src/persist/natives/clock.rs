//! Times in native records.
//!
//! A lease counts on while the server is down, but it never ends early. The engine's monotonic times mean nothing to another
//! process, and the wall clock may be set. So a record has the moment at which it was written, by the wall clock and by the clock
//! of the machine's boot, and every other time as a distance from that moment:
//!
//! ```text
//!   written ──────────── 8 s ────────────▶ end of the lease
//!      └── 3 s by the boot clock, or if the machine was booted since, by the wall clock ──▶ read: 5 s are left
//! ```
//!
//! The distance is the most that can be left: a wall clock that went back makes a lease no longer than it was. Where milliseconds
//! are rounded, a lease ends later, by less than four of them.

use crate::base::time::Now;

/// The time since the boot of a machine, suspension included (`CLOCK_BOOTTIME`). The default is an unknown boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BootClock {
    /// The boot (`/proc/sys/kernel/random/boot_id`); 0 if it is unknown.
    pub id: [u8; 16],
    /// Milliseconds since then, rounded down.
    pub now_ms: u64,
}

impl BootClock {
    /// Whether both are known to be times of one boot. An unknown boot is never the same as another.
    pub fn is_same_boot(&self, other: &BootClock) -> bool {
        self.id == other.id && self.id != [0; 16]
    }
}

/// One moment by all clocks: that of a record when it is written, or of the server when it reads.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// The engine's clock and the wall clock.
    pub now: Now,
    /// The boot clock.
    pub boot: BootClock,
}

impl Moment {
    /// Milliseconds from this moment, rounded down, to a monotonic time.
    pub(super) fn distance_ms(&self, at_ms: u64) -> i64 {
        let distance = i128::from(at_ms) - i128::from(self.now.mono_ms());
        distance.clamp(i64::MIN.into(), i64::MAX.into()) as i64
    }

    /// The monotonic deadline of a Unix time, which may have passed; never 0, which often stands for none.
    pub fn deadline_ms(&self, unix_ms: i64) -> u64 {
        let at_ms = i128::from(unix_ms) - i128::from(self.now.wall_offset_ms());
        at_ms.clamp(1, u64::MAX.into()) as u64
    }
}

/// The moment at which a record was written, as far as it is in the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Written {
    pub unix_ms: i64,
    pub boot: BootClock,
}

impl Written {
    pub(super) fn at(moment: &Moment) -> Written {
        Written { unix_ms: moment.now.unix_ms(), boot: moment.boot }
    }

    /// The monotonic time of the reader that is this far from the moment of the record; never 0, which often stands for no time.
    pub(super) fn monotonic_ms(&self, reader: &Moment, distance_ms: i64) -> u64 {
        let at_ms = i128::from(reader.now.deadline_in(0)) - self.passed_ms(reader) + i128::from(distance_ms);
        at_ms.clamp(1, u64::MAX.into()) as u64
    }

    /// Milliseconds that have certainly passed between this moment and that of the reader.
    fn passed_ms(&self, reader: &Moment) -> i128 {
        let between_ms = if self.boot.is_same_boot(&reader.boot) {
            i128::from(reader.boot.now_ms) - i128::from(self.boot.now_ms)
        } else {
            i128::from(reader.now.unix_ms()) - i128::from(self.unix_ms)
        };
        // Both are rounded down, so their difference may be too large by almost one millisecond.
        (between_ms - 1).max(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: [u8; 16] = [7; 16];

    fn moment(mono_ms: u64, unix_ms: i64, id: [u8; 16], boot_ms: u64) -> Moment {
        Moment { now: Now::new(mono_ms * 1000, unix_ms - mono_ms as i64), boot: BootClock { id, now_ms: boot_ms } }
    }

    fn read(writer: Moment, reader: Moment, end_ms: u64) -> i64 {
        let at = Written::at(&writer).monotonic_ms(&reader, writer.distance_ms(end_ms));
        at as i64 - reader.now.mono_ms() as i64
    }

    #[test]
    fn within_a_boot_the_boot_clock_counts() {
        let writer = moment(5_000, 1_000_000, BOOT, 70_000);
        // The wall clock went back an hour, or on by one.
        for unix_ms in [1_000_000 - 3_600_000, 1_003_000, 1_000_000 + 3_600_000] {
            let reader = moment(100_000, unix_ms, BOOT, 73_000);
            assert_eq!(read(writer, reader, 5_000 + 8_000), 5_001);
            assert_eq!(read(writer, reader, 5_000 + 1_000), -1_999, "a lease that has ended");
        }
    }

    #[test]
    fn after_another_boot_the_wall_clock_counts_and_no_lease_gets_longer() {
        let writer = moment(5_000, 1_000_000, BOOT, 70_000);
        let other = [8; 16];
        assert_eq!(read(writer, moment(100_000, 1_003_000, other, 10), 13_000), 5_001);
        assert_eq!(read(writer, moment(100_000, 10, other, 90_000), 13_000), 8_000);
    }

    #[test]
    fn an_unknown_boot_is_no_other_boot() {
        let (writer, reader) = (moment(5_000, 1_000_000, [0; 16], 70_000), moment(100_000, 1_003_000, [0; 16], 70_500));
        assert_eq!(read(writer, reader, 13_000), 5_001, "the wall clock counts");
    }

    #[test]
    fn a_lease_never_ends_early_whatever_the_fractions_of_milliseconds_are() {
        for (writer_us, boot_us, passed_us, reader_us) in
            (0..10_000u64).map(|n| (n * 37 % 1_000, n * 101 % 1_000, 2_000 + n * 7 % 3_000, n * 53 % 1_000))
        {
            let writer = Moment {
                now: Now::new(5_000_000 + writer_us, 0),
                boot: BootClock { id: BOOT, now_ms: (90_000_000 + boot_us) / 1000 },
            };
            let boot_ms = (90_000_000 + boot_us + passed_us) / 1000;
            let reader = Moment { now: Now::new(1_000_000 + reader_us, 0), boot: BootClock { id: BOOT, now_ms: boot_ms } };
            let end_ms = 5_100;
            let left_us = end_ms * 1000 - writer.now.mono_us() - passed_us;
            let at_ms = Written::at(&writer).monotonic_ms(&reader, writer.distance_ms(end_ms));
            let late_us = at_ms as i64 * 1000 - (reader.now.mono_us() + left_us) as i64;
            assert!((0..4_000).contains(&late_us), "{late_us} µs late");
        }
    }

    #[test]
    fn a_lease_never_ends_early_by_the_wall_clock_either() {
        // The wall clock has the fraction of the monotonic one.
        for (writer_us, passed_us) in (0..10_000u64).map(|n| (n * 37 % 1_000, 2_000 + n * 7 % 3_000)) {
            let writer = Moment { now: Now::new(5_000_000 + writer_us, 0), boot: BootClock::default() };
            let reader = Moment { now: Now::new(writer.now.mono_us() + passed_us, 0), boot: BootClock::default() };
            let end_ms = 5_100;
            let at_ms = Written::at(&writer).monotonic_ms(&reader, writer.distance_ms(end_ms));
            assert!((end_ms..end_ms + 4).contains(&at_ms), "{at_ms} instead of {end_ms}");
        }
    }

    #[test]
    fn a_deadline_of_a_key_is_that_of_the_wall_clock() {
        let reader = moment(100_000, 1_000_000, BOOT, 0);
        assert_eq!(reader.deadline_ms(1_000_007), 100_007);
        assert_eq!(reader.deadline_ms(1), 1, "long ago");
    }

    #[test]
    fn no_time_is_out_of_range() {
        let (early, late) = (moment(0, i64::MIN / 2, BOOT, 0), moment(u64::MAX / 1000, i64::MAX / 2, BOOT, u64::MAX));
        for (writer, reader) in [(early, late), (late, early)] {
            for at_ms in [0, 1, u64::MAX] {
                let at = Written::at(&writer).monotonic_ms(&reader, writer.distance_ms(at_ms));
                assert!(at >= 1);
            }
        }
    }
}
