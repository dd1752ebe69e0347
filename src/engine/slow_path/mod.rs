//! Engine-wide states that take requests off the fast path.
//!
//! Each of these states is rare, and seldom begins or ends. They share one word, so that a request needs a single test to find
//! that none is active. `update.rs` finds which states are active.
//!
//! A request is on the fast path if no state here is active and `Session::is_ordinary` holds: `Engine::perform` then skips
//! `may_run`. There are three further detours: `Context::run_slowly`, where a request meets observers, overdue leases or native
//! locks; `executed_alone`, where it reads the clock for itself; and faults that a test has ordered.

mod update;
mod writes;

bitflags::bitflags! {
    /// States that last longer than a request.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct SlowPath: u16 {
        /// The memory of clients has a limit, so it is counted.
        const CLIENTS_COUNTED = 1 << 0;
        /// `CLIENT PAUSE` is active.
        const PAUSE = 1 << 1;
        /// The server is a node of a cluster.
        const CLUSTER = 1 << 2;
        /// `maxmemory` is set.
        const MAXMEMORY = 1 << 3;
        /// A session monitors or tracks keys.
        const MONITOR_OR_TRACKING = 1 << 4;
        /// A script runs long, and other sessions are served meanwhile.
        const LONG_RUN = 1 << 5;
        /// The timing of commands is not the default: the next command, every command or no command reads the clock itself.
        const TIMED = 1 << 6;
        /// Actions for the driver are pending.
        const ACTIONS = 1 << 7;
        /// Commands that write are refused, because the disk does not take what they change.
        const WRITES_REFUSED = 1 << 8;
        /// Files are being loaded.
        const LOADING = 1 << 9;
        /// The server is replicated and does not lead: commands that need keys are refused.
        const NOT_LEADER = 1 << 10;
    }
}
