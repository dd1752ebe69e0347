//! What all algorithms have in common.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use crate::client::Result;
use crate::recipes::world::World;

/// A future on the heap, so that algorithms can be chosen while the program runs.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// One way to take a lock and to give it back. It keeps nothing between calls but its settings: what belongs to a grant is in the [`Grant`].
pub trait Algorithm<W: World>: Send + Sync + 'static {
    /// What it is, what it promises, and how it fails.
    fn facts(&self) -> &'static Facts;

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

    /// Has its lease begin anew, if it is held and the algorithm can do that; whether it could.
    ///
    /// # Errors
    /// Where a server failed it.
    fn renew<'a>(&'a self, world: &'a W, grant: &'a mut Grant) -> BoxFuture<'a, Result<bool>>;
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
}

/// How an algorithm that polls does so.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Retry {
    /// The same pause each time.
    Fixed {
        /// How long.
        pause: Duration,
    },
    /// Each pause is as long as the one before times `factor`, up to `most`; of each, up to the part `jitter` (0 to 1) is taken away at
    /// random. After `tries` attempts it is given up.
    Exponential {
        /// The first pause.
        first: Duration,
        /// What each is multiplied by.
        factor: f64,
        /// The longest.
        most: Duration,
        /// How much of a pause is chance.
        jitter: f64,
        /// Attempts, if they are bounded.
        tries: Option<u32>,
    },
    /// No pauses: the server, or a message, says when. Algorithms that can only poll take their usual pause.
    Blocking,
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
    /// Until when the holder may think that it has it, by [`World::elapsed`]; `None` where it has no end.
    pub valid_until: Option<Duration>,
    /// The fencing token, where the algorithm gives one: larger than those of all earlier grants.
    pub token: Option<u64>,
    /// What else the algorithm has to know to give it back.
    pub memo: Vec<u8>,
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
    /// Whether it needs native locks, which only servers of this crate have.
    pub native: bool,
}
