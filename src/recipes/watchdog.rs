//! 7: the watchdog, which renews a grant while its holder lives.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::client::Result;
use crate::recipes::algorithm::{Algorithm, BoxFuture, Facts, Given, Grant, Request};
use crate::recipes::race::{First, Watched, race};
use crate::recipes::world::World;

/// Renews a grant, and knows until when it is held. Clones share their state.
#[derive(Clone)]
pub struct Watch {
    kept: Arc<Watched<Kept>>,
}

/// The state of a renewed grant.
struct Kept {
    valid_until: Option<Duration>,
    state: State,
}

/// The fate of the grant.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Held,
    /// The renewal found the grant gone, or did not succeed in time.
    Lost,
    /// The grant is being released.
    Stopped,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("held_until", &self.held_until()).field("lost", &self.is_lost()).finish()
    }
}

impl Watch {
    /// Starts to renew a grant every `every`, which is usually a third of the lease.
    pub fn start<W: World>(world: &W, algorithm: Arc<dyn Algorithm<W>>, grant: &Grant, every: Duration) -> Watch {
        let kept = Arc::new(Watched::new(Kept { valid_until: grant.valid_until, state: State::Held }));
        let watch = Watch { kept };
        world.spawn(keep(world.clone(), algorithm, grant.clone(), every, watch.clone()));
        watch
    }

    /// The moment until which the holder may believe that it holds the lock; zero if it was lost.
    pub fn held_until(&self) -> Option<Duration> {
        self.kept.get(|kept| if kept.state == State::Lost { Some(Duration::ZERO) } else { kept.valid_until })
    }

    /// Whether the watchdog found the grant lost.
    pub fn is_lost(&self) -> bool {
        self.kept.get(|kept| kept.state == State::Lost)
    }

    /// Returns true when the grant is found lost, and false if the watchdog was stopped before.
    pub async fn lost(&self) -> bool {
        let over = |kept: &Kept| (kept.state != State::Held).then_some(kept.state == State::Lost);
        self.kept.until(over).await
    }

    /// Stops renewing.
    pub fn stop(&self) {
        self.kept.change(|kept| {
            if kept.state == State::Held {
                kept.state = State::Stopped;
            }
        });
    }

    fn lose(&self) {
        self.kept.change(|kept| {
            if kept.state == State::Held {
                kept.state = State::Lost;
            }
        });
    }
}

async fn keep<W: World>(world: W, algorithm: Arc<dyn Algorithm<W>>, mut grant: Grant, every: Duration, watch: Watch) {
    // A quarter of the interval, so that several attempts fit into the remaining lease.
    let again = (every / 4).max(Duration::from_millis(1));
    let mut pause = every;
    loop {
        let left = grant.valid_until.map_or(Duration::MAX, |until| until.saturating_sub(world.elapsed()));
        if left.is_zero() {
            return watch.lose();
        }
        if let First::Left(_) = race(watch.lost(), world.sleep(pause.min(left))).await {
            return;
        }
        let left = grant.valid_until.map_or(Duration::MAX, |until| until.saturating_sub(world.elapsed()));
        let renewal = race(watch.lost(), race(algorithm.renew(&world, &mut grant), world.sleep(left)));
        pause = match renewal.await {
            First::Left(_) => return,
            First::Right(First::Left(Ok(true))) => {
                watch.kept.change(|kept| kept.valid_until = grant.valid_until);
                every
            }
            First::Right(First::Left(Ok(false)) | First::Right(())) => return watch.lose(),
            First::Right(First::Left(Err(_))) => again,
        };
    }
}

/// An algorithm with a watchdog, which starts with the grant and ends with its release or with its holder.
///
/// Only a holder that stops loses the lock. A holder that hangs, in a dead thread of a living process, is renewed for ever.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> portcullis::client::Result<()> {
/// # let server = portcullis::TestServer::start();
/// # let world = portcullis::recipes::Live::new([portcullis::client::Client::connect(&server.url()).await?]);
/// use std::time::Duration;
/// use portcullis::recipes::{Guarded, Lock, Reentrant};
///
/// let door = Lock::new(&world, Guarded::new(Box::new(Reentrant) as Box<_>).every(Duration::from_millis(20)), "door");
/// let guard = door.lease(Duration::from_millis(100)).acquire().await?;
/// tokio::time::sleep(Duration::from_millis(150)).await;
/// assert!(!guard.is_lost());
/// # Ok(()) }
/// ```
pub struct Guarded<W> {
    inner: Arc<dyn Algorithm<W>>,
    facts: &'static Facts,
    every: Option<Duration>,
}

impl<W: World> Guarded<W> {
    /// Adds a watchdog to an algorithm. An algorithm that cannot renew behaves as before.
    pub fn new(inner: impl Into<Arc<dyn Algorithm<W>>>) -> Guarded<W> {
        let inner = inner.into();
        Guarded { facts: inner.facts(), inner, every: None }
    }

    /// Replaces the facts, and with them the name.
    pub(crate) fn named(mut self, facts: &'static Facts) -> Guarded<W> {
        self.facts = facts;
        self
    }

    /// The interval between renewals. A third of the lease unless given.
    pub fn every(mut self, every: Duration) -> Guarded<W> {
        self.every = Some(every);
        self
    }
}

impl<W: World> Algorithm<W> for Guarded<W> {
    fn facts(&self) -> &'static Facts {
        self.facts
    }

    fn holders(&self) -> u32 {
        self.inner.holders()
    }

    fn acquire<'a>(&'a self, world: &'a W, request: &'a Request) -> BoxFuture<'a, Result<Option<Grant>>> {
        Box::pin(async move {
            let Some(mut grant) = self.inner.acquire(world, request).await? else { return Ok(None) };
            if self.inner.facts().renews {
                let every = self.every.unwrap_or(request.lease / 3).max(Duration::from_millis(1));
                grant.watch = Some(Watch::start(world, Arc::clone(&self.inner), &grant, every));
            }
            Ok(Some(grant))
        })
    }

    fn release<'a>(&'a self, world: &'a W, grant: &'a Grant) -> BoxFuture<'a, Result<Given>> {
        if let Some(watch) = &grant.watch {
            watch.stop();
        }
        self.inner.release(world, grant)
    }

    fn renew<'a>(&'a self, world: &'a W, grant: &'a mut Grant) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move {
            let renewed = self.inner.renew(world, grant).await?;
            if let Some(watch) = grant.watch.as_ref().filter(|_| renewed) {
                watch.kept.change(|kept| kept.valid_until = kept.valid_until.max(grant.valid_until));
            }
            Ok(renewed)
        })
    }
}
