//! Leading, and ceasing to lead.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::time::Duration;

use bytes::Bytes;

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::persistence::Figures;
use crate::engine::session::SessionFlags;
use crate::persist::append::batch::HEADER;
use crate::persist::append::log::AppendLog;
use crate::quorum::node::{Applied, Committed, Status};
use crate::quorum::types::{Batch, ClusterTime, LeaderId, NodeId, SnapshotFile};
use crate::server::clock::monotonic_ns;
use crate::server::durable::Durable;
use crate::server::durable::gate::{BatchNumber, Executed};
use crate::server::durable::load::Purpose;
use crate::server::durable::log_thread::{Progress, Report, Syncs};
use crate::server::replicated::follower::Follower;
use crate::server::replicated::{Leadership, Part, Replicated, TICK_MS, boot_clock, content, moment_of};
use crate::server::shell::Shell;

/// Number of leases without contact to a majority after which a leader tells its clients so.
const LEASES_ALONE: u32 = 3;

impl Replicated {
    /// Proposes a batch, as it was taken from the log.
    pub fn propose(&mut self, number: BatchNumber, mut batch: Vec<u8>, now: Now) {
        let Part::Leads(leadership) = &mut self.part else { return };
        leadership.proposed.push_back((number, batch.len() as u64));
        // The header is for files: a record of the quorum has a checksum of its own.
        let bytes = if batch.is_empty() { Bytes::new() } else { Bytes::from(std::mem::take(&mut batch)).slice(HEADER..) };
        let time = ClusterTime { us: now.mono_us, wall_offset_ms: now.wall_offset_ms };
        self.node.propose(Batch { origin: leadership.origin, number, time, bytes }, leadership.id);
    }

    /// Whether no other node can lead now: what is settled here is what the cluster has.
    pub fn has_lease(&mut self) -> bool {
        let Part::Leads(leadership) = &mut self.part else { return false };
        let now_ns = monotonic_ns();
        if now_ns < leadership.lease_until_ns {
            return true;
        }
        let left_ns = self.node.lease().as_nanos() as u64;
        if left_ns > 0 {
            leadership.lease_until_ns = now_ns + left_ns;
        }
        left_ns > 0
    }
}

impl Shell {
    /// The batch that a reply waits for, which shows changes up to `batch`. If it shows keys, and another node may lead, a majority is
    /// asked by a batch. Without a majority all requests for keys are refused, and refusals do not wait.
    pub(in crate::server) fn batch_of_read(&mut self, batch: BatchNumber, request: Executed<'_>) -> BatchNumber {
        let (Some(replicated), Some(durable)) = (&mut self.replicated, &mut self.durable) else { return batch };
        let alone = matches!(&replicated.part, Part::Leads(leadership) if leadership.alone);
        if alone && request.reply.starts_with(b"-") {
            return 0;
        }
        if batch > durable.gate.settled() || alone || !request.may_show_keys() || replicated.has_lease() {
            return batch;
        }
        durable.confirms = true;
        durable.gate.pending()
    }

    /// Takes committed batches. Returns `None` if they could not be applied, and the server ends.
    pub(in crate::server) fn take_committed(&mut self, entries: &[Committed]) -> Option<Applied> {
        let replicated = self.replicated.as_mut()?;
        match &mut replicated.part {
            Part::Empty => return Some(Applied::StartsAnew),
            Part::Follows(follower) => {
                for entry in entries {
                    if let Err(reason) = follower.apply(&entry.batch) {
                        self.node_failed(&format!("entry {} of the log cannot be applied: {reason}", entry.index));
                        return None;
                    }
                }
            }
            Part::Leads(leadership) => {
                let mut settled = None;
                let mut foreign = false;
                for entry in entries {
                    let own = leadership
                        .proposed
                        .front()
                        .filter(|(number, _)| entry.batch.origin == leadership.origin && entry.batch.number == *number);
                    let Some(&(number, len)) = own else {
                        foreign = true;
                        break;
                    };
                    leadership.proposed.pop_front();
                    if let Some(durable) = &self.durable {
                        durable.progress.queued_bytes.fetch_sub(len, Ordering::Relaxed);
                    }
                    settled = Some(number);
                }
                if let Some(number) = settled {
                    self.note_settled(number);
                }
                if foreign {
                    self.depose("another node has led meanwhile");
                    return Some(Applied::StartsAnew);
                }
            }
        }
        Some(Applied::Done)
    }

