//! The work of the log's thread: writes what was ordered, syncs once for all of it, and calls the callbacks.
//!
//! ```text
//!   LogStore ── Order ─▶ queue ─▶ group ─▶ write ─▶ sync ─▶ callbacks of all that is in the group
//!                 │                ▲         │ full, or an error: the same group is tried again
//!                 │                └─────────┘    └── a sync failed: everything fails from now on
//!                 └─ Read ─▶ answered at once, also while the disk is full
//! ```
//!
//! While one sync runs, further orders gather, and the next sync serves all of them.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use openraft::storage::IOFlushed;
use tokio::sync::oneshot;

use crate::persist::disk::Disk;
use crate::quorum::store::header::Lineage;
use crate::quorum::store::lock::FolderLock;
use crate::quorum::store::memory::Memory;
use crate::quorum::store::progress::Progress;
use crate::quorum::store::segments::{Group, Planted, Segments, Trouble};
use crate::quorum::types::{Entry, LogId, Types, Vote};

/// Pause before a group that could not be written is tried again.
const AGAIN: Duration = Duration::from_millis(100);
/// Time without orders after which the thread tidies up: writes what is known to be committed, and lays out space.
const IDLE: Duration = Duration::from_millis(20);
/// Interval at which it does so if nothing was to be done when it looked last.
const LOOK: Duration = Duration::from_secs(1);
/// Bytes of a group after which no further order is added to it.
const GROUP_BYTES: usize = 4 << 20;

/// What the thread is asked for.
pub enum Order {
    /// Append entries. The number is the one of [`Memory::append`].
    Append(Vec<Entry>, u64, IOFlushed<Types>),
    /// Save a vote.
    Vote(Vote, oneshot::Sender<io::Result<()>>),
    /// The log belongs to this cluster from now on.
    Belong(Lineage, oneshot::Sender<io::Result<()>>),
    /// Remove all entries behind one.
    Truncate(Option<LogId>),
    /// Remove entries up to one.
    Purge(LogId),
    /// Read entries from one index up to another, exclusive, which are all written; at most so many bytes.
    Read(u64, u64, usize, oneshot::Sender<io::Result<Vec<Entry>>>),
    /// Write what is left, and end.
    Close,
}

/// What comes after a step of the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The disk does its part: [`Woken::Disk`].
    Disk,
    /// An order, or another step after this time.
    Wait(Duration),
    /// Nothing: the log is closed.
    End,
}

/// What the worker goes on by.
pub enum Woken {
    /// The disk may do its part.
    Disk,
    /// An order.
    Ordered(Order),
    /// Nothing was ordered for as long as it was to wait.
    Idle,
    /// Nobody can order anything any more, or is to.
    Gone,
}

/// Who waits for a sync.
enum Waiting {
    Append(IOFlushed<Types>),
    Vote(oneshot::Sender<io::Result<()>>),
}

impl Waiting {
    fn tell(self, result: io::Result<()>) {
        match self {
            Waiting::Append(flushed) => flushed.io_completed(result),
            // Who has asked may be gone.
            Waiting::Vote(sender) => drop(sender.send(result)),
        }
    }
}

/// Orders that are carried out together.
struct Together {
    group: Group,
    waiting: Vec<Waiting>,
    /// The last append in it.
    append: Option<u64>,
    entries: u64,
    /// Whether it has more than what is known to be committed.
    needs_sync: bool,
    purges: bool,
}

/// Locks the memory. A thread that panicked has left it whole: all changes are made at once.
pub fn lock(memory: &Mutex<Memory>) -> MutexGuard<'_, Memory> {
    memory.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state of the log's thread. It also runs without a thread, step by step: [`Worker::go_on`].
pub struct Worker<D: Disk> {
    segments: Segments<D>,
    memory: Arc<Mutex<Memory>>,
    progress: Arc<Progress>,
    orders: Receiver<Order>,
    queue: VecDeque<Order>,
    /// What is being written.
    current: Option<Together>,
    /// The last entry that was ordered.
    last: Option<LogId>,
    /// What the files say is committed.
    committed: Option<LogId>,
    stuck: bool,
    closing: bool,
    /// Why the log has failed.
    failed: Option<String>,
    planted: Planted,
    _lock: Option<FolderLock>,
}

