//! Locks over any algorithm, and the guards that hold them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::client::{Error, Result};
use crate::recipes::algorithm::{Algorithm, Grant, ReleaseOutcome, Request};
use crate::recipes::waiting::race::{First, race};
use crate::recipes::waiting::retry::Retry;
use crate::recipes::watchdog::WithWatchdog;
use crate::recipes::world::World;

/// The default lease.
const LEASE: Duration = Duration::from_secs(30);

/// A lock with a name and an algorithm. It can be acquired any number of times. Each acquisition has a unique owner unless
/// [`Lock::owner`] names one.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> portcullis::client::Result<()> {
/// # let server = portcullis::TestServer::start();
/// use std::time::Duration;
/// use portcullis::client::Client;
/// use portcullis::recipes::{Live, Lock, Retry, Token};
///
/// let world = Live::new([Client::connect(&server.url()).await?]);
/// let door = Lock::new(&world, Token::default(), "door")
///     .lease(Duration::from_secs(10))
///     .wait(Duration::from_secs(5))
///     .retry(Retry::BACK_OFF)
///     .watchdog();
/// let guard = door.acquire().await?;
/// assert!(door.try_acquire().await?.is_none());
/// tokio::select! {
///     () = async { /* work that only one client may do at a time */ } => guard.release().await?,
///     () = guard.lost() => eprintln!("stopped: the lock was lost"),
/// }
/// # Ok(()) }
/// ```
pub struct Lock<W: World> {
    world: W,
    algorithm: Arc<dyn Algorithm<W>>,
    request: Request,
    owner_given: bool,
}

impl<W: World> Lock<W> {
    /// A lock with this name and algorithm. Its lease is 30 s and its wait has no limit, unless set otherwise.
    pub fn new(world: &W, algorithm: impl Algorithm<W>, name: impl AsRef<[u8]>) -> Lock<W> {
        Lock::of(world, Arc::new(algorithm), name)
    }

    /// As [`Lock::new`], with an algorithm that was chosen at run time, for example by [`by_name`](crate::recipes::by_name).
    pub fn of(world: &W, algorithm: Arc<dyn Algorithm<W>>, name: impl AsRef<[u8]>) -> Lock<W> {
        let request = Request::new(name, b"", LEASE).wait(Duration::MAX);
        Lock { world: world.clone(), algorithm, request, owner_given: false }
    }

    setters! {
        /// The owner. An owner that already holds a reentrant lock acquires it again.
        pub fn owner(self, owner: impl AsRef<[u8]>) { self.request.owner = owner.as_ref().to_vec(); self.owner_given = true }

        /// The longest time to hold the lock without renewal.
        pub fn lease(self, lease: Duration) { self.request.lease = lease }

        /// How long [`Lock::acquire`] waits.
        pub fn wait(self, wait: Duration) { self.request.wait = wait }

        /// How [`Lock::acquire`] waits, if the algorithm can poll.
        pub fn retry(self, retry: Retry) { self.request.retry = retry }

        /// Shares the lock with other holders that ask for it shared, if the algorithm supports that.
        pub fn shared(self) { self.request.shared = true }

        /// Renews the lock every third of its lease until its guard is gone, if the algorithm can renew.
        pub fn watchdog(self) { self.algorithm = Arc::new(WithWatchdog::new(self.algorithm)) }
    }

    /// Acquires the lock. If the future is dropped, a lock that was granted meanwhile is released, or ends with its lease.
    ///
    /// # Errors
    /// [`Error::NotGranted`] if the lock was not granted in time; errors of the server.
    pub async fn acquire(&self) -> Result<Guard<W>> {
        let begun = self.world.elapsed();
        match self.acquire_within(self.request.wait).await? {
            Some(guard) => Ok(guard),
            None => Err(Error::NotGranted {
                name: String::from_utf8_lossy(&self.request.name).into_owned(),
                waited: self.world.elapsed() - begun,
            }),
        }
    }

    /// Acquires the lock if it is free now.
    ///
    /// # Errors
    /// Errors of the server.
    pub async fn try_acquire(&self) -> Result<Option<Guard<W>>> {
        self.acquire_within(Duration::ZERO).await
    }

