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
    /// Each pause is the previous one times `factor`, up to `most`. From each, a random fraction of at most `jitter` (0 to 1) is
    /// subtracted. Gives up after `tries` attempts.
    Exponential {
        /// The first pause.
        first: Duration,
        /// The factor between pauses.
        factor: f64,
        /// The longest pause.
        most: Duration,
        /// The largest random fraction that is subtracted from a pause.
        jitter: f64,
        /// Maximum number of attempts, if bounded.
        tries: Option<u32>,
    },
    /// No pauses: the server or a message tells the waiter when to try again. Algorithms that can only poll use their default
    /// pause.
    Blocking,
}

impl Retry {
    /// Pauses of 100 ms, 200 ms and so on up to 2 s, minus up to half at random, without a bound on attempts: a sound choice for
    /// a contended lock.
    pub const BACK_OFF: Retry = Retry::Exponential {
        first: Duration::from_millis(100),
        factor: 2.0,
        most: Duration::from_secs(2),
        jitter: 0.5,
        tries: None,
    };

    /// The pause after this many failed attempts in a row, given a random number and the algorithm's default pause. `None` if no
    /// further attempt is to be made.
    pub fn pause(&self, failed: u32, random: u64, default: Duration) -> Option<Duration> {
        match *self {
            Retry::Fixed { pause } => Some(pause),
            Retry::Blocking => Some(default),
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

/// The attempts of one wait for a lock: when the wait ends, and how many have failed.
pub(crate) struct Retries<'a> {
    retry: &'a Retry,
    /// The end of the wait; `None` if it has no end.
    end: Option<Duration>,
    failed: u32,
}

impl<'a> Retries<'a> {
    /// Begins the wait of a request that is made now.
    pub fn new(world: &impl World, request: &'a Request) -> Retries<'a> {
        Retries { retry: &request.retry, end: world.elapsed().checked_add(request.wait), failed: 0 }
    }

    /// The remaining time of the wait; [`Duration::MAX`] if it has no end.
    pub fn left(&self, world: &impl World) -> Duration {
        self.end.map_or(Duration::MAX, |end| end.saturating_sub(world.elapsed()))
    }

    /// The pause after a failed attempt; `None` if no further attempt is to be made. The last attempt is made when the wait ends.
    pub fn next_pause(&mut self, world: &impl World, default: Duration) -> Option<Duration> {
        self.failed = self.failed.saturating_add(1);
        let left = self.left(world);
        if left.is_zero() {
            return None;
        }
        // At least 100 µs, so that no setting makes the waiter spin without letting other tasks run.
        let pause = self.retry.pause(self.failed, world.random(), default)?.max(Duration::from_micros(100));
        Some(pause.min(left))
    }

    /// Sleeps for half to all of [`Retries::next_pause`], at random, so that clients that prevented each other's success do not
    /// collide again. Returns false if no further attempt is to be made.
    pub async fn pause_with_jitter(&mut self, world: &impl World, default: Duration) -> bool {
        let Some(pause) = self.next_pause(world, default) else { return false };
        world.sleep(pause.mul_f64(0.5 + 0.5 * fraction(world.random()))).await;
        true
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
    fn exponential_pauses_grow_up_to_a_maximum_and_end_after_the_last_try() {
        let retry = Retry::Exponential { first: ms(100), factor: 2.0, most: ms(1000), jitter: 0.0, tries: Some(6) };
        let pauses: Vec<_> = (1..=7).map(|failed| retry.pause(failed, 0, ms(1))).collect();
        let whole = [100, 200, 400, 800, 1000].map(|pause| Some(ms(pause)));
        assert_eq!(pauses[..5], whole);
        assert_eq!(pauses[5..], [None, None]);
        let endless = Retry::Exponential { first: ms(100), factor: 2.0, most: ms(1000), jitter: 0.0, tries: None };
        assert_eq!(endless.pause(u32::MAX, 0, ms(1)), Some(ms(1000)));
    }

    #[test]
    fn jitter_subtracts_at_most_its_fraction() {
        let retry = Retry::Exponential { first: ms(100), factor: 2.0, most: ms(1000), jitter: 0.25, tries: None };
        assert_eq!(retry.pause(2, 0, ms(1)), Some(ms(200)));
        let least = retry.pause(2, u64::MAX, ms(1)).expect("a pause");
        assert!(least > ms(149) && least < ms(151), "{least:?}");
        let half = retry.pause(2, u64::MAX / 2, ms(1)).expect("a pause");
        assert!(half > ms(174) && half < ms(176), "{half:?}");
    }

    #[test]
    fn invalid_settings_do_not_exceed_the_longest_pause() {
        for (factor, jitter) in [(0.0, -1.0), (f64::INFINITY, 2.0), (f64::NAN, f64::NAN), (-3.0, 0.5)] {
            let retry = Retry::Exponential { first: ms(100), factor, most: ms(1000), jitter, tries: None };
            for failed in [1, 2, 50] {
                let pause = retry.pause(failed, u64::MAX / 3, ms(1)).expect("a pause");
                assert!(pause <= ms(1000), "{factor} {jitter} {failed}: {pause:?}");
            }
        }
    }
}
