//! 4: `SET key token NX PX lease`, the lock of most tutorials and libraries. Its variants differ in the release.

use std::sync::LazyLock;

use crate::client::{Command, Result, Script};
use crate::recipes::algorithm::{Algorithm, BoxFuture, Facts, Given, Grant, Request, lease_ms};
use crate::recipes::call::{Attempt, ask, polled, run};
use crate::recipes::setnx::delete;
use crate::recipes::world::World;

/// Facts about [`Token`] with release by a script.
pub static COMPARED: Facts = Facts {
    number: 4,
    name: "set-nx-px",
    summary: "SET NX PX with the owner's token; a script deletes it if the token is still there",
    guarantees: &[
        "one holder at a time by the server's order, as long as the server keeps its data",
        "nobody releases or renews what is not his",
        "ends with its lease whatever becomes of the holder",
    ],
    failures: &[
        "a holder that pauses for longer than its lease goes on beside the next one: only a fencing token helps, and it has none",
        "a fail-over to a replica, or a restart that loses the last writes, loses the lock",
        "who waits polls, in no order",
    ],
    flawed: false,
    source: "Redis's documentation of SET and \"Distributed locks with Redis\"; redis-py, Spring and many others",
    holders: Some(1),
    reentrant: false,
    expires: true,
    renews: true,
    shared: false,
    fenced: false,
    native: false,
};

/// Facts about [`Token`] with release by `DEL` without a check.
pub static UNCHECKED: Facts = Facts {
    name: "set-nx-px-del",
    summary: "SET NX PX; DEL to give back, whoever's it is",
    guarantees: &["one holder at a time, as long as nobody holds it for longer than its lease"],
    failures: &[
        "a holder that was slower than its lease deletes somebody else's lock",
        "a fail-over to a replica, or a restart that loses the last writes, loses the lock",
        "who waits polls, in no order",
    ],
    flawed: true,
    source: "tutorials that stop at SET NX PX",
    renews: false,
    ..COMPARED
};

/// Facts about [`Token`] with release by `GET` and then `DEL`.
pub static RACING: Facts = Facts {
    name: "set-nx-px-get-del",
    summary: "SET NX PX; GET, and DEL if it is one's own, as two commands",
    guarantees: &["one holder at a time, as long as nobody holds it for longer than its lease"],
    failures: &[
        "a lease that ends between GET and DEL: the DEL frees somebody else's lock",
        "a fail-over to a replica, or a restart that loses the last writes, loses the lock",
        "who waits polls, in no order",
    ],
    flawed: true,
    source: "tutorials that check the owner without a script",
    renews: false,
    ..COMPARED
};

/// Deletes a key if it has this value.
pub(crate) static RELEASE: LazyLock<Script> = LazyLock::new(|| {
    Script::new("if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0").idempotent()
});
/// Sets a new time-out on a key if it has this value.
pub(crate) static RENEW: LazyLock<Script> = LazyLock::new(|| {
    Script::new("if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0")
        .idempotent()
});

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

    /// Releases the lock by `GET`, and `DEL` if it is its own. Flawed: see [`RACING`].
    pub fn racing() -> Token {
        Token { release: Release::GetDel }
    }
}

/// `SET … NX PX` on a server. If its reply is lost, the key shows whether it was carried out.
pub(crate) async fn take<W: World>(world: &W, server: usize, request: &Request) -> Result<bool> {
    let set = Command::new("SET").arg(&request.name).arg(&request.owner).arg("NX").arg("PX").arg(request.lease_ms());
    match ask::<bool>(world, server, set).await {
        Err(error) if error.maybe_applied() => {
            let found = ask::<Option<Vec<u8>>>(world, server, Command::new("GET").arg(&request.name).idempotent()).await;
            match found {
                Ok(found) => Ok(found.as_ref() == Some(&request.owner)),
                Err(_) => Err(error),
            }
        }
        outcome => outcome,
    }
}

/// Deletes the key on a server if it still has the owner's token. Returns whether it had.
pub(crate) async fn give_back<W: World>(world: &W, server: usize, name: &[u8], owner: &[u8]) -> Result<bool> {
    run(world, server, &RELEASE, &[name], |call| call.arg(owner)).await
}

/// Restarts the lease on a server if the key still has the owner's token. Returns whether it had.
pub(crate) async fn renew<W: World>(world: &W, server: usize, grant: &Grant) -> Result<bool> {
    run(world, server, &RENEW, &[&grant.name], |call| call.arg(&grant.owner).arg(lease_ms(grant.lease))).await
}

impl<W: World> Attempt<W> for Token {
    async fn attempt(&self, world: &W, request: &Request) -> Result<Option<Grant>> {
        let asked = world.elapsed();
        Ok(take(world, 0, request).await?.then(|| Grant::new(request, asked)))
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
        polled(self, world, request)
    }

    fn release<'a>(&'a self, world: &'a W, grant: &'a Grant) -> BoxFuture<'a, Result<Given>> {
        Box::pin(async move {
            let back = match self.release {
                Release::Script => give_back(world, 0, &grant.name, &grant.owner).await?,
                Release::Del => return delete(world, grant).await,
                Release::GetDel => {
                    let found: Option<Vec<u8>> = ask(world, 0, Command::new("GET").arg(&grant.name)).await?;
                    if found.as_ref() == Some(&grant.owner) {
                        return delete(world, grant).await;
                    }
                    false
                }
            };
            Ok(Given::checked(back))
        })
    }

    fn renew<'a>(&'a self, world: &'a W, grant: &'a mut Grant) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move {
            if self.release != Release::Script {
                return Ok(false);
            }
            let asked = world.elapsed();
            let renewed = renew(world, 0, grant).await?;
            Ok(grant.renewed(asked, renewed))
        })
    }
}
