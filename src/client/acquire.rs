//! Asking for a grant: on which connection, what when it breaks, and how nothing is left behind when nobody waits for it any more.
//!
//! It runs as a task of its own, so that it can tidy up when whoever asked has gone:
//!
//! ```text
//!   Lock::acquire ─▶ task: ask ─┬─▶ granted ─▶ LockGuard ─▶ whoever asked (gone meanwhile: the guard gives it back)
//!                               ├─▶ the connection broke ─▶ ask again, by the same request id
//!                               └─▶ nobody waits any more ─▶ withdraw: CLIENT UNBLOCK, and give back what was granted before it
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

/// How long the end of a wait takes at most before it is asked for again.
const UNBLOCK_EVERY: Duration = Duration::from_millis(50);
/// How often it is asked for before the connection is closed instead.
const UNBLOCK_TIMES: u32 = 40;
/// How many times a request is sent again because its wait ended long before its time. A late copy of the request can end the wait that
/// way, rarely more than once in a row. `CLIENT UNBLOCK` does too, and the caller obeys it after this many attempts.
pub(crate) const EARLY_ENDS: u32 = 3;

impl Client {
    /// Acquires something; `None` where it is not to be had in the time that was to be waited.
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
    /// The id of the named session that the grant is bound to.
    named: Option<String>,
    to: oneshot::Sender<Result<Option<LockGuard>>>,
}

/// A grant as it came, and since when it may have been one.
struct Granted {
    tokens: Vec<u64>,
    begun: Instant,
    owner: Vec<u8>,
    session: Option<Leased>,
    /// Whether it may have been granted before by a reply that was not heard.
    twice: bool,
}

/// Whether a wait that began then is far from its end, by any clock.
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
                    // Its lease was over before this process knew of it.
                    Err(Error::NotHeld(_)) if self.wish.wait != Wait::No => {}
                    outcome => break outcome.map(Some),
                },
            }
        };
        // Whoever asked may have gone; the guard gives back what it holds.
        let _ = self.to.send(outcome);
    }

    fn core(&self) -> &Arc<Core> {
        &self.client.core
    }

    /// Asks until there is an answer; `None` where nobody waits for it any more, after tidying up.
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
                        // A late copy has taken its place over, on a connection that is given up: this one takes the place back.
                        Ok(None) if unsure && early_ends < EARLY_ENDS && is_early(wait, begun) => {
                            early_ends += 1;
                            continue;
                        }
                        Ok(None) => break Ok(None),
                        // It was granted unheard, and has ended since: with the connection it was bound to, or its lease. That was the
                        // end of this attempt, and another one begins.
                        Err(Error::NotHeld(_)) => {
                            (id, unsure) = (self.client.unique_name(), false);
                            continue;
                        }
                        Err(error) => break Err(error),
                    }
                }
            };
            // The server answers the same request once more with the grant that it led to, and binds that to the new connection.
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

    /// Names the session of a connection, where the grant is to outlive it.
    async fn name_session(&self, core: &Arc<Core>, connection: &Connection) -> Result {
        let Some(id) = &self.named else { return Ok(()) };
        let naming = self.wish.naming(id);
        let replies = core.on(connection, naming.wire(), 1, core.deadline(Duration::ZERO)).await?;
        replies.into_iter().try_for_each(|reply| reply.into_result().map(drop))
    }

    /// The command that asks. Where the same owner holds it by other guards, their lease is not to become shorter.
    fn command(&self, owner: &[u8], wait: Wait, id: &str) -> Command {
        let others = self.wish.owner.is_some().then(|| self.wish.names.iter());
        let longest = others.into_iter().flatten().filter_map(|name| self.core().holds.lease_ms(name, owner)).max();
        match longest {
            Some(lease_ms) if lease_ms > self.wish.lease_ms => Wish { lease_ms, ..self.wish.clone() }.acquire(owner, wait, id),
            _ => self.wish.acquire(owner, wait, id),
        }
    }

    /// Makes a guard of a grant, once it is known for how long it is one.
    async fn hold(&self, granted: Granted) -> Result<LockGuard> {
        let Granted { tokens, begun, owner, session, twice } = granted;
        let (core, lease) = (self.core(), self.wish.lease());
        let nested = self.wish.owner.is_some() && self.wish.names.iter().any(|name| core.holds.lease_ms(name, &owner).is_some());
        let waited = begun.elapsed();
        let held = Held::new(core, self.wish.clone(), owner, tokens, begun + lease, (session, self.named.clone()));
        let guard = LockGuard::new(Arc::clone(&held));
        // When in a long wait it was granted is not known here. Nor is for how long, where the same owner held it before.
        if nested || twice || waited > lease / 3 {
            held.renew().await?;
        }
        held.keep();
        Ok(guard)
    }

    /// Nothing came of it. Gives back what may have been granted on a connection that broke before it said so.
    fn settle(&self, core: &Arc<Core>, owner: &[u8], unsure: bool) {
        if unsure {
            if self.wish.owner.is_some() {
                self.wish.names.iter().for_each(|name| core.holds.unsure(name, owner));
            }
            core.runtime.spawn(disown(Arc::clone(core), self.wish.clone(), owner.to_vec(), self.named.clone()));
        }
    }

    /// Nobody waits for the answer any more: ends the wait on the server, and gives back what was granted before that.
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
                // One of which it is not known when it will be carried out must not meet with whoever has the connection next. Where it is
                // not allowed, the connection will be closed.
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
        // The server ends the wait with its connection.
        drop((connection, leased));
        if self.wish.owner.is_some() {
            self.wish.names.iter().for_each(|name| core.holds.unsure(name, &owner));
        }
        disown(Arc::clone(core), self.wish.clone(), owner, self.named.clone()).await;
    }

    /// Gives back a grant that nobody wants any more, on the connection that it came on.
    async fn undo(&self, core: &Arc<Core>, owner: &[u8], connection: &Connection) {
        let own = self.wish.owner.is_none();
        let mut wire = Vec::new();
        for name in &self.wish.names {
            let all = own || core.holds.forget(name, owner);
            wire.extend_from_slice(self.wish.release(name, owner, all, None, &core.unique_name()).wire());
        }
        let deadline = core.deadline(Duration::ZERO);
        // What cannot be given back ends with its lease.
        let _ = core.on(connection, &wire, self.wish.names.len(), deadline).await;
    }
}

