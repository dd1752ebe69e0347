//! Restarts and snapshots of a whole server: a test kills and restarts it, or restores an earlier state.
//!
//! Nothing is stored persistently: a restarted server has lost everything, or, after a failover, the writes that its replica had
//! not received. The orders of tests stay, and so does the configuration.

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::Engine;
use crate::engine::session::SessionFlags;
use crate::engine::users::log::Log;
use crate::keyspace::change::{Change, Effect, Event};
use crate::keyspace::images::Images;
use crate::keyspace::interests::NIL;
use crate::keyspace::journal::Libraries;
use crate::keyspace::lock_records::{Coming, LockRecords};

/// The state of a server at some time: `Engine::snapshot`.
#[derive(Clone, Debug)]
pub struct Snapshot {
    images: Images,
    records: LockRecords,
    libraries: Libraries,
    scripts: Vec<Box<[u8]>>,
    /// In monotonic milliseconds.
    taken_ms: u64,
    /// The seed of the engine's randomness, from which hashes of values derive.
    seed: u64,
}

impl Engine {
    /// Behaves as a process that was killed and started again. Without `lose`, all data is lost. With it, only this many last
    /// writes are lost, as far as the journal goes back (it knows no earlier ones), or none without a journal.
    ///
    /// All sessions are closed: the given one when its outbox is written, the others at once. Configuration, users, clock, faults
    /// and their randomness stay. So do the numbers that are never reused: client ids and fencing tokens. A restarted process
    /// derives them from its wall clock; here the clock may be frozen, and a repeated token would defeat the purpose of tokens.
    pub fn restart(&mut self, now: Now, last: Option<SessionId>, lose: Option<u64>) {
        debug_assert!(self.scripting.long_run.is_none(), "what runs is ended first");
        self.settle_journal();
        let mut journal = self.keyspace.changes.journal.take();
        let state = match (lose, &mut journal) {
            (None, None) => None,
            (None, Some(journal)) => {
                journal.clear();
                None
            }
            (Some(writes), Some(journal)) => {
                journal.undo(writes);
                Some(journal.state())
            }
            (Some(_), None) => Some((self.keyspace.images(None), self.keyspace.lock_records(), self.library_sources())),
        };
        // With the same seed, because hashes of values derive from it.
        let mut old = std::mem::replace(self, Engine::new(self.config.clone(), self.host.seed, now, self.commands));
        self.host.random = old.host.random;
        self.host.run_id = self.random_id();
        self.host.replication_id = self.host.run_id.clone();
        self.host.environment = std::mem::take(&mut old.host.environment);
        self.users = old.users;
        self.users.log = Log::default();
        self.host.users_file = old.host.users_file;
        self.host.entropy = old.host.entropy;
        self.host.rewrite_config = old.host.rewrite_config;
        self.host.apply_config = old.host.apply_config;
        self.scripting.supervisor = old.scripting.supervisor;
        self.scripting.steps_max = old.scripting.steps_max;
        self.testing.mode = old.testing.mode;
        self.replication = old.replication;
        self.testing.faults = old.testing.faults;
        self.testing.faults.forget_all();
        self.work.actions = old.work.actions;
        self.update_slow_path();
        self.diagnosis.stats.event_loop_before = self.host.environment.event_loop.map_or([0; 2], |count| count());
        self.clients.sessions = old.clients.sessions;
        // Sessions name their last command by its slot.
        self.diagnosis.command_stats = old.diagnosis.command_stats;
        self.diagnosis.command_stats.reset();
        self.end_sessions(last);
        let next_token = old.keyspace.changes.locks.as_ref().map_or(0, |locks| locks.next_token());
        if let Some(locks) = &mut self.keyspace.changes.locks {
            locks.set_next_token(next_token);
        }
        self.keyspace.changes.log = old.keyspace.changes.log.take();
        self.keyspace.changes.begin();
        self.tell_log_of_the_end(now);
        if self.keyspace.changes.log.is_some() {
            self.keyspace.changes.tell_lock_records_lost(now, &old.keyspace.lock_records());
        }
        if let Some((images, records, libraries)) = state {
            let coming = Coming::Restarted(self.config.lock_session_grace);
            self.put_state(now, (images, records, &libraries), 0, coming, |_| false);
        }
        self.keyspace.changes.end();
        if let Some(journal) = journal {
            self.resume_journal(journal);
        }
        if self.keyspace.changes.has_follow_up {
            self.follow_up(now);
        }
    }

