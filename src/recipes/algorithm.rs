//! What all algorithms have in common.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use crate::client::Result;
use crate::recipes::retry::Retry;
use crate::recipes::watchdog::Watch;
use crate::recipes::world::World;

/// A future on the heap, so that algorithms can be chosen while the program runs.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// One way to take a lock and to give it back. It keeps nothing between calls but its settings: what belongs to a grant is in the [`Grant`].
pub trait Algorithm<W: World>: Send + Sync + 'static {
    /// What it is, what it promises, and how it fails.
    fn facts(&self) -> &'static Facts;

    /// How many may hold it at once, as it is set; those that share it are not counted.
    fn holders(&self) -> u32 {
        self.facts().holders.unwrap_or(1)
    }

    /// Takes the lock, waiting for it as the algorithm does, at most as long as the request says; `None` where it was not to be had by then.
    ///
    /// # Errors
    /// Where a server failed it. Whether the lock was taken all the same is then unknown if the error says so.
    fn acquire<'a>(&'a self, world: &'a W, request: &'a Request) -> BoxFuture<'a, Result<Option<Grant>>>;

    /// Gives it back.
    ///
    /// # Errors
    /// Where a server failed it.
    fn release<'a>(&'a self, world: &'a W, grant: &'a Grant) -> BoxFuture<'a, Result<Given>>;

    /// Has its lease begin anew, if it is held and the algorithm can do that; whether it could. Those whose [`Facts::renews`] is false
    /// cannot.
    ///
    /// # Errors
    /// Where a server failed it.
    fn renew<'a>(&'a self, _world: &'a W, _grant: &'a mut Grant) -> BoxFuture<'a, Result<bool>> {
        Box::pin(std::future::ready(Ok(false)))
    }
}

/// What is wanted.
#[derive(Clone, Debug)]
pub struct Request {
    /// Name of the lock: the key, or what keys are made of.
    pub name: Vec<u8>,
    /// Who takes it. No two takers that may meet have the same, but for one that takes a reentrant lock again.
    pub owner: Vec<u8>,
    /// How long it is to be held at most, without renewal. Algorithms without expiry ignore it.
    pub lease: Duration,
    /// How long to wait for it; zero for a single attempt.
    pub wait: Duration,
    /// How to wait, where the algorithm polls.
    pub retry: Retry,
    /// Whether it may be shared with others who say so, too. Only algorithms with [`Facts::shared`] heed it.
    pub shared: bool,
}

impl Request {
    /// One attempt to hold it alone.
    pub fn new(name: impl AsRef<[u8]>, owner: impl AsRef<[u8]>, lease: Duration) -> Request {
        let (name, owner) = (name.as_ref().to_vec(), owner.as_ref().to_vec());
        Request { name, owner, lease, wait: Duration::ZERO, retry: Retry::Blocking, shared: false }
    }

    /// How long to wait for it; [`Duration::MAX`] for as long as it takes.
    pub fn wait(mut self, wait: Duration) -> Request {
        self.wait = wait;
        self
    }

    /// How to wait, where the algorithm polls.
    pub fn retry(mut self, retry: Retry) -> Request {
        self.retry = retry;
        self
    }

    /// To share it with others who say so, too.
    pub fn shared(mut self) -> Request {
        self.shared = true;
        self
    }

    /// The lease in whole milliseconds, at least 1, and small enough for every server's deadlines.
    pub fn lease_ms(&self) -> u64 {
        lease_ms(self.lease)
    }
}

/// The longest lease, and the longest wait, that servers are asked for: a hundred years.
pub(crate) const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

/// A lease as commands take it: whole milliseconds, at least 1, at most a hundred years. What is left of a millisecond is a whole one, as its
/// holder counts on it.
pub(crate) fn lease_ms(lease: Duration) -> u64 {
    u64::try_from(lease.min(LONGEST).as_nanos().div_ceil(1_000_000).max(1)).unwrap_or(u64::MAX)
}

/// A holder counts on its lease less this part of it: its clock may be slower than the server's.
const DRIFT_PART: u32 = 100;