/// The connection to ask on: one of its own for what waits, or is bound to it.
async fn connection(core: &Arc<Core>, wish: &Wish) -> Result<(Connection, Option<Leased>)> {
    let deadline = core.deadline(Duration::ZERO);
    if wish.wait == Wait::No && !wish.session {
        return Ok((core.shared(deadline).await?, None));
    }
    let leased = core.lease(deadline).await?;
    Ok(((*leased).clone(), Some(leased)))
}

/// Gives back what may have been granted on a connection that is no more. The server may learn only now that it is none, and grant until
/// then; so this is done more than once.
async fn disown(core: Arc<Core>, wish: Wish, owner: Vec<u8>, named: Option<String>) {
    if let Some(id) = named {
        let end = Command::new("LOCK.SESSION").arg(id).arg("END");
        let wire = end.wire();
        let send = |on: Connection| async move { on.send(wire.to_vec()).await };
        // Where it cannot be ended it ends after its grace.
        let _ = core.exchange(core.deadline(Duration::ZERO), true, send).await;
    }
    if wish.session {
        return;
    }
    let own = wish.owner.is_none();
    let names: Vec<_> = wish.names.iter().filter(|name| own || core.holds.forget(name, &owner)).collect();
    // An owner that the caller has named may have acquired it anew by then.
    let times: &[u64] = if own { &[0, 100, 1000] } else { &[0] };
    for &after_ms in times {
        sleep(Duration::from_millis(after_ms)).await;
        for name in &names {
            let release = wish.release(name, &owner, true, None, &core.unique_name());
            let wire = release.wire();
            let deadline = core.deadline(Duration::ZERO);
            let send = |on: Connection| async move { on.send(wire.to_vec()).await };
            // That it is not held is what is wanted; and what cannot be given back ends with its lease.
            let _ = core.exchange(deadline, true, send).await;
        }
    }
}
