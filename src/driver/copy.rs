//! The driver's part of a copy of the keyspace, for a snapshot or for the first base of a file: it visits the keys, some at a
//! time, and another engine receives them ([`received`]).

pub mod received;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use crate::driver::backpressure::Limits;
use crate::driver::file::FileLog;
use crate::driver::{Driver, Present};
use crate::persist::live_copy::{LiveCopy, Part};
use crate::persist::natives::clock::{BootClock, Moment};

/// What the receiver of a copy shares with the driver.
#[derive(Debug, Default)]
pub struct CopyProgress {
    /// [`Limits::backlog`].
    backlog_max: u64,
    /// Bytes on the way, and how many of them are changes.
    backlog: AtomicU64,
    changes: AtomicU64,
    /// Whether the driver waits for the receiver to catch up.
    waits: AtomicBool,
    /// Whether the copy was given up.
    abandoned: AtomicBool,
}

impl CopyProgress {
    /// Whether the copy was given up: nothing is to be made of it.
    pub fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    pub(super) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }

    fn sent(&self, part: &Part) {
        let len = part.bytes().len() as u64;
        self.backlog.fetch_add(len, Ordering::Relaxed);
        if matches!(part, Part::Changes(_)) {
            self.changes.fetch_add(len, Ordering::Relaxed);
        }
    }

    /// Whether so much is on the way that the driver has to wait for the receiver, which calls it then.
    fn must_wait(&self) -> bool {
        if self.backlog.load(Ordering::Relaxed) <= self.backlog_max {
            return false;
        }
        self.waits.store(true, Ordering::Relaxed);
        // One of the two sees what the other has written: the receiver that it is waited for, or the driver that there is less by now.
        fence(Ordering::SeqCst);
        self.backlog.load(Ordering::Relaxed) > self.backlog_max
    }

    /// Takes note of a part that was received. Returns whether the driver waits for that, and is to be called.
    pub fn received(&self, part: &Part) -> bool {
        let len = part.bytes().len() as u64;
        if matches!(part, Part::Changes(_)) {
            self.changes.fetch_sub(len, Ordering::Relaxed);
        }
        let left = self.backlog.fetch_sub(len, Ordering::Relaxed) - len;
        // As in `must_wait`.
        fence(Ordering::SeqCst);
        left < self.backlog_max / 2 && self.waits.swap(false, Ordering::Relaxed)
    }
}

/// What a copy is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// The snapshot of this number: the adapter writes it, and says so ([`Driver::snapshot_made`]).
    Snapshot(u64),
    /// The first base of the file that was opened ([`Driver::file_opened`]): the adapter writes it and begins the file, and says
    /// so ([`Driver::file_begun`]).
    FirstBase,
}

/// What the adapter is to do for a copy.
#[derive(Debug)]
pub enum CopyOrder {
    /// Begin to receive one, whose keys are of this moment. If that cannot be, say so ([`Driver::copy_failed`]).
    Begin(Use, Moment, Arc<CopyProgress>),
    /// Receive a part, which was written at this moment.
    Part(Part, Moment),
    /// The copy is whole: it has the keys of this moment.
    End(Moment),
    /// Forget the copy. Nothing is made of it.
    Abandon,
}

/// What becomes of a copy in the turn that ends it: it has the keys of that moment.
pub(super) enum Purpose {
    /// The count of changes is noted.
    Snapshot(u64),
    /// This log records from then on.
    File(Box<FileLog>),
}

/// A copy that is wanted or in progress.
pub(super) struct Copying {
    pub(super) purpose: Purpose,
    pub(super) progress: Arc<CopyProgress>,
    /// The copy, once it has begun.
    pub(super) copy: Option<LiveCopy>,
}

impl Copying {
    pub(super) fn new(purpose: Purpose, limits: Limits) -> Copying {
        let progress = CopyProgress { backlog_max: limits.backlog, ..CopyProgress::default() };
        Copying { purpose, progress: Arc::new(progress), copy: None }
    }

    pub(super) fn is_for_snapshot(&self) -> bool {
        matches!(self.purpose, Purpose::Snapshot(_))
    }

    pub(super) fn is_for_file(&self) -> bool {
        matches!(self.purpose, Purpose::File(_))
    }
}

