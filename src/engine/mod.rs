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
//!   Connection::turn ▶ receive (server::net)   reads bytes
//!    └▶ Driver::execute (driver::connections)   takes the session's outbox; parses requests, looks up the rows and hashes of a batch
//!       └▶ Engine::execute_next (request.rs)   one request, whose reply goes into that outbox
//!          ├▶ perform          settles expired leases, finds the row; off the fast path only: may_run (access, memory, MULTI, pause)
//!          │  └▶ Context::run  counts the call; run_slowly where locks, expired leases or observers need a look
//!          │     └▶ handle ─▶ the row's handler (commands) ─▶ Db (keyspace) ─▶ store
//!          │                      └▶ Sink: the reply              └▶ Changes::report ─▶ events, watches, waits, change log
//!          └▶ attend           serves the sessions whose keys or locks have become ready
//!    ▶ Outbox::put_back ▶ Driver::finish_batch wakes the other sessions that have replies ▶ Connection::write writes to the socket
//! ```
//!
//! # The way of a native lock
//!
//! ```text
//!   LOCK.ACQUIRE ▶ commands::locks::acquire ▶ Keyspace::with_locks ▶ lock::Locks: granted, or queued
//!   RELEASE ▶ Locks::release ▶ grant_waiters ▶ make_grant ▶ Outcome
//!     after the command: attend ▶ attend_locks ▶ reply_to_lock_waiters ▶ the reply is in the waiter's outbox
//!     ▶ mark_dirty ▶ Driver::finish_batch ▶ wake_dirty ▶ the waiter's turn: Connection::write
//!   lease of a lock with waiters ▶ end_expired_leases ▶ Locks::end_due ▶ reply_to_lock_waiters
//!   lease of a lock without waiters: the key expires, as below ▶ Keyspace::lock_lapsed ▶ Locks::key_expired
//! ```
//!
//! # The way of a deadline
//!
//! ```text
//!   timer ▶ Shell::tick ▶ Engine::advance ▶ Keyspace::expire_due ▶ Space::take_due removes the key ▶ the event `expired`
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
use std::sync::Arc;

pub use advance::ADVANCE_BUDGET;

use crate::base::ids::SessionId;
use crate::base::rate::Rates;
use crate::base::time::Now;
use crate::engine::clients::sessions::Sessions;
use crate::engine::config::Config;
use crate::engine::environment::Environment;
use crate::engine::faults::Faults;
use crate::engine::faults::gates::Gates;
use crate::engine::faults::test_mode::ClockOrder;
use crate::engine::jobs::long_run::Run;
use crate::engine::jobs::{Jobs, Supervisor};
use crate::engine::memory::clients::ClientMemory;
use crate::engine::memory::discard::Discards;
use crate::engine::observe::command_stats::CommandStats;
use crate::engine::observe::latency::Latency;
use crate::engine::observe::notices::Notices;
use crate::engine::observe::slowlog::SlowLog;
use crate::engine::observe::stats::Stats;
use crate::engine::observe::timing::Timing;
use crate::engine::observe::turns::Turns;
use crate::engine::pause::Pause;
use crate::engine::persistence::{Persistence, ReloadFrom};
use crate::engine::pubsub::subscriptions::PubSub;
use crate::engine::replication::members::MemberChange;
use crate::engine::replication::{NodeId, Replication};
use crate::engine::scripting::Scripting;
use crate::engine::slow_path::SlowPath;
use crate::engine::table::CommandTable;
use crate::engine::users::Users;
use crate::engine::users::file::UsersFile;
use crate::keyspace::databases::Keyspace;
use crate::lock::ended_clients::EndedClients;

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
    /// A configuration directive changed that the driver acts on.
    ConfigChanged(&'static str),
}

/// Writes a configuration, and users as lines of it, to its file.
pub type RewriteConfig = Box<dyn FnMut(&Config, &[Vec<u8>]) -> Result<(), String>>;

