//! 3: `SETNX` with the expiry time as the value, and `GETSET` to take over an expired lock.

use crate::client::{Command, Result};
use crate::recipes::algorithm::{Algorithm, BoxFuture, Facts, Given, Grant, Request};
use crate::recipes::call::{Attempt, ask, polled};
use crate::recipes::world::World;

/// Facts about [`TimeStamp`] with take-over by `GETSET`.
pub static GETSET: Facts = Facts {
    number: 3,
    name: "setnx-getset",
    summary: "SETNX with a time stamp; what is past is taken over by GETSET",
    guarantees: &[
        "one winner of each take-over, as long as the clients' clocks agree and nobody holds it for longer than its lease",
    ],
    failures: &[
        "a client whose clock is fast takes over what is still held",
        "who loses at GETSET overwrites the winner's time stamp, and with that lengthens its lease",
        "no owner: anybody's DEL frees it, and that of a slow holder frees somebody else's",
        "the check and the DEL at release are two commands",
        "the key never expires on the server",
    ],
    flawed: true,
    source: "Redis's documentation of SETNX (\"Handling deadlocks\"), and the lock of Jedis that copies it",
    holders: Some(1),
    reentrant: false,
    expires: true,
    renews: false,
    shared: false,
    fenced: false,
    native: false,
};

/// Facts about [`TimeStamp`] with take-over by `DEL` and `SETNX`.
pub static NAIVE: Facts = Facts {
    name: "setnx-getset-naive",
    summary: "SETNX with a time stamp; what is past is deleted and set anew",
    guarantees: &[],
    failures: &[
        "two winners of one take-over: C1 DEL, C1 SETNX, C2 DEL, C2 SETNX",
        "a client whose clock is fast takes over what is still held",
        "no owner: anybody's DEL frees it, and that of a slow holder frees somebody else's",
    ],
    source: "what Redis's documentation of SETNX warns of",
    ..GETSET
};

/// 3: the value is the expiry time: unix time in milliseconds, on the client's clock. Flawed: see [`GETSET`] and [`NAIVE`].
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
    /// Takes over an expired lock by `DEL` and `SETNX`, where two clients can win.
    pub fn naive() -> TimeStamp {
        TimeStamp { naive: true }
    }

    async fn take_over<W: World>(&self, world: &W, key: &[u8], seen: i64, stamp: i64, now: i64) -> Result<bool> {
        if self.naive {
            let _: bool = ask(world, 0, Command::new("DEL").arg(key)).await?;
            return ask(world, 0, Command::new("SETNX").arg(key).arg(stamp)).await;
        }
        let old: Option<i64> = ask(world, 0, Command::new("GETSET").arg(key).arg(stamp)).await?;
        // The first client to replace the expired time stamp wins; the others get the winner's time stamp back.
        Ok(old.is_none_or(|old| old == seen || old < now))
    }
}

impl<W: World> Attempt<W> for TimeStamp {
    async fn attempt(&self, world: &W, request: &Request) -> Result<Option<Grant>> {
        let (now, asked) = (world.unix_ms(), world.elapsed());
        let stamp = now.saturating_add_unsigned(request.lease_ms()).saturating_add(1);
        let key = &request.name;
        let mut taken: bool = ask(world, 0, Command::new("SETNX").arg(key).arg(stamp)).await?;
        if !taken {
            let seen: Option<i64> = ask(world, 0, Command::new("GET").arg(key)).await?;
            // If the key has gone in between, the next attempt takes it.
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
        polled(self, world, request)
    }

    fn release<'a>(&'a self, world: &'a W, grant: &'a Grant) -> BoxFuture<'a, Result<Given>> {
        Box::pin(async move {
            let until: Option<i64> = ask(world, 0, Command::new("GET").arg(&grant.name)).await?;
            // The holder of an unexpired time stamp still has the lock. That this grant is the holder is only assumed.
            if until.is_none_or(|until| world.unix_ms() >= until) {
                return Ok(Given::NotHeld);
            }
            let gone: bool = ask(world, 0, Command::new("DEL").arg(&grant.name)).await?;
            Ok(if gone { Given::Unchecked } else { Given::NotHeld })
        })
    }
}
