//! Blocking commands: which sessions wait for which keys, until when, and how they are served.
//!
//! A handler that finds nothing to take calls [`Context::block`]. The engine keeps the request and appends the session to the
//! queue of each of its keys; nothing more is read from its connection. Every change of a key that has observers passes through
//! [`crate::keyspace::change::Changes::report`], which marks an awaited key as ready, once. When the command, the transaction or
//! the script that changed it has ended, in the same step, the waiters of the ready keys are served in FIFO order: their requests
//! are executed again, as long as the key holds what they wait for.
//!
//! ```text
//!   BLPOP ─▶ nothing there ─▶ block ─▶ (database, key) ─▶ waiter ─▶ waiter ─▶ …
//!   LPUSH ─▶ report ─▶ ready keys ─▶ after the command: waiters, first come first served ─▶ BLPOP again ─▶ reply
//!                       ▲                                                                      │
//!                       └──────────── BLMOVE has fed another key ◀────────────────────────────┘
//! ```
//!
//! Waits for native locks are not here: [`crate::lock`] has their queues, and `Engine::serve_lock_waiters` writes their replies.
//! `Engine::follow_up` serves both.

use crate::base::arguments::Arguments;
use crate::base::error::{Error, Result};
use crate::base::ids::{Key, SessionId};
use crate::base::number::LongDouble;
use crate::base::time::Now;
use crate::engine::context::{Caller, Context};
use crate::engine::replication::Patience;
use crate::engine::request::Request;
use crate::engine::session::SessionFlags;
use crate::engine::{Action, Engine};
use crate::keyspace::interests::NIL;
use crate::keyspace::waits::{Acknowledgement, TimeOut, Waiter, Wake};
use crate::resp::reply::{Sink, WireReply};

/// What ends a wait.
struct Waiting {
    wake: Wake,
    deadline: Option<u64>,
    log_position: Option<u64>,
    time_out: TimeOut,
}

impl Context<'_> {
    /// Whether the command may wait. In a transaction, a script or a load it may not: it replies as if it timed out at once.
    pub fn may_block(&mut self) -> bool {
        let never = SessionFlags::IN_EXEC.union(SessionFlags::NEVER_WAITS);
        self.caller == Caller::Client && !self.session().flags.intersects(never)
    }

    /// Blocks the session until one of the keys holds what wakes it, or until a deadline (monotonic milliseconds). In the first
    /// case the request is executed again; in the second the reply is a null array (null for a latch). The handler must not have
    /// replied, and must be allowed to wait.
    pub fn block<'k>(&mut self, args: &[&[u8]], keys: impl Iterator<Item = &'k [u8]>, wake: Wake, deadline: Option<u64>) {
        let time_out = if wake.contains(Wake::LATCH) { TimeOut::Null } else { TimeOut::NullArray };
        self.wait(args, keys, wake, deadline, time_out);
    }

    /// Blocks the session as [`Context::block`] does, or writes the reply of a command that may not block.
    pub fn block_or_reply(
        &mut self,
        args: &[&[u8]],
        keys: &[&[u8]],
        wake: Wake,
        deadline: Option<u64>,
        reply: fn(&mut dyn Sink),
    ) {
        if self.may_block() {
            self.block(args, keys.iter().copied(), wake, deadline);
        } else {
            reply(self.reply);
        }
    }

    /// Blocks the session until a deadline (monotonic milliseconds), as replicas never acknowledge anything.
    pub fn block_in_vain(&mut self, args: &[&[u8]], deadline: Option<u64>, time_out: TimeOut) {
        self.wait(args, std::iter::empty(), Wake::empty(), deadline, time_out);
    }

    /// Blocks the session until the log is durable up to a position, or until a deadline (monotonic milliseconds).
    pub fn block_for_log(&mut self, args: &[&[u8]], position: u64, deadline: Option<u64>) {
        let (time_out, wake) = (TimeOut::Acknowledged(Some(position)), Wake::empty());
        self.enter(args, std::iter::empty(), Waiting { wake, deadline, log_position: Some(position), time_out });
    }

    /// Blocks the session until enough followers have all changes so far, or until a deadline (monotonic milliseconds).
    pub(super) fn block_for_followers(&mut self, args: &[&[u8]], asked: Acknowledgement, deadline: Option<u64>) {
        let (time_out, wake) = (TimeOut::Followers(asked), Wake::empty());
        // Before its changes are settled, nobody knows where in the nodes' log they are.
        let log_position = asked.reached.is_none().then_some(asked.recorded);
        self.enter(args, std::iter::empty(), Waiting { wake, deadline, log_position, time_out });
        if asked.reached.is_some() {
            self.engine.ask(Action::LookAtFollowers);
        }
    }

    /// Blocks the session until the driver calls [`Engine::end_wait_for_driver`]: until a `SAVE`, a `DEBUG RELOAD` or
    /// a change of the members has ended.
    pub fn block_for_driver(&mut self, args: &[&[u8]]) {
        self.wait(args, std::iter::empty(), Wake::empty(), None, TimeOut::Driver);
    }

    /// Blocks a login until it may be tried, in monotonic milliseconds.
    pub(super) fn block_for_login(&mut self, args: &[&[u8]], due: u64) {
        self.wait(args, std::iter::empty(), Wake::empty(), Some(due), TimeOut::Login);
    }

    fn wait<'k>(
        &mut self,
        args: &[&[u8]],
        keys: impl Iterator<Item = &'k [u8]>,
        wake: Wake,
        deadline: Option<u64>,
        time_out: TimeOut,
    ) {
        self.enter(args, keys, Waiting { wake, deadline, log_position: None, time_out });
    }

    fn enter<'k>(&mut self, args: &[&[u8]], keys: impl Iterator<Item = &'k [u8]>, waiting: Waiting) {
        let Waiting { wake, deadline, log_position, time_out } = waiting;
        let (id, db) = (self.session, self.db);
        // A request that is executed again and blocks again keeps its first deadline.
        let deadline = self.engine.running.resumed.unwrap_or(deadline);
        let client = self.session().id;
        let waiter = Waiter { session: id, client, args: Arguments::new(args), wake, deadline, log_position, time_out };
        let changes = &mut self.engine.keyspace.changes;
        let number = changes.waits.enter(waiter, db, keys);
        changes.update_observed();
        let session = self.session();
        session.waiter = number;
        session.flags |= SessionFlags::BLOCKED;
        // The command is counted when it completes.
        self.engine.diagnosis.stats.commands -= 1;
    }
}