impl<D: Disk> Worker<D> {
    pub(super) fn new(
        segments: Segments<D>,
        memory: Arc<Mutex<Memory>>,
        progress: Arc<Progress>,
        orders: Receiver<Order>,
        lock: Option<FolderLock>,
    ) -> Worker<D> {
        let planted = segments.layout.planted;
        let (last, committed) = (segments.state().last, segments.state().committed);
        let worker = Worker {
            segments,
            memory,
            progress,
            orders,
            queue: VecDeque::new(),
            current: None,
            last,
            committed,
            stuck: false,
            closing: false,
            failed: None,
            planted,
            _lock: lock,
        };
        worker.note_size();
        worker
    }

    /// Runs until it is closed, or until nobody can order anything any more.
    pub(super) fn run(mut self) {
        let mut step = self.first_step();
        loop {
            let woken = match step {
                Step::Disk => Woken::Disk,
                Step::Wait(wait) => match self.orders.recv_timeout(wait) {
                    Ok(order) => Woken::Ordered(order),
                    Err(RecvTimeoutError::Timeout) => Woken::Idle,
                    Err(RecvTimeoutError::Disconnected) => Woken::Gone,
                },
                Step::End => return,
            };
            step = self.go_on(woken);
        }
    }

    /// What comes first.
    pub fn first_step(&mut self) -> Step {
        self.next_step(true)
    }

    /// Goes on after a step.
    pub fn go_on(&mut self, woken: Woken) -> Step {
        let mut may_retry = true;
        match woken {
            Woken::Disk => may_retry = self.work(),
            Woken::Ordered(order) => self.take(order),
            Woken::Idle if !self.stuck => self.tidy(),
            Woken::Idle => {}
            Woken::Gone => self.closing = true,
        }
        self.next_step(may_retry)
    }

    /// Takes the next order, if there is one.
    #[cfg_attr(not(feature = "torture"), allow(dead_code, reason = "the log's thread waits for it"))]
    pub fn next_order(&self) -> Option<Order> {
        self.orders.try_recv().ok()
    }

    /// Takes what was ordered meanwhile, and tells what comes next. `may_retry`: what the disk has not taken may be tried again now.
    fn next_step(&mut self, may_retry: bool) -> Step {
        while let Ok(order) = self.orders.try_recv() {
            self.take(order);
        }
        if let Some(reason) = self.failed.clone() {
            self.refuse_all(&reason);
        } else if self.segments.owes() || self.current.is_some() || !self.queue.is_empty() {
            if may_retry {
                self.progress.begin_operation();
                return Step::Disk;
            }
        } else {
            self.progress.end_operation();
            self.unstick();
        }
        if self.closing {
            self.close();
            return Step::End;
        }
        Step::Wait(match self.stuck {
            true => AGAIN,
            false if self.segments.wants_space() => IDLE,
            false if self.new_committed().is_some() => IDLE,
            false => LOOK,
        })
    }

    /// The disk does its part of a step. Returns whether it has.
    fn work(&mut self) -> bool {
        match self.step() {
            Ok(()) => return true,
            Err(Trouble::Again(error)) => self.stick(&error.to_string()),
            Err(Trouble::Fatal(reason)) => self.fail(reason),
        }
        false
    }

    /// Carries out all that has been ordered, as far as the disk lets it: as the log's thread, if the disk took no time. Returns false
    /// when it was closed.
    #[cfg_attr(not(any(test, feature = "torture")), allow(dead_code, reason = "tests and simulations use it"))]
    pub fn turn(&mut self) -> bool {
        let mut step = self.next_step(true);
        while step == Step::Disk {
            step = self.go_on(Woken::Disk);
        }
        step != Step::End
    }

    /// Takes an order. Reads are answered at once.
    fn take(&mut self, order: Order) {
        match order {
            Order::Close => self.closing = true,
            Order::Read(from, to, bytes_max, reply) => {
                self.progress.disk_reads.fetch_add(1, Ordering::Relaxed);
                let begins = self.progress.begin_operation();
                let result = match &self.failed {
                    Some(reason) => Err(reason.clone()),
                    None => self.segments.read(from, to, bytes_max),
                };
                if begins {
                    self.progress.end_operation();
                }
                // Who has asked may be gone.
                let _ = reply.send(result.map_err(io::Error::other));
            }
            order => self.queue.push_back(order),
        }
    }

