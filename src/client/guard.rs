//! What holds a lock: a guard.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::client::command::Command;
use crate::client::error::{Error, Result};
use crate::client::held::Held;

/// A lock, several locks or permits of a semaphore, held.
///
/// It is renewed in the background at a third of its lease, unless [that was switched off](crate::client::Lock::renew), and given back when
/// it is dropped: in the background, without waiting for the server; [`LockGuard::release`] waits and tells of errors. Where the runtime has
/// ended meanwhile, it stays held until its lease is over, or, of a session, until the connection is closed, which is then.
///
/// To hold a lock is a belief about a server somewhere else. This one ends no later than the truth: [`LockGuard::is_lost`] is true when
/// the server has said that the lock is gone, and in any case when the lease is over, counted on this process's monotonic clock from before it
/// was asked for. What is written under the lock is safe from a process that was suspended meanwhile only if it goes along with the
/// [token](LockGuard::token), and whoever stores it refuses smaller ones; see [`Resource`](crate::client::Resource).
#[must_use = "what is not kept is given back at once"]
pub struct LockGuard {
    held: Arc<Held>,
    released: bool,
}

/// How a grant was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lost {
    /// Its lease is over: the server says so, or could not be asked before.
    Lease,
    /// The lock was deleted: somebody has broken it.
    Deleted,
    /// It was held for as long as [`max_hold`](crate::client::Lock::max_hold) allows.
    MaxHold,
    /// The connection that it was bound to is closed.
    Connection,
    /// The server refused a renewal, in these words.
    NotHeld(String),
    /// It was not lost, but given back by its guard.
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

    /// The fencing token; that of the first name where there are several.
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

    /// Whether it is not held any more, as far as this process knows: at once, without asking.
    pub fn is_lost(&self) -> bool {
        self.held.state.borrow().is_lost()
    }

    /// How long it is held for certain, unless somebody breaks it; nothing where it is lost.
    pub fn remaining(&self) -> Duration {
        let state = self.held.state.borrow();
        match state.lost {
            Some(_) => Duration::ZERO,
            None => state.deadline.saturating_duration_since(Instant::now()),
        }
    }

    /// Returns when it is lost, and how; or when it was given back. The future may be dropped and asked for again; it does not keep the guard from being used:
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

    /// Asks the server whether it is still held by these tokens (`LOCK.CHECK`).
    ///
    /// # Errors
    /// Where the server cannot be asked.
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

    /// Begins the lease anew; gives what is left of it then, which is less than a lease where [`max_hold`](crate::client::Lock::max_hold)
    /// bounds it.
    ///
    /// # Errors
    /// [`Error::NotHeld`] where it is lost, with the server's reason.
    pub async fn renew(&self) -> Result<Duration> {
        let renewed = self.held.renew().await;
        if let Err(Error::NotHeld(cause)) = &renewed {
            self.held.lose(Lost::NotHeld(cause.clone()));
        }
        renewed
    }

    /// Gives it back, and waits until the server has it. Whoever waits first has it then. The future may be dropped: it is given back
    /// all the same.
    ///
    /// # Errors
    /// [`Error::NotHeld`] where it had been lost, with the server's reason: what was done since then was not protected. Errors of the
    /// connection where it could not be given back in time, which is tried until the lease is over.
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
            // A runtime that has ended does not run it.
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
