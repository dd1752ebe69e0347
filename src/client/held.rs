//! A held grant: its deadline, its tokens, and whether it was lost.
//!
//! ```text
//!   granted ─▶ Held ◀─ keeper: renews at a third of the lease ─▶ deadline
//!               ▲  ◀─ lock-lost push, NOTHELD, a session's connection that breaks ─▶ lost
//!               └─ LockGuard
//! ```

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use crate::client::command::Command;
use crate::client::connection::Connection;
use crate::client::core::{Backoff, Core, Leased};
use crate::client::error::{Error, Result};
use crate::client::guard::Lost;
use crate::client::pushes::Loser;
use crate::client::value::Value;
use crate::client::wish::Wish;

/// A held grant.
pub(crate) struct Held {
    pub core: Arc<Core>,
    pub wish: Wish,
    pub owner: Vec<u8>,
    pub tokens: Vec<u64>,
    pub state: watch::Sender<State>,
    /// The connection that the grant is bound to, if any.
    session: Mutex<Option<Leased>>,
    /// Id of the named session that the grant is bound to, instead of to the connection alone.
    named: Option<String>,
}

/// What this process knows about a grant.
#[derive(Clone, Debug)]
pub(crate) struct State {
    /// The end of the lease on this process's clock, counted from before the request: the server's lease begins no earlier.
    pub deadline: Instant,
    pub lost: Option<Lost>,
    /// Whether the guard is gone.
    pub over: bool,
}

impl State {
    /// Whether the grant is no longer held.
    pub fn is_lost(&self) -> bool {
        self.lost.is_some() || Instant::now() >= self.deadline
    }
}

impl Held {
    pub fn new(
        core: &Arc<Core>,
        wish: Wish,
        owner: Vec<u8>,
        tokens: Vec<u64>,
        deadline: Instant,
        (session, named): (Option<Leased>, Option<String>),
    ) -> Arc<Held> {
        let state = watch::Sender::new(State { deadline, lost: None, over: false });
        let held = Held { core: Arc::clone(core), wish, owner, tokens, state, session: Mutex::new(session), named };
        if held.wish.owner.is_some() {
            held.wish.names.iter().for_each(|name| core.holds.add(name, &held.owner, held.wish.lease_ms));
        }
        let held = Arc::new(held);
        for &token in &held.tokens {
            core.pushes.watch(token, held.as_loser());
        }
        held
    }

    /// Spawns the task that renews and watches the grant until its guard goes.
    pub fn keep(self: &Arc<Self>) {
        if self.wish.renew || self.wish.session {
            self.core.runtime.spawn(Arc::clone(self).keeping());
        }
    }

    fn as_loser(self: &Arc<Self>) -> Weak<dyn Loser> {
        let weak: Weak<Held> = Arc::downgrade(self);
        weak
    }

    /// Records the loss of the grant. Only the first loss counts.
    pub fn lose(&self, how: Lost) {
        self.state.send_if_modified(|state| {
            let first = state.lost.is_none();
            if first {
                state.lost = Some(how);
            }
            first
        });
    }

    /// Ends the guard's life: the grant is not renewed any more, and no loss is reported.
    pub fn end(self: &Arc<Self>) {
        self.state.send_modify(|state| state.over = true);
        let loser = self.as_loser();
        self.tokens.iter().for_each(|&token| self.core.pushes.unwatch(token, &loser));
    }

    /// Sends commands on the connection that the grant is bound to, or else on the shared one, and waits for their replies until
    /// a deadline.
    pub async fn send(&self, commands: &[Command], idempotent: bool, deadline: Instant) -> Result<Vec<Value>> {
        let mut wire = Vec::new();
        commands.iter().for_each(|command| wire.extend_from_slice(command.wire()));
        let (wire, count) = (&wire, commands.len());
        match self.bound() {
            Some(connection) => self.core.on(&connection, wire, count, deadline).await,
            None => self.core.exchange(deadline, idempotent, |on| async move { on.send_many(wire.clone(), count).await }).await,
        }
    }

    /// Restarts the lease, and moves the deadline. Returns the remaining time according to the server.
    pub async fn renew(&self) -> Result<Duration> {
        let renewal = |(name, token): (&Vec<u8>, Option<u64>)| {
            let given = self.wish.owner.is_some().then(|| self.core.holds.lease_ms(name, &self.owner)).flatten();
            self.wish.renewal(name, &self.owner, given.unwrap_or(0).max(self.wish.lease_ms), token)
        };
        let commands: Vec<_> = self.named_tokens().map(renewal).collect();
        let begun = Instant::now();
        let mut left_ms = u64::MAX;
        // A renewal that is sent again may run twice, and later than it was begun, which does no harm.
        for reply in self.send(&commands, true, self.core.deadline(Duration::ZERO)).await? {
            left_ms = left_ms.min(reply.into::<u64>()?);
        }
        let left = Duration::from_millis(left_ms);
        self.state.send_modify(|state| state.deadline = begun + left);
        Ok(left)
    }

    /// The connection that the grant is bound to.
    fn bound(&self) -> Option<Connection> {
        let session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        session.as_ref().map(|leased| (**leased).clone())
    }

    /// Resumes the named session on a new connection after the old one broke. Returns false if the session has ended, or if no
    /// connection is available by the deadline.
    async fn resume(&self, deadline: Instant) -> bool {
        let Some(id) = &self.named else { return false };
        let naming = self.wish.naming(id);
        let mut again = Backoff::new();
        loop {
            let named = async {
                let leased = self.core.lease(deadline).await?;
                let replies = self.core.on(&leased, naming.wire(), 1, deadline).await?;
                let mut grants = 0;
                for reply in replies {
                    grants = reply.into::<u64>()?;
                }
                Ok((leased, grants))
            };
            match named.await {
                // The session has ended, and this is a new one with the same name.
                Ok((_, 0)) => return false,
                Ok((leased, _)) => {
                    *self.session.lock().unwrap_or_else(PoisonError::into_inner) = Some(leased);
                    return true;
                }
                Err(error) if Error::is_of_connection(&error) => {}
                Err(_) => return false,
            }
            again.failed(self.core.options.backoff);
            if !again.wait(deadline).await {
                return false;
            }
        }
    }

