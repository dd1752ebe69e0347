//! Changes of the role and of the nodes: ends the waits of a former leader's clients.

use crate::base::error::Error;
use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::Engine;
use crate::engine::replication::{Role, State};
use crate::engine::session::SessionFlags;

impl Engine {
    /// Sets the role of this server and what it knows of the other nodes. The driver calls this when anything of it changes. Of
    /// positions alone it tells by [`Engine::set_follower_positions`].
    ///
    /// A leader that becomes anything else ends the waits of its clients with Redis's `UNBLOCKED`, and closes those connections
    /// behind it, as Redis does. The driver must not hold these replies back: they show no change. Subscribers to Sentinel's
    /// channels get its events.
    ///
    /// Must not be called while a script runs.
    pub fn set_replication(&mut self, now: Now, state: State) {
        debug_assert!(self.scripting.long_run.is_none(), "a script would go on with another role");
        debug_assert!(state.role == Role::Single || state.nodes.iter().any(|node| node.id == state.node), "knows itself");
        let led = self.replication.leads();
        let old = std::mem::replace(&mut self.replication.state, state);
        let before = match self.replication.leader().cloned() {
            Some(leader) => self.replication.last_leader.replace(leader),
            None => self.replication.last_leader.clone(),
        };
        self.clients.pubsub.relay.set_on(self.replication.is_on());
        if !self.replication.is_on() {
            self.replication.last_leader = None;
        }
        self.update_slow_path();
        if led && !self.replication.leads() {
            self.end_waits_of_leader(now);
        }
        self.announce_replication(&old, before.as_ref());
        if !self.keyspace.changes.waits.for_leader.is_empty() && self.replication.has_live_leader() {
            self.resume_for_leader(now);
        }
        self.end_replica_waits(now);
        if self.keyspace.changes.has_follow_up {
            self.follow_up(now);
        }
    }

    /// Unblocks all blocked clients with an error, except those that a pause holds back (their requests are refused when it ends) and
    /// those that wait for a file. Nothing is granted in between: grants come after all waits have ended.
    fn end_waits_of_leader(&mut self, now: Now) {
        let blocked = self.clients.sessions.iter().filter(|(_, session)| session.flags.contains(SessionFlags::BLOCKED));
        let blocked: Vec<SessionId> = blocked.map(|(id, _)| id).collect();
        for id in blocked {
            if self.unblock(now, id, Some(&Error::ROLE_CHANGED)) || self.fail_job(now, id, &Error::ROLE_CHANGED) {
                self.clients.sessions[id].flags |= SessionFlags::CLOSE_AFTER_REPLY;
                self.mark_pending_write(id);
            }
        }
    }
}
