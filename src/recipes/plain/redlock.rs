//! 11: RedLock, a lock on a majority of independent servers.

use std::time::Duration;

use crate::client::{Error, Result};
use crate::recipes::algorithm::{Algorithm, BoxFuture, Grant, LONGEST, ReleaseOutcome, Request};
use crate::recipes::facts::{Facts, OWNER_CHECKED, PAUSED_HOLDER};
use crate::recipes::plain::token;
use crate::recipes::waiting::poll::DEFAULT_PAUSE;
use crate::recipes::waiting::race::{join_all, timeout};
use crate::recipes::waiting::retry::Retries;
use crate::recipes::world::World;

/// Facts about [`RedLock`].
pub static FACTS: Facts = Facts {
    number: 11,
    name: "redlock",
    summary: "SET NX PX on several independent servers; held if a majority granted it and part of the lease is left",
    guarantees: &[
        "at most one holder at a time, while clocks run at about the same speed and a restarted server stays away for one lease",
        "works while a minority of the servers is down",
        OWNER_CHECKED,
    ],
    failures: &[
        PAUSED_HOLDER,
        "a server that restarts without its data and takes part at once makes a second majority possible",
        "a server whose clock jumps ends leases early",
        "many clients at once may each get less than a majority, and all have to try again",
    ],
    source: "Redis's documentation, \"Distributed locks with Redis\"; the analysis by Kleppmann (2016), and antirez's reply to it",
    renews: true,
    ..Facts::MUTEX
};

/// 11: the lock of 4 on each server of the world. See [`FACTS`].
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
    /// Time-out of one server, so that an unreachable one does not use up the lease. Unless given, a twentieth of the lease, but
    /// at least 10 ms and at most 50 ms.
    pub fn server_timeout(mut self, timeout: Duration) -> RedLock {
        self.server_timeout = Some(timeout);
        self
    }

    /// Maximum relative difference in the speed of clocks. A grant is valid for its lease minus this fraction of the lease and
    /// minus 2 ms. 0.01 unless given.
    pub fn drift(mut self, part: f64) -> RedLock {
        self.drift = if part.is_nan() { 1.0 } else { part.clamp(0.0, 1.0) };
        self
    }

    fn timeout_of_server(&self, lease: Duration) -> Duration {
        self.server_timeout.unwrap_or_else(|| (lease / 20).clamp(Duration::from_millis(10), Duration::from_millis(50)))
    }

    /// The moment until which a majority's grant is valid: the lease minus the drift, counted from the request. `None` if that
    /// moment has passed.
    fn valid_until(&self, world: &impl World, asked: Duration, lease: Duration) -> Option<Duration> {
        let lease = lease.min(LONGEST);
        let drift = lease.mul_f64(self.drift) + Duration::from_millis(2);
        let until = asked.checked_add(lease.checked_sub(drift)?)?;
        (until > world.elapsed()).then_some(until)
    }

    /// Sends a command to all servers at once, each within the time-out of a server. `each` makes the future for one server.
    async fn on_all<W: World, F>(&self, world: &W, lease: Duration, each: impl Fn(usize) -> F) -> Votes
    where
        F: Future<Output = Result<bool>> + Send,
    {
        let after = self.timeout_of_server(lease);
        let one = |server| {
            let answer = timeout(world, after, each(server));
            async move { answer.await.unwrap_or(Err(Error::Timeout { maybe_applied: true, after })) }
        };
        let mut votes = Votes { servers: world.servers(), granted: 0, failures: 0, error: None };
        for answer in join_all((0..world.servers()).map(one)).await {
            match answer {
                Ok(true) => votes.granted += 1,
                Ok(false) => {}
                Err(error) => {
                    votes.failures += 1;
                    votes.error.get_or_insert(error);
                }
            }
        }
        votes
    }

    async fn attempt<W: World>(&self, world: &W, request: &Request) -> Result<Option<Grant>> {
        let asked = world.elapsed();
        let votes = self.on_all(world, request.lease, |server| token::set_on(world, server, request)).await;
        if votes.is_majority()
            && let Some(until) = self.valid_until(world, asked, request.lease)
        {
            return Ok(Some(Grant { valid_until: Some(until), ..Grant::new(request, asked) }));
        }
        // The release goes to all servers, because a server whose reply was lost may have granted the lock.
        self.release_on_all(world, &Grant::new(request, asked)).await;
        match votes.error {
            Some(error) if votes.failures > votes.servers / 2 => Err(error),
            _ => Ok(None),
        }
    }

    async fn release_on_all<W: World>(&self, world: &W, grant: &Grant) -> Votes {
        self.on_all(world, grant.lease, |server| token::delete_on(world, server, grant)).await
    }
}

/// The servers' replies.
struct Votes {
    /// Number of servers.
    servers: usize,
    /// Number of servers that replied yes.
    granted: usize,
    /// Number of servers that did not reply, or with an error.
    failures: usize,
    /// The first error.
    error: Option<Error>,
}

impl Votes {
    fn is_majority(&self) -> bool {
        self.granted > self.servers / 2
    }

    /// Whether it would be a majority if all servers that failed had replied yes.
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
            let mut retries = Retries::new(world, request);
            loop {
                if let Some(grant) = self.attempt(world, request).await? {
                    return Ok(Some(grant));
                }
                if !retries.pause_with_jitter(world, DEFAULT_PAUSE).await {
                    return Ok(None);
                }
            }
        })
    }

    fn release<'a>(&'a self, world: &'a W, grant: &'a Grant) -> BoxFuture<'a, Result<ReleaseOutcome>> {
        Box::pin(async move {
            let votes = self.release_on_all(world, grant).await;
            match votes {
                votes if votes.is_majority() => Ok(ReleaseOutcome::Released),
                votes if !votes.may_be_majority() => Ok(ReleaseOutcome::NotHeld),
                Votes { error: Some(error), .. } => Err(error),
                _ => Ok(ReleaseOutcome::NotHeld),
            }
        })
    }

    fn renew<'a>(&'a self, world: &'a W, grant: &'a mut Grant) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move {
            let asked = world.elapsed();
            let votes = self.on_all(world, grant.lease, |server| token::renew_on(world, server, grant)).await;
            match self.valid_until(world, asked, grant.lease) {
                Some(until) if votes.is_majority() => {
                    grant.valid_until = Some(until);
                    Ok(true)
                }
                _ if !votes.may_be_majority() => Ok(false),
                _ => votes.error.map_or(Ok(false), Err),
            }
        })
    }
}
