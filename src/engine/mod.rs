//! The engine: a state machine that turns requests and the passing of time into replies and changes.
//!
//! It has no socket, no clock, no thread and no source of randomness: `now`, the session, the request, the command table and a seed
//! come in as arguments, and the same inputs give the same state and the same bytes. The server shell, the test server, fuzz targets
//! and benches call the same three functions: [`Engine::execute`] (a connection: [`Engine::execute_next`] for each request of a batch),
//! [`Engine::advance`] and [`Engine::next_deadline`].
//!
//! # The way of a request
//!
//! ```text
//!   Connection::turn ▶ read (server::net)   reads bytes, parses requests
//!    └▶ connection::execute   takes the session's outbox, looks up the rows of a batch
//!       └▶ execute_next       one request; its reply goes into that outbox
//!          ├▶ perform         settles expired leases, finds the row; off the fast path only: may_run (access, memory, MULTI, pause)
//!          │  └▶ run ▶ run_counted   counts the call; run_with_care where locks, expired leases or observers need a look
//!          │     └▶ handle ─▶ the row's handler (commands) ─▶ Db (keyspace) ─▶ store
//!          │                       └▶ Sink: the reply            └▶ Changes::emit ─▶ events, watches, waits, change log
//!          └▶ attend          serves the sessions whose keys or locks have become ready
//!    ◀─ put_outbox_back ◀─ Shell::settle wakes the other sessions with replies ◀─ Connection::flush writes to the socket
//! ```
//!
//! # The way of a native lock
//!
//! ```text
//!   LOCK.ACQUIRE ▶ commands::locks::acquire ▶ Keyspace::with_locks ▶ lock::Locks: granted, or queued
//!   RELEASE ▶ Locks::release ▶ serve ▶ give ▶ Outcome; after the command: attend ▶ attend_locks ▶ tell_outcomes ▶ the waiter's reply
//!   lease of a queued lock ▶ settle_locks ▶ Locks::advance ▶ tell_outcomes
//! ```
//!
//! # The way of a deadline
//!
//! ```text
//!   timer ▶ Shell::tick ▶ Engine::advance ▶ Keyspace::advance ▶ Space::take_due removes the key ▶ the event `expired`
//!   a command that meets an expired key first: Db::locate_here ▶ Db::end
//! ```
//!
//! Folders: `pubsub`, `users`, `config`, `memory`, `locks`, `observe` (what INFO, SLOWLOG and MONITOR show) and `faults` (what tests order).

pub mod advance;
pub mod blocking;
pub mod clients;
pub mod cluster;
pub mod command;
pub mod command_keys;
pub mod config;
pub mod context;
pub mod environment;
pub mod faults;
#[cfg(test)]
pub mod harness;
pub mod invariants;
pub mod jobs;
pub mod locks;
pub mod long_run;
pub mod memory;
pub mod observe;
pub mod pause;
pub mod pubsub;
pub mod reconfigure;
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
use slab::Slab;

use crate::base::error::Error;
use crate::base::ids::SessionId;
use crate::base::rate::Rates;
use crate::base::time::Now;
use crate::engine::command::{Command, Flags, Traits};
use crate::engine::config::Config;
use crate::engine::context::{Context, Origin};
use crate::engine::environment::Environment;
use crate::engine::faults::Faults;
use crate::engine::faults::gates::Gates;
use crate::engine::faults::test_mode::ClockOrder;
use crate::engine::jobs::Walks;
use crate::engine::long_run::{Run, Supervisor};
use crate::engine::memory::clients::ClientMemory;
use crate::engine::memory::discard::Discards;
use crate::engine::observe::command_stats::CommandStats;
use crate::engine::observe::latency::Latency;
use crate::engine::observe::slowlog::SlowLog;
use crate::engine::observe::stats::Stats;
use crate::engine::observe::timing::Timing;
use crate::engine::observe::turns::Turns;
use crate::engine::pause::Pause;
use crate::engine::pubsub::PubSub;
use crate::engine::scripting::Scripting;
use crate::engine::session::{Session, SessionFlags};
use crate::engine::slow_path::Circumstances;
use crate::engine::table::{CommandTable, resolve_row};
use crate::engine::transaction::Fate;
use crate::engine::users::Users;
use crate::engine::users::access::UsersFile;
use crate::keyspace::databases::Keyspace;
use crate::resp::reply::{Sink, WireReply};

/// Maximum number of expired leases and waits settled before a command, besides those of its own keys.
const SETTLE_BUDGET: u32 = ADVANCE_BUDGET;

