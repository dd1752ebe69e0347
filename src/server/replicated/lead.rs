//! Applying what is committed, leading, and ceasing to lead.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::Engine;
use crate::engine::observe::turns::Task;
use crate::engine::persistence::Figures;
use crate::engine::session::SessionFlags;
use crate::persist::append::log::AppendLog;
use crate::quorum::node::{Applied, Committed, Status};
use crate::quorum::types::{LeaderId, SnapshotFile};
use crate::server::clock::monotonic_ns;
use crate::server::durable::Durable;
use crate::server::durable::gate::{BatchNumber, Executed};
use crate::server::durable::load::Purpose;
use crate::server::durable::load::pace::Pace;
use crate::server::durable::log_thread::{Progress, Report, Syncs};
use crate::server::replicated::follower::Follower;
use crate::server::replicated::leadership::{Closing, DiskStep, Leadership, Part, Wait, close_sessions};
use crate::server::replicated::{Replicated, TICK_MS, boot_clock, content};
use crate::server::shell::Shell;

/// How long a follower applies at a time.
const SLICE: Duration = Duration::from_micros(300);

impl Replicated {
    /// Proposes a batch, as it was taken from the log.
    pub fn propose(&mut self, number: BatchNumber, batch: Vec<u8>, now: Now) {
        let Part::Leads(leadership) = &mut self.part else { return };
        self.node.propose(leadership.propose(number, batch, now, monotonic_ns()), leadership.id);
    }
}

impl Shell {
    /// The batch that a reply waits for, which shows changes up to `batch`. See [`Leadership::wait_of`].
    pub(in crate::server) fn batch_of_read(&mut self, batch: BatchNumber, request: Executed<'_>) -> BatchNumber {
        let (Some(replicated), Some(durable)) = (&mut self.replicated, &mut self.durable) else { return batch };
        let Replicated { node, part: Part::Leads(leadership), .. } = &mut **replicated else { return batch };
        match leadership.wait_of(batch, &durable.gate, &request, monotonic_ns(), || node.lease()) {
            Wait::For(batch) => batch,
            Wait::ForMajority => {
                durable.confirms = true;
                durable.gate.pending()
            }
        }
    }

    /// Takes committed entries. A follower may apply them later.
    pub(super) fn take_entries(&mut self, entries: Vec<Committed>, done: oneshot::Sender<Applied>) {
        let Some(replicated) = &mut self.replicated else { return };
        if matches!(replicated.part, Part::Follows(_)) {
            replicated.backlog.push(entries, done);
            self.apply_some(Pace::lasting(SLICE));
        } else if let Some(applied) = self.take_committed(&entries) {
            let _ = done.send(applied);
        }
    }

    /// Goes on with what is to be applied. Returns whether that goes on at once.
    #[cold]
    pub(in crate::server) fn go_on_applying(&mut self) -> bool {
        let Some(replicated) = self.replicated.as_ref().filter(|replicated| !replicated.backlog.is_empty()) else { return false };
        if replicated.backlog.rest(Instant::now()).is_some() {
            return false;
        }
        self.close_turn();
        self.apply_some(Pace::lasting(SLICE));
        self.end_turn(Task::Control);
        self.replicated
            .as_ref()
            .is_some_and(|replicated| !replicated.backlog.is_empty() && replicated.backlog.rest(Instant::now()).is_none())
    }

    /// How long it rests before it goes on applying; `None` if there is nothing to apply.
    #[cold]
    pub(in crate::server) fn rest_from_applying(&self) -> Option<Duration> {
        let backlog = &self.replicated.as_ref()?.backlog;
        // The rest may have ended just now.
        (!backlog.is_empty()).then(|| backlog.rest(Instant::now()).unwrap_or_default())
    }

    /// Applies all that there is: the node is about to lead.
    pub(super) fn apply_all(&mut self) {
        if let Some(replicated) = &mut self.replicated {
            replicated.backlog.end_rest();
        }
        self.apply_some(Pace::unlimited());
    }

    fn apply_some(&mut self, slice: Pace) {
        let Some(replicated) = &mut self.replicated else { return };
        let Part::Follows(follower) = &mut replicated.part else { return };
        if let Err(reason) = replicated.backlog.apply_some(follower, Instant::now(), slice) {
            self.node_failed(&reason);
        }
    }

