//! 10: several locks as one.

use std::sync::Arc;
use std::time::Duration;

use crate::client::Result;
use crate::recipes::algorithm::{Algorithm, BoxFuture, Facts, Given, Grant, Request};
use crate::recipes::call::{USUAL_PAUSE, beside};
use crate::recipes::reentrant;
use crate::recipes::retry::{Pace, fraction};
use crate::recipes::world::World;

/// Facts about [`Multi`] in one order.
pub static FACTS: Facts = Facts {
    number: 10,
    name: "multi",
    summary: "several locks, taken in turn in one order; all are given back where one is not to be had",
    guarantees: &[
        "whoever has all of them has each as the algorithm beneath promises",
        "nothing is held by whoever did not get all of them, once it has given back",
        "no deadlock: all take them in the same order, and give back rather than wait for ever",
    ],
    failures: &[
        "not one step: for a moment it holds some of them, and keeps others out",
        "leases begin one after the other: the first ends first",
        "a holder that crashes on its way leaves what it had until its lease is over",
    ],
    source: "Redisson's RMultiLock",
    ..reentrant::FACTS
};

/// Facts about [`Multi`] in any order.
pub static UNORDERED: Facts = Facts {
    name: "multi-unordered",
    summary: "several locks, taken in turn in any order",
    guarantees: &["whoever has all of them has each as the algorithm beneath promises"],
    failures: &[
        "two that begin at different ends each hold what the other wants: until the time of one is over, and then perhaps again",
        "not one step: for a moment it holds some of them, and keeps others out",
        "leases begin one after the other: the first ends first",
    ],
    flawed: true,
    source: "Redisson's RMultiLock, where callers name locks in different orders",
    ..FACTS
};

/// Number of parts of a lock that is requested by one name.
const PARTS: usize = 3;
/// Default wait for one lock while others are held.
const PATIENCE: Duration = Duration::from_millis(500);

/// 10: several locks of another algorithm, all or none; see [`FACTS`].
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
    patience: Duration,
}

impl<W: World> Multi<W> {
    /// Several locks of this algorithm. Unless given with [`Multi::of`], their names derive from the requested name: `{name}:1`
    /// and so on, three of them.
    pub fn new(inner: impl Algorithm<W>) -> Multi<W> {
        Multi { inner: Arc::new(inner), names: Vec::new(), ordered: true, patience: PATIENCE }
    }

    /// The names of the locks. The requested name is ignored then.
    pub fn of<N: AsRef<[u8]>>(mut self, names: impl IntoIterator<Item = N>) -> Multi<W> {
        self.names = names.into_iter().map(|name| name.as_ref().to_vec()).collect();
        // The same order for all takers.
        self.names.sort_unstable();
        self.names.dedup();
        self
    }

    /// Takes the locks in a random order each time. Flawed: see [`UNORDERED`].
    pub fn unordered(mut self) -> Multi<W> {
        self.ordered = false;
        self
    }

    /// How long to wait for each lock while others are held, before all are released and taken again. Half a second unless given.
    pub fn patience(mut self, patience: Duration) -> Multi<W> {
        self.patience = patience;
        self
    }

    fn names(&self, name: &[u8]) -> Vec<Vec<u8>> {
        if self.names.is_empty() { (1..=PARTS).map(|part| beside(name, &part.to_string())).collect() } else { self.names.clone() }
    }

    /// Takes each lock in turn, with some patience. Releases all if one is not granted.
    async fn attempt(&self, world: &W, request: &Request, pace: &Pace<'_>) -> Result<Option<Grant>> {
        let mut names = self.names(&request.name);
        if !self.ordered {
            for last in (1..names.len()).rev() {
                names.swap(last, (fraction(world.random()) * (last + 1) as f64) as usize);
            }
        }
        let (asked, mut held) = (world.elapsed(), Vec::with_capacity(names.len()));
        for name in names {
            let part = Request { name, wait: self.patience.min(pace.left(world)), ..request.clone() };
            match self.inner.acquire(world, &part).await {
                Ok(Some(grant)) => held.push(grant),
                refused => {
                    self.give_back(world, &held).await?;
                    return refused;
                }
            }
        }
        let mut grant = Grant::new(request, asked);
        grant.valid_until = held.iter().filter_map(|part| part.valid_until).min();
        // Released in one order, whatever the order of taking.
        held.sort_by(|one, other| one.name.cmp(&other.name));
        grant.parts = held;
        Ok(Some(grant))
    }

    /// Releases the locks in reverse order, all of them even if one fails.
    async fn give_back(&self, world: &W, held: &[Grant]) -> Result<Given> {
        let (mut given, mut failed) = (Given::Back, None);
        for part in held.iter().rev() {
            match self.inner.release(world, part).await {
                Ok(Given::Back) => {}
                Ok(other) => given = other,
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(given), Err)
    }

    /// The grants of the parts. For a grant of unknown outcome, constructs them from the lock's grant.
    fn parts(&self, grant: &Grant) -> Vec<Grant> {
        if !grant.parts.is_empty() {
            return grant.parts.clone();
        }
        let part = |name| Grant { name, watch: None, ..grant.clone() };
        self.names(&grant.name).into_iter().map(part).collect()
    }
}

impl<W: World> Algorithm<W> for Multi<W> {
    fn facts(&self) -> &'static Facts {
        if self.ordered { &FACTS } else { &UNORDERED }
    }

    fn acquire<'a>(&'a self, world: &'a W, request: &'a Request) -> BoxFuture<'a, Result<Option<Grant>>> {
        Box::pin(async move {
            let mut pace = Pace::new(world, request);
            loop {
                if let Some(grant) = self.attempt(world, request, &pace).await? {
                    return Ok(Some(grant));
                }
                let Some(pause) = pace.next(world, USUAL_PAUSE) else { return Ok(None) };
                world.sleep(pause.mul_f64(0.5 + 0.5 * fraction(world.random()))).await;
            }
        })
    }

    fn release<'a>(&'a self, world: &'a W, grant: &'a Grant) -> BoxFuture<'a, Result<Given>> {
        Box::pin(async move { self.give_back(world, &self.parts(grant)).await })
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
