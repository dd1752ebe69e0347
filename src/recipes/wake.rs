//! Waiting for messages between attempts.

use std::time::Duration;

use crate::client::Result;
use crate::recipes::algorithm::{BoxFuture, Grant, Request};
use crate::recipes::call::USUAL_PAUSE;
use crate::recipes::race::race;
use crate::recipes::retry::{Pace, Retry};
use crate::recipes::world::{Messages, World};

/// How long a message is waited for where nothing else says when to look again: messages can be lost.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What an attempt came to.
pub(crate) enum Attempted {
    /// It is held now.
    Taken(Grant),
    /// Somebody else has it; where it is known, for how long at most. No message comes when that time is over.
    Held(Option<Duration>),
}

impl Attempted {
    /// Of a script that gives nothing where it was taken, and else what `PTTL` says: −1 where there is no end, −2 where it is over.
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

    /// Where messages come for those who wait.
    fn channel(&self, request: &Request) -> Vec<u8>;

    /// How often a waiter has to attempt again, come what may.
    fn look_every(&self, _request: &Request) -> Duration {
        LOOK_EVERY
    }

    /// The wait is over, and it was not taken.
    fn give_up(&self, _world: &W, _request: &Request) -> impl Future<Output = Result<()>> + Send {
        std::future::ready(Ok(()))
    }
}

/// Attempts, and again whenever a message comes or the lease of the holder is over, until one succeeds or the time is over. Polls where
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
            // What is over by the server's count may be a moment from being gone.
            let wait = wait.max(Duration::from_millis(1));
            if request.retry != Retry::Blocking {
                world.sleep(wait).await;
                continue;
            }
            match &mut messages {
                // What was published before this was missed: the next attempt sees what came of it.
                None => messages = Some(world.subscribe(0, &algorithm.channel(request)).await?),
                // A connection that broke may have swallowed a message: it is attempted again, too.
                Some(messages) => drop(race(messages.next(), world.sleep(wait)).await),
            }
        }
    })
}
