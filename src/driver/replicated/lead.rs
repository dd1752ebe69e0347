//! Applying what is committed, leading, and ceasing to lead.

use std::time::Duration;

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::driver::flaw::Flaw;
use crate::driver::log::Log;
use crate::driver::pace::Pace;
use crate::driver::replay::Purpose;
use crate::driver::replicated::Member;
use crate::driver::replicated::clock::cluster_clock;
use crate::driver::replicated::follower::Follower;
use crate::driver::replicated::leadership::{Closing, DiskStep, Leadership, NodeState, RoleChange, close_sessions};
use crate::driver::replicated::leading::{Leading, Settled};
use crate::driver::{Driver, Present};
use crate::engine::Engine;
use crate::engine::persistence::Figures;
use crate::engine::session::SessionFlags;
use crate::persist::append::log::AppendLog;
use crate::quorum::node::{Applied, Committed, Done, Status};
use crate::quorum::types::LeaderId;

impl Member {
    /// Takes note of a change of the cluster. Returns what it asks of this node.
    fn note_status(&mut self, status: Status) -> RoleChange {
        if status.leader != self.status.leader {
            match status.leader {
                Some(leader) => tracing::info!(term = status.term, "node {leader} leads"),
                None => tracing::info!(term = status.term, "no node leads"),
            }
        }
        self.was_alone &= status.leader.is_none();
        let change = self.state.change_to(status.leads);
        self.status = status;
        change
    }

    /// Begins to lead. Returns the last index that is applied, and what reads the figures of INFO.
    fn begin_to_lead(&mut self, now: Now, log: Log, leadership: Leadership) -> (u64, Box<dyn Fn() -> Figures>) {
        let progress = self.node.progress();
        let leading = Leading::new(log, leadership, progress);
        let figures = leading.figures(progress);
        self.node.set_heartbeats(true);
        self.tick_ms = now.mono_ms();
        self.state = NodeState::Leads(Box::new(leading));
        (self.node.status().applied, figures)
    }
}

impl Driver {
    /// Takes committed entries. A follower may apply them later: [`Driver::go_on_applying`]. `clock` reads a monotonic clock in
    /// nanoseconds.
    pub fn take_committed(&mut self, at: Present, entries: Vec<Committed>, done: Done, clock: fn() -> u64) {
        match self.member_mut() {
            Some(Member { state: NodeState::Follows(_), backlog, .. }) => {
                backlog.push(entries, done);
                self.apply_some(at, Pace::applying(clock));
            }
            _ => _ = done.send(self.settle_committed(at, &entries)),
        }
    }

    /// Whether there is something to apply, and it is no time to rest.
    #[inline]
    pub fn applies(&self, ns: u64) -> bool {
        self.member().is_some_and(|member| !member.backlog.is_empty() && member.backlog.rest(ns).is_none())
    }

    /// Goes on with what is to be applied. Returns whether that goes on at once.
    #[cold]
    pub fn go_on_applying(&mut self, at: Present, clock: fn() -> u64) -> bool {
        self.apply_some(at, Pace::applying(clock));
        self.applies(at.ns)
    }

    /// How long it rests before it goes on applying; `None` if there is nothing to apply.
    pub(in crate::driver) fn rest_from_applying(&self, ns: u64) -> Option<Duration> {
        let backlog = &self.member()?.backlog;
        // The rest may have ended just now.
        (!backlog.is_empty()).then(|| backlog.rest(ns).unwrap_or_default())
    }

    /// Applies all that there is: the node is about to lead.
    fn apply_all(&mut self, at: Present) {
        self.member_mut().into_iter().for_each(|member| member.backlog.end_rest());
        self.apply_some(at, Pace::unlimited());
    }

    fn apply_some(&mut self, at: Present, slice: Pace) {
        let applied = match self.member_mut() {
            Some(Member { state: NodeState::Follows(follower), backlog, .. }) => backlog.apply_some(follower, at.ns, slice),
            _ => Ok(()),
        };
        applied.unwrap_or_else(|reason| self.node_failed(&reason));
    }

