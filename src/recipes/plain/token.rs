//! 4: `SET key owner NX PX lease`, the lock of most tutorials and libraries. The variants differ in the release.

use std::sync::LazyLock;

use crate::client::{Command, Result, Script};
use crate::recipes::algorithm::{Algorithm, BoxFuture, Grant, ReleaseOutcome, Request, lease_ms};
use crate::recipes::call::{call, delete_unchecked, idempotent_script, run_script};
use crate::recipes::facts::{
    ENDS_WITH_LEASE, FAILOVER, Facts, ONE_HOLDER, ONE_HOLDER_WITHIN_LEASE, OWNER_CHECKED, PAUSED_HOLDER, POLLING,
    SLOW_HOLDER_DELETES,
};
use crate::recipes::waiting::poll::{Attempt, poll};
use crate::recipes::world::World;

/// Facts about [`Token`] with release by a script.
pub static COMPARED: Facts = Facts {
    number: 4,
    name: "set-nx-px",
    summary: "SET NX PX with the owner's token; a script deletes the key if it still has the token",
    guarantees: &[ONE_HOLDER, OWNER_CHECKED, ENDS_WITH_LEASE],
    failures: &[PAUSED_HOLDER, FAILOVER, POLLING],
    source: "Redis's documentation of SET and \"Distributed locks with Redis\"; redis-py, Spring and many others",
    renews: true,
    ..Facts::MUTEX
};

/// Facts about [`Token`] with release by `DEL` without a check.
pub static UNCHECKED: Facts = Facts {
    name: "set-nx-px-del",
    summary: "SET NX PX; DEL to release, without a check of the owner",
    guarantees: &[ONE_HOLDER_WITHIN_LEASE],
    failures: &[SLOW_HOLDER_DELETES, FAILOVER, POLLING],
    flawed: true,
    source: "tutorials that stop at SET NX PX",
    renews: false,
    ..COMPARED
};

/// Facts about [`Token`] with release by `GET` and then `DEL`.
pub static RACING: Facts = Facts {
    name: "set-nx-px-get-del",
    summary: "SET NX PX; GET, and DEL if the value is the owner's, as two commands",
    guarantees: &[ONE_HOLDER_WITHIN_LEASE],
    failures: &["if the lease ends between GET and DEL, the DEL frees the lock of the next holder", FAILOVER, POLLING],
    flawed: true,
    source: "tutorials that check the owner without a script",
    renews: false,
    ..COMPARED
};

/// Deletes a key if it has this value.
static RELEASE: LazyLock<Script> =
    idempotent_script!("if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0");
/// Sets a new time-out on a key if it has this value.
static RENEW: LazyLock<Script> = idempotent_script!(
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0"
);

/// 4: `SET key owner NX PX lease`. See [`COMPARED`]; [`Live`](crate::recipes::Live) has an example.
#[derive(Clone, Copy, Debug, Default)]
pub struct Token {
    release: Release,
}

/// How the lock is released.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Release {
    #[default]
    Script,
    Del,
    GetDel,
}

impl Token {
    /// Releases the lock by `DEL` alone. Flawed: see [`UNCHECKED`].
    pub fn unchecked() -> Token {
        Token { release: Release::Del }
    }

    /// Releases the lock by `GET`, and by `DEL` if the value is the owner's. Flawed: see [`RACING`].
    pub fn racing() -> Token {
        Token { release: Release::GetDel }
    }
}

/// Sends `SET … NX PX` to a server. If the reply is lost, the key's value shows whether the command was carried out.
pub(crate) async fn set_on<W: World>(world: &W, server: usize, request: &Request) -> Result<bool> {
    let set = Command::new("SET").arg(&request.name).arg(&request.owner).arg("NX").arg("PX").arg(request.lease_ms());
    match call::<bool>(world, server, set).await {
        Err(error) if error.maybe_applied() => {
            let found = call::<Option<Vec<u8>>>(world, server, Command::new("GET").arg(&request.name).idempotent()).await;
            match found {
                Ok(found) => Ok(found.as_ref() == Some(&request.owner)),
                Err(_) => Err(error),
            }
        }
        outcome => outcome,
    }
}

/// Deletes the key on a server if its value is the owner's. Returns whether it was.
pub(crate) async fn delete_on<W: World>(world: &W, server: usize, grant: &Grant) -> Result<bool> {
    run_script(world, server, &RELEASE, &[&grant.name], |call| call.arg(&grant.owner)).await
}

/// Restarts the lease on a server if the key's value is the owner's. Returns whether it was.
pub(crate) async fn renew_on<W: World>(world: &W, server: usize, grant: &Grant) -> Result<bool> {
    run_script(world, server, &RENEW, &[&grant.name], |call| call.arg(&grant.owner).arg(lease_ms(grant.lease))).await
}

/// One attempt to acquire the lock on the first server.
pub(crate) async fn attempt<W: World>(world: &W, request: &Request) -> Result<Option<Grant>> {
    let asked = world.elapsed();
    Ok(set_on(world, 0, request).await?.then(|| Grant::new(request, asked)))
}

impl<W: World> Attempt<W> for Token {
    async fn attempt(&self, world: &W, request: &Request) -> Result<Option<Grant>> {
        attempt(world, request).await
    }
}

impl<W: World> Algorithm<W> for Token {
    fn facts(&self) -> &'static Facts {
        match self.release {
            Release::Script => &COMPARED,
            Release::Del => &UNCHECKED,
            Release::GetDel => &RACING,
        }
    }

    fn acquire<'a>(&'a self, world: &'a W, request: &'a Request) -> BoxFuture<'a, Result<Option<Grant>>> {
        poll(self, world, request)
    }

    fn release<'a>(&'a self, world: &'a W, grant: &'a Grant) -> BoxFuture<'a, Result<ReleaseOutcome>> {
        Box::pin(async move {
            match self.release {
                Release::Script => Ok(ReleaseOutcome::checked(delete_on(world, 0, grant).await?)),
                Release::Del => delete_unchecked(world, &grant.name).await,
                Release::GetDel => {
                    let found: Option<Vec<u8>> = call(world, 0, Command::new("GET").arg(&grant.name)).await?;
                    if found.as_ref() == Some(&grant.owner) {
                        delete_unchecked(world, &grant.name).await
                    } else {
                        Ok(ReleaseOutcome::NotHeld)
                    }
                }
            }
        })
    }

    fn renew<'a>(&'a self, world: &'a W, grant: &'a mut Grant) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move {
            if self.release != Release::Script {
                return Ok(false);
            }
            let asked = world.elapsed();
            let renewed = renew_on(world, 0, grant).await?;
            Ok(grant.renewed(asked, renewed))
        })
    }
}