    /// The names, each with the token of its grant, unless the server may have replaced the token.
    fn named_tokens(&self) -> impl Iterator<Item = (&Vec<u8>, Option<u64>)> {
        let known = !self.wish.may_be_upgraded();
        self.wish.names.iter().zip(&self.tokens).map(move |(name, &token)| (name, known.then_some(token)))
    }

    /// Renews the grant until its guard goes or it is lost.
    async fn keeping(self: Arc<Self>) {
        let lease = Duration::from_millis(self.wish.lease_ms);
        // A twentieth of the lease, within 5 ms and 1 s, so that several attempts fit into what is left of it.
        let retry = (lease / 20).clamp(Duration::from_millis(5), Duration::from_secs(1));
        let mut state = self.state.subscribe();
        let mut broken = Box::pin(broken(self.bound()));
        let mut next = {
            let left = state.borrow().deadline.saturating_duration_since(Instant::now());
            Instant::now() + left.saturating_sub(self.wish.lease() * 2 / 3)
        };
        loop {
            let deadline = {
                let state = state.borrow_and_update();
                if state.over || state.lost.is_some() {
                    return;
                }
                state.deadline
            };
            let due = if self.wish.renew { next.min(deadline) } else { deadline };
            tokio::select! {
                _ = state.changed() => continue,
                () = &mut broken => {
                    if !self.resume(deadline).await {
                        return self.lose(Lost::Connection);
                    }
                    broken.set(self::broken(self.bound()));
                    continue;
                }
                () = sleep_until(due) => {}
            }
            if Instant::now() >= deadline {
                return self.lose(Lost::Lease);
            }
            let renewed = tokio::select! {
                biased;
                renewed = self.renew() => renewed,
                () = &mut broken => {
                    if !self.resume(deadline).await {
                        return self.lose(Lost::Connection);
                    }
                    broken.set(self::broken(self.bound()));
                    continue;
                }
                () = sleep_until(deadline) => return self.lose(Lost::Lease),
            };
            next = match renewed {
                Ok(left) => Instant::now() + (left.min(lease) / 3).max(Duration::from_millis(1)),
                Err(Error::NotHeld(cause)) => return self.lose(Lost::NotHeld(cause)),
                // The next renewal may get a clearer answer; the grant is held until its lease is over.
                Err(_) => Instant::now() + retry,
            };
        }
    }

    /// Releases the grant. A release whose reply is lost is sent again: its id and the token keep it from ending any other grant.
    pub async fn give_back(self: Arc<Self>) -> Result {
        let own = self.wish.owner.is_none();
        let id = self.core.unique_name();
        let release = |(name, token): (&Vec<u8>, Option<u64>)| {
            let all = own || self.core.holds.remove(name, &self.owner);
            self.wish.release(name, &self.owner, all, token, &id)
        };
        let commands: Vec<_> = self.named_tokens().map(release).collect();
        let (begun, lease) = (Instant::now(), Duration::from_millis(self.wish.lease_ms));
        let mut unsure = false;
        loop {
            let sent = self.send(&commands, false, self.core.deadline(Duration::ZERO)).await;
            let outcome = sent.and_then(|replies| replies.into_iter().try_for_each(|reply| reply.into_result().map(drop)));
            match outcome {
                // The first attempt has released it.
                Err(Error::NotHeld(_)) if unsure => return Ok(()),
                // After the lease is over, there is nothing to release.
                Err(error) if !self.wish.session && error.is_of_connection() && begun.elapsed() < lease => {
                    unsure |= error.maybe_applied();
                    sleep(self.core.options.backoff.0).await;
                }
                Err(error) if self.named.is_some() && error.is_of_connection() && begun.elapsed() < lease => {
                    unsure |= error.maybe_applied();
                    let deadline = self.state.borrow().deadline;
                    if !self.resume(deadline).await {
                        // The grant was released, or ended with its session: it is free.
                        return if unsure { Ok(()) } else { Err(error) };
                    }
                }
                Err(error) if self.wish.session && error.is_of_connection() => {
                    return Err(Error::NotHeld(format!("the connection that '{}' was bound to is closed", self.wish.title())));
                }
                outcome => {
                    if outcome.as_ref().is_err_and(Error::is_of_connection) && !own {
                        self.wish.names.iter().for_each(|name| self.core.holds.unsure(name, &self.owner));
                    }
                    let session = self.session.lock().unwrap_or_else(PoisonError::into_inner).take();
                    if let Some(mut leased) = session {
                        leased.reusable = outcome.is_ok() && self.named.is_none();
                    }
                    return outcome;
                }
            }
        }
    }
}

/// Returns when the connection closes; never if there is none.
async fn broken(connection: Option<Connection>) {
    match connection {
        Some(connection) => connection.closed().await,
        None => std::future::pending().await,
    }
}

impl Loser for Held {
    fn lost(&self, token: u64, reason: &str) {
        if self.tokens.contains(&token) {
            self.lose(match reason {
                "lease" => Lost::Lease,
                "deleted" => Lost::Deleted,
                "maxhold" => Lost::MaxHold,
                "session" => Lost::Connection,
                other => Lost::NotHeld(other.to_owned()),
            });
        }
    }
}
