//! Durability: the append-only file under the server, and the gate behind which replies wait for it.
//!
//! ```text
//!   Shell ─ requests ─▶ Engine ─ changes ─▶ AppendLog ─ submit: a batch ─▶ LogThread ─▶ disk
//!     │ hold: output that shows an unsettled change                          │
//!     └──────── gate ◀──────────────── settled ◀─────────────────────────────┘
//! ```
//!
//! At the start, [`load`] reads the folder or a snapshot, and [`load::replay`] applies it to a second engine, in slices between the turns
//! of the event loop ([`load::slices`], [`load::pace`]); then [`start`] begins a new increment. [`load::upgrade`] takes over a file of Redis 6. [`gate`]
//! decides which output waits. `submit` (in [`log`]) runs at the end of each turn of the event loop, and hands a batch over when the
//! last one is settled (`always`; [`sharing`] may let it wait for more), or every 10 ms (otherwise). [`log_thread`] and [`files`] write
//! it. [`rewrite`] makes a new base from the files, [`snapshot`] an RDB file and [`switch`] a first base from a copy of the keyspace
//! ([`copy`]). [`reload`] loads the files into the running server.
//! `check` reads files without a server.
//!
//! The directives are Redis's: `appendonly`, `appendfsync`, `dir`, `appenddirname`, `appendfilename`, `aof-load-truncated`,
//! `auto-aof-rewrite-percentage`, `auto-aof-rewrite-min-size`. `guide/durability.md` is the operator's page.

pub mod boot;
#[cfg(feature = "cli")]
pub mod check;
pub mod copy;
pub mod delay;
pub mod files;
pub mod folder;
pub mod gate;
pub mod load;
pub mod lock;
pub mod log;
pub mod log_thread;
pub mod reload;
pub mod rewrite;
pub mod sharing;
pub mod snapshot;
pub mod start;
pub mod switch;

use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::persistence::{Figures, Position};
use crate::persist::append::clock::BootClock;
use crate::persist::append::log::AppendLog;
use crate::persist::disk::DiskError;
use crate::server::bound::Bound;
use crate::server::clock::monotonic_ns;
use crate::server::durable::copy::Shared;
use crate::server::durable::delay::Delay;
use crate::server::durable::files::Files;
use crate::server::durable::folder::words;
use crate::server::durable::gate::{BatchNumber, CommitGate};
use crate::server::durable::lock::FolderLock;
use crate::server::durable::log_thread::{LogThread, Order, Progress, Report, Syncs};
use crate::server::durable::sharing::Sharing;

/// How far a log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Its base is not on the disk yet: changes are recorded, and nothing waits for them.
    Starting,
    /// It is what a start would load.
    Running,
    /// It was switched off, and its thread writes what is left.
    Closing,
}

/// The log of a server, and what waits for it.
pub struct Durable {
    /// How far it is.
    pub phase: Phase,
    /// Where the engine records its changes.
    pub log: AppendLog,
    /// Which output waits for which batch.
    pub gate: CommitGate,
    /// How much the thread has written and synced.
    pub progress: Arc<Progress>,
    orders: Sender<Order>,
    thread: Option<JoinHandle<()>>,
    /// The folder of its files.
    path: PathBuf,
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
    /// Whether too many bytes wait to be stored.
    bound: Bound,
    /// Bytes that the quorum may have, and the disk of this node has not written.
    pub unwritten: Arc<AtomicU64>,
    /// State of rewriting, for INFO.
    rewrite: Rc<Cell<Rewriting>>,
    /// Bytes of all files after the last new base, or at the start.
    base_size: Rc<Cell<u64>>,
    /// Set when the base in progress is given up. Its thread reads it.
    rewrite_abandoned: Arc<AtomicBool>,
    /// Keeps the folder locked, together with the threads that write in it.
    lock: Option<Arc<FolderLock>>,
    /// Whether batches go to the quorum instead of a file: see [`crate::server::replicated`].
    pub replicated: bool,
    /// Whether a batch is to be handed over even if it is empty: replies wait until it is settled.
    pub confirms: bool,
    /// What the next batch waits for.
    sharing: Sharing,
    /// Whether the last look at the pending changes left them to wait for others. Nothing else comes back to them then.
    shares: bool,
    /// Notices syncs that hold up changes.
    delay: Delay,
    /// How often there was one, for INFO.
    delayed_syncs: Rc<Cell<u64>>,
}

/// State of rewriting: of the new base in progress, and of the last one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rewriting {
    /// When the one in progress began, in monotonic milliseconds.
    began_ms: Option<u64>,
    /// How many failed since one succeeded.
    failures: u32,
    /// When the server may begin one by itself, in monotonic milliseconds.
    not_before_ms: u64,
    /// Seconds that the last one took.
    took_s: Option<u64>,
    /// Number of new bases.
    made: u64,
}

/// State of rewriting, and the size of the files after the last new base, both shared with the figures of INFO.
type Bases = (Rc<Cell<Rewriting>>, Rc<Cell<u64>>);

impl Durable {
    /// A log without a thread, which starts.
    pub(super) fn new(
        log: AppendLog,
        progress: Arc<Progress>,
        orders: Sender<Order>,
        (path, syncs): (PathBuf, Syncs),
        seed: u64,
        (rewrite, base_size): Bases,
    ) -> Durable {
        Durable {
            phase: Phase::Starting,
            log,
            gate: CommitGate::default(),
            progress,
            orders,
            thread: None,
            path,
            syncs,
            seed,
            seen: 0,
            stuck: None,
            turns_over: false,
            submit_ms: None,
            bound: Bound::default(),
            unwritten: Arc::default(),
            rewrite,
            base_size,
            rewrite_abandoned: Arc::default(),
            lock: None,
            replicated: false,
            confirms: false,
            sharing: Sharing::default(),
            shares: false,
            delay: Delay::default(),
            delayed_syncs: Rc::default(),
        }
    }

