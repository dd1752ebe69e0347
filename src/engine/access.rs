//! The way to the engine's parts from outside of its folder.
//!
//! What must hold between parts is not left to callers: where one part follows from another, there is a method that changes both.

use crate::base::ids::SessionId;
use crate::base::rate::Rates;
use crate::base::time::Now;
use crate::engine::Engine;
use crate::engine::clients::sessions::Sessions;
use crate::engine::config::Config;
use crate::engine::environment::{Entropy, Environment};
use crate::engine::faults::Faults;
use crate::engine::jobs::Supervisor;
use crate::engine::jobs::long_run::Run;
use crate::engine::observe::command_stats::CommandStats;
use crate::engine::observe::latency::Latency;
use crate::engine::observe::slowlog::SlowLog;
use crate::engine::observe::stats::Stats;
use crate::engine::observe::turns::Turns;
use crate::engine::pause::Pause;
use crate::engine::persistence::Persistence;
use crate::engine::pubsub::subscriptions::PubSub;
use crate::engine::replication::Replication;
use crate::engine::scripting::Scripting;
use crate::engine::session::Session;
use crate::engine::table::CommandTable;
use crate::engine::users::Users;
use crate::engine::users::file::UsersFile;
use crate::keyspace::databases::Keyspace;

/// Parts of the engine that are needed at once, at least one of them to change it.
pub struct Parts<'e> {
    /// The databases.
    pub keyspace: &'e mut Keyspace,
    /// Configuration directives.
    pub config: &'e Config,
    /// All sessions.
    pub sessions: &'e mut Sessions,
}

