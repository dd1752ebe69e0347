//! 19: a token in a list, like a message in a queue: the client that pops it has the lock.

use std::sync::LazyLock;
use std::time::Duration;

use crate::client::{Command, Result, Script};
use crate::recipes::algorithm::{Algorithm, BoxFuture, Facts, Given, Grant, LONGEST, Request};
use crate::recipes::call::{ask, beside, run};
use crate::recipes::world::World;

/// Facts about [`ListToken`].
pub static FACTS: Facts = Facts {
    number: 19,
    name: "blpop",
    summary: "one token in a list: BLPOP to take it, RPUSH to give it back",
    guarantees: &[
        "one holder at a time, as long as only holders release and the server keeps its data",
        "first come, first served: who waits, waits on the server, and one is woken at a time",
    ],
    failures: &[
        "a holder that crashes takes the token with it: locked for ever",
        "a reply that is lost loses the token, too",
        "no owner: whoever gives it back twice makes two of it",
        "a server that loses its data makes a second token while the first is out",
    ],
    flawed: true,
    source: "message queues with one message; BLPOP as a semaphore in Redis's documentation of lists",
    holders: Some(1),
    reentrant: false,
    expires: false,
    renews: false,
    shared: false,
    fenced: false,
    native: false,
};

/// Takes the token if it is there, and creates it if it was never created.
static TAKE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "if redis.call('SETNX', KEYS[2], 1) == 1 then return 'token' end
        return redis.call('LPOP', KEYS[1])",
    )
});

/// 19: `BLPOP key wait` takes it, `RPUSH key token` releases it. The first client creates the token; `{key}:made` records that.
/// Flawed: see [`FACTS`].
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
            let made = beside(&request.name, "made");
            let taken: Option<Vec<u8>> = run(world, 0, &TAKE, &[&request.name, &made], |call| call).await?;
            if taken.is_some() {
                return Ok(Some(grant()));
            }
            // 0 means for ever, and less than a millisecond means no wait.
            let seconds = match end {
                None => 0.0,
                Some(end) => match end.saturating_sub(world.elapsed()) {
                    left if left < Duration::from_millis(1) => return Ok(None),
                    left => left.min(LONGEST).as_millis() as f64 / 1000.0,
                },
            };
            let popped: Option<(Vec<u8>, Vec<u8>)> = ask(world, 0, Command::new("BLPOP").arg(&request.name).arg(seconds)).await?;
            Ok(popped.map(|_| grant()))
        })
    }

    fn release<'a>(&'a self, world: &'a W, grant: &'a Grant) -> BoxFuture<'a, Result<Given>> {
        Box::pin(async move {
            let _: i64 = ask(world, 0, Command::new("RPUSH").arg(&grant.name).arg("token")).await?;
            Ok(Given::Unchecked)
        })
    }
}
