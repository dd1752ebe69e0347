//! A replicated service whose nodes are processes of this program, with proxies between them.
//!
//! ```text
//!   schedule ─▶ faults ─▶ processes: SIGKILL, SIGSTOP, full and hung disks, lost folders, wrong clocks, foreigners
//!                   └───▶ between: cuts, delays, broken connections
//!   watch: asks every node all the time ─▶ who leads ─▶ toll: what a fault did
//! ```
//!
//! What the faults of the schedule mean depends on who leads when they strike.

mod between;
mod foreign;
mod schedule;
pub mod step;
mod toll;
mod watch;

use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use tokio::time::sleep;

use crate::client::{Client, Command, Options};
use crate::cluster::processes::{self, NodeStart, Place, free_ports};
use crate::cluster::survey::survey;
use crate::torture::fault::Fault;
use crate::torture::history::{EventKind, History, NO_CLIENT};
use crate::torture::live::nodes::between::Between;
use crate::torture::live::nodes::foreign::Foreign;
use crate::torture::live::nodes::schedule::{NodeFault, Whom};
use crate::torture::live::nodes::step::Step;
use crate::torture::live::nodes::toll::Strike;
use crate::torture::live::nodes::watch::Watch;
use crate::torture::live::world::{Action, Shared};
use crate::torture::plan::{Plan, Replicas, Settings, streams};
use crate::torture::random::Random;

pub use schedule::plan_of_clients;
pub use toll::Toll;

/// Time within which a node must lead and all must vote.
const START_TIME: Duration = Duration::from_secs(30);
/// Interval between looks at the processes.
const LOOK: Duration = Duration::from_millis(100);
/// Time within which a node must do what a run asks of it.
const ANSWER: Duration = Duration::from_millis(500);
/// Number of lines of a node's log that are shown when it has ended.
const LINES: usize = 3;
/// What a node says once it takes part in elections: from then on its disk counts.
const VOTES: &str = "this node votes";
/// What a node says when its disk is full.
const FULL: &str = "cannot be written, and is tried again";
/// Number of bytes that a node may add to its log while its disk is full.
const LOG_ROOM: u64 = 4096;
/// What a node says when it starts.
const STARTS: &str = " listening on ";
/// Below a node's `dir`: its log, votes and snapshots.
const FOLDER: &str = "quorum";

struct Node {
    child: Option<Child>,
    /// For clients.
    port: u16,
    /// For the other nodes, behind their proxy.
    listens: u16,
    /// By how much its wall clock is wrong.
    wrong_ms: i64,
    stopped: bool,
    /// Set while its disk is full.
    full: Option<Full>,
    /// What runs at its address in its place.
    foreign: Option<Foreign>,
}

/// A disk that is full.
#[derive(Clone, Copy)]
struct Full {
    strike: Strike,
    /// The length of the node's log before.
    log_bytes: usize,
}

impl Node {
    fn signal(&self, signal: Signal) {
        if let Some(child) = &self.child {
            // It may have ended, which the next look finds.
            let _ = kill_process(Pid::from_child(child), signal);
        }
    }

    /// Limits the size of its files, so that no write to them succeeds, as on a full disk.
    fn limit_files(&self, bytes: Option<u64>) {
        if let Some(child) = &self.child {
            let _ = prlimit(Some(Pid::from_child(child)), Resource::Fsize, Rlimit { current: bytes, maximum: None });
        }
    }
}

/// The nodes.
pub struct Nodes {
    nodes: Vec<Node>,
    peers: String,
    between: Between,
    faults: Vec<(u64, NodeFault)>,
    shared: Option<(Arc<Shared>, Watch)>,
    strikes: Vec<Strike>,
    ended: Vec<String>,
    /// When the last partition, or the last fault of a disk, ends, in microseconds since the beginning.
    impaired_until_us: u64,
    /// Where clients would reach a node of another cluster. None knows it.
    foreign_port: u16,
    place: Place,
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.nodes.iter_mut().filter_map(|node| node.child.as_mut()).for_each(processes::end);
    }
}

