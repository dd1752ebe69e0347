//! Sends commands and scripts to the servers of a world.

use crate::client::{Command, Error, FromValue, Result, Script};
use crate::recipes::algorithm::ReleaseOutcome;
use crate::recipes::world::World;

/// Makes the script with this code when it is first used.
macro_rules! script {
    ($code:expr) => {
        std::sync::LazyLock::new(|| $crate::client::Script::new($code))
    };
}
/// As `script!`, for a script that may run twice without harm.
macro_rules! idempotent_script {
    ($code:expr) => {
        std::sync::LazyLock::new(|| $crate::client::Script::new($code).idempotent())
    };
}
pub(crate) use {idempotent_script, script};

/// Sends a command to a server and converts its reply.
pub(crate) async fn call<T: FromValue>(world: &impl World, server: usize, command: Command) -> Result<T> {
    T::from_value(world.call(server, command).await?)
}

/// Sends two commands together ([`World::call_together`]) and converts the reply to the second.
pub(crate) async fn call_together<T: FromValue>(world: &impl World, server: usize, first: Command, then: Command) -> Result<T> {
    T::from_value(world.call_together(server, first, then).await?)
}

/// Runs a script by its digest, or in full if the server does not have it. `arguments` appends the arguments after the keys.
pub(crate) async fn run_script<T: FromValue>(
    world: &impl World,
    server: usize,
    script: &Script,
    keys: &[&[u8]],
    arguments: impl Fn(Command) -> Command + Send,
) -> Result<T> {
    match world.call(server, arguments(script.by_digest(keys))).await {
        Err(Error::Reply(reply)) if reply.code() == "NOSCRIPT" => call(world, server, arguments(script.in_full(keys))).await,
        outcome => T::from_value(outcome?),
    }
}

/// Releases a lock on the first server by a script that returns nil if the owner did not hold the lock, and a number if it did.
pub(crate) async fn release_by_script(
    world: &impl World,
    script: &Script,
    keys: &[&[u8]],
    arguments: impl Fn(Command) -> Command + Send,
) -> Result<ReleaseOutcome> {
    let reply: Option<i64> = run_script(world, 0, script, keys, arguments).await?;
    Ok(ReleaseOutcome::checked(reply.is_some()))
}

/// Deletes a key on the first server, without a check of the owner.
pub(crate) async fn delete_unchecked(world: &impl World, key: &[u8]) -> Result<ReleaseOutcome> {
    let deleted: bool = call(world, 0, Command::new("DEL").arg(key)).await?;
    Ok(if deleted { ReleaseOutcome::Unchecked } else { ReleaseOutcome::NotHeld })
}

/// The name of a further key or channel of a lock, in the same cluster slot as the lock.
pub(crate) fn derived_key(name: &[u8], suffix: &str) -> Vec<u8> {
    let tagged = name.contains(&b'{');
    let mut key = Vec::with_capacity(name.len() + suffix.len() + 3);
    key.extend_from_slice(if tagged { b"" } else { b"{" });
    key.extend_from_slice(name);
    key.extend_from_slice(if tagged { b":" } else { b"}:" });
    key.extend_from_slice(suffix.as_bytes());
    key
}

/// Whether the server does not know the command or one of its options.
pub(crate) fn is_unknown(error: &Error) -> bool {
    matches!(error, Error::Reply(reply) if {
        let message = reply.message();
        reply.code() == "ERR" && (message.starts_with("unknown command") || message.starts_with("syntax error"))
    })
}
