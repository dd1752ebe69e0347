//! 11: RedLock, a lock on a majority of independent servers.

use std::time::Duration;

use crate::client::{Error, Result};
use crate::recipes::algorithm::{Algorithm, BoxFuture, Facts, Given, Grant, LONGEST, Request};
use crate::recipes::call::USUAL_PAUSE;
use crate::recipes::race::{together, within};
use crate::recipes::retry::{Pace, fraction};
use crate::recipes::token;
use crate::recipes::world::World;

/// Facts about [`RedLock`].
pub static FACTS: Facts = Facts {
    number: 11,
    name: "redlock",
    summary: "SET NX PX on all of several independent servers; held where a majority granted it with time left",
    guarantees: &[
        "one holder at a time, as long as clocks run at about the same speed and no server that restarts takes part again before a lease has passed",
        "goes on while a minority of the servers is away",
        "nobody releases or renews what is not his",
    ],
    failures: &[
        "a holder that pauses for longer than its lease goes on beside the next one; there is no fencing token",
        "a server that restarts without its data, and at once, lets a second majority come about",
        "a server whose clock jumps ends leases early",
        "many at once may each get less than a majority, and all have to wait",
    ],
    flawed: false,
    source: "Redis's documentation, \"Distributed locks with Redis\"; the analysis is Kleppmann's, 2016, and the reply antirez's",
    holders: Some(1),
    reentrant: false,
    expires: true,
    renews: true,
    shared: false,
    fenced: false,
    native: false,
};

/// 11: the lock of 4 on each server of the world; see [`FACTS`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> portcullis::client::Result<()> {
/// # let servers: [_; 3] = std::array::from_fn(|_| portcullis::TestServer::start());
/// # let urls: Vec<String> = servers.iter().map(|server| server.url()).collect();
/// use portcullis::client::Client;
/// use portcullis::recipes::{Live, Lock, RedLock, Retry};
///
/// let mut clients = Vec::new();
/// for url in &urls {
///     clients.push(Client::connect(url).await?);
/// }
/// let world = Live::new(clients);
/// let door = Lock::new(&world, RedLock::default(), "door").retry(Retry::BACK_OFF);
/// let guard = door.acquire().await?;
/// println!("held for another {:?}", guard.remaining());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RedLock {
    server_timeout: Option<Duration>,
    drift: f64,
}

impl Default for RedLock {
    fn default() -> Self {
        RedLock { server_timeout: None, drift: 0.01 }
    }
}

impl RedLock {
    /// Time-out of one server, so that an unreachable one does not use up the lease. Unless given, a twentieth of the lease,
    /// within 10 to 50 ms.
    pub fn server_timeout(mut self, timeout: Duration) -> RedLock {
        self.server_timeout = Some(timeout);
        self
    }

    /// Maximum relative difference in the speed of clocks: this fraction of the lease, and 2 ms, are subtracted from the
    /// validity. 0.01 unless given.
    pub fn drift(mut self, part: f64) -> RedLock {
        self.drift = if part.is_nan() { 1.0 } else { part.clamp(0.0, 1.0) };
        self
    }

    fn timeout(&self, lease: Duration) -> Duration {
        let short = || (lease / 20).clamp(Duration::from_millis(10), Duration::from_millis(50));
        self.server_timeout.unwrap_or_else(short)
    }

    /// The end of the validity of a majority's grant, if there is time left: lease − drift after the request.
    fn valid_until(&self, world: &impl World, asked: Duration, lease: Duration) -> Option<Duration> {
        let lease = lease.min(LONGEST);
        let drift = lease.mul_f64(self.drift) + Duration::from_millis(2);
        let until = asked.checked_add(lease.checked_sub(drift)?)?;
        (until > world.elapsed()).then_some(until)
    }

    /// Asks all servers at once, each within its time-out.
    async fn of_all<W: World, F>(&self, world: &W, lease: Duration, each: impl Fn(usize) -> F) -> Votes
    where
        F: Future<Output = Result<bool>> + Send,
    {
        let timeout = self.timeout(lease);
        let one = |server| {
            let answer = within(world, timeout, each(server));
            async move { answer.await.unwrap_or(Err(Error::Timeout { maybe_applied: true, after: timeout })) }
        };
        let mut votes = Votes { servers: world.servers(), granted: 0, failed: None, failures: 0 };
        for answer in together((0..world.servers()).map(one)).await {
            match answer {
                Ok(true) => votes.granted += 1,
                Ok(false) => {}
                Err(error) => {
                    votes.failures += 1;
                    votes.failed.get_or_insert(error);
                }
            }
        }
        votes
    }

    async fn attempt<W: World>(&self, world: &W, request: &Request) -> Result<Option<Grant>> {
        let asked = world.elapsed();
        let votes = self.of_all(world, request.lease, |server| token::take(world, server, request)).await;
        if votes.is_majority()
            && let Some(until) = self.valid_until(world, asked, request.lease)
        {
            return Ok(Some(Grant { valid_until: Some(until), ..Grant::new(request, asked) }));
        }
        // On all servers, because a server whose answer was lost may have granted it.
        self.give_back(world, &request.name, &request.owner, request.lease).await;
        match votes.failed {
            Some(error) if votes.failures > votes.servers / 2 => Err(error),
            _ => Ok(None),
        }
    }

    async fn give_back<W: World>(&self, world: &W, name: &[u8], owner: &[u8], lease: Duration) -> Votes {
        self.of_all(world, lease, |server| token::give_back(world, server, name, owner)).await
    }
}

/// The servers' answers.
struct Votes {
    servers: usize,
    granted: usize,
    failures: usize,
    failed: Option<Error>,
}

impl Votes {
    fn is_majority(&self) -> bool {
        self.granted > self.servers / 2
    }

    /// Whether the servers that did not answer could make it a majority.
    fn may_be_majority(&self) -> bool {
        self.granted + self.failures > self.servers / 2
    }
}

impl<W: World> Algorithm<W> for RedLock {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn acquire<'a>(&'a self, world: &'a W, request: &'a Request) -> BoxFuture<'a, Result<Option<Grant>>> {
        Box::pin(async move {
            let mut pace = Pace::new(world, request);
            loop {
                if let Some(grant) = self.attempt(world, request).await? {
                    return Ok(Some(grant));
                }
                // Half of the pause is random, so that clients that prevented each other's majority do not collide again.
                let Some(pause) = pace.next(world, USUAL_PAUSE) else { return Ok(None) };
                world.sleep(pause.mul_f64(0.5 + 0.5 * fraction(world.random()))).await;
            }
        })
    }

    fn release<'a>(&'a self, world: &'a W, grant: &'a Grant) -> BoxFuture<'a, Result<Given>> {
        Box::pin(async move {
            let votes = self.give_back(world, &grant.name, &grant.owner, grant.lease).await;
            match votes {
                votes if votes.is_majority() => Ok(Given::Back),
                votes if !votes.may_be_majority() => Ok(Given::NotHeld),
                Votes { failed: Some(error), .. } => Err(error),
                _ => Ok(Given::NotHeld),
            }
        })
    }

    fn renew<'a>(&'a self, world: &'a W, grant: &'a mut Grant) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move {
            let asked = world.elapsed();
            let votes = self.of_all(world, grant.lease, |server| token::renew(world, server, grant)).await;
            match self.valid_until(world, asked, grant.lease) {
                Some(until) if votes.is_majority() => {
                    grant.valid_until = Some(until);
                    Ok(true)
                }
                _ => match votes.failed {
                    Some(error) if votes.granted + votes.failures > votes.servers / 2 => Err(error),
                    _ => Ok(false),
                },
            }
        })
    }
}
