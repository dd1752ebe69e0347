//! One node: its machine, and the process that runs on it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::driver::Driver;
use crate::driver::replicated::MemberOptions;
use crate::engine::config::Config;
use crate::persist::disk::simulated::{Injected, SimulatedDisk};
use crate::quorum::net::{ClientAddress, Security, Transport};
use crate::quorum::node::{self, Opened};
use crate::quorum::store::{Options, Owner, Snapshots, Step, Woken, Worker};
use crate::quorum::types::NodeId;
use crate::torture::plan::streams;
use crate::torture::random::Random;
use crate::torture::sim::replica::damage::{Rot, damage};
use crate::torture::sim::replica::disk::NodeDisk;
use crate::torture::sim::replica::foreign::make_foreign;
use crate::torture::sim::replica::machine::SimMachine;
use crate::torture::sim::replica::runtime::Runtime;
use crate::torture::sim::replica::sockets::{Shared, SimListener, SimPlatform, host, lock};
use crate::torture::sim::replica::voting::{Votes, Voting};
use crate::torture::sim::replica::{Flaw, TICK_MS, timing};

/// Hash of the cluster's name.
const CLUSTER: u64 = 7;
/// The secret of the cluster.
const SECRET: &[u8] = b"of a simulation";
/// Bytes of a segment of the log, and of the space that is laid out at a time: small, so that episodes have several segments.
const SEGMENT_BYTES: (u64, u64) = (64 << 10, 4 << 10);
/// Maximum number of operations of the disk that are carried out when the power is lost in the middle of them.
const TORN_MAX: u64 = 6;
/// Time after a start from damaged files after which the node has been given again what it may have forgotten.
const DOUBT_US: u64 = 10_000_000;
/// Time for which the disk of a leader may not answer: nine leases and what a look takes, and some more for clocks that are slow.
const HUNG_MAX_US: u64 = 10_500_000;
/// Time for which a leader is seen to go on leading.
const SEEN_US: u64 = 2_500_000;

/// A node.
pub struct Replica {
    /// Its index. Its number is larger by one.
    pub index: u32,
    /// Number of nodes.
    nodes: u32,
    /// The fault that is planted in it.
    pub flaw: Flaw,
    disk: NodeDisk,
    /// The node's own disk, while a node of another cluster runs at its address.
    home: Option<NodeDisk>,
    /// By how many millionths its clocks run fast.
    pub ppm: i64,
    /// How wrong its wall clock is, in milliseconds.
    pub wall_ms: i64,
    /// The process, if one runs.
    pub process: Option<Process>,
    /// Number of the process.
    pub number: u64,
    /// Whether its disk fails.
    bad: bool,
    /// Until when its disk answers nothing.
    hangs_until_us: u64,
    /// Since when the disk works on what it does, if it does anything.
    works_since_us: Option<u64>,
    /// When it was first seen that the node leads though its disk has not answered for long; see [`Replica::is_hung_leader`].
    suspected_us: Option<u64>,
    /// Whether the node has belonged to the cluster since it had its disk.
    pub has_joined: bool,
    /// Whether its files were damaged, and it has not shown since that it can read them.
    pub damaged: bool,
    /// Until when it may lack something that it had before its files were damaged.
    doubtful_until_us: u64,
    /// The sockets of all nodes, and their votes.
    shared: (Shared, Votes),
    random: Random,
}

/// A process.
pub struct Process {
    worker: Worker<NodeDisk>,
    /// What openraft asks of the server.
    pub machine: SimMachine,
    transport: Transport,
    /// What the thread of the log waits for, and until when, once that is known.
    step: Step,
    goes_on_us: Option<u64>,
    /// Whether its disk has failed since it began: then it may be unable to go on.
    pub had_bad_disk: bool,
}

impl Replica {
    /// Node `index` of so many, whose disk is empty.
    pub fn new(index: u32, nodes: u32, seed: u64, flaw: Flaw, shared: (Shared, Votes)) -> Replica {
        Replica {
            index,
            nodes,
            flaw,
            disk: NodeDisk::new(SimulatedDisk::new(seed)),
            home: None,
            ppm: 0,
            wall_ms: 0,
            process: None,
            number: 0,
            bad: false,
            hangs_until_us: 0,
            works_since_us: None,
            suspected_us: None,
            has_joined: false,
            damaged: false,
            doubtful_until_us: 0,
            shared,
            random: Random::new(seed, streams::DISK, 0),
        }
    }

