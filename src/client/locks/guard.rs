//! The guard, through which a caller holds a lock.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::client::command::Command;
use crate::client::connection::multiplexed::runtime_ended;
use crate::client::error::{Error, Result};
use crate::client::locks::held::Held;

/// A held lock, several held locks, or held permits of a semaphore.
///
/// The guard renews its lease in the background every third of the lease, unless [renewal is off](crate::client::Lock::renew).
/// Dropping it releases the lock in the background, without waiting for the server; [`LockGuard::release`] waits and reports
/// errors. If the runtime has shut down before the drop, the lock stays held until its lease ends. A session's lock is free as
/// soon as the runtime shuts down, because its connection closes.
///
/// Only the server knows who holds a lock. A guard considers the lock held for no longer than the server does:
/// [`LockGuard::is_lost`] is true when the server has reported the loss, and in any case when nobody has answered for the lease, less
/// a margin. The lease counts on this process's monotonic clock, from when the last request was sent that was answered. The margin is
/// a twentieth of the lease, and no more than a second and a thousandth of the lease: the holder needs it to stop, and its clock may
/// be slower than the server's.
///
/// A process that was suspended may still write after its lease ended. The data is safe from such a write only if each write
/// carries the [token](LockGuard::token) and the store refuses smaller tokens; see [`Resource`](crate::client::Resource).
#[must_use = "dropping the guard releases the lock"]
pub struct LockGuard {
    held: Arc<Held>,
    released: bool,
}

/// How a lock was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lost {
    /// Its lease ended: the server reported it, or the guard could not renew the lease in time.
    Lease,
    /// A client deleted the lock, for example with `DEL`.
    Deleted,
    /// An administrator broke the lock (`LOCK.BREAK`).
    Broken,
    /// The lock was held for as long as [`max_hold`](crate::client::Lock::max_hold) allows.
    MaxHold,
    /// The connection that it was bound to closed.
    Connection,
    /// The server refused a renewal, with this text.
    NotHeld(String),
    /// It was not lost: its guard released it.
    Released,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lost::Lease => f.write_str("its lease ended"),
            Lost::Deleted => f.write_str("the lock was deleted"),
            Lost::Broken => f.write_str("an administrator broke the lock"),
            Lost::MaxHold => f.write_str("the maximum hold time was reached"),
            Lost::Connection => f.write_str("the connection that it was bound to has closed"),
            Lost::NotHeld(cause) => f.write_str(cause),
            Lost::Released => f.write_str("it was released"),
        }
    }
}

impl LockGuard {
    pub(crate) fn new(held: Arc<Held>) -> LockGuard {
        LockGuard { held, released: false }
    }

    /// The fencing token; the first name's token if there are several names.
    pub fn token(&self) -> u64 {
        self.held.tokens.first().copied().unwrap_or_default()
    }

    /// The fencing tokens, in the order of the names.
    pub fn tokens(&self) -> &[u64] {
        &self.held.tokens
    }

    /// The owner, as the server knows it.
    pub fn owner(&self) -> &[u8] {
        &self.held.owner
    }

    /// Whether the lock is lost, as far as this process knows. Returns at once, without asking the server.
    pub fn is_lost(&self) -> bool {
        self.held.state.borrow().is_lost()
    }

    /// The time for which the lock is certainly held, unless another client deletes it: the rest of the lease, less the margin. Zero
    /// if it is lost.
    pub fn remaining(&self) -> Duration {
        let state = self.held.state.borrow();
        if state.lost.is_some() { Duration::ZERO } else { state.deadline.saturating_duration_since(Instant::now()) }
    }

    /// Waits until the lock is lost or released, and returns how. The future may be dropped and requested again, and it does not
    /// borrow the guard:
    ///
    /// ```
    /// # async fn work() {}
    /// # async fn example(guard: portcullis::client::LockGuard) {
    /// tokio::select! {
    ///     () = work() => drop(guard.release().await),
    ///     lost = guard.lost() => eprintln!("stopped: {lost}"),
    /// }
    /// # }
    /// ```
    pub fn lost(&self) -> impl Future<Output = Lost> + Send + 'static {
        let held = Arc::clone(&self.held);
        async move {
            let mut state = held.state.subscribe();
            loop {
                let deadline = {
                    let state = state.borrow_and_update();
                    if let Some(lost) = &state.lost {
                        return lost.clone();
                    }
                    if state.released {
                        return Lost::Released;
                    }
                    state.deadline
                };
                if Instant::now() >= deadline {
                    held.lose_ended();
                    continue;
                }
                tokio::select! {
                    changed = state.changed() => if changed.is_err() { return Lost::Lease },
                    () = sleep_until(deadline) => {}
                }
            }
        }
    }

    /// Asks the server whether the lock is still held by these tokens (`LOCK.CHECK`).
    ///
    /// # Errors
    /// As [`Client::run`](crate::client::Client::run).
    pub async fn check(&self) -> Result<bool> {
        if self.is_lost() {
            return Ok(false);
        }
        let names = self.held.request.names.iter().zip(&self.held.tokens);
        let commands: Vec<_> = names.map(|(name, token)| Command::new("LOCK.CHECK").arg(name).arg(*token)).collect();
        let mut held = true;
        // It only reads, so it need not run on the connection that the grant is bound to, which may have closed.
        for reply in self.held.ask(&commands).await? {
            held &= reply.into::<bool>()?;
        }
        if !held {
            self.held.lose(Lost::NotHeld("LOCK.CHECK: the token does not hold the lock".to_owned()));
        }
        // Who was not answered in time is no holder, although the server may still have the grant.
        Ok(held && !self.is_lost())
    }

    /// Restarts the lease. Returns the remaining time, less the margin, which is still less if
    /// [`max_hold`](crate::client::Lock::max_hold) ends it earlier.
    ///
    /// # Errors
    /// [`Error::NotHeld`] if the lock is lost, with the server's reason.
    pub async fn renew(&self) -> Result<Duration> {
        let renewed = self.held.renew_when_bound().await;
        if let Err(Error::NotHeld(cause)) = &renewed {
            self.held.lose(Lost::NotHeld(cause.clone()));
        }
        renewed
    }

    /// Releases the lock, and waits for the server's reply. The server grants the lock to the first waiter. If the future is
    /// dropped, the release continues in the background.
    ///
    /// # Errors
    /// [`Error::NotHeld`] if the lock was lost before, with the server's reason: the work since the loss was not protected. A
    /// connection error if the lock could not be released before its lease ended; until then, the client tries again.
    pub async fn release(mut self) -> Result {
        self.released = true;
        self.held.stop();
        let released = self.held.core.runtime.spawn(Arc::clone(&self.held).release());
        released.await.unwrap_or_else(|_| Err(runtime_ended()))
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if !self.released {
            self.held.stop();
            // If the runtime has shut down, this task does not run.
            self.held.core.runtime.spawn(Arc::clone(&self.held).release());
        }
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.held.request.names.iter().map(|name| String::from_utf8_lossy(name)).collect();
        f.debug_struct("LockGuard").field("names", &names).field("tokens", &self.held.tokens).finish_non_exhaustive()
    }
}