/// Until when a holder may count on a lease that it asked for at a moment; `None` where that is beyond all time.
pub(crate) fn counted_on(asked: Duration, lease: Duration) -> Option<Duration> {
    Some(asked.checked_add(lease)? - lease / DRIFT_PART)
}

/// A lock that was taken.
#[derive(Clone, Debug)]
pub struct Grant {
    /// Name of the lock.
    pub name: Vec<u8>,
    /// Who holds it.
    pub owner: Vec<u8>,
    /// For how long, from when it was asked for or renewed.
    pub lease: Duration,
    /// Until when the holder may think that it has it, by [`World::elapsed`]: a hundredth less than the lease, as clocks differ in speed. `None`
    /// where it has no end. Where a watchdog renews it,
    /// [`Grant::held_until`] knows better.
    pub valid_until: Option<Duration>,
    /// The fencing token, where the algorithm gives one: larger than those of all earlier grants.
    pub token: Option<u64>,
    /// What else the algorithm has to know to give it back.
    pub memo: Vec<u8>,
    /// Whether it is shared with others.
    pub shared: bool,
    /// Those of the locks that it is made of, where it is several locks as one.
    pub parts: Vec<Grant>,
    /// Its watchdog, where it has one.
    pub watch: Option<Watch>,
}

impl Grant {
    /// What was granted to a request that was made at a moment, by [`World::elapsed`]: its lease counts from then.
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

    /// Until when the holder may think that it has it, by [`World::elapsed`], with what a watchdog has done since it was granted; `None`
    /// where it has no end. A grant that its watchdog found lost has ended.
    pub fn held_until(&self) -> Option<Duration> {
        match &self.watch {
            Some(watch) => watch.held_until(),
            // Its parts may be renewed, each by itself.
            None if !self.parts.is_empty() => self.parts.iter().filter_map(Grant::held_until).min(),
            None => self.valid_until,
        }
    }

    /// The lease begins anew at the moment when that was asked for, if it was done; whether it was.
    pub(crate) fn renewed(&mut self, asked: Duration, done: bool) -> bool {
        if done {
            self.valid_until = counted_on(asked, self.lease);
        }
        done
    }
}

/// What became of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    /// It was given back.
    Back,
    /// It was not held any more, by this owner, and nothing was changed.
    NotHeld,
    /// The algorithm does not look: something was deleted, whoever's it was.
    Unchecked,
}

impl Given {
    /// What became of it where the algorithm looks whose it is: whether it was the owner's.
    pub(crate) fn checked(held: bool) -> Given {
        if held { Given::Back } else { Given::NotHeld }
    }
}

/// What is to be known of an algorithm before it is used.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// Its number in the list of [`crate::recipes`].
    pub number: u8,
    /// A short name, such as `set-nx-px`, by which it is chosen.
    pub name: &'static str,
    /// What it is, in a line.
    pub summary: &'static str,
    /// What it promises.
    pub guarantees: &'static [&'static str],
    /// How it fails.
    pub failures: &'static [&'static str],
    /// Whether it is here to show its flaws, and not to be used.
    pub flawed: bool,
    /// Where it comes from.
    pub source: &'static str,
    /// How many may hold at once; 1 for a mutex, and `None` where that is a setting.
    pub holders: Option<u32>,
    /// Whether the same owner may take it again while it holds it.
    pub reentrant: bool,
    /// Whether a grant ends by itself when its lease is over.
    pub expires: bool,
    /// Whether [`Algorithm::renew`] can have the lease begin anew.
    pub renews: bool,
    /// Whether it can be shared.
    pub shared: bool,
    /// Whether its grants come with fencing tokens.
    pub fenced: bool,
    /// Whether it needs native locks, which only servers of this crate have.
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
        // After 9.9 s by a clock that is half a percent slow, not yet 9.95 s have passed.
        assert_eq!(grant.held_until(), Some(Duration::from_millis(14_900)));
        assert!(grant.renewed(asked + lease, true));
        assert_eq!(grant.held_until(), Some(Duration::from_millis(24_900)));
        assert_eq!(counted_on(asked, Duration::MAX), None);
    }
}
