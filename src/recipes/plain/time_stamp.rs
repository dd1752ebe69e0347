//! 3: `SETNX` with the expiry time as the value, and `GETSET` to take over an expired lock.

use crate::client::{Command, Result};
use crate::recipes::algorithm::{Algorithm, BoxFuture, Grant, ReleaseOutcome, Request};
use crate::recipes::call::{call, delete_unchecked};
use crate::recipes::facts::Facts;
use crate::recipes::waiting::poll::{Attempt, poll};
use crate::recipes::world::World;

// Failures of both variants.
const FAST_CLOCK: &str = "a client whose clock is fast takes over a lock that is still held";
const NO_OWNER_SLOW_HOLDER: &str =
    "no owner check: any client's DEL frees the lock, and a slow holder's DEL frees the lock of the next holder";

/// Facts about [`TimeStamp`] with takeover by `GETSET`.
pub static GETSET: Facts = Facts {
    number: 3,
    name: "setnx-getset",
    summary: "SETNX with the expiry time as the value; GETSET takes over an expired lock",
    guarantees: &["one winner of each takeover, as long as the clients' clocks agree and no holder exceeds its lease"],
    failures: &[
        FAST_CLOCK,
        "a client that loses the race of GETSETs overwrites the winner's expiry time, and so lengthens the winner's lease",
        NO_OWNER_SLOW_HOLDER,
        "the release is two commands: the check of the expiry time, and the DEL",
        "the key never expires on the server",
    ],
    flawed: true,
    source: "Redis's documentation of SETNX (\"Handling deadlocks\"), and the lock of Jedis that copies it",
    ..Facts::MUTEX
};

/// Facts about [`TimeStamp`] with takeover by `DEL` and `SETNX`.
pub static NAIVE: Facts = Facts {
    name: "setnx-getset-naive",
    summary: "SETNX with the expiry time as the value; an expired lock is deleted and set again",
    guarantees: &[],
    failures: &["two clients take over the same lock: C1 DEL, C1 SETNX, C2 DEL, C2 SETNX", FAST_CLOCK, NO_OWNER_SLOW_HOLDER],
    source: "the mistake that Redis's documentation of SETNX warns of",
    ..GETSET
};

/// 3: the key's value is the expiry time: unix time in milliseconds, by the client's clock. Flawed: see [`GETSET`] and [`NAIVE`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> portcullis::client::Result<()> {
/// # let server = portcullis::TestServer::start();
/// # let world = portcullis::recipes::Live::new([portcullis::client::Client::connect(&server.url()).await?]);
/// use std::time::Duration;
/// use portcullis::recipes::{Lock, TimeStamp};
///
/// let door = Lock::new(&world, TimeStamp::default(), "door").lease(Duration::from_secs(10));
/// let guard = door.acquire().await?;
/// assert!(door.try_acquire().await?.is_none());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct TimeStamp {
    naive: bool,
}

impl TimeStamp {
    /// Takes over an expired lock by `DEL` and `SETNX`, so that two clients can win. Flawed: see [`NAIVE`].
    pub fn naive() -> TimeStamp {
        TimeStamp { naive: true }
    }

    /// Takes over an expired lock whose value was `seen`. Returns whether this client won.
    async fn take_over<W: World>(&self, world: &W, key: &[u8], seen: i64, stamp: i64, now: i64) -> Result<bool> {
        if self.naive {
            let _: bool = call(world, 0, Command::new("DEL").arg(key)).await?;
            return call(world, 0, Command::new("SETNX").arg(key).arg(stamp)).await;
        }
        let old: Option<i64> = call(world, 0, Command::new("GETSET").arg(key).arg(stamp)).await?;
        // The client that replaces the expired time stamp wins. The others get the winner's time stamp in reply.
        Ok(old.is_none_or(|old| old == seen || old < now))
    }
}

impl<W: World> Attempt<W> for TimeStamp {
    async fn attempt(&self, world: &W, request: &Request) -> Result<Option<Grant>> {
        let (now, asked) = (world.unix_ms(), world.elapsed());
        let stamp = now.saturating_add_unsigned(request.lease_ms()).saturating_add(1);
        let key = &request.name;
        let mut taken: bool = call(world, 0, Command::new("SETNX").arg(key).arg(stamp)).await?;
        if !taken {
            let seen: Option<i64> = call(world, 0, Command::new("GET").arg(key)).await?;
            // If the key was deleted in between, the next attempt acquires the lock.
            if let Some(seen) = seen.filter(|&seen| seen < now) {
                taken = self.take_over(world, key, seen, stamp, now).await?;
            }
        }
        Ok(taken.then(|| Grant { memo: stamp.to_string().into_bytes(), ..Grant::new(request, asked) }))
    }
}

impl<W: World> Algorithm<W> for TimeStamp {
    fn facts(&self) -> &'static Facts {
        if self.naive { &NAIVE } else { &GETSET }
    }

    fn acquire<'a>(&'a self, world: &'a W, request: &'a Request) -> BoxFuture<'a, Result<Option<Grant>>> {
        poll(self, world, request)
    }

    fn release<'a>(&'a self, world: &'a W, grant: &'a Grant) -> BoxFuture<'a, Result<ReleaseOutcome>> {
        Box::pin(async move {
            let until: Option<i64> = call(world, 0, Command::new("GET").arg(&grant.name)).await?;
            // An unexpired time stamp means that the lock is held. That this grant is the holder is only an assumption.
            if until.is_none_or(|until| world.unix_ms() >= until) {
                return Ok(ReleaseOutcome::NotHeld);
            }
            delete_unchecked(world, &grant.name).await
        })
    }
}
