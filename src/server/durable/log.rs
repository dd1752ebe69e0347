//! What the shell does with the log: holds output, hands batches to the thread, takes its reports, and makes new bases.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::base::error::Error;
use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::command::Command;
use crate::engine::observe::turns::Task;
use crate::engine::outbox::Outbox;
use crate::engine::session::SessionFlags;
use crate::persist::append::clock::Moment;
use crate::persist::append::log::Batch;
use crate::persist::append::manifest::Manifest;
use crate::server::clock::monotonic_ns;
use crate::server::durable::copy::{ENGINE_STACK, be_nice};
use crate::server::durable::files::Head;
use crate::server::durable::gate::Executed;
use crate::server::durable::log_thread::{Order, Report, Syncs};
use crate::server::durable::rewrite::{self, Rewrite};
use crate::server::durable::sharing::Sharing;
use crate::server::durable::{Durable, Phase, Rewriting, boot};
use crate::server::net::control::Control;
use crate::server::shell::Shell;

/// Pending bytes from which on a batch is handed over without waiting for anything.
const BATCH_MIN: usize = 256 << 10;
/// Milliseconds for which changes gather under `everysec` and `no`, because each batch wakes the log's thread.
const BATCH_EVERY_MS: u64 = 10;

/// Hands the reports of the log's thread to the executor.
pub(super) fn reporter(control: Control<Shell>) -> impl Fn(Report) + Send + 'static {
    move |report: Report| {
        control.send(Box::new(move |shell: &mut Shell| {
            shell.take_report(report);
            shell.after_order();
        }));
    }
}

impl Shell {
    /// Holds back the reply to a request until what it shows is settled. `start` is the position of the reply in the session's
    /// outbox, which the caller has taken.
    #[cold]
    pub(in crate::server) fn hold_reply(
        &mut self,
        outbox: &Outbox,
        row: Option<&'static Command>,
        args: &[&[u8]],
        db: u32,
        start: usize,
    ) {
        let Some(durable) = &mut self.durable else { return };
        let id = outbox.session;
        // Between MULTI and EXEC a reply says that a request is queued, or why it is not.
        let queued = self.engine.sessions[id.0 as usize].flags.contains(SessionFlags::MULTI);
        let reply = outbox.bytes.get(start..).unwrap_or_default();
        let request = Executed { commands: self.engine.commands, row, args, db, queued, reply };
        let batch = durable.gate.batch_of_reply(&durable.log, durable.seed, request);
        #[cfg(feature = "quorum")]
        let batch = self.batch_of_read(batch, request);
        let Some(durable) = &mut self.durable else { return };
        durable.seen = durable.seen.max(batch);
        let session = &mut self.engine.sessions[id.0 as usize];
        let at = session.net_out + (start - session.sent.min(start)) as u64;
        let gated = durable.gate.hold(id, at, batch);
        session.flags.set(SessionFlags::UNSETTLED, gated);
    }

    /// Holds back what a batch of requests, or the passing of time, wrote to other sessions.
    #[cold]
    pub(in crate::server) fn hold_others(&mut self, requester: Option<SessionId>) {
        for id in std::mem::take(&mut self.engine.persistence.answered) {
            self.wake(id);
        }
        let Some(durable) = self.durable.as_mut().filter(|durable| durable.holds_output()) else {
            #[cfg(feature = "quorum")]
            self.relay_messages(0);
            return;
        };
        let seen = std::mem::take(&mut durable.seen);
        let batch = durable.gate.batch_of_others(&durable.log, requester.map(|_| seen));
        let settled = batch <= durable.gate.settled();
        #[cfg(feature = "quorum")]
        self.relay_messages(if settled { 0 } else { batch });
        let Some(durable) = self.durable.as_mut().filter(|_| !settled) else { return };
        for &id in self.dirty.iter().filter(|&&id| Some(id) != requester) {
            let session = &mut self.engine.sessions[id.0 as usize];
            let gated = durable.gate.hold(id, session.net_out, batch);
            session.flags.set(SessionFlags::UNSETTLED, gated);
        }
    }

    /// Whether output waits for the disk.
    #[inline]
    pub(in crate::server) fn holds_output(&self) -> bool {
        self.durable.as_ref().is_some_and(|durable| durable.holds_output())
    }

    /// Does what is to be done about files between the turns of connections: copies some keys, and hands the changes of this turn of
    /// the event loop to the log's thread. Returns whether to call this again soon.
    #[cold]
    pub(in crate::server) fn work_on_files(&mut self) -> bool {
        let mut copies = false;
        if self.copying.is_some() {
            self.close_turn();
            copies = self.copy_some();
            self.end_turn(Task::Copy);
        }
        #[cfg(feature = "quorum")]
        let applies = self.go_on_applying();
        #[cfg(not(feature = "quorum"))]
        let applies = false;
        self.submit(false);
        self.update_files();
        applies || copies || self.next_load().is_some_and(|wait| wait.is_zero())
    }

