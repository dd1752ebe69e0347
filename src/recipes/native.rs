//! 20: the native locks of this crate's server.

use std::time::Duration;

use crate::client::{Command, EARLY_ENDS_MAX, Error, Result};
use crate::recipes::algorithm::{Algorithm, BoxFuture, Facts, Given, Grant, Request, counted_on, lease_ms};
use crate::recipes::call::ask;
use crate::recipes::world::World;

/// Facts about [`Native`].
pub static FACTS: Facts = Facts {
    number: 20,
    name: "native",
    summary: "LOCK.ACQUIRE, LOCK.RENEW and LOCK.RELEASE: the server queues, grants and fences",
    guarantees: &[
        "one exclusive holder at a time or any number of shared ones, as long as the server keeps its data",
        "first come, first served: a freed lock is handed to the next in the same step, and only that one is woken",
        "a fencing token, larger than all before, with each grant: whatever checks it refuses the writes of a holder that paused",
        "nobody releases or renews what is not his",
        "waits that would close a cycle are refused",
        "a request whose reply was lost may be sent again: it is not carried out twice (REQUEST), and a late copy of a release ends no later grant (TOKEN)",
    ],
    failures: &[
        "taken again for a shorter lease, it ends with that, whatever the first was told",
        "a holder that pauses for longer than its lease goes on beside the next one, and does harm where tokens are not checked",
        "a server that loses its data forgets who holds it; tokens go on growing as long as its wall clock does",
    ],
    flawed: false,
    source: "this crate's server; fencing as in Chubby's sequencers",
    holders: Some(1),
    reentrant: true,
    expires: true,
    renews: true,
    shared: true,
    fenced: true,
    native: true,
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
/// // Each write to the ledger is preceded by this question.
/// assert!(guard(&world, 0, b"ledger", second).await?);
/// assert!(!guard(&world, 0, b"ledger", first).await?, "somebody else has had the lock since");
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Native;

impl<W: World> Algorithm<W> for Native {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn acquire<'a>(&'a self, world: &'a W, request: &'a Request) -> BoxFuture<'a, Result<Option<Grant>>> {
        Box::pin(async move {
            let end = world.elapsed().checked_add(request.wait);
            let (mut again, mut early_ends) = (None, 0);
            loop {
                let asked = world.elapsed();
                // A retry after a lost reply sends the same id, and is not granted twice.
                let id = again.take().unwrap_or_else(|| unique(world));
                let mut command = Command::new("LOCK.ACQUIRE").arg(&request.name).arg(&request.owner).arg(request.lease_ms());
                command = command.arg("REQUEST").arg(&id);
                if request.shared {
                    command = command.arg("SHARED");
                }
                let left = end.map(|end| end.saturating_sub(asked));
                if left.is_none_or(|left| !left.is_zero()) {
                    // 0 means for ever.
                    command = command.arg("WAIT").arg(left.map_or(0, lease_ms));
                }
                let token = match ask::<Option<u64>>(world, 0, command).await {
                    Ok(Some(token)) => token,
                    // A late copy, on a connection that was given up, has taken this request's place in the queue: asking again
                    // takes the place back. The wait is far from over, on any clock.
                    Ok(None)
                        if early_ends < EARLY_ENDS_MAX && left.is_none_or(|left| world.elapsed() - asked < left - left / 8) =>
                    {
                        early_ends += 1;
                        again = Some(id);
                        continue;
                    }
                    Ok(None) => return Ok(None),
                    // It was granted, and ended before this process received the reply.
                    Err(Error::NotHeld(_)) if left.is_none_or(|left| !left.is_zero()) => continue,
                    Err(Error::NotHeld(_)) => return Ok(None),
                    Err(error) => return Err(error),
                };
                let mut grant = Grant { token: Some(token), shared: request.shared, ..Grant::new(request, asked) };
                // The lease began some time after the request. After a long wait, counting from the request would waste much of
                // the lease, so a renewal asks the server for the remaining time.
                if world.elapsed() - asked < request.lease / 4 {
                    return Ok(Some(grant));
                }
                match self.renew(world, &mut grant).await {
                    Ok(false) => {}
                    // The lock is held all the same, and the caller has to release it: valid for the time known before.
                    Ok(true) | Err(_) => return Ok(Some(grant)),
                }
            }
        })
    }

    fn release<'a>(&'a self, world: &'a W, grant: &'a Grant) -> BoxFuture<'a, Result<Given>> {
        Box::pin(async move {
            let command = Command::new("LOCK.RELEASE").arg(&grant.name).arg(&grant.owner);
            let command = of_grant(command, grant).arg("REQUEST").arg(unique(world));
            match ask::<i64>(world, 0, command).await {
                Ok(_) => Ok(Given::Back),
                Err(Error::NotHeld(_)) => Ok(Given::NotHeld),
                Err(error) => Err(error),
            }
        })
    }

    fn renew<'a>(&'a self, world: &'a W, grant: &'a mut Grant) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move {
            let asked = world.elapsed();
            let command = Command::new("LOCK.RENEW").arg(&grant.name).arg(&grant.owner).arg(lease_ms(grant.lease));
            let command = of_grant(command, grant).idempotent();
            match ask::<u64>(world, 0, command).await {
                Ok(left_ms) => {
                    grant.valid_until = counted_on(asked, Duration::from_millis(left_ms));
                    Ok(true)
                }
                Err(Error::NotHeld(_)) => Ok(false),
                Err(error) => Err(error),
            }
        })
    }
}

/// A unique id for a request that must not run twice.
fn unique(world: &impl World) -> String {
    format!("{:016x}", world.random())
}

/// Restricts a command to this grant, so that it does not affect later ones of the same owner.
fn of_grant(command: Command, grant: &Grant) -> Command {
    match grant.token {
        Some(token) => command.arg("TOKEN").arg(token),
        None => command,
    }
}

/// Checks whether a holder with this token may write to a resource, and records the token (`LOCK.GUARD`). Returns false if a
/// larger token has been seen, because another holder has had the lock since. Call it right before each write to a store that
/// does not compare tokens itself.
///
/// # Errors
/// If the server cannot be asked.
pub async fn guard<W: World>(world: &W, server: usize, resource: &[u8], token: u64) -> Result<bool> {
    match ask::<()>(world, server, Command::new("LOCK.GUARD").arg(resource).arg(token)).await {
        Ok(()) => Ok(true),
        Err(Error::Stale { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}
