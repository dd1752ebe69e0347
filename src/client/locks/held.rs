//! A lock while it is held: its deadline, its tokens, its renewal and its loss.
//!
//! ```text
//!   granted ─▶ Held ◀─ a task that renews every third of the lease ─▶ deadline
//!               ▲  ◀─ lock-lost push, NOTHELD, broken connection of a session ─▶ lost
//!               └─ LockGuard
//! ```

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use crate::client::command::Command;
use crate::client::connection::backoff::Backoff;
use crate::client::connection::multiplexed::Connection;
use crate::client::connection::pushes::LossListener;
use crate::client::core::{Core, Leased};
use crate::client::error::{Error, Result};
use crate::client::locks::guard::Lost;
use crate::client::locks::request::LockRequest;
use crate::client::value::Value;

/// How long the release of a grant is tried whose connection has ended.
const LAST_TRY: Duration = Duration::from_secs(1);

/// A held lock, several held locks, or held permits of a semaphore.
pub(crate) struct Held {
    pub core: Arc<Core>,
    pub request: LockRequest,
    pub owner: Vec<u8>,
    pub tokens: Vec<u64>,
    pub state: watch::Sender<State>,
    /// The connection that the grant is bound to, if any.
    session: Mutex<Option<Leased>>,
    /// Connections of a session without a name on which the server does not answer, while it has the grant bound to one of them.
    silent: Mutex<Vec<Leased>>,
    /// Name of the session that the grant is bound to. Such a grant outlives its connection for the grace.
    session_name: Option<String>,
}

/// What an acquisition knows about its grant.
pub(crate) struct Grant {
    pub owner: Vec<u8>,
    pub tokens: Vec<u64>,
    /// The end of the lease, less the margin, counted from before the request.
    pub deadline: Instant,
    pub session: Option<Leased>,
    pub session_name: Option<String>,
}

/// What this process knows about a grant.
#[derive(Clone, Debug)]
pub(crate) struct State {
    /// The end of the lease on this process's clock, less the margin, counted from before the last request that was answered: the
    /// server's lease begins no earlier. The end of the grace, if that is sooner and the session's connection has ended.
    pub deadline: Instant,
    /// Whether the connection of its session has ended, and no other one has taken it over.
    pub detached: bool,
    pub lost: Option<Lost>,
    /// Whether the guard is gone.
    pub released: bool,
}

impl State {
    /// Whether the grant is no longer held.
    pub fn is_lost(&self) -> bool {
        self.lost.is_some() || Instant::now() >= self.deadline
    }
}

/// What ends a wait of the renewal task.
enum Event {
    /// A renewal has been tried. The value is the remaining lease.
    Renewed(Result<Duration>),
    /// The connection that the grant is bound to broke.
    ConnectionBroke,
    LeaseEnded,
}

impl Held {
    pub fn new(core: &Arc<Core>, request: LockRequest, grant: Grant) -> Arc<Held> {
        let Grant { owner, tokens, deadline, session, session_name } = grant;
        let state = watch::Sender::new(State { deadline, detached: false, lost: None, released: false });
        let session = Mutex::new(session);
        let held = Arc::new(Held {
            core: Arc::clone(core),
            request,
            owner,
            tokens,
            state,
            session,
            silent: Mutex::default(),
            session_name,
        });
        if held.request.owner.is_some() {
            held.request.names.iter().for_each(|name| core.holds.add(name, &held.owner, held.request.lease_ms));
        }
        for &token in &held.tokens {
            core.pushes.listen(token, held.as_listener());
        }
        held
    }

    /// Spawns the task that renews and watches the grant until its guard is gone.
    pub fn spawn_renewal(self: &Arc<Self>) {
        if self.request.renew || self.request.session {
            self.core.runtime.spawn(Arc::clone(self).keep_renewed());
        }
    }

    fn as_listener(self: &Arc<Self>) -> Weak<dyn LossListener> {
        let weak: Weak<Held> = Arc::downgrade(self);
        weak
    }

