//! Acquires grants: chooses the connection, retries when it breaks, and leaves nothing behind when the caller goes away.
//!
//! Each acquisition runs as a task of its own, so that it can clean up after its caller is gone:
//!
//! ```text
//!   Lock::acquire ─▶ task: ask ─┬─▶ granted ─▶ LockGuard ─▶ the caller (if it is gone: the guard releases the lock)
//!                               ├─▶ the connection broke ─▶ ask again, with the same request id
//!                               └─▶ the caller is gone ─▶ withdraw: CLIENT UNBLOCK, and release what was granted before it
//! ```

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use crate::client::client::Client;
use crate::client::command::Command;
use crate::client::connection::{Connection, Reply, received};
use crate::client::core::{Backoff, Core, Leased};
use crate::client::error::{Error, Result};
use crate::client::guard::LockGuard;
use crate::client::held::Held;
use crate::client::value::Value;
use crate::client::wish::{Wait, Wish};

/// Interval between two attempts to end a wait with `CLIENT UNBLOCK`.
const UNBLOCK_EVERY: Duration = Duration::from_millis(50);
/// Maximum number of such attempts; then the connection is closed instead.
const UNBLOCK_TIMES: u32 = 40;
/// Maximum number of times that a request is sent again because its wait ended long before its time. A late copy of the request
/// can cause that, rarely more than once in a row. `CLIENT UNBLOCK` causes it too, and the client obeys it after this many
/// attempts.
pub(crate) const EARLY_ENDS: u32 = 3;

impl Client {
    /// Acquires the wish. Returns `None` if it is not granted within its wait.
    pub(crate) async fn acquire(&self, wish: Wish) -> Result<Option<LockGuard>> {
        if wish.names.is_empty() {
            return Err(Error::Invalid("no name is given".to_owned()));
        }
        let (to, outcome) = oneshot::channel();
        let named = wish.grace.map(|_| self.unique_name());
        let asking = Asking { client: self.clone(), wish, named, to };
        self.core.runtime.spawn(asking.run());
        outcome
            .await
            .unwrap_or_else(|_| Err(Error::Disconnected { maybe_applied: true, reason: "the runtime has ended".to_owned() }))
    }
}

struct Asking {
    client: Client,
    wish: Wish,
    /// Id of the named session that the grant is bound to.
    named: Option<String>,
    to: oneshot::Sender<Result<Option<LockGuard>>>,
}

/// A grant as the server replied it, and the earliest moment at which it may have begun.
struct Granted {
    tokens: Vec<u64>,
    begun: Instant,
    owner: Vec<u8>,
    session: Option<Leased>,
    /// Whether an earlier attempt may have been granted too, in a reply that was lost.
    twice: bool,
}

/// Whether a wait that began at `begun` is far from its end, allowing for differences between clocks.
fn is_early(wait: Wait, begun: Instant) -> bool {
    match wait {
        Wait::No => false,
        Wait::For(wait) => begun.elapsed() < wait - wait / 8,
        Wait::Forever => true,
    }
}

impl Asking {
    async fn run(mut self) {
        let begun = Instant::now();
        let outcome = loop {
            match self.ask(begun).await {
                None => return,
                Some(Err(error)) => break Err(error),
                Some(Ok(None)) => break Ok(None),
                Some(Ok(Some(granted))) => match self.hold(granted).await {
                    // The lease ended before this process received the grant.
                    Err(Error::NotHeld(_)) if self.wish.wait != Wait::No => {}
                    outcome => break outcome.map(Some),
                },
            }
        };
        // The caller may be gone; dropping the guard then releases the grant.
        let _ = self.to.send(outcome);
    }

    fn core(&self) -> &Arc<Core> {
        &self.client.core
    }

