//! `MULTI`, `EXEC`, `WATCH`: queues requests, decides which may be queued, and runs the queue.

use crate::base::arguments::split;
use crate::base::error::{Error, Result};
use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::Engine;
use crate::engine::cluster;
use crate::engine::command::{Command, Flags, Traits};
use crate::engine::context::Context;
use crate::engine::replication::Patience;
use crate::engine::session::SessionFlags;
use crate::engine::transaction::{Queued, Transaction};
use crate::keyspace::interests::NIL;
use crate::resp::reply::Sink;

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Fate {
    /// It runs.
    Run,
    /// It is queued for `EXEC`.
    Queue,
    /// It waits for the end of a pause.
    Hold,
    /// It waits until a leader is known.
    AwaitLeader(Patience),
    /// It is refused: it ends a transaction whose keys belong to several slots.
    Cross,
}

impl Engine {
    /// Decides what happens to a request between `MULTI` and `EXEC`, or during a pause.
    #[cold]
    pub(in crate::engine) fn admit_specially(
        &mut self,
        now: Now,
        id: SessionId,
        command: &'static Command,
        args: &[&[u8]],
    ) -> Result<Fate> {
        let in_multi = self.clients.sessions[id].flags.contains(SessionFlags::MULTI);
        if in_multi && command.flags.contains(Flags::NO_MULTI) {
            return Err(if self.hides(command) { Error::unknown_command(args) } else { Error::NOT_IN_MULTI });
        }
        if let Some(patience) = self.patience(id, command) {
            self.check_user(now, id, command, args)?;
            return Ok(Fate::AwaitLeader(patience));
        }
        self.admit(now, id, command, args)?;
        if self.in_cluster() {
            let slot = cluster::request_slot(command, args)?;
            let lost = self.watched_touched(id);
            if let Some(transaction) = &mut self.clients.sessions[id].transaction {
                if command.is_exec() && transaction.crosses {
                    return Ok(Fate::Cross);
                }
                // A request that will not be queued any more does not count.
                let slot = slot.filter(|_| !lost && !transaction.refused && !command.traits.contains(Traits::AT_ONCE));
                transaction.crosses |= slot.is_some() && transaction.slot.is_some_and(|first| Some(first) != slot);
                transaction.slot = transaction.slot.or(slot);
            }
        }
        let monitors = self.clients.sessions[id].flags.contains(SessionFlags::MONITOR);
        self.check_memory(now, command, args)?;
        let mut flags = self.flags_of(command, args);
        if command.is_exec()
            && let Some(transaction) = &self.clients.sessions[id].transaction
        {
            flags |= transaction.flags;
            if flags.contains(Flags::DENYOOM) {
                let wanted = transaction.bytes.len();
                self.make_room(now, wanted)?;
            }
        }
        if monitors {
            // Redis treats a monitor as a replica, which no pause holds back.
            let touches = flags.intersects(Flags::READONLY.union(Flags::WRITE).union(Flags::MAY_REPLICATE));
            return match touches {
                true => Err(Error::REPLICA_AND_KEYSPACE),
                false if in_multi && !command.traits.contains(Traits::AT_ONCE) => Ok(Fate::Queue),
                false => Ok(Fate::Run),
            };
        }
        if self.clients.pause.holds(flags) && !flags.contains(Flags::TEST_MODE) {
            return Ok(Fate::Hold);
        }
        Ok(if in_multi && !command.traits.contains(Traits::AT_ONCE) { Fate::Queue } else { Fate::Run })
    }

    /// Queues a request.
    pub(in crate::engine) fn enqueue(&mut self, id: SessionId, command: &'static Command, args: &[&[u8]], reply: &mut dyn Sink) {
        let limit = self.config.client_query_buffer_limit;
        let flags = self.flags_of(command, args);
        let lost = self.watched_touched(id);
        let slot = self.diagnosis.command_stats.find(command) as u16;
        let session = &mut self.clients.sessions[id];
        let transaction = session.transaction.get_or_insert_default();
        reply.simple("QUEUED");
        if lost || transaction.refused {
            // It will never run, so it is not kept.
            return;
        }
        transaction.push(slot, flags, args);
        if transaction.memory() as u64 > limit {
            tracing::warn!(client = session.id, addr = session.addr, "closing a client whose transaction is too large");
            self.end_transaction(id);
            self.close_over_limit(id);
        }
    }

    /// Closes a session that keeps more than the query buffer limit allows.
    pub(crate) fn close_over_limit(&mut self, id: SessionId) {
        self.diagnosis.stats.query_limit_disconnections += 1;
        self.clients.sessions[id].flags |= SessionFlags::CLOSE_NOW;
        self.mark_pending_write(id);
    }

    /// Records that a request of the session was refused. Returns the error to reply with, which is another one for `EXEC`.
    #[cold]
    pub(in crate::engine) fn refused(&mut self, id: SessionId, is_exec: bool, error: Error) -> Error {
        if is_exec {
            self.end_transaction(id);
            if error.redirects() {
                return error;
            }
            return error.as_reason("EXECABORT Transaction discarded because of: ");
        }
        if let Some(transaction) = &mut self.clients.sessions[id].transaction {
            transaction.refused = true;
        }
        error
    }

    /// Ends a session's transaction and its watches, if it has any.
    pub(crate) fn end_transaction(&mut self, id: SessionId) {
        let session = &mut self.clients.sessions[id];
        session.flags.remove(SessionFlags::MULTI);
        self.drop_transaction(id);
        self.unwatch(id);
    }

