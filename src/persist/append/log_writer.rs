//! Writes the batches of a log to its files and makes them durable. It has no thread and no clock: the log's thread runs it, and
//! the simulation of `torture` does.
//!
//! ```text
//!   Order::Append, … ─▶ queue ─▶ step: append all ─▶ sync (always) ─▶ Report::Settled ─▶ gates open
//!                         ▲           │ full, or an error ─▶ Report::Stuck; tried again
//!                         └───────────┘          └── the sync failed ─▶ an error: the server ends
//! ```
//!
//! While one sync runs, further batches gather, and the next sync serves all of them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::base::durations::Histogram;
use crate::persist::append::files::{Files, Head};
use crate::persist::append::manifest::{File, Manifest};
use crate::persist::disk::{Disk, DiskError, Result};

/// Nanoseconds between syncs under `everysec`.
const EVERY_NS: u64 = 1_000_000_000;
/// Pause before a batch that could not be written is tried again.
const AGAIN: Duration = Duration::from_millis(100);

/// The number of a batch. The first is 1.
pub type BatchNumber = u64;

/// `appendfsync`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syncs {
    /// After each batch; batches are settled then.
    Always,
    /// Once a second.
    EverySecond,
    /// Never: the system writes when it likes.
    Never,
}

impl Syncs {
    /// The value of the directive.
    pub fn of(appendfsync: &str) -> Syncs {
        match appendfsync {
            "always" => Syncs::Always,
            "everysec" => Syncs::EverySecond,
            _ => Syncs::Never,
        }
    }
}

/// What is asked of the writer.
pub enum Order {
    /// Append a batch.
    Append(BatchNumber, Vec<u8>),
    /// Sync as this says from now on.
    Sync(Syncs),
    /// Begin the next increment. The batches before it belong to the last one.
    NextIncrement(Head),
    /// A durable file of so many bytes has the contents of all files before the current increment: make it the base, and delete
    /// them.
    Base(File, u64),
    /// When all before this is written, call this with the names of the files. They stay as they are until it returns.
    Show(Box<dyn FnOnce(Manifest) + Send>),
    /// Write what is left, sync, and end.
    Close,
}

/// What the writer reports.
#[derive(Debug)]
pub enum Report {
    /// All batches up to this one are durable.
    Settled(BatchNumber),
    /// A batch cannot be written. It is tried again.
    Stuck(DiskError),
    /// The batch could be written.
    Unstuck,
    /// The next increment has begun: the last file of this manifest. The files before it may be made into a base.
    Increment(Manifest),
    /// The manifest names the new base.
    Based,
    /// The log was closed, as ordered.
    Closed,
    /// Something took long enough for a latency event of this name.
    Slow(&'static str, Duration),
    /// The log has failed: it is unknown what is durable.
    Failed(DiskError),
}

/// What the writer has done. Others read it at any time.
#[derive(Debug, Default)]
pub struct Progress {
    /// The last batch that is in the file.
    pub written: AtomicU64,
    /// The last batch that is durable.
    pub durable: AtomicU64,
    /// Bytes of the current increment.
    pub bytes: AtomicU64,
    /// Bytes of the base and all increments.
    pub total_bytes: AtomicU64,
    /// Bytes of the current increment that are durable.
    pub durable_bytes: AtomicU64,
    /// The syncs.
    pub syncs: Histogram,
    /// Bytes of all batches since the start that are durable.
    pub durable_position: AtomicU64,
    /// Whether the files are what a start would load: the first base is on the disk.
    pub begun: AtomicBool,
    /// Bytes that wait to be written.
    pub queued_bytes: AtomicU64,
    /// Whether a sync runs.
    pub syncing: AtomicBool,
    /// Set by the driver: whether a new base is being made.
    pub rewriting: AtomicBool,
    /// Set by the driver: `latency-monitor-threshold`.
    pub latency_ms: AtomicU64,
}

impl Progress {
    /// Takes note of the bytes of files.
    pub fn note<D: Disk>(&self, files: &Files<D>) {
        self.bytes.store(files.bytes(), Ordering::Relaxed);
        self.durable_bytes.store(files.durable_bytes(), Ordering::Relaxed);
        self.total_bytes.store(files.total(), Ordering::Relaxed);
    }
}

/// What the writer uses of its surroundings.
pub trait Surroundings<D> {
    /// The monotonic clock in nanoseconds.
    fn now_ns(&self) -> u64;
    /// Opens the folder once more.
    ///
    /// # Errors
    /// The disk's.
    fn open(&self) -> Result<D>;
    /// Takes a report.
    fn report(&self, report: Report);
}

/// What comes after a step of the writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A sync: [`LogWriter::sync`], and then another step. Nothing is written in between.
    Sync,
    /// An order, or another step after this time.
    Wait(Option<Duration>),
    /// Nothing: the files are closed.
    End,
}

