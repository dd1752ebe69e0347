//! What the engine does about a pause: begins and ends it, holds requests back, and resumes them afterwards.

use crate::base::arguments::Arguments;
use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::command::{Command, Flags};
use crate::engine::pause::Mode;
use crate::engine::request::Request;
use crate::engine::session::SessionFlags;
use crate::engine::{ADVANCE_BUDGET, Engine};

impl Engine {
    /// Begins a pause. An active pause becomes neither shorter nor weaker.
    pub fn pause(&mut self, mode: Mode, until_ms: u64) {
        self.clients.pause.until_ms =
            if self.clients.pause.is_on() { self.clients.pause.until_ms.max(until_ms) } else { until_ms };
        self.clients.pause.mode = self.clients.pause.mode.max(Some(mode));
        self.update_slow_path();
        self.keyspace.keep_expired = true;
    }

    /// Ends the pause.
    pub fn unpause(&mut self) {
        self.clients.pause.mode = None;
        self.update_slow_path();
        self.keyspace.keep_expired = false;
        self.keyspace.changes.has_follow_up = true;
    }

    /// Ends the pause if its time is over.
    pub(in crate::engine) fn end_pause(&mut self, now: Now) {
        if self.clients.pause.is_on() && now.reached(self.clients.pause.until_ms) {
            self.unpause();
        }
    }

    /// Lets a queued write command expire keys, although a pause has begun in the same transaction.
    pub(in crate::engine) fn hold_expiry(&mut self, command: &Command) {
        let writes = command.flags.intersects(Flags::WRITE.union(Flags::MAY_REPLICATE));
        self.keyspace.keep_expired = self.clients.pause.is_on() && !writes;
    }

    /// Holds a request back.
    pub(in crate::engine) fn hold(&mut self, id: SessionId, args: &[&[u8]]) {
        self.clients.pause.last += 1;
        let number = self.clients.pause.last;
        self.clients.pause.held.insert(number, (id, Arguments::new(args)));
        let session = &mut self.clients.sessions[id];
        session.held = number;
        session.flags |= SessionFlags::BLOCKED;
    }

    /// Executes the held requests of a pause that is over; if there are many, some of them.
    pub(in crate::engine) fn resume_held(&mut self, now: Now) {
        for _ in 0..ADVANCE_BUDGET {
            if self.clients.pause.is_on() {
                return;
            }
            let Some((_, (id, args))) = self.clients.pause.held.pop_first() else { return };
            let Some(session) = self.clients.sessions.get_mut(id) else { continue };
            session.held = 0;
            session.resume();
            if session.flags.contains(SessionFlags::CLOSE_NOW) {
                continue;
            }
            self.perform_again(now, id, Request::new(&args.borrow()));
            self.serve_ready(now);
            self.serve_lock_waiters(now);
            self.wake_up(now, id);
        }
    }
}
