//! 19: a token in a list, like a message in a queue. The client that pops the token has the lock.

use std::sync::LazyLock;
use std::time::Duration;

use crate::client::{Command, Result, Script};
use crate::recipes::algorithm::{Algorithm, BoxFuture, Grant, LONGEST, ReleaseOutcome, Request};
use crate::recipes::call::{call, derived_key, run_script, script};
use crate::recipes::facts::Facts;
use crate::recipes::world::World;

/// Facts about [`ListToken`].
pub static FACTS: Facts = Facts {
    number: 19,
    name: "blpop",
    summary: "one token in a list: BLPOP to acquire, RPUSH to release",
    guarantees: &[
        "at most one holder at a time, as long as only holders release and the server keeps its data",
        "first come, first served: waiters wait on the server, and a release wakes one of them",
    ],
    failures: &[
        "a holder that crashes takes the token with it, and the lock stays held forever",
        "a lost reply loses the token, too",
        "no owner check: releasing twice makes a second token",
        "a server that loses its data makes a second token while the first one is out",
    ],
    flawed: true,
    source: "message queues with a single message; BLPOP as a semaphore in Redis's documentation of lists",
    expires: false,
    ..Facts::MUTEX
};

/// Takes the token if it is in the list, or creates it if no client has created it before. KEYS: list, mark of the creation.
static TAKE: LazyLock<Script> = script!(
    "if redis.call('SETNX', KEYS[2], 1) == 1 then return 'token' end
        return redis.call('LPOP', KEYS[1])"
);

/// 19: `BLPOP key wait` acquires the lock, `RPUSH key token` releases it. The first client creates the token, and records that in
/// `{key}:made`. Flawed: see [`FACTS`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> portcullis::client::Result<()> {
/// # let server = portcullis::TestServer::start();
/// # let world = portcullis::recipes::Live::new([portcullis::client::Client::connect(&server.url()).await?]);
/// use std::time::Duration;
/// use portcullis::recipes::{Lock, ListToken};
///
/// let door = Lock::new(&world, ListToken, "door").lease(Duration::from_secs(10));
/// let guard = door.acquire().await?;
/// assert!(door.try_acquire().await?.is_none());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct ListToken;

impl<W: World> Algorithm<W> for ListToken {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn acquire<'a>(&'a self, world: &'a W, request: &'a Request) -> BoxFuture<'a, Result<Option<Grant>>> {
        Box::pin(async move {
            let grant = || Grant { valid_until: None, ..Grant::new(request, world.elapsed()) };
            let end = world.elapsed().checked_add(request.wait);
            let made = derived_key(&request.name, "made");
            let taken: Option<Vec<u8>> = run_script(world, 0, &TAKE, &[&request.name, &made], |call| call).await?;
            if taken.is_some() {
                return Ok(Some(grant()));
            }
            // For BLPOP, 0 means without limit. A rest of less than a millisecond counts as no wait.
            let seconds = match end {
                None => 0.0,
                Some(end) => match end.saturating_sub(world.elapsed()) {
                    left if left < Duration::from_millis(1) => return Ok(None),
                    left => left.min(LONGEST).as_millis() as f64 / 1000.0,
                },
            };
            let popped: Option<(Vec<u8>, Vec<u8>)> =
                call(world, 0, Command::new("BLPOP").arg(&request.name).arg(seconds)).await?;
            Ok(popped.map(|_| grant()))
        })
    }

    fn release<'a>(&'a self, world: &'a W, grant: &'a Grant) -> BoxFuture<'a, Result<ReleaseOutcome>> {
        Box::pin(async move {
            let _: i64 = call(world, 0, Command::new("RPUSH").arg(&grant.name).arg("token")).await?;
            Ok(ReleaseOutcome::Unchecked)
        })
    }
}
