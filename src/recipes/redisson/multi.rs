//! 10: several locks as one.

use std::sync::Arc;
use std::time::Duration;

use crate::client::Result;
use crate::recipes::algorithm::{Algorithm, BoxFuture, Grant, ReleaseOutcome, Request};
use crate::recipes::call::derived_key;
use crate::recipes::facts::Facts;
use crate::recipes::redisson::reentrant;
use crate::recipes::waiting::poll::DEFAULT_PAUSE;
use crate::recipes::waiting::retry::{Retries, fraction};
use crate::recipes::world::World;

// A guarantee and failures of both variants.
const AS_INNER: &str = "a holder of all parts has what the underlying algorithm guarantees for each part";
const NOT_ATOMIC: &str = "not atomic: for a moment it holds some parts, and keeps other clients out";
const FIRST_ENDS_FIRST: &str = "the leases begin one after the other, so the first one ends first";

/// Facts about [`Multi`] in one order.
pub static FACTS: Facts = Facts {
    number: 10,
    name: "multi",
    summary: "several locks, acquired one after the other in a fixed order; all are released if one is not granted",
    guarantees: &[
        AS_INNER,
        "a client that does not get all parts holds none, as soon as it has released those that it got",
        "no deadlock: all clients acquire the parts in the same order, and release them instead of waiting forever",
    ],
    failures: &[
        NOT_ATOMIC,
        FIRST_ENDS_FIRST,
        "a holder that crashes during the acquisition leaves its parts held until their leases end",
    ],
    source: "Redisson's RMultiLock",
    ..reentrant::FACTS
};

/// Facts about [`Multi`] in any order.
pub static UNORDERED: Facts = Facts {
    name: "multi-unordered",
    summary: "several locks, acquired one after the other in any order",
    guarantees: &[AS_INNER],
    failures: &[
        "two clients that begin at different ends block each other until one of them times out, and perhaps again after that",
        NOT_ATOMIC,
        FIRST_ENDS_FIRST,
    ],
    flawed: true,
    source: "Redisson's RMultiLock, if callers name the locks in different orders",
    ..FACTS
};

/// Number of parts of a lock that is requested by one name.
const PARTS: usize = 3;
/// Default wait for one part while others are held.
const PART_WAIT: Duration = Duration::from_millis(500);

/// 10: several locks of another algorithm, all or none. See [`FACTS`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> portcullis::client::Result<()> {
/// # let server = portcullis::TestServer::start();
/// # let world = portcullis::recipes::Live::new([portcullis::client::Client::connect(&server.url()).await?]);
/// use std::time::Duration;
/// use portcullis::recipes::{Algorithm, Multi, Reentrant, Request};
///
/// let transfer = Multi::new(Reentrant).of(["savings", "checking"]);
/// let grant = transfer.acquire(&world, &Request::new("transfer", "alice", Duration::from_secs(30))).await?.expect("both are free");
/// assert!(Reentrant.acquire(&world, &Request::new("savings", "bob", Duration::from_secs(30))).await?.is_none());
/// transfer.release(&world, &grant).await?;
/// # Ok(()) }
/// ```
pub struct Multi<W> {
    inner: Arc<dyn Algorithm<W>>,
    names: Vec<Vec<u8>>,
    ordered: bool,
    part_wait: Duration,
}

impl<W: World> Multi<W> {
    /// Several locks of this algorithm. Unless [`Multi::of`] names them, there are three, whose names derive from the requested
    /// name: `{name}:1` to `{name}:3`.
    pub fn new(inner: impl Algorithm<W>) -> Multi<W> {
        Multi { inner: Arc::new(inner), names: Vec::new(), ordered: true, part_wait: PART_WAIT }
    }

    /// The names of the locks. They replace the requested name.
    pub fn of<N: AsRef<[u8]>>(mut self, names: impl IntoIterator<Item = N>) -> Multi<W> {
        self.names = names.into_iter().map(|name| name.as_ref().to_vec()).collect();
        // The same order for all clients.
        self.names.sort_unstable();
        self.names.dedup();
        self
    }

