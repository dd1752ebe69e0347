//! The clock of a server that becomes the leader.

use crate::server::shell::Shell;

impl Shell {
    /// The clock has been set to the cluster's, which may be behind this server's own or far ahead of it. What is told by this clock
    /// and is not about keys moves with it, so that no connection seems idle for days, and nothing is due only in days. `before_us`:
    /// what the clock showed before, in microseconds.
    pub(super) fn clock_was_set(&mut self, before_us: u64) {
        let by_us = self.clock.now().mono_us as i64 - before_us as i64;
        self.engine.move_marks(by_us);
        self.forget_marks();
    }
}