    /// Settles the batches of this leader among committed entries. Returns whether those are in its state; a node without a state
    /// starts anew.
    fn settle_committed(&mut self, at: Present, entries: &[Committed]) -> Applied {
        let Some(leading) = self.member_mut().and_then(Member::leading_mut) else { return Applied::StartsAnew };
        let own = leading.leadership.settle_own(entries);
        leading.queued.set(leading.queued.get().saturating_sub(own.bytes));
        if let Some(number) = own.settled {
            // Not the log's own position: changes since the batch was proposed are not settled.
            leading.settled.set(Settled { batch: number, position: own.position });
        }
        if let Some(number) = own.settled {
            self.engine.replication_mut().settled_index = own.index;
            let took_us = own.since_ns.map_or(0, |since_ns| at.ns.saturating_sub(since_ns) / 1000);
            self.settle(at, number, took_us);
            if self.engine.awaits_followers() {
                self.look_at_followers(at);
            }
            self.member_mut().into_iter().for_each(|member| member.settle_messages(number));
            self.go_on_handing_over(at);
        }
        if own.foreign {
            self.depose(at, "another node has led meanwhile");
        }
        own.applied
    }

    /// The beginning of a follower's state, for [`Driver::install`]. It lives on the cluster's clock, which this process's own
    /// may be ahead of.
    pub fn new_follower(&self) -> Follower {
        Follower::new(self.engine.empty_like_this(Now::new(0, 0)))
    }

    /// Replaces the state by a follower's.
    pub fn install(&mut self, at: Present, follower: Follower) {
        self.depose(at, "another node's state is installed");
        self.set_state(NodeState::Follows(Box::new(follower)));
    }

    /// Replaces the state. What was still to be applied to the last one is forgotten.
    fn set_state(&mut self, state: NodeState) {
        if let Some(member) = self.member_mut() {
            member.backlog.clear();
            member.state = state;
        }
    }

    /// Takes note of a change of the cluster. If this node leads from now on, `set_clock` lets the engine's monotonic clock show
    /// so many microseconds, while the wall clock does not change, and returns what it shows then.
    pub fn cluster_changed(&mut self, at: Present, status: Status, set_clock: impl FnOnce(u64) -> Now) {
        let change = self.member_mut().map(|member| member.note_status(status)).unwrap_or_default();
        if change.ceases {
            self.depose(at, "this node does not lead any more");
        }
        match change.begins {
            Some(leadership) => self.lead(at, leadership, set_clock),
            None => self.show_cluster(at),
        }
        self.note_leader(at);
    }

    /// Begins to lead: everything that was committed before is applied.
    fn lead(&mut self, at: Present, id: LeaderId, set_clock: impl FnOnce(u64) -> Now) {
        self.apply_all(at);
        let purpose = if self.has_flaw(Flaw::SessionsEnded) { Purpose::Start { truncates: false } } else { Purpose::TakeOver };
        let keeps_clock = self.has_flaw(Flaw::LeaseNotShifted);
        let finished = self.member_mut().map_or_else(
            || Err("it is no node".to_owned()),
            |member| member.state.finish(purpose, |time| if keeps_clock { at.now } else { set_clock(time.us) }),
        );
        let (engine, now) = match finished {
            Ok(finished) => finished,
            Err(reason) => return self.node_failed(&reason),
        };
        // What is told by this clock and is not about keys moves with it, so that no connection seems idle for days, and nothing
        // is due only in days.
        self.engine.move_marks(now, now.mono_us() as i64 - at.now.mono_us() as i64);
        let at = Present { now, ..at };
        self.forget_times(now);
        self.engine.end_loading(*engine);
        #[cfg(any(test, feature = "torture"))]
        if self.has_flaw(Flaw::TokenFromClock) {
            // As a server that starts with nothing begins to count.
            let next = now.unix_ms().unsigned_abs() * 2048;
            self.engine.keyspace_mut().changes.locks.iter_mut().for_each(|locks| locks.force_next_token(next));
        }
        let (origin, seed) = (self.engine.random(), self.engine.random());
        let records = AppendLog::new(now, cluster_clock(now), seed);
        records.begin_alone();
        let (log, leadership) = (Log::new(records, seed), Leadership::new(id, origin, at.ns));
        let (applied, figures) = self.member_mut().map(|member| member.begin_to_lead(now, log, leadership)).unzip();
        self.engine.replication_mut().settled_index = applied.unwrap_or_default();
        self.engine.persistence_mut().figures = figures;
        self.record_changes();
        tracing::info!("this node leads");
        self.show_cluster(at);
    }

