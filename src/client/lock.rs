//! Native locks: one, or several at once.

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
    /// A native lock by its name. Nothing is sent before it is acquired.
    pub fn lock(&self, name: impl Argument) -> Lock {
        Lock { client: self.clone(), wish: Wish::new(LOCK, vec![bytes(name)]) }
    }

    /// Several native locks, which are had all together or not at all, whoever else wants some of them in whatever order. They are exclusive.
    pub fn lock_all<N: Argument>(&self, names: impl IntoIterator<Item = N>) -> LockAll {
        LockAll { client: self.clone(), wish: Wish::new(Kind::All, names.into_iter().map(bytes).collect()) }
    }
}

const LOCK: Kind = Kind::Lock { shared: false, delay_ms: 0, max_hold_ms: 0 };

/// A native lock, and on what terms it is to be acquired.
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
/// **Owners.** Each acquisition has an owner of its own unless [`Lock::owner`] names one. Then it is reentrant: the same owner has it at
/// once, with the same token, and it is free when all guards have gone.
///
/// **When the connection breaks** while it is waited for, the client sends the same request again (`REQUEST`). If it was granted just before
/// that, unheard, the server gives the same token and no further hold; if the server still has the first connection in the line, the second
/// one takes its place. A release is sent again likewise, and names its token, so that it ends no later grant.
///
/// When ten connections break one after the other, or none is to be had within the time for a reply, it fails.
///
/// **When the future of an acquire is dropped**, the wait on the server ends, and what was granted meanwhile is given back: in the background,
/// shortly after.
#[derive(Clone)]
pub struct Lock {
    client: Client,
    wish: Wish,
}

/// Several native locks; see [`Client::lock_all`] and, for all else, [`Lock`].
#[derive(Clone)]
pub struct LockAll {
    client: Client,
    wish: Wish,
}

/// What all that can be acquired has in common.
macro_rules! terms {
    () => {
        /// How long it is held unless it is renewed; in whole milliseconds, at least one. 30 s unless given.
        pub fn lease(mut self, lease: Duration) -> Self {
            self.wish.lease_ms = ms(lease);
            self
        }

        /// How long [`acquire`](Self::acquire) waits in line at most. Without limit unless given.
        pub fn wait(mut self, wait: Duration) -> Self {
            self.wish.wait = Wait::For(wait);
            self
        }

        /// Binds it to a connection, which the guard has for itself: when that breaks or this process ends, for whatever reason, whoever
        /// waits first has it at once and need not wait for the end of the lease. The price: a short breakdown of the network costs the lock.
        pub fn session(mut self) -> Self {
            self.wish.session = true;
            self
        }

        /// As [`session`](Self::session), but a connection that breaks costs the lock only when the guard has not connected anew within this
        /// grace, in whole milliseconds: so long the next one waits where this process has ended. The server counts it from when it notices.
        pub fn session_grace(mut self, grace: Duration) -> Self {
            (self.wish.session, self.wish.grace) = (true, Some(grace));
            self
        }

        /// Whether the guard renews it in the background, at a third of the lease. It does unless it is told otherwise.
        pub fn renew(mut self, renew: bool) -> Self {
            self.wish.renew = renew;
            self
        }

        /// Acquires it, after those who have asked before.
        ///
        /// # Errors
        /// [`Error::NotGranted`] where it was not had in the time that was to be waited; [`Error::Deadlock`] where the wait would have
        /// closed a cycle of owners waiting for each other; those of [`Client::run`] otherwise.
        pub async fn acquire(&self) -> Result<LockGuard> {
            let begun = tokio::time::Instant::now();
            let granted = self.client.acquire(self.wish.clone()).await?;
            granted.ok_or_else(|| Error::NotGranted { name: self.wish.title(), waited: begun.elapsed() })
        }

        /// Acquires it where it is to be had at once.
        ///
        /// # Errors
        /// As [`acquire`](Self::acquire).
        pub async fn try_acquire(&self) -> Result<Option<LockGuard>> {
            self.client.acquire(Wish { wait: Wait::No, ..self.wish.clone() }).await
        }
    };
}
pub(crate) use terms;

/// What locks have and semaphores have not.
macro_rules! owned {
    () => {
        /// On whose behalf it is acquired: any bytes, unique to one thread of work. Who holds several locks acquires them by one owner, as that
        /// is how the server knows that it would wait for itself, and refuses to. Needed for that and for reentrancy.
        pub fn owner(mut self, owner: impl Argument) -> Self {
            self.wish.owner = Some(bytes(owner));
            self
        }
    };
}

impl Lock {
    terms!();
    owned!();

    /// Shares it with others who do so too.
    pub fn shared(mut self) -> Self {
        self.change(|shared, _, _| *shared = true);
        self
    }

    /// Should its guard lose it, rather than give it back, nobody else has it for so long: time for late writes to arrive.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.change(|_, delay_ms, _| *delay_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX));
        self
    }

    /// It is held for so long at most, however often it is renewed.
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