    /// Does what is due about files.
    #[cold]
    pub(in crate::server) fn tick_files(&mut self, now: Now) {
        if self.snapshots.look_ms.is_some_and(|at| now.reached(at)) {
            self.look_at_save_points();
        }
        if self.log_again_ms.is_some_and(|at| now.reached(at)) {
            self.log_as_configured();
        }
        #[cfg(feature = "quorum")]
        self.tick_cluster(now);
        // A test that moves the clock gets here without a turn of the event loop, which would hand the changes over.
        self.submit(false);
        self.update_files();
    }

    /// Must be called after a change of what is done about files, or of when it is due.
    #[cold]
    pub(in crate::server) fn update_files(&mut self) {
        self.files_active = self.durable.is_some()
            || self.copying.is_some()
            || self.loading.is_some()
            || self.engine.persistence.figures.is_some();
        #[cfg(feature = "quorum")]
        let nodes = self.replicated.is_some();
        #[cfg(not(feature = "quorum"))]
        let nodes = false;
        self.files_active |= nodes;
        #[cfg(feature = "quorum")]
        let tick_ms = self.replicated.as_ref().map(|replicated| replicated.due_ms());
        #[cfg(not(feature = "quorum"))]
        let tick_ms = None;
        let log_ms = self.durable.as_ref().map(|durable| durable.due_ms());
        let due = [self.snapshots.look_ms, self.log_again_ms, log_ms, tick_ms];
        self.files_due_ms = due.into_iter().flatten().min().unwrap_or(u64::MAX);
    }

    /// How long to wait at most for more changes before the pending ones are handed over, or before a follower goes on applying; `None`
    /// if neither waits. Zero says that one of them goes on now.
    #[cold]
    pub(in crate::server) fn rest_for_others(&self) -> Option<Duration> {
        #[cfg(feature = "quorum")]
        if let Some(rest) = self.rest_from_applying() {
            return Some(rest);
        }
        self.durable.as_ref()?.rest_for_others()
    }

    #[cold]
    pub(in crate::server) fn submit(&mut self, closing: bool) {
        let now = self.clock.now();
        let Some(durable) = &mut self.durable else { return };
        durable.shares = false;
        let pending = durable.log.pending_bytes();
        if pending == 0 && !durable.confirms {
            durable.submit_ms = None;
            return;
        }
        if durable.bound.look(durable.waiting()) {
            self.bound_changed();
        }
        #[cfg(feature = "quorum")]
        if self.replicated.as_ref().is_some_and(|replicated| replicated.is_out()) {
            return;
        }
        let Some(durable) = &mut self.durable else { return };
        if !closing && pending < BATCH_MIN {
            if durable.holds_output() {
                durable.submit_ms = None;
                // While one batch is on its way the next is filled: the report that the first is settled comes back here.
                if durable.gate.is_on_its_way() {
                    return;
                }
                durable.shares = durable.waits_for_others();
                if durable.shares {
                    return;
                }
            } else if self.clock.is_frozen() {
                // A moment that does not come is not waited for.
            } else if let Some(due_ms) = durable.submit_ms {
                if !now.reached(due_ms) {
                    return;
                }
            } else {
                let due_ms = now.deadline_in(BATCH_EVERY_MS);
                durable.submit_ms = Some(due_ms);
                let clock = &self.clock;
                self.timer.arm(due_ms, |ms| clock.raw_us_of(ms));
                return;
            }
        }
        durable.submit_ms = None;
        if durable.holds_output() {
            durable.gate.note_changes(&durable.log);
        }
        durable.log.set_boot_clock(now, durable.boot_clock(now));
        // Until the thread has begun a new file, its figures are those of the old one.
        let synced = if durable.turns_over { 0 } else { durable.progress.durable_bytes.load(Ordering::Relaxed) };
        let confirms = std::mem::take(&mut durable.confirms);
        let batch = match durable.log.take_batch(synced) {
            Some(Batch { bytes, .. }) => bytes,
            None if confirms => Vec::new(),
            None => return,
        };
        let number = durable.gate.take();
        durable.progress.queued_bytes.fetch_add(batch.len() as u64, Ordering::Relaxed);
        #[cfg(feature = "quorum")]
        if durable.replicated {
            // Each batch stands alone: a snapshot may end before any of them.
            durable.log.begin_file(0);
            if let Some(replicated) = &mut self.replicated {
                replicated.propose(number, batch, now);
            }
            return;
        }
        durable.send(Order::Append(number, batch));
        if !durable.holds_output() {
            // A crash may lose it; nothing waits.
            durable.gate.settle(number);
        }
        let size = durable.progress.total_bytes.load(Ordering::Relaxed);
        let (config, base_size) = (&self.engine.config, durable.base_size.get());
        let grown = size.saturating_sub(base_size).saturating_mul(100) / base_size.max(1);
        let rewrite = config.auto_aof_rewrite_percentage > 0
            && size >= config.auto_aof_rewrite_min_size
            && grown >= u64::from(config.auto_aof_rewrite_percentage)
            && durable.phase == Phase::Running
            && durable.rewrite.get().began_ms.is_none()
            && now.reached(durable.rewrite.get().not_before_ms)
            && self.engine.persistence.snapshot.since_ms.is_none();
        durable.note_delay(now);
        if rewrite {
            tracing::info!("Starting automatic rewriting of AOF on {grown}% growth");
            self.rewrite_log();
        }
    }

