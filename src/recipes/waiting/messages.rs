//! Repeats attempts when a message arrives.

use std::time::Duration;

use crate::client::Result;
use crate::recipes::algorithm::{BoxFuture, Grant, Request};
use crate::recipes::waiting::poll::DEFAULT_PAUSE;
use crate::recipes::waiting::race::race;
use crate::recipes::waiting::retry::{Retries, Retry};
use crate::recipes::world::{Messages, World};

/// The longest wait for a message before the next attempt. A message can be lost.
pub(crate) const RECHECK_EVERY: Duration = Duration::from_secs(1);

/// The outcome of an attempt.
pub(crate) enum Attempted {
    /// The lock was acquired.
    Acquired(Grant),
    /// Another owner holds the lock, for this remaining time if it is known. No message arrives when it ends.
    Held(Option<Duration>),
}

impl Attempted {
    /// Converts the reply of a script that returns nil if the lock was acquired, else its `PTTL`: −1 if the holder's lease has no
    /// end, −2 if the lock is free already.
    pub fn of(grant: Grant, left_ms: Option<i64>) -> Attempted {
        match left_ms {
            None => Attempted::Acquired(grant),
            Some(-1) => Attempted::Held(None),
            Some(left_ms) => Attempted::Held(Some(Duration::from_millis(u64::try_from(left_ms).unwrap_or(0)))),
        }
    }
}

/// An algorithm whose waiters are woken by messages.
pub(crate) trait WokenByMessages<W: World>: Sync {
    /// Makes one attempt.
    fn attempt(&self, world: &W, request: &Request) -> impl Future<Output = Result<Attempted>> + Send;

    /// The channel of the messages that wake a waiter.
    fn channel(&self, request: &Request) -> Vec<u8>;

    /// The longest pause between two attempts of a waiter.
    fn recheck_every(&self) -> Duration {
        RECHECK_EVERY
    }

    /// Cleans up after a wait that ended without the lock.
    fn give_up(&self, _world: &W, _request: &Request) -> impl Future<Output = Result<()>> + Send {
        std::future::ready(Ok(()))
    }
}

/// Repeats attempts until one succeeds or the wait is over: when a message arrives, when the holder's lease is over, and at the
/// latest after [`WokenByMessages::recheck_every`]. Polls instead if the request's [`Retry`] has pauses.
pub(crate) fn wait_for_messages<'a, W: World>(
    algorithm: &'a impl WokenByMessages<W>,
    world: &'a W,
    request: &'a Request,
) -> BoxFuture<'a, Result<Option<Grant>>> {
    Box::pin(async move {
        let mut retries = Retries::new(world, request);
        let mut messages = None;
        loop {
            let holder_left = match algorithm.attempt(world, request).await? {
                Attempted::Acquired(grant) => return Ok(Some(grant)),
                Attempted::Held(left) => left.unwrap_or(Duration::MAX),
            };
            // A lease that is over by the server's answer may exist for another moment.
            const SHORTEST: Duration = Duration::from_millis(1);
            if request.retry != Retry::Blocking {
                let Some(pause) = retries.next_pause(world, DEFAULT_PAUSE) else { break };
                world.sleep(pause.max(SHORTEST)).await;
                continue;
            }
            let left = retries.left(world);
            if left.is_zero() {
                break;
            }
            let wait = left.min(holder_left).min(algorithm.recheck_every()).max(SHORTEST);
            match &mut messages {
                // Messages that were published before the subscription are missed. The next attempt sees their effect.
                None => messages = Some(world.subscribe(0, &algorithm.channel(request)).await?),
                // After an error, too, the next attempt follows: a broken connection may have lost a message.
                Some(messages) => drop(race(messages.next(), world.sleep(wait)).await),
            }
        }
        algorithm.give_up(world, request).await?;
        Ok(None)
    })
}
