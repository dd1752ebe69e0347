//! Acquires locks: chooses the connection, sends the request again when the connection breaks, and cleans up when the caller drops
//! the future (cancellation).
//!
//! Each acquisition runs as a task of its own, so that it can clean up after its caller is gone:
//!
//! ```text
//!   Lock::acquire ─▶ task: attempt ─┬─▶ granted ─▶ LockGuard ─▶ the caller (if it is gone, the dropped guard releases the lock)
//!                          ▲        ├─▶ the caller is gone ─▶ cancel: CLIENT UNBLOCK, and release what was granted before it
//!                          │        └─▶ the connection broke ─┐
//!                          └─── with the same request id ─────┘
//! ```

use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use crate::client::client::Client;
use crate::client::command::{Blocking, Command};
use crate::client::connection::backoff::Backoff;
use crate::client::connection::multiplexed::{Connection, Reply, not_answered, received, runtime_ended};
use crate::client::core::{Core, Leased};
use crate::client::error::{Error, Result};
use crate::client::locks::guard::LockGuard;
use crate::client::locks::held::{Grant, Held, certain};
use crate::client::locks::request::LockRequest;
use crate::client::value::Value;

/// Interval between two attempts to end a wait with `CLIENT UNBLOCK`.
const UNBLOCK_EVERY: Duration = Duration::from_millis(50);
/// Maximum number of such attempts; then the connection is closed instead.
const UNBLOCK_TIMES: u32 = 40;
/// Maximum number of times that a request is sent again because its wait ended long before its time-out. A late copy of the
/// request can cause that, rarely more than once in a row. An administrator's `CLIENT UNBLOCK` causes it, too, and must end the
/// wait in the end.
pub(crate) const EARLY_ENDS_MAX: u32 = 3;

impl Client {
    /// Acquires a lock. Returns `None` if it is not granted within its wait.
    pub(crate) async fn acquire(&self, request: LockRequest) -> Result<Option<LockGuard>> {
        fail_if!(request.names.is_empty(), Error::Invalid("no lock name is given".to_owned()));
        let (caller, outcome) = oneshot::channel();
        let session_name = request.grace.map(|_| self.unique_name());
        let acquisition = Acquisition { core: Arc::clone(&self.core), request, session_name };
        self.core.runtime.spawn(acquisition.run(caller));
        outcome.await.unwrap_or_else(|_| Err(runtime_ended()))
    }
}

/// Sends the guard to the caller. The channel closes when the caller goes away.
type Caller = oneshot::Sender<Result<Option<LockGuard>>>;

#[derive(Clone)]
struct Acquisition {
    core: Arc<Core>,
    request: LockRequest,
    /// Name of the session that the grant is bound to, if the grant has to outlive its connection.
    session_name: Option<String>,
}

/// The state of a request over all its attempts.
struct Attempts {
    owner: Vec<u8>,
    request_id: String,
    backoff: Backoff,
    /// Whether the server may have granted the request in a reply that was lost.
    maybe_granted: bool,
    /// Number of attempts whose wait ended long before its time-out.
    early_ends: u32,
    /// Why the last attempt failed.
    last_error: Option<Error>,
}

/// What attempts lead to.
enum Outcome {
    /// The request was sent at `sent`. If `maybe_earlier` is set, an earlier attempt may have led to this grant.
    Granted {
        grant: Grant,
        sent: Instant,
        maybe_earlier: bool,
    },
    NotGranted,
    Failed(Error),
    CallerGone,
}

/// Whether a wait that began at `sent` has ended long before its time-out, allowing for differences between clocks.
fn is_early(wait: Blocking, sent: Instant) -> bool {
    match wait {
        Blocking::No => false,
        Blocking::For(wait) => sent.elapsed() < wait - wait / 8,
        Blocking::Forever => true,
    }
}

impl Acquisition {
    async fn run(self, mut caller: Caller) {
        let begun = Instant::now();
        let outcome = loop {
            match self.ask(begun, &mut caller).await {
                Outcome::Granted { grant, sent, maybe_earlier } => match self.guard(grant, sent, maybe_earlier).await {
                    // The lease ended before this process received the grant.
                    Err(Error::NotHeld(_)) if self.request.wait != Blocking::No => {}
                    outcome => break outcome.map(Some),
                },
                Outcome::NotGranted => break Ok(None),
                Outcome::Failed(error) => break Err(error),
                Outcome::CallerGone => return,
            }
        };
        // The caller may be gone; dropping the guard then releases the grant.
        let _ = caller.send(outcome);
    }

