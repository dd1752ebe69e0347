//! Connects, disconnects and counts sessions, and hands out the sessions with output to write.

pub mod sessions;
pub(super) mod state;

use std::sync::Arc;

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::Engine;
use crate::engine::observe::notices::Notice;
use crate::engine::session::{Peer, SessionFlags};

const DENIED: &[u8] = b"-DENIED Redis is running in protected mode because protected mode is enabled and no password is set for the \
default user. In this mode connections are only accepted from the loopback interface. If you want to connect from external \
computers to Redis you may adopt one of the following solutions: 1) Just disable protected mode sending the command 'CONFIG SET \
protected-mode no' from the loopback interface by connecting to Redis from the same host the server is running, however MAKE SURE \
Redis is not publicly accessible from internet if you do so. Use CONFIG REWRITE to make this change permanent. 2) Alternatively \
you can just disable the protected mode by editing the Redis configuration file, and setting the protected mode option to 'no', \
and then restarting the server. 3) If you started the server manually just for testing, restart it with the '--protected-mode no' \
option. 4) Set up an authentication password for the default user. NOTE: You only need to do one of the above things in order for \
the server to start accepting connections from the outside.\r\n";
const FULL: &[u8] = b"-ERR max number of clients reached\r\n";

impl Engine {
    /// Why a client that connects is refused, if it is, as it is told. `is_local`: it is on this machine. `from` is its address, for the
    /// log.
    pub fn refusal(&mut self, now: Now, is_local: bool, from: impl FnOnce() -> String) -> Option<&'static [u8]> {
        let is_full = self.clients.sessions.len() >= self.config.maxclients as usize;
        let is_denied = !is_local && self.config.protected_mode && self.users.default_user().nopass;
        let refusal = if is_full { FULL } else { DENIED };
        (is_full || is_denied).then(|| {
            self.diagnosis.stats.rejected += 1;
            let why = String::from_utf8_lossy(refusal);
            self.notice(now, None, Notice::ClientRefused { addr: &from(), why: why.trim_start_matches('-').trim_end() });
            refusal
        })
    }

    /// Creates a session.
    pub fn connect(&mut self, now: Now, mut peer: Peer) -> SessionId {
        // Connections to the same local address share its text.
        if *self.clients.last_local == *peer.laddr {
            peer.laddr = Arc::clone(&self.clients.last_local);
        } else {
            self.clients.last_local = Arc::clone(&peer.laddr);
        }
        self.diagnosis.stats.connections += 1;
        let id = self.clients.sessions.add(peer, now.mono_ms());
        self.log_out(id);
        if self.counts_clients() {
            self.count_client(id);
        }
        id
    }

    /// Moves what is noted by the monotonic clock and is not about keys: the driver has set its clock by so many microseconds, back
    /// or forth.
    #[cfg_attr(not(feature = "quorum"), allow(dead_code, reason = "only a server that joins others sets its clock"))]
    pub fn move_marks(&mut self, now: Now, by_us: i64) {
        let by_ms = by_us / 1000;
        for (_, session) in self.clients.sessions.iter_mut() {
            session.created_ms = session.created_ms.saturating_add_signed(by_ms);
            session.last_ms = session.last_ms.saturating_add_signed(by_ms);
        }
        self.host.started.shift_us(by_us);
        self.clients.pause.move_end(by_ms);
        self.clients.ended.move_marks(by_ms);
        self.users.guesses.move_marks(by_ms);
        self.try_waiting_logins(now);
    }

    /// Removes a session whose connection is closed. Does nothing if it has ended already.
    pub fn disconnect(&mut self, now: Now, id: SessionId) {
        if !self.clients.sessions.contains(id) {
            return;
        }
        self.forget_subscriptions(id);
        self.unwatch(id);
        self.untrack(id);
        self.end_monitor(id);
        self.forget_wait(now, id);
        self.testing.faults.forget(id);
        self.testing.gates.forget(id);
        self.end_lock_session(now, id, false);
        if self.counts_clients() {
            self.forget_client(id);
        }
        self.drop_transaction(id);
        self.remember_client(now, id);
        if let Some(session) = self.clients.sessions.remove(id) {
            self.work.discards.add(session.out);
            if session.flags.contains(SessionFlags::PENDING_WRITE) {
                self.clients.pending_writes.retain(|&other| other != id);
            }
        }
        if self.keyspace.changes.has_follow_up {
            self.publish_events();
            self.follow_up(now);
        }
    }

    /// Drops a buffer. The memory of a large one is freed in steps.
    pub fn discard<T: Copy + 'static>(&mut self, buffer: Vec<T>) {
        self.work.discards.add(buffer);
    }

    /// Records that a session has output to write or is to be closed, for [`Engine::take_pending_writes`].
    pub fn mark_pending_write(&mut self, id: SessionId) {
        if let Some(session) = self.clients.sessions.get_mut(id)
            && !session.flags.contains(SessionFlags::PENDING_WRITE)
        {
            session.flags |= SessionFlags::PENDING_WRITE;
            self.clients.pending_writes.push(id);
        }
    }

    /// Appends the sessions that have output, or are to be closed, to `into`. The session whose request was executed is included
    /// only if another session wrote to it. Ends a turn: clients that track keys by prefix are notified of the keys that changed
    /// in it.
    #[inline]
    pub fn take_pending_writes(&mut self, into: &mut Vec<SessionId>) {
        if self.keyspace.changes.tracking.has_changed() && self.scripting.long_run.is_none() {
            self.invalidate_changed();
        }
        if !self.clients.pending_writes.is_empty() {
            self.take_each_pending_write(into);
        }
    }

    fn take_each_pending_write(&mut self, into: &mut Vec<SessionId>) {
        if self.counts_clients() {
            for index in 0..self.clients.pending_writes.len() {
                self.count_client(self.clients.pending_writes[index]);
            }
        }
        for &id in &self.clients.pending_writes {
            self.clients.sessions[id].flags.remove(SessionFlags::PENDING_WRITE);
        }
        into.append(&mut self.clients.pending_writes);
    }

    /// Number of blocked clients: on keys, on locks, by a pause or by a delay. Visits all sessions.
    pub fn blocked_clients(&self) -> usize {
        self.clients.sessions.iter().filter(|(_, session)| session.flags.contains(SessionFlags::BLOCKED)).count()
    }
}
