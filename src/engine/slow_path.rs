//! What holds for all requests while it lasts, and makes them other than ordinary ones.
//!
//! Each of these is rare, and seldom begins or ends. They are gathered in one word, so that it costs a request one look to find that there is
//! none. What is to be done about each is told where it is done.

use crate::engine::Engine;

bitflags::bitflags! {
    /// What lasts for longer than a request.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Circumstances: u8 {
        /// The memory of clients has a limit, so that it is counted.
        const CLIENTS_COUNTED = 1 << 0;
        /// `CLIENT PAUSE`.
        const PAUSE = 1 << 1;
        /// It is a node of a cluster.
        const CLUSTER = 1 << 2;
        /// There is a `maxmemory`.
        const BOUNDED = 1 << 3;
        /// Somebody monitors, or tracks keys.
        const OBSERVERS = 1 << 4;
        /// A script runs long, and lets others be answered.
        const LONG_RUN = 1 << 5;
        /// The next command has a look at the clock of its own, or every one has, or none.
        const TIMED = 1 << 6;
        /// The driver is asked for something, and has not done it yet.
        const ASKED = 1 << 7;
    }
}

impl Engine {
    /// Whether one of these lasts.
    #[inline]
    pub(crate) fn lasts(&self, circumstances: Circumstances) -> bool {
        self.circumstances.intersects(circumstances)
    }

    /// To be called after any of them may have begun or ended.
    pub(crate) fn update_circumstances(&mut self) {
        self.circumstances = self.find_circumstances();
    }

    /// What [`Engine::lasts`] goes by, from where each of them comes from.
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