    /// Takes committed batches. Returns `None` if they could not be applied, and the server ends.
    pub(in crate::server) fn take_committed(&mut self, entries: &[Committed]) -> Option<Applied> {
        let taken = match self.replicated.as_mut()?.part.take(entries) {
            Ok(taken) => taken,
            Err(reason) => {
                self.node_failed(&reason);
                return None;
            }
        };
        if let Some(durable) = &self.durable {
            durable.progress.queued_bytes.fetch_sub(taken.bytes, Ordering::Relaxed);
            if let Some(since_ns) = taken.since_ns {
                let took_us = monotonic_ns().saturating_sub(since_ns) / 1000;
                durable.progress.syncs.note_last_us(took_us);
            }
        }
        if let Some(number) = taken.settled {
            self.note_settled(number, taken.position, taken.index);
        }
        if taken.foreign {
            self.depose("another node has led meanwhile");
        }
        Some(taken.applied)
    }

    /// A batch is settled: the leader's log up to `position`, and the nodes' log up to `index`.
    fn note_settled(&mut self, number: BatchNumber, position: u64, index: u64) {
        if let Some(durable) = &self.durable {
            durable.progress.written.store(number, Ordering::Relaxed);
            durable.progress.durable.store(number, Ordering::Relaxed);
            // Not the log's own position: changes since the batch was proposed are not settled.
            durable.progress.durable_position.store(position, Ordering::Relaxed);
        }
        self.engine.replication.settled_index = index;
        self.take_report(Report::Settled(number));
        if self.engine.awaits_followers() {
            self.look_at_followers();
        }
        if let Some(replicated) = &mut self.replicated {
            replicated.settle_messages(number);
        }
        self.go_on_handing_over();
    }

    /// Replaces the state of a follower.
    pub(in crate::server) fn install_state(&mut self, snapshot: Option<&SnapshotFile>) -> Result<(), String> {
        // It lives on the cluster's clock, which this process's own may be ahead of.
        let mut follower = Follower::new(self.engine.empty_like_this(Now::new(0, 0)));
        if let Some(snapshot) = snapshot {
            follower = content::load(follower, snapshot)?;
        }
        if matches!(self.replicated.as_ref().map(|replicated| &replicated.part), Some(Part::Leads(_))) {
            self.depose("another node's state is installed");
        }
        if let Some(replicated) = &mut self.replicated {
            replicated.backlog.clear();
            replicated.part = Part::Follows(Box::new(follower));
        }
        Ok(())
    }

    /// Takes note of a change of the cluster.
    pub(in crate::server) fn cluster_changed(&mut self, status: Status) {
        let Some(replicated) = &mut self.replicated else { return };
        let turn = replicated.part.turn(status.leads);
        if status.leader != replicated.status.leader {
            match status.leader {
                Some(leader) => tracing::info!(term = status.term, "node {leader} leads"),
                None => tracing::info!(term = status.term, "no node leads"),
            }
        }
        replicated.was_alone &= status.leader.is_none();
        replicated.status = status;
        if turn.ceases {
            self.depose("this node does not lead any more");
        }
        match turn.begins {
            Some(leadership) => self.lead(leadership),
            None => self.show_cluster(),
        }
        self.note_leader();
    }

    /// Begins to lead: everything that was committed before is applied.
    fn lead(&mut self, id: LeaderId) {
        self.apply_all();
        let Some(replicated) = &mut self.replicated else { return };
        let before_us = self.clock.now().mono_us();
        let clock = &mut self.clock;
        let finished = replicated.part.finish(Purpose::TakeOver, |time| {
            clock.set_us(time.us);
            clock.now()
        });
        let (engine, now) = match finished {
            Ok(finished) => finished,
            Err(reason) => return self.node_failed(&reason),
        };
        self.clock_was_set(before_us);
        self.engine.end_loading(*engine);
        let origin = self.engine.random();
        let seed = self.engine.random();
        let log = AppendLog::new(now, boot_clock(now), seed);
        log.begin_file(0);
        // Nothing is asked of a file.
        let (orders, _) = channel();
        let progress = Arc::<Progress>::default();
        let mut durable =
            Durable::new(log, progress, orders, (PathBuf::new(), Syncs::Always), seed, (Rc::default(), Rc::default()));
        durable.replicated = true;
        if let Some(replicated) = &self.replicated {
            durable.unwritten = Arc::clone(&replicated.node.progress().unwritten_bytes);
        }
        durable.begin();
        if let Some(replicated) = &self.replicated {
            // The syncs are those of the node's own log.
            let (figures, log) = (durable.figures(), Arc::clone(replicated.node.progress()));
            self.engine.persistence.figures = Some(Box::new(move || Figures { syncs: log.syncs.read(), ..figures() }));
        }
        self.durable = Some(Box::new(durable));
        if let Some(replicated) = &mut self.replicated {
            replicated.node.set_heartbeats(true);
            replicated.part = Part::Leads(Leadership::new(id, origin, monotonic_ns()));
            self.engine.replication.settled_index = replicated.node.status().applied;
            replicated.tick_ms = now.mono_ms();
        }
        self.record_changes();
        tracing::info!("this node leads");
        self.show_cluster();
        self.update_files();
    }