    /// Makes attempts until there is an outcome, and cleans up if that is not a grant. The wait counts from `begun`.
    async fn ask(&self, begun: Instant, caller: &mut Caller) -> Outcome {
        let owner = self.request.owner.clone();
        let mut attempts = Attempts {
            owner: owner.unwrap_or_else(|| self.core.unique_name().into_bytes()),
            request_id: self.core.unique_name(),
            backoff: Backoff::new(),
            maybe_granted: false,
            early_ends: 0,
            last_error: None,
        };
        let outcome = loop {
            let attempted = match self.remaining_wait(begun, attempts.last_error.take()) {
                Continue(wait) => self.attempt(&mut attempts, wait, caller).await,
                Break(outcome) => Break(outcome),
            };
            if let Break(outcome) = attempted {
                break outcome;
            }
        };
        if attempts.maybe_granted && !matches!(outcome, Outcome::Granted { .. }) {
            if self.request.owner.is_some() {
                self.request.names.iter().for_each(|name| self.core.holds.mark_surplus(name, &attempts.owner));
            }
            self.core.runtime.spawn(self.clone().release_lost_grant(attempts.owner));
        }
        outcome
    }

    /// The rest of the wait, or the outcome if the wait is over.
    fn remaining_wait(&self, begun: Instant, last_error: Option<Error>) -> ControlFlow<Outcome, Blocking> {
        let elapsed = begun.elapsed();
        match (self.request.wait, last_error) {
            (Blocking::For(wait), Some(error)) if elapsed >= wait => Break(Outcome::Failed(error)),
            (Blocking::For(wait), None) if elapsed >= wait => Break(Outcome::NotGranted),
            (Blocking::For(wait), _) => Continue(Blocking::For(wait - elapsed)),
            (Blocking::No, Some(error)) if elapsed >= self.core.options.response_timeout => Break(Outcome::Failed(error)),
            (wait, _) => Continue(wait),
        }
    }

    /// Sends the request once and waits for its reply.
    async fn attempt(&self, attempts: &mut Attempts, wait: Blocking, caller: &mut Caller) -> ControlFlow<Outcome> {
        let connected = tokio::select! {
            connected = self.connection() => connected,
            () = caller.closed() => return Break(Outcome::CallerGone),
        };
        let (connection, mut leased) = match connected {
            Ok(connected) => connected,
            Err(error) => return Break(Outcome::Failed(error)),
        };
        let sent = Instant::now();
        let deadline = self.core.blocking_deadline(wait);
        let outcome = match self.send(&connection, attempts, wait).await {
            Err(error) => Err(error),
            Ok(mut reply) => tokio::select! {
                biased;
                outcome = self.core.reply(&mut reply, deadline) => outcome,
                () = self.core.deposed(&connection) => Err(not_answered()),
                () = caller.closed() => {
                    self.cancel(attempts, connection, leased, reply).await;
                    return Break(Outcome::CallerGone);
                }
            },
        };
        let outcome = match outcome {
            // A broken connection stays checked out of the pool until the back-off is over.
            Err(error) if error.is_of_connection() => return self.connection_broke(attempts, sent, error).await,
            outcome => outcome.and_then(|reply| self.request.parse_tokens(reply)),
        };
        if let Some(leased) = &mut leased {
            leased.reusable = self.session_name.is_none();
        }
        match outcome {
            Ok(Some(tokens)) => {
                let (owner, deadline) = (std::mem::take(&mut attempts.owner), sent + certain(self.request.lease()));
                let (session, session_name) = (leased.filter(|_| self.request.session), self.session_name.clone());
                let grant = Grant { owner, tokens, deadline, session, session_name };
                Break(Outcome::Granted { grant, sent, maybe_earlier: attempts.maybe_granted })
            }
            // A late copy of the request, on a connection that was given up, has taken this attempt's place in the queue. The
            // next attempt takes the place back.
            Ok(None) if attempts.maybe_granted && attempts.early_ends < EARLY_ENDS_MAX && is_early(wait, sent) => {
                attempts.early_ends += 1;
                Continue(())
            }
            Ok(None) => Break(Outcome::NotGranted),
            // An earlier attempt was granted, its reply was lost, and the grant has ended since, with its lease or with the
            // connection that it was bound to. The next attempt is a new request.
            Err(Error::NotHeld(_)) => {
                (attempts.request_id, attempts.maybe_granted) = (self.core.unique_name(), false);
                Continue(())
            }
            Err(error) => Break(Outcome::Failed(error)),
        }
    }

    /// The connection for an attempt: one of the pool for a wait, or for a grant that is bound to it; otherwise the shared one.
    async fn connection(&self) -> Result<(Connection, Option<Leased>)> {
        let deadline = self.core.deadline();
        if self.request.wait == Blocking::No && !self.request.session {
            return Ok((self.core.shared(deadline).await?, None));
        }
        let leased = self.core.lease(deadline).await?;
        Ok(((*leased).clone(), Some(leased)))
    }

    /// Sends the request, after the command that names the session if the grant has to outlive the connection.
    async fn send(&self, connection: &Connection, attempts: &Attempts, wait: Blocking) -> Result<Reply<Value>> {
        if let Some(name) = &self.session_name {
            let start = self.request.start_session(name);
            let replies = self.core.call_many_on(connection, start.wire(), 1, self.core.deadline()).await?;
            replies.into_iter().try_for_each(|reply| reply.into_result().map(drop))?;
        }
        // An owner has one lease. The acquire restarts it, and must not shorten it for the owner's other guards.
        let others = self.leases_of_other_guards(&attempts.owner).max();
        let lease_ms = others.unwrap_or(0).max(self.request.lease_ms);
        let command = self.request.acquire(&attempts.owner, lease_ms, wait, &attempts.request_id);
        connection.send(command.wire().to_vec()).await
    }

