//! 1 and 2: `SETNX`, without and with a following `EXPIRE`.

use crate::client::{Command, Result};
use crate::recipes::algorithm::{Algorithm, BoxFuture, Grant, ReleaseOutcome, Request};
use crate::recipes::call::{call, delete_unchecked};
use crate::recipes::facts::{Facts, NO_OWNER, POLLING, SLOW_HOLDER_DELETES};
use crate::recipes::waiting::poll::{Attempt, poll};
use crate::recipes::world::World;

/// Facts about [`SetNx`].
pub static SETNX: Facts = Facts {
    number: 1,
    name: "setnx",
    summary: "SETNX to acquire, DEL to release; no expiry",
    guarantees: &["at most one holder at a time, as long as only holders release"],
    failures: &["a holder that crashes leaves the lock held forever", NO_OWNER, POLLING],
    flawed: true,
    source: "Redis's documentation of SETNX, and the oldest tutorials",
    expires: false,
    ..Facts::MUTEX
};

/// Facts about [`SetNxExpire`].
pub static SETNX_EXPIRE: Facts = Facts {
    number: 2,
    name: "setnx-expire",
    summary: "SETNX, then EXPIRE as a second command; DEL to release",
    guarantees: &["at most one holder at a time, as long as no holder exceeds its lease and only holders release"],
    failures: &["a holder that crashes between the two commands leaves the lock held forever", SLOW_HOLDER_DELETES, POLLING],
    flawed: true,
    source: "tutorials from before Redis 2.6.12, the version that added NX and PX to SET",
    ..Facts::MUTEX
};

/// 1: `SETNX key owner` acquires the lock, `DEL key` releases it. Flawed: see [`SETNX`].
#[derive(Clone, Copy, Debug, Default)]
pub struct SetNx;

impl<W: World> Attempt<W> for SetNx {
    async fn attempt(&self, world: &W, request: &Request) -> Result<Option<Grant>> {
        let grant = Grant { valid_until: None, ..Grant::new(request, world.elapsed()) };
        let taken: bool = call(world, 0, Command::new("SETNX").arg(&request.name).arg(&request.owner)).await?;
        Ok(taken.then_some(grant))
    }
}

impl<W: World> Algorithm<W> for SetNx {
    fn facts(&self) -> &'static Facts {
        &SETNX
    }

    fn acquire<'a>(&'a self, world: &'a W, request: &'a Request) -> BoxFuture<'a, Result<Option<Grant>>> {
        poll(self, world, request)
    }

    fn release<'a>(&'a self, world: &'a W, grant: &'a Grant) -> BoxFuture<'a, Result<ReleaseOutcome>> {
        Box::pin(delete_unchecked(world, &grant.name))
    }
}

/// 2: `SETNX key owner` and `PEXPIRE key lease` acquire the lock, `DEL key` releases it. Flawed: see [`SETNX_EXPIRE`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> portcullis::client::Result<()> {
/// # let server = portcullis::TestServer::start();
/// # let world = portcullis::recipes::Live::new([portcullis::client::Client::connect(&server.url()).await?]);
/// use std::time::Duration;
/// use portcullis::recipes::{Lock, SetNxExpire};
///
/// let door = Lock::new(&world, SetNxExpire, "door").lease(Duration::from_secs(10));
/// let guard = door.acquire().await?;
/// assert!(door.try_acquire().await?.is_none());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct SetNxExpire;

impl<W: World> Attempt<W> for SetNxExpire {
    async fn attempt(&self, world: &W, request: &Request) -> Result<Option<Grant>> {
        let taken: bool = call(world, 0, Command::new("SETNX").arg(&request.name).arg(&request.owner)).await?;
        if !taken {
            return Ok(None);
        }
        let grant = Grant::new(request, world.elapsed());
        let _: bool = call(world, 0, Command::new("PEXPIRE").arg(&request.name).arg(request.lease_ms())).await?;
        Ok(Some(grant))
    }
}

impl<W: World> Algorithm<W> for SetNxExpire {
    fn facts(&self) -> &'static Facts {
        &SETNX_EXPIRE
    }

    fn acquire<'a>(&'a self, world: &'a W, request: &'a Request) -> BoxFuture<'a, Result<Option<Grant>>> {
        poll(self, world, request)
    }

    fn release<'a>(&'a self, world: &'a W, grant: &'a Grant) -> BoxFuture<'a, Result<ReleaseOutcome>> {
        Box::pin(delete_unchecked(world, &grant.name))
    }
}