    fn session(&self) -> MutexGuard<'_, Option<Leased>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn silent(&self) -> MutexGuard<'_, Vec<Leased>> {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connections whose end ends the grant.
    fn connections(&self) -> Vec<Connection> {
        let mut connections: Vec<_> = self.silent().iter().map(|leased| (**leased).clone()).collect();
        connections.extend(self.session_connection());
        connections
    }

    /// The connection that the grant is bound to.
    fn session_connection(&self) -> Option<Connection> {
        self.session().as_ref().map(|leased| (**leased).clone())
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

    /// Stops renewing, and reports no loss any more, because the guard is gone.
    pub fn stop(self: &Arc<Self>) {
        self.state.send_modify(|state| state.released = true);
        let listener = self.as_listener();
        self.tokens.iter().for_each(|&token| self.core.pushes.unlisten(token, &listener));
    }

    /// Records the loss of a grant whose deadline has passed.
    pub fn lose_ended(&self) {
        let detached = self.state.borrow().detached;
        self.lose(if detached { Lost::Connection } else { Lost::Lease });
    }

    /// Lets the lease count from now on, until a renewal says what is left.
    pub fn begin_anew(&self) {
        self.state.send_modify(|state| state.deadline = Instant::now() + self.request.lease());
    }

    /// The deadline of one attempt to ask about the grant.
    fn attempt_until(&self) -> Instant {
        let deadline = self.state.borrow().deadline;
        self.core.attempt_until(deadline.saturating_duration_since(Instant::now()))
    }

    /// Sends commands that only read on the shared connection, and waits for their replies.
    pub async fn ask(&self, commands: &[Command]) -> Result<Vec<Value>> {
        self.core.call_many(&wire_of(commands), commands.len(), true, self.core.deadline()).await
    }

    /// Sends commands on the connection that the grant is bound to, or else on the shared one, and waits for their replies.
    async fn send(&self, commands: &[Command]) -> Result<Vec<Value>> {
        let wire = wire_of(commands);
        match self.session_connection() {
            Some(connection) => self.core.call_many_on(&connection, &wire, commands.len(), self.attempt_until()).await,
            None => self.core.call_many(&wire, commands.len(), false, self.core.deadline()).await,
        }
    }

    /// As [`Held::renew`]. If the connection that the grant is bound to has closed, it first waits until the grant is bound to another
    /// one.
    pub async fn renew_when_bound(&self) -> Result<Duration> {
        loop {
            let outcome = self.renew().await;
            if !matches!(outcome, Err(Error::Disconnected { .. })) || self.session_connection().is_none() {
                return outcome;
            }
            let until = self.attempt_until();
            while self.session_connection().is_some_and(|connection| connection.is_closed()) {
                fail_if!(self.state.borrow().lost.is_some(), self.unbound());
                if Instant::now() >= until {
                    return outcome;
                }
                sleep(self.core.options.backoff.0).await;
            }
        }
    }

    /// The error of a grant that has ended with its connection.
    fn unbound(&self) -> Error {
        let names = self.request.title();
        Error::NotHeld(format!("the connection that lock '{names}' was bound to has closed"))
    }

    /// Restarts the lease, and moves the deadline. Returns the remaining time.
    pub async fn renew(&self) -> Result<Duration> {
        let commands = self.renewals();
        let (wire, count) = (wire_of(&commands), commands.len());
        let (until, sent) = (self.attempt_until(), Instant::now());
        let Some(connection) = self.session_connection() else {
            // A renewal may be sent again, and then run twice and late. That does no harm.
            return self.answered(sent, self.core.try_many(&wire, count, until).await?);
        };
        match self.core.call_many_on(&connection, &wire, count, until).await {
            Err(Error::Timeout { .. }) => self.rebind(&connection, &commands).await,
            outcome => self.answered(sent, outcome?),
        }
    }

    /// Takes the replies to renewals that were sent at `sent`. Returns the remaining time. An answer that comes after the deadline is
    /// too late: the holder has stopped by then.
    fn answered(&self, sent: Instant, replies: Vec<Value>) -> Result<Duration> {
        let mut left_ms = u64::MAX;
        for reply in replies {
            left_ms = left_ms.min(reply.into::<u64>()?);
        }
        let deadline = sent + certain(Duration::from_millis(left_ms));
        let in_time = self.state.send_if_modified(|state| {
            let in_time = state.lost.is_none() && Instant::now() < state.deadline;
            if in_time {
                (state.deadline, state.detached) = (deadline, false);
            }
            in_time
        });
        if !in_time {
            return Err(Error::NotHeld(format!("the lease of '{}' ended before a renewal was answered", self.request.title())));
        }
        Ok(deadline.saturating_duration_since(sent))
    }

    /// Binds the grant to a new connection, because the server does not answer on the one that it is bound to. That one stays open
    /// meanwhile: a leader that sees its end would end the grant.
    async fn rebind(&self, silent: &Connection, commands: &[Command]) -> Result<Duration> {
        self.core.doubt(silent);
        let until = self.attempt_until();
        let leased = self.core.lease(until).await?;
        let (left, leased) = self.bind(leased, commands, until).await?;
        let is_other_node = leased.node() != silent.node();
        let before = self.session().replace(leased);
        if self.session_name.is_none() && !is_other_node {
            // The same leader still has the grant bound to the old connection.
            self.silent().extend(before);
        }
        Ok(left)
    }

    /// Sends commands about the grant's lease on a connection, after the name of its session, if it has one. Returns the remaining
    /// time, and the connection.
    async fn bind(&self, leased: Leased, commands: &[Command], until: Instant) -> Result<(Duration, Leased)> {
        let mut wire = Vec::new();
        let start = self.session_name.as_ref().map(|name| self.request.start_session(name));
        start.iter().chain(commands).for_each(|command| wire.extend_from_slice(command.wire()));
        let sent = Instant::now();
        let mut replies = self.core.call_many_on(&leased, &wire, commands.len() + usize::from(start.is_some()), until).await?;
        if start.is_some() && replies.remove(0).into::<u64>()? == 0 {
            // The old session has ended. This is a new one with the same name.
            return Err(Error::NotHeld("its session has ended".to_owned()));
        }
        Ok((self.answered(sent, replies)?, leased))
    }

    /// The commands that restart the lease.
    fn renewals(&self) -> Vec<Command> {
        let renewal = |(name, token): (&Vec<u8>, Option<u64>)| {
            // The owner's lease, which all its guards share, must not become shorter than the longest of them.
            let longest = self.request.owner.is_some().then(|| self.core.holds.lease_ms(name, &self.owner)).flatten();
            self.request.renewal(name, &self.owner, longest.unwrap_or(0).max(self.request.lease_ms), token)
        };
        self.names_and_tokens().map(renewal).collect()
    }

    /// The names, each with the token of its grant, unless the server may have replaced the token.
    fn names_and_tokens(&self) -> impl Iterator<Item = (&Vec<u8>, Option<u64>)> {
        let known = !self.request.may_be_upgraded();
        self.request.names.iter().zip(&self.tokens).map(move |(name, &token)| (name, known.then_some(token)))
    }

    /// Resumes the named session on a new connection after the old one broke. Returns false if the session has no name or has
    /// ended, or if no connection is available by the deadline: with the grace, the leader that has seen the end ends the grant.
    async fn resume_session(&self) -> bool {
        if self.session_name.is_none() {
            return false;
        }
        self.state.send_if_modified(|state| {
            let until = Instant::now() + certain(self.request.grace.unwrap_or_default());
            state.deadline = if state.detached { state.deadline } else { state.deadline.min(until) };
            !std::mem::replace(&mut state.detached, true)
        });
        let deadline = self.state.borrow().deadline;
        let keeping = |(name, token): (&Vec<u8>, Option<u64>)| self.request.keeping(name, &self.owner, token);
        let commands = if self.request.renew { self.renewals() } else { self.names_and_tokens().map(keeping).collect() };
        let mut backoff = Backoff::new();
        loop {
            let until = self.attempt_until();
            let resumed = async { self.bind(self.core.lease(until).await?, &commands, until).await };
            match resumed.await {
                Ok((_, leased)) => {
                    *self.session() = Some(leased);
                    return true;
                }
                Err(error) if Error::is_of_connection(&error) => {}
                Err(_) => return false,
            }
            backoff.failed(self.core.options.backoff);
            if Instant::now() >= deadline || !backoff.wait(deadline).await {
                return false;
            }
        }
    }

    /// Renews the grant until its guard is gone or the grant is lost.
    async fn keep_renewed(self: Arc<Self>) {
        let lease = Duration::from_millis(self.request.lease_ms);
        // A twentieth of the lease, from 5 ms to 1 s, so that several attempts fit into the rest of the lease.
        let retry = (lease / 20).clamp(Duration::from_millis(5), Duration::from_secs(1));
        let mut state = self.state.subscribe();
        let mut broken = Box::pin(closed(self.connections()));
        let mut next = {
            let left = state.borrow().deadline.saturating_duration_since(Instant::now());
            // A third of the lease after its begin, of which the deadline has the margin taken off.
            let whole = self.request.lease();
            Instant::now() + (left + whole - certain(whole)).saturating_sub(whole * 2 / 3)
        };
        loop {
            let deadline = {
                let state = state.borrow_and_update();
                if state.released || state.lost.is_some() {
                    return;
                }
                state.deadline
            };
            let due = if self.request.renew { next.min(deadline) } else { deadline };
            let event = tokio::select! {
                _ = state.changed() => continue,
                () = &mut broken => Event::ConnectionBroke,
                () = sleep_until(due) => self.renew_by(deadline, &mut broken).await,
            };
            next = match event {
                Event::Renewed(Ok(left)) => {
                    // It may be bound to another connection now.
                    broken.set(closed(self.connections()));
                    Instant::now() + (left.min(lease) / 3).max(Duration::from_millis(1))
                }
                Event::Renewed(Err(Error::NotHeld(cause))) => return self.lose(Lost::NotHeld(cause)),
                // The next renewal may get a clearer answer. The grant is held until its lease ends.
                Event::Renewed(Err(_)) => Instant::now() + retry,
                Event::LeaseEnded => return self.lose_ended(),
                Event::ConnectionBroke => {
                    if !self.resume_session().await {
                        return self.lose(Lost::Connection);
                    }
                    broken.set(closed(self.connections()));
                    continue;
                }
            };
        }
    }

    /// Renews, unless the lease ends or the connection that the grant is bound to breaks first.
    async fn renew_by(&self, deadline: Instant, broken: impl Future<Output = ()>) -> Event {
        if Instant::now() >= deadline {
            return Event::LeaseEnded;
        }
        tokio::select! {
            biased;
            renewed = self.renew() => Event::Renewed(renewed),
            () = broken => Event::ConnectionBroke,
            () = sleep_until(deadline) => Event::LeaseEnded,
        }
    }

    /// Releases the grant. A release whose reply is lost is sent again: its request id and the token keep it from ending another
    /// grant.
    pub async fn release(self: Arc<Self>) -> Result {
        let request_id = self.core.unique_name();
        let release = |(name, token): (&Vec<u8>, Option<u64>)| {
            let all = self.request.owner.is_none() || self.core.holds.remove(name, &self.owner);
            self.request.release(name, &self.owner, all, token, &request_id)
        };
        let commands: Vec<_> = self.names_and_tokens().map(release).collect();
        let (begun, lease) = (Instant::now(), Duration::from_millis(self.request.lease_ms));
        let mut maybe_released = false;
        loop {
            let sent = self.send(&commands).await;
            let outcome = sent.and_then(|replies| replies.into_iter().try_for_each(|reply| reply.into_result().map(drop)));
            let error = match outcome {
                // An earlier attempt has released it.
                Err(Error::NotHeld(_)) if maybe_released => return Ok(()),
                Err(error) if error.is_of_connection() => error,
                outcome => return self.finish_release(outcome),
            };
            // After the lease has ended, there is nothing to release.
            let lease_ended = begun.elapsed() >= lease;
            if !self.request.session && !lease_ended {
                maybe_released |= error.maybe_applied();
                sleep(self.core.options.backoff.0).await;
            } else if self.session_name.is_some() && !lease_ended {
                maybe_released |= error.maybe_applied();
                if !self.resume_session().await {
                    // The grant was released, or ended with its session: the lock is free.
                    return if maybe_released { Ok(()) } else { Err(error) };
                }
            } else if self.request.session {
                // After a change of leader nobody has seen the connection's end, and the grant lives until its lease ends.
                let last = self.core.call_many(&wire_of(&commands), commands.len(), true, Instant::now() + LAST_TRY).await;
                if last.is_ok_and(|replies| replies.into_iter().all(|reply| reply.into_result().is_ok())) {
                    return self.finish_release(Ok(()));
                }
                return Err(self.unbound());
            } else {
                return self.finish_release(Err(error));
            }
        }
    }

    /// Ends a release whose outcome is known, or that is given up because the lease has ended.
    fn finish_release(&self, outcome: Result) -> Result {
        if outcome.as_ref().is_err_and(Error::is_of_connection) && self.request.owner.is_some() {
            self.request.names.iter().for_each(|name| self.core.holds.mark_surplus(name, &self.owner));
        }
        if let Some(mut leased) = self.session().take() {
            leased.reusable = outcome.is_ok() && self.session_name.is_none();
        }
        outcome
    }
}

/// Returns when one of these connections closes; never if there is none.
async fn closed(connections: Vec<Connection>) {
    let mut closed: Vec<_> = connections.iter().map(|connection| Box::pin(connection.closed())).collect();
    std::future::poll_fn(|cx| {
        let is_closed = closed.iter_mut().any(|closed| closed.as_mut().poll(cx).is_ready());
        if is_closed { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

fn wire_of(commands: &[Command]) -> Vec<u8> {
    commands.iter().flat_map(|command| command.wire()).copied().collect()
}

/// How much of so long a lease a holder counts on. The rest is its margin, which it needs to stop, and because its clock may be
/// slower than the server's: a twentieth, but no more than a second and a thousandth of the lease.
pub(crate) fn certain(lease: Duration) -> Duration {
    lease - (lease / 20).min(Duration::from_secs(1) + lease / 1000)
}

impl LossListener for Held {
    fn lost(&self, token: u64, reason: &str) {
        if self.tokens.contains(&token) {
            self.lose(match reason {
                "lease" => Lost::Lease,
                "deleted" => Lost::Deleted,
                "maxhold" => Lost::MaxHold,
                "broken" => Lost::Broken,
                "session" => Lost::Connection,
                other => Lost::NotHeld(other.to_owned()),
            });
        }
    }
}
