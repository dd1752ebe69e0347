//! How fast a follower that is far behind is sent what it lacks: slowly enough that clients hardly notice, and fast enough that it
//! arrives.
//!
//! At full speed a million writes take less than a second, in which the leader, the disks and the follower have little time for anything
//! else. If clients wait for this follower, because there is no other majority, there are no pauses.

use std::time::Duration;

use crate::quorum::runtime::Instant;

/// Bytes below which a follower is sent all that it lacks at once.
const NEAR: u64 = 2 << 20;
/// About how many bytes are sent to a follower that is farther behind before the next pause.
pub const PIECE: usize = 128 << 10;
/// Bytes in a second, at least.
const RATE_MIN: u64 = 24 << 20;
/// Seconds in which a follower is to catch up with what it is behind, so that it arrives although more is written meanwhile.
const WITHIN: u64 = 3;
/// How long entries may be uncommitted before it is taken that they wait for this follower.
const PATIENCE: Duration = Duration::from_millis(100);

/// The pace of one follower.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    /// When the next piece may be sent.
    next: Option<Instant>,
    /// An entry that was not committed, and since when.
    waits: Option<(u64, Instant)>,
}

impl Pace {
    /// Whether a follower that lacks so many bytes is sent pieces with pauses.
    pub fn is_far(behind: u64) -> bool {
        behind > NEAR
    }

    /// How long to wait before the next piece. `committed` and `last`: indexes of the last entries that are committed and that there are.
    pub fn pause(&mut self, now: Instant, committed: u64, last: u64) -> Duration {
        if self.waits.is_none_or(|(index, _)| index <= committed) {
            self.waits = (last > committed).then_some((last, now));
        }
        if self.waits.is_some_and(|(_, since)| now - since > PATIENCE) {
            return Duration::ZERO;
        }
        self.next.filter(|next| *next > now).map_or(Duration::ZERO, |next| next - now)
    }

    /// Notes that a piece of so many bytes is sent to a follower that lacks `behind` bytes.
    pub fn sent(&mut self, now: Instant, bytes: u64, behind: u64) {
        let rate = RATE_MIN.max(behind / WITHIN);
        self.next = Some(now + Duration::from_micros(bytes.saturating_mul(1_000_000) / rate));
    }
}

#[cfg(test)]
mod tests {
    use openraft::Instant as _;

    use super::*;

    const MB: u64 = 1 << 20;

    /// Sends pieces until nothing is left, while so many bytes a second are written. Returns the milliseconds that it takes, or `None`
    /// after a minute.
    fn time_ms(mut behind: u64, written_each_ms: u64) -> Option<u64> {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        for ms in 0..60_000 {
            behind += written_each_ms;
            while Pace::is_far(behind) && pace.pause(now, 5, 5) == Duration::ZERO {
                pace.sent(now, PIECE as u64, behind);
                behind -= PIECE as u64;
            }
            if !Pace::is_far(behind) {
                return Some(ms);
            }
            now += Duration::from_millis(1);
        }
        None
    }

    #[test]
    fn a_follower_arrives_whatever_is_written_meanwhile() {
        assert!((2_000..4_500).contains(&time_ms(70 * MB, 0).unwrap()));
        assert!(time_ms(1000 * MB, 0).unwrap() < 15_000);
        for written_each_ms in [10_000, 50_000, 90_000] {
            assert!(time_ms(100 * MB, written_each_ms).is_none_or(|ms| ms < 20_000), "{written_each_ms}");
        }
    }

    #[test]
    fn there_is_no_pause_when_clients_wait_for_this_follower() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        pace.sent(now, 100 * MB, 100 * MB);
        let after = |ms| now + Duration::from_millis(ms);
        assert!(pace.pause(after(1), 10, 11) > Duration::ZERO);
        assert!(pace.pause(after(90), 10, 12) > Duration::ZERO);
        assert!(pace.pause(after(120), 11, 13) > Duration::ZERO, "the entry was committed");
        assert_eq!(pace.pause(after(230), 11, 14), Duration::ZERO);
        assert!(pace.pause(after(231), 14, 14) > Duration::ZERO);
    }
}
