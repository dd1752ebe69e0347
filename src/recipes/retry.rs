//! Retry policies: how often to try, and how long to pause in between.

use std::time::Duration;

use crate::recipes::algorithm::Request;
use crate::recipes::world::World;

/// How a polling algorithm retries.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Retry {
    /// The same pause each time.
    Fixed {
        /// The pause.
        pause: Duration,
    },
    /// Each pause is the previous one times `factor`, up to `most`. A random part of up to `jitter` (0 to 1) is subtracted from
    /// each. Gives up after `tries` attempts.
    Exponential {
        /// The first pause.
        first: Duration,
        /// The factor between pauses.
        factor: f64,
        /// The longest pause.
        most: Duration,
        /// The random part of a pause.
        jitter: f64,
        /// Maximum number of attempts, if bounded.
        tries: Option<u32>,
    },
    /// No pauses: the server, or a message, says when to try again. Algorithms that can only poll use their default pause.
    Blocking,
}

impl Retry {
    /// 100 ms, 200 ms and so on up to 2 s, with a random half, without a bound on tries: a sound choice for a contended lock.
    pub const BACK_OFF: Retry = Retry::Exponential {
        first: Duration::from_millis(100),
        factor: 2.0,
        most: Duration::from_secs(2),
        jitter: 0.5,
        tries: None,
    };

    /// The pause after this many failed attempts in a row, from a random number; `None` if no further attempt is to be made.
    /// `usual` is the algorithm's default pause.
    pub fn pause(&self, failed: u32, random: u64, usual: Duration) -> Option<Duration> {
        match *self {
            Retry::Fixed { pause } => Some(pause),
            Retry::Blocking => Some(usual),
            Retry::Exponential { first, factor, most, jitter, tries } => {
                if tries.is_some_and(|tries| failed >= tries) {
                    return None;
                }
                let grown =
                    first.as_secs_f64() * factor.max(1.0).powi(i32::try_from(failed.saturating_sub(1)).unwrap_or(i32::MAX));
                let whole = grown.min(most.as_secs_f64());
                let pause = whole * (1.0 - jitter.clamp(0.0, 1.0) * fraction(random));
                Some(Duration::try_from_secs_f64(pause).unwrap_or(most))
            }
        }
    }
}

/// Converts a random number to a fraction from 0 (included) to 1 (excluded).
pub(crate) fn fraction(random: u64) -> f64 {
    (random >> 11) as f64 / (1u64 << 53) as f64
}

/// One wait for a lock: its end, and the number of failed attempts.
pub(crate) struct Pace<'a> {
    retry: &'a Retry,
    end: Option<Duration>,
    failed: u32,
}

impl<'a> Pace<'a> {
    /// The wait of a request that is made now.
    pub fn new(world: &impl World, request: &'a Request) -> Pace<'a> {
        Pace { retry: &request.retry, end: world.elapsed().checked_add(request.wait), failed: 0 }
    }

    /// The remaining time of the wait; [`Duration::MAX`] if it has no end.
    pub fn left(&self, world: &impl World) -> Duration {
        self.end.map_or(Duration::MAX, |end| end.saturating_sub(world.elapsed()))
    }

    /// Pauses after a failed attempt. Returns false if no further attempt is to be made. The last attempt happens when the time
    /// is over.
    pub async fn pause(&mut self, world: &impl World, usual: Duration) -> bool {
        match self.next(world, usual) {
            Some(pause) => {
                world.sleep(pause).await;
                true
            }
            None => false,
        }
    }

    /// The pause after a failed attempt; `None` if no further attempt is to be made.
    pub fn next(&mut self, world: &impl World, usual: Duration) -> Option<Duration> {
        self.failed = self.failed.saturating_add(1);
        let left = self.left(world);
        if left.is_zero() {
            return None;
        }
        // A minimum pause, so that no setting makes it spin without letting other tasks run.
        let pause = self.retry.pause(self.failed, world.random(), usual)?.max(Duration::from_micros(100));
        Some(pause.min(left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_fixed_pause_is_always_the_same() {
        let retry = Retry::Fixed { pause: ms(7) };
        for failed in [1, 2, 1000, u32::MAX] {
            assert_eq!(retry.pause(failed, u64::MAX, ms(1)), Some(ms(7)));
        }
        assert_eq!(Retry::Blocking.pause(5, 0, ms(10)), Some(ms(10)));
    }

    #[test]
    fn pauses_grow_up_to_a_bound_and_so_many_times() {
        let retry = Retry::Exponential { first: ms(100), factor: 2.0, most: ms(1000), jitter: 0.0, tries: Some(6) };
        let pauses: Vec<_> = (1..=7).map(|failed| retry.pause(failed, 0, ms(1))).collect();
        let whole = [100, 200, 400, 800, 1000].map(|pause| Some(ms(pause)));
        assert_eq!(pauses[..5], whole);
        assert_eq!(pauses[5..], [None, None]);
        let endless = Retry::Exponential { first: ms(100), factor: 2.0, most: ms(1000), jitter: 0.0, tries: None };
        assert_eq!(endless.pause(u32::MAX, 0, ms(1)), Some(ms(1000)));
    }

    #[test]
    fn chance_takes_away_no_more_than_its_part() {
        let retry = Retry::Exponential { first: ms(100), factor: 2.0, most: ms(1000), jitter: 0.25, tries: None };
        assert_eq!(retry.pause(2, 0, ms(1)), Some(ms(200)));
        let least = retry.pause(2, u64::MAX, ms(1)).expect("a pause");
        assert!(least > ms(149) && least < ms(151), "{least:?}");
        let half = retry.pause(2, u64::MAX / 2, ms(1)).expect("a pause");
        assert!(half > ms(174) && half < ms(176), "{half:?}");
    }

    #[test]
    fn odd_settings_make_no_odd_pauses() {
        for (factor, jitter) in [(0.0, -1.0), (f64::INFINITY, 2.0), (f64::NAN, f64::NAN), (-3.0, 0.5)] {
            let retry = Retry::Exponential { first: ms(100), factor, most: ms(1000), jitter, tries: None };
            for failed in [1, 2, 50] {
                let pause = retry.pause(failed, u64::MAX / 3, ms(1)).expect("a pause");
                assert!(pause <= ms(1000), "{factor} {jitter} {failed}: {pause:?}");
            }
        }
    }
}