/// Work that the engine asks of its driver, besides writing outboxes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// End the process (`SHUTDOWN`).
    Shutdown,
    /// Do nothing at all for so many microseconds (`DEBUG SLEEP`); on a virtual clock, move it.
    Sleep(u64),
    /// Move the clock, and reply to the session that asked for it (`CLOCK`).
    Clock(SessionId, ClockOrder),
    /// Behave as a process that was killed and started again: [`Engine::restart`]. The session gets its reply before its connection closes.
    Restart {
        /// The session whose connection is closed once its outbox is written.
        last: SessionId,
        /// Number of last writes that are lost; `None` loses everything.
        lose: Option<u64>,
    },
    /// Return freed memory to the system: a large amount was freed at once.
    ReturnMemory,
    /// A configuration directive changed that the driver acts on.
    ConfigChanged(&'static str),
}

/// Writes a configuration, and users as lines of it, to its file.
pub type RewriteConfig = Box<dyn FnMut(&Config, &[Vec<u8>]) -> Result<(), String>>;

/// Applies a new configuration, in which the named directives were set, outside of the engine and before the engine applies it. Records
/// in the environment what that changes about the process. Refuses with the directive's name and the reason.
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
    /// Sessions by number; see [`SessionId`].
    pub sessions: Slab<Session>,
    /// Channels and patterns.
    pub pubsub: PubSub,
    /// `CLIENT PAUSE`, and the requests that it holds back.
    pub pause: Pause,
    /// Sessions that see all requests (`MONITOR`).
    pub monitors: Vec<SessionId>,
    /// Engine-wide states that take requests off the fast path; kept by [`Engine::update_circumstances`].
    circumstances: Circumstances,
    /// Number of requests in the running transaction, and the bytes of their queue.
    pub(crate) executing: (usize, usize),
    /// Scripts and libraries of functions, and their interpreters.
    pub scripts: Box<dyn Scripting>,
    /// `DEBUG SET-DISABLE-DENY-SCRIPTS`: whether scripts may call DEBUG.
    pub debug_from_scripts: bool,
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
    /// Steps (Lua instructions, or as much other work) after which a script is killed, even one that has written. Simulations, which
    /// have no clock, bound scripts by it. Counted in thousands.
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
    /// In a cluster, while `EXEC` runs: the slot that all its requests share, if they have keys.
    exec_slot: Option<u16>,
    /// The deadline of a blocked request while that request is executed again.
    resumed: Option<Option<u64>>,
    memory: memory::MemoryGuard,
    clients: ClientMemory,
    discards: Discards,
    walks: Walks,
    next_client: u64,
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
    actions: Vec<Action>,
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
            latency: Latency::default(),
            timing: Timing::default(),
            turns: Turns::default(),
            rates: Rates::new(now.mono_us),
            environment: Environment::default(),
            sessions: Slab::new(),
            pubsub: PubSub::new(seed ^ 0xd1b5_4a32_d192_ed03),
            pause: Pause::default(),
            monitors: Vec::new(),
            circumstances: Circumstances::empty(),
            exec_slot: None,
            resumed: None,
            executing: (0, 0),
            scripts: commands.scripting(),
            debug_from_scripts: false,
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
            walks: Walks::default(),
            next_client: 1,
            seed,
            random: seed,
            dirty: Vec::new(),
            last_local: Arc::default(),
            closed_meanwhile: Vec::new(),
            ending: VecDeque::new(),
            actions: Vec::new(),
        };
        if engine.config.cluster_enabled {
            engine.keyspace.space.index_slots(cluster::SLOTS, cluster::key_slot);
        }
        engine.keyspace.first_token(now);
        engine.run_id = engine.random_id();
        engine.replication_id = engine.run_id.clone();
        engine.keyspace.changes.notify = engine.config.notify_keyspace_events;
        engine.update_expiry_rules();
        engine.bound_lock_records();
        engine.keyspace.hash_limits = engine.config.hash_limits();
        engine.keyspace.list_limits = engine.config.list_limits();
        engine.configure_eviction();
        engine.users.all_channels = engine.config.acl_pubsub_default == "allchannels";
        engine.users.set_default_password(&engine.config.requirepass);
        engine.keyspace.zset_limits = engine.config.zset_limits();
        engine.keyspace.set_limits = engine.config.set_limits();
        engine.keyspace.stream_limits = engine.config.stream_limits();
        engine.keyspace.changes.tracking.keys_max = engine.config.tracking_table_max_keys;
        engine.update_timing();
        engine.bound_scripts();
        engine.update_circumstances();
        engine
    }

    /// The next number of the seeded sequence (splitmix64).
    pub fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Forty hexadecimal digits of the seeded sequence.
    pub(crate) fn random_id(&mut self) -> String {
        (0..5).map(|_| format!("{:08x}", self.random() as u32)).collect()
    }

    /// Executes one request. Its reply and all pushes that it causes are in the outboxes when this returns.
    pub fn execute(&mut self, now: Now, id: SessionId, args: &[&[u8]]) {
        self.execute_found(now, id, None, args);
    }

    /// As [`Engine::execute`], for a caller that has looked up the row.
    pub fn execute_found(&mut self, now: Now, id: SessionId, row: Option<&'static Command>, args: &[&[u8]]) {
        if self.rates.due(now.mono_us) {
            self.sample_rates(now);
        }
        let mut out = self.take_outbox(id);
        self.execute_next(now, id, row, args, &mut out);
        self.put_outbox_back(id, out);
    }

    /// As [`Engine::execute_found`], for one of several requests of a session between [`Engine::begin_batch`] and
    /// [`Engine::end_batch`]. The caller has taken the session's outbox as `out`, and the reply is appended to it. Returns the session's
    /// flags.
    pub fn execute_next(
        &mut self,
        now: Now,
        id: SessionId,
        row: Option<&'static Command>,
        args: &[&[u8]],
        out: &mut Vec<u8>,
    ) -> SessionFlags {
        let flags = self.perform(now, id, row, args, out);
        if !self.keyspace.changes.attention {
            return flags;
        }
        // Other sessions' requests may write to this outbox now.
        self.put_outbox_back(id, std::mem::take(out));
        self.attend(now);
        *out = self.take_outbox(id);
        self.sessions[id.0 as usize].flags
    }

    /// Takes a session's outbox, so that its requests reply into it. Pushes from other sessions gather in an empty one meanwhile.
    pub fn take_outbox(&mut self, id: SessionId) -> Vec<u8> {
        std::mem::take(&mut self.sessions[id.0 as usize].out)
    }

    /// Puts the outbox back in front of the pushes that were written meanwhile.
    pub fn put_outbox_back(&mut self, id: SessionId, out: Vec<u8>) {
        let session = &mut self.sessions[id.0 as usize];
        let meanwhile = std::mem::replace(&mut session.out, out);
        session.out.extend_from_slice(&meanwhile);
    }

    /// Executes again the request that a session was blocked in.
    #[cold]
    fn perform_again(&mut self, now: Now, id: SessionId, row: Option<&'static Command>, args: &[&[u8]]) {
        self.restart_time(now);
        let mut out = self.take_outbox(id);
        self.perform(now, id, row, args, &mut out);
        self.put_outbox_back(id, out);
        self.take_time(now);
        self.settle_journal();
    }

    /// Executes one request without serving the sessions that wait for its effects. Returns the session's flags.
    #[inline(always)]
    fn perform(
        &mut self,
        now: Now,
        id: SessionId,
        row: Option<&'static Command>,
        args: &[&[u8]],
        out: &mut Vec<u8>,
    ) -> SessionFlags {
        debug_assert_eq!(self.circumstances, self.find_circumstances(), "what lasts is known");
        let Some(name) = args.first() else { return self.sessions[id.0 as usize].flags };
        if self.lasts(Circumstances::CLIENTS_COUNTED) && self.evict_clients_before(now, id, out) {
            return self.sessions[id.0 as usize].flags;
        }
        // Not in the middle of a script that lets others be answered.
        if now.reached(self.keyspace.changes.locks_due_ms) {
            if self.long_run.is_none() && !self.keyspace.keep_ended {
                let mut budget = SETTLE_BUDGET;
                self.settle_locks(now, &mut budget);
            }
            self.keyspace.behind = now.reached(self.keyspace.changes.locks_due_ms);
        }
        self.keyspace.changes.begin();
        let mut unknown = None;
        let row = row.or_else(|| self.commands.lookup(name));
        let found = resolve_row(row, args).map_err(|error| unknown = Some(error)).ok();
        let session = &mut self.sessions[id.0 as usize];
        debug_assert!(!session.flags.contains(SessionFlags::BLOCKED), "a request of a session that waits");
        session.last_ms = now.mono_ms();
        let ordinary = session.is_ordinary() && self.circumstances.is_empty();
        if !ordinary {
            session.begin_reply();
        }
        let mut db = session.db;
        // Pushes that the command causes to its own session gather in the empty outbox and follow its reply.
        let start = out.len();
        let mut reply = WireReply::new(out, session.protocol);
        let mut ran = None;
        match found {
            Some(command) => {
                session.last_command = found;
                if ordinary || self.may_run(now, id, command, args, &mut reply) {
                    ran = Some((command, self.run(now, id, &mut db, Origin::Client, command, args, &mut reply)));
                }
            }
            None => self.refuse_unknown(now, id, args, unknown, &mut reply),
        }
        if self.lasts(Circumstances::OBSERVERS) {
            self.end_observed(id, found);
        }
        self.keyspace.changes.end();
        let replied = out.len() - start;
        let session = &mut self.sessions[id.0 as usize];
        session.db = db;
        session.commands += 1;
        // Asked for now, as the command may have switched replies on or off.
        if session.silenced() {
            out.truncate(start);
        }
        if !session.out.is_empty() {
            out.append(&mut session.out);
        }
        let flags = session.flags;
        if let Some((command, slot)) = ran {
            self.executed(now, id, flags, (command, slot), args, replied);
        }
        if self.lasts(Circumstances::CLIENTS_COUNTED) {
            self.count_client_with(id, out);
        }
        flags
    }

    /// Slow path: decides whether a request runs now. If not, this queues it, holds it back or refuses it.
    #[inline(never)]
    fn may_run(&mut self, now: Now, id: SessionId, command: &'static Command, args: &[&[u8]], reply: &mut dyn Sink) -> bool {
        const SPECIAL: Circumstances = Circumstances::PAUSE.union(Circumstances::CLUSTER);
        let session = &self.sessions[id.0 as usize];
        let special =
            session.flags.intersects(SessionFlags::MULTI.union(SessionFlags::MONITOR)) || self.circumstances.intersects(SPECIAL);
        let admitted = match special {
            false => {
                let admitted = self.admit(now, id, command, args).and_then(|()| self.check_memory(now, command, args));
                admitted.map(|()| Fate::Run)
            }
            true => self.admit_specially(now, id, command, args),
        };
        match admitted {
            Ok(Fate::Run) => return true,
            Ok(Fate::Queue) => self.enqueue(id, command, args, reply),
            Ok(Fate::Hold) => self.hold(id, args),
            Ok(Fate::Cross) => {
                self.end_transaction(id);
                self.refuse(&Error::CROSS_SLOT, reply);
            }
            Err(error) => {
                if self.lasts(Circumstances::OBSERVERS) {
                    self.show_refused(now, id, args);
                }
                self.command_stats.of(command).rejected += 1;
                let error = self.refused(id, command.is_exec(), error);
                self.refuse(&error, reply);
            }
        }
        self.publish_events();
        false
    }

    /// Refuses a request with an unknown command or a wrong number of arguments.
    #[cold]
    fn refuse_unknown(&mut self, now: Now, id: SessionId, args: &[&[u8]], error: Option<Error>, reply: &mut dyn Sink) {
        let name = args[0];
        if name.eq_ignore_ascii_case(b"POST") || name.eq_ignore_ascii_case(b"HOST:") {
            // A browser was made to connect. The rest of the request may be commands that a web page smuggled in.
            tracing::warn!("possible cross-protocol attack: a client sent POST or Host:, its connection is closed");
            self.sessions[id.0 as usize].flags |= SessionFlags::CLOSE_NOW;
        } else {
            if self.lasts(Circumstances::OBSERVERS) {
                self.show_refused(now, id, args);
            }
            if let Some(command) = self.commands.named(args) {
                self.command_stats.of(command).rejected += 1;
            }
            if let Some(error) = error {
                let error = self.refused(id, self.commands.lookup(name).is_some_and(Command::is_exec), error);
                self.refuse(&error, reply);
            }
        }
        self.publish_events();
    }

    /// Whether the session may call the command at all.
    fn admit(&mut self, now: Now, id: SessionId, command: &'static Command, args: &[&[u8]]) -> Result<(), Error> {
        if !self.sessions[id.0 as usize].flags.contains(SessionFlags::UNRESTRICTED) {
            self.check_access(now, id, command, args, self.place(id))?;
        }
        let session = &self.sessions[id.0 as usize];
        if session.subscribed_mode() && !command.traits.contains(Traits::WHILE_SUBSCRIBED) {
            if self.in_cluster() {
                cluster::request_slot(command, args)?;
            }
            return Err(Error::new(format!(
                "ERR Can't execute '{}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context",
                self.commands.full_name(command)
            )));
        }
        if let Some(run) = &self.long_run
            && !command.flags.contains(Flags::ALLOW_BUSY)
        {
            return Err(run.busy());
        }
        Ok(())
    }

    /// Writes an error reply and counts it.
    pub(crate) fn refuse(&mut self, error: &Error, reply: &mut dyn Sink) {
        self.stats.error(error);
        reply.error(error.text());
    }

    /// Runs a command that was found and admitted. A `SELECT` changes `db`. Returns the number of the command's slot in the statistics.
    #[allow(clippy::too_many_arguments)]
    #[inline(always)]
    pub(crate) fn run(
        &mut self,
        now: Now,
        id: SessionId,
        db: &mut u32,
        origin: Origin,
        command: &'static Command,
        args: &[&[u8]],
        reply: &mut dyn Sink,
    ) -> usize {
        let slot = self.command_stats.find(command);
        self.run_counted(now, id, db, origin, (command, slot), args, reply);
        slot
    }

    /// As [`Engine::run`], for a caller that knows the command's slot.
    #[allow(clippy::too_many_arguments)]
    #[inline(always)]
    pub(crate) fn run_counted(
        &mut self,
        now: Now,
        id: SessionId,
        db: &mut u32,
        origin: Origin,
        (command, slot): (&'static Command, usize),
        args: &[&[u8]],
        reply: &mut dyn Sink,
    ) {
        self.stats.commands += 1;
        self.keyspace.uses.begin();
        let observed = self.lasts(Circumstances::OBSERVERS);
        let counted = self.command_stats.slot(slot);
        counted.calls += 1;
        if observed | self.keyspace.behind | (self.keyspace.natives & counted.guarded) {
            return self.run_with_care(now, id, db, origin, (command, slot), args, reply);
        }
        self.handle(now, id, db, origin, (command, slot), args, reply);
        self.publish_events();
    }

    /// Slow path of [`Engine::run_counted`]: settles the names' expired leases, guards native keys, and shows the request to observers.
    #[allow(clippy::too_many_arguments)]
    #[inline(never)]
    fn run_with_care(
        &mut self,
        now: Now,
        id: SessionId,
        db: &mut u32,
        origin: Origin,
        (command, slot): (&'static Command, usize),
        args: &[&[u8]],
        reply: &mut dyn Sink,
    ) {
        if self.keyspace.behind {
            self.settle_names(now, *db, command, args);
        }
        if self.keyspace.natives
            && self.command_stats.slot(slot).guarded
            && let Err(error) = self.guard_natives(now, id, *db, command, args)
        {
            self.command_stats.slot(slot).failed += 1;
            self.refuse(&error, reply);
            // Expired keys and leases were settled before the refusal.
            return self.publish_events();
        }
        if self.lasts(Circumstances::OBSERVERS) {
            return self.run_observed(now, id, db, origin, (command, slot), args, reply);
        }
        self.handle(now, id, db, origin, (command, slot), args, reply);
        self.publish_events();
    }

    /// Calls a command's handler, and replies with its error if it fails.
    #[allow(clippy::too_many_arguments)]
    #[inline(always)]
    fn handle(
        &mut self,
        now: Now,
        id: SessionId,
        db: &mut u32,
        origin: Origin,
        (command, slot): (&'static Command, usize),
        args: &[&[u8]],
        reply: &mut dyn Sink,
    ) {
        let mut context = Context { engine: self, now, session: id, db: *db, origin, command, reply };
        let result = (command.handler)(&mut context, args);
        *db = context.db;
        if let Err(error) = result {
            self.command_stats.slot(slot).failed += 1;
            self.refuse(&error, reply);
        }
    }

    /// Publishes the keyspace events since the last call.
    #[inline]
    pub(crate) fn publish_events(&mut self) {
        if !self.keyspace.changes.pending.is_empty() {
            pubsub::publish_pending(self);
        }
    }

    /// Must be called after a session subscribes or unsubscribes.
    pub(crate) fn update_heard(&mut self) {
        self.keyspace.changes.heard = self.pubsub.has_listeners();
    }

    /// Adds an action for the driver.
    pub fn act(&mut self, action: Action) {
        self.actions.push(action);
        self.update_circumstances();
    }

    /// Whether there are actions for [`Engine::take_actions`].
    #[inline]
    pub fn asks(&self) -> bool {
        self.lasts(Circumstances::ASKED)
    }

    /// Takes the actions since the last call.
    pub fn take_actions(&mut self) -> Vec<Action> {
        let actions = std::mem::take(&mut self.actions);
        self.update_circumstances();
        actions
    }
}