/// Applies a new configuration, in which the named directives were set, outside of the engine and before the engine applies it.
/// Records in the environment what that changes about the process. Refuses with the directive's name and the reason.
pub type ApplyConfig = Box<dyn FnMut(&Config, &[&'static str], &mut Environment) -> Result<(), (&'static str, String)>>;

/// Fills a buffer with unpredictable bytes. Returns false where no source is available.
pub type Entropy = Box<dyn FnMut(&mut [u8]) -> bool>;

/// The state machine.
pub struct Engine {
    /// The command table.
    pub commands: &'static CommandTable,
    /// The databases.
    pub keyspace: Keyspace,
    /// Configuration directives, their values and rules.
    pub config: Config,
    /// Counters of `INFO`.
    pub stats: Stats,
    /// Calls, failures and times of each command.
    pub command_stats: CommandStats,
    /// The last slow requests (`SLOWLOG`).
    pub slowlog: SlowLog,
    /// How much of each kind the log was told.
    pub notices: Notices,
    /// Latency events (`LATENCY`).
    pub latency: Latency,
    /// Times requests.
    pub timing: Timing,
    /// Times the executor's turns: stretches of work during which no other session is served.
    pub turns: Turns,
    /// Rates of commands, bytes read, bytes written, rounds of the event loop and their microseconds, for `INFO`.
    pub rates: Rates<5>,
    /// Facts about the process, for `INFO`.
    pub environment: Environment,
    /// All sessions.
    pub sessions: Sessions,
    /// Channels and patterns.
    pub pubsub: PubSub,
    /// `CLIENT PAUSE`, and the requests that it holds back.
    pub pause: Pause,
    /// Sessions that see all requests (`MONITOR`).
    pub monitors: Vec<SessionId>,
    /// Engine-wide states that take requests off the fast path; kept by [`Engine::update_slow_path`].
    slow_path: SlowPath,
    /// Number of requests in the running transaction, and the bytes of their queue.
    pub(crate) executing: (usize, usize),
    /// Scripts and libraries of functions, and their interpreters.
    pub(crate) scripts: Box<dyn Scripting>,
    /// Whether `scripts` may have garbage: [`Engine::scripts_mut`] was called since it last had none. Saves
    /// asking the trait object.
    scripts_touched: bool,
    /// `DEBUG SET-DISABLE-DENY-SCRIPTS`: whether scripts may call DEBUG.
    pub debug_from_scripts: bool,
    /// What the driver's log of changes is at.
    pub persistence: Persistence,
    /// The role of this server among its nodes.
    pub replication: Replication,
    /// Test mode: `CLOCK` and `FAULT` are allowed.
    pub test_mode: bool,
    /// Faults ordered by `FAULT`.
    pub faults: Faults,
    /// Replies that a fault holds back.
    pub gates: Gates,
    /// Decides while a script runs whether it may continue; `None` lets every script run to its end.
    pub supervisor: Option<Supervisor>,
    /// The script run that the supervisor is deciding about.
    pub long_run: Option<Run>,
    /// Steps (Lua instructions, or as much other work) after which a script is killed, even one that has written. Simulations,
    /// which have no clock, bound scripts by it. Counted in thousands.
    pub script_steps_max: Option<u64>,
    /// Number of elements that commands visited besides those in their arguments and replies, such as the receivers of a message.
    /// Scripts are charged for them.
    pub(crate) visited: u64,
    /// Writes the configuration file, for `CONFIG REWRITE`; `None` without a file.
    pub rewrite_config: Option<RewriteConfig>,
    /// Called before `CONFIG SET` takes effect.
    pub apply_config: Option<ApplyConfig>,
    /// Users and their rules.
    pub users: Users,
    /// The ACL file; `None` without one.
    pub users_file: Option<UsersFile>,
    /// Source of secrets, for `ACL GENPASS`; `None` in simulations.
    pub entropy: Option<Entropy>,
    /// Identifier of this run: forty hexadecimal digits.
    pub run_id: String,
    /// Identifier of the history of changes: forty hexadecimal digits.
    pub replication_id: String,
    /// The instant at which the engine was created.
    pub started: Now,
    /// The last connections that have acquired locks and ended.
    pub(crate) ended_clients: EndedClients,
    /// Whether the memories of diagnosis have more than their budget, and go on to forget.
    diagnosis_exceeds: bool,
    /// In a cluster, while `EXEC` runs: the slot that all its requests share, if they have keys.
    exec_slot: Option<u16>,
    /// The deadline of a blocked request while that request is executed again.
    resumed: Option<Option<u64>>,
    memory: memory::MemoryGuard,
    clients: ClientMemory,
    discards: Discards,
    jobs: Jobs,
    /// The seed of all random sequences.
    seed: u64,
    random: u64,
    dirty: Vec<SessionId>,
    /// The local address of the newest connection; sessions share it.
    last_local: Arc<str>,
    /// Clients whose connections closed while a script ran long, and whose grants end with the connection.
    closed_meanwhile: Vec<u64>,
    /// Disconnected clients that still have such grants: more than end in one step.
    ending: VecDeque<u64>,
    actions: VecDeque<Action>,
}

impl Engine {
    /// An empty engine that executes the commands of a table. All that is random in it follows from `seed`.
    pub fn new(mut config: Config, seed: u64, now: Now, commands: &'static CommandTable) -> Self {
        if config.cluster_enabled {
            config.databases = 1;
        }
        let mut engine = Engine {
            commands,
            keyspace: Keyspace::new(config.databases as usize, seed ^ 0x9e37_79b9_7f4a_7c15, now),
            config,
            stats: Stats::default(),
            command_stats: CommandStats::default(),
            slowlog: SlowLog::default(),
            notices: Notices::default(),
            latency: Latency::default(),
            timing: Timing::default(),
            turns: Turns::default(),
            rates: Rates::new(now.mono_us()),
            environment: Environment::default(),
            sessions: Sessions::default(),
            pubsub: PubSub::new(seed ^ 0xd1b5_4a32_d192_ed03),
            pause: Pause::default(),
            monitors: Vec::new(),
            slow_path: SlowPath::empty(),
            ended_clients: EndedClients::default(),
            diagnosis_exceeds: false,
            exec_slot: None,
            resumed: None,
            executing: (0, 0),
            scripts: commands.scripting(),
            scripts_touched: false,
            debug_from_scripts: false,
            persistence: Persistence::default(),
            replication: Replication::default(),
            test_mode: false,
            faults: Faults::new(seed ^ 0x6a09_e667_f3bc_c909),
            gates: Gates::default(),
            supervisor: None,
            long_run: None,
            script_steps_max: None,
            visited: 0,
            rewrite_config: None,
            apply_config: None,
            users: Users::new(commands, false),
            users_file: None,
            entropy: None,
            run_id: String::new(),
            replication_id: String::new(),
            started: now,
            memory: memory::MemoryGuard::default(),
            clients: ClientMemory::default(),
            discards: Discards::default(),
            jobs: Jobs::default(),
            seed,
            random: seed,
            dirty: Vec::new(),
            last_local: Arc::default(),
            closed_meanwhile: Vec::new(),
            ending: VecDeque::new(),
            actions: VecDeque::new(),
        };
        if engine.config.cluster_enabled {
            engine.keyspace.space.index_slots(cluster::SLOTS, cluster::key_slot);
        }
        engine.keyspace.first_token(now);
        engine.run_id = engine.random_id();
        engine.replication_id = engine.run_id.clone();
        engine.distribute_config();
        engine.users.set_default_password(&engine.config.requirepass);
        engine.update_slow_path();
        engine
    }

    /// The scripts and functions, to change them.
    #[inline]
    pub(crate) fn scripts_mut(&mut self) -> &mut dyn Scripting {
        self.scripts_touched = true;
        &mut *self.scripts
    }

    /// The next number of the seeded sequence (splitmix64).
    pub fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number that no client can know, for a file: from the system, if it gives any.
    pub fn random_salt(&mut self) -> u64 {
        let mut bytes = [0; 8];
        let given = self.entropy.as_mut().is_some_and(|entropy| entropy(&mut bytes));
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

    /// Must be called after a session subscribes or unsubscribes.
    pub(crate) fn update_listeners(&mut self) {
        self.keyspace.changes.has_listeners = self.pubsub.has_listeners();
    }

    /// Adds an action for the driver.
    pub fn act(&mut self, action: Action) {
        self.actions.push_back(action);
        self.update_slow_path();
    }

    /// Whether there are actions for [`Engine::take_action`].
    #[inline]
    pub fn has_actions(&self) -> bool {
        self.on_slow_path(SlowPath::ACTIONS)
    }

    /// Takes the oldest action.
    pub fn take_action(&mut self) -> Option<Action> {
        let action = self.actions.pop_front();
        self.update_slow_path();
        action
    }

    /// Whether an action ends the server.
    pub fn is_ending(&self) -> bool {
        self.actions.iter().any(|action| matches!(action, Action::Shutdown { .. }))
    }

    /// Takes all actions.
    #[cfg(any(test, feature = "internals"))]
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::iter::from_fn(|| self.take_action()).collect()
    }
}
