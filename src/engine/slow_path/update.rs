//! Finds which of the engine-wide states are active, and tells whether a certain one is.

use crate::engine::Engine;
use crate::engine::slow_path::Circumstances;

impl Engine {
    /// Whether one of these states is active.
    #[inline]
    pub(crate) fn lasts(&self, circumstances: Circumstances) -> bool {
        self.circumstances.intersects(circumstances)
    }

    /// Must be called after any of these states may have begun or ended.
    pub(crate) fn update_circumstances(&mut self) {
        self.circumstances = self.find_circumstances();
    }

    /// Computes the states for [`Engine::lasts`] from their sources.
    pub(in crate::engine) fn find_circumstances(&self) -> Circumstances {
        let mut all = Circumstances::empty();
        all.set(Circumstances::CLIENTS_COUNTED, self.counts_clients());
        all.set(Circumstances::PAUSE, self.pause.is_on());
        all.set(Circumstances::CLUSTER, self.in_cluster());
        all.set(Circumstances::BOUNDED, self.config.maxmemory != 0);
        all.set(Circumstances::OBSERVERS, self.has_observers());
        all.set(Circumstances::LONG_RUN, self.long_run.is_some());
        all.set(Circumstances::TIMED, self.timing.is_particular());
        all.set(Circumstances::ASKED, !self.actions.is_empty());
        all
    }
}
