//! Orders of tests over the wire: `CLOCK` moves the clock, and its reply follows once everything that falls due has been done.

use crate::base::ids::SessionId;
use crate::engine::faults::test_mode::ClockOrder;
use crate::resp::reply::{Sink, WireReply};
use crate::server::shell::Shell;

impl Shell {
    /// Carries out a `CLOCK` command and replies.
    #[cold]
    pub(super) fn order_clock(&mut self, id: SessionId, order: ClockOrder) {
        // The client that moves the clock waits for it, and is not idle meanwhile.
        self.driver.set_clock_mover(Some(id));
        match order {
            ClockOrder::Freeze => self.clock.freeze(),
            ClockOrder::Resume => self.clock.resume(),
            ClockOrder::Advance(ms) => {
                // Rounded up to a whole millisecond, as deadlines are, so that a lease of that length has ended on a running
                // clock, too.
                let part_us = self.clock.now().mono_us() % 1000;
                let rest_us = if part_us > 0 { 1000 - part_us } else { 0 };
                self.move_clock(ms.saturating_mul(1000) + rest_us);
            }
            ClockOrder::Set(unix_ms) => {
                let shown_us = self.clock.now().unix_us();
                match unix_ms.saturating_mul(1000).saturating_sub(shown_us) {
                    ahead_us @ 0.. => self.move_clock(ahead_us as u64),
                    // Truncated, so that the clock shows no millisecond less than asked for.
                    behind_us => self.clock.jump_wall(behind_us / 1000),
                }
            }
            ClockOrder::Skew(ms) => self.clock.jump_wall(ms),
            ClockOrder::Info => {}
        }
        self.driver.set_clock_mover(None);
        // The clock may run again, or the timer's deadline may belong to another reading.
        self.driver.reset_timer();
        self.driver.let_others_run();
        let now = self.clock.now();
        let (frozen, skew_ms) = (self.clock.is_frozen(), self.clock.stepped_ms());
        let blocked = if order == ClockOrder::Info { self.driver.engine.blocked_clients() } else { 0 };
        let session = &mut self.driver.engine.sessions_mut()[id];
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
        self.driver.expect_idle(now);
    }

    /// Puts the engine into the state after a restart. Each connection finds in its next turn that it must close, before it reads
    /// anything.
    #[cold]
    pub(crate) fn restart(&mut self, last: Option<SessionId>, lose: Option<u64>) {
        let now = self.clock.now();
        self.driver.engine.restart(now, last, lose);
        self.driver.reset_timer();
    }
}