    /// Asks until there is an answer. Returns `None`, after cleaning up, if the caller is gone.
    async fn ask(&mut self, since: Instant) -> Option<Result<Option<Granted>>> {
        let core = Arc::clone(&self.client.core);
        let owner = self.wish.owner.clone().unwrap_or_else(|| self.client.unique_name().into_bytes());
        let mut id = self.client.unique_name();
        let mut again = Backoff::new();
        let (mut unsure, mut early_ends) = (false, 0);
        let mut trouble: Option<Error> = None;
        let outcome = loop {
            let wait = match (self.wish.wait, trouble.take()) {
                (Wait::For(wait), Some(error)) if since.elapsed() >= wait => break Err(error),
                (Wait::For(wait), None) if since.elapsed() >= wait => break Ok(None),
                (Wait::No, Some(error)) if since.elapsed() >= core.options.response_timeout => break Err(error),
                (Wait::For(wait), _) => Wait::For(wait - since.elapsed()),
                (other, _) => other,
            };
            let connection = tokio::select! {
                connection = connection(&core, &self.wish) => connection,
                () = self.to.closed() => {
                    self.settle(&core, &owner, unsure);
                    return None;
                }
            };
            let (connection, mut leased) = match connection {
                Ok(connection) => connection,
                Err(error) => break Err(error),
            };
            let begun = Instant::now();
            let deadline = match wait {
                Wait::No => Some(core.deadline(Duration::ZERO)),
                Wait::For(wait) => Some(core.deadline(wait)),
                Wait::Forever => None,
            };
            let outcome = match self.name_session(&core, &connection).await {
                Err(error) => Err(error),
                Ok(()) => connection.send(self.command(&owner, wait, &id).wire().to_vec()).await,
            };
            let outcome = match outcome {
                Err(error) => Err(error),
                Ok(mut reply) => tokio::select! {
                    biased;
                    outcome = core.reply(&mut reply, deadline) => outcome,
                    () = self.to.closed() => {
                        self.withdraw(&core, owner, (connection, leased), reply, unsure).await;
                        return None;
                    }
                },
            };
            let error = match outcome {
                Err(error) if error.is_of_connection() => error,
                answer => {
                    if let Some(leased) = &mut leased {
                        leased.reusable = self.named.is_none();
                    }
                    match answer.and_then(|reply| self.wish.tokens(reply)) {
                        Ok(Some(tokens)) => {
                            let session = leased.filter(|_| self.wish.session);
                            return Some(Ok(Some(Granted { tokens, begun, owner, session, twice: unsure })));
                        }
                        // A late copy, on a connection that was given up, has taken this request's place in the queue: asking
                        // again takes the place back.
                        Ok(None) if unsure && early_ends < EARLY_ENDS && is_early(wait, begun) => {
                            early_ends += 1;
                            continue;
                        }
                        Ok(None) => break Ok(None),
                        // An earlier attempt was granted, its reply was lost, and the grant has ended since, with its lease or
                        // with the connection that it was bound to. That ends the attempt, and a new one begins.
                        Err(Error::NotHeld(_)) => {
                            (id, unsure) = (self.client.unique_name(), false);
                            continue;
                        }
                        Err(error) => break Err(error),
                    }
                }
            };
            // For the same request the server returns the grant that it already led to, and binds that to the new connection.
            unsure |= error.maybe_applied();
            again = again.unless_long_since(begun, core.options.response_timeout);
            again.failed(core.options.backoff);
            if again.is_hopeless() {
                break Err(error);
            }
            again.wait(Instant::now() + core.options.response_timeout).await;
            trouble = Some(error);
        };
        self.settle(&core, &owner, unsure);
        Some(outcome)
    }

    /// Names the connection's session, if the grant has to outlive the connection.
    async fn name_session(&self, core: &Arc<Core>, connection: &Connection) -> Result {
        let Some(id) = &self.named else { return Ok(()) };
        let naming = self.wish.naming(id);
        let replies = core.on(connection, naming.wire(), 1, core.deadline(Duration::ZERO)).await?;
        replies.into_iter().try_for_each(|reply| reply.into_result().map(drop))
    }

    /// The acquire command. Its lease is at least the lease of the owner's other guards, so that it does not shorten theirs.
    fn command(&self, owner: &[u8], wait: Wait, id: &str) -> Command {
        let others = self.wish.owner.is_some().then(|| self.wish.names.iter());
        let longest = others.into_iter().flatten().filter_map(|name| self.core().holds.lease_ms(name, owner)).max();
        match longest {
            Some(lease_ms) if lease_ms > self.wish.lease_ms => Wish { lease_ms, ..self.wish.clone() }.acquire(owner, wait, id),
            _ => self.wish.acquire(owner, wait, id),
        }
    }

    /// Makes a guard of a grant, after its remaining lease is known.
    async fn hold(&self, granted: Granted) -> Result<LockGuard> {
        let Granted { tokens, begun, owner, session, twice } = granted;
        let (core, lease) = (self.core(), self.wish.lease());
        let nested = self.wish.owner.is_some() && self.wish.names.iter().any(|name| core.holds.lease_ms(name, &owner).is_some());
        let waited = begun.elapsed();
        let held = Held::new(core, self.wish.clone(), owner, tokens, begun + lease, (session, self.named.clone()));
        let guard = LockGuard::new(Arc::clone(&held));
        // After a long wait, the moment of the grant is unknown. After an earlier hold by the same owner, the remaining lease is
        // unknown too.
        if nested || twice || waited > lease / 3 {
            held.renew().await?;
        }
        held.keep();
        Ok(guard)
    }

