//! Finds which of the engine-wide states are active, and tells whether a certain one is.

use crate::engine::Engine;
use crate::engine::slow_path::SlowPath;

impl Engine {
    /// Whether one of these states is active.
    #[inline]
    pub(crate) fn on_slow_path(&self, slow_path: SlowPath) -> bool {
        self.slow_path.intersects(slow_path)
    }

    /// Must be called after any of these states may have begun or ended.
    pub(in crate::engine) fn update_slow_path(&mut self) {
        self.slow_path = self.find_slow_path();
    }

    /// Computes the states for [`Engine::on_slow_path`] from their sources.
    pub(in crate::engine) fn find_slow_path(&self) -> SlowPath {
        let mut all = SlowPath::empty();
        all.set(SlowPath::CLIENTS_COUNTED, self.counts_clients());
        all.set(SlowPath::PAUSE, self.clients.pause.is_on());
        all.set(SlowPath::CLUSTER, self.in_cluster());
        all.set(SlowPath::MAXMEMORY, self.config.maxmemory != 0);
        all.set(SlowPath::MONITOR_OR_TRACKING, self.has_observers());
        all.set(SlowPath::LONG_RUN, self.scripting.long_run.is_some());
        all.set(SlowPath::TIMED, self.diagnosis.timing.is_particular());
        all.set(SlowPath::ACTIONS, !self.work.actions.is_empty());
        all.set(SlowPath::LOADING, self.is_loading());
        all.set(SlowPath::NOT_LEADER, self.replication.refuses());
        all.set(SlowPath::WRITES_REFUSED, self.persistence.refusal.is_some());
        all
    }
}
