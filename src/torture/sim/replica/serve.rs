//! What makes a server of a node: it leads, ceases to lead, and carries out what openraft asks, as the shell of a real server does.

use std::collections::BTreeSet;
use std::io::Cursor;

use crate::base::time::Now;
use crate::persist::append::log::AppendLog;
use crate::quorum::node::{Applied, Committed, Status};
use crate::quorum::types::{LeaderId, NodeId, SnapshotFile};
use crate::server::durable::load::Purpose;
use crate::server::replicated::follower::Follower;
use crate::server::replicated::leadership::{Closing, Leadership, Part, close_sessions};
use crate::server::replicated::{boot_clock, content};
use crate::torture::history::{EventKind, NO_CLIENT};
use crate::torture::sim::machine::ProcessClock;
use crate::torture::sim::net::{Event, Net};
use crate::torture::sim::replica::disk::NodeDisk;
use crate::torture::sim::replica::machine::Asked;
use crate::torture::sim::replica::node::{Leading, Process, Replica, monotonic_ns};
use crate::torture::sim::replica::runtime::Runtime;
use crate::torture::sim::replica::{Flaw, TICK_MS};
use crate::torture::sim::server::{BEGIN_US, SCRIPT_STEPS_MAX, Server, Session, engine};

/// By how much the monotonic clocks of processes differ.
const CLOCKS_APART_US: u64 = 777_000_123;

impl Server {
    /// A node that does not run yet.
    pub fn replica(number: u32, seed: u64, replica: Replica) -> Server {
        let mut server = Server::new(number, seed, false);
        server.up = false;
        server.replica = Some(Box::new(replica));
        server
    }

    fn process(&mut self) -> Option<&mut Process> {
        self.replica.as_mut()?.process.as_mut()
    }

    /// Starts the process of a node. Returns false if its files are refused.
    pub fn start_node(&mut self, net: &mut Net, runtime: &mut Runtime) -> bool {
        let Some(replica) = &mut self.replica else { return false };
        if replica.hangs(net.now_us).is_some() {
            return false;
        }
        self.seed = self.seed.wrapping_add(1);
        let origin_us = BEGIN_US + (replica.number * u64::from(replica.index + 3)) % 13 * CLOCKS_APART_US;
        self.clock = ProcessClock::new(net.now_us, origin_us, replica.wall_ms).with_ppm(runtime.clock(replica.index).ppm);
        self.engine = engine(self.seed, net.now_us);
        self.engine.script_steps_max = Some(SCRIPT_STEPS_MAX);
        if let Err(reason) = replica.start(runtime, net.now_us) {
            tracing::error!(reason, "a node refuses its files");
            return false;
        }
        self.up = true;
        self.tick_ms = None;
        self.show(net.now_us);
        if let Err(reason) = self.install(net.now_us, None) {
            tracing::error!(reason, "there is no empty state");
        }
        true
    }

    /// Carries out what openraft has asked. Returns whether there was anything.
    pub fn serve_node(&mut self, net: &mut Net, runtime: &Runtime) -> bool {
        let mut any = false;
        while self.up
            && let Some(asked) = self.process().and_then(|process| process.machine.next())
        {
            any = true;
            runtime.enter(self.number, net.now_us);
            match asked {
                Asked::Apply(entries, done) => {
                    if let Some(applied) = self.take_committed(net, &entries) {
                        let _ = done.send(applied);
                    }
                }
                Asked::Install(snapshot, done) => {
                    let _ = done.send(self.install(net.now_us, snapshot.as_ref()));
                }
                Asked::Changed(status) => self.change(net, runtime, status),
                Asked::Failed(reason) => self.fail(net, &reason),
            }
        }
        if any {
            self.flush(net);
        }
        any
    }

    fn fail(&mut self, net: &mut Net, reason: &str) {
        tracing::error!(reason, "a node cannot go on");
        let damaged = self.replica.as_ref().is_some_and(|replica| replica.damaged);
        if let Some(process) = self.process().filter(|process| damaged || process.had_bad_disk) {
            process.failed = true;
            return;
        }
        net.record(NO_CLIENT, EventKind::Refused { server: self.number });
    }

    /// Whether the node must end: its disk has failed it.
    pub fn cannot_go_on(&self) -> bool {
        self.up && self.replica.as_ref().and_then(|replica| replica.process.as_ref()).is_some_and(|process| process.failed)
    }

    fn take_committed(&mut self, net: &mut Net, entries: &[Committed]) -> Option<Applied> {
        let process = self.process()?;
        let taken = match process.part.take(entries) {
            Ok(taken) => taken,
            Err(reason) => {
                self.fail(net, &reason);
                return None;
            }
        };
        if let (Some(number), Some(leading)) = (taken.settled, &mut process.leading) {
            let opened = leading.gate.settle(number);
            self.dirty.extend(opened.into_iter().map(|(id, _)| id));
        }
        if taken.foreign {
            self.depose(net.now_us);
        }
        Some(taken.applied)
    }

    fn install(&mut self, now_us: u64, snapshot: Option<&SnapshotFile>) -> Result<(), String> {
        let mut follower = Follower::new(self.engine.empty_like_this(Now::new(0, 0)));
        let disk = self.replica.as_ref().map(|replica| replica.disk().clone());
        if let (Some(snapshot), Some(disk)) = (snapshot, disk) {
            let file = Cursor::new(NodeDisk::read(&disk, &snapshot.path)?);
            follower = content::load_from(follower, file, snapshot)?;
        }
        if self.process().is_some_and(|process| matches!(process.part, Part::Leads(_))) {
            self.depose(now_us);
        }
        if let Some(process) = self.process() {
            process.part = Part::Follows(Box::new(follower));
        }
        Ok(())
    }

