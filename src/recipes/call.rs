//! Sends commands and scripts to a world's servers.

use std::time::Duration;

use crate::client::{Command, Error, FromValue, Result, Script};
use crate::recipes::algorithm::{BoxFuture, Grant, Request};
use crate::recipes::retry::Pace;
use crate::recipes::world::World;

/// Sends a command to a server and converts its reply.
pub(crate) async fn ask<T: FromValue>(world: &impl World, server: usize, command: Command) -> Result<T> {
    T::from_value(world.call(server, command).await?)
}

/// Runs a script by its digest, or in full if the server does not have it. `arguments` appends the arguments after the keys.
pub(crate) async fn run<T: FromValue>(
    world: &impl World,
    server: usize,
    script: &Script,
    keys: &[&[u8]],
    arguments: impl Fn(Command) -> Command + Send,
) -> Result<T> {
    match world.call(server, arguments(script.by_digest(keys))).await {
        Err(Error::Reply(reply)) if reply.code() == "NOSCRIPT" => {
            T::from_value(world.call(server, arguments(script.in_full(keys))).await?)
        }
        outcome => T::from_value(outcome?),
    }
}

/// A further key of a lock, in the same cluster slot as the lock's name.
pub(crate) fn beside(name: &[u8], what: &str) -> Vec<u8> {
    let tagged = name.contains(&b'{');
    let mut key = Vec::with_capacity(name.len() + what.len() + 3);
    key.extend_from_slice(if tagged { b"" } else { b"{" });
    key.extend_from_slice(name);
    key.extend_from_slice(if tagged { b":" } else { b"}:" });
    key.extend_from_slice(what.as_bytes());
    key
}

/// Whether the server does not know the command or one of its options.
pub(crate) fn is_unknown(error: &Error) -> bool {
    matches!(error, Error::Reply(reply) if {
        let said = reply.message();
        reply.code() == "ERR" && (said.starts_with("unknown command") || said.starts_with("syntax error"))
    })
}

/// Default pause between two attempts of a polling algorithm.
pub(crate) const USUAL_PAUSE: Duration = Duration::from_millis(10);

/// One attempt of a polling algorithm.
pub(crate) trait Attempt<W: World>: Sync {
    /// Makes one attempt. Returns `None` if another owner has the lock.
    fn attempt(&self, world: &W, request: &Request) -> impl Future<Output = Result<Option<Grant>>> + Send;
}

/// Repeats attempts until one succeeds or the wait is over.
pub(crate) fn polled<'a, W: World>(
    algorithm: &'a impl Attempt<W>,
    world: &'a W,
    request: &'a Request,
) -> BoxFuture<'a, Result<Option<Grant>>> {
    Box::pin(async move {
        let mut pace = Pace::new(world, request);
        loop {
            if let Some(grant) = algorithm.attempt(world, request).await? {
                return Ok(Some(grant));
            }
            if !pace.pause(world, USUAL_PAUSE).await {
                return Ok(None);
            }
        }
    })
}