    /// Takes a report of the log's thread.
    pub(in crate::server) fn take_report(&mut self, report: Report) {
        let Some(durable) = &mut self.durable else { return };
        match report {
            Report::Settled(batch) => {
                let mut opened = Vec::new();
                if !self.clock.is_frozen() {
                    let (held, sync_us) = (durable.gate.held().get(), durable.progress.syncs.last_us());
                    durable.sharing = Sharing::after(held, sync_us, monotonic_ns());
                }
                for (id, last) in durable.gate.settle(batch) {
                    if last {
                        self.engine.sessions[id.0 as usize].flags.remove(SessionFlags::UNSETTLED);
                    }
                    opened.push(id);
                }
                let now = self.clock.now();
                self.engine.end_log_waits(now);
                self.look_at_bound();
                // The next batch is handed over before the replies are written: the disk does not wait for those.
                self.submit(false);
                // Not by way of the engine's list of sessions to flush: what is on that list may show changes that are not settled.
                opened.into_iter().for_each(|id| self.wake(id));
            }
            Report::Stuck(error) => {
                tracing::warn!(%error, "cannot write to the append-only file; writes are refused until it works again");
                durable.stuck = Some(error);
                self.refuse_writes();
            }
            Report::Unstuck => {
                tracing::info!("the append-only file can be written to again");
                durable.stuck = None;
                self.refuse_writes();
            }
            Report::Slow(event, took) => {
                let now = self.clock.now();
                self.engine.note_pause(event, now, u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
            }
            Report::Increment(manifest) => self.begin_rewrite(manifest),
            Report::Based => self.end_rewrite(true),
            Report::Closed => self.log_closed(),
            Report::Failed(error) => {
                let text =
                    format!("cannot write the append-only file: {error}. What is on the disk is unknown, so the server ends");
                tracing::error!("{text}");
                self.failed = Some(text);
                self.ending = true;
            }
        }
    }

    /// Applies a new value of `appendfsync`.
    pub(in crate::server) fn sync_as_configured(&mut self) {
        let syncs = Syncs::of(self.engine.config.appendfsync);
        let Some(durable) = self.durable.as_mut().filter(|durable| !durable.replicated) else { return };
        // What waits goes on waiting: batches are reported as settled under each value.
        durable.syncs = syncs;
        durable.send(Order::Sync(syncs));
    }

    /// Applies new values of `aof-timestamp-enabled` and `latency-monitor-threshold`.
    pub(in crate::server) fn log_details_as_configured(&mut self) {
        let config = &self.engine.config;
        let Some(durable) = &self.durable else { return };
        durable.log.set_timestamps(config.aof_timestamp_enabled);
        durable.progress.latency_ms.store(config.latency_monitor_threshold, Ordering::Relaxed);
    }

    /// Begins a new base: the next increment first, then, when that exists, a thread that reads the files before it.
    pub(in crate::server) fn rewrite_log(&mut self) {
        if self.durable.is_none() && self.log_again_ms.is_some() {
            // It could not be switched on. What was asked for is to try that again now.
            return self.log_as_configured();
        }
        self.submit(true);
        let now = self.clock.now();
        let salt = self.engine.random_salt();
        let runs = |durable: &&mut Box<Durable>| durable.phase == Phase::Running && !durable.replicated;
        let Some(durable) = self.durable.as_mut().filter(runs) else { return };
        if durable.rewrite.get().began_ms.is_some() {
            return;
        }
        durable.rewrite.set(Rewriting { began_ms: Some(now.mono_ms()), ..durable.rewrite.get() });
        durable.progress.rewriting.store(true, Ordering::Relaxed);
        let head = Head { salt, line: durable.log.begin_file(salt) };
        durable.turns_over = true;
        durable.send(Order::NextIncrement(head));
        tracing::info!("Background append only file rewriting started");
    }

    fn begin_rewrite(&mut self, manifest: Manifest) {
        let boot = boot::clock();
        let moment = Moment { boot, now: self.clock.now() };
        let config = self.engine.config.clone();
        let Some(control) = self.control.clone() else { return };
        let Some(durable) = &mut self.durable else { return };
        durable.turns_over = false;
        if durable.phase != Phase::Running {
            return;
        }
        let (abandoned, lock) = (Arc::clone(&durable.rewrite_abandoned), durable.lock.clone());
        let path = durable.path.clone();
        let name = config.appendfilename.clone();
        let orders = durable.orders.clone();
        let work = Rewrite { config, path, name, manifest, moment, abandoned };
        let thread = std::thread::Builder::new().name("rewrite".into()).stack_size(ENGINE_STACK);
        let spawned = thread.spawn(move || {
            be_nice();
            let _lock = lock;
            match work.run() {
                Ok((file, len)) => _ = orders.send(Order::Base(file, len)),
                Err(reason) => {
                    tracing::warn!(reason, "cannot make a new base of the append-only file");
                    control.send(Box::new(|shell: &mut Shell| shell.end_rewrite(false)));
                }
            }
        });
        if let Err(error) = spawned {
            tracing::warn!(%error, "cannot start the thread that makes a new base");
            self.end_rewrite(false);
        }
    }

    pub(super) fn end_rewrite(&mut self, made: bool) {
        let now = self.clock.now();
        let Some(durable) = &mut self.durable else { return };
        let Rewriting { began_ms, failures, made: before, .. } = durable.rewrite.get();
        let took_s = began_ms.map(|began_ms| now.mono_ms().saturating_sub(began_ms) / 1000);
        let failures = if made { 0 } else { failures.saturating_add(1) };
        let minutes = rewrite::pause_minutes(failures);
        if minutes > 0 {
            tracing::warn!(
                "Background AOF rewrite has repeatedly failed and triggered the limit, will retry in {minutes} minutes"
            );
        }
        let not_before_ms = now.mono_ms() + minutes * 60_000;
        let made_now = u64::from(made);
        durable.rewrite.set(Rewriting { began_ms: None, failures, not_before_ms, took_s, made: before + made_now });
        durable.progress.rewriting.store(false, Ordering::Relaxed);
        if made {
            durable.base_size.set(durable.progress.total_bytes.load(Ordering::Relaxed));
            tracing::info!("Background AOF rewrite finished successfully");
        }
        self.go_on_saving();
    }

    /// Looks whether too much waits to be stored.
    pub(in crate::server) fn look_at_bound(&mut self) {
        if let Some(durable) = &mut self.durable
            && durable.bound.look(durable.waiting())
        {
            self.bound_changed();
        }
    }

    #[cold]
    fn bound_changed(&mut self) {
        let Some(durable) = &self.durable else { return };
        let (waiting, who) = (durable.waiting(), if durable.replicated { "a majority of the nodes" } else { "the disk" });
        if durable.bound.is_over() {
            tracing::warn!(waiting, "{who} is too slow: writes are refused until half of what waits may be is left");
        } else {
            tracing::info!(waiting, "{who} has caught up: writes are accepted again");
        }
        self.refuse_writes();
    }

    pub(in crate::server) fn refuse_writes(&mut self) {
        let text = self.durable.as_ref().and_then(|durable| match &durable.stuck {
            Some(error) => Some(Error::new(format!("MISCONF Errors writing to the AOF file: {error}"))),
            None if durable.bound.is_over() && durable.replicated => {
                Some(Error::new("MISCONF Too many changes wait for a majority of the nodes: it is too slow"))
            }
            None if durable.bound.is_over() => Some(Error::new("MISCONF Errors writing to the AOF file: the disk is too slow")),
            None => None,
        });
        let (config, snapshot) = (&self.engine.config, &self.engine.persistence.snapshot);
        let unsaved = snapshot.failed && config.stop_writes_on_bgsave_error && !config.save.is_empty();
        self.engine.refuse_writes(text.or_else(|| unsaved.then_some(Error::MISCONF_SNAPSHOTS)));
    }

    /// Ends the log: what was recorded is written and synced.
    pub(in crate::server) fn close_log(&mut self) {
        self.abandon_snapshot();
        self.abandon_copy();
        self.submit(true);
        let Some(durable) = &mut self.durable else { return };
        durable.abandon_rewrite();
        durable.send(Order::Close);
        if let Some(thread) = durable.thread.take() {
            let _ = thread.join();
        }
    }
}
