//! One request, from its arguments to its reply: [`Engine::execute`]. The page of [`crate::engine`] draws the whole way.

use crate::base::error::Error;
use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::Engine;
use crate::engine::advance::ADVANCE_BUDGET;
use crate::engine::cluster;
use crate::engine::command::{Command, Flags, Traits};
use crate::engine::context::{Caller, Context};
use crate::engine::outbox::Outbox;
use crate::engine::session::SessionFlags;
use crate::engine::slow_path::SlowPath;
use crate::engine::table::resolve_row;
use crate::engine::transaction::exec::Fate;
use crate::resp::reply::{Sink, WireReply};
use crate::store::dict::KeyHash;

/// Maximum number of steps in which expired leases and waits are settled before a command, besides those of its own keys. Each
/// takes [`DUE_STEPS`](crate::lock::locks::DUE_STEPS) of them.
pub(super) const STEPS_BEFORE_REQUEST: u32 = ADVANCE_BUDGET;

/// A request of a session, and what its driver has found out about it ahead of its execution.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Its arguments, from the command's name on.
    pub args: &'a [&'a [u8]],
    /// The row of the command's name, if it was looked up.
    pub row: Option<&'static Command>,
    /// A key among the arguments and its hash, if that was computed.
    pub key: Option<(&'a [u8], KeyHash)>,
}

impl<'a> Request<'a> {
    /// A request about which nothing is known.
    pub fn new(args: &'a [&'a [u8]]) -> Self {
        Request { args, row: None, key: None }
    }
}

impl Engine {
    /// Executes one request. Its reply and all pushes that it causes are in the outboxes when this returns.
    pub fn execute(&mut self, now: Now, id: SessionId, args: &[&[u8]]) {
        self.execute_request(now, id, Request::new(args));
    }

    /// As [`Engine::execute`], for a caller that knows more about the request.
    pub fn execute_request(&mut self, now: Now, id: SessionId, request: Request<'_>) {
        if self.diagnosis.rates.due(now.mono_us()) {
            self.sample_rates(now);
        }
        let mut outbox = self.take_outbox(id);
        self.execute_next(now, request, &mut outbox);
        outbox.put_back(self);
    }

    /// As [`Engine::execute_request`], for one of several requests of a session between [`Engine::begin_times`] and
    /// [`Engine::end_times`]. The reply is appended to the session's outbox, which the caller has taken. Returns the session's
    /// flags.
    #[inline(always)]
    pub fn execute_next(&mut self, now: Now, request: Request<'_>, outbox: &mut Outbox) -> SessionFlags {
        if let Some((key, hash)) = request.key {
            self.keyspace.cache_hash(key, hash);
        }
        let flags = self.perform(now, request, outbox);
        // A request without a key may run inside a script, which needs its own cached hash.
        if request.key.is_some() {
            self.keyspace.uncache_hash();
        }
        if !self.keyspace.changes.has_follow_up {
            return flags;
        }
        // Requests of other sessions may write to this outbox.
        outbox.in_place(self, |engine| engine.follow_up(now));
        self.clients.sessions[outbox.session].flags
    }

    /// Executes again the request that a session was blocked in.
    #[cold]
    pub(super) fn perform_again(&mut self, now: Now, id: SessionId, request: Request<'_>) {
        self.restart_time(now);
        let mut outbox = self.take_outbox(id);
        self.perform(now, request, &mut outbox);
        outbox.put_back(self);
        self.take_time(now);
        self.settle_journal();
    }

