//! What is asked of locks, and what they answer.

use smallvec::SmallVec;

use crate::lock::grant::{Client, Owner, Reason};
use crate::lock::history::What;
use crate::lock::holders::Lock;
use crate::lock::queue::Wanted;

/// Where locks are kept.
pub trait Keys {
    /// What a name holds. A lock is taken out of there into `lock`, which is free, and comes back by [`Keys::put`] or
    /// [`Keys::put_back`] before anything else happens to the name; of anything else `lock` is left as it is.
    fn take(&mut self, db: u32, name: &[u8], lock: &mut Lock) -> Found;

    /// Keeps a lock as it is now under its name, or takes the name away where the lock is free. What is left in `lock` is for nobody.
    fn put(&mut self, db: u32, name: &[u8], lock: &mut Lock);

    /// As [`Keys::put`] for a lock that was not changed.
    fn put_back(&mut self, db: u32, name: &[u8], lock: &mut Lock);

    /// When a plain key of this name ends by itself, in monotonic milliseconds.
    fn plain_end_ms(&self, _db: u32, _name: &[u8]) -> Option<u64> {
        None
    }

    /// Something has happened to a name.
    fn happened(&mut self, db: u32, name: &[u8], what: What);
}

/// What a name holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing.
    Free,
    /// A lock or a semaphore.
    Lock,
    /// Something else that is no plain key either: whoever wants a lock of that name is wrong.
    Native,
    /// A plain key: it is in the way until it goes.
    Plain,
}

/// What somebody wants.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The owner.
    pub owner: &'a [u8],
    /// The connection.
    pub client: Client,
    /// What.
    pub wanted: Wanted,
    /// What the client calls this attempt: sent again, it is not made again.
    pub id: Option<&'a [u8]>,
}

/// What an owner that releases or renews says it holds.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// The owner.
    pub owner: &'a [u8],
    /// Permits of a semaphore rather than a lock.
    pub semaphore: bool,
    /// The token of the grant, where no later one of the same owner is meant.
    pub token: Option<u64>,
}

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// It was granted, with this token.
    Granted(u64),
    /// Somebody else holds it.
    Busy,
    /// Its connection waits, and has this number as a waiter. An [`Outcome`] will come.
    Waits(u32),
}

/// What came of a request for several names at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllAcquired {
    /// All were granted, with these tokens in the order of the names.
    Granted(SmallVec<[u64; 1]>),
    /// Not all can be had, so none is.
    Busy,
    /// As [`Acquired::Waits`].
    Waits(u32),
}

/// Why something was refused. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The name holds something of another type.
    WrongType,
    /// The semaphore has another limit.
    Limit {
        /// The one it has.
        has: u32,
    },
    /// The owner has held the lock for longer than it now says it may.
    HeldTooLong {
        /// For how long it has, in milliseconds.
        for_ms: u64,
        /// For how long it may, in milliseconds: the request's `MAXHOLD`.
        at_most_ms: u64,
    },
    /// The wait would close this cycle.
    Deadlock(Vec<u8>),
    /// Whoever wants to give back or renew something does not hold it.
    NotHeld(Cause),
    /// The request was granted before, and its grant of this name has ended.
    Ended(Box<[u8]>, Cause),
}

/// Why an owner does not hold a lock. Times are milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It never did, as far as is remembered, and nobody else does.
    Never,
    /// Its lease has ended.
    LeaseEnded {
        /// How long ago.
        ago_ms: u64,
    },
    /// It gave the lock back.
    Released {
        /// How long ago.
        ago_ms: u64,
    },
    /// The lock was deleted.
    Deleted {
        /// By which client.
        client: u64,
        /// How long ago.
        ago_ms: u64,
    },
    /// Its connection was closed.
    SessionEnded {
        /// How long ago.
        ago_ms: u64,
    },
    /// Another owner holds it.
    HeldBy {
        /// Which one.
        owner: Vec<u8>,
        /// For how long.
        for_ms: u64,
    },
    /// The same owner holds it by a grant with another token.
    OtherToken {
        /// That token.
        token: u64,
        /// For how long.
        for_ms: u64,
    },
}

/// What a connection has to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// What it waited for was granted: the token, or those of all names in their order.
    Granted {
        /// The connection.
        client: Client,
        /// The tokens.
        tokens: SmallVec<[u64; 1]>,
        /// Whether an array is expected.
        all: bool,
        /// How long it has waited.
        waited_ms: u64,
    },
    /// The time it would wait is over.
    TimedOut {
        /// The connection.
        client: Client,
        /// Whether an array was expected.
        all: bool,
        /// How long it has waited.
        waited_ms: u64,
    },
    /// What it waited for has come to be of another type, or another limit.
    Refused {
        /// The connection.
        client: Client,
        /// Why.
        refusal: Refusal,
        /// The name it is about.
        name: Box<[u8]>,
        /// What it wanted.
        wanted: Wanted,
    },
    /// A grant ended that its holder did not give back.
    Lost {
        /// The connection that had acquired it.
        client: Client,
        /// The name.
        name: Box<[u8]>,
        /// The owner.
        owner: Owner,
        /// The fencing token.
        token: u64,
        /// Why.
        reason: Reason,
    },
}