    /// Pays what is owed, or gathers, writes and syncs a group.
    fn step(&mut self) -> Result<(), Trouble> {
        if self.segments.owes() {
            self.segments.pay()?;
            self.progress.unready.store(false, Ordering::Relaxed);
            self.progress.end_operation();
            return Ok(());
        }
        if self.current.is_none() {
            if let Some(Order::Belong(lineage, _)) = self.queue.front() {
                return self.belong(*lineage);
            }
            if self.segments.is_full() {
                self.segments.begin_next()?;
            }
            self.gather().map_err(Trouble::Fatal)?;
        }
        self.write_current()
    }

    /// Begins a segment whose header names the cluster: that is the first order in the queue.
    fn belong(&mut self, lineage: Lineage) -> Result<(), Trouble> {
        self.segments.set_lineage(lineage);
        self.segments.begin_next()?;
        lock(&self.memory).lineage = lineage;
        if let Some(Order::Belong(_, reply)) = self.queue.pop_front() {
            // Who has asked may be gone.
            let _ = reply.send(Ok(()));
        }
        self.note_size();
        Ok(())
    }

    /// Writes and syncs what is gathered.
    fn write_current(&mut self) -> Result<(), Trouble> {
        let Some(current) = &mut self.current else { return Ok(()) };
        match self.segments.write(&current.group) {
            Err(Trouble::Again(_)) if self.planted == Planted::WriteErrorIgnored => {
                let waiting = self.current.take().map(|current| current.waiting).unwrap_or_default();
                waiting.into_iter().for_each(|waiting| waiting.tell(Ok(())));
                self.progress.end_operation();
                return Ok(());
            }
            written => written?,
        }
        if self.planted == Planted::AckBeforeSync {
            current.waiting.drain(..).for_each(|waiting| waiting.tell(Ok(())));
        }
        let unsynced_vote = self.planted == Planted::VoteNotSynced && current.entries == 0;
        let Some(current) = self.current.take() else { return Ok(()) };
        if let Some(append) = current.append {
            let mut memory = lock(&self.memory);
            memory.note_written(append);
            self.progress.note_memory(&memory);
        }
        if current.needs_sync && !unsynced_vote {
            let began = Instant::now();
            if let Err(trouble) = self.segments.sync() {
                self.current = Some(current);
                return Err(trouble);
            }
            self.progress.syncs.record(began.elapsed());
        }
        self.progress.entries.fetch_add(current.entries, Ordering::Relaxed);
        self.progress.bytes.fetch_add(current.group.len() as u64, Ordering::Relaxed);
        current.waiting.into_iter().for_each(|waiting| waiting.tell(Ok(())));
        if current.purges
            && let Err(error) = self.segments.remove_useless()
        {
            tracing::warn!("a segment that is not needed any more cannot be removed: {error}");
        }
        self.note_size();
        self.progress.end_operation();
        Ok(())
    }

    fn note_size(&self) {
        self.progress.note_segments(self.segments.spans());
    }

    /// Makes a group of what is in the queue.
    fn gather(&mut self) -> Result<(), String> {
        let current = self.current.insert(Together {
            group: self.segments.group(),
            waiting: Vec::new(),
            append: None,
            entries: 0,
            needs_sync: false,
            purges: false,
        });
        while current.group.len() < GROUP_BYTES {
            if matches!(self.queue.front(), Some(Order::Belong(..))) {
                break;
            }
            let Some(order) = self.queue.pop_front() else { break };
            current.needs_sync = true;
            match order {
                Order::Append(entries, append, flushed) => {
                    current.waiting.push(Waiting::Append(flushed));
                    current.append = Some(append);
                    current.entries += entries.len() as u64;
                    self.last = entries.last().map(|entry| entry.log_id).or(self.last);
                    entries.iter().try_for_each(|entry| current.group.entry(entry))?;
                }
                Order::Vote(vote, reply) => {
                    current.waiting.push(Waiting::Vote(reply));
                    current.group.vote(vote)?;
                }
                Order::Truncate(_) if self.planted == Planted::TruncationNotWritten => {}
                Order::Truncate(after) => {
                    self.last = after;
                    current.group.truncate(after)?;
                }
                Order::Purge(upto) => {
                    current.purges = true;
                    self.last = self.last.max(Some(upto));
                    current.group.purge(upto)?;
                }
                Order::Read(..) | Order::Belong(..) | Order::Close => {}
            }
        }
        let Some(committed) = self.new_committed() else { return Ok(()) };
        self.committed = Some(committed);
        self.current.as_mut().map_or(Ok(()), |current| current.group.committed(Some(committed)))
    }

