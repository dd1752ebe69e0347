//! 14: the count-down latch.

use std::sync::LazyLock;
use std::time::Duration;

use crate::client::{Command, Result, Script};
use crate::recipes::call::{call, derived_key, run_script, script};
use crate::recipes::facts::Facts;
use crate::recipes::waiting::messages::RECHECK_EVERY;
use crate::recipes::waiting::race::race;
use crate::recipes::world::{Messages, World};

/// Facts about [`Latch`].
pub static FACTS: Facts = Facts {
    number: 14,
    name: "latch",
    summary: "a counter that opens a gate at 0: DECRBY, and at 0 DEL and a message to all waiters",
    guarantees: &[
        "waiters continue when the latch has been counted down to 0, and not before, as long as the server keeps its data",
    ],
    failures: &[
        "a client that crashes before the reply to its count-down does not know whether it counted",
        "a client that crashes before it counts down blocks all waiters forever",
        "a waiter whose message is lost checks again only after a second",
        "a latch that was never set is open",
    ],
    source: "Redisson's RCountDownLatch; the scripts are ours",
    holders: None,
    expires: false,
    shared: true,
    ..Facts::MUTEX
};

/// Returns the remaining count; −1 if the latch was open already. KEYS: latch, channel. ARGV: number to count down by.
static DOWN: LazyLock<Script> = script!(
    "if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
        local left = redis.call('DECRBY', KEYS[1], ARGV[1])
        if left > 0 then return left end
        redis.call('DEL', KEYS[1])
        redis.call('PUBLISH', KEYS[2], 'open')
        return 0"
);

/// 14: waiters wait until the latch has been counted down to 0. See [`FACTS`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> portcullis::client::Result<()> {
/// # let server = portcullis::TestServer::start();
/// # let world = portcullis::recipes::Live::new([portcullis::client::Client::connect(&server.url()).await?]);
/// use std::time::Duration;
/// use portcullis::recipes::Latch;
///
/// let parts = Latch::new(&world, "parts");
/// assert!(parts.set(2).await?);
/// assert_eq!(parts.down(1).await?, 1);
/// assert!(!parts.wait(Duration::from_millis(10)).await?);
/// assert_eq!(parts.down(1).await?, 0);
/// assert!(parts.wait(Duration::MAX).await?);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Latch<W> {
    world: W,
    name: Vec<u8>,
    channel: Vec<u8>,
}

impl<W: World> Latch<W> {
    /// The latch with this name.
    pub fn new(world: &W, name: impl AsRef<[u8]>) -> Latch<W> {
        let name = name.as_ref();
        Latch { world: world.clone(), name: name.to_vec(), channel: derived_key(name, "open") }
    }

    /// Sets the count, unless the latch is counting already. Returns whether it was not. A count of 0 leaves the latch open.
    ///
    /// # Errors
    /// If the server fails the command.
    pub async fn set(&self, count: u32) -> Result<bool> {
        if count == 0 {
            return Ok(call::<i64>(&self.world, 0, Command::new("EXISTS").arg(&self.name)).await? == 0);
        }
        call(&self.world, 0, Command::new("SET").arg(&self.name).arg(count).arg("NX")).await
    }

    /// Counts down by this number. Returns the remaining count. At 0 the latch opens.
    ///
    /// # Errors
    /// If the server fails the command; [`crate::client::Error::maybe_applied`] says whether it may have counted.
    pub async fn down(&self, by: u32) -> Result<u32> {
        let left: i64 = run_script(&self.world, 0, &DOWN, &[&self.name, &self.channel], |call| call.arg(by)).await?;
        Ok(u32::try_from(left).unwrap_or(0))
    }

    /// Waits until the latch is open, at most this long. Returns whether it is open.
    ///
    /// # Errors
    /// If the server fails the command.
    pub async fn wait(&self, wait: Duration) -> Result<bool> {
        let end = self.world.elapsed().checked_add(wait);
        let mut messages = None;
        loop {
            let closed: bool = call(&self.world, 0, Command::new("EXISTS").arg(&self.name)).await?;
            if !closed {
                return Ok(true);
            }
            let left = end.map_or(Duration::MAX, |end| end.saturating_sub(self.world.elapsed()));
            if left.is_zero() {
                return Ok(false);
            }
            match &mut messages {
                None => messages = Some(self.world.subscribe(0, &self.channel).await?),
                Some(messages) => drop(race(messages.next(), self.world.sleep(left.min(RECHECK_EVERY))).await),
            }
        }
    }
}