impl Engine {
    /// After a command, a transaction or a script, or when time has passed: serves the waiters of what has become ready, and
    /// executes requests that a pause has held back.
    #[cold]
    pub(super) fn follow_up(&mut self, now: Now) {
        // Not in the middle of a long script that lets other sessions run.
        if self.scripting.long_run.is_some() {
            return;
        }
        self.keyspace.changes.has_follow_up = false;
        self.settle_journal();
        self.serve_ready(now);
        self.serve_lock_waiters(now);
        self.follow_up_diagnosis();
        self.settle_journal();
        self.resume_held(now);
    }

    pub(super) fn serve_ready(&mut self, now: Now) {
        while let Some(key) = self.keyspace.changes.waits.ready.pop_front() {
            let waits = &mut self.keyspace.changes.waits;
            let Key { db, name } = waits.interests.key(key);
            let name: Box<[u8]> = name.into();
            if waits.interests.unpin(key) {
                self.serve_key(now, key, db, &name);
            }
        }
        // The last waiter for a key may have gone, so there may be no session left to notify.
        self.keyspace.changes.update_observed();
    }

    /// Serves the waiters for a key, in order, each of them once.
    fn serve_key(&mut self, now: Now, key: u32, db: u32, name: &[u8]) {
        let interests = &self.keyspace.changes.waits.interests;
        let (mut left, mut link) = (interests.interested(key), interests.first(key));
        while left > 0 && link != NIL {
            left -= 1;
            let held = self.keyspace.db(db, now).peek(name).map_or(Wake::empty(), |entry| Wake::by(entry.value()));
            let waits = &self.keyspace.changes.waits;
            if held.is_empty() && waits.gone == 0 {
                break;
            }
            let next = waits.interests.next(link);
            let number = waits.interests.owner_of(link);
            let waiter = number.and_then(|number| waits.interests.owner(number)).and_then(Option::as_ref);
            if let Some(number) = number
                && waiter.is_some_and(|waiter| waiter.wake.intersects(held) || waiter.wake.contains(Wake::GONE))
            {
                self.resume_waiter(now, number);
            }
            link = next;
        }
    }

    /// Executes a waiter's request again.
    fn resume_waiter(&mut self, now: Now, number: u32) {
        let Some(waiter) = self.keyspace.changes.waits.leave(number) else { return };
        let Waiter { session: id, args, deadline, .. } = *waiter;
        let Some(session) = self.clients.sessions.get_mut(id) else { return };
        // A blocked session executes nothing else, so its last command is the blocked one.
        let last_command = session.last_command;
        session.waiter = NIL;
        session.resume();
        if session.flags.contains(SessionFlags::CLOSE_NOW) {
            return;
        }
        let row = last_command.and_then(|slot| self.diagnosis.command_stats.row(slot.into()));
        self.running.resumed = Some(deadline);
        self.perform_again(now, id, Request { row, ..Request::new(&args.borrow()) });
        self.running.resumed = None;
        self.wake_up(now, id);
    }

