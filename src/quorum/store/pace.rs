//! How fast a follower that is far behind is sent what it lacks: slowly enough that clients hardly notice, and fast enough that it
//! arrives.
//!
//! At full speed a million writes take less than a second, in which the leader, the disks and the follower have little time for anything
//! else. If clients have waited for a tenth of a second, because there is no other majority, there are no pauses.

use std::time::Duration;

use crate::quorum::runtime::Instant;

/// Bytes below which a follower is sent all that it lacks at once.
const NEAR: u64 = 2 << 20;
/// About how many bytes are sent to a follower that is farther behind before the next pause: so few that the work of sending and writing
/// them takes no processor for longer than half a millisecond.
pub const PIECE: usize = 48 << 10;
/// Bytes in a second, at least.
const RATE_MIN: u64 = 16 << 20;
/// Time in which a follower is to catch up. What it lacks then is sent without pauses.
const WITHIN: Duration = Duration::from_millis(4000);
/// Time without a piece after which a follower counts as one that was away. A pause is never as long.
const AWAY: Duration = Duration::from_secs(5);
/// Time after which an entry that is not committed is taken to wait for this follower.
const PATIENCE: Duration = Duration::from_millis(100);

/// The pace of one follower.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    /// When the follower is to have caught up, if it is far behind.
    due: Option<Instant>,
    /// When a piece was sent last.
    sent: Option<Instant>,
    /// When the next piece may be sent.
    next: Option<Instant>,
    /// An entry that was not committed, and since when.
    waits: Option<(u64, Instant)>,
}

impl Pace {
    /// Whether the follower, which lacks so many bytes now, is to be sent pieces with pauses.
    pub fn is_far(&mut self, now: Instant, behind: u64) -> bool {
        // One that has been away for a while begins anew.
        if behind <= NEAR || self.sent.is_some_and(|sent| now - sent > AWAY) {
            *self = Pace::default();
        }
        behind > NEAR
    }

    /// How long to wait before the next piece; `None` if there are no pauses now. `committed`: index of the last entry that is committed.
    /// `last`: that of the last one that there is.
    pub fn pause(&mut self, now: Instant, committed: u64, last: u64) -> Option<Duration> {
        if self.waits.is_none_or(|(index, _)| index <= committed) {
            self.waits = (last > committed).then_some((last, now));
        }
        if self.waits.is_some_and(|(_, since)| now - since > PATIENCE) {
            return None;
        }
        if self.due.is_some_and(|due| due <= now) {
            return None;
        }
        Some(self.next.filter(|next| *next > now).map_or(Duration::ZERO, |next| next - now))
    }

    /// Notes that a piece of so many bytes is sent to the follower, which lacks `behind` bytes.
    pub fn sent(&mut self, now: Instant, bytes: u64, behind: u64) {
        self.sent = Some(now);
        let due = *self.due.get_or_insert(now + WITHIN);
        self.next = (due > now).then(|| {
            let left_us = (due - now).as_micros() as u64;
            let (at_least, in_time) =
                (bytes * 1_000_000 / RATE_MIN, u128::from(bytes) * u128::from(left_us) / u128::from(behind.max(1)));
            now + Duration::from_micros(at_least.min(in_time as u64))
        });
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    const MB: u64 = 1 << 20;

    /// Sends pieces until nothing is left, at most 200 MB a second, while so many bytes are written in each millisecond. Returns the
    /// milliseconds that it takes.
    fn time_ms(mut behind: u64, written_each_ms: u64) -> u64 {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        for ms in 0..60_000 {
            behind += written_each_ms;
            for _ in 0..200_000 / PIECE + 1 {
                if !pace.is_far(now, behind) {
                    return ms;
                }
                if pace.pause(now, 5, 5).is_none_or(|pause| pause.is_zero()) {
                    pace.sent(now, PIECE as u64, behind);
                    behind -= PIECE as u64;
                }
            }
            now += Duration::from_millis(1);
        }
        60_000
    }

    #[test]
    fn a_follower_arrives_whatever_is_written_meanwhile() {
        assert!((100..300).contains(&time_ms(5 * MB, 0)), "{}", time_ms(5 * MB, 0));
        assert!((3_500..=4_010).contains(&time_ms(70 * MB, 0)), "{}", time_ms(70 * MB, 0));
        assert!((3_500..8_000).contains(&time_ms(1000 * MB, 0)), "{}", time_ms(1000 * MB, 0));
        assert!((3_500..8_000).contains(&time_ms(100 * MB, 100_000)), "{}", time_ms(100 * MB, 100_000));
    }

    #[test]
    fn there_is_no_pause_when_clients_wait_for_this_follower() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        pace.sent(now, 100 * MB, 100 * MB);
        let after = |ms| now + Duration::from_millis(ms);
        assert!(pace.pause(after(1), 10, 11).unwrap() > Duration::ZERO);
        assert!(pace.pause(after(90), 10, 12).unwrap() > Duration::ZERO);
        assert!(pace.pause(after(120), 11, 13).unwrap() > Duration::ZERO, "the entry was committed");
        assert_eq!(pace.pause(after(230), 11, 14), None);
        assert!(pace.pause(after(231), 14, 14).unwrap() > Duration::ZERO);
        assert_eq!(pace.pause(after(4_100), 14, 14), None, "it should have caught up");
    }
}
