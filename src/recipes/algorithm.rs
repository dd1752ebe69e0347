//! What an algorithm is: its interface, its requests and its grants.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use crate::client::Result;
use crate::recipes::facts::Facts;
use crate::recipes::waiting::retry::Retry;
use crate::recipes::watchdog::Watchdog;
use crate::recipes::world::World;

/// A boxed future, so that algorithms can be chosen at run time.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// One way to acquire a lock and to release it. An algorithm keeps only its settings between calls. The state of a grant is in
/// the [`Grant`].
pub trait Algorithm<W: World>: Send + Sync + 'static {
    /// What the algorithm is, what it guarantees, and how it fails.
    fn facts(&self) -> &'static Facts;

    /// Maximum number of concurrent holders with the current settings. Holders that share the lock are not counted.
    fn holders(&self) -> u32 {
        self.facts().holders.unwrap_or(1)
    }

    /// Acquires the lock. Waits in the way of the algorithm, at most as long as the request says. Returns `None` if the lock was
    /// not granted in time.
    ///
    /// # Errors
    /// If a server failed. [`crate::client::Error::maybe_applied`] says whether the lock may have been acquired anyway.
    fn acquire<'a>(&'a self, world: &'a W, request: &'a Request) -> BoxFuture<'a, Result<Option<Grant>>>;

    /// Releases the lock.
    ///
    /// # Errors
    /// If a server failed.
    fn release<'a>(&'a self, world: &'a W, grant: &'a Grant) -> BoxFuture<'a, Result<ReleaseOutcome>>;

    /// Restarts the lease if the lock is still held. Returns whether it did; always false for an algorithm that cannot renew (see
    /// [`Facts::renews`]).
    ///
    /// # Errors
    /// If a server failed.
    fn renew<'a>(&'a self, _world: &'a W, _grant: &'a mut Grant) -> BoxFuture<'a, Result<bool>> {
        Box::pin(std::future::ready(Ok(false)))
    }
}

/// A request for a lock.
#[derive(Clone, Debug)]
pub struct Request {
    /// Name of the lock: the key, or the base of the keys.
    pub name: Vec<u8>,
    /// The owner. Concurrent requests must have different owners, except to acquire a reentrant lock again.
    pub owner: Vec<u8>,
    /// The longest time to hold the lock without renewal. Algorithms without expiry ignore it.
    pub lease: Duration,
    /// How long to wait for the lock; zero for a single attempt.
    pub wait: Duration,
    /// How to wait, if the algorithm polls.
    pub retry: Retry,
    /// Whether to share the lock with other holders that ask for it shared. Only algorithms with [`Facts::shared`] support it.
    pub shared: bool,
}

impl Request {
    /// A request for one attempt to hold the lock exclusively.
    pub fn new(name: impl AsRef<[u8]>, owner: impl AsRef<[u8]>, lease: Duration) -> Request {
        let (name, owner) = (name.as_ref().to_vec(), owner.as_ref().to_vec());
        Request { name, owner, lease, wait: Duration::ZERO, retry: Retry::Blocking, shared: false }
    }

    setters! {
        /// How long to wait for the lock; [`Duration::MAX`] waits without limit.
        pub fn wait(self, wait: Duration) { self.wait = wait }

        /// How to wait, if the algorithm polls.
        pub fn retry(self, retry: Retry) { self.retry = retry }

        /// Shares the lock with other holders that ask for it shared.
        pub fn shared(self) { self.shared = true }
    }

    /// The lease in whole milliseconds, at least 1, and small enough for every server's deadlines.
    pub fn lease_ms(&self) -> u64 {
        lease_ms(self.lease)
    }
}

/// The longest lease and the longest wait in requests to servers: a hundred years.
pub(crate) const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

/// A lease as an argument of a command: whole milliseconds, at least 1, at most a hundred years. Rounded up, because the holder
/// counts on the fraction of a millisecond, too.
pub(crate) fn lease_ms(lease: Duration) -> u64 {
    u64::try_from(lease.min(LONGEST).as_nanos().div_ceil(1_000_000).max(1)).unwrap_or(u64::MAX)
}

/// A holder counts on its lease minus a hundredth, because its clock may be slower than the server's.
const DRIFT_DIVISOR: u32 = 100;

