//! Durability: the append-only file under the server, and the gate behind which replies wait for it.
//!
//! ```text
//!   Shell ─ requests ─▶ Engine ─ changes ─▶ AppendLog ─ submit: a batch ─▶ LogThread ─▶ disk
//!     │ hold: output that shows an unsettled change                          │
//!     └──────── gate ◀──────────────── settled ◀─────────────────────────────┘
//! ```
//!
//! At the start, [`load`] reads the folder and [`replay`] applies it to the engine; then [`start`] begins a new increment. [`gate`]
//! decides which output waits. `submit` runs at the end of each turn of the event loop, and hands a batch over when the last one is
//! settled (`always`), or every 10 ms (otherwise). [`log_thread`] and [`files`] write it. [`rewrite`] makes a new base.
//!
//! The directives are Redis's: `appendonly`, `appendfsync`, `dir`, `appenddirname`, `appendfilename`, `aof-load-truncated`,
//! `auto-aof-rewrite-percentage`, `auto-aof-rewrite-min-size`. `guide/durability.md` is the operator's page.

pub mod boot;
pub mod files;
pub mod folder;
pub mod gate;
pub mod load;
pub mod log_thread;
pub mod replay;
pub mod rewrite;
pub mod start;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;

use crate::base::error::Error;
use crate::base::ids::SessionId;
use crate::engine::command::Command;
use crate::engine::outbox::Outbox;
use crate::engine::session::SessionFlags;
use crate::persist::append::clock::Moment;
use crate::persist::append::log::{AppendLog, Batch};
use crate::persist::append::manifest::Manifest;
use crate::persist::disk::DiskError;
use crate::server::durable::files::Head;
use crate::server::durable::gate::{BatchNumber, CommitGate, Executed};
use crate::server::durable::log_thread::{Order, Progress, Report, Syncs};
use crate::server::durable::rewrite::Rewrite;
use crate::server::net::control::Control;
use crate::server::shell::Shell;

/// Maximum number of bytes that wait to be written. Beyond it, commands that write are refused until the disk has caught up.
const QUEUED_MAX: u64 = 256 << 20;
/// Pending bytes from which on a batch is handed over without waiting for anything.
const BATCH_MIN: usize = 256 << 10;
/// Milliseconds for which changes gather under `everysec` and `no`, because each batch wakes the log's thread.
const BATCH_EVERY_MS: u64 = 10;
/// Stack of the thread that makes a new base, in bytes: values are nested as deep as for the executor.
const REWRITE_STACK: usize = 64 << 20;

/// The log of a server, and what waits for it.
pub struct Durable {
    /// Where the engine records its changes.
    pub log: AppendLog,
    /// Which output waits for which batch.
    pub gate: CommitGate,
    /// How much the thread has written and synced.
    pub progress: Arc<Progress>,
    orders: Sender<Order>,
    thread: Option<JoinHandle<()>>,
    syncs: Syncs,
    /// The seed of the hashes of keys.
    seed: u64,
    /// The last batch that the running batch of requests has seen or made.
    seen: BatchNumber,
    /// Why the last batch could not be written.
    stuck: Option<DiskError>,
    /// Whether the next increment was ordered and has not begun.
    turns_over: bool,
    /// When the pending changes are handed over at the latest, in monotonic milliseconds; `None` without any, and under `always`.
    submit_ms: Option<u64>,
    /// Whether too many bytes wait to be written.
    slow: bool,
    /// State of rewriting, for INFO.
    rewrite: Rc<Cell<Rewriting>>,
    /// Bytes of all files after the last new base, or at the start.
    base_size: Rc<Cell<u64>>,
    control: Control,
}

/// State of rewriting: of the new base in progress, and of the last one.
#[derive(Clone, Copy, Debug, Default)]
struct Rewriting {
    /// When the one in progress began, in monotonic milliseconds.
    began_ms: Option<u64>,
    /// Whether the last one failed.
    failed: bool,
    /// Seconds that the last one took.
    took_s: Option<u64>,
    /// Number of new bases.
    made: u64,
}

impl Durable {
    fn send(&self, order: Order) {
        // The thread ends only after a failure that it reported.
        let _ = self.orders.send(order);
    }

