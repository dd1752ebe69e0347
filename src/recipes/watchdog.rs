//! 7: the watchdog. It renews a grant while the holder lives.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::client::Result;
use crate::recipes::algorithm::{Algorithm, BoxFuture, Grant, ReleaseOutcome, Request};
use crate::recipes::facts::Facts;
use crate::recipes::waiting::race::{First, WatchCell, race};
use crate::recipes::world::World;

/// Renews a grant, and knows until when the grant is held. Clones share their state.
#[derive(Clone)]
pub struct Watchdog {
    state: Arc<WatchCell<State>>,
}

struct State {
    valid_until: Option<Duration>,
    phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The watchdog renews the grant.
    Held,
    /// The renewal found the grant gone, or did not succeed in time.
    Lost,
    /// The grant is being released.
    Stopped,
}

impl fmt::Debug for Watchdog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watchdog").field("held_until", &self.held_until()).field("lost", &self.is_lost()).finish()
    }
}

impl Watchdog {
    /// Starts to renew a grant at this interval, which is usually a third of the lease.
    pub fn start<W: World>(world: &W, algorithm: Arc<dyn Algorithm<W>>, grant: &Grant, every: Duration) -> Watchdog {
        let state = Arc::new(WatchCell::new(State { valid_until: grant.valid_until, phase: Phase::Held }));
        let watchdog = Watchdog { state };
        world.spawn(keep_renewed(world.clone(), algorithm, grant.clone(), every, watchdog.clone()));
        watchdog
    }

    /// The moment until which the holder may believe that it holds the lock, by [`World::elapsed`]; zero if the lock was lost.
    pub fn held_until(&self) -> Option<Duration> {
        self.state.get(|state| if state.phase == Phase::Lost { Some(Duration::ZERO) } else { state.valid_until })
    }

    /// Whether the watchdog found the grant lost.
    pub fn is_lost(&self) -> bool {
        self.state.get(|state| state.phase == Phase::Lost)
    }

    /// Waits until the watchdog ends. Returns whether it found the grant lost; false if it was stopped.
    pub async fn lost(&self) -> bool {
        self.state.until(|state| (state.phase != Phase::Held).then_some(state.phase == Phase::Lost)).await
    }

    /// Stops renewing.
    pub fn stop(&self) {
        self.end(Phase::Stopped);
    }

    /// Ends the renewal, unless it has ended already.
    fn end(&self, phase: Phase) {
        self.state.change(|state| {
            if state.phase == Phase::Held {
                state.phase = phase;
            }
        });
    }
}

/// Renews a grant until it is lost or the watchdog is stopped.
async fn keep_renewed<W: World>(
    world: W,
    algorithm: Arc<dyn Algorithm<W>>,
    mut grant: Grant,
    every: Duration,
    watchdog: Watchdog,
) {
    // A quarter of the interval, so that several attempts fit into the remaining lease.
    let retry = (every / 4).max(Duration::from_millis(1));
    let left = |grant: &Grant| grant.valid_until.map_or(Duration::MAX, |until| until.saturating_sub(world.elapsed()));
    let mut pause = every;
    loop {
        let before_pause = left(&grant);
        if before_pause.is_zero() {
            return watchdog.end(Phase::Lost);
        }
        if let First::Left(_) = race(watchdog.lost(), world.sleep(pause.min(before_pause))).await {
            return;
        }
        let after_pause = left(&grant);
        let renewal = race(algorithm.renew(&world, &mut grant), world.sleep(after_pause));
        pause = match race(watchdog.lost(), renewal).await {
            First::Left(_) => return,
            First::Right(First::Left(Ok(true))) => {
                watchdog.state.change(|state| state.valid_until = grant.valid_until);
                every
            }
            First::Right(First::Left(Ok(false)) | First::Right(())) => return watchdog.end(Phase::Lost),
            First::Right(First::Left(Err(_))) => retry,
        };
    }
}

/// An algorithm with a watchdog, which starts with the grant and ends with the release or with the holder.
///
/// The lock ends when the holder's process ends or stops. The lock of a holder that hangs in a living process is renewed forever.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> portcullis::client::Result<()> {
/// # let server = portcullis::TestServer::start();
/// # let world = portcullis::recipes::Live::new([portcullis::client::Client::connect(&server.url()).await?]);
/// use std::time::Duration;
/// use portcullis::recipes::{WithWatchdog, Lock, Reentrant};
///
/// let door = Lock::new(&world, WithWatchdog::new(Box::new(Reentrant) as Box<_>).every(Duration::from_millis(100)), "door");
/// let guard = door.lease(Duration::from_secs(2)).acquire().await?;
/// tokio::time::sleep(Duration::from_millis(2500)).await;
/// assert!(!guard.is_lost());
/// # Ok(()) }
/// ```
pub struct WithWatchdog<W> {
    inner: Arc<dyn Algorithm<W>>,
    facts: &'static Facts,
    every: Option<Duration>,
}

impl<W: World> WithWatchdog<W> {
    /// Adds a watchdog to an algorithm. An algorithm that cannot renew stays without one.
    pub fn new(inner: impl Into<Arc<dyn Algorithm<W>>>) -> WithWatchdog<W> {
        let inner = inner.into();
        WithWatchdog { facts: inner.facts(), inner, every: None }
    }

    /// Replaces the facts, which include the algorithm's name.
    pub(crate) fn with_facts(mut self, facts: &'static Facts) -> WithWatchdog<W> {
        self.facts = facts;
        self
    }

    /// The interval between renewals. A third of the lease unless given.
    pub fn every(mut self, every: Duration) -> WithWatchdog<W> {
        self.every = Some(every);
        self
    }
}

impl<W: World> Algorithm<W> for WithWatchdog<W> {
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
                grant.watchdog = Some(Watchdog::start(world, Arc::clone(&self.inner), &grant, every));
            }
            Ok(Some(grant))
        })
    }

    fn release<'a>(&'a self, world: &'a W, grant: &'a Grant) -> BoxFuture<'a, Result<ReleaseOutcome>> {
        if let Some(watchdog) = &grant.watchdog {
            watchdog.stop();
        }
        self.inner.release(world, grant)
    }

    fn renew<'a>(&'a self, world: &'a W, grant: &'a mut Grant) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move {
            let renewed = self.inner.renew(world, grant).await?;
            if let Some(watchdog) = grant.watchdog.as_ref().filter(|_| renewed) {
                watchdog.state.change(|state| state.valid_until = state.valid_until.max(grant.valid_until));
            }
            Ok(renewed)
        })
    }
}
