//! The thread of the log: appends batches to the file and makes them durable, so that the executor never waits for the disk.
//!
//! ```text
//!   executor ── Order::Append, … ─▶ queue ─▶ append all ─▶ sync (always) ─▶ Report::Settled ─▶ executor: opens gates
//!                                     ▲         │ full, or an error ─▶ Report::Stuck; tried again
//!                                     └─────────┘          └── sync failed ─▶ Report::Failed: the server ends
//! ```
//!
//! While one sync runs, further batches gather, and the next sync serves all of them.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use crate::driver::file::{Progress, Syncs};
use crate::driver::gate::BatchNumber;
use crate::persist::append::manifest::{File, Manifest};
use crate::persist::disk::{DiskError, Result};
use crate::server::durable::files::{Files, Head};
use crate::server::durable::folder::Folder;

/// Interval of syncs under `everysec`.
const EVERY: Duration = Duration::from_secs(1);
/// Pause before a batch that could not be written is tried again.
const AGAIN: Duration = Duration::from_millis(100);

/// What the executor asks of the thread.
pub enum Order {
    /// Append a batch.
    Append(BatchNumber, Vec<u8>),
    /// Sync as this says from now on.
    Sync(Syncs),
    /// Begin the next increment. The batches before it belong to the last one.
    NextIncrement(Head),
    /// A durable file of so many bytes has the contents of all files before the current increment: make it the base, and delete them.
    Base(File, u64),
    /// When all before this is written, send the names of the files, and leave the files alone until the other end is dropped.
    Hold(SyncSender<Manifest>, Receiver<()>),
    /// Write what is left, sync, and end.
    Close,
}

/// What the thread reports.
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

/// The thread's state.
pub struct LogThread<T: Fn(Report)> {
    files: Files,
    path: PathBuf,
    syncs: Syncs,
    orders: Receiver<Order>,
    report: T,
    progress: Arc<Progress>,
    /// Batches that are not written yet.
    queue: VecDeque<Order>,
    /// The last batch that is written.
    written: BatchNumber,
    /// Bytes of all batches that are written.
    position: u64,
    /// The last batch that is durable.
    durable: BatchNumber,
    /// When the last sync began.
    synced_at: Instant,
    /// Whether an order could not be carried out, and is tried again.
    stuck: bool,
    /// Whether to sync in this round whatever `syncs` says.
    sync_now: bool,
    /// Whether to end when the queue is empty.
    closing: bool,
}

impl<T: Fn(Report)> LogThread<T> {
    /// A thread for these files.
    pub fn new(files: Files, path: PathBuf, syncs: Syncs, orders: Receiver<Order>, progress: Arc<Progress>, report: T) -> Self {
        LogThread {
            files,
            path,
            syncs,
            orders,
            report,
            progress,
            queue: VecDeque::new(),
            written: 0,
            position: 0,
            durable: 0,
            synced_at: Instant::now(),
            stuck: false,
            sync_now: false,
            closing: false,
        }
    }

    /// Runs until it is closed, or until the log fails.
    pub fn run(mut self) {
        let ended = self.serve();
        (self.report)(ended.map_or_else(Report::Failed, |()| Report::Closed));
    }

    fn serve(&mut self) -> Result {
        loop {
            self.receive();
            while let Some(order) = self.queue.pop_front() {
                if !self.carry_out(order)? {
                    break;
                }
            }
            let due = match self.syncs {
                _ if std::mem::take(&mut self.sync_now) => true,
                Syncs::Always => true,
                Syncs::EverySecond => self.synced_at.elapsed() >= EVERY,
                Syncs::Never => false,
            };
            if due || self.closing {
                self.sync()?;
            }
            if self.closing && self.queue.is_empty() {
                return self.files.close();
            }
            if self.closing && self.stuck {
                // The server does not wait for a full disk to end. What is not written was not acknowledged under `always`.
                return Ok(());
            }
        }
    }