    /// Ends a leadership: what was not committed is dropped, and nobody is told anything of it.
    fn depose(&mut self, why: &str) {
        let Some(replicated) = &mut self.replicated else { return };
        if !matches!(replicated.part, Part::Leads(_)) {
            return;
        }
        replicated.part = Part::Empty;
        replicated.tick_ms = u64::MAX;
        replicated.messages.clear();
        // For the next leadership, which has begun for the nodes before it does here.
        replicated.node.set_heartbeats(true);
        tracing::info!(why, "this node ceases to lead");
        self.close_sessions(Closing::Deposed);
        self.durable = None;
        // What waited does so no more.
        self.refuse_writes();
        self.engine.persistence.figures = None;
        self.record_changes();
        self.show_cluster();
        let now = self.clock.now();
        let empty = self.engine.empty_like_this(now);
        self.engine.end_loading(*empty);
        // Libraries are part of the state: the next leadership begins without those that another leader has deleted.
        self.engine.scripts_mut().flush();
        self.update_files();
    }

    /// Closes connections: see [`close_sessions`].
    pub(super) fn close_sessions(&mut self, closing: Closing) {
        let now = self.clock.now();
        let is_unsettled =
            |engine: &Engine, id: SessionId| engine.sessions[id.0 as usize].flags.contains(SessionFlags::UNSETTLED);
        let closed = close_sessions(&mut self.engine, now, closing, is_unsettled);
        closed.into_iter().for_each(|id| self.wake(id));
    }

    /// Looks at the lease before anything is read that has come while the process did not run: another node may have led meanwhile.
    pub(in crate::server) fn look_after_wait(&mut self) {
        if self.replicated.as_ref().is_some_and(|replicated| replicated.leads()) {
            let now = self.clock.now();
            if self.files_due_ms <= now.mono_ms() {
                self.tick_files(now);
            }
        }
    }

    /// Looks at the lease, and has the time committed if nothing else was.
    pub(in crate::server) fn tick_cluster(&mut self, now: Now) {
        self.go_on_handing_over();
        let Some(replicated) = self.replicated.as_mut().filter(|replicated| now.reached(replicated.tick_ms)) else { return };
        replicated.tick_ms = now.deadline_in(TICK_MS);
        let Replicated { node, part: Part::Leads(leadership), was_alone, .. } = &mut **replicated else { return };
        let every = Duration::from_millis(TICK_MS);
        let stood_still = leadership.stood_still(monotonic_ns(), every, node.lease_max(), || node.lease());
        let step = leadership.look_at_disk(node.disk(), node.lease_max());
        let changed = leadership.look(monotonic_ns(), node.lease_max(), || node.lease());
        let (alone, out) = (leadership.alone(), leadership.out());
        if changed {
            node.set_alone(alone);
            *was_alone = alone;
            if alone {
                match out {
                    true => tracing::warn!("the disk does not answer: this node steps down, and serves nothing until it answers"),
                    false => tracing::warn!(
                        "a majority of the nodes is out of reach or stores nothing: nothing is served until it does"
                    ),
                }
                self.close_sessions(if out { Closing::Deposed } else { Closing::CutOff });
            }
        }
        if stood_still && !alone {
            self.close_sessions(Closing::CutOff);
        }
        if out {
            self.end_hand_over();
        } else if step == DiskStep::HandOver {
            self.hand_over_for_disk();
        }
        self.look_at_bound();
        if !out
            && let Some(durable) = &mut self.durable
            && self.engine.next_deadline().is_some()
            && !durable.gate.in_flight()
        {
            durable.confirms = true;
            self.submit(false);
        }
        self.show_cluster();
        self.await_followers();
    }

    /// The node cannot go on: the server ends.
    pub(in crate::server) fn node_failed(&mut self, reason: &str) {
        let text = format!("the node cannot go on: {reason}");
        tracing::error!("{text}");
        self.failed = Some(text);
        self.ending = true;
    }

    /// The clock has been set to the cluster's, which may be behind this server's own or far ahead of it. What is told by this clock
    /// and is not about keys moves with it, so that no connection seems idle for days, and nothing is due only in days. `before_us`:
    /// what the clock showed before, in microseconds.
    fn clock_was_set(&mut self, before_us: u64) {
        let now = self.clock.now();
        self.engine.move_marks(now, now.mono_us() as i64 - before_us as i64);
        self.forget_marks();
    }
}
