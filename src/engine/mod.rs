//! The engine: a state machine that turns requests and the passing of time into replies and changes.
//!
//! It has no socket, no clock, no thread and no source of randomness: `now`, the session, the request, the command table and a seed
//! come in as arguments, and the same inputs give the same state and the same bytes. The server shell, the test server, fuzz
//! targets and benches call the same three functions: [`Engine::execute`] (a connection: [`Engine::execute_next`] for each request
//! of a batch), [`Engine::advance`] and [`Engine::next_deadline`].
//!
//! # The way of a request
//!
//! ```text
//!   round::take_turn ▶ Connection::receive (server::net)   reads bytes
//!    └▶ Driving::received ▶ execute (driver::round)   reads the clocks, settles what is due
//!       └▶ Driver::execute_received (driver::connections)   parses requests, looks up the rows and hashes of a batch
//!          └▶ Engine::execute_next (request.rs)   one request, whose reply goes into the session's outbox
//!             ├▶ perform          settles expired leases, finds the row; off the fast path only: may_run (access, memory, MULTI, pause)
//!             │  └▶ Context::run  counts the call; run_slowly where locks, expired leases or observers need a look
//!             │     └▶ handle ─▶ the row's handler (commands) ─▶ Db (keyspace) ─▶ store
//!             │                      └▶ Sink: the reply              └▶ Changes::report ─▶ events, watches, waits, change log
//!             └▶ follow_up        serves the sessions whose keys or locks have become ready
//!    └▶ Driving::finish_batch   ▶ Driver::wake_recipients wakes the other sessions that have replies
//!    └▶ Connection::write   writes to the socket, in the same turn
//! ```
//!
//! # The way of a write that is stored or replicated
//!
//! ```text
//!   a request, as above: Changes::report ▶ AppendLog   records it;  Driver::hold_reply ▶ CommitGate   its reply waits
//!   the end of the round: Rounds::end_round ▶ Driving::work_between_turns ▶ submit_pending ▶ Driver::submit ▶ hand_on_pending
//!    ├▶ Destination::File    Order::Append ▶ LogThread: LogWriter::go_on writes, syncs ▶ Report::Settled ▶ Storing::take_report ─┐
//!    └▶ Destination::Quorum  Leading::propose ▶ quorum::node: openraft ▶ Asked::Committed ▶ Driver::take_committed               │
//!        ├▶ on a follower    Backlog::apply_some ▶ Follower ▶ Replay ▶ an engine of its own                                       │
//!        └▶ on the leader    settle_committed ▶ Leadership::settle_own ────────────────────────────────────────────────────────┤
//!    Driver::settle ▶ CommitGate::settle ▶ Driver::open wakes whose replies may be written ▶ their turns: Connection::write ◀────────────┘
//! ```
//!
//! # The way of a native lock
//!
//! ```text
//!   LOCK.ACQUIRE ▶ commands::locks::acquire ▶ Keyspace::with_locks ▶ lock::Locks: granted, or queued
//!   RELEASE ▶ Locks::release ▶ grant_waiters ▶ make_grant ▶ Outcome
//!     after the command: follow_up ▶ serve_lock_waiters ▶ reply_to_lock_waiters ▶ the reply is in the waiter's outbox
//!     ▶ mark_pending_write ▶ Driver::wake_recipients ▶ wake_pending_writes ▶ the waiter's turn: Connection::write
//!   lease of a lock with waiters ▶ run_lock_timers ▶ Locks::end_due ▶ reply_to_lock_waiters
//!   lease of a lock without waiters: the key expires, as below ▶ Keyspace::lock_lapsed ▶ Locks::key_expired
//! ```
//!
//! # The way of a deadline
//!
//! ```text
//!   timer ▶ Rounds::run_due ▶ Driving::tick ▶ Engine::advance ▶ Keyspace::expire_due ▶ Space::take_due removes the key ▶ the event `expired`
//!   a command that meets an expired key first: Db::locate_here ▶ Db::end ▶ Db::expire
//! ```
//!
//! # Folders
//!
//! - `command`: rows; `table`: how they are found
//! - `transaction`, `scripting`, `pubsub`, `locks`: state of these commands
//! - `loading`: files are loaded; `jobs`: work in steps; `pause`: `CLIENT PAUSE`; `slow_path`: what takes requests off the fast path
//! - `replication`: the role among other nodes, and what it refuses
//! - `users`, `config`, `memory`: access, directives, limits
//! - `observe`: what INFO, SLOWLOG and MONITOR show; `faults`: what tests order

pub mod access;
pub mod advance;
pub mod blocking;
pub mod clients;
pub mod cluster;
pub mod command;
pub mod config;
pub mod context;
pub mod environment;
pub mod faults;
#[cfg(test)]
pub mod harness;
pub mod invariants;
pub mod jobs;
pub mod loading;
pub mod locks;
pub mod memory;
pub mod observe;
pub mod outbox;
pub mod pause;
pub mod persistence;
pub mod pubsub;
pub mod reconfigure;
pub mod replication;
pub mod request;
pub mod scripting;
pub mod session;
pub mod slow_path;
pub mod table;
pub mod tracking;
pub mod transaction;
pub mod users;

