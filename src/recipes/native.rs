//! 20: the native locks of this crate's server.

use std::time::Duration;

use crate::client::{Command, EARLY_ENDS_MAX, Error, Result};
use crate::recipes::algorithm::{Algorithm, BoxFuture, Grant, ReleaseOutcome, Request, lease_ms, valid_until};
use crate::recipes::call::{call, call_together};
use crate::recipes::facts::{Facts, OWNER_CHECKED, PAUSED_HOLDER_FENCED, SHORTER_LEASE};
use crate::recipes::world::World;

/// Facts about [`Native`].
pub static FACTS: Facts = Facts {
    number: 20,
    name: "native",
    summary: "LOCK.ACQUIRE, LOCK.RENEW and LOCK.RELEASE: the server queues waiters, grants the lock and issues fencing tokens",
    guarantees: &[
        "the server grants the lock to one exclusive holder or to any number of shared holders at a time, as long as it keeps its data",
        "first come, first served: the server grants a released lock to the next waiter in the same step, and wakes only that one",
        "each grant has a larger fencing token than all before: a store that checks tokens refuses writes of a holder that paused",
        OWNER_CHECKED,
        "the server refuses a wait that would close a cycle",
        "a request whose reply was lost can be sent again: it is not carried out twice (REQUEST), and a late copy of a release ends no later grant (TOKEN)",
    ],
    failures: &[
        SHORTER_LEASE,
        PAUSED_HOLDER_FENCED,
        "a server that loses its data forgets the holders; tokens keep growing as long as the server's wall clock does",
    ],
    source: "this crate's server; fencing as in Chubby's sequencers",
    reentrant: true,
    renews: true,
    shared: true,
    fenced: true,
    native: true,
    ..Facts::MUTEX
};

/// 20: `LOCK.ACQUIRE key owner lease REQUEST id [SHARED] [WAIT ms]`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> portcullis::client::Result<()> {
/// # let server = portcullis::TestServer::start();
/// # let world = portcullis::recipes::Live::new([portcullis::client::Client::connect(&server.url()).await?]);
/// use portcullis::recipes::{Lock, Native, guard};
///
/// let door = Lock::new(&world, Native, "door");
/// let first = door.acquire().await?.token().expect("native locks are fenced");
/// let second = door.acquire().await?.token().expect("native locks are fenced");
/// // The holder asks this before each write to the ledger.
/// assert!(guard(&world, 0, b"ledger", second).await?);
/// assert!(!guard(&world, 0, b"ledger", first).await?, "another holder has had the lock since");
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Native;

/// What ends a grant besides its lease and its release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tie {
    Nothing,
    /// The end of the connection that acquired it.
    Connection,
    /// The end of a named session, which outlives its connection by a grace.
    Named,
}

/// Facts about [`SESSION`].
pub static SESSION_FACTS: Facts = Facts {
    name: "native+session",
    summary: "LOCK.ACQUIRE … SESSION: a native lock that also ends when its connection is seen to end",
    session: true,
    ..FACTS
};

/// Facts about [`NAMED_SESSION`].
pub static NAMED_FACTS: Facts = Facts {
    name: "native+named-session",
    summary: "LOCK.SESSION id GRACE ms, then LOCK.ACQUIRE … SESSION: a native lock that ends some time after its connection is seen to end",
    ..SESSION_FACTS
};

/// As [`Native`], with `SESSION`: the grant also ends when the leader sees the end of its connection.
pub const SESSION: WithSession = WithSession { tie: Tie::Connection, facts: &SESSION_FACTS };

/// As [`SESSION`], with a named session for each owner. Its grace is a fifth of the lease.
pub const NAMED_SESSION: WithSession = WithSession { tie: Tie::Named, facts: &NAMED_FACTS };

/// A native lock whose grants end with sessions.
#[derive(Clone, Copy, Debug)]
pub struct WithSession {
    tie: Tie,
    facts: &'static Facts,
}

/// Part of the lease for which a named session outlives its connection: 1 / this.
const GRACES_IN_LEASE: u32 = 5;

impl<W: World> Algorithm<W> for Native {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn acquire<'a>(&'a self, world: &'a W, request: &'a Request) -> BoxFuture<'a, Result<Option<Grant>>> {
        acquire(world, request, Tie::Nothing)
    }

    fn release<'a>(&'a self, world: &'a W, grant: &'a Grant) -> BoxFuture<'a, Result<ReleaseOutcome>> {
        release(world, grant)
    }

    fn renew<'a>(&'a self, world: &'a W, grant: &'a mut Grant) -> BoxFuture<'a, Result<bool>> {
        Box::pin(renew(world, grant))
    }
}

impl<W: World> Algorithm<W> for WithSession {
    fn facts(&self) -> &'static Facts {
        self.facts
    }

    fn acquire<'a>(&'a self, world: &'a W, request: &'a Request) -> BoxFuture<'a, Result<Option<Grant>>> {
        acquire(world, request, self.tie)
    }

    fn release<'a>(&'a self, world: &'a W, grant: &'a Grant) -> BoxFuture<'a, Result<ReleaseOutcome>> {
        release(world, grant)
    }

    /// Takes a named session over, in case its connection has ended, and renews the lease.
    fn renew<'a>(&'a self, world: &'a W, grant: &'a mut Grant) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move {
            if self.tie == Tie::Named {
                world.call(0, name_session(&grant.owner, grant.lease)).await?;
            }
            renew(world, grant).await
        })
    }
}

