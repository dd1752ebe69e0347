//! Engine-wide states that take requests off the fast path.
//!
//! Each of these states is rare, and seldom begins or ends. They share one word, so that a request needs a single test to find
//! that none is active. The code that handles each state explains it.

use crate::engine::Engine;

bitflags::bitflags! {
    /// States that last longer than a request.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Circumstances: u8 {
        /// The memory of clients has a limit, so it is counted.
        const CLIENTS_COUNTED = 1 << 0;
        /// `CLIENT PAUSE` is active.
        const PAUSE = 1 << 1;
        /// The server is a node of a cluster.
        const CLUSTER = 1 << 2;
        /// `maxmemory` is set.
        const BOUNDED = 1 << 3;
        /// A session monitors or tracks keys.
        const OBSERVERS = 1 << 4;
        /// A script runs long, and other sessions are served meanwhile.
        const LONG_RUN = 1 << 5;
        /// The timing of commands is not the default: the next command, every command or no command reads the clock itself.
        const TIMED = 1 << 6;
        /// Actions for the driver are pending.
        const ASKED = 1 << 7;
    }
}

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
    pub(super) fn find_circumstances(&self) -> Circumstances {
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