use std::collections::VecDeque;

pub use advance::ADVANCE_BUDGET;

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::clients::state::Clients;
use crate::engine::config::{Config, Effect};
use crate::engine::environment::Host;
use crate::engine::faults::test_mode::{ClockOrder, Testing};
use crate::engine::jobs::long_run::Run;
use crate::engine::jobs::{Jobs, Supervisor};
use crate::engine::memory::discard::Discards;
use crate::engine::observe::Diagnosis;
use crate::engine::persistence::{Persistence, ReloadFrom};
use crate::engine::replication::members::MemberChange;
use crate::engine::replication::{NodeId, Replication};
use crate::engine::scripting::Scripting;
use crate::engine::slow_path::SlowPath;
use crate::engine::table::CommandTable;
use crate::engine::users::Users;
use crate::keyspace::databases::Keyspace;

/// Work that the engine asks of its driver, besides writing outboxes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// End the process (`SHUTDOWN`).
    Shutdown {
        /// The session that asked for it, which gets an error if the process cannot end.
        session: SessionId,
        /// Whether to write a snapshot first; `None`: if there are save points.
        save: Option<bool>,
        /// Whether to end even if that fails.
        force: bool,
    },
    /// Write a snapshot (`BGSAVE`); `SAVE`: and reply to this session then. `anew`: what the one in progress has is outdated.
    Save {
        /// The session that waits for it.
        session: Option<SessionId>,
        /// Whether one in progress is given up.
        anew: bool,
    },
    /// Do nothing at all for so many microseconds (`DEBUG SLEEP`); on a virtual clock, move it.
    Sleep(u64),
    /// Move the clock, and reply to the session that asked for it (`CLOCK`).
    Clock(SessionId, ClockOrder),
    /// Behave as a process that was killed and started again: [`Engine::restart`]. The session gets its reply before its
    /// connection closes.
    Restart {
        /// The session whose connection is closed once its outbox is written.
        last: SessionId,
        /// Number of last writes that are lost; `None` loses everything.
        lose: Option<u64>,
    },
    /// Make a new base of the append-only file (`BGREWRITEAOF`).
    RewriteLog,
    /// Load what the files have into this engine, whose connections stay, and reply to the session that waits for it
    /// ([`Engine::end_wait_for_driver`]).
    Reload(SessionId, ReloadFrom),
    /// Hand leadership over (`FAILOVER` and its relatives). The client has its reply already: the role changes later, or not.
    HandOver {
        /// The node that is to lead; `None`: the one that has most of the log. A node that does not lead asks the leader. Without a
        /// leader it stands for election itself, if it is this one.
        to: Option<NodeId>,
    },
    /// Change the members, and tell the session that waits for it ([`Engine::end_wait_for_driver`]).
    ChangeMembers(SessionId, MemberChange),
    /// Read how far the followers are ([`Engine::set_follower_positions`]), and again whenever what is awaited of them comes true: a
    /// `WAIT` waits for more of them than a majority.
    LookAtFollowers,
    /// Return freed memory to the system: a large amount was freed at once.
    ReturnMemory,
    /// A configuration directive was set of which this follows.
    Reconfigured(Effect),
}

/// The state machine. Its parts are private: the methods of [`access`] and of the other submodules lead to them.
pub struct Engine {
    /// The command table.
    commands: &'static CommandTable,
    /// Configuration directives, their values and rules.
    config: Config,
    /// The databases.
    keyspace: Keyspace,
    /// Sessions, and what reaches them.
    clients: Clients,
    /// Users and their rules.
    users: Users,
    /// Scripts and functions.
    scripting: Scripts,
    /// What the driver's log of changes is at.
    persistence: Persistence,
    /// The role of this server among its nodes.
    replication: Replication,
    /// What `INFO`, `SLOWLOG` and `LATENCY` show.
    diagnosis: Diagnosis,
    /// Where the engine runs.
    host: Host,
    /// What tests have ordered.
    testing: Testing,
    /// Whether memory has a limit, and evicts.
    memory: memory::MemoryGuard,
    /// The request in progress.
    running: Running,
    /// What is done later.
    work: PendingWork,
    /// Engine-wide states that take requests off the fast path; kept by [`Engine::update_slow_path`].
    slow_path: SlowPath,
}

