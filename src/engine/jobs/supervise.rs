//! Asks the supervisor about a script that runs long.

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::Engine;
use crate::engine::jobs::long_run::{Run, Verdict};

impl Engine {
    /// Whether a script that has taken so many steps, in thousands, may continue. The supervisor, which may let other sessions run
    /// meanwhile, learns whether it is `first` asked about this run.
    pub(crate) fn supervise(&mut self, now: Now, session: SessionId, run: Run, steps: u64, first: bool) -> Verdict {
        if self.scripting.steps_max.is_some_and(|max| steps > max) {
            return Verdict::Kill;
        }
        let Some(mut supervisor) = self.scripting.supervisor.take() else { return Verdict::Continue };
        let wrote = run.wrote;
        self.scripting.long_run = Some(run);
        self.diagnosis.timing.suspended = true;
        self.update_slow_path();
        let mut verdict = supervisor(self, now, session, first);
        self.diagnosis.timing.suspended = false;
        self.diagnosis.timing.long = true;
        self.scripting.supervisor = Some(supervisor);
        if verdict == Verdict::Kill && wrote {
            self.keyspace.changes.abandon();
        }
        if self.scripting.long_run.take().is_some_and(|run| run.killed) {
            verdict = Verdict::Kill;
        }
        self.update_slow_path();
        verdict
    }
}