    fn change(&mut self, net: &mut Net, runtime: &Runtime, status: Status) {
        let Some(process) = self.process() else { return };
        let turn = process.part.turn(status.leads);
        process.was_alone &= status.leader.is_none();
        process.status = status;
        if turn.ceases {
            self.depose(net.now_us);
        }
        match turn.begins {
            Some(id) => self.lead(net, runtime, id),
            None => self.show(net.now_us),
        }
    }

    fn lead(&mut self, net: &mut Net, runtime: &Runtime, id: LeaderId) {
        let now_us = net.now_us;
        let Some(replica) = &mut self.replica else { return };
        let (flaw, clock) = (replica.flaw, runtime.clock(replica.index));
        let Some(process) = &mut replica.process else { return };
        let own = &mut self.clock;
        let purpose = match flaw {
            Flaw::SessionsEnded => Purpose::Start { truncates: false },
            _ => Purpose::TakeOver,
        };
        let finished = process.part.finish(purpose, |time| {
            if flaw != Flaw::LeaseNotShifted {
                own.set_us(now_us, time.us);
            }
            own.now(now_us)
        });
        let (loaded, now) = match finished {
            Ok(finished) => finished,
            Err(reason) => return self.fail(net, &reason),
        };
        self.engine.end_loading(*loaded);
        if flaw == Flaw::TokenFromClock
            && let Some(locks) = &mut self.engine.keyspace.changes.locks
        {
            // As a server that starts with nothing begins to count.
            locks.force_next_token(now.unix_ms().unsigned_abs() * 2048);
        }
        let (origin, seed) = (self.engine.random(), self.engine.random());
        let log = AppendLog::new(now, boot_clock(now), seed);
        log.begin_file(0);
        self.engine.keyspace.changes.log = Some(Box::new(log.clone()));
        process.begin(Leadership::new(id, origin, monotonic_ns(clock, now_us)), Leading::new(log, seed));
        self.tick_ms = None;
        if !std::mem::replace(&mut self.cluster_ticks, true) {
            net.at(now_us, Event::ClusterTick(self.number));
        }
        self.show(now_us);
    }

    /// Ends a leadership: what was not committed is dropped, and nobody is told anything of it.
    fn depose(&mut self, now_us: u64) {
        let Some(replica) = &mut self.replica else { return };
        let flaw = replica.flaw;
        let Some(process) = &mut replica.process else { return };
        process.part = Part::Empty;
        process.leading = None;
        self.engine.keyspace.changes.log = None;
        if flaw == Flaw::FollowerAnswers {
            return;
        }
        self.close_sessions(now_us, Closing::Deposed);
        self.show(now_us);
        let empty = self.engine.empty_like_this(self.clock.now(now_us));
        self.engine.end_loading(*empty);
    }

    /// Closes connections: see [`close_sessions`].
    fn close_sessions(&mut self, now_us: u64, closing: Closing) {
        let gate = self.replica.as_ref().and_then(|replica| Some(&replica.process.as_ref()?.leading.as_ref()?.gate));
        let is_unsettled =
            |session: &&Session| !session.held.is_empty() || gate.is_some_and(|gate| gate.end(session.id) != u64::MAX);
        let unsettled: BTreeSet<u32> = self.sessions.values().filter(is_unsettled).map(|session| session.id.0).collect();
        let now = self.clock.now(now_us);
        let closed = close_sessions(&mut self.engine, now, closing, |_, id| unsettled.contains(&id.0));
        self.dirty.extend(closed);
    }

    /// Looks at the lease. Returns whether the node leads, as far as it knows.
    pub fn look_at_lease(&mut self, net: &mut Net, runtime: &Runtime) -> bool {
        let now_ns = monotonic_ns(runtime.clock(self.number), net.now_us);
        let flaw = self.replica.as_ref().map_or(Flaw::Nothing, |replica| replica.flaw);
        let Some(process) = self.process().filter(|process| matches!(process.part, Part::Leads(_))) else { return false };
        if process.look(now_ns, flaw) && flaw != Flaw::WaitersLeft {
            self.close_sessions(net.now_us, Closing::CutOff);
        }
        self.show(net.now_us);
        self.flush(net);
        true
    }

    /// Looks at the lease, and has the time committed if nothing else was.
    pub fn tick_cluster(&mut self, net: &mut Net, runtime: &Runtime) {
        self.cluster_ticks = false;
        if !self.look_at_lease(net, runtime) {
            return;
        }
        if self.engine.next_deadline().is_some()
            && let Some(leading) = self.process().and_then(|process| process.leading.as_mut())
            && !leading.gate.in_flight()
        {
            leading.confirms = true;
        }
        self.flush(net);
        self.cluster_ticks = true;
        net.at(net.now_us + TICK_MS * 1_000, Event::ClusterTick(self.number));
    }

    /// Shows clients the present state of the cluster.
    fn show(&mut self, now_us: u64) {
        let Some(replica) = &self.replica else { return };
        let Some(process) = &replica.process else { return };
        let state = process.state(replica.id(), replica.nodes(), replica.flaw);
        self.engine.set_replication(self.clock.now(now_us), state);
    }

    /// If the node leads, as far as it knows: the sets of voters of each of which it needs a majority.
    pub fn serves(&self) -> Option<&[BTreeSet<NodeId>]> {
        let process = self.replica.as_ref().filter(|_| self.up)?.process.as_ref()?;
        process.serves().then_some(&process.status.voters)
    }
}
