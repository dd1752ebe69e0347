//! The clock of a server that becomes the leader.

use crate::server::shell::Shell;

impl Shell {
    /// Sets the clock to the cluster's, which may be behind this server's own or far ahead of it. What is told by this clock and is
    /// not about keys moves with it, so that no connection seems idle for days, and nothing is due only in days.
    pub(super) fn join_clock(&mut self, us: u64) {
        let by_us = us as i64 - self.clock.now().mono_us as i64;
        self.clock.set_us(us);
        self.engine.move_marks(by_us);
        self.forget_marks();
    }
}