    /// Makes the server look at a session that was blocked.
    pub(super) fn wake_up(&mut self, now: Now, id: SessionId) {
        self.note_wait_ended(now, id);
        self.mark_pending_write(id);
    }

    fn note_wait_ended(&mut self, now: Now, id: SessionId) {
        let session = &mut self.clients.sessions[id];
        session.last_ms = now.mono_ms();
        if session.flags.contains(SessionFlags::PACED) {
            self.hold_awaited(now, id);
        }
    }

    /// Ends the waits whose deadlines have passed.
    pub(super) fn time_out_key_waits(&mut self, now: Now, budget: &mut u32) {
        while *budget > 0
            && let Some(&(deadline, _, number)) = self.keyspace.changes.waits.deadlines.first()
            && now.reached(deadline)
        {
            *budget -= 1;
            self.end_wait(now, number, None);
        }
    }

    /// Ends a session's wait with an error, or as if it timed out. Returns false if the session does not wait.
    pub fn unblock(&mut self, now: Now, id: SessionId, error: Option<&Error>) -> bool {
        let Some(session) = self.clients.sessions.get(id) else { return false };
        let number = session.waiter;
        if number == NIL {
            return self.unblock_from_locks(now, id, error);
        }
        // Nobody but the driver knows how it ends, and a login is not tried sooner.
        let is_fixed = self.waits_for_driver(number) || matches!(self.time_out_of(number), Some(TimeOut::Login));
        !is_fixed && self.end_wait(now, number, error)
    }

    fn time_out_of(&self, number: u32) -> Option<TimeOut> {
        let waiter = self.keyspace.changes.waits.interests.owner(number).and_then(Option::as_ref);
        waiter.map(|waiter| waiter.time_out)
    }

    /// Tries the logins that wait. The clock by which they would be due is no longer the clock.
    pub(super) fn try_waiting_logins(&mut self, now: Now) {
        let waiting = self.clients.sessions.iter().map(|(_, session)| session.waiter);
        let logins: Vec<u32> = waiting.filter(|number| matches!(self.time_out_of(*number), Some(TimeOut::Login))).collect();
        for number in logins {
            self.end_wait(now, number, None);
        }
    }

    fn waits_for_driver(&self, number: u32) -> bool {
        matches!(self.time_out_of(number), Some(TimeOut::Driver))
    }

    /// Holds a request back until a leader is known ([`Engine::resume_for_leader`]), or until the patience ends.
    pub(super) fn hold_for_leader(&mut self, now: Now, id: SessionId, args: &[&[u8]], patience: Patience) {
        // A request that is executed again and held back again keeps its first deadline.
        let deadline = self.running.resumed.unwrap_or(Some(now.deadline_in(patience.ms)));
        let client = self.clients.sessions[id].id;
        let (args, wake, time_out) = (Arguments::new(args), Wake::empty(), TimeOut::Leader { answers: patience.answers });
        let waiter = Waiter { session: id, client, args, wake, deadline, log_position: None, time_out };
        let number = self.keyspace.changes.waits.enter(waiter, 0, std::iter::empty());
        self.keyspace.changes.update_observed();
        let session = &mut self.clients.sessions[id];
        session.waiter = number;
        session.flags |= SessionFlags::BLOCKED;
    }

    /// Executes the requests again that wait for a leader, which is known now.
    pub(super) fn resume_for_leader(&mut self, now: Now) {
        for number in std::mem::take(&mut self.keyspace.changes.waits.for_leader) {
            self.resume_waiter(now, number);
        }
        self.keyspace.changes.update_observed();
    }

    /// Ends the wait of a request that has waited in vain for a leader: executes it, or closes its connection. An error would say
    /// less: clients that get one ask the same node again, and some libraries take no error as the answer to a subscription.
    fn give_up_leader(&mut self, now: Now, number: u32, answers: bool) {
        if answers {
            self.replication.gives_up = true;
            self.resume_waiter(now, number);
            self.replication.gives_up = false;
            return;
        }
        let Some(waiter) = self.keyspace.changes.waits.leave(number) else { return };
        let Some(session) = self.clients.sessions.get_mut(waiter.session) else { return };
        session.waiter = NIL;
        session.flags.remove(SessionFlags::BLOCKED);
        session.flags |= SessionFlags::CLOSE_NOW;
        self.wake_up(now, waiter.session);
    }

    /// Replies to a client that waits since [`Context::block_for_driver`]: an error, or `OK`. Does nothing if its session has ended.
    pub fn end_wait_for_driver(&mut self, now: Now, id: SessionId, error: Option<&Error>) {
        if let Some(number) = self.clients.sessions.get(id).map(|session| session.waiter)
            && self.waits_for_driver(number)
        {
            self.end_wait(now, number, error);
        }
    }