    /// Waits for an order if there is nothing to do, and takes all that have come.
    fn receive(&mut self) {
        let wait = match (self.stuck, self.syncs) {
            (true, _) => Some(AGAIN),
            (false, _) if !self.queue.is_empty() => Some(Duration::ZERO),
            (false, Syncs::EverySecond) if self.durable < self.written => Some(EVERY.saturating_sub(self.synced_at.elapsed())),
            _ => None,
        };
        let first = match wait {
            Some(wait) => self.orders.recv_timeout(wait),
            None => self.orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        let gone = matches!(first, Err(RecvTimeoutError::Disconnected));
        for order in first.into_iter().chain(self.orders.try_iter()) {
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
        // The executor is gone without a word: what it sent is still written.
        self.closing |= gone;
    }

    /// Reports a latency event, if it took long enough.
    fn note(&self, event: &'static str, took: Duration) {
        let threshold_ms = self.progress.latency_ms.load(Ordering::Relaxed);
        if threshold_ms > 0 && took.as_millis() >= u128::from(threshold_ms) {
            (self.report)(Report::Slow(event, took));
        }
    }

    /// Notes that a batch was written.
    fn note_write(&self, took: Duration) {
        // No write meets a sync that runs, as it may in Redis (`aof-write-pending-fsync`): this thread does one after the other.
        let beside = if self.progress.rewriting.load(Ordering::Relaxed) { "aof-write-active-child" } else { "aof-write-alone" };
        self.note(beside, took);
        self.note("aof-write", took);
    }

    /// Carries out an order. Returns false if it could not be, and must be tried again.
    fn carry_out(&mut self, order: Order) -> Result<bool> {
        let began = Instant::now();
        let result = match &order {
            Order::Append(number, batch) => self.files.append(batch).map(|()| {
                self.note_write(began.elapsed());
                self.written = *number;
                self.position += batch.len() as u64;
                self.progress.written.store(*number, Ordering::Relaxed);
                self.progress.queued_bytes.fetch_sub(batch.len() as u64, Ordering::Relaxed);
                self.progress.bytes.store(self.files.bytes(), Ordering::Relaxed);
                self.progress.total_bytes.store(self.files.total(), Ordering::Relaxed);
            }),
            Order::NextIncrement(head) => {
                self.sync()?;
                let begun = Folder::open(&self.path).and_then(|folder| self.files.next_increment(folder, head));
                self.note("aof-rename", began.elapsed());
                retryable(begun)?.map(|()| {
                    self.progress.bytes.store(self.files.bytes(), Ordering::Relaxed);
                    self.progress.durable_bytes.store(self.files.bytes(), Ordering::Relaxed);
                    (self.report)(Report::Increment(self.files.manifest().clone()));
                })
            }
            Order::Base(file, len) => {
                let result = self.files.set_base(file.clone(), *len);
                self.note("aof-rename", began.elapsed());
                self.progress.total_bytes.store(self.files.total(), Ordering::Relaxed);
                retryable(result)?.map(|()| (self.report)(Report::Based))
            }
            Order::Hold(held, until) => {
                // Nobody waits any more if a full disk has delayed the order.
                if held.try_send(self.files.manifest().clone()).is_ok() {
                    let _ = until.recv();
                }
                Ok(())
            }
            Order::Sync(_) | Order::Close => Ok(()),
        };
        match result {
            Ok(()) => {
                if std::mem::take(&mut self.stuck) {
                    (self.report)(Report::Unstuck);
                }
                Ok(true)
            }
            Err(error) => {
                if !std::mem::replace(&mut self.stuck, true) {
                    (self.report)(Report::Stuck(error));
                }
                self.queue.push_front(order);
                Ok(false)
            }
        }
    }

    fn sync(&mut self) -> Result {
        self.synced_at = Instant::now();
        if self.durable == self.written {
            return Ok(());
        }
        self.progress.syncing.store(true, Ordering::Relaxed);
        let result = self.files.sync();
        self.progress.syncing.store(false, Ordering::Relaxed);
        result?;
        let took = self.synced_at.elapsed();
        self.progress.syncs.record(took);
        if self.syncs == Syncs::Always {
            self.note("aof-fsync-always", took);
        }
        self.durable = self.written;
        self.progress.durable.store(self.durable, Ordering::Relaxed);
        self.progress.durable_bytes.store(self.files.bytes(), Ordering::Relaxed);
        self.progress.durable_position.store(self.position, Ordering::Relaxed);
        (self.report)(Report::Settled(self.durable));
        Ok(())
    }
}

/// Separates errors that are tried again from those that end the log. A full disk refuses an exchange of files before anything that
/// counts has changed. After other errors it is unknown what is on the disk.
fn retryable(result: Result) -> Result<Result> {
    match result {
        Err(error) if error != DiskError::Full => Err(error),
        result => Ok(result),
    }
}