    /// Lets its disk fail, or work again.
    pub fn set_bad(&mut self, how: Option<Injected>) {
        self.bad = how.is_some();
        self.disk.act(|disk| disk.set_failing(how));
        if let Some(process) = &mut self.process {
            process.had_bad_disk = true;
        }
    }

    /// Whether its disk fails.
    pub fn is_bad(&self) -> bool {
        self.bad
    }

    /// Lets its disk answer nothing for a time.
    pub fn hang(&mut self, until_us: u64) {
        self.hangs_until_us = self.hangs_until_us.max(until_us);
    }

    /// Until when its disk answers nothing, if it hangs.
    pub fn hangs(&self, now_us: u64) -> Option<u64> {
        Some(self.hangs_until_us).filter(|until_us| *until_us > now_us)
    }

    /// For how long its disk has not answered, if the node leads all the same and must have stepped down. It is seen for a while
    /// first: a node that stood still has not looked yet.
    pub fn is_hung_leader(&mut self, now_us: u64, leads: bool) -> Option<u64> {
        let since_us = self.works_since_us.filter(|_| leads && self.hangs(now_us).is_some());
        let hung_us = since_us.map(|since_us| now_us - since_us).filter(|hung_us| *hung_us > HUNG_MAX_US);
        if hung_us.is_none() {
            self.suspected_us = None;
            return None;
        }
        let suspected_us = *self.suspected_us.get_or_insert(now_us);
        // It is told once.
        hung_us.filter(|_| suspected_us != 0 && now_us - suspected_us > SEEN_US).inspect(|_| self.suspected_us = Some(0))
    }

    /// Its disk.
    pub fn disk(&self) -> &NodeDisk {
        &self.disk
    }

    /// Its number.
    pub fn id(&self) -> NodeId {
        NodeId::from(self.index) + 1
    }

    fn owner(&self) -> Owner {
        Owner { node: self.id(), cluster: CLUSTER }
    }

    fn log_options(&self) -> Options {
        let (segment_bytes, step_bytes) = SEGMENT_BYTES;
        Options { segment_bytes, step_bytes, planted: self.flaw.of_store(), ..Options::new(self.owner(), None) }
    }

    /// A node of another cluster comes to the node's address. The node's process must have ended.
    ///
    /// # Errors
    /// In words: the disk fails.
    pub fn send_away(&mut self, place: u64) -> Result<(), String> {
        let own = self.disk.act(|disk| disk.clone());
        let foreign = NodeDisk::new(own);
        let id = make_foreign(foreign.clone(), self.log_options(), self.id(), place)?;
        let snapshots = Snapshots::open(foreign.clone(), Path::new(""), self.owner());
        snapshots.and_then(|mut snapshots| Ok(snapshots.relabel(id)?)).map_err(|error| error.to_string())?;
        self.home = Some(std::mem::replace(&mut self.disk, foreign));
        Ok(())
    }

    /// The node of another cluster is gone. Its process must have ended.
    pub fn come_home(&mut self) {
        if let Some(own) = self.home.take() {
            self.disk = own;
        }
    }

    /// Whether a node of another cluster runs at the node's address.
    pub fn is_away(&self) -> bool {
        self.home.is_some()
    }

    /// Starts a process with this configuration from the node's files. Returns what its driver becomes a member with.
    ///
    /// # Errors
    /// The files are refused, in words.
    pub fn start(&mut self, runtime: &mut Runtime, now_us: u64, config: Config) -> Result<MemberOptions, String> {
        self.number += 1;
        runtime.enter(self.index, now_us);
        let (index, (sockets, votes)) = (self.index, self.shared.clone());
        lock(&sockets).power_back(index);
        let client = ClientAddress { host: host(self.id()), port: 6379, tls_port: 0 };
        let platform = SimPlatform { node: index, sockets: Arc::clone(&sockets), disk: self.disk.clone() };
        let options = node::Options {
            node: self.id(),
            members: (1..=NodeId::from(self.nodes)).map(|id| (id, host(id))).collect(),
            disks: (self.disk.clone(), self.disk.clone()),
            folder: PathBuf::new(),
            log: self.log_options(),
            client: client.clone(),
            secret: Some(SECRET.to_vec()),
            platform: Arc::new(platform),
            security: Security::default(),
            timing: timing(),
        };
        let machine = SimMachine::new(self.disk.clone(), config);
        let listen = move || Ok(SimListener::new(index, sockets));
        let handler = move |raft: &node::Raft<_, _>| Voting { handler: raft.clone(), node: index, votes };
        let opened = node::open(options, machine.clone(), listen, handler)?;
        let Opened { node, mut worker, log, transport, running, shutdown } = opened;
        if self.flaw == Flaw::AnyCluster {
            transport.take_any_cluster();
        }
        runtime.spawn(Box::pin(node::run_to_end(running, shutdown, || async move { log.order_close() })));
        let step = worker.first_step();
        self.process = Some(Process { worker, machine, transport, step, goes_on_us: None, had_bad_disk: self.bad });
        Ok(MemberOptions { node, id: self.id(), cluster: CLUSTER, client, tick_every_ms: TICK_MS })
    }

