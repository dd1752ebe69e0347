//! What records changes, and what waits until they are settled: the same with a file and with nodes.

use std::time::Duration;

use crate::base::error::Error;
use crate::base::ids::SessionId;
use crate::driver::backpressure::Bound;
use crate::driver::flaw::Flaw;
use crate::driver::gate::{BatchNumber, CommitGate, Executed};
use crate::driver::group_commit::GroupCommit;
use crate::driver::{Destination, Driver, Present};
use crate::engine::command::Command;
use crate::engine::outbox::Outbox;
use crate::engine::session::SessionFlags;
use crate::persist::append::log::AppendLog;
use crate::persist::append::log_writer::Order;
use crate::persist::natives::clock::BootClock;

/// Pending bytes from which on a batch is handed on without waiting for anything.
const BATCH_MIN: usize = 256 << 10;
/// Milliseconds for which changes gather where nothing waits for them, because each batch wakes the log's thread.
const BATCH_EVERY_MS: u64 = 10;

/// What records changes, and what waits for them.
pub struct Log {
    /// Where the engine records its changes.
    pub records: AppendLog,
    /// Which output waits for which batch.
    pub gate: CommitGate,
    /// The seed of the hashes of keys.
    seed: u64,
    /// The last batch that the running batch of requests has seen or made.
    pub(super) seen: BatchNumber,
    /// Whether too many bytes wait to be stored.
    pub(super) bound: Bound,
    /// What the next batch waits for.
    group_commit: GroupCommit,
    /// Whether the last look at the pending changes left them to wait for others. Nothing else comes back to them then.
    waits_for_more: bool,
    /// When the pending changes are handed on at the latest, in monotonic milliseconds.
    due_ms: Option<u64>,
}

impl Log {
    /// A log at its beginning. `seed` is that of the hashes in `records`.
    pub fn new(records: AppendLog, seed: u64) -> Log {
        Log {
            records,
            gate: CommitGate::default(),
            seed,
            seen: 0,
            bound: Bound::default(),
            group_commit: GroupCommit::default(),
            waits_for_more: false,
            due_ms: None,
        }
    }

    /// When the pending changes must be handed on, in monotonic milliseconds; `u64::MAX` if they wait for something else.
    #[inline]
    pub fn due_ms(&self) -> u64 {
        self.due_ms.unwrap_or(u64::MAX)
    }

    /// Whether the pending changes, or an empty batch if `confirms`, are handed on now. Otherwise [`Log::due_ms`] or
    /// [`Driver::rest`] says when to ask again, or the report of the batch that is on its way comes first. `holds`
    /// says whether output waits for batches.
    fn is_due(&mut self, at: Present, holds: bool, confirms: bool, at_once: bool) -> bool {
        self.waits_for_more = false;
        let pending = self.records.pending_bytes();
        if pending == 0 && !confirms {
            self.due_ms = None;
            return false;
        }
        if at_once || pending >= BATCH_MIN {
            // Nothing is waited for.
        } else if holds {
            self.due_ms = None;
            // While one batch is on its way the next is filled.
            if self.gate.is_on_its_way() {
                return false;
            }
            self.waits_for_more = self.group_commit.waits(self.gate.held().get(), at.ns);
            if self.waits_for_more {
                return false;
            }
        } else if !at.frozen {
            // A moment that does not come is not waited for.
            let due_ms = *self.due_ms.get_or_insert_with(|| at.now.deadline_in(BATCH_EVERY_MS));
            if !at.now.reached(due_ms) {
                return false;
            }
        }
        self.due_ms = None;
        true
    }

    /// The batch that the reply to a request shows. See [`CommitGate::batch_of_reply`].
    pub(super) fn batch_of_reply(&mut self, request: Executed<'_>) -> BatchNumber {
        self.gate.batch_of_reply(&self.records, self.seed, request)
    }

    /// Takes note of a batch that was settled after so many microseconds.
    fn tune_group_commit(&mut self, at: Present, took_us: u64) {
        if !at.frozen {
            self.group_commit = GroupCommit::after(self.gate.held().get(), took_us, at.ns);
        }
    }
}

impl Driver {
    /// Whether output waits until what it shows is settled.
    #[inline]
    pub fn holds_output(&self) -> bool {
        match &self.destination {
            Destination::Nowhere => false,
            Destination::File(file) => file.holds_output(),
            #[cfg(feature = "quorum")]
            Destination::Quorum(member) => member.leads(),
        }
    }

