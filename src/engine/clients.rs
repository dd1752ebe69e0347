//! Sessions come and go, and those that were written to are handed to whoever writes their outboxes.

use std::sync::Arc;

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::Engine;
use crate::engine::session::{Peer, Session, SessionFlags};

impl Engine {
    /// A new session.
    pub fn connect(&mut self, now: Now, mut peer: Peer) -> SessionId {
        // All that come to one address share its text.
        if *self.last_local == *peer.laddr {
            peer.laddr = Arc::clone(&self.last_local);
        } else {
            self.last_local = Arc::clone(&peer.laddr);
        }
        let session = Session::new(self.next_client, peer, now.mono_ms());
        self.next_client += 1;
        self.stats.connections += 1;
        let id = SessionId(self.sessions.insert(session) as u32);
        self.log_out(id);
        if self.counts_clients() {
            self.count_client(id);
        }
        id
    }

    /// Ends a session: its connection is closed, whoever closed it.
    pub fn disconnect(&mut self, now: Now, id: SessionId) {
        self.pubsub.forget(id);
        self.update_heard();
        self.unwatch(id);
        self.untrack(id);
        self.end_monitor(id);
        self.forget_wait(now, id);
        self.faults.forget(id);
        self.gates.forget(id);
        self.end_lock_session(now, id, false);
        if self.counts_clients() {
            self.forget_client(id);
        }
        self.drop_transaction(id);
        let session = self.sessions.remove(id.0 as usize);
        self.discards.add(session.out);
        if session.flags.contains(SessionFlags::DIRTY) {
            self.dirty.retain(|&other| other != id);
        }
        if self.keyspace.changes.attention {
            self.publish_events();
            self.attend(now);
        }
    }

    /// Drops a buffer, and gives the memory of a large one back bit by bit.
    pub fn discard<T: Copy + 'static>(&mut self, buffer: Vec<T>) {
        self.discards.add(buffer);
    }

    /// Notes that a session has something to write or is to be closed, for [`Engine::take_dirty`].
    pub fn mark_dirty(&mut self, id: SessionId) {
        let session = &mut self.sessions[id.0 as usize];
        if !session.flags.contains(SessionFlags::DIRTY) {
            session.flags |= SessionFlags::DIRTY;
            self.dirty.push(id);
        }
    }

    /// Moves the sessions that were written to, or are to be closed, behind `into`. The session whose request was executed is not
    /// among them unless somebody wrote to it besides. It ends a turn: who tracks keys by prefixes is told of those that have changed in it.
    pub fn take_dirty(&mut self, into: &mut Vec<SessionId>) {
        if self.keyspace.changes.tracking.has_changed() && self.long_run.is_none() {
            self.tell_changed();
        }
        if self.counts_clients() {
            for index in 0..self.dirty.len() {
                self.count_client(self.dirty[index]);
            }
        }
        for &id in &self.dirty {
            self.sessions[id.0 as usize].flags.remove(SessionFlags::DIRTY);
        }
        into.append(&mut self.dirty);
    }
}