    /// Starts its thread, which keeps the folder locked. `report` is called on that thread.
    ///
    /// # Errors
    /// In words: there can be no thread.
    fn spawn(
        &mut self,
        files: Files,
        orders: Receiver<Order>,
        lock: FolderLock,
        report: impl Fn(Report) + Send + 'static,
    ) -> Result<(), String> {
        let thread = LogThread::new(files, self.path.clone(), self.syncs, orders, Arc::clone(&self.progress), report);
        let lock = Arc::new(lock);
        self.lock = Some(Arc::clone(&lock));
        let thread = std::thread::Builder::new().name("log".into()).spawn(move || {
            let _lock = lock;
            thread.run();
        });
        self.thread = Some(thread.map_err(|error| format!("Can't start the thread of the log: {}", words(&error)))?);
        Ok(())
    }

    /// Reads the figures of INFO.
    pub(super) fn figures(&self) -> Box<dyn Fn() -> Figures> {
        let (progress, rewrite) = (Arc::clone(&self.progress), Rc::clone(&self.rewrite));
        let (base_size, held) = (Rc::clone(&self.base_size), self.gate.held());
        let (recorded, delayed_syncs) = (self.log.clone(), Rc::clone(&self.delayed_syncs));
        let unwritten = Arc::clone(&self.unwritten);
        Box::new(move || {
            // The base counts as one byte: until it is on the disk, nothing is.
            let begun = progress.begun.load(Ordering::Relaxed);
            let durable = if begun { progress.durable_position.load(Ordering::Relaxed) + 1 } else { 0 };
            Figures {
                position: Position { recorded: recorded.position() + 1, durable },
                queued: waiting(&progress, &unwritten, &recorded),
                delayed_syncs: delayed_syncs.get(),
                held: held.get(),
                ..figures_of(&progress, rewrite.get(), base_size.get())
            }
        })
    }

    /// Number of bytes that wait to be stored.
    #[inline]
    pub fn waiting(&self) -> u64 {
        waiting(&self.progress, &self.unwritten, &self.log)
    }

    /// Takes note that its files are what a start would load.
    pub(super) fn begin(&mut self) {
        self.phase = Phase::Running;
        self.progress.begun.store(true, Ordering::Relaxed);
    }

    /// Gives up the base in progress: its thread leaves the folder as it is.
    fn abandon_rewrite(&self) {
        self.rewrite_abandoned.store(true, Ordering::Relaxed);
    }

    /// The clock by which native records tell their times.
    fn boot_clock(&self, now: Now) -> BootClock {
        #[cfg(feature = "quorum")]
        if self.replicated {
            return crate::server::replicated::boot_clock(now);
        }
        let _ = now;
        boot::clock()
    }

    /// Whether changes are recorded.
    pub fn records(&self) -> bool {
        self.phase != Phase::Closing
    }

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
        self.syncs == Syncs::Always && self.phase == Phase::Running
    }

    /// Whether the pending changes wait for others that are to share a sync.
    fn waits_for_others(&self) -> bool {
        self.sharing.waits(self.gate.held().get(), monotonic_ns())
    }

    /// How long the pending changes wait for others while nothing else is to be done; `None` if the last look at them did not leave them
    /// to wait.
    fn rest_for_others(&self) -> Option<Duration> {
        self.shares.then(|| self.sharing.rest(monotonic_ns()))
    }

    /// Tells the operator if a sync has long held up the changes that are handed over at `now`.
    fn note_delay(&mut self, now: Now) {
        let runs = self.syncs == Syncs::EverySecond && self.progress.syncing.load(Ordering::Relaxed);
        let sync = runs.then(|| self.progress.syncs.read().count);
        if self.delay.note(sync, now.mono_ms()) {
            tracing::warn!("Asynchronous AOF fsync is taking too long (disk is busy?). Changes wait until it ends.");
            self.delayed_syncs.set(self.delayed_syncs.get() + 1);
        }
    }
}

/// Number of bytes that wait to be stored. What a leader has handed over is in its own log as well.
#[inline]
fn waiting(progress: &Progress, unwritten: &AtomicU64, log: &AppendLog) -> u64 {
    let handed_over = progress.queued_bytes.load(Ordering::Relaxed).max(unwritten.load(Ordering::Relaxed));
    handed_over + log.pending_bytes() as u64
}

fn figures_of(progress: &Progress, rewriting: Rewriting, base_size: u64) -> Figures {
    let get = |number: &AtomicU64| number.load(Ordering::Relaxed);
    Figures {
        size: get(&progress.total_bytes),
        base_size,
        syncing: progress.syncing.load(Ordering::Relaxed),
        batches: [get(&progress.written), get(&progress.durable)],
        syncs: progress.syncs.read(),
        rewriting_since_ms: rewriting.began_ms,
        rewrite_failures: rewriting.failures,
        rewrite_s: rewriting.took_s,
        rewrites: rewriting.made,
        ..Figures::default()
    }
}

/// State of snapshots besides what `INFO` shows.
#[derive(Default)]
pub struct Snapshots {
    /// What the thread of the snapshot in progress shares with the executor.
    running: Option<Arc<Shared>>,
    /// Clients whose `SAVE` waits for the snapshot in progress: their sessions, and their numbers.
    waiting: Vec<(SessionId, u64)>,
    /// When the save points are looked at next, in monotonic milliseconds; `None` without any.
    pub look_ms: Option<u64>,
    /// When the last one began, in monotonic milliseconds.
    tried_ms: u64,
    /// Number of files so far, for the names of temporary ones.
    files: u64,
}