    /// Holds back the reply to a request until what it shows is settled. `start` is the position of the reply in the session's
    /// outbox, which the caller has taken, `db` the session's database before the request, and `ns` the monotonic clock at its
    /// beginning.
    #[cold]
    pub fn hold_reply(&mut self, ns: u64, outbox: &Outbox, row: Option<&'static Command>, args: &[&[u8]], db: u32, start: usize) {
        let id = outbox.session;
        // Between MULTI and EXEC a reply says that a request is queued, or why it is not.
        let queued = self.engine.sessions()[id].flags.contains(SessionFlags::MULTI);
        let reply = outbox.bytes.get(start..).unwrap_or_default();
        let request = Executed { commands: self.engine.commands(), row, args, db, queued, reply };
        let batch = self.batch_of_reply(ns, request);
        let session = &self.engine.sessions()[id];
        let at = session.net_out + (start - session.sent.min(start)) as u64;
        self.log_mut().into_iter().for_each(|log| log.seen = log.seen.max(batch));
        self.hold(id, at, batch);
    }

    /// The batch that the reply to a request waits for; 0 for none.
    #[cfg_attr(not(feature = "quorum"), allow(unused_variables, reason = "only a leader looks at the clock"))]
    fn batch_of_reply(&mut self, ns: u64, request: Executed<'_>) -> BatchNumber {
        #[cfg(feature = "quorum")]
        let trusts_itself = self.has_flaw(Flaw::ReadsWithoutLease);
        match &mut self.destination {
            Destination::Nowhere => 0,
            Destination::File(file) => file.log.batch_of_reply(request),
            #[cfg(feature = "quorum")]
            Destination::Quorum(member) => member.batch_of_reply(request, ns, trusts_itself),
        }
    }

    /// Holds back what a batch of requests, or the passing of time, wrote to these sessions, other than the requester's.
    #[cold]
    pub fn hold_others(&mut self, requester: Option<SessionId>, written: &[SessionId]) {
        for id in std::mem::take(&mut self.engine.persistence_mut().answered) {
            self.wake(id);
        }
        let holds = self.holds_output();
        let batch = match self.log_mut() {
            Some(log) if holds => {
                let seen = std::mem::take(&mut log.seen);
                let batch = log.gate.batch_of_others(&log.records, requester.map(|_| seen));
                if batch > log.gate.settled() { batch } else { 0 }
            }
            _ => 0,
        };
        #[cfg(feature = "quorum")]
        self.relay_messages(batch);
        if batch == 0 {
            return;
        }
        for &id in written.iter().filter(|&&id| Some(id) != requester) {
            // It may have been closed a moment ago.
            let end = self.engine.sessions().get(id).map(|session| session.net_out);
            end.into_iter().for_each(|end| self.hold(id, end, batch));
        }
    }

    /// Holds back a session's output from a position on, until a batch is settled.
    fn hold(&mut self, id: SessionId, at: u64, batch: BatchNumber) {
        let gated = self.log_mut().is_some_and(|log| log.gate.hold(id, at, batch));
        self.engine.sessions_mut()[id].flags.set(SessionFlags::UNSETTLED, gated);
    }

    /// The position up to which a session's output may be written, in bytes of its whole output.
    #[inline]
    pub fn output_end(&self, id: SessionId) -> u64 {
        self.log().map_or(u64::MAX, |log| log.gate.end(id))
    }

    /// Forgets a session that has ended.
    #[inline]
    pub fn forget(&mut self, id: SessionId) {
        if let Some(log) = self.log_mut() {
            log.gate.forget(id);
        }
    }

    /// Hands the pending changes on, if it is time for that or `at_once`: to the nodes, or to the writer of the file. `boot`
    /// reads the boot clock.
    #[cold]
    pub fn submit(&mut self, at: Present, at_once: bool, boot: impl FnOnce() -> BootClock) {
        self.hand_on_pending(at, at_once || self.rewrite_asked || self.switch_off_asked, boot);
        if std::mem::take(&mut self.rewrite_asked) {
            self.begin_rewriting(at.now);
        }
        if std::mem::take(&mut self.switch_off_asked) {
            self.switch_off(at);
        }
    }

