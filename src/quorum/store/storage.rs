//! The log as openraft uses it: [`RaftLogStorage`] and [`RaftLogReader`].
//!
//! Whatever changes the log changes the memory and sends an order, both under one lock, so that the thread's orders have the order
//! of the changes.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use openraft::storage::{IOFlushed, LogState, RaftLogStorage};
use openraft::{AsyncRuntime, OptionalSend, RaftLogReader};
use tokio::sync::oneshot;

use crate::persist::disk::Disk;
use crate::quorum::runtime::{self, Runtime};
use crate::quorum::store::header::{Lineage, Owner, State};
use crate::quorum::store::lock::FolderLock;
use crate::quorum::store::memory::{Memory, weight};
use crate::quorum::store::open::{OpenError, open};
use crate::quorum::store::pace::{PIECE, Pace};
use crate::quorum::store::progress::Progress;
use crate::quorum::store::segments::{Layout, Planted};
use crate::quorum::store::worker::{Order, Worker, lock};
use crate::quorum::types::{Entry, LogId, Types, Vote};

/// About how many bytes of entries are read at a time, where it is not necessary to read all.
const READ_BYTES: usize = 1 << 20;

/// Longest step of a pause.
const PAUSE_STEP: Duration = Duration::from_millis(20);

/// How a log is kept.
#[derive(Debug)]
pub struct Options {
    /// Whose log it is.
    pub owner: Owner,
    /// Bytes of a segment after which the next one begins.
    pub segment_bytes: u64,
    /// Bytes of zeros that are laid out at a time for what is to be written; 0 for none.
    pub step_bytes: u64,
    /// Bytes of the last entries that are kept in memory. More are kept only while they cannot be written.
    pub cache_bytes: usize,
    /// The lock on the folder, which is kept until the log is closed.
    pub lock: Option<FolderLock>,
    /// A fault, in tests of the tests.
    pub planted: Planted,
}

impl Options {
    /// Segments and a cache of 64 MiB.
    pub fn new(owner: Owner, lock: Option<FolderLock>) -> Options {
        let planted = Planted::Nothing;
        Options { owner, segment_bytes: 64 << 20, step_bytes: 1 << 20, cache_bytes: 64 << 20, lock, planted }
    }
}

/// A node's log and vote. Copies are the same log.
#[derive(Clone)]
pub struct LogStore {
    pub(super) memory: Arc<Mutex<Memory>>,
    pub(super) orders: Sender<Order>,
    progress: Arc<Progress>,
    /// Whether the log was cut, and the disk was too full to mark the folder so.
    cut: bool,
    /// The pace of the follower that this copy is read for.
    pace: Pace,
}

/// The running thread of a log.
#[derive(Debug)]
pub struct LogThread {
    thread: JoinHandle<()>,
    orders: Sender<Order>,
}

impl LogThread {
    /// Writes what is left, closes the log and unlocks its folder. Waits for the disk, but not for a full disk. Everything that is
    /// asked of the log afterwards fails.
    ///
    /// # Errors
    /// If the thread has panicked.
    pub fn close(self) -> io::Result<()> {
        order_close(&self.orders);
        self.thread.join().map_err(|_| io::Error::other("the thread of the log has panicked"))
    }
}

fn order_close(orders: &Sender<Order>) {
    // The thread may have ended.
    let _ = orders.send(Order::Close);
}

impl<D: Disk + Send + 'static> Worker<D>
where
    D::File: Send,
{
    /// Starts the log's thread.
    ///
    /// # Errors
    /// The system's.
    pub fn spawn(self, store: &LogStore) -> io::Result<LogThread> {
        let thread = std::thread::Builder::new().name("quorum-log".to_owned()).spawn(move || self.run())?;
        Ok(LogThread { thread, orders: store.orders.clone() })
    }
}

impl LogStore {
    /// Opens the log in a folder, or begins one, and reads all of it. Returns its work, which does nothing before [`Worker::spawn`].
    ///
    /// # Errors
    /// The disk's, or why the files are refused.
    pub fn open<D: Disk>(disk: D, options: Options) -> Result<(LogStore, Worker<D>), OpenError> {
        let Options { owner, segment_bytes, step_bytes, cache_bytes, lock, planted } = options;
        let segments = open(disk, Layout { owner, segment_bytes, step_bytes, planted })?;
        // A log in which nothing is belongs to no cluster.
        let state = segments.state();
        let lineage = if is_blank(&state) { Lineage::default() } else { segments.lineage() };
        let memory = Memory::new(state, lineage, segments.first(), cache_bytes);
        let memory = Arc::new(Mutex::new(memory));
        let progress = Arc::<Progress>::default();
        progress.unready.store(segments.owes(), Ordering::Relaxed);
        let cut = segments.owed.as_ref().is_some_and(|owed| owed.mark);
        let (sender, orders) = channel();
        let worker = Worker::new(segments, Arc::clone(&memory), Arc::clone(&progress), orders, lock);
        Ok((LogStore { memory, orders: sender, progress, cut, pace: Pace::default() }, worker))
    }