    /// Behaves as a replica that takes the place of a server that has ended: it has the data of this engine, and no sessions. It has not
    /// heard of the last tokens: as each process, it counts from its wall clock.
    #[cfg(feature = "torture")]
    pub fn fail_over(&mut self, now: Now) {
        // These are no changes.
        let log = self.keyspace.changes.log.take();
        self.restart(now, None, Some(0));
        self.keyspace.first_token(now);
        self.keyspace.changes.log = log;
    }

    /// Resets the sessions of the dead process: they have no state left, and only wait to be closed.
    fn end_sessions(&mut self, last: Option<SessionId>) {
        const STAYS: SessionFlags =
            SessionFlags::AUTHENTICATED.union(SessionFlags::UNRESTRICTED).union(SessionFlags::UNIX_SOCKET);
        let ids: Vec<SessionId> = self.clients.sessions.ids(|_| true);
        for id in ids {
            let session = &mut self.clients.sessions[id];
            session.flags &= STAYS;
            if last == Some(id) {
                session.flags |= SessionFlags::CLOSE_AFTER_REPLY;
            } else {
                session.flags |= SessionFlags::CLOSE_NOW;
                (session.out, session.sent) = (Vec::new(), 0);
            }
            (session.transaction, session.held) = (None, 0);
            session.forget_subscriptions();
            (session.watcher, session.waiter, session.lock_waiter, session.tracker) = (NIL, NIL, NIL, NIL);
            self.mark_pending_write(id);
            if self.counts_clients() {
                self.count_client(id);
            }
        }
    }

    /// Tells the readers of the change log that no data is left.
    fn tell_log_of_the_end(&mut self, now: Now) {
        let event = Event::SILENT;
        for db in 0..self.keyspace.databases() as u32 {
            self.keyspace.changes.emit(Change { now, db, key: b"", event, effect: Effect::Flush });
        }
        self.keyspace.changes.emit(Change { now, db: 0, key: b"", event, effect: Effect::FlushLibraries });
    }

    /// Saves the state: data with deadlines, locks with their holders but without queues, functions and cached scripts. Visits
    /// and copies everything.
    pub fn snapshot(&self, now: Now) -> Snapshot {
        Snapshot {
            images: self.keyspace.images(Some(now)),
            records: self.keyspace.lock_records(),
            libraries: self.library_sources(),
            scripts: self.scripting.interpreters.sources(),
            taken_ms: now.deadline_in(0),
            seed: self.host.seed,
        }
    }

    /// Replaces the state by that of a snapshot. Remaining times are those at the time of the snapshot.
    ///
    /// Connections stay, with their subscriptions, tracking and transactions; watched keys count as changed. Blocked clients are
    /// unblocked as if they timed out; holders are notified that their lock was deleted. A grant that ends with its connection is
    /// restored if that connection still exists. Requests that are delayed or held back by a pause, which ends, run before the
    /// restore, so that they do not become part of what comes after. Tokens keep growing. The snapshot does not include the
    /// clock, the configuration, statistics and the rules of faults. Returns an error and changes nothing if the snapshot is of
    /// an engine with another seed, or has databases that do not exist here.
    pub fn restore(&mut self, now: Now, snapshot: &Snapshot) -> Result<(), &'static str> {
        fail_if!(snapshot.seed != self.host.seed, "a snapshot of a server with another seed");
        if snapshot.images.keys().any(|key| key.db as usize >= self.keyspace.databases()) {
            return Err("a snapshot of a server with more databases");
        }
        debug_assert!(self.scripting.long_run.is_none(), "nothing runs meanwhile");
        self.unpause();
        self.end_all_delays(now);
        self.unpause();
        while self.clients.pause.held() > 0 {
            self.resume_held(now);
            // A held request may itself have begun a pause.
            self.unpause();
        }
        let ids: Vec<SessionId> = self.clients.sessions.ids(|_| true);
        for id in ids {
            let session = &self.clients.sessions[id];
            if session.waiter != NIL || session.lock_waiter != NIL {
                self.unblock(now, id, None);
            }
        }
        self.keyspace.changes.begin();
        self.remove_state(now, &snapshot.scripts);
        let connected: Vec<u64> = self.clients.sessions.iter().map(|(_, session)| session.id).collect();
        let later_ms = now.deadline_in(0) as i64 - snapshot.taken_ms as i64;
        let state = (snapshot.images.clone(), snapshot.records.clone(), &snapshot.libraries);
        self.put_state(now, state, later_ms, Coming::Restored, |client| connected.contains(&client.id));
        self.publish_events();
        self.keyspace.changes.end();
        self.follow_up(now);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
