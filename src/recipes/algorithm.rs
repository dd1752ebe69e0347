//! Types that all algorithms share.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use crate::client::Result;
use crate::recipes::retry::Retry;
use crate::recipes::watchdog::Watch;
use crate::recipes::world::World;

/// A boxed future, so that algorithms can be chosen at run time.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// One way to take a lock and to release it. An algorithm keeps only its settings between calls; the state of a grant is in the
/// [`Grant`].
pub trait Algorithm<W: World>: Send + Sync + 'static {
    /// What the algorithm is, what it guarantees, and how it fails.
    fn facts(&self) -> &'static Facts;

    /// Maximum number of concurrent holders with the current settings; holders that share the lock are not counted.
    fn holders(&self) -> u32 {
        self.facts().holders.unwrap_or(1)
    }

    /// Takes the lock. Waits in the way of the algorithm, at most as long as the request says. Returns `None` if the lock was not
    /// granted in time.
    ///
    /// # Errors
    /// If a server failed. [`crate::client::Error::maybe_applied`] says whether the lock may have been taken all the same.
    fn acquire<'a>(&'a self, world: &'a W, request: &'a Request) -> BoxFuture<'a, Result<Option<Grant>>>;

    /// Releases the lock.
    ///
    /// # Errors
    /// If a server failed.
    fn release<'a>(&'a self, world: &'a W, grant: &'a Grant) -> BoxFuture<'a, Result<Given>>;

    /// Restarts the lease, if the lock is held and the algorithm can renew. Returns whether it did. Algorithms whose
    /// [`Facts::renews`] is false cannot.
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
    /// The owner. Concurrent takers must have different owners, except to take a reentrant lock again.
    pub owner: Vec<u8>,
    /// The longest time to hold the lock without renewal. Algorithms without expiry ignore it.
    pub lease: Duration,
    /// How long to wait for it; zero for a single attempt.
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

    /// How long to wait for the lock; [`Duration::MAX`] waits without limit.
    pub fn wait(mut self, wait: Duration) -> Request {
        self.wait = wait;
        self
    }

    /// How to wait, if the algorithm polls.
    pub fn retry(mut self, retry: Retry) -> Request {
        self.retry = retry;
        self
    }

    /// Shares the lock with other holders that ask for it shared.
    pub fn shared(mut self) -> Request {
        self.shared = true;
        self
    }

    /// The lease in whole milliseconds, at least 1, and small enough for every server's deadlines.
    pub fn lease_ms(&self) -> u64 {
        lease_ms(self.lease)
    }
}

/// The longest lease and the longest wait in requests to servers: a hundred years.
pub(crate) const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

/// A lease for a command: whole milliseconds, at least 1, at most a hundred years. Rounded up, because the holder counts on the
/// fraction of a millisecond too.
pub(crate) fn lease_ms(lease: Duration) -> u64 {
    u64::try_from(lease.min(LONGEST).as_nanos().div_ceil(1_000_000).max(1)).unwrap_or(u64::MAX)
}

/// A holder counts on its lease minus this fraction, because its clock may be slower than the server's.
const DRIFT_PART: u32 = 100;

/// The moment until which a holder may count on a lease that it asked for at `asked`; `None` beyond the range of time.
pub(crate) fn counted_on(asked: Duration, lease: Duration) -> Option<Duration> {
    Some(asked.checked_add(lease)? - lease / DRIFT_PART)
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
    /// The moment until which the holder may believe that it holds the lock, by [`World::elapsed`]: a hundredth less than the
    /// lease, because clocks differ in speed. `None` for a grant without end. With a watchdog, [`Grant::held_until`] is more
    /// accurate.
    pub valid_until: Option<Duration>,
    /// The fencing token, if the algorithm provides one: larger than those of all earlier grants.
    pub token: Option<u64>,
    /// Further data that the algorithm needs for the release.
    pub memo: Vec<u8>,
    /// Whether the lock is shared with others.
    pub shared: bool,
    /// The grants of the parts, if the lock consists of several locks.
    pub parts: Vec<Grant>,
    /// The watchdog, if any.
    pub watch: Option<Watch>,
}