    pub(super) fn end_wait(&mut self, now: Now, number: u32, error: Option<&Error>) -> bool {
        match self.time_out_of(number) {
            Some(TimeOut::Leader { answers }) => self.give_up_leader(now, number, answers),
            Some(TimeOut::Login) => {
                self.users.guesses.has_waited = true;
                self.resume_waiter(now, number);
                self.users.guesses.has_waited = false;
            }
            _ => return self.end_other_wait(now, number, error),
        }
        self.keyspace.changes.update_observed();
        true
    }

    fn end_other_wait(&mut self, now: Now, number: u32, error: Option<&Error>) -> bool {
        let Some(waiter) = self.keyspace.changes.waits.leave(number) else { return false };
        self.keyspace.changes.update_observed();
        // The command was counted when it began to wait, and the count was undone then, because a served request is executed
        // again.
        if let Some(command) = self.clients.sessions.get(waiter.session).and_then(|session| self.last_command(session)) {
            self.count(command);
            if error.is_some() {
                self.diagnosis.command_stats.of(command).failed += 1;
            }
        }
        if let Some(error) = error {
            self.diagnosis.stats.error(error);
        }
        let followers = if let TimeOut::Followers(asked) = waiter.time_out { self.acknowledged(asked) } else { 0 };
        let Some(session) = self.clients.sessions.get_mut(waiter.session) else { return true };
        session.waiter = NIL;
        session.flags.remove(SessionFlags::BLOCKED);
        if !session.silenced() {
            let mut reply = WireReply::new(&mut session.out, session.protocol);
            let durable = || self.persistence.position().map_or(0, |position| position.durable);
            match error {
                Some(error) => reply.error(error.text()),
                None => waiter.time_out.write(&mut reply, durable, followers),
            }
        }
        match waiter.time_out {
            TimeOut::NoReplica | TimeOut::Acknowledged(_) | TimeOut::Followers(_) if self.persistence.figures.is_some() => {
                self.note_wait_ended(now, waiter.session);
                self.persistence.answered.push(waiter.session);
            }
            _ => self.wake_up(now, waiter.session),
        }
        true
    }

    /// Ends the waits for the log up to where it is durable now; all of them, with an error, if there is no log any more. The driver
    /// calls this when a sync has ended, and looks at the sessions in [`Persistence::answered`] afterwards.
    ///
    /// [`Persistence::answered`]: crate::engine::persistence::Persistence::answered
    pub fn end_log_waits(&mut self, now: Now) {
        if self.keyspace.changes.waits.for_log.is_empty() {
            return;
        }
        let position = self.persistence.position();
        while let Some(&(awaited, number)) = self.keyspace.changes.waits.for_log.first() {
            match &position {
                Some(position) if position.durable < awaited => break,
                Some(_) if self.goes_on_for_followers(number) => {
                    self.keyspace.changes.waits.note_settled(number, self.replication.settled_index);
                    true
                }
                Some(_) => self.end_wait(now, number, None),
                None => self.end_wait(now, number, Some(&Error::WAITAOF_WITHOUT_AOF)),
            };
        }
    }

    /// Forgets a session's wait, for whatever reason.
    pub(crate) fn forget_wait(&mut self, now: Now, id: SessionId) {
        self.forget_lock_wait(now, id);
        self.forget_job(id);
        let session = &mut self.clients.sessions[id];
        if !session.flags.contains(SessionFlags::BLOCKED) {
            return;
        }
        session.flags.remove(SessionFlags::BLOCKED);
        let number = std::mem::replace(&mut session.waiter, NIL);
        let held = std::mem::take(&mut session.held);
        if number != NIL {
            self.keyspace.changes.waits.leave(number);
            self.keyspace.changes.update_observed();
        }
        self.clients.pause.forget(held);
    }
}

/// Parses the time-out of a blocking command in seconds. Returns its deadline in monotonic milliseconds, `None` for 0.
pub fn deadline(now: Now, seconds: &[u8]) -> Result<Option<u64>> {
    let read = LongDouble::parse(seconds).ok_or(Error::TIMEOUT_NOT_FLOAT)?;
    let ms = match (read.to_f64() * 1000.0).ceil() {
        // A positive time-out never rounds to 0, which means for ever.
        0.0 if read.is_positive() => 1.0,
        ms => ms,
    };
    fail_if!(ms >= i64::MAX as f64 - now.unix_ms() as f64, Error::TIMEOUT_RANGE);
    match ms as i64 {
        ..0 => Err(Error::TIMEOUT_NEGATIVE),
        0 => Ok(None),
        ms => Ok(Some(now.deadline_in(ms as u64))),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
