//! 1 and 2: `SETNX`, without and with a following `EXPIRE`.

use crate::client::{Command, Result};
use crate::recipes::algorithm::{Algorithm, BoxFuture, Facts, Given, Grant, Request};
use crate::recipes::call::{Attempt, ask, polled};
use crate::recipes::world::World;

/// Facts about [`SetNx`].
pub static SETNX: Facts = Facts {
    number: 1,
    name: "setnx",
    summary: "SETNX to take, DEL to give back; no expiry",
    guarantees: &["one holder at a time, as long as only holders release"],
    failures: &[
        "a holder that crashes leaves it locked for ever",
        "no owner: anybody's DEL frees it",
        "who waits polls, in no order",
    ],
    flawed: true,
    source: "Redis's documentation of SETNX, and the oldest tutorials",
    holders: Some(1),
    reentrant: false,
    expires: false,
    renews: false,
    shared: false,
    fenced: false,
    native: false,
};

/// Facts about [`SetNxExpire`].
pub static SETNX_EXPIRE: Facts = Facts {
    number: 2,
    name: "setnx-expire",
    summary: "SETNX, then EXPIRE as a second command; DEL to give back",
    guarantees: &["one holder at a time, as long as nobody holds it for longer than its lease and only holders release"],
    failures: &[
        "a holder that crashes between the two commands leaves it locked for ever",
        "a holder that was slower than its lease deletes somebody else's lock",
        "who waits polls, in no order",
    ],
    flawed: true,
    source: "tutorials from before SET had NX and PX (Redis 2.6.12)",
    holders: Some(1),
    reentrant: false,
    expires: true,
    renews: false,
    shared: false,
    fenced: false,
    native: false,
};

/// 1: `SETNX key owner` takes it, `DEL key` releases it. Flawed: see [`SETNX`].
#[derive(Clone, Copy, Debug, Default)]
pub struct SetNx;

impl<W: World> Attempt<W> for SetNx {
    async fn attempt(&self, world: &W, request: &Request) -> Result<Option<Grant>> {
        let mut grant = Grant::new(request, world.elapsed());
        grant.valid_until = None;
        let taken: bool = ask(world, 0, Command::new("SETNX").arg(&request.name).arg(&request.owner)).await?;
        Ok(taken.then_some(grant))
    }
}

impl<W: World> Algorithm<W> for SetNx {
    fn facts(&self) -> &'static Facts {
        &SETNX
    }

    fn acquire<'a>(&'a self, world: &'a W, request: &'a Request) -> BoxFuture<'a, Result<Option<Grant>>> {
        polled(self, world, request)
    }

    fn release<'a>(&'a self, world: &'a W, grant: &'a Grant) -> BoxFuture<'a, Result<Given>> {
        Box::pin(delete(world, grant))
    }
}

/// `DEL`, without a check of the owner.
pub(crate) async fn delete<W: World>(world: &W, grant: &Grant) -> Result<Given> {
    let gone: bool = ask(world, 0, Command::new("DEL").arg(&grant.name)).await?;
    Ok(if gone { Given::Unchecked } else { Given::NotHeld })
}

/// 2: `SETNX key owner`, `PEXPIRE key lease`, and `DEL key` to release it. Flawed: see [`SETNX_EXPIRE`].
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
        let taken: bool = ask(world, 0, Command::new("SETNX").arg(&request.name).arg(&request.owner)).await?;
        if !taken {
            return Ok(None);
        }
        let grant = Grant::new(request, world.elapsed());
        let _: bool = ask(world, 0, Command::new("PEXPIRE").arg(&request.name).arg(request.lease_ms())).await?;
        Ok(Some(grant))
    }
}

impl<W: World> Algorithm<W> for SetNxExpire {
    fn facts(&self) -> &'static Facts {
        &SETNX_EXPIRE
    }

    fn acquire<'a>(&'a self, world: &'a W, request: &'a Request) -> BoxFuture<'a, Result<Option<Grant>>> {
        polled(self, world, request)
    }

    fn release<'a>(&'a self, world: &'a W, grant: &'a Grant) -> BoxFuture<'a, Result<Given>> {
        Box::pin(delete(world, grant))
    }
}