    /// Executes one request without serving the sessions that wait for its effects. Returns the session's flags.
    #[inline(always)]
    fn perform(&mut self, now: Now, request: Request<'_>, outbox: &mut Outbox) -> SessionFlags {
        debug_assert_eq!(self.slow_path, self.find_slow_path(), "slow_path is up to date");
        let (id, args) = (outbox.session, request.args);
        let Some(name) = args.first() else { return self.clients.sessions[id].flags };
        if self.on_slow_path(SlowPath::CLIENTS_COUNTED) && outbox.in_place(self, |engine| engine.evict_clients_before(now, id)) {
            return self.clients.sessions[id].flags;
        }
        // Not in the middle of a script that lets other sessions run.
        if now.reached(self.keyspace.changes.locks_due_ms) {
            if self.scripting.long_run.is_none() && !self.keyspace.keep_expired {
                let mut budget = STEPS_BEFORE_REQUEST;
                self.run_lock_timers(now, &mut budget);
            }
            self.keyspace.leases_overdue = now.reached(self.keyspace.changes.locks_due_ms);
        }
        self.keyspace.changes.begin();
        let row = request.row.or_else(|| self.commands.lookup(name));
        let found = resolve_row(row, args).ok();
        let session = &mut self.clients.sessions[id];
        debug_assert!(!session.flags.contains(SessionFlags::BLOCKED), "a request of a session that waits");
        session.last_ms = now.mono_ms();
        let ordinary = session.is_ordinary() && self.slow_path.is_empty();
        if !ordinary {
            session.begin_reply();
        }
        // Pushes that the command causes to its own session gather in the session's empty outbox and follow the reply.
        let (db, start) = (session.db, outbox.bytes.len());
        let mut reply = WireReply::new(&mut outbox.bytes, session.protocol);
        let (mut ran, mut db_after) = (None, db);
        match found {
            Some(command) => {
                let slot = self.diagnosis.command_stats.find(command);
                session.last_command = Some(slot as u16);
                if ordinary || self.may_run(now, id, command, args, &mut reply) {
                    let caller = Caller::Client;
                    let mut cx =
                        Context { engine: self, now, session: id, db, caller, command, stats_slot: slot, reply: &mut reply };
                    cx.run(args);
                    db_after = cx.db;
                    ran = Some((command, slot));
                }
            }
            None => self.refuse_unknown(now, id, args, &mut reply),
        }
        if self.on_slow_path(SlowPath::MONITOR_OR_TRACKING) {
            self.end_observed(id, found);
        }
        self.keyspace.changes.end();
        let replied = outbox.bytes.len() - start;
        let session = &mut self.clients.sessions[id];
        session.db = db_after;
        session.commands += 1;
        // Asked for now, as the command may have switched replies on or off.
        if session.silenced() {
            outbox.discard_reply(start);
        }
        if !session.out.is_empty() {
            outbox.bytes.append(&mut session.out);
        }
        let flags = session.flags;
        if let Some(call) = ran {
            self.executed(now, id, flags, call, args, replied);
        }
        if self.on_slow_path(SlowPath::CLIENTS_COUNTED) {
            outbox.in_place(self, |engine| engine.count_client(id));
        }
        flags
    }

    /// Slow path: decides whether a request runs now. If not, this queues it, holds it back or refuses it.
    #[inline(never)]
    fn may_run(&mut self, now: Now, id: SessionId, command: &'static Command, args: &[&[u8]], reply: &mut dyn Sink) -> bool {
        const SPECIAL: SlowPath = SlowPath::PAUSE.union(SlowPath::CLUSTER);
        let session = &self.clients.sessions[id];
        let special =
            session.flags.intersects(SessionFlags::MULTI.union(SessionFlags::MONITOR)) || self.slow_path.intersects(SPECIAL);
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
            Ok(Fate::AwaitLeader(patience)) => self.hold_for_leader(now, id, args, patience),
            Ok(Fate::Cross) => {
                self.end_transaction(id);
                self.refuse(&Error::CROSS_SLOT, reply);
            }
            Err(error) => {
                if self.on_slow_path(SlowPath::MONITOR_OR_TRACKING) {
                    self.show_refused(now, id, args);
                }
                self.diagnosis.command_stats.of(command).rejected += 1;
                let error = self.refused(id, command.is_exec(), error);
                self.refuse(&error, reply);
            }
        }
        self.publish_events();
        false
    }

    /// Refuses a request with an unknown command or a wrong number of arguments.
    #[cold]
    fn refuse_unknown(&mut self, now: Now, id: SessionId, args: &[&[u8]], reply: &mut dyn Sink) {
        let name = args[0];
        if name.eq_ignore_ascii_case(b"POST") || name.eq_ignore_ascii_case(b"HOST:") {
            // A browser was made to connect. The rest of the request may be commands that a web page smuggled in.
            tracing::warn!("possible cross-protocol attack: a client sent POST or Host:, its connection is closed");
            self.clients.sessions[id].flags |= SessionFlags::CLOSE_NOW;
        } else {
            if self.on_slow_path(SlowPath::MONITOR_OR_TRACKING) {
                self.show_refused(now, id, args);
            }
            if let Some(command) = self.commands.named(args) {
                self.diagnosis.command_stats.of(command).rejected += 1;
            }
            if let Err(mut error) = self.commands.resolve(args) {
                if self.commands.lookup(name).is_some_and(|row| self.hides(row)) {
                    error = Error::unknown_command(args);
                }
                let error = self.refused(id, self.commands.lookup(name).is_some_and(Command::is_exec), error);
                self.refuse(&error, reply);
            }
        }
        self.publish_events();
    }

    /// Whether the command does not exist on this server, although the table has it.
    pub(super) fn hides(&self, command: &Command) -> bool {
        command.traits.contains(Traits::REPLICATED) && !self.replication.is_on()
    }

    /// Whether the session's user may call the command.
    pub(super) fn check_user(&mut self, now: Now, id: SessionId, command: &'static Command, args: &[&[u8]]) -> Result<(), Error> {
        if self.clients.sessions[id].flags.contains(SessionFlags::UNRESTRICTED) {
            return Ok(());
        }
        self.check_access(now, id, command, args, self.place(id))
    }

    /// Whether the session may call the command at all.
    pub(super) fn admit(&mut self, now: Now, id: SessionId, command: &'static Command, args: &[&[u8]]) -> Result<(), Error> {
        self.check_user(now, id, command, args)?;
        // A follower may load for ever; what it refuses then follows from its role.
        if self.on_slow_path(SlowPath::NOT_LEADER) {
            self.check_role(id, command, args)?;
        }
        let session = &self.clients.sessions[id];
        if session.subscribed_mode() && !command.traits.contains(Traits::WHILE_SUBSCRIBED) {
            if self.in_cluster() {
                cluster::request_slot(command, args)?;
            }
            return Err(Error::new(format!(
                "ERR Can't execute '{}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context",
                self.commands.full_name(command)
            )));
        }
        if self.on_slow_path(SlowPath::LOADING) && !self.on_slow_path(SlowPath::NOT_LEADER) {
            self.check_loading(id, command)?;
        }
        if let Some(run) = &self.scripting.long_run
            && !command.flags.contains(Flags::ALLOW_BUSY)
        {
            return Err(run.busy());
        }
        if self.on_slow_path(SlowPath::WRITES_REFUSED) {
            self.check_disk(id, command, args)?;
        }
        Ok(())
    }

    /// Writes an error reply and counts it.
    pub(crate) fn refuse(&mut self, error: &Error, reply: &mut dyn Sink) {
        self.diagnosis.stats.error(error);
        reply.error(error.text());
    }
}

