//! Counters of `INFO`: samples the rates, and resets the counters.

use crate::base::time::Now;
use crate::engine::Engine;
use crate::engine::command::Command;
use crate::engine::observe::stats::Stats;
use crate::engine::observe::turns::Turns;
use crate::engine::session::Session;

impl Engine {
    /// Samples the counters that rates are computed from.
    #[cold]
    pub(crate) fn sample_rates(&mut self, now: Now) {
        let [cycles, busy_us] = self.event_loop();
        self.diagnosis.rates.sample(
            now.mono_us(),
            [self.diagnosis.stats.commands, self.diagnosis.stats.net_in, self.diagnosis.stats.net_out, cycles, busy_us],
        );
    }

    /// Rounds of the event loop and their microseconds, since the start or the last `CONFIG RESETSTAT`.
    pub(crate) fn event_loop(&self) -> [u64; 2] {
        let counted = self.host.environment.event_loop.map_or([0; 2], |count| count());
        [0, 1].map(|i| counted[i].saturating_sub(self.diagnosis.stats.event_loop_before[i]))
    }

    /// Resets all counters.
    pub fn reset_stats(&mut self, now: Now) {
        let event_loop_before = self.host.environment.event_loop.map_or([0; 2], |count| count());
        self.diagnosis.stats = Stats { event_loop_before, ..Stats::default() };
        self.diagnosis.command_stats.reset();
        self.diagnosis.turns = Turns::default();
        if let Some(locks) = &mut self.keyspace.changes.locks {
            locks.stats.reset();
        }
        self.keyspace.stats = Default::default();
        self.keyspace.space.reset_freed();
        self.memory.begin_anew(now);
    }

    /// Counts a call of a command.
    pub(crate) fn count(&mut self, command: &'static Command) {
        self.diagnosis.stats.commands += 1;
        self.diagnosis.command_stats.of(command).calls += 1;
    }

    /// The last command of a session that was found in the table.
    pub(crate) fn last_command(&self, session: &Session) -> Option<&'static Command> {
        session.last_command.and_then(|slot| self.diagnosis.command_stats.row(slot.into()))
    }

    /// Undoes a call count: a blocked command is counted when it completes.
    pub(crate) fn uncount(&mut self, command: &'static Command) {
        self.diagnosis.stats.commands -= 1;
        self.diagnosis.command_stats.of(command).calls -= 1;
    }
}