/// The writer of a log.
pub struct LogWriter<D: Disk, S> {
    files: Files<D>,
    syncs: Syncs,
    around: S,
    progress: Arc<Progress>,
    /// What is not done yet.
    queue: VecDeque<Order>,
    /// The last batch that is written.
    written: BatchNumber,
    /// Bytes of all batches that are written.
    position: u64,
    /// The last batch that is durable.
    durable: BatchNumber,
    /// When the last sync began.
    synced_ns: u64,
    /// Whether an order could not be carried out, and is tried again.
    stuck: bool,
    /// Whether to sync next whatever `syncs` says.
    sync_now: bool,
    /// Whether to end when the queue is empty.
    closing: bool,
}

impl<D: Disk, S: Surroundings<D>> LogWriter<D, S> {
    /// A writer of these files.
    pub fn new(files: Files<D>, syncs: Syncs, progress: Arc<Progress>, around: S) -> Self {
        progress.note(&files);
        let synced_ns = around.now_ns();
        LogWriter {
            files,
            syncs,
            around,
            progress,
            queue: VecDeque::new(),
            written: 0,
            position: 0,
            durable: 0,
            synced_ns,
            stuck: false,
            sync_now: false,
            closing: false,
        }
    }

    /// What it uses of its surroundings.
    pub fn around(&self) -> &S {
        &self.around
    }

    /// Whether a batch waits for space on the disk.
    #[cfg(any(test, feature = "internals"))]
    pub fn is_stuck(&self) -> bool {
        self.stuck
    }

    /// Takes an order, which [`LogWriter::step`] carries out.
    pub fn order(&mut self, order: Order) {
        match order {
            Order::Sync(syncs) => {
                self.syncs = syncs;
                // Output may wait that was held back under the last value.
                self.sync_now = true;
            }
            Order::Close => self.closing = true,
            order => self.queue.push_back(order),
        }
    }

    /// Carries out what was ordered, as far as the disk lets it, and says what comes next.
    ///
    /// # Errors
    /// The disk's; the log has ended then.
    pub fn step(&mut self) -> Result<Step> {
        while let Some(order) = self.queue.pop_front() {
            if !self.carry_out(order)? {
                break;
            }
        }
        let due = match self.syncs {
            _ if std::mem::take(&mut self.sync_now) || self.closing => true,
            Syncs::Always => true,
            Syncs::EverySecond => self.around.now_ns().saturating_sub(self.synced_ns) >= EVERY_NS,
            Syncs::Never => false,
        };
        if due && self.begin_sync() {
            return Ok(Step::Sync);
        }
        if self.closing && self.queue.is_empty() {
            return match self.files.close() {
                // All is durable but the line that says so: the next start takes the file for one that was not closed.
                Err(DiskError::Full) => Ok(Step::End),
                closed => closed.map(|()| Step::End),
            };
        }
        Ok(match self.syncs {
            // The server does not wait for a full disk to end. What is not written was not acknowledged under `always`.
            _ if self.closing => Step::End,
            _ if self.stuck => Step::Wait(Some(AGAIN)),
            Syncs::EverySecond if self.durable < self.written => {
                let due_ns = self.synced_ns + EVERY_NS;
                Step::Wait(Some(Duration::from_nanos(due_ns.saturating_sub(self.around.now_ns()))))
            }
            _ => Step::Wait(None),
        })
    }