    /// What is known to be committed and the files do not say so, if its entry is in them or in the group.
    fn new_committed(&self) -> Option<LogId> {
        let committed = lock(&self.memory).state.committed;
        committed.filter(|_| committed > self.committed && committed <= self.last)
    }

    /// Does what can wait: writes what is known to be committed, and lays out space. Tests and simulations call it instead of waiting.
    pub fn tidy(&mut self) {
        if self.failed.is_some() || self.current.is_some() || !self.queue.is_empty() || self.segments.owes() {
            return;
        }
        self.progress.begin_operation();
        self.tidy_now();
        if self.current.is_none() {
            self.progress.end_operation();
        }
    }

    fn tidy_now(&mut self) {
        if self.new_committed().is_some() {
            // It becomes a group like any other: if it is written in part, nothing else may take its place.
            let written = match self.gather() {
                Ok(()) => self.write_current(),
                Err(reason) => Err(Trouble::Fatal(reason)),
            };
            match written {
                Ok(()) => {}
                Err(Trouble::Again(error)) => return self.stick(&error.to_string()),
                Err(Trouble::Fatal(reason)) => return self.fail(reason),
            }
        }
        self.progress.begin_operation();
        if let Err(trouble) = self.segments.lay_out_ahead() {
            self.fail(trouble.to_string());
        }
    }

    fn stick(&mut self, reason: &str) {
        self.progress.note_refusal();
        if !std::mem::replace(&mut self.stuck, true) {
            tracing::warn!("the log of the quorum cannot be written, and is tried again: {reason}");
        }
    }

    fn unstick(&mut self) {
        if std::mem::take(&mut self.stuck) {
            tracing::info!("the log of the quorum can be written again");
            self.progress.stuck.store(false, Ordering::Relaxed);
        }
    }

    /// The log has failed: it is unknown what is durable. Nothing succeeds any more.
    fn fail(&mut self, reason: String) {
        tracing::error!("the log of the quorum has failed, and it is unknown what is durable; the node must stop: {reason}");
        self.progress.failed.store(true, Ordering::Relaxed);
        lock(&self.memory).failed = Some(reason.clone());
        self.refuse_all(&reason);
        self.failed = Some(reason);
    }

    fn refuse_all(&mut self, reason: &str) {
        let error = || Err(io::Error::other(reason.to_owned()));
        let waiting = self.current.take().map(|current| current.waiting).unwrap_or_default();
        waiting.into_iter().for_each(|waiting| waiting.tell(error()));
        for order in std::mem::take(&mut self.queue) {
            match order {
                Order::Append(_, _, flushed) => flushed.io_completed(error()),
                Order::Vote(_, reply) | Order::Belong(_, reply) => drop(reply.send(error())),
                _ => {}
            }
        }
    }

    /// Ends. What a full disk has not taken was not acknowledged.
    fn close(&mut self) {
        if self.failed.is_none() && !self.stuck {
            self.tidy();
            // After a clean end there is nothing in the last segment that the next start would have to copy.
            if self.segments.has_records()
                && let Err(trouble) = self.segments.begin_next()
            {
                tracing::warn!("the log of the quorum was not closed cleanly: {trouble}");
            }
        }
        let reason = "the log is closed";
        self.refuse_all(reason);
        lock(&self.memory).failed.get_or_insert_with(|| reason.to_owned());
        // Orders that came meanwhile.
        while let Ok(order) = self.orders.try_recv() {
            match order {
                Order::Read(.., reply) => drop(reply.send(Err(io::Error::other(reason)))),
                order => self.queue.push_back(order),
            }
        }
        self.refuse_all(reason);
    }
}