impl Driver {
    /// Whether a copy is wanted or in progress.
    #[inline]
    pub fn copies(&self) -> bool {
        self.copying.is_some()
    }

    /// Copies some keys. Returns whether to call this again soon.
    #[cold]
    pub fn copy_some(&mut self, at: Present, boot: BootClock) -> bool {
        let moment = Moment { boot, now: at.now };
        let Some(Copying { purpose, progress, copy: Some(copy) }) = &self.copying else { return self.begin_copy(moment) };
        if progress.changes.load(Ordering::Relaxed) + copy.pending_bytes() as u64 > self.limits.changes {
            self.copy_failed(at, "changes come faster than they can be copied");
            // Another one may be wanted.
            return self.copies();
        }
        if progress.must_wait() {
            return false;
        }
        let more = copy.step(self.engine.keyspace(), moment, self.limits.copied).unwrap_or(false);
        let whole = !more && !self.engine.keyspace().changes.in_unit();
        let mut parts = copy.take();
        if whole {
            parts.append(&mut copy.finish(self.engine.keyspace()));
        }
        if let Purpose::Snapshot(_) = purpose {
            self.engine.persistence_mut().snapshot.keys[0] = copy.keys();
        }
        for part in parts {
            progress.sent(&part);
            self.demands.copy.push(CopyOrder::Part(part, moment));
        }
        if whole {
            self.end_copy(moment);
        }
        !whole
    }

    /// Begins the copy that is wanted. Returns whether there is one.
    fn begin_copy(&mut self, moment: Moment) -> bool {
        let begun = self.copying.as_mut().map(|copying| {
            copying.copy = Some(LiveCopy::begin(self.engine.keyspace(), moment, self.engine.library_sources()));
            let of = match copying.purpose {
                Purpose::Snapshot(number) => Use::Snapshot(number),
                Purpose::File(_) => Use::FirstBase,
            };
            CopyOrder::Begin(of, moment, Arc::clone(&copying.progress))
        });
        self.demands.copy.extend(begun);
        self.record_changes();
        self.copies()
    }

    /// The copy in progress is whole: it has the keys of this moment.
    fn end_copy(&mut self, moment: Moment) {
        self.demands.copy.push(CopyOrder::End(moment));
        match self.copying.take().map(|copying| copying.purpose) {
            Some(Purpose::File(file)) => self.set_file(file),
            _ => self.engine.persistence_mut().snapshot.copied_changes = self.engine.keyspace().changes.count,
        }
        self.record_changes();
    }

    /// The copy in progress cannot be received, for this reason.
    pub fn copy_failed(&mut self, at: Present, reason: &str) {
        let Some(copying) = self.take_copy(|_| true) else { return };
        match copying.purpose {
            Purpose::Snapshot(number) => self.snapshot_made(at, number, Err(reason.to_owned())),
            Purpose::File(_) => self.file_not_begun(at, reason),
        }
    }

    /// Gives up a copy that is wanted or in progress, if there is one of this kind.
    pub(super) fn take_copy(&mut self, of_kind: impl Fn(&Copying) -> bool) -> Option<Copying> {
        let copying = self.copying.take_if(|copying| of_kind(copying))?;
        copying.progress.abandon();
        self.demands.copy.push(CopyOrder::Abandon);
        self.record_changes();
        Some(copying)
    }
}

#[cfg(loom)]
mod models {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicBool;
    use loom::thread;

    use super::*;

    #[test]
    fn a_driver_that_waits_is_called() {
        loom::model(|| {
            let part = || Part::Items(vec![0; 10]);
            let shared = Arc::new((CopyProgress { backlog_max: 9, ..CopyProgress::default() }, AtomicBool::new(false)));
            shared.0.sent(&part());
            let receiver = Arc::clone(&shared);
            let receives = thread::spawn(move || {
                if receiver.0.received(&part()) {
                    receiver.1.store(true, Ordering::Relaxed);
                }
            });
            let waits = shared.0.must_wait();
            receives.join().unwrap();
            assert!(!waits || shared.1.load(Ordering::Relaxed), "the driver waits, and nobody calls it");
        });
    }
}