    /// When a batch must be handed over, in monotonic milliseconds; `u64::MAX` if none waits for its time.
    #[cold]
    pub fn due_ms(&self) -> u64 {
        self.submit_ms.unwrap_or(u64::MAX)
    }

    /// Whether output waits for batches: under `always`.
    #[inline]
    pub fn holds_output(&self) -> bool {
        self.syncs == Syncs::Always
    }
}

impl Shell {
    /// Holds back the reply to a request until what it shows is settled. `start` is the position of the reply in the session's
    /// outbox, which the caller has taken.
    #[cold]
    pub(super) fn hold_reply(&mut self, outbox: &Outbox, row: Option<&'static Command>, args: &[&[u8]], db: u32, start: usize) {
        let Some(durable) = &mut self.durable else { return };
        let id = outbox.session;
        let reply = outbox.bytes.get(start..).unwrap_or_default();
        let request = Executed { commands: self.engine.commands, row, args, db, reply };
        let batch = durable.gate.batch_of_reply(&durable.log, durable.seed, request);
        durable.seen = durable.seen.max(batch);
        let session = &mut self.engine.sessions[id.0 as usize];
        let at = session.net_out + (start - session.sent.min(start)) as u64;
        let gated = durable.gate.hold(id, at, batch);
        session.flags.set(SessionFlags::UNSETTLED, gated);
    }

    /// Holds back what a batch of requests, or the passing of time, wrote to other sessions.
    #[cold]
    pub(super) fn hold_others(&mut self, requester: Option<SessionId>) {
        let Some(durable) = self.durable.as_mut().filter(|durable| durable.holds_output()) else { return };
        let seen = std::mem::take(&mut durable.seen);
        let batch = durable.gate.batch_of_others(&durable.log, requester.map(|_| seen));
        if batch <= durable.gate.settled() {
            return;
        }
        for &id in self.dirty.iter().filter(|&&id| Some(id) != requester) {
            let session = &mut self.engine.sessions[id.0 as usize];
            let gated = durable.gate.hold(id, session.net_out, batch);
            session.flags.set(SessionFlags::UNSETTLED, gated);
        }
    }

    /// Whether output waits for the disk.
    #[inline]
    pub(super) fn holds_output(&self) -> bool {
        self.durable.as_ref().is_some_and(|durable| durable.holds_output())
    }

    /// Hands the changes of this turn of the event loop to the log's thread.
    #[inline]
    pub(super) fn submit_batch(&mut self) {
        if self.durable.is_some() {
            self.submit(false);
        }
    }