    /// Ends an acquisition without a grant: releases what may have been granted on a connection that broke before its reply.
    fn settle(&self, core: &Arc<Core>, owner: &[u8], unsure: bool) {
        if unsure {
            if self.wish.owner.is_some() {
                self.wish.names.iter().for_each(|name| core.holds.unsure(name, owner));
            }
            core.runtime.spawn(disown(Arc::clone(core), self.wish.clone(), owner.to_vec(), self.named.clone()));
        }
    }

    /// Cleans up after the caller is gone: ends the wait on the server, and releases what was granted before that.
    async fn withdraw(
        &self,
        core: &Arc<Core>,
        owner: Vec<u8>,
        (connection, leased): (Connection, Option<Leased>),
        mut reply: Reply<Value>,
        unsure: bool,
    ) {
        let mut clean = true;
        for _ in 0..UNBLOCK_TIMES {
            if leased.is_some() && connection.id() != 0 {
                let unblock = Command::new("CLIENT").arg("UNBLOCK").arg(connection.id());
                let wire = unblock.wire();
                let send = |on: Connection| async move { on.send(wire.to_vec()).await };
                // If it is unknown when an UNBLOCK runs, it must not hit the next user of the connection. If UNBLOCK is not
                // permitted, the connection is closed.
                let unblocked = core.exchange(core.deadline(Duration::ZERO), false, send).await;
                clean &= !unblocked.is_err_and(|error| error.maybe_applied());
            }
            match timeout(UNBLOCK_EVERY, received(&mut reply)).await {
                Err(_) => {}
                Ok(Err(error)) if error.is_of_connection() => break,
                Ok(outcome) => {
                    let granted = outcome.and_then(|reply| self.wish.tokens(reply)).is_ok_and(|tokens| tokens.is_some());
                    if granted {
                        self.undo(core, &owner, &connection).await;
                    } else {
                        self.settle(core, &owner, unsure);
                    }
                    if let Some(mut leased) = leased {
                        leased.reusable = clean && self.named.is_none();
                    }
                    return;
                }
            }
        }
        // Closing the connection ends the wait on the server.
        drop((connection, leased));
        if self.wish.owner.is_some() {
            self.wish.names.iter().for_each(|name| core.holds.unsure(name, &owner));
        }
        disown(Arc::clone(core), self.wish.clone(), owner, self.named.clone()).await;
    }

    /// Releases a grant that the caller no longer wants, on the connection that received it.
    async fn undo(&self, core: &Arc<Core>, owner: &[u8], connection: &Connection) {
        let own = self.wish.owner.is_none();
        let mut wire = Vec::new();
        for name in &self.wish.names {
            let all = own || core.holds.forget(name, owner);
            wire.extend_from_slice(self.wish.release(name, owner, all, None, &core.unique_name()).wire());
        }
        let deadline = core.deadline(Duration::ZERO);
        // A grant that cannot be released ends with its lease.
        let _ = core.on(connection, &wire, self.wish.names.len(), deadline).await;
    }
}

/// The connection to ask on: a leased one for a wait or for a grant that is bound to it, otherwise the shared one.
async fn connection(core: &Arc<Core>, wish: &Wish) -> Result<(Connection, Option<Leased>)> {
    let deadline = core.deadline(Duration::ZERO);
    if wish.wait == Wait::No && !wish.session {
        return Ok((core.shared(deadline).await?, None));
    }
    let leased = core.lease(deadline).await?;
    Ok(((*leased).clone(), Some(leased)))
}

/// Releases what may have been granted on a connection that broke. The server may notice the broken connection late and grant
/// until then, so this repeats.
async fn disown(core: Arc<Core>, wish: Wish, owner: Vec<u8>, named: Option<String>) {
    if let Some(id) = named {
        let end = Command::new("LOCK.SESSION").arg(id).arg("END");
        let wire = end.wire();
        let send = |on: Connection| async move { on.send(wire.to_vec()).await };
        // A session that cannot be ended here ends after its grace.
        let _ = core.exchange(core.deadline(Duration::ZERO), true, send).await;
    }
    if wish.session {
        return;
    }
    let own = wish.owner.is_none();
    let names: Vec<_> = wish.names.iter().filter(|name| own || core.holds.forget(name, &owner)).collect();
    // An owner that the caller has named may have acquired it again by then.
    let times: &[u64] = if own { &[0, 100, 1000] } else { &[0] };
    for &after_ms in times {
        sleep(Duration::from_millis(after_ms)).await;
        for name in &names {
            let release = wish.release(name, &owner, true, None, &core.unique_name());
            let wire = release.wire();
            let deadline = core.deadline(Duration::ZERO);
            let send = |on: Connection| async move { on.send(wire.to_vec()).await };
            // NOTHELD is the wanted outcome, and a grant that cannot be released ends with its lease.
            let _ = core.exchange(deadline, true, send).await;
        }
    }
}
