//! What tests order over the wire: the clock is moved, and whoever asked gets the reply when all that follows from it is done.

use crate::base::ids::SessionId;
use crate::engine::faults::test_mode::ClockOrder;
use crate::resp::reply::{Sink, WireReply};
use crate::server::shell::Shell;

impl Shell {
    /// Carries out what a `CLOCK` command asked for, and replies.
    #[cold]
    pub(super) fn order_clock(&mut self, id: SessionId, order: ClockOrder) {
        // Whoever moves time on waits for it, and is not idle meanwhile.
        self.asking = Some(id);
        match order {
            ClockOrder::Freeze => self.clock.freeze(),
            ClockOrder::Resume => self.clock.resume(),
            ClockOrder::Advance(ms) => {
                // To a whole millisecond, as deadlines are: on a clock that runs, too, a lease of that length is over then.
                let part_us = self.clock.now().mono_us % 1000;
                let rest_us = if part_us > 0 { 1000 - part_us } else { 0 };
                self.advance(ms.saturating_mul(1000) + rest_us);
            }
            ClockOrder::Set(unix_ms) => {
                let shown_us = self.clock.now().unix_us();
                match unix_ms.saturating_mul(1000).saturating_sub(shown_us) {
                    ahead_us @ 0.. => self.advance(ahead_us as u64),
                    // Rounded so that not a millisecond less is shown.
                    behind_us => self.clock.jump_wall(behind_us / 1000),
                }
            }
            ClockOrder::Skew(ms) => self.clock.jump_wall(ms),
            ClockOrder::Info => {}
        }
        self.asking = None;
        // It may run at another pace now, or show another time for what the timer is armed for.
        self.timer.reset();
        self.yields = true;
        let now = self.clock.now();
        let (frozen, skew_ms) = (self.clock.is_frozen(), self.clock.stepped_ms());
        let blocked = if order == ClockOrder::Info { self.engine.blocked_clients() } else { 0 };
        let session = &mut self.engine.sessions[id.0 as usize];
        session.last_ms = now.mono_ms();
        if session.silenced() {
            return;
        }
        let mut reply = WireReply::new(&mut session.out, session.protocol);
        match order {
            ClockOrder::Info => {
                reply.map(4);
                reply.bulk(b"frozen");
                reply.boolean(frozen);
                reply.bulk(b"unix-ms");
                reply.integer(now.unix_ms());
                reply.bulk(b"skew-ms");
                reply.integer(skew_ms);
                reply.bulk(b"blocked-clients");
                reply.integer(blocked as i64);
            }
            _ => reply.ok(),
        }
        self.expect_idle(now);
    }

    /// Has the engine be as after a restart. Each connection finds in its next turn that it is to be closed, before
    /// it reads anything.
    #[cold]
    pub(crate) fn restart(&mut self, last: Option<SessionId>, lose: Option<u64>) {
        let now = self.clock.now();
        self.engine.restart(now, last, lose);
        self.timer.reset();
    }

    /// Whether the turn of a session is to wait until others have had what came of its requests.
    #[inline]
    pub(super) fn gives_way(&mut self) -> bool {
        self.yields && std::mem::take(&mut self.yields)
    }
}
