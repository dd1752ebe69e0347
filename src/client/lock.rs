//! Native locks: a single one, or several at once.

use std::time::Duration;

use crate::client::client::Client;
use crate::client::command::Argument;
use crate::client::error::{Error, Result};
use crate::client::guard::LockGuard;
use crate::client::wish::{Kind, Wait, Wish, ms};

pub(crate) fn bytes(argument: impl Argument) -> Vec<u8> {
    let mut bytes = Vec::new();
    argument.with_bytes(&mut |given| bytes.extend_from_slice(given));
    bytes
}

impl Client {
    /// A native lock with this name. Nothing is sent until it is acquired.
    pub fn lock(&self, name: impl Argument) -> Lock {
        Lock { client: self.clone(), wish: Wish::new(LOCK, vec![bytes(name)]) }
    }

    /// Several native locks, acquired all together or not at all, in any order and without deadlock. They are exclusive.
    pub fn lock_all<N: Argument>(&self, names: impl IntoIterator<Item = N>) -> LockAll {
        LockAll { client: self.clone(), wish: Wish::new(Kind::All, names.into_iter().map(bytes).collect()) }
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
/// assert!(door.try_acquire().await?.is_none(), "somebody else has it");
/// guard.release().await?;
/// # Ok(()) }
/// ```
///
/// **Owners.** Each acquisition has a unique owner unless [`Lock::owner`] names one. With a named owner, the lock is reentrant:
/// the same owner acquires it again at once, with the same token, and the lock is free when all guards are gone.
///
/// **When the connection breaks** during a wait, the client sends the same request again (`REQUEST`). If the lock was granted
/// just before that, and the reply was lost, the server returns the same token and counts no further hold. If the first
/// connection is still queued on the server, the second one takes its place. A release is sent again likewise, and names its
/// token, so that it ends no later grant.
///
/// The acquisition fails when ten connections break one after the other, or when no connection becomes available within the
/// response time-out.
///
/// **When the future of an acquire is dropped**, the wait on the server ends, and a lock that was granted meanwhile is released:
/// in the background, shortly after.
#[derive(Clone)]
pub struct Lock {
    client: Client,
    wish: Wish,
}

/// Several native locks; see [`Client::lock_all`], and [`Lock`] for everything else.
#[derive(Clone)]
pub struct LockAll {
    client: Client,
    wish: Wish,
}

/// Options and methods that all kinds of locks share.
macro_rules! terms {
    () => {
        /// The lease: how long the lock is held without renewal; in whole milliseconds, at least one. 30 s unless given.
        pub fn lease(mut self, lease: Duration) -> Self {
            self.wish.lease_ms = ms(lease);
            self
        }

        /// The longest time that [`acquire`](Self::acquire) waits in the queue. Without limit unless given.
        pub fn wait(mut self, wait: Duration) -> Self {
            self.wish.wait = Wait::For(wait);
            self
        }

        /// Binds the lock to a connection that only the guard uses. When the connection breaks or this process ends, for whatever
        /// reason, the first waiter gets the lock at once instead of at the end of the lease. The price: a short network failure
        /// costs the lock.
        pub fn session(mut self) -> Self {
            self.wish.session = true;
            self
        }

        /// As [`session`](Self::session), but a broken connection costs the lock only if the guard has not reconnected within
        /// this grace, in whole milliseconds. If this process has ended, the next waiter waits that long. The grace begins when
        /// the server notices the broken connection.
        pub fn session_grace(mut self, grace: Duration) -> Self {
            (self.wish.session, self.wish.grace) = (true, Some(grace));
            self
        }

        /// Whether the guard renews the lock in the background, every third of the lease. On unless given.
        pub fn renew(mut self, renew: bool) -> Self {
            self.wish.renew = renew;
            self
        }

        /// Acquires the lock, after the waiters that asked before.
        ///
        /// # Errors
        /// [`Error::NotGranted`] if the lock was not granted within the wait; [`Error::Deadlock`] if the wait would have closed a
        /// cycle of owners that wait for each other; otherwise as [`Client::run`].
        pub async fn acquire(&self) -> Result<LockGuard> {
            let begun = tokio::time::Instant::now();
            let granted = self.client.acquire(self.wish.clone()).await?;
            granted.ok_or_else(|| Error::NotGranted { name: self.wish.title(), waited: begun.elapsed() })
        }

        /// Acquires the lock if it is free now.
        ///
        /// # Errors
        /// As [`acquire`](Self::acquire).
        pub async fn try_acquire(&self) -> Result<Option<LockGuard>> {
            self.client.acquire(Wish { wait: Wait::No, ..self.wish.clone() }).await
        }
    };
}
pub(crate) use terms;

/// Options of locks that semaphores do not have.
macro_rules! owned {
    () => {
        /// The owner: any bytes, unique to one thread of work. Code that holds several locks acquires them with the same owner,
        /// because that is how the server recognizes and refuses a wait for itself. Needed for that and for reentrancy.
        pub fn owner(mut self, owner: impl Argument) -> Self {
            self.wish.owner = Some(bytes(owner));
            self
        }
    };
}

impl Lock {
    terms!();
    owned!();

    /// Shares the lock with other holders that also ask for it shared.
    pub fn shared(mut self) -> Self {
        self.change(|shared, _, _| *shared = true);
        self
    }

    /// Lock delay: if the guard loses the lock instead of releasing it, no other owner gets it for this long, so that late writes
    /// can arrive.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.change(|_, delay_ms, _| *delay_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX));
        self
    }

    /// The longest time that the lock may be held, including all renewals.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.change(|_, _, max_hold_ms| *max_hold_ms = ms(max_hold));
        self
    }

    fn change(&mut self, change: impl FnOnce(&mut bool, &mut u64, &mut u64)) {
        if let Kind::Lock { shared, delay_ms, max_hold_ms } = &mut self.wish.kind {
            change(shared, delay_ms, max_hold_ms);
        }
    }
}

impl LockAll {
    terms!();
    owned!();
}