    /// The leases, in milliseconds, of the guards that already hold one of the names for this owner.
    fn leases_of_other_guards(&self, owner: &[u8]) -> impl Iterator<Item = u64> {
        // A unique owner has no other guards.
        let names = self.request.owner.is_some().then_some(&self.request.names);
        names.into_iter().flatten().filter_map(move |name| self.core.holds.lease_ms(name, owner))
    }

    /// Pauses before the next attempt. For the same request id, the server returns the grant that an earlier attempt led to, and
    /// binds it to the new connection.
    async fn connection_broke(&self, attempts: &mut Attempts, sent: Instant, error: Error) -> ControlFlow<Outcome> {
        attempts.maybe_granted |= error.maybe_applied();
        if !self.core.back_off(&mut attempts.backoff, sent).await {
            return Break(Outcome::Failed(error));
        }
        attempts.last_error = Some(error);
        Continue(())
    }

    /// Makes a guard of a grant, after its remaining lease is known.
    async fn guard(&self, grant: Grant, sent: Instant, maybe_earlier: bool) -> Result<LockGuard> {
        let waited = sent.elapsed();
        let nested = self.leases_of_other_guards(&grant.owner).next().is_some();
        let held = Held::new(&self.core, self.request.clone(), grant);
        let guard = LockGuard::new(Arc::clone(&held));
        // The lease may have begun long after the request, or an earlier acquisition may have bounded it. The renewal finds out
        // how much is left.
        if nested || maybe_earlier || waited > self.request.lease() / 3 {
            // It is nobody's until then.
            held.begin_anew();
            held.renew().await?;
        }
        held.spawn_renewal();
        Ok(guard)
    }

    /// Ends the wait on the server after the caller is gone, and releases the lock if it was granted before that. Records in
    /// `attempts` whether a grant may be left.
    async fn cancel(&self, attempts: &mut Attempts, connection: Connection, leased: Option<Leased>, mut reply: Reply<Value>) {
        let mut reusable = self.session_name.is_none();
        for _ in 0..UNBLOCK_TIMES {
            if leased.is_some() && connection.id() != 0 {
                let unblock = Command::new("CLIENT").arg("UNBLOCK").arg(connection.id());
                let unblocked = self.core.call(&unblock, false).await;
                // An UNBLOCK that may still run must not hit the next user of the connection. If the user may not run UNBLOCK,
                // the connection is closed in the end.
                reusable &= !unblocked.is_err_and(|error| error.maybe_applied());
            }
            match timeout(UNBLOCK_EVERY, received(&mut reply)).await {
                Err(_) => {}
                Ok(Err(error)) if error.is_of_connection() => break,
                Ok(outcome) => {
                    if outcome.and_then(|reply| self.request.parse_tokens(reply)).is_ok_and(|tokens| tokens.is_some()) {
                        self.release_unwanted(&attempts.owner, &connection).await;
                        attempts.maybe_granted = false;
                    }
                    if let Some(mut leased) = leased {
                        leased.reusable = reusable;
                    }
                    return;
                }
            }
        }
        // Dropping the connection closes it, which ends the wait on the server.
        attempts.maybe_granted = true;
    }

    /// Releases a grant that the caller no longer wants, on the connection that received it.
    async fn release_unwanted(&self, owner: &[u8], connection: &Connection) {
        let mut wire = Vec::new();
        for name in &self.request.names {
            let all = self.request.owner.is_none() || self.core.holds.take_surplus(name, owner);
            wire.extend_from_slice(self.request.release(name, owner, all, None, &self.core.unique_name()).wire());
        }
        // A grant that cannot be released ends with its lease.
        let _ = self.core.call_many_on(connection, &wire, self.request.names.len(), self.core.deadline()).await;
    }

    /// Releases what the server may have granted on a connection that broke before the reply.
    async fn release_lost_grant(self, owner: Vec<u8>) {
        if let Some(name) = &self.session_name {
            let end = Command::new("LOCK.SESSION").arg(name).arg("END");
            // A session that cannot be ended here ends after its grace.
            let _ = self.core.call(&end, true).await;
        }
        // A grant that is bound to a connection ends with it.
        if self.request.session {
            return;
        }
        let unique_owner = self.request.owner.is_none();
        let mut names = self.request.names.clone();
        names.retain(|name| unique_owner || self.core.holds.take_surplus(name, &owner));
        // The server may notice late that the connection broke, and may grant until then: the release is repeated. That is not
        // possible for an owner that the caller has named, because it may have acquired the lock again by then.
        let pauses_ms: &[u64] = if unique_owner { &[0, 100, 1000] } else { &[0] };
        for &pause_ms in pauses_ms {
            sleep(Duration::from_millis(pause_ms)).await;
            for name in &names {
                let release = self.request.release(name, &owner, true, None, &self.core.unique_name());
                // NOTHELD is the wanted outcome, and a grant that cannot be released ends with its lease.
                let _ = self.core.call(&release, true).await;
            }
        }
    }
}