impl Context<'_> {
    /// Runs the command, which was found and admitted: counts the call, calls the handler, publishes the keyspace events.
    #[inline(always)]
    pub(crate) fn run(&mut self, args: &[&[u8]]) {
        let engine = &mut *self.engine;
        engine.diagnosis.stats.commands += 1;
        engine.keyspace.lru.begin();
        let observed = engine.on_slow_path(SlowPath::MONITOR_OR_TRACKING);
        let counted = engine.diagnosis.command_stats.slot(self.stats_slot);
        counted.calls += 1;
        if observed | engine.keyspace.leases_overdue | (engine.keyspace.has_natives & counted.guarded) {
            return self.run_slowly(args);
        }
        self.handle(args);
        self.engine.publish_events();
    }

    /// Runs another command for the same session, which replies in place of this one: a queued request of a transaction. Returns
    /// the number of the command's slot in the statistics.
    pub(super) fn call(&mut self, command: &'static Command, args: &[&[u8]]) -> usize {
        let Context { now, session, db, caller, .. } = *self;
        let slot = self.engine.diagnosis.command_stats.find(command);
        let mut cx = Context { engine: self.engine, now, session, db, caller, command, stats_slot: slot, reply: self.reply };
        cx.run(args);
        self.db = cx.db;
        slot
    }

    /// Slow path of [`Context::run`]: settles the expired leases of the request's names, guards native keys, and shows the request
    /// to observers.
    #[inline(never)]
    fn run_slowly(&mut self, args: &[&[u8]]) {
        let (now, id, db, command) = (self.now, self.session, self.db, self.command);
        let engine = &mut *self.engine;
        if engine.keyspace.leases_overdue {
            engine.run_lock_timers_of(now, db, command, args);
        }
        if engine.keyspace.has_natives
            && engine.diagnosis.command_stats.slot(self.stats_slot).guarded
            && let Err(error) = engine.guard_natives(now, id, db, command, args)
        {
            engine.diagnosis.command_stats.slot(self.stats_slot).failed += 1;
            engine.refuse(&error, self.reply);
            // Expired keys and leases were settled before the refusal.
            return engine.publish_events();
        }
        if engine.on_slow_path(SlowPath::MONITOR_OR_TRACKING) {
            return self.run_observed(args);
        }
        self.handle(args);
        self.engine.publish_events();
    }

    /// Calls the command's handler, and replies with its error if it fails.
    #[inline(always)]
    pub(super) fn handle(&mut self, args: &[&[u8]]) {
        if let Err(error) = (self.command.handler)(self, args) {
            self.engine.diagnosis.command_stats.slot(self.stats_slot).failed += 1;
            self.engine.refuse(&error, self.reply);
        }
    }
}
