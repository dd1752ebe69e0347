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
        self.rates.sample(now.mono_us(), [self.stats.commands, self.stats.net_in, self.stats.net_out, cycles, busy_us]);
    }

    /// Rounds of the event loop and their microseconds, since the start or the last `CONFIG RESETSTAT`.
    pub(crate) fn event_loop(&self) -> [u64; 2] {
        let counted = self.environment.event_loop.map_or([0; 2], |count| count());
        [0, 1].map(|i| counted[i].saturating_sub(self.stats.event_loop_before[i]))
    }

    /// Resets all counters.
    pub fn reset_stats(&mut self, now: Now) {
        let event_loop_before = self.environment.event_loop.map_or([0; 2], |count| count());
        self.stats = Stats { event_loop_before, ..Stats::default() };
        self.command_stats.reset();
        self.turns = Turns::default();
        if let Some(locks) = &mut self.keyspace.changes.locks {
            locks.stats.reset();
        }
        self.keyspace.stats = Default::default();
        self.keyspace.space.reset_freed();
        self.memory.begin_anew(now);
    }

    /// Counts a call of a command.
    pub(crate) fn count(&mut self, command: &'static Command) {
        self.stats.commands += 1;
        self.command_stats.of(command).calls += 1;
    }

    /// The last command of a session that was found in the table.
    pub(crate) fn last_command(&self, session: &Session) -> Option<&'static Command> {
        session.last_command.and_then(|slot| self.command_stats.row(slot.into()))
    }

    /// Undoes a call count: a blocked command is counted when it completes.
    pub(crate) fn uncount(&mut self, command: &'static Command) {
        self.stats.commands -= 1;
        self.command_stats.of(command).calls -= 1;
    }
}