    #[cold]
    fn submit(&mut self, closing: bool) {
        let now = self.clock.now();
        let Some(durable) = &mut self.durable else { return };
        let pending = durable.log.pending_bytes();
        if pending == 0 {
            return;
        }
        if !closing && pending < BATCH_MIN {
            if durable.holds_output() {
                // While one batch is on its way the next is filled: the report that the first is settled comes back here.
                if durable.gate.is_on_its_way() {
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
        durable.log.set_boot_clock(now, boot::clock());
        // Until the thread has begun a new file, its figures are those of the old one.
        let synced = if durable.turns_over { 0 } else { durable.progress.durable_bytes.load(Ordering::Relaxed) };
        let Some(Batch { bytes: batch, .. }) = durable.log.take_batch(synced) else { return };
        let number = durable.gate.take();
        let queued = durable.progress.queued_bytes.fetch_add(batch.len() as u64, Ordering::Relaxed) + batch.len() as u64;
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
            && durable.rewrite.get().began_ms.is_none();
        if queued > QUEUED_MAX && !durable.slow {
            tracing::warn!(
                queued,
                "too much waits to be written to the append-only file; writes are refused until the disk has caught up"
            );
            durable.slow = true;
            self.refuse_writes();
        }
        if rewrite {
            tracing::info!("Starting automatic rewriting of AOF on {grown}% growth");
            self.rewrite_log();
        }
    }

    /// Takes a report of the log's thread.
    pub(super) fn take_report(&mut self, report: Report) {
        let Some(durable) = &mut self.durable else { return };
        match report {
            Report::Settled(batch) => {
                let mut opened = Vec::new();
                for (id, last) in durable.gate.settle(batch) {
                    if last {
                        self.engine.sessions[id.0 as usize].flags.remove(SessionFlags::UNSETTLED);
                    }
                    opened.push(id);
                }
                let queued = durable.progress.queued_bytes.load(Ordering::Relaxed);
                if durable.slow && queued < QUEUED_MAX / 2 {
                    durable.slow = false;
                    self.refuse_writes();
                }
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
            Report::Increment(manifest) => self.begin_rewrite(manifest),
            Report::Based => self.end_rewrite(true),
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
    pub(super) fn sync_as_configured(&mut self) {
        let syncs = Syncs::of(self.engine.config.appendfsync);
        let Some(durable) = &mut self.durable else { return };
        // What waits goes on waiting: batches are reported as settled under each value.
        durable.syncs = syncs;
        durable.send(Order::Sync(syncs));
    }

    /// Begins a new base: the next increment first, then, when that exists, a thread that reads the files before it.
    pub(super) fn rewrite_log(&mut self) {
        self.submit(true);
        let now = self.clock.now();
        let salt = self.engine.random_salt();
        let Some(durable) = &mut self.durable else { return };
        if durable.rewrite.get().began_ms.is_some() {
            return;
        }
        durable.rewrite.set(Rewriting { began_ms: Some(now.mono_ms()), ..durable.rewrite.get() });
        let head = Head { salt, line: durable.log.begin_file(salt) };
        durable.turns_over = true;
        durable.send(Order::NextIncrement(head));
        tracing::info!("Background append only file rewriting started");
    }

    fn begin_rewrite(&mut self, manifest: Manifest) {
        let boot = boot::clock();
        let moment = Moment { boot, now: self.clock.now() };
        let config = self.engine.config.clone();
        let Some(durable) = &mut self.durable else { return };
        durable.turns_over = false;
        let path = load::folder_of(&config);
        let name = config.appendfilename.clone();
        let (orders, control) = (durable.orders.clone(), durable.control.clone());
        let work = Rewrite { config, path, name, manifest, moment };
        let thread = std::thread::Builder::new().name("rewrite".into()).stack_size(REWRITE_STACK);
        let spawned = thread.spawn(move || match work.run() {
            Ok((file, len)) => _ = orders.send(Order::Base(file, len)),
            Err(reason) => {
                tracing::warn!(reason, "cannot make a new base of the append-only file");
                control.send(Box::new(|shell: &mut Shell| shell.end_rewrite(false)));
            }
        });
        if let Err(error) = spawned {
            tracing::warn!(%error, "cannot start the thread that makes a new base");
            self.end_rewrite(false);
        }
    }

    fn end_rewrite(&mut self, made: bool) {
        let now = self.clock.now();
        let Some(durable) = &mut self.durable else { return };
        let Rewriting { began_ms, made: before, .. } = durable.rewrite.get();
        let took_s = began_ms.map(|began_ms| now.mono_ms().saturating_sub(began_ms) / 1000);
        durable.rewrite.set(Rewriting { began_ms: None, failed: !made, took_s, made: before + u64::from(made) });
        if made {
            durable.base_size.set(durable.progress.total_bytes.load(Ordering::Relaxed));
            tracing::info!("Background AOF rewrite finished successfully");
        }
    }

    fn refuse_writes(&mut self) {
        let reason = self.durable.as_ref().and_then(|durable| match &durable.stuck {
            Some(error) => Some(error.to_string()),
            None => durable.slow.then(|| "the disk is too slow".to_owned()),
        });
        let text = reason.map(|reason| Error::new(format!("MISCONF Errors writing to the AOF file: {reason}")));
        self.engine.refuse_writes(text);
    }

    /// Ends the log: what was recorded is written and synced.
    pub(super) fn close_log(&mut self) {
        self.submit(true);
        let Some(durable) = &mut self.durable else { return };
        durable.send(Order::Close);
        if let Some(thread) = durable.thread.take() {
            let _ = thread.join();
        }
    }
}