    /// Goes on after a step, of which what it waited for has come: syncs, or takes what was ordered meanwhile, and makes a
    /// [step](LogWriter::step). Reports how the log ends. A writer begins as if it had waited.
    pub fn go_on(&mut self, after: Step, orders: impl IntoIterator<Item = Order>) -> Step {
        let synced = if after == Step::Sync { self.sync() } else { Ok(()) };
        let step = synced.and_then(|()| {
            // What has come during the sync is written next.
            orders.into_iter().for_each(|order| self.order(order));
            self.step()
        });
        match step {
            Ok(Step::End) => self.around.report(Report::Closed),
            Ok(step) => return step,
            Err(error) => self.around.report(Report::Failed(error)),
        }
        Step::End
    }

    /// Reports a latency event, if it took long enough.
    fn note(&self, event: &'static str, took: Duration) {
        let threshold_ms = self.progress.latency_ms.load(Ordering::Relaxed);
        if threshold_ms > 0 && took.as_millis() >= u128::from(threshold_ms) {
            self.around.report(Report::Slow(event, took));
        }
    }

    /// Notes that a batch was written.
    fn note_write(&self, took: Duration) {
        // No write meets a sync that runs, as it may in Redis (`aof-write-pending-fsync`): one is done after the other.
        let beside = if self.progress.rewriting.load(Ordering::Relaxed) { "aof-write-active-child" } else { "aof-write-alone" };
        self.note(beside, took);
        self.note("aof-write", took);
    }

    /// Carries out an order. Returns false if it could not be, and must be tried again.
    fn carry_out(&mut self, order: Order) -> Result<bool> {
        let began_ns = self.around.now_ns();
        let took = |around: &S| Duration::from_nanos(around.now_ns().saturating_sub(began_ns));
        let (result, order) = match order {
            Order::Append(number, batch) => {
                let result = self.files.append(&batch).map(|()| {
                    self.note_write(took(&self.around));
                    self.written = number;
                    self.position += batch.len() as u64;
                    self.progress.written.store(number, Ordering::Relaxed);
                    self.progress.queued_bytes.fetch_sub(batch.len() as u64, Ordering::Relaxed);
                    self.progress.bytes.store(self.files.bytes(), Ordering::Relaxed);
                    self.progress.total_bytes.store(self.files.total(), Ordering::Relaxed);
                });
                (result, Order::Append(number, batch))
            }
            Order::NextIncrement(head) => {
                if self.begin_sync() {
                    self.sync()?;
                }
                let begun = self.around.open().and_then(|folder| self.files.next_increment(folder, &head));
                self.note("aof-rename", took(&self.around));
                let result = retryable(begun)?.map(|()| {
                    self.progress.note(&self.files);
                    self.around.report(Report::Increment(self.files.manifest().clone()));
                });
                (result, Order::NextIncrement(head))
            }
            Order::Base(file, len) => {
                let result = self.files.set_base(file.clone(), len);
                self.note("aof-rename", took(&self.around));
                self.progress.total_bytes.store(self.files.total(), Ordering::Relaxed);
                (retryable(result)?.map(|()| self.around.report(Report::Based)), Order::Base(file, len))
            }
            Order::Show(show) => {
                show(self.files.manifest().clone());
                return Ok(true);
            }
            Order::Sync(_) | Order::Close => return Ok(true),
        };
        match result {
            Ok(()) => {
                if std::mem::take(&mut self.stuck) {
                    self.around.report(Report::Unstuck);
                }
                Ok(true)
            }
            Err(error) => {
                if !std::mem::replace(&mut self.stuck, true) {
                    self.around.report(Report::Stuck(error));
                }
                self.queue.push_front(order);
                Ok(false)
            }
        }
    }

    /// Begins to make what is written durable. Returns whether there is anything.
    fn begin_sync(&mut self) -> bool {
        self.synced_ns = self.around.now_ns();
        let begins = self.durable < self.written;
        self.progress.syncing.store(begins, Ordering::Relaxed);
        begins
    }