    /// The process ends, and with it the `driver`'s node.
    pub fn end_process(&mut self, runtime: &mut Runtime, driver: &mut Driver, now_us: u64, how: End) {
        let Some(mut process) = self.process.take() else { return };
        self.works_since_us = None;
        runtime.enter(self.index, now_us);
        match how {
            End::InOrder => {
                driver.end_membership();
                // A disk takes no time then. Of one that fails, there is no end.
                while runtime.run(now_us) && process.worker.turn() {}
            }
            End::Killed => {}
            End::PowerLost => {
                lock(&self.shared.0).power_lost(self.index);
                let torn = self.random.below(TORN_MAX);
                self.disk.act(|disk| disk.crash_at(disk.operations() + torn));
                process.worker.turn();
            }
        }
        // What the end of the tasks would do to the disk is not done.
        let kept = self.disk.act(|disk| std::mem::replace(disk, SimulatedDisk::new(0)));
        drop(process);
        driver.end_membership();
        runtime.crash(self.index);
        self.disk = NodeDisk::new(kept);
        self.disk.act(|disk| if how == End::PowerLost { disk.restart() } else { disk.restart_process() });
    }

    /// The node loses its disk. Its process must have ended.
    pub fn wipe(&mut self) {
        let seed = self.random.draw();
        self.disk = NodeDisk::new(SimulatedDisk::new(seed));
        // A new disk works.
        self.bad = false;
        self.hangs_until_us = 0;
        self.has_joined = false;
        (self.damaged, self.doubtful_until_us) = (false, 0);
    }

    /// The node's files are damaged. Its process must have ended; it starts again after the time.
    pub fn damage(&mut self, rot: Rot, place: u64, up_us: u64) {
        self.disk.act(|disk| damage(disk, rot, place));
        self.damaged = true;
        self.doubtful_until_us = up_us + DOUBT_US;
    }

    /// Whether the node has all that it was given, so that another one may lose its disk. `applied` says whether it has applied
    /// all that any node knows to be committed.
    pub fn has_all(&self, now_us: u64, applied: bool) -> bool {
        let doubtful = self.doubtful_until_us > 0;
        if self.is_away() {
            return false;
        }
        self.has_joined && (!doubtful || (now_us >= self.doubtful_until_us && applied))
    }

    /// Lets the thread of the log take what was ordered, if it waits for that. Returns after how long [`Replica::worked`] must be called,
    /// unless that is known already.
    pub fn work(&mut self, now_us: u64) -> Option<u64> {
        let process = self.process.as_mut()?;
        if process.transport.standing().votes && self.home.is_none() {
            self.has_joined = true;
            // It has read its files.
            self.damaged = false;
        }
        let Process { worker, step, goes_on_us, .. } = process;
        if matches!(step, Step::Wait(_))
            && let Some(order) = worker.next_order()
        {
            (*step, *goes_on_us) = (worker.go_on(Woken::Ordered(order)), None);
        }
        if goes_on_us.is_some() {
            return None;
        }
        let wait_us = match step {
            Step::Wait(wait) => wait.as_micros() as u64,
            Step::Disk => {
                self.works_since_us = Some(now_us);
                // A disk mostly takes a moment, and sometimes much longer.
                let longest_us = if self.random.percent(5) { 50_000 } else { 2_000 };
                self.random.between(200, longest_us)
            }
            Step::End => return None,
        };
        *goes_on_us = Some(now_us + wait_us);
        Some(wait_us)
    }

    /// A time is over that [`Replica::work`] has returned: the thread of the log goes on, if it is to by now.
    pub fn worked(&mut self, now_us: u64) {
        let Some(process) = &mut self.process else { return };
        if process.goes_on_us.take_if(|goes_on_us| *goes_on_us <= now_us).is_none() {
            return;
        }
        self.works_since_us = None;
        let woken = if process.step == Step::Disk { Woken::Disk } else { Woken::Idle };
        process.step = process.worker.go_on(woken);
    }
}

/// How a process of a node ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// As a server does that is told to.
    InOrder,
    /// At once.
    Killed,
    /// Together with its machine: what was not synced may be lost, and a write may be torn.
    PowerLost,
}