impl Nodes {
    /// Starts the nodes, and waits until one leads and all vote.
    ///
    /// # Errors
    /// In words: a node could not be started, or none leads.
    pub async fn start(settings: &Settings, replicas: Replicas, plan: &Plan) -> Result<Nodes, String> {
        let count = replicas.nodes as usize;
        let place = Place::of(None, "portcullis-torture")?;
        let mut ports = free_ports(2 * count + 1).ok_or("there are not enough ports")?;
        let foreign_port = ports.pop().ok_or("there are not enough ports")?;
        let (clients, listens) = ports.split_at(count);
        let between = Between::start(listens, Random::new(plan.seed, streams::NODES, 0)).await;
        let between = between.map_err(|error| format!("a proxy between nodes: {error}"))?;
        let peers = processes::peers(between.ports.iter().copied());
        let node = |(port, listens): (&u16, &u16)| Node {
            child: None,
            port: *port,
            listens: *listens,
            wrong_ms: 0,
            stopped: false,
            full: None,
            foreign: None,
        };
        let mut nodes = Nodes {
            nodes: clients.iter().zip(listens).map(node).collect(),
            peers,
            between,
            faults: schedule::draw(settings, replicas.nodes, plan.seed),
            shared: None,
            strikes: Vec::new(),
            ended: Vec::new(),
            impaired_until_us: 0,
            foreign_port,
            place,
        };
        for node in 0..count {
            nodes.spawn(node)?;
        }
        nodes.until_all_vote().await?;
        Ok(nodes)
    }

    async fn until_all_vote(&mut self) -> Result<(), String> {
        let began = Instant::now();
        let urls = self.addresses().map(|addr| format!("redis://{addr}")).collect::<Vec<_>>().join(",");
        loop {
            self.look()?;
            if let Some(ended) = self.ended.first() {
                return Err(ended.clone());
            }
            let leads = survey(&urls).await.is_ok_and(|found| found.leader().is_some());
            if leads && (0..self.nodes.len()).all(|node| self.votes(node)) {
                return Ok(());
            }
            fail_if!(began.elapsed() > START_TIME, "no node leads, or one has no vote".to_owned());
            sleep(LOOK).await;
        }
    }

