//! Native locks: a single one, or several at once.

use std::time::Duration;

use crate::client::client::Client;
use crate::client::command::{Argument, Blocking, argument_bytes};
use crate::client::error::{Error, Result};
use crate::client::locks::guard::LockGuard;
use crate::client::locks::request::{Kind, LockRequest, ms};

impl Client {
    /// A native lock with this name. The client sends nothing before the lock is acquired.
    pub fn lock(&self, name: impl Argument) -> Lock {
        Lock { client: self.clone(), request: LockRequest::new(LOCK, vec![argument_bytes(name)]) }
    }

    /// Several exclusive native locks, acquired all together or not at all. The order of the names does not matter: the
    /// acquisition causes no deadlock.
    pub fn lock_all<N: Argument>(&self, names: impl IntoIterator<Item = N>) -> LockAll {
        LockAll { client: self.clone(), request: LockRequest::new(Kind::All, names.into_iter().map(argument_bytes).collect()) }
    }
}

const LOCK: Kind = Kind::Lock { shared: false, delay_ms: 0, max_hold_ms: 0 };

/// A native lock and its acquisition options.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> portcullis::client::Result<()> {
/// # let server = portcullis::TestServer::start();
/// # let client = portcullis::client::Client::connect(&server.url()).await?;
/// use std::time::Duration;
///
/// let door = client.lock("door").lease(Duration::from_secs(10)).wait(Duration::from_secs(5));
/// let guard = door.acquire().await?;
/// println!("may write with token {}", guard.token());
/// assert!(door.try_acquire().await?.is_none(), "another owner has it");
/// guard.release().await?;
/// # Ok(()) }
/// ```
///
/// **Owners.** Each acquisition has a unique owner unless [`Lock::owner`] names one. With a named owner, the lock is reentrant:
/// the same owner acquires it again at once, with the same token, and the lock is free when all guards are gone.
///
/// **When the connection breaks** during a wait, the client sends the same request again, with the same id (`REQUEST`). If the
/// server had granted the lock just before, and the reply was lost, the server returns the same token and counts no further hold.
/// If the first connection is still queued on the server, the new one takes its place. The client sends a release again likewise.
/// The release names its token, so that it cannot end a later grant.
///
/// The acquisition fails when ten connections break one after the other, or when no connection becomes available within the
/// response time-out.
///
/// **When the future of an acquire is dropped**, the client ends the wait on the server, and releases a lock that was granted
/// meanwhile. It does so in the background, shortly after the drop.
#[derive(Clone)]
pub struct Lock {
    client: Client,
    request: LockRequest,
}

/// Several native locks; see [`Client::lock_all`]. Everything else is as for a [`Lock`].
#[derive(Clone)]
pub struct LockAll {
    client: Client,
    request: LockRequest,
}

/// Options and methods that all kinds of locks share.
macro_rules! lock_options {
    () => {
        setters! {
            /// The lease: how long the lock is held without renewal; in whole milliseconds, at least one. 30 s unless given.
            pub fn lease(self, lease: Duration) { self.request.lease_ms = ms(lease) }

            /// The longest time that [`acquire`](Self::acquire) waits in the queue. Without limit unless given.
            pub fn wait(self, wait: Duration) { self.request.wait = Blocking::For(wait) }

            /// Binds the lock to a connection that only the guard uses. When the connection breaks or this process ends, for whatever
            /// reason, the first waiter gets the lock at once instead of at the end of the lease. The drawback is that a short
            /// network failure loses the lock.
            pub fn session(self) { self.request.session = true }

            /// As [`session`](Self::session), but a broken connection loses the lock only if the guard does not reconnect within this
            /// grace, in whole milliseconds. If this process has ended, the next waiter waits that long. The grace begins when the
            /// server notices the broken connection.
            pub fn session_grace(self, grace: Duration) { (self.request.session, self.request.grace) = (true, Some(grace)) }

            /// Whether the guard renews the lock in the background, every third of the lease. On unless given.
            pub fn renew(self, renew: bool) { self.request.renew = renew }
        }

        /// Acquires the lock. Waiters are granted the lock in the order of their requests.
        ///
        /// # Errors
        /// [`Error::NotGranted`] if the lock was not granted within the wait; [`Error::Deadlock`] if the wait would have closed a
        /// cycle of owners that wait for each other; otherwise as [`Client::run`].
        pub async fn acquire(&self) -> Result<LockGuard> {
            let begun = tokio::time::Instant::now();
            let granted = self.client.acquire(self.request.clone()).await?;
            granted.ok_or_else(|| Error::NotGranted { name: self.request.title(), waited: begun.elapsed() })
        }

        /// Acquires the lock if it is free now.
        ///
        /// # Errors
        /// As [`acquire`](Self::acquire).
        pub async fn try_acquire(&self) -> Result<Option<LockGuard>> {
            self.client.acquire(LockRequest { wait: Blocking::No, ..self.request.clone() }).await
        }
    };
}
pub(crate) use lock_options;

/// The option that locks have and semaphores do not.
macro_rules! owner_option {
    () => {
        /// The owner: any bytes, unique to one thread of work. Reentrancy and the detection of deadlocks need it: code that holds
        /// several locks has to acquire all of them with the same owner, so that the server can refuse a wait that would close a
        /// cycle.
        pub fn owner(mut self, owner: impl Argument) -> Self {
            self.request.owner = Some(argument_bytes(owner));
            self
        }
    };
}

impl Lock {
    lock_options!();
    owner_option!();

    /// Shares the lock with other holders that also ask for it shared.
    pub fn shared(mut self) -> Self {
        if let Kind::Lock { shared, .. } = &mut self.request.kind {
            *shared = true;
        }
        self
    }

    /// Lock delay: if the guard loses the lock instead of releasing it, no other owner gets it for this long. Late writes of the
    /// former holder can arrive meanwhile.
    pub fn delay(mut self, delay: Duration) -> Self {
        if let Kind::Lock { delay_ms, .. } = &mut self.request.kind {
            *delay_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        }
        self
    }

    /// The longest time that the lock may be held, including all renewals.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        if let Kind::Lock { max_hold_ms, .. } = &mut self.request.kind {
            *max_hold_ms = ms(max_hold);
        }
        self
    }
}

impl LockAll {
    lock_options!();
    owner_option!();
}