impl Grant {
    /// A grant for a request that was made at `asked`, by [`World::elapsed`]: its lease counts from then.
    pub fn new(request: &Request, asked: Duration) -> Grant {
        Grant {
            name: request.name.clone(),
            owner: request.owner.clone(),
            lease: request.lease,
            valid_until: counted_on(asked, request.lease),
            token: None,
            memo: Vec::new(),
            shared: false,
            parts: Vec::new(),
            watch: None,
        }
    }

    /// The moment until which the holder may believe that it holds the lock, by [`World::elapsed`], including renewals by a
    /// watchdog; `None` for a grant without end. A grant that its watchdog found lost has ended.
    pub fn held_until(&self) -> Option<Duration> {
        match &self.watch {
            Some(watch) => watch.held_until(),
            // Each part may be renewed by itself.
            None if !self.parts.is_empty() => self.parts.iter().filter_map(Grant::held_until).min(),
            None => self.valid_until,
        }
    }

    /// Restarts the lease at the moment of the request, if it was renewed. Returns whether it was.
    pub(crate) fn renewed(&mut self, asked: Duration, done: bool) -> bool {
        if done {
            self.valid_until = counted_on(asked, self.lease);
        }
        done
    }
}

/// The outcome of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    /// The lock was released.
    Back,
    /// The owner did not hold the lock any more, and nothing was changed.
    NotHeld,
    /// The algorithm does not check the owner: it deleted something, whoever's it was.
    Unchecked,
}

impl Given {
    /// The outcome for an algorithm that checks the owner.
    pub(crate) fn checked(held: bool) -> Given {
        if held { Given::Back } else { Given::NotHeld }
    }
}

/// Facts about an algorithm: what to know before using it.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// The algorithm's number in the list of [`crate::recipes`].
    pub number: u8,
    /// A short name that selects it, such as `set-nx-px`.
    pub name: &'static str,
    /// A one-line summary.
    pub summary: &'static str,
    /// Its guarantees.
    pub guarantees: &'static [&'static str],
    /// Its failure modes.
    pub failures: &'static [&'static str],
    /// Whether it is here to show its flaws, and not for use.
    pub flawed: bool,
    /// Its origin.
    pub source: &'static str,
    /// Maximum number of concurrent holders: 1 for a mutex, `None` if it is a setting.
    pub holders: Option<u32>,
    /// Whether the same owner may take the lock again while it holds it.
    pub reentrant: bool,
    /// Whether a grant ends by itself when its lease is over.
    pub expires: bool,
    /// Whether [`Algorithm::renew`] can restart the lease.
    pub renews: bool,
    /// Whether the lock can be shared.
    pub shared: bool,
    /// Whether its grants come with fencing tokens.
    pub fenced: bool,
    /// Whether it needs native locks, which only this crate's server has.
    pub native: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_never_shorter_than_its_holder_thinks() {
        let of_us = |us| lease_ms(Duration::from_micros(us));
        assert_eq!([0, 1, 999, 1_000, 1_001, 1_999].map(of_us), [1, 1, 1, 1, 2, 2]);
        assert_eq!(lease_ms(Duration::MAX), 100 * 365 * 86_400_000);
    }

    #[test]
    fn a_holder_whose_clock_is_slow_stops_before_its_lease_ends() {
        let (asked, lease) = (Duration::from_secs(5), Duration::from_secs(10));
        let mut grant = Grant::new(&Request::new("door", "alice", lease), asked);
        // A clock that is half a percent slow shows 9.9 s before 9.95 s have passed.
        assert_eq!(grant.held_until(), Some(Duration::from_millis(14_900)));
        assert!(grant.renewed(asked + lease, true));
        assert_eq!(grant.held_until(), Some(Duration::from_millis(24_900)));
        assert_eq!(counted_on(asked, Duration::MAX), None);
    }
}