    /// Ends this node's leadership, if it has one. Changes that are not committed are dropped, and no client is told of them.
    fn depose(&mut self, at: Present, why: &str) {
        let Some(member) = self.member_mut().filter(|member| member.leads()) else { return };
        member.tick_ms = u64::MAX;
        member.messages.clear();
        // For the next leadership, which has begun for the nodes before it does here.
        member.node.set_heartbeats(true);
        tracing::info!(why, "this node ceases to lead");
        if self.has_flaw(Flaw::FollowerAnswers) {
            return self.keep_answering();
        }
        self.close_sessions(at, Closing::Deposed);
        self.set_state(NodeState::Empty);
        // Of a copy in progress, the rest of the keys would be missing.
        self.copy_failed(at, why);
        // What waited does so no more.
        self.refuse_writes();
        self.engine.persistence_mut().figures = None;
        self.record_changes();
        self.show_cluster(at);
        let empty = self.engine.empty_like_this(at.now);
        self.engine.end_loading(*empty);
        // Libraries are part of the state: the next leadership begins without those that another leader has deleted.
        if !self.has_flaw(Flaw::LibrariesKept) {
            self.engine.scripts_mut().flush();
        }
    }

    /// With the flaw planted: goes on to answer from what there is.
    fn keep_answering(&mut self) {
        self.set_state(NodeState::Empty);
        self.engine.persistence_mut().figures = None;
        self.record_changes();
    }

    /// Closes connections: see [`close_sessions`].
    pub(super) fn close_sessions(&mut self, at: Present, closing: Closing) {
        let is_unsettled = |engine: &Engine, id: SessionId| engine.sessions()[id].flags.contains(SessionFlags::UNSETTLED);
        let closed = close_sessions(&mut self.engine, at.now, closing, is_unsettled);
        closed.into_iter().for_each(|id| self.wake(id));
    }

    /// Looks at the lease, and has the time committed if nothing else was.
    pub(in crate::driver) fn tick_cluster(&mut self, at: Present) {
        self.go_on_handing_over(at);
        let (hung_leads, alone_leads) = (self.has_flaw(Flaw::HungDiskLeads), self.has_flaw(Flaw::AloneLeads));
        let leaves_waiting = self.has_flaw(Flaw::WaitersLeft);
        let member = self.member_mut().filter(|member| at.now.reached(member.tick_ms));
        let Some(Member { node, state: NodeState::Leads(leading), was_alone, tick_ms, tick_every_ms, .. }) = member else {
            return;
        };
        *tick_ms = at.now.deadline_in(*tick_every_ms);
        let every = Duration::from_millis(*tick_every_ms);
        let leadership = &mut leading.leadership;
        let stood_still = leadership.stood_still(at.ns, every, node.lease_max(), || node.lease());
        let step = if hung_leads { DiskStep::Stay } else { leadership.look_at_disk(node.disk(), node.lease_max()) };
        let changed = leadership.look(at.ns, node.lease_max(), || node.lease());
        let (alone, stepped_down) = (leadership.alone(), leadership.stepped_down());
        if changed {
            match alone_leads || leaves_waiting {
                true => node.set_heartbeats(!alone),
                false => node.set_alone(alone),
            }
            *was_alone = alone;
        }
        if changed && alone {
            match stepped_down {
                true => tracing::warn!("the disk does not answer: this node steps down, and serves nothing until it answers"),
                false => {
                    tracing::warn!("a majority of the nodes is out of reach or stores nothing: nothing is served until it does")
                }
            }
        }
        if (changed && alone || stood_still && !alone) && !leaves_waiting {
            self.close_sessions(at, if stepped_down { Closing::Deposed } else { Closing::CutOff });
        }
        if stepped_down {
            self.end_hand_over(at);
        } else if step == DiskStep::HandOver {
            self.hand_over_for_disk(at);
        }
        self.look_at_bound();
        let is_idle = |leading: &&mut Leading| !leading.log.gate.in_flight();
        if !stepped_down
            && self.engine.next_deadline().is_some()
            && let Some(leading) = self.member_mut().and_then(Member::leading_mut).filter(is_idle)
        {
            leading.confirms = true;
        }
        self.show_cluster(at);
        self.await_followers();
    }

    /// The node cannot go on: the server ends.
    pub fn node_failed(&mut self, reason: &str) {
        let text = format!("the node cannot go on: {reason}");
        tracing::error!("{text}");
        self.demands.failed = Some(text);
        self.demands.ends = true;
    }
}