    /// Makes what is written durable. Belongs behind [`Step::Sync`].
    ///
    /// # Errors
    /// The disk's; the log has ended then.
    pub fn sync(&mut self) -> Result {
        let result = self.files.sync();
        self.progress.syncing.store(false, Ordering::Relaxed);
        result?;
        let took = Duration::from_nanos(self.around.now_ns().saturating_sub(self.synced_ns));
        self.progress.syncs.record(took);
        if self.syncs == Syncs::Always {
            self.note("aof-fsync-always", took);
        }
        self.durable = self.written;
        self.progress.durable.store(self.durable, Ordering::Relaxed);
        self.progress.durable_bytes.store(self.files.bytes(), Ordering::Relaxed);
        self.progress.durable_position.store(self.position, Ordering::Relaxed);
        self.around.report(Report::Settled(self.durable));
        Ok(())
    }
}

/// Separates errors that are tried again from those that end the log. A full disk refuses an exchange of files before anything
/// that counts has changed. After other errors it is unknown what is on the disk.
fn retryable(result: Result) -> Result<Result> {
    match result {
        Err(error) if error != DiskError::Full => Err(error),
        result => Ok(result),
    }
}

#[cfg(test)]
#[cfg(loom)]
mod models {
    use loom::sync::mpsc;
    use loom::thread;

    use super::*;
    use crate::persist::disk::simulated::SimulatedDisk;
    use crate::persist::resume::Last;

    struct Reports(mpsc::Sender<Report>);

    impl Surroundings<SimulatedDisk> for Reports {
        fn now_ns(&self) -> u64 {
            0
        }

        fn open(&self) -> Result<SimulatedDisk> {
            unreachable!("no increment ends")
        }

        fn report(&self, report: Report) {
            let _ = self.0.send(report);
        }
    }

    const BATCHES: [&[u8]; 2] = [b"first", b"2nd"];

    /// Writes and syncs all batches, as the log's thread does.
    fn write(progress: Arc<Progress>, reports: mpsc::Sender<Report>) {
        let mut manifest = Manifest::default();
        manifest.begin_anew(b"log");
        let head = Head { salt: 1, line: b"head".to_vec() };
        let files = Files::begin(SimulatedDisk::new(1), b"log", manifest, Last::Missing, 0, &head).unwrap();
        let mut writer = LogWriter::new(files, Syncs::Always, progress, Reports(reports));
        for (number, batch) in (1..).zip(BATCHES) {
            writer.order(Order::Append(number, batch.to_vec()));
            assert_eq!(writer.step().unwrap(), Step::Sync);
            writer.sync().unwrap();
        }
    }

    #[test]
    fn what_is_reported_as_durable_is_durable_for_whoever_reads_the_progress() {
        loom::model(|| {
            let progress = Arc::<Progress>::default();
            let (sender, reports) = mpsc::channel();
            let lens = BATCHES.map(|batch| batch.len() as u64);
            // As the driver does before it hands on batches.
            progress.queued_bytes.fetch_add(lens.iter().sum(), Ordering::Relaxed);
            let theirs = Arc::clone(&progress);
            let thread = thread::spawn(move || write(theirs, sender));
            let get = |number: &AtomicU64| number.load(Ordering::Relaxed);
            let mut position = 0;
            for (number, len) in (1..).zip(lens) {
                let queued = get(&progress.queued_bytes);
                assert!(queued <= lens.iter().sum(), "{queued} bytes wait");
                let Report::Settled(batch) = reports.recv().unwrap() else { panic!("another report") };
                position += len;
                assert_eq!(batch, number);
                assert!(get(&progress.written) >= batch && get(&progress.durable) >= batch);
                assert!(get(&progress.durable_position) >= position && get(&progress.durable_bytes) >= position);
                assert!(progress.syncs.read().count >= number);
            }
            thread.join().unwrap();
            assert_eq!((get(&progress.queued_bytes), progress.syncing.load(Ordering::Relaxed)), (0, false));
        });
    }
}