/// The moment until which a holder may count on a lease that it asked for at `asked`; `None` beyond the range of [`Duration`].
pub(crate) fn valid_until(asked: Duration, lease: Duration) -> Option<Duration> {
    Some(asked.checked_add(lease)? - lease / DRIFT_DIVISOR)
}

/// A granted lock.
#[derive(Clone, Debug)]
pub struct Grant {
    /// Name of the lock.
    pub name: Vec<u8>,
    /// The owner.
    pub owner: Vec<u8>,
    /// The lease, counted from the request or the renewal.
    pub lease: Duration,
    /// The moment until which the holder may believe that it holds the lock, by [`World::elapsed`]. That is a hundredth less than
    /// the lease, because clocks differ in speed. `None` for a grant without end. A watchdog moves this moment:
    /// [`Grant::held_until`] takes that into account.
    pub valid_until: Option<Duration>,
    /// The fencing token, if the algorithm provides one. It is larger than the tokens of all earlier grants.
    pub token: Option<u64>,
    /// Further data that the algorithm needs for the release.
    pub memo: Vec<u8>,
    /// Whether the lock is shared with others.
    pub shared: bool,
    /// The grants of the parts, if the lock consists of several locks.
    pub parts: Vec<Grant>,
    /// The watchdog, if any.
    pub watchdog: Option<Watchdog>,
}

impl Grant {
    /// A grant for a request that was made at `asked`, by [`World::elapsed`]: its lease counts from then.
    pub fn new(request: &Request, asked: Duration) -> Grant {
        Grant {
            name: request.name.clone(),
            owner: request.owner.clone(),
            lease: request.lease,
            valid_until: valid_until(asked, request.lease),
            token: None,
            memo: Vec::new(),
            shared: false,
            parts: Vec::new(),
            watchdog: None,
        }
    }

    /// The moment until which the holder may believe that it holds the lock, by [`World::elapsed`], including renewals by a
    /// watchdog. `None` for a grant without end; zero for a grant that its watchdog found lost.
    pub fn held_until(&self) -> Option<Duration> {
        match &self.watchdog {
            Some(watchdog) => watchdog.held_until(),
            // Each part may have a watchdog of its own.
            None if !self.parts.is_empty() => self.parts.iter().filter_map(Grant::held_until).min(),
            None => self.valid_until,
        }
    }

    /// Records the outcome of a renewal that was asked for at `asked`, and returns it.
    pub(crate) fn renewed(&mut self, asked: Duration, renewed: bool) -> bool {
        if renewed {
            self.valid_until = valid_until(asked, self.lease);
        }
        renewed
    }
}

/// The outcome of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReleaseOutcome {
    /// The lock was released.
    Released,
    /// The owner did not hold the lock any more, and nothing was changed.
    NotHeld,
    /// The algorithm does not check the owner: it released the lock of any owner.
    Unchecked,
}

impl ReleaseOutcome {
    /// The outcome for an algorithm that checks the owner.
    pub(crate) fn checked(held: bool) -> ReleaseOutcome {
        if held { ReleaseOutcome::Released } else { ReleaseOutcome::NotHeld }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_rounded_up_to_whole_milliseconds() {
        let of_us = |us| lease_ms(Duration::from_micros(us));
        assert_eq!([0, 1, 999, 1_000, 1_001, 1_999].map(of_us), [1, 1, 1, 1, 2, 2]);
        assert_eq!(lease_ms(Duration::MAX), 100 * 365 * 86_400_000);
    }

    #[test]
    fn a_grant_is_valid_for_less_than_its_lease() {
        let (asked, lease) = (Duration::from_secs(5), Duration::from_secs(10));
        let mut grant = Grant::new(&Request::new("door", "alice", lease), asked);
        // A clock that is half a percent slow shows that 9.9 s have passed when 9.95 s have, before the lease ends.
        assert_eq!(grant.held_until(), Some(Duration::from_millis(14_900)));
        assert!(grant.renewed(asked + lease, true));
        assert_eq!(grant.held_until(), Some(Duration::from_millis(24_900)));
        assert_eq!(valid_until(asked, Duration::MAX), None);
    }
}