    fn hand_on_pending(&mut self, at: Present, at_once: bool, boot: impl FnOnce() -> BootClock) {
        self.look_at_bound();
        let holds = self.holds_output();
        let number = match &mut self.destination {
            Destination::Nowhere => return,
            Destination::File(file) => {
                if !file.log.is_due(at, holds, false, at_once) {
                    return;
                }
                if holds {
                    file.log.gate.note_changes(&file.log.records);
                }
                file.log.records.set_boot_clock(at.now, boot());
                let bytes = file.log.records.take_batch(file.synced_bytes()).map(|batch| batch.bytes).unwrap_or_default();
                let number = file.log.gate.note_taken();
                file.note_queued(bytes.len() as u64, at.now);
                if !holds {
                    // A crash may lose it; nothing waits.
                    file.log.gate.settle(number);
                }
                self.demands.file.push(Order::Append(number, bytes));
                if let Some(grown) = self.rewrite_due(at.now) {
                    tracing::info!("Starting automatic rewriting of AOF on {grown}% growth");
                    self.rewrite_asked = true;
                }
                number
            }
            #[cfg(feature = "quorum")]
            Destination::Quorum(member) => {
                let Some((node, leading)) = member.as_leader() else { return };
                if leading.leadership.stepped_down() {
                    // Nothing is proposed, and nothing comes back to what waits for others.
                    leading.log.waits_for_more = false;
                    return;
                }
                if !leading.log.is_due(at, holds, leading.confirms, at_once) {
                    return;
                }
                leading.propose(node, at)
            }
        };
        if holds && self.has_flaw(Flaw::AcknowledgeEarly) {
            let opened = self.log_mut().map(|log| log.gate.settle(number)).unwrap_or_default();
            self.open(opened);
        }
    }

    /// How long to wait at most for more changes before [`Driver::submit`] hands the pending ones on, or before a follower goes on
    /// applying; `None` if neither waits. Zero says that one of them goes on now.
    #[cold]
    pub fn rest(&self, ns: u64) -> Option<Duration> {
        #[cfg(feature = "quorum")]
        if let Some(rest) = self.rest_from_applying(ns) {
            return Some(rest);
        }
        let log = self.log()?;
        log.waits_for_more.then(|| log.group_commit.rest(ns))
    }

    /// All batches up to this one are settled, the last of them after so many microseconds.
    pub(super) fn settle(&mut self, at: Present, number: BatchNumber, took_us: u64) {
        let ahead = self.has_flaw(Flaw::SettlesAhead);
        let opened = self.log_mut().map(|log| {
            log.tune_group_commit(at, took_us);
            log.gate.settle(if ahead { log.gate.pending() } else { number })
        });
        self.open(opened.unwrap_or_default());
        self.engine.end_log_waits(at.now);
        self.look_at_bound();
    }

    /// Lets output go that was held back.
    pub(super) fn open(&mut self, opened: Vec<(SessionId, bool)>) {
        for (id, last) in opened {
            let session = self.engine.sessions_mut().get_mut(id).filter(|_| last);
            session.into_iter().for_each(|session| session.flags.remove(SessionFlags::UNSETTLED));
            // Not by way of the engine's list of sessions to flush: what is on that list may show changes that are not settled.
            self.wake(id);
        }
    }

    /// Number of bytes that wait to be stored.
    pub fn waiting(&self) -> u64 {
        match &self.destination {
            Destination::Nowhere => 0,
            Destination::File(file) => file.waiting(),
            #[cfg(feature = "quorum")]
            Destination::Quorum(member) => member.leading().map_or(0, |leading| leading.waiting()),
        }
    }

    /// Looks whether too much waits to be stored.
    pub(super) fn look_at_bound(&mut self) {
        let waiting = self.waiting();
        let most = if self.has_flaw(Flaw::Unbounded) { u64::MAX } else { self.limits.waiting };
        let Some(log) = self.log_mut() else { return };
        if log.bound.look(waiting, most) {
            let over = log.bound.is_over();
            let who = if matches!(self.destination, Destination::File(_)) { "the disk" } else { "a majority of the nodes" };
            if over {
                tracing::warn!(waiting, "{who} is too slow: writes are refused until half of what waits may be is left");
            } else {
                tracing::info!(waiting, "{who} has caught up: writes are accepted again");
            }
            self.refuse_writes();
        }
    }

    /// Lets the engine refuse writes, or accept them again, as the log and the last snapshot say.
    pub(super) fn refuse_writes(&mut self) {
        let over = self.log().is_some_and(|log| log.bound.is_over());
        let stuck = self.file().and_then(|file| file.stuck.as_ref());
        let text = match stuck {
            Some(error) => Some(Error::new(format!("MISCONF Errors writing to the AOF file: {error}"))),
            None if over && self.file().is_some() => {
                Some(Error::new("MISCONF Errors writing to the AOF file: the disk is too slow"))
            }
            None if over => Some(Error::new("MISCONF Too many changes wait for a majority of the nodes: it is too slow")),
            None => None,
        };
        let (config, snapshot) = (self.engine.config(), &self.engine.persistence().snapshot);
        let unsaved = snapshot.failed && config.stop_writes_on_bgsave_error && !config.save.is_empty();
        self.engine.refuse_writes(text.or_else(|| unsaved.then_some(Error::MISCONF_SNAPSHOTS)));
    }
}
