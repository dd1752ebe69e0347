//! Waits for messages between attempts.

use std::time::Duration;

use crate::client::Result;
use crate::recipes::algorithm::{BoxFuture, Grant, Request};
use crate::recipes::call::USUAL_PAUSE;
use crate::recipes::race::race;
use crate::recipes::retry::{Pace, Retry};
use crate::recipes::world::{Messages, World};

/// The longest wait for a message when nothing else says when to check again: messages can be lost.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The outcome of an attempt.
pub(crate) enum Attempted {
    /// The lock was taken.
    Taken(Grant),
    /// Another owner holds the lock. The duration is the remaining time, if known; no message arrives when it ends.
    Held(Option<Duration>),
}

impl Attempted {
    /// Converts the result of a script that returns nil if the lock was taken, else `PTTL`: −1 without an end, −2 if it is over.
    pub fn of(grant: Grant, left_ms: Option<i64>) -> Attempted {
        match left_ms {
            None => Attempted::Taken(grant),
            Some(-1) => Attempted::Held(None),
            Some(left_ms) => Attempted::Held(Some(Duration::from_millis(u64::try_from(left_ms).unwrap_or(0)))),
        }
    }
}

/// An algorithm whose waiters are woken by messages.
pub(crate) trait Woken<W: World>: Sync {
    /// One attempt.
    fn attempt(&self, world: &W, request: &Request) -> impl Future<Output = Result<Attempted>> + Send;

    /// The channel that wakes waiters.
    fn channel(&self, request: &Request) -> Vec<u8>;

    /// The longest pause between two attempts of a waiter.
    fn look_every(&self, _request: &Request) -> Duration {
        LOOK_EVERY
    }

    /// Cleans up after a wait that ended without the lock.
    fn give_up(&self, _world: &W, _request: &Request) -> impl Future<Output = Result<()>> + Send {
        std::future::ready(Ok(()))
    }
}

/// Repeats attempts, whenever a message arrives or the holder's lease is over, until one succeeds or the wait is over. Polls if
/// the request says so.
pub(crate) fn woken<'a, W: World>(
    algorithm: &'a impl Woken<W>,
    world: &'a W,
    request: &'a Request,
) -> BoxFuture<'a, Result<Option<Grant>>> {
    Box::pin(async move {
        let mut pace = Pace::new(world, request);
        let mut messages = None;
        loop {
            let left = match algorithm.attempt(world, request).await? {
                Attempted::Taken(grant) => return Ok(Some(grant)),
                Attempted::Held(left) => left,
            };
            let wait = if request.retry == Retry::Blocking {
                pace.left(world).min(left.unwrap_or(Duration::MAX)).min(algorithm.look_every(request))
            } else {
                pace.next(world, USUAL_PAUSE).unwrap_or(Duration::ZERO)
            };
            if wait.is_zero() && (request.retry != Retry::Blocking || pace.left(world).is_zero()) {
                algorithm.give_up(world, request).await?;
                return Ok(None);
            }
            // A lease that is over by the server's count may exist for another moment.
            let wait = wait.max(Duration::from_millis(1));
            if request.retry != Retry::Blocking {
                world.sleep(wait).await;
                continue;
            }
            match &mut messages {
                // Messages published before the subscription are missed; the next attempt sees their effect.
                None => messages = Some(world.subscribe(0, &algorithm.channel(request)).await?),
                // A broken connection may have lost a message, so an error leads to another attempt too.
                Some(messages) => drop(race(messages.next(), world.sleep(wait)).await),
            }
        }
    })
}