    /// Acquires the locks in a random order each time. Flawed: see [`UNORDERED`].
    pub fn unordered(mut self) -> Multi<W> {
        self.ordered = false;
        self
    }

    /// How long to wait for each lock while others are held. After that, all are released and acquired again. Half a second
    /// unless given.
    pub fn part_wait(mut self, wait: Duration) -> Multi<W> {
        self.part_wait = wait;
        self
    }

    fn names(&self, name: &[u8]) -> Vec<Vec<u8>> {
        if self.names.is_empty() {
            (1..=PARTS).map(|part| derived_key(name, &part.to_string())).collect()
        } else {
            self.names.clone()
        }
    }

    /// Acquires one lock after the other. Releases all if one is not granted.
    async fn attempt(&self, world: &W, request: &Request, retries: &Retries<'_>) -> Result<Option<Grant>> {
        let mut names = self.names(&request.name);
        if !self.ordered {
            for last in (1..names.len()).rev() {
                names.swap(last, (fraction(world.random()) * (last + 1) as f64) as usize);
            }
        }
        let (asked, mut held) = (world.elapsed(), Vec::with_capacity(names.len()));
        for name in names {
            let part = Request { name, wait: self.part_wait.min(retries.left(world)), ..request.clone() };
            match self.inner.acquire(world, &part).await {
                Ok(Some(grant)) => held.push(grant),
                refused => {
                    self.release_all(world, &held).await?;
                    return refused;
                }
            }
        }
        let mut grant = Grant::new(request, asked);
        grant.valid_until = held.iter().filter_map(|part| part.valid_until).min();
        // Sorted, so that the order of the release does not depend on the order of the acquisition.
        held.sort_by(|one, other| one.name.cmp(&other.name));
        grant.parts = held;
        Ok(Some(grant))
    }

    /// Releases the locks in reverse order, and continues if one cannot be released.
    async fn release_all(&self, world: &W, held: &[Grant]) -> Result<ReleaseOutcome> {
        let (mut outcome, mut failed) = (ReleaseOutcome::Released, None);
        for part in held.iter().rev() {
            match self.inner.release(world, part).await {
                Ok(ReleaseOutcome::Released) => {}
                Ok(other) => outcome = other,
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(outcome), Err)
    }

    /// The grants of the parts. The grant of a request whose outcome is unknown has no parts: this constructs them.
    fn parts(&self, grant: &Grant) -> Vec<Grant> {
        if !grant.parts.is_empty() {
            return grant.parts.clone();
        }
        let part = |name| Grant { name, watchdog: None, ..grant.clone() };
        self.names(&grant.name).into_iter().map(part).collect()
    }
}

impl<W: World> Algorithm<W> for Multi<W> {
    fn facts(&self) -> &'static Facts {
        if self.ordered { &FACTS } else { &UNORDERED }
    }

    fn acquire<'a>(&'a self, world: &'a W, request: &'a Request) -> BoxFuture<'a, Result<Option<Grant>>> {
        Box::pin(async move {
            let mut retries = Retries::new(world, request);
            loop {
                if let Some(grant) = self.attempt(world, request, &retries).await? {
                    return Ok(Some(grant));
                }
                if !retries.pause_with_jitter(world, DEFAULT_PAUSE).await {
                    return Ok(None);
                }
            }
        })
    }

    fn release<'a>(&'a self, world: &'a W, grant: &'a Grant) -> BoxFuture<'a, Result<ReleaseOutcome>> {
        Box::pin(async move { self.release_all(world, &self.parts(grant)).await })
    }

    fn renew<'a>(&'a self, world: &'a W, grant: &'a mut Grant) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move {
            let mut parts = self.parts(grant);
            for part in &mut parts {
                if !self.inner.renew(world, part).await? {
                    return Ok(false);
                }
            }
            grant.valid_until = parts.iter().filter_map(|part| part.valid_until).min();
            grant.parts = parts;
            Ok(true)
        })
    }
}