    /// The addresses of the nodes for clients.
    pub fn addresses(&self) -> impl Iterator<Item = String> {
        self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port))
    }

    /// The number of the node that leads.
    pub fn leader(&self) -> u32 {
        self.shared.as_ref().and_then(|(_, watch)| watch.leader()).unwrap_or(0)
    }

    /// Begins to watch them, and the schedule.
    pub fn begin(&mut self, shared: &Arc<Shared>, prefix: &str) {
        let ports: Vec<u16> = self.nodes.iter().map(|node| node.port).collect();
        self.shared = Some((Arc::clone(shared), Watch::start(&ports, &format!("{prefix}watch"), shared)));
        for (number, (at_us, _)) in self.faults.iter().enumerate() {
            self.later(*at_us, Step::Strike(number));
        }
        self.later(0, Step::Look);
    }

    fn later(&self, after_us: u64, step: Step) {
        let Some((shared, _)) = &self.shared else { return };
        let actions = shared.actions.clone();
        tokio::spawn(async move {
            sleep(Duration::from_micros(after_us)).await;
            let _ = actions.send(Action::Node(step));
        });
    }

    fn record(&self, kind: EventKind) {
        if let Some((shared, _)) = &self.shared {
            shared.record(NO_CLIENT, kind);
        }
    }

    fn now_us(&self) -> u64 {
        self.shared.as_ref().map_or(0, |(shared, _)| shared.now_us())
    }

    fn spawn(&mut self, node: usize) -> Result<(), String> {
        let (of, more) = (&self.nodes[node], self.arguments(node));
        let start = NodeStart { node: node + 1, peers: &self.peers, port: of.port, more: &more, limited: true };
        let child = processes::spawn(&self.place, start)?;
        let of = &mut self.nodes[node];
        (of.child, of.stopped, of.full) = (Some(child), false, None);
        Ok(())
    }

    /// Arguments of a node that are not those of every node.
    fn arguments(&self, node: usize) -> [String; 2] {
        let of = &self.nodes[node];
        [format!("--peer-listen=127.0.0.1:{}", of.listens), format!("--test-wall-clock-ms={}", of.wrong_ms)]
    }

    fn kill(&mut self, node: usize) -> bool {
        self.nodes[node].child.take().map(|mut child| processes::end(&mut child)).is_some()
    }

    /// Whether a node has taken part in elections since its last start, so that it has caught up if its disk was lost.
    fn votes(&self, node: usize) -> bool {
        let log = self.place.text(node + 1);
        let (votes, starts) = (log.rfind(VOTES), log.rfind(STARTS));
        votes.is_some() && votes > starts
    }

    /// Carries out a step.
    ///
    /// # Errors
    /// In words: a node cannot be started again.
    pub fn step(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Strike(number) => self.strike(self.faults[number].1),
            Step::Start(node) => {
                if self.nodes[node].child.is_none() {
                    self.spawn(node)?;
                    self.record(EventKind::Up { server: node as u32 });
                }
            }
            Step::GoOn(node) => {
                self.nodes[node].signal(Signal::CONT);
                self.nodes[node].stopped = false;
            }
            Step::Space(node) => {
                self.nodes[node].limit_files(None);
                let log = self.place.text(node + 1);
                // It counts if a write has failed.
                if let Some(Full { strike, log_bytes }) = self.nodes[node].full.take()
                    && log.get(log_bytes..).is_some_and(|since| since.contains(FULL))
                {
                    self.strikes.push(strike);
                }
            }
            Step::Home(node) => {
                if let Some(foreign) = self.nodes[node].foreign.take()
                    && let Some(strike) = foreign.leave()
                {
                    self.strikes.push(strike);
                }
                return self.step(Step::Start(node));
            }
            Step::Look => {
                self.look()?;
                self.later(LOOK.as_micros() as u64, Step::Look);
            }
        }
        Ok(())
    }

    /// Starts nodes again that have ended by themselves, and notes it.
    fn look(&mut self) -> Result<(), String> {
        for node in 0..self.nodes.len() {
            let Some(Ok(Some(status))) = self.nodes[node].child.as_mut().map(Child::try_wait) else { continue };
            let lines = self.place.last_lines(node + 1, LINES).join("\n    ");
            let how = status.signal().map_or_else(|| status.to_string(), |signal| format!("signal {signal}"));
            self.ended.push(format!("node {node} has ended by itself ({how}). Its last lines:\n    {lines}"));
            self.nodes[node].child = None;
            if self.shared.is_some() {
                self.record(EventKind::Down { server: node as u32, lost: Some(0) });
                self.later(0, Step::Start(node));
            }
        }
        Ok(())
    }

    fn number_of(&self, whom: Whom) -> usize {
        let behind = match whom {
            Whom::Leader => 0,
            Whom::Follower(behind) => behind,
        };
        ((self.leader() + behind) % self.nodes.len() as u32) as usize
    }

    fn strike(&mut self, fault: NodeFault) {
        let at_us = self.now_us();
        let (kind, of_leader) = match fault {
            NodeFault::Kill { whom, again_after_us } => {
                let node = self.number_of(whom);
                if !self.kill(node) {
                    return;
                }
                self.record(EventKind::Down { server: node as u32, lost: Some(0) });
                self.later(again_after_us, Step::Start(node));
                (Fault::Restart, whom == Whom::Leader)
            }
            NodeFault::Stop { whom, for_us } => {
                let node = self.number_of(whom);
                if self.nodes[node].stopped || self.nodes[node].child.is_none() {
                    return;
                }
                self.nodes[node].signal(Signal::STOP);
                self.nodes[node].stopped = true;
                self.record(EventKind::Stall { server: node as u32, for_us });
                self.later(for_us, Step::GoOn(node));
                (Fault::Stall, whom == Whom::Leader)
            }
            NodeFault::Part { shape, for_us } => {
                let nodes = self.nodes.len() as u32;
                for (apart, ways) in shape.cuts(self.leader(), nodes) {
                    self.between.part(for_us, apart, ways);
                    self.record(EventKind::Partition { apart, ways, for_us });
                }
                self.impaired_until_us = self.impaired_until_us.max(at_us + for_us);
                (Fault::Partition, shape.strikes_leader(nodes))
            }
            NodeFault::Disorder { for_us, most_us, percent } => {
                self.between.disorder(for_us, most_us, percent);
                self.record(EventKind::Disorder { for_us });
                (Fault::Disorder, false)
            }
            NodeFault::Wipe { whom, again_after_us } => {
                let node = self.number_of(whom);
                if !self.may_lose_a_disk() || !self.kill(node) {
                    return;
                }
                self.later(again_after_us, Step::Start(node));
                if std::fs::remove_dir_all(self.place.dir(node + 1).join(FOLDER)).is_err() {
                    self.record(EventKind::Down { server: node as u32, lost: Some(0) });
                    return;
                }
                self.record(EventKind::Wipe { server: node as u32 });
                (Fault::Wipe, whom == Whom::Leader)
            }
            NodeFault::FullDisk { whom, for_us } => {
                let node = self.number_of(whom);
                if self.nodes[node].full.is_some() || self.nodes[node].child.is_none() {
                    return;
                }
                let log_bytes = self.place.text(node + 1).len();
                self.nodes[node].limit_files(Some(log_bytes as u64 + LOG_ROOM));
                let strike = Strike { fault: Fault::BadDisk, at_us, of_leader: whom == Whom::Leader };
                self.nodes[node].full = Some(Full { strike, log_bytes });
                self.record(EventKind::BadDisk { server: node as u32, full: true, for_us });
                self.impaired_until_us = self.impaired_until_us.max(at_us + for_us);
                self.later(for_us, Step::Space(node));
                return;
            }
            NodeFault::HungDisk { whom, for_us } => {
                let node = self.number_of(whom);
                if self.nodes[node].stopped || self.nodes[node].child.is_none() {
                    return;
                }
                self.set(node, "test-disk-hangs-ms", (for_us / 1000) as i64);
                self.record(EventKind::HungDisk { server: node as u32, for_us });
                self.impaired_until_us = self.impaired_until_us.max(at_us + for_us);
                (Fault::HungDisk, whom == Whom::Leader)
            }
            NodeFault::Foreign { whom, for_us, place } => {
                let node = self.number_of(whom);
                if !self.may_lose_a_disk() || !self.kill(node) {
                    return;
                }
                self.record(EventKind::Foreign { server: node as u32, for_us });
                self.later(for_us, Step::Home(node));
                let strike = Strike { fault: Fault::Foreign, at_us, of_leader: whom == Whom::Leader };
                let more = self.arguments(node);
                let start =
                    NodeStart { node: node + 1, peers: &self.peers, port: self.foreign_port, more: &more, limited: false };
                match Foreign::come(&self.place, start, place, strike) {
                    Ok(foreign) => self.nodes[node].foreign = Some(foreign),
                    Err(reason) => {
                        self.ended.push(format!("no node of another cluster runs in the place of node {node}: {reason}"))
                    }
                }
                return;
            }
        };
        self.strikes.push(Strike { fault: kind, at_us, of_leader });
    }

    /// Whether the loss of a disk is the loss of a minority: all nodes have theirs, and no other fault is under way.
    fn may_lose_a_disk(&self) -> bool {
        let is_well = |node: &Node| node.child.is_some() && !node.stopped && node.full.is_none();
        self.nodes.iter().all(is_well)
            && self.impaired_until_us < self.now_us()
            && (0..self.nodes.len()).all(|node| self.votes(node))
    }

    /// Sets the wall clock of a node. One that does not run has it from its next start on.
    pub fn step_clock(&mut self, server: u32, by_ms: i64) {
        let Some(node) = self.nodes.get_mut(server as usize) else { return };
        node.wrong_ms += by_ms;
        let wrong_ms = node.wrong_ms;
        self.strikes.push(Strike { fault: Fault::Skew, at_us: self.now_us(), of_leader: server == self.leader() });
        self.record(EventKind::StepOfNode { server, by_ms });
        self.set(server as usize, "test-wall-clock-ms", wrong_ms);
    }

    /// Sets a directive for tests at a node, unless it does not answer.
    fn set(&self, node: usize, directive: &'static str, value: i64) {
        let url = format!("redis://127.0.0.1:{}", self.nodes[node].port);
        tokio::spawn(async move {
            let Ok(options) = url.parse::<Options>() else { return };
            let set = Command::new("CONFIG").arg("SET").arg(directive).arg(value);
            if let Ok(client) = Client::with(options.connect_timeout(ANSWER).response_timeout(ANSWER)).await {
                let _ = client.run(set).await;
            }
        });
    }

    /// Lets everything go on, and ends the watch. Returns what happened.
    pub fn finish(&mut self, history: &mut History) -> Toll {
        let Some((shared, watch)) = self.shared.take() else { return Toll::default() };
        watch.complete(history, shared.now_us());
        let (lost, checked) = watch.lost();
        let toll = Toll::of(&self.strikes, |at_us| watch.gap_us(at_us));
        Toll { lost, checked, ended: std::mem::take(&mut self.ended), ..toll }
    }
}