    async fn acquire_within(&self, wait: Duration) -> Result<Option<Guard<W>>> {
        let mut request = self.request.clone().wait(wait);
        if !self.owner_given {
            request.owner = format!("{:016x}{:016x}", self.world.random(), self.world.random()).into_bytes();
        }
        // If this future is dropped during the acquisition, this guard releases what may have been granted. That does no harm if
        // nothing was granted, as the owner is unique and the algorithm checks the owner.
        let mut guard = Guard {
            world: self.world.clone(),
            algorithm: Arc::clone(&self.algorithm),
            grant: Grant { shared: request.shared, ..Grant::new(&request, self.world.elapsed()) },
            release_on_drop: !self.owner_given && !self.algorithm.facts().flawed,
        };
        let outcome = self.algorithm.acquire(&self.world, &request).await;
        match outcome {
            Ok(Some(grant)) => {
                guard.grant = grant;
                guard.release_on_drop = true;
                Ok(Some(guard))
            }
            Ok(None) => {
                guard.release_on_drop = false;
                Ok(None)
            }
            Err(error) => {
                guard.release_on_drop &= error.maybe_applied();
                Err(error)
            }
        }
    }
}

impl<W: World> fmt::Debug for Lock<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").field("algorithm", &self.algorithm.facts().name).field("request", &self.request).finish()
    }
}

/// A held lock. Dropping it releases the lock in the background; [`Guard::release`] waits for that and reports errors.
///
/// Whether the lock is really held depends on what the algorithm [guarantees](crate::recipes::Facts::guarantees).
#[must_use = "dropping the guard releases the lock"]
pub struct Guard<W: World> {
    world: W,
    algorithm: Arc<dyn Algorithm<W>>,
    grant: Grant,
    release_on_drop: bool,
}

impl<W: World> Guard<W> {
    /// The fencing token, if the algorithm provides one. Send it with each write to a store that refuses smaller ones.
    pub fn token(&self) -> Option<u64> {
        self.grant.token
    }

    /// The grant.
    pub fn grant(&self) -> &Grant {
        &self.grant
    }

    /// The time for which the lock is certainly held, unless another client deletes it; [`Duration::MAX`] for a grant without
    /// end.
    pub fn remaining(&self) -> Duration {
        self.grant.held_until().map_or(Duration::MAX, |until| until.saturating_sub(self.world.elapsed()))
    }

    /// Whether the lock is lost, as far as this process knows: its lease is over, or its watchdog found it gone.
    pub fn is_lost(&self) -> bool {
        self.remaining().is_zero()
    }

    /// Returns when the lock is lost.
    pub async fn lost(&self) {
        loop {
            match (self.remaining(), &self.grant.watchdog) {
                (Duration::ZERO, _) => return,
                (Duration::MAX, None) => std::future::pending().await,
                (left, None) => self.world.sleep(left).await,
                // A watchdog that was stopped reports no loss. The lock is then lost when the lease ends that it knew last.
                (left, Some(watchdog)) => {
                    if let First::Left(false) = race(watchdog.lost(), self.world.sleep(left)).await {
                        self.world.sleep(left).await;
                    }
                }
            }
        }
    }

    /// Restarts the lease. Returns the time for which the lock is certainly held.
    ///
    /// # Errors
    /// [`Error::NotHeld`] if the lock is lost or the algorithm cannot renew; errors of the server.
    pub async fn renew(&mut self) -> Result<Duration> {
        if self.algorithm.renew(&self.world, &mut self.grant).await? { Ok(self.remaining()) } else { Err(self.not_held()) }
    }

    /// Releases the lock. If the future is dropped, the release continues in the background.
    ///
    /// # Errors
    /// [`Error::NotHeld`] if the lock was lost before: the work since the loss was not protected. Errors of the server.
    pub async fn release(mut self) -> Result<()> {
        let outcome = self.algorithm.release(&self.world, &self.grant).await;
        self.release_on_drop = false;
        match outcome? {
            ReleaseOutcome::Released | ReleaseOutcome::Unchecked => Ok(()),
            ReleaseOutcome::NotHeld => Err(self.not_held()),
        }
    }

    fn not_held(&self) -> Error {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        Error::NotHeld(format!("lock '{}' is not held by '{}'", text(&self.grant.name), text(&self.grant.owner)))
    }
}

impl<W: World> Drop for Guard<W> {
    fn drop(&mut self) {
        if let Some(watchdog) = &self.grant.watchdog {
            watchdog.stop();
        }
        if self.release_on_drop {
            let (world, algorithm, grant) = (self.world.clone(), Arc::clone(&self.algorithm), self.grant.clone());
            self.world.spawn(async move {
                // No caller is left to receive an error. The lock then ends with its lease.
                let _ = algorithm.release(&world, &grant).await;
            });
        }
    }
}

impl<W: World> fmt::Debug for Guard<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("algorithm", &self.algorithm.facts().name).field("grant", &self.grant).finish()
    }
}
