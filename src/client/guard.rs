//! The guard that holds a lock.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::client::command::Command;
use crate::client::error::{Error, Result};
use crate::client::held::Held;

/// A held lock, several held locks, or held permits of a semaphore.
///
/// The guard renews its lease in the background every third of the lease, unless [renewal is off](crate::client::Lock::renew).
/// Dropping it releases the lock in the background, without waiting for the server; [`LockGuard::release`] waits and reports
/// errors. If the runtime has shut down meanwhile, the lock stays held until its lease ends; a session's lock is released then,
/// because its connection closes.
///
/// Holding a lock is a belief about a remote server. A guard's belief ends no later than the truth: [`LockGuard::is_lost`] is
/// true when the server has said that the lock is gone, and in any case when the lease is over, counted on this process's
/// monotonic clock from before the request was sent. Writes under the lock are safe from a process that was suspended meanwhile
/// only if they carry the [token](LockGuard::token) and the store refuses smaller ones; see
/// [`Resource`](crate::client::Resource).
#[must_use = "what is not kept is given back at once"]
pub struct LockGuard {
    held: Arc<Held>,
    released: bool,
}

/// How a grant was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lost {
    /// Its lease ended: the server said so, or could not be asked in time.
    Lease,
    /// The lock was deleted: another client broke it.
    Deleted,
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
            Lost::Lease => f.write_str("its lease is over"),
            Lost::Deleted => f.write_str("the lock was deleted"),
            Lost::MaxHold => f.write_str("it was held for as long as was allowed"),
            Lost::Connection => f.write_str("the connection it was bound to is closed"),
            Lost::NotHeld(cause) => f.write_str(cause),
            Lost::Released => f.write_str("it was given back"),
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

    /// The time for which the lock is certainly held, unless another client breaks it; zero if it is lost.
    pub fn remaining(&self) -> Duration {
        let state = self.held.state.borrow();
        match state.lost {
            Some(_) => Duration::ZERO,
            None => state.deadline.saturating_duration_since(Instant::now()),
        }
    }

    /// Returns how the lock was lost, when it is lost, or when it was released. The future may be dropped and requested again,
    /// and it does not borrow the guard:
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
                    if state.over {
                        return Lost::Released;
                    }
                    state.deadline
                };
                if Instant::now() >= deadline {
                    held.lose(Lost::Lease);
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
    /// If the server cannot be asked.
    pub async fn check(&self) -> Result<bool> {
        let names = self.held.wish.names.iter().zip(&self.held.tokens);
        let commands: Vec<_> = names.map(|(name, token)| Command::new("LOCK.CHECK").arg(name).arg(*token)).collect();
        let replies = self.held.send(&commands, true, self.held.core.deadline(Duration::ZERO)).await?;
        let mut all = true;
        for reply in replies {
            all &= reply.into::<bool>()?;
        }
        if !all {
            self.held.lose(Lost::NotHeld("LOCK.CHECK does not know the token".to_owned()));
        }
        Ok(all)
    }

    /// Restarts the lease. Returns the remaining time, which is less than the lease where
    /// [`max_hold`](crate::client::Lock::max_hold) bounds it.
    ///
    /// # Errors
    /// [`Error::NotHeld`] if the lock is lost, with the server's reason.
    pub async fn renew(&self) -> Result<Duration> {
        let renewed = self.held.renew().await;
        if let Err(Error::NotHeld(cause)) = &renewed {
            self.held.lose(Lost::NotHeld(cause.clone()));
        }
        renewed
    }

    /// Releases the lock, and waits for the server's reply. The server grants the lock to the first waiter. The future may be
    /// dropped: the lock is released all the same.
    ///
    /// # Errors
    /// [`Error::NotHeld`] if the lock was lost before, with the server's reason: work since the loss was not protected. A
    /// connection error if the lock could not be released in time; the guard retries until the lease is over.
    pub async fn release(mut self) -> Result {
        self.released = true;
        self.held.end();
        let given_back = self.held.core.runtime.spawn(Arc::clone(&self.held).give_back());
        let ended = || Error::Disconnected { maybe_applied: true, reason: "the runtime has ended".to_owned() };
        given_back.await.unwrap_or_else(|_| Err(ended()))
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if !self.released {
            self.held.end();
            // If the runtime has shut down, this task does not run.
            self.held.core.runtime.spawn(Arc::clone(&self.held).give_back());
        }
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.held.wish.names.iter().map(|name| String::from_utf8_lossy(name)).collect();
        f.debug_struct("LockGuard").field("names", &names).field("tokens", &self.held.tokens).finish_non_exhaustive()
    }
}
