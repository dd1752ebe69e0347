//! Repeats attempts after pauses.

use std::time::Duration;

use crate::client::Result;
use crate::recipes::algorithm::{BoxFuture, Grant, Request};
use crate::recipes::waiting::retry::Retries;
use crate::recipes::world::World;

/// Default pause between two attempts.
pub(crate) const DEFAULT_PAUSE: Duration = Duration::from_millis(10);

/// An algorithm whose waiters poll.
pub(crate) trait Attempt<W: World>: Sync {
    /// Makes one attempt. Returns `None` if another owner has the lock.
    fn attempt(&self, world: &W, request: &Request) -> impl Future<Output = Result<Option<Grant>>> + Send;
}

/// Repeats attempts until one succeeds or the wait is over.
pub(crate) fn poll<'a, W: World>(
    algorithm: &'a impl Attempt<W>,
    world: &'a W,
    request: &'a Request,
) -> BoxFuture<'a, Result<Option<Grant>>> {
    Box::pin(async move {
        let mut retries = Retries::new(world, request);
        loop {
            if let Some(grant) = algorithm.attempt(world, request).await? {
                return Ok(Some(grant));
            }
            let Some(pause) = retries.next_pause(world, DEFAULT_PAUSE) else { return Ok(None) };
            world.sleep(pause).await;
        }
    })
}