impl Engine {
    /// The command table.
    #[inline]
    pub fn commands(&self) -> &'static CommandTable {
        self.commands
    }

    /// Several parts at once.
    #[inline]
    pub fn parts(&mut self) -> Parts<'_> {
        Parts { keyspace: &mut self.keyspace, config: &self.config, sessions: &mut self.clients.sessions }
    }

    /// The databases.
    #[inline]
    pub fn keyspace(&self) -> &Keyspace {
        &self.keyspace
    }

    /// As [`Engine::keyspace`], to change it.
    #[inline]
    pub fn keyspace_mut(&mut self) -> &mut Keyspace {
        &mut self.keyspace
    }

    /// Configuration directives, their values and rules. [`Engine::reconfigure`] changes them.
    #[inline]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// All sessions.
    #[inline]
    pub fn sessions(&self) -> &Sessions {
        &self.clients.sessions
    }

    /// As [`Engine::sessions`], to change it.
    #[inline]
    pub fn sessions_mut(&mut self) -> &mut Sessions {
        &mut self.clients.sessions
    }

    /// Channels and patterns.
    #[inline]
    pub fn pubsub(&self) -> &PubSub {
        &self.clients.pubsub
    }

    /// As [`Engine::pubsub`], to change it.
    #[inline]
    pub fn pubsub_mut(&mut self) -> &mut PubSub {
        &mut self.clients.pubsub
    }

    /// `CLIENT PAUSE`, and the requests that it holds back.
    #[inline]
    pub fn pause_state(&self) -> &Pause {
        &self.clients.pause
    }

    /// Users and their rules.
    #[inline]
    pub fn users(&self) -> &Users {
        &self.users
    }

    /// What the driver's log of changes is at.
    #[inline]
    pub fn persistence(&self) -> &Persistence {
        &self.persistence
    }

    /// As [`Engine::persistence`], to change it.
    #[inline]
    pub fn persistence_mut(&mut self) -> &mut Persistence {
        &mut self.persistence
    }

    /// The role of this server among its nodes.
    #[inline]
    pub fn replication(&self) -> &Replication {
        &self.replication
    }

    /// As [`Engine::replication`], to change it.
    #[inline]
    pub fn replication_mut(&mut self) -> &mut Replication {
        &mut self.replication
    }

    /// Counters of `INFO`.
    #[inline]
    pub fn stats(&self) -> &Stats {
        &self.diagnosis.stats
    }

    /// As [`Engine::stats`], to change it.
    #[inline]
    pub fn stats_mut(&mut self) -> &mut Stats {
        &mut self.diagnosis.stats
    }

    /// Calls, failures and times of each command.
    #[inline]
    pub fn command_stats(&self) -> &CommandStats {
        &self.diagnosis.command_stats
    }

    /// As [`Engine::command_stats`], to change it.
    #[inline]
    pub fn command_stats_mut(&mut self) -> &mut CommandStats {
        &mut self.diagnosis.command_stats
    }

    /// The last slow requests (`SLOWLOG`).
    #[inline]
    pub fn slowlog(&self) -> &SlowLog {
        &self.diagnosis.slowlog
    }

    /// As [`Engine::slowlog`], to change it.
    #[inline]
    pub fn slowlog_mut(&mut self) -> &mut SlowLog {
        &mut self.diagnosis.slowlog
    }

    /// Latency events (`LATENCY`).
    #[inline]
    pub fn latency(&self) -> &Latency {
        &self.diagnosis.latency
    }

    /// As [`Engine::latency`], to change it.
    #[inline]
    pub fn latency_mut(&mut self) -> &mut Latency {
        &mut self.diagnosis.latency
    }

    /// Times the executor's turns: stretches of work during which no other session is served.
    #[inline]
    pub fn turns(&self) -> &Turns {
        &self.diagnosis.turns
    }

    /// Rates of commands, bytes read, bytes written, rounds of the event loop and their microseconds, for `INFO`.
    #[inline]
    pub fn rates(&self) -> &Rates<5> {
        &self.diagnosis.rates
    }

    /// Facts about the process, for `INFO`.
    #[inline]
    pub fn environment(&self) -> &Environment {
        &self.host.environment
    }

    /// As [`Engine::environment`], to change it.
    #[inline]
    pub fn environment_mut(&mut self) -> &mut Environment {
        &mut self.host.environment
    }

    /// Faults ordered by `FAULT`.
    #[inline]
    pub fn faults(&self) -> &Faults {
        &self.testing.faults
    }

    /// As [`Engine::faults`], to change it.
    #[inline]
    pub fn faults_mut(&mut self) -> &mut Faults {
        &mut self.testing.faults
    }

    /// The instant at which the engine was created.
    pub fn started(&self) -> Now {
        self.host.started
    }

    /// Identifier of this run: forty hexadecimal digits.
    pub fn run_id(&self) -> &str {
        &self.host.run_id
    }

    /// Identifier of the history of changes: forty hexadecimal digits.
    pub fn replication_id(&self) -> &str {
        &self.host.replication_id
    }

    /// Whether `CLOCK` and `FAULT` are allowed.
    pub fn test_mode(&self) -> bool {
        self.testing.mode
    }

    /// Sets whether `CLOCK` and `FAULT` are allowed.
    pub fn set_test_mode(&mut self, on: bool) {
        self.testing.mode = on;
    }

    /// Replaces all users, before there are any sessions.
    pub fn set_users(&mut self, users: Users) {
        debug_assert_eq!(self.clients.sessions.len(), 0, "no session has a user that is gone");
        self.users = users;
    }

    /// Forgets the denials of access (`ACL LOG RESET`).
    pub fn forget_denials(&mut self) {
        self.users.log.clear();
    }

    /// Sets the ACL file; `None` without one.
    pub fn set_users_file(&mut self, file: Option<UsersFile>) {
        self.host.users_file = file;
    }

    /// The users, and their file: `None` without one.
    pub fn users_and_file(&mut self) -> (&mut Users, Option<&mut UsersFile>) {
        (&mut self.users, self.host.users_file.as_mut())
    }

    /// Sets the source of secrets. Without one they follow from the seed, as in simulations.
    pub fn set_entropy(&mut self, entropy: Entropy) {
        self.host.entropy = Some(entropy);
    }

    /// Fills a buffer with bytes that no client can know, if there is a source of secrets. Returns false if the source fails.
    pub fn fill_with_secrets(&mut self, bytes: &mut [u8]) -> bool {
        if let Some(fill) = &mut self.host.entropy {
            return fill(bytes);
        }
        bytes.fill_with(|| self.random() as u8);
        true
    }

    /// Begins another history of changes.
    pub fn change_replication_id(&mut self) {
        self.host.replication_id = self.random_id();
    }

    /// The scripts and functions.
    #[inline]
    pub(crate) fn scripts(&self) -> &dyn Scripting {
        &*self.scripting.interpreters
    }

    /// The scripts and functions, to run one, which leaves nothing to free; and what counts the calls of commands.
    #[inline]
    pub(crate) fn scripts_to_run(&mut self) -> (&mut dyn Scripting, &mut CommandStats) {
        (&mut *self.scripting.interpreters, &mut self.diagnosis.command_stats)
    }

    /// The scripts and functions, and the databases, to report a change of the former.
    pub(crate) fn scripts_and_keyspace(&mut self) -> (&dyn Scripting, &mut Keyspace) {
        (&*self.scripting.interpreters, &mut self.keyspace)
    }

    /// Whether scripts may call DEBUG.
    #[inline]
    pub fn scripts_may_debug(&self) -> bool {
        self.scripting.may_debug
    }

    /// Sets whether scripts may call DEBUG.
    pub fn let_scripts_debug(&mut self, may: bool) {
        self.scripting.may_debug = may;
    }

    /// Has scripts killed after so many thousands of steps; `None`: never.
    pub fn bound_scripts(&mut self, steps_max: Option<u64>) {
        self.scripting.steps_max = steps_max;
    }

    /// Sets who decides while a script runs whether it may continue; `None` lets every script run to its end.
    pub fn set_supervisor(&mut self, supervisor: Option<Supervisor>) {
        self.scripting.supervisor = supervisor;
    }

    /// The script run that the supervisor is deciding about.
    pub fn long_run(&self) -> Option<&Run> {
        self.scripting.long_run.as_ref()
    }

    /// As [`Engine::long_run`], to change it.
    pub fn long_run_mut(&mut self) -> Option<&mut Run> {
        self.scripting.long_run.as_mut()
    }

    /// Number of elements that commands visited besides those in their arguments and replies.
    #[inline]
    pub(crate) fn visited(&self) -> u64 {
        self.running.visited
    }

    /// Counts visited elements from zero.
    #[inline]
    pub(crate) fn forget_visited(&mut self) {
        self.running.visited = 0;
    }

    /// Counts bytes that were read from a session's socket.
    #[inline]
    pub fn count_read(&mut self, id: SessionId, bytes: usize) {
        self.clients.sessions[id].net_in += bytes as u64;
        self.diagnosis.stats.net_in += bytes as u64;
        self.diagnosis.stats.reads += 1;
    }

    /// Counts bytes of a session's outbox as written. Returns the session.
    #[inline]
    pub fn count_written(&mut self, id: SessionId, bytes: usize) -> &mut Session {
        self.diagnosis.stats.net_out += bytes as u64;
        self.diagnosis.stats.writes += 1;
        let session = &mut self.clients.sessions[id];
        session.net_out += bytes as u64;
        session.sent += bytes;
        session
    }
}
