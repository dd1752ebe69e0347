//! Engine-wide states that take requests off the fast path.
//!
//! Each of these states is rare, and seldom begins or ends. They share one word, so that a request needs a single test to find
//! that none is active. The code that handles each state explains it. `update.rs` finds which states are active.

mod update;

bitflags::bitflags! {
    /// States that last longer than a request.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct SlowPath: u8 {
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
        const ACTIONS = 1 << 7;
    }
}