    /// Drops a session's queue, which may be very large.
    pub(in crate::engine) fn drop_transaction(&mut self, id: SessionId) {
        if let Some(transaction) = self.clients.sessions[id].transaction.take() {
            self.discard_transaction(*transaction);
        }
    }

    fn discard_transaction(&mut self, transaction: Transaction) {
        let Transaction { queue, ends, bytes, .. } = transaction;
        self.discard(queue);
        self.discard(ends);
        self.discard(bytes);
    }

    /// Removes a session's watches.
    pub(crate) fn unwatch(&mut self, id: SessionId) {
        let watcher = std::mem::replace(&mut self.clients.sessions[id].watcher, NIL);
        if watcher != NIL {
            self.keyspace.changes.watches.unwatch(watcher);
            self.keyspace.changes.update_observed();
        }
    }

    /// Whether a key that the session watches was changed.
    pub fn watched_touched(&self, id: SessionId) -> bool {
        let watcher = self.clients.sessions[id].watcher;
        watcher != NIL && self.keyspace.changes.watches.touched(watcher)
    }
}

/// Begins a transaction.
pub fn begin(cx: &mut Context<'_>) -> Result {
    let session = cx.session();
    fail_if!(session.flags.contains(SessionFlags::MULTI), Error::MULTI_NESTED);
    session.flags |= SessionFlags::MULTI;
    session.transaction = Some(Box::default());
    Ok(())
}

/// Makes the session watch keys.
pub fn watch(cx: &mut Context<'_>, keys: &[&[u8]]) -> Result {
    let id = cx.session;
    fail_if!(cx.session().flags.contains(SessionFlags::MULTI), Error::WATCH_IN_MULTI);
    // The transaction will fail anyway, so further watches change nothing.
    if cx.engine.watched_touched(id) {
        return Ok(());
    }
    let mut watcher = cx.session().watcher;
    for key in keys {
        watcher = cx.engine.keyspace.watch(watcher, cx.db, key, cx.now);
    }
    cx.session().watcher = watcher;
    if cx.engine.keyspace.changes.watches.bytes(watcher) as u64 > cx.engine.config.client_query_buffer_limit {
        let session = cx.session();
        tracing::warn!(client = session.id, addr = session.addr, "closing a client that watches too many keys");
        cx.engine.unwatch(id);
        cx.engine.close_over_limit(id);
    }
    Ok(())
}

/// Runs the queue.
pub fn execute(cx: &mut Context<'_>) -> Result {
    let id = cx.session;
    let session = cx.session();
    fail_if!(!session.flags.contains(SessionFlags::MULTI), Error::EXEC_WITHOUT_MULTI);
    let watcher = session.watcher;
    let transaction = session.transaction.take().unwrap_or_default();
    let changed = watcher != NIL && cx.engine.keyspace.watched_changed(watcher, cx.now);
    cx.engine.unwatch(id);
    if transaction.refused || changed {
        cx.engine.end_transaction(id);
        let refused = transaction.refused;
        cx.engine.discard_transaction(*transaction);
        fail_if!(refused, Error::EXEC_ABORT);
        cx.reply.null_array();
        return Ok(());
    }
    // Commands see the session in a transaction until the last of them has run.
    cx.session().flags |= SessionFlags::IN_EXEC;
    cx.engine.running.executing = (transaction.len(), transaction.memory());
    let began_ns = cx.engine.take_time(cx.now);
    cx.reply.array(transaction.len());
    cx.engine.running.exec_slot = transaction.slot;
    let (mut start, mut first) = (0, 0);
    for Queued { slot, count } in &transaction.queue {
        let Some(command) = cx.engine.diagnosis.command_stats.row((*slot).into()) else {
            unreachable!("slots of commands are never removed")
        };
        let ends = &transaction.ends[first..first + count];
        let args = split(&transaction.bytes, start, ends);
        first += count;
        start = ends.last().copied().unwrap_or(start);
        if cx.engine.clients.pause.is_on() {
            cx.engine.hold_expiry(command);
        }
        match cx.engine.admit_queued(cx.now, id, command, &args) {
            Ok(()) => {
                let slot = cx.call(command, &args);
                let flags = cx.session().flags;
                cx.engine.executed(cx.now, id, flags, (command, slot), &args, 0);
            }
            Err(error) => {
                cx.engine.diagnosis.command_stats.of(command).rejected += 1;
                cx.engine.refuse(&error, cx.reply);
            }
        }
    }
    cx.engine.running.exec_slot = None;
    cx.engine.keyspace.keep_expired = cx.engine.clients.pause.is_on();
    cx.session().flags.remove(SessionFlags::IN_EXEC);
    // Removes also the watches that a queued command has added.
    cx.engine.end_transaction(id);
    cx.engine.discard_transaction(*transaction);
    cx.engine.time_since(began_ns);
    Ok(())
}

impl Engine {
    /// Whether a queued request may still be run.
    fn admit_queued(&mut self, now: Now, id: SessionId, command: &'static Command, args: &[&[u8]]) -> Result {
        debug_assert!(!command.traits.contains(Traits::AT_ONCE), "{} is not queued", self.commands.full_name(command));
        if self.clients.sessions[id].flags.contains(SessionFlags::UNRESTRICTED) {
            return Ok(());
        }
        self.check_access_of_queued(now, id, command, args)
    }
}