    /// Whether the node may take part: what was found when the log was opened is durable.
    pub fn is_ready(&self) -> bool {
        !self.progress.unready.load(Ordering::Relaxed)
    }

    /// Whether the end of the log was cut when it was opened, and the folder has no mark that says so yet.
    pub(super) fn was_cut(&self) -> bool {
        self.cut
    }

    /// Has the log closed, as [`LogThread::close`] does.
    #[cfg_attr(not(feature = "torture"), allow(dead_code, reason = "simulations have no thread"))]
    pub fn order_close(&self) {
        order_close(&self.orders);
    }

    /// What the log's thread has done.
    pub fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Whether the node knows nothing: neither a vote nor an entry. If its cluster exists, it may have lost its disk.
    pub fn is_blank(&self) -> bool {
        is_blank(&lock(&self.memory).state)
    }

    /// Whether no leader has added anything: there is no entry but the one that begins a cluster.
    pub fn is_young(&self) -> bool {
        let state = lock(&self.memory).state;
        state.last.is_none_or(|last| last.index == 0) && state.purged.is_none()
    }

    /// The cluster that the log belongs to, as the disk has it.
    pub fn lineage(&self) -> Lineage {
        lock(&self.memory).lineage
    }

    /// From now on the log belongs to this cluster. Returns when that is durable.
    ///
    /// # Errors
    /// The log has failed or ended.
    pub async fn belong(&self, lineage: Lineage) -> io::Result<()> {
        let (sender, receiver) = oneshot::channel();
        self.order(|_| Ok(((), Order::Belong(lineage, sender))))?;
        receiver.await.map_err(|_| ended())?
    }

    /// Changes the memory and sends the order that goes with it.
    fn order<T>(&self, change: impl FnOnce(&mut Memory) -> io::Result<(T, Order)>) -> io::Result<T> {
        let mut memory = lock(&self.memory);
        memory.check()?;
        let (result, order) = change(&mut memory)?;
        self.orders.send(order).map_err(|_| ended())?;
        Ok(result)
    }

    /// Saves a vote. The receiver is told when it is durable.
    pub(super) fn order_vote(&self, vote: Vote) -> io::Result<oneshot::Receiver<io::Result<()>>> {
        let (sender, receiver) = oneshot::channel();
        self.order(|memory| {
            memory.state.vote = Some(vote);
            Ok((receiver, Order::Vote(vote, sender)))
        })
    }

    pub(super) fn order_append(&self, entries: Vec<Entry>, flushed: IOFlushed<Types>) -> io::Result<()> {
        self.order(|memory| {
            let append = memory.append(&entries)?;
            self.progress.note_memory(memory);
            Ok(((), Order::Append(entries, append, flushed)))
        })
    }

    pub(super) fn order_truncate(&self, after: Option<LogId>) -> io::Result<()> {
        self.order(|memory| {
            memory.truncate(after);
            Ok(((), Order::Truncate(after)))
        })
    }

    pub(super) fn order_purge(&self, upto: LogId) -> io::Result<()> {
        self.order(|memory| {
            memory.purge(upto);
            Ok(((), Order::Purge(upto)))
        })
    }

    /// Notes what is known to be committed. It is written with the next group, or when the log's thread is idle.
    pub(super) fn note_committed(&self, committed: Option<LogId>) -> io::Result<()> {
        let mut memory = lock(&self.memory);
        memory.check()?;
        memory.state.committed = committed;
        Ok(())
    }

    /// The entries that the log has in a range: all of them, or at most so many bytes, but at least one. What is not in memory comes
    /// through the receiver, and belongs before the entries.
    #[allow(clippy::type_complexity, reason = "it is taken apart at once")]
    pub(super) fn order_read(
        &self,
        from: u64,
        to: u64,
        limit: Option<usize>,
    ) -> io::Result<(Option<oneshot::Receiver<io::Result<Vec<Entry>>>>, Vec<Entry>)> {
        let memory = lock(&self.memory);
        memory.check()?;
        let found = memory.find(from, to, limit);
        if found.on_disk.is_empty() {
            return Ok((None, found.here));
        }
        let (sender, receiver) = oneshot::channel();
        let order = Order::Read(found.on_disk.start, found.on_disk.end, limit.unwrap_or(usize::MAX), sender);
        self.orders.send(order).map_err(|_| ended())?;
        Ok((Some(receiver), found.here))
    }

