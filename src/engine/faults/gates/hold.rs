//! What the engine does about gates: holds replies back, tells the driver how much may be written, and opens the gates in time.

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::Engine;
use crate::engine::faults::gates::{Gates, Pace};
use crate::engine::session::SessionFlags;

impl Gates {
    /// Panics unless the gates agree with the session's flags.
    pub(crate) fn check(&self, id: SessionId, flags: SessionFlags) {
        assert_eq!(self.of.contains_key(&id), flags.contains(SessionFlags::FAULT_GATED), "a gated session has a gate");
        assert_eq!(self.awaited.contains_key(&id), flags.contains(SessionFlags::PACED), "a reply that will be held back");
    }
}

impl Engine {
    /// Holds back the session's output since position `from`, at a pace. If its request is blocked, this applies to the reply at
    /// the end of the wait.
    pub(crate) fn gate_reply(&mut self, now: Now, id: SessionId, from: u64, pace: Pace) {
        let given = self.given(id);
        let session = &mut self.clients.sessions[id];
        if session.flags.contains(SessionFlags::BLOCKED) {
            session.flags |= SessionFlags::PACED;
            self.testing.gates.awaited.insert(id, pace);
        } else if given > from {
            self.testing.gates.hold(now, id, (from, given), pace);
            session.flags.set(SessionFlags::FAULT_GATED, self.testing.gates.of.contains_key(&id));
        }
    }

    /// Ends the wait of a blocked request: holds its reply back if a fault ordered that.
    #[cold]
    pub(crate) fn hold_awaited(&mut self, now: Now, id: SessionId) {
        let session = &mut self.clients.sessions[id];
        if session.flags.contains(SessionFlags::BLOCKED) {
            return;
        }
        session.flags.remove(SessionFlags::PACED);
        let written = session.net_out;
        if let Some(pace) = self.testing.gates.awaited.remove(&id) {
            self.gate_reply(now, id, written, pace);
        }
    }

    /// Number of bytes of a session's whole output.
    pub(crate) fn given(&self, id: SessionId) -> u64 {
        let session = &self.clients.sessions[id];
        session.net_out + (session.out.len() - session.sent) as u64
    }

    /// Number of bytes that a session with gates may be sent now.
    #[cold]
    pub fn passable(&self, id: SessionId) -> usize {
        let end = self.testing.gates.end(id).min(self.given(id));
        end.saturating_sub(self.clients.sessions[id].net_out) as usize
    }

    /// Opens gates, and marks their sessions for writing.
    #[cold]
    pub(crate) fn open_gates(&mut self, now: Now) {
        for (id, last) in self.testing.gates.open(now) {
            if last && let Some(session) = self.clients.sessions.get_mut(id) {
                session.flags.remove(SessionFlags::FAULT_GATED);
            }
            self.mark_pending_write(id);
        }
    }
}