/// Scripts and functions.
struct Scripts {
    /// Scripts and libraries of functions, and their interpreters.
    interpreters: Box<dyn Scripting>,
    /// Whether they may have garbage: [`Engine::scripts_mut`] was called since they last had none. Saves asking the trait object.
    touched: bool,
    /// `DEBUG SET-DISABLE-DENY-SCRIPTS`: whether scripts may call DEBUG.
    may_debug: bool,
    /// Decides while a script runs whether it may continue; `None` lets every script run to its end.
    supervisor: Option<Supervisor>,
    /// The script run that the supervisor is deciding about.
    long_run: Option<Run>,
    /// Steps (Lua instructions, or as much other work) after which a script is killed, even one that has written. Simulations,
    /// which have no clock, bound scripts by it. Counted in thousands.
    steps_max: Option<u64>,
}

/// The request in progress.
#[derive(Default)]
struct Running {
    /// Number of requests in the running transaction, and the bytes of their queue.
    executing: (usize, usize),
    /// In a cluster, while `EXEC` runs: the slot that all its requests share, if they have keys.
    exec_slot: Option<u16>,
    /// The deadline of a blocked request while that request is executed again.
    resumed: Option<Option<u64>>,
    /// Number of elements that commands visited besides those in their arguments and replies, such as the receivers of a message.
    /// Scripts are charged for them.
    visited: u64,
}

/// What is done later.
#[derive(Default)]
struct PendingWork {
    /// Requests that continue in steps.
    jobs: Jobs,
    /// Buffers that are freed in steps.
    discards: Discards,
    /// What the engine asks of its driver.
    actions: VecDeque<Action>,
}

impl Engine {
    /// An empty engine that executes the commands of a table. All that is random in it follows from `seed`.
    pub fn new(mut config: Config, seed: u64, now: Now, commands: &'static CommandTable) -> Self {
        if config.cluster_enabled {
            config.databases = 1;
        }
        let interpreters = commands.scripting();
        let mut engine = Engine {
            commands,
            keyspace: Keyspace::new(config.databases as usize, seed ^ 0x9e37_79b9_7f4a_7c15, now),
            config,
            clients: Clients::new(seed ^ 0xd1b5_4a32_d192_ed03),
            users: Users::new(commands, false),
            scripting: Scripts {
                interpreters,
                touched: false,
                may_debug: false,
                supervisor: None,
                long_run: None,
                steps_max: None,
            },
            persistence: Persistence::default(),
            replication: Replication::default(),
            diagnosis: Diagnosis::new(now),
            host: Host::new(seed, now),
            testing: Testing::new(seed ^ 0x6a09_e667_f3bc_c909),
            memory: memory::MemoryGuard::default(),
            running: Running::default(),
            work: PendingWork::default(),
            slow_path: SlowPath::empty(),
        };
        if engine.config.cluster_enabled {
            engine.keyspace.space.index_slots(cluster::SLOTS, cluster::key_slot);
        }
        engine.keyspace.first_token(now);
        engine.host.run_id = engine.random_id();
        engine.host.replication_id = engine.host.run_id.clone();
        engine.distribute_config();
        engine.users.set_default_password(&engine.config.requirepass);
        engine.update_slow_path();
        engine
    }

    /// The scripts and functions, to change them.
    #[inline]
    pub(crate) fn scripts_mut(&mut self) -> &mut dyn Scripting {
        self.scripting.touched = true;
        &mut *self.scripting.interpreters
    }

    /// The next number of the seeded sequence (splitmix64).
    pub fn random(&mut self) -> u64 {
        self.host.random = self.host.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.host.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number that no client can know, for a file: from the system, if it gives any.
    pub fn random_salt(&mut self) -> u64 {
        let mut bytes = [0; 8];
        let given = self.host.entropy.as_mut().is_some_and(|entropy| entropy(&mut bytes));
        if given { u64::from_ne_bytes(bytes) } else { self.random() }
    }

    /// Forty hexadecimal digits of the seeded sequence.
    pub(crate) fn random_id(&mut self) -> String {
        (0..5).map(|_| format!("{:08x}", self.random() as u32)).collect()
    }

    /// Publishes the keyspace events since the last call.
    #[inline]
    pub(crate) fn publish_events(&mut self) {
        if !self.keyspace.changes.pending.is_empty() {
            pubsub::publish_pending(self);
        }
    }

    /// Adds an action for the driver.
    pub fn ask(&mut self, action: Action) {
        self.work.actions.push_back(action);
        self.update_slow_path();
    }

    /// Whether there are actions for [`Engine::take_action`].
    #[inline]
    pub fn has_actions(&self) -> bool {
        self.on_slow_path(SlowPath::ACTIONS)
    }

    /// Takes the oldest action.
    pub fn take_action(&mut self) -> Option<Action> {
        let action = self.work.actions.pop_front();
        self.update_slow_path();
        action
    }

    /// Whether an action ends the server.
    pub fn is_ending(&self) -> bool {
        self.work.actions.iter().any(|action| matches!(action, Action::Shutdown { .. }))
    }

    /// Takes all actions.
    #[cfg(any(test, feature = "internals"))]
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::iter::from_fn(|| self.take_action()).collect()
    }
}