fn acquire<'a, W: World>(world: &'a W, request: &'a Request, tie: Tie) -> BoxFuture<'a, Result<Option<Grant>>> {
    Box::pin(async move {
        let end = world.elapsed().checked_add(request.wait);
        let mut early_ends = 0;
        let mut request_id = unique_id(world);
        loop {
            let asked = world.elapsed();
            let left = end.map(|end| end.saturating_sub(asked));
            let wait_is_over = left.is_some_and(|left| left.is_zero());
            let is_early = || left.is_none_or(|left| world.elapsed() - asked < left - left / 8);
            let command = acquire_command(request, &request_id, left, tie);
            let asked_for = match tie {
                Tie::Named => call_together(world, 0, name_session(&request.owner, request.lease), command).await,
                Tie::Nothing | Tie::Connection => call::<Option<u64>>(world, 0, command).await,
            };
            let token = match asked_for {
                Ok(Some(token)) => token,
                // A late copy of the request, on a connection that was given up, has taken this one's place in the queue:
                // sending it again takes the place back.
                Ok(None) if early_ends < EARLY_ENDS_MAX && is_early() => {
                    early_ends += 1;
                    continue;
                }
                Ok(None) => return Ok(None),
                // The lock was granted, and the grant ended before this process received the reply.
                Err(Error::NotHeld(_)) if !wait_is_over => {
                    request_id = unique_id(world);
                    continue;
                }
                Err(Error::NotHeld(_)) => return Ok(None),
                Err(error) => return Err(error),
            };
            let mut grant = Grant { token: Some(token), shared: request.shared, ..Grant::new(request, asked) };
            // The lease began some time after the request. After a long wait, counting from the request would waste much of
            // the lease, so a renewal asks the server for the remaining time.
            if world.elapsed() - asked < request.lease / 4 {
                return Ok(Some(grant));
            }
            match renew(world, &mut grant).await {
                Ok(false) => request_id = unique_id(world),
                // After an error, too, the lock is held, and the caller has to release it. The grant is then valid as counted
                // from the request.
                Ok(true) | Err(_) => return Ok(Some(grant)),
            }
        }
    })
}

fn release<'a, W: World>(world: &'a W, grant: &'a Grant) -> BoxFuture<'a, Result<ReleaseOutcome>> {
    Box::pin(async move {
        let command = Command::new("LOCK.RELEASE").arg(&grant.name).arg(&grant.owner);
        let command = with_token(command, grant).arg("REQUEST").arg(unique_id(world));
        match call::<i64>(world, 0, command).await {
            Ok(_) => Ok(ReleaseOutcome::Released),
            Err(Error::NotHeld(_)) => Ok(ReleaseOutcome::NotHeld),
            Err(error) => Err(error),
        }
    })
}

async fn renew<W: World>(world: &W, grant: &mut Grant) -> Result<bool> {
    let asked = world.elapsed();
    let command = Command::new("LOCK.RENEW").arg(&grant.name).arg(&grant.owner).arg(lease_ms(grant.lease));
    let command = with_token(command, grant).idempotent();
    match call::<u64>(world, 0, command).await {
        Ok(left_ms) => {
            grant.valid_until = valid_until(asked, Duration::from_millis(left_ms));
            Ok(true)
        }
        Err(Error::NotHeld(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The command that names the session of an owner, or takes it over.
fn name_session(owner: &[u8], lease: Duration) -> Command {
    let grace_ms = lease_ms(lease / GRACES_IN_LEASE);
    Command::new("LOCK.SESSION").arg(owner).arg("GRACE").arg(grace_ms).idempotent()
}

/// The command that acquires the lock. `left` is the rest of the wait; `None` if the wait has no end.
fn acquire_command(request: &Request, request_id: &str, left: Option<Duration>, tie: Tie) -> Command {
    let command = Command::new("LOCK.ACQUIRE").arg(&request.name).arg(&request.owner).arg(request.lease_ms());
    let mut command = command.arg("REQUEST").arg(request_id);
    if request.shared {
        command = command.arg("SHARED");
    }
    if tie != Tie::Nothing {
        command = command.arg("SESSION");
    }
    match left {
        // 0 means without limit.
        None => command.arg("WAIT").arg(0),
        Some(Duration::ZERO) => command,
        Some(left) => command.arg("WAIT").arg(lease_ms(left)),
    }
}

/// A unique id for a request that must not run twice.
fn unique_id(world: &impl World) -> String {
    format!("{:016x}", world.random())
}

/// Restricts a command to this grant, so that it does not affect a later grant of the same owner.
fn with_token(command: Command, grant: &Grant) -> Command {
    if let Some(token) = grant.token { command.arg("TOKEN").arg(token) } else { command }
}

/// Checks whether a holder with this token may write to a resource, and records the token (`LOCK.GUARD`). Returns false if the
/// server has seen a larger token for the resource, because another holder has had the lock since. Call this right before each
/// write to a store that does not check tokens itself.
///
/// # Errors
/// If the server fails the command.
pub async fn guard<W: World>(world: &W, server: usize, resource: &[u8], token: u64) -> Result<bool> {
    match call::<()>(world, server, Command::new("LOCK.GUARD").arg(resource).arg(token)).await {
        Ok(()) => Ok(true),
        Err(Error::Stale { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}