    fn note_settled(&mut self, number: BatchNumber) {
        if let Some(durable) = &self.durable {
            durable.progress.written.store(number, Ordering::Relaxed);
            durable.progress.durable.store(number, Ordering::Relaxed);
            durable.progress.durable_position.store(durable.log.position(), Ordering::Relaxed);
        }
        self.take_report(Report::Settled(number));
        if let Some(replicated) = &mut self.replicated {
            replicated.settle_messages(number);
        }
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
            replicated.part = Part::Follows(Box::new(follower));
        }
        Ok(())
    }

    /// Takes note of a change of the cluster.
    pub(in crate::server) fn cluster_changed(&mut self, status: Status) {
        let Some(replicated) = &mut self.replicated else { return };
        let before = match &replicated.part {
            Part::Leads(leadership) => Some(leadership.id),
            _ => None,
        };
        let leads = status.leads;
        if status.leader != replicated.status.leader {
            replicated.handing_over = false;
            match status.leader {
                Some(leader) => tracing::info!(term = status.term, "node {leader} leads"),
                None => tracing::info!(term = status.term, "no node leads"),
            }
        }
        replicated.status = status;
        if before.is_some() && before != leads {
            self.depose("this node does not lead any more");
        }
        match leads.filter(|leads| Some(*leads) != before) {
            Some(leadership) => self.lead(leadership),
            None => self.show_cluster(),
        }
    }

    /// Begins to lead: everything that was committed before is applied.
    fn lead(&mut self, id: LeaderId) {
        let Some(replicated) = &mut self.replicated else { return };
        let part = std::mem::replace(&mut replicated.part, Part::Empty);
        let Part::Follows(follower) = part else {
            replicated.part = part;
            return self.node_failed("it leads without a state");
        };
        let time = follower.time();
        self.join_clock(time.us);
        let now = self.clock.now();
        let engine = match follower.finish(moment_of(now), Purpose::Start { truncates: false }) {
            Ok(engine) => engine,
            Err(reason) => return self.node_failed(&reason),
        };
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
        durable.begin();
        if let Some(replicated) = &self.replicated {
            // The syncs are those of the node's own log.
            let (figures, log) = (durable.figures(), Arc::clone(replicated.node.progress()));
            self.engine.persistence.figures = Some(Box::new(move || {
                let max_us = log.sync_max_us.load(Ordering::Relaxed);
                let percentiles = [0.5, 0.99].map(|share| log.sync_percentile_us(share));
                let syncs = [log.syncs.load(Ordering::Relaxed), percentiles[0], percentiles[1], max_us];
                Figures { syncs, ..figures() }
            }));
        }
        self.durable = Some(Box::new(durable));
        if let Some(replicated) = &mut self.replicated {
            replicated.node.set_heartbeats(true);
            let proposed = Default::default();
            replicated.part = Part::Leads(Leadership { id, origin, proposed, lease_until_ns: monotonic_ns(), alone: false });
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
        replicated.handing_over = false;
        replicated.messages.clear();
        // For the next leadership, which has begun for the nodes before it does here.
        replicated.node.set_heartbeats(true);
        tracing::info!(why, "this node ceases to lead");
        self.close_unsettled(true);
        self.durable = None;
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

    /// Closes the connections whose output waits for the quorum. With `all`, all others as well, except those that are only there to
    /// subscribe: they hear what the next leader publishes. Keyspace events and invalidations of keys come from the leader alone.
    fn close_unsettled(&mut self, all: bool) {
        let mut closed = Vec::new();
        for (number, session) in &self.engine.sessions {
            let id = SessionId(number as u32);
            let unsettled = session.flags.contains(SessionFlags::UNSETTLED);
            let only_subscribes = || session.flags.contains(SessionFlags::SUBSCRIBED) && !self.engine.hears_of_keys(id);
            if unsettled || (all && !only_subscribes()) {
                closed.push(id);
            }
        }
        for id in &closed {
            self.engine.sessions[id.0 as usize].flags |= SessionFlags::CLOSE_NOW;
        }
        closed.into_iter().for_each(|id| self.wake(id));
    }

    /// Looks at the lease, and has the time committed if nothing else was.
    pub(in crate::server) fn tick_cluster(&mut self, now: Now) {
        let Some(replicated) = self.replicated.as_mut().filter(|replicated| now.reached(replicated.tick_ms)) else { return };
        replicated.tick_ms = now.deadline_in(TICK_MS);
        let lease_max: Duration = replicated.node.lease_max();
        let held = replicated.has_lease();
        let since_ns = monotonic_ns();
        let Part::Leads(leadership) = &mut replicated.part else { return };
        let alone = !held && since_ns > leadership.lease_until_ns + u64::from(LEASES_ALONE) * lease_max.as_nanos() as u64;
        if leadership.alone != alone {
            leadership.alone = alone;
            replicated.node.set_heartbeats(!alone);
            if alone {
                tracing::warn!("a majority of the nodes is out of reach: nothing is served until it is back");
                self.close_unsettled(false);
            }
        }
        if let Some(durable) = &mut self.durable
            && self.engine.next_deadline().is_some()
            && !durable.gate.in_flight()
        {
            durable.confirms = true;
            self.submit(false);
        }
        self.show_cluster();
    }

    /// Hands the leadership over to a node, or to the one that has most of the log.
    pub(in crate::server) fn transfer_leadership(&mut self, to: Option<NodeId>) {
        let Some(replicated) = &mut self.replicated else { return };
        let status = replicated.node.status();
        let voters = status.members.keys().filter(|id| **id != replicated.id && !status.learners.contains(id));
        let best = voters.max_by_key(|id| status.matched.get(id).copied()).copied();
        match to.or(best) {
            Some(to) if matches!(replicated.part, Part::Leads(_)) => {
                tracing::info!("hands the leadership over to node {to}");
                replicated.handing_over = true;
                // What becomes of it is seen by who leads next.
                drop(replicated.node.transfer(to));
                self.show_cluster();
            }
            _ => tracing::warn!("there is no leadership that could be handed over, or nobody who could have it"),
        }
    }

    /// The node cannot go on: the server ends.
    pub(in crate::server) fn node_failed(&mut self, reason: &str) {
        let text = format!("the node cannot go on: {reason}");
        tracing::error!("{text}");
        self.failed = Some(text);
        self.ending = true;
    }
}
