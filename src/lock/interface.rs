//! Requests to locks, and their results.

use smallvec::SmallVec;

use crate::base::ids::Key;
use crate::lock::grant::{Client, Owner, Reason};
use crate::lock::graph::Step;
use crate::lock::history::breaks::Breaks;
use crate::lock::history::{Event, What};
use crate::lock::holders::Lock;
use crate::lock::queue::Wanted;

/// Storage of locks.
pub trait Keys {
    /// Looks a name up. A lock is moved out into `lock`, which is free before, and must come back by [`Keys::put`] or
    /// [`Keys::put_back`] before anything else happens to the name. Any other value leaves `lock` unchanged.
    fn take(&mut self, key: Key<'_>, lock: &mut Lock) -> Found;

    /// Stores a changed lock under its name, or removes the name if the lock is free. `lock` must not be used afterwards.
    fn put(&mut self, key: Key<'_>, lock: &mut Lock);

    /// As [`Keys::put`] for a lock that was not changed.
    fn put_back(&mut self, key: Key<'_>, lock: &mut Lock);

    /// When a plain key of this name expires, in monotonic milliseconds.
    fn plain_end_ms(&self, _key: Key<'_>) -> Option<u64> {
        None
    }

    /// Reports an event of a name.
    fn happened(&mut self, key: Key<'_>, what: What);
}

/// What a name holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing.
    Free,
    /// A lock or a semaphore.
    Lock,
    /// Another native value: a request for a lock of that name is an error.
    Native,
    /// A plain key: it blocks the name until it is gone.
    Plain,
}

/// A request for a lock or for permits.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The owner.
    pub owner: &'a [u8],
    /// The connection.
    pub client: Client,
    /// What it asks for.
    pub wanted: Wanted,
    /// The client's id of this attempt: a repeated request with the same id is not carried out again.
    pub id: Option<&'a [u8]>,
}

/// The grant that an owner wants to release or renew.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// The owner.
    pub owner: &'a [u8],
    /// Whether it is of a semaphore rather than a lock.
    pub semaphore: bool,
    /// The token of the grant, if only this grant is meant and no later one of the owner.
    pub token: Option<u64>,
}

/// Result of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewed {
    /// The remaining milliseconds of the lease.
    pub left_ms: u64,
    /// Whether the grant is now the renewing connection's.
    pub taken_over: bool,
}

/// Result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// It was granted, with this token.
    Granted(u64),
    /// Another owner holds it.
    Busy,
    /// The connection waits as the waiter with this number. An [`Outcome`] follows.
    Waits(u32),
}

/// Result of a request for several names at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllAcquired {
    /// All were granted, with these tokens in the order of the names.
    Granted(SmallVec<[u64; 1]>),
    /// Not all are available, so none was granted.
    Busy,
    /// As [`Acquired::Waits`].
    Waits(u32),
}

/// Why a request was refused. Nothing was changed.
#[allow(missing_docs, reason = "the documentation of the enum and of its variants has them")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The name holds a value of another type.
    WrongType,
    /// The semaphore has another limit: this one.
    Limit { has: u32 },
    /// The owner has held the lock for longer than the request's `MAXHOLD`. Both are milliseconds.
    HeldTooLong { for_ms: u64, at_most_ms: u64 },
    /// The wait would close this cycle. Empty: the cycle may go through overdue leases; end them and try again.
    Deadlock(Vec<Step>),
    /// The owner that wants to release or renew does not hold the lock.
    NotHeld(Cause),
    /// The lock has no grant with the token that is to be broken. The cause is about this owner.
    NoGrant { token: u64, owner: Vec<u8>, cause: Cause },
    /// The repeated request was granted before, and its grant of this name has ended.
    Ended(Box<[u8]>, Cause),
}

/// Why an owner does not hold a lock. Times are milliseconds: `ago_ms` is how long ago that was, and `for_ms` how long the
/// lock has been held, or the grant has existed.
#[allow(missing_docs, reason = "the documentation of the enum and of its variants has them")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The owner never held it, as far as is remembered, and nobody else holds it.
    Never,
    /// The owner's lease has ended.
    LeaseEnded { ago_ms: u64 },
    /// The owner released the lock.
    Released { ago_ms: u64 },
    /// This client deleted the lock.
    Deleted { client: u64, ago_ms: u64 },
    /// This client, an administrator's, broke the lock. `why`: the reason that it gave; empty for none.
    Broken { client: u64, ago_ms: u64, why: Box<[u8]> },
    /// The owner's connection was closed.
    SessionEnded { ago_ms: u64 },
    /// Another owner holds it.
    HeldBy { owner: Vec<u8>, for_ms: u64 },
    /// The same owner holds it with a grant of another token.
    OtherToken { token: u64, for_ms: u64 },
}

impl Cause {
    /// The cause that an event names, which ended a grant `ago_ms` ago. `breaks` has the reason of a break.
    pub fn of_end(event: &Event, ago_ms: u64, breaks: &Breaks) -> Cause {
        match event.what {
            What::Released { .. } => Cause::Released { ago_ms },
            What::Ended { reason: Reason::Deleted, .. } => Cause::Deleted { client: event.client.id, ago_ms },
            What::Ended { reason: Reason::Broken, token } => {
                let why = breaks.of(token).map(|by| by.reason.clone()).unwrap_or_default();
                Cause::Broken { client: event.client.id, ago_ms, why }
            }
            What::Ended { reason: Reason::Session, .. } => Cause::SessionEnded { ago_ms },
            _ => Cause::LeaseEnded { ago_ms },
        }
    }
}

/// A result that a connection has to be told, which is `client`. `waited_ms` is the length of its wait, and `token` a fencing
/// token.
#[allow(missing_docs, reason = "the documentation of the enum and of its variants has them")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A wait ended with a grant: the token, or those of all names in their order. `all`: the reply is an array.
    Granted { client: Client, tokens: SmallVec<[u64; 1]>, all: bool, waited_ms: u64 },
    /// A wait timed out. `all`: the reply is an array.
    TimedOut { client: Client, all: bool, waited_ms: u64 },
    /// The name that a connection waits for now holds another type or has another limit than what was wanted.
    Refused { client: Client, refusal: Refusal, name: Box<[u8]>, wanted: Wanted },
    /// A grant ended that an operator may ask about: with its connection or session, or with its lease while others waited.
    /// `client`: the connection that had acquired it. `waiters`: the number of those for the name.
    Ended { db: u32, name: Box<[u8]>, owner: Owner, token: u64, reason: Reason, client: Client, waiters: u32 },
    /// A grant ended that its holder did not release. `client`: the connection that had acquired it.
    Lost { client: Client, name: Box<[u8]>, owner: Owner, token: u64, reason: Reason },
}