    /// Entries from an index on, about as many as are read at a time.
    ///
    /// # Errors
    /// The disk's.
    pub async fn next_entries(&self, from: u64, to: u64) -> io::Result<Vec<Entry>> {
        self.read(from, to, Some(READ_BYTES)).await
    }

    async fn read(&self, from: u64, to: u64, limit: Option<usize>) -> io::Result<Vec<Entry>> {
        let (receiver, here) = self.order_read(from, to, limit)?;
        let Some(receiver) = receiver else { return Ok(here) };
        let mut entries = receiver.await.map_err(|_| ended())??;
        entries.extend(here);
        Ok(entries)
    }
}

fn is_blank(state: &State) -> bool {
    state.vote.is_none() && state.last.is_none() && state.purged.is_none()
}

fn ended() -> io::Error {
    io::Error::other("the thread of the log has ended")
}

/// The first index of a range, and the one behind it.
fn bounds(range: &impl RangeBounds<u64>) -> (u64, u64) {
    let from = match range.start_bound() {
        Bound::Included(from) => *from,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let to = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(to) => *to,
        Bound::Unbounded => u64::MAX,
    };
    (from, to)
}

impl RaftLogReader<Types> for LogStore {
    async fn entries_stream<RB>(&mut self, range: RB) -> impl Stream<Item = io::Result<Entry>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        // All of the range at once could be more than there is memory.
        let (from, to) = bounds(&range);
        let pieces = stream::try_unfold((self.clone(), from), move |(store, from)| async move {
            let entries = store.read(from, to, Some(READ_BYTES)).await?;
            let Some(last) = entries.last() else { return Ok::<_, io::Error>(None) };
            let next = last.log_id.index + 1;
            Ok(Some((stream::iter(entries).map(Ok), (store, next))))
        });
        pieces.try_flatten()
    }

    async fn try_get_log_entries<RB>(&mut self, range: RB) -> io::Result<Vec<Entry>>
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (from, to) = bounds(&range);
        self.read(from, to, None).await
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        let memory = lock(&self.memory);
        memory.check().map(|()| memory.state.vote)
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<Entry>> {
        loop {
            let (behind, committed, last) = {
                let state = lock(&self.memory).state;
                let index = |id: Option<LogId>| id.map_or(0, |id| id.index);
                (self.progress.bytes_from(start, index(state.last)), index(state.committed), index(state.last))
            };
            let now = runtime::Instant::now();
            if !self.pace.is_far(now, behind) {
                return self.read(start, end, Some(READ_BYTES)).await;
            }
            let pause = self.pace.pause(now, committed, last);
            if let Some(pause) = pause.filter(|pause| !pause.is_zero()) {
                // In steps: clients may wait for this follower meanwhile.
                Runtime::sleep(pause.min(PAUSE_STEP)).await;
                continue;
            }
            let entries = self.read(start, end, Some(if pause.is_some() { PIECE } else { READ_BYTES })).await?;
            let bytes: usize = entries.iter().map(weight).sum();
            self.pace.sent(runtime::Instant::now(), bytes as u64, behind);
            return Ok(entries);
        }
    }
}

impl RaftLogStorage<Types> for LogStore {
    type LogReader = LogStore;

    async fn get_log_state(&mut self) -> io::Result<LogState<Types>> {
        let memory = lock(&self.memory);
        memory.check()?;
        Ok(LogState { last_purged_log_id: memory.state.purged, last_log_id: memory.state.last })
    }

    async fn get_log_reader(&mut self) -> LogStore {
        LogStore { pace: Pace::default(), ..self.clone() }
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        self.order_vote(*vote)?.await.map_err(|_| ended())?
    }

    /// Returns at once. It is written with what follows.
    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        self.note_committed(committed)
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        let memory = lock(&self.memory);
        memory.check().map(|()| memory.state.committed)
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        self.order_append(entries.into_iter().collect(), callback)
    }

    /// Returns at once. It is durable no later than anything that follows.
    async fn truncate_after(&mut self, last_log_id: Option<LogId>) -> io::Result<()> {
        self.order_truncate(last_log_id)
    }

    /// Returns at once. It is durable no later than anything that follows; segments are removed after that.
    async fn purge(&mut self, log_id: LogId) -> io::Result<()> {
        self.order_purge(log_id)
    }
}
