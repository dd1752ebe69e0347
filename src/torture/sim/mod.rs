//! The simulation: the engine, a network and clients in one process on virtual time. The same plan gives the same history.
//!
//! - [`net`]: the event queue, connections, calls and timers; [`link`]: delays and losses between a client and a server;
//! - [`server`]: the real engine as a server; [`durable`], [`machine`], [`disk`]: its log and files; [`threads`]: what its process does beside; [`inherited`]: files that it may find; [`executor`]: runs the clients' tasks; [`clock`]: their clocks;
//! - [`replica`]: servers that are nodes of one replicated service;
//! - [`world`]: what algorithms and clients see of all this.

pub mod clock;
pub mod disk;
pub mod durable;
pub mod executor;
pub mod inherited;
pub mod link;
pub mod machine;
pub mod net;
pub mod registers;
pub mod replica;
pub mod server;
pub mod threads;
pub mod world;

use std::sync::{Arc, Mutex};

use crate::recipes::Algorithm;
use crate::torture::history::{EventKind, History, NO_CLIENT, Op};
use crate::torture::plan::{Injection, Job, Plan, streams};
use crate::torture::random::Random;
use crate::torture::sim::executor::Executor;
use crate::torture::sim::net::{Event, Net};
use crate::torture::sim::replica::cluster::Cluster;
use crate::torture::sim::replica::node::{End, Replica};
use crate::torture::sim::server::{Ended, Server};
use crate::torture::sim::threads::Done;
use crate::torture::sim::world::{Shared, SimWorld, lock};
use crate::torture::workload::{self, Setup};

/// An algorithm for the simulation.
pub type SimAlgorithm = Arc<dyn Algorithm<SimWorld>>;

/// The state of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    Paused,
    /// Until it restarts.
    Crashed,
}

/// From when on the operators of durable servers change how these store.
const OPERATED_FROM_US: u64 = 5_000_000;

/// Number of bytes that may wait to be stored on durable servers whose clients use plain keys: those of a few commands.
pub const WAITING_MAX: u64 = 512;
/// The same on nodes, whose unchecked clients write more at a time.
const WAITING_ON_NODES_MAX: u64 = 100 << 10;

/// What clients do.
enum Work<'a> {
    /// They use locks.
    Locks(&'a SimAlgorithm),
    /// They use plain keys.
    Registers(crate::torture::sim::registers::Noted),
}

struct Simulation<'a> {
    plan: &'a Plan,
    work: Work<'a>,
    net: Shared,
    executor: Executor,
    /// What the nodes of a replicated service share.
    cluster: Option<Cluster>,
    servers: Vec<Server>,
    clients: Vec<State>,
    jobs: Vec<Arc<[Job]>>,
    setup: Setup,
    /// Random choices that concern servers.
    random: Random,
}

/// Runs an episode and returns its history.
pub fn run(plan: &Plan, algorithm: &SimAlgorithm) -> History {
    run_work(plan, Work::Locks(algorithm)).0
}

/// What clients of plain keys have done in an episode.
pub struct Registers {
    /// Their commands.
    pub operations: Vec<crate::torture::check::linear::Operation>,
    /// The greatest number of bytes that waited to be stored.
    pub waited_max: u64,
    /// What servers have done.
    #[cfg_attr(not(any(test, feature = "internals")), allow(dead_code, reason = "tests read it"))]
    pub done: Done,
}

/// Runs an episode in which clients use plain keys. Servers are stressed: other clients make noise, few bytes may wait to be
/// stored, and durable ones begin with the files of a Redis, and their operators change often how they store.
pub fn run_registers(plan: &Plan) -> Registers {
    let noted = crate::torture::sim::registers::Noted::default();
    let (_, waited_max, done) = run_work(plan, Work::Registers(Arc::clone(&noted)));
    let noted = std::mem::take(&mut *noted.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
    Registers { operations: noted.into_iter().flatten().collect(), waited_max, done }
}

fn run_work(plan: &Plan, work: Work<'_>) -> (History, u64, Done) {
    let cluster = plan.replicas.map(|_| Cluster::new(plan));
    let server = |number: u32| {
        let seed = Random::new(plan.seed, streams::ENGINE, u64::from(number)).draw();
        let loses_writes =
            |injection: &Injection| matches!(injection, Injection::Down { server, lost: Some(_), .. } if *server == number);
        if let (Some(cluster), Some(replicas)) = (&cluster, plan.replicas)
            && number < replicas.nodes
        {
            let replica = Replica::new(
                number,
                replicas.nodes,
                seed,
                replicas.planted,
                (Arc::clone(&cluster.sockets), Arc::clone(&cluster.votes)),
            );
            return Server::replica(number, seed, replica);
        }
        match plan.durable {
            // The guarded resources' server has no faults.
            Some(planted) if number < plan.machines() => Server::durable(number, seed, planted),
            _ => Server::new(number, seed, plan.faults.iter().any(|fault| loses_writes(&fault.injection))),
        }
    };
    let mut simulation = Simulation {
        plan,
        work,
        net: Arc::new(Mutex::new(Net::new(plan))),
        executor: Executor::new(plan.clients.len()),
        servers: (0..=plan.machines()).map(server).collect(),
        cluster,
        clients: vec![State::Running; plan.clients.len()],
        jobs: plan.clients.iter().map(|jobs| Arc::from(jobs.as_slice())).collect(),
        setup: Setup::new(plan, String::new()),
        random: Random::new(plan.seed, streams::ENGINE, u64::MAX),
    };
    if let Work::Locks(algorithm) = &simulation.work {
        lock(&simulation.net).bound_to_connections = algorithm.facts().session;
    }
    simulation.start_nodes();
    if matches!(simulation.work, Work::Registers(_)) {
        simulation.servers[..plan.machines() as usize].iter_mut().for_each(Server::inherit);
    }
    if plan.durable.is_some() {
        simulation.servers[..plan.machines() as usize].iter_mut().for_each(|server| _ = server.start(&simulation.net));
    }
    if matches!(simulation.work, Work::Registers(_)) {
        for server in &mut simulation.servers[..plan.machines() as usize] {
            server.stress(if plan.durable.is_some() { WAITING_MAX } else { WAITING_ON_NODES_MAX });
            lock(&simulation.net).at(OPERATED_FROM_US, Event::Noise(server.number));
        }
    }
    if plan.durable.is_some() {
        (0..plan.machines()).for_each(|server| lock(&simulation.net).at(OPERATED_FROM_US, Event::OperateServer(server)));
    }
    for client in 0..plan.clients.len() as u32 {
        // A client without jobs does not appear in the history.
        if !plan.clients[client as usize].is_empty() {
            simulation.start(client);
        }
    }
    simulation.run();
    let waited_max = simulation.servers.iter().map(|server| server.waited_max).max();
    let mut done = Done::default();
    simulation.servers.iter().for_each(|server| done += server.done);
    (simulation.finish(), waited_max.unwrap_or_default(), done)
}

impl Simulation<'_> {
    fn run(&mut self) {
        loop {
            self.settle();
            if self.executor.is_empty() && !self.clients.contains(&State::Crashed) {
                return;
            }
            if self.ring() {
                continue;
            }
            let Some(event) = lock(&self.net).next(self.plan.end_us) else { return };
            self.handle(event);
            self.start_ended();
        }
    }

    /// Durable servers that have ended by themselves, because they could not go on, are started again.
    fn start_ended(&mut self) {
        if self.plan.durable.is_none() {
            return;
        }
        for server in &mut self.servers {
            let Some(how) = server.take_ended() else { continue };
            lock(&self.net).record(NO_CLIENT, EventKind::Down { server: server.number, lost: Some(0) });
            server.start_later(&self.net, how);
        }
    }

    /// Runs all tasks that can make progress now.
    fn settle(&mut self) {
        loop {
            while self.executor.run_one() {
                let spawned = std::mem::take(&mut lock(&self.net).spawned);
                for (client, task) in spawned {
                    self.executor.spawn(client, task);
                }
            }
            if !self.settle_nodes() {
                return;
            }
        }
    }

    fn handle(&mut self, event: Event) {
        if self.waits_for_node(event) {
            return;
        }
        match event {
            Event::ToServer(conn) => {
                let server = lock(&self.net).conn(conn).server;
                self.servers[server as usize].arrive(&self.net, conn);
            }
            Event::ToClient(conn) => lock(&self.net).arrive(conn),
            Event::Broken(conn) => lock(&self.net).broken(conn, false),
            Event::BrokenAtServer(conn) => {
                let server = lock(&self.net).conn(conn).server;
                self.servers[server as usize].disconnect(&self.net, conn);
            }
            Event::Timer(key) => lock(&self.net).fire(key),
            Event::Timeout(key) => lock(&self.net).time_out(key),
            Event::Again(key) => lock(&self.net).send_again(key),
            Event::Tick(server) => self.servers[server as usize].tick(&self.net),
            Event::Fault(index) => self.inject(self.plan.faults[index as usize].injection),
            Event::Resume(client) => {
                if self.clients[client as usize] == State::Paused {
                    self.clients[client as usize] = State::Running;
                    self.executor.resume(client);
                }
            }
            Event::Restart(client) => self.start(client),
            Event::Up(server) => {
                lock(&self.net).record(NO_CLIENT, EventKind::Up { server });
                let started = match &mut self.cluster {
                    Some(cluster) => self.servers[server as usize].start_node(&mut lock(&self.net), &mut cluster.runtime),
                    None => self.servers[server as usize].start(&self.net),
                };
                if !started && self.plan.durable.is_some() {
                    self.servers[server as usize].start_later(&self.net, Ended::Refused);
                } else if !started && !self.starts_later(server) && !self.starts_anew(server) {
                    lock(&self.net).record(NO_CLIENT, EventKind::Refused { server });
                }
            }
            Event::Synced(server, process) => self.synced(server, process),
            Event::Threads(server) => self.servers[server as usize].work(&self.net),
            Event::Noise(server) => self.servers[server as usize].make_noise(&mut lock(&self.net)),
            Event::OperateServer(server) => self.servers[server as usize].operate(&self.net),
            Event::Arrives(..)
            | Event::SentAgain(..)
            | Event::Breaks(_)
            | Event::NobodyWaits(..)
            | Event::GoOn(_)
            | Event::Mended(_)
            | Event::Home(_)
            | Event::Operate => self.handle_of_nodes(event),
        }
    }

    fn start(&mut self, client: u32) {
        self.clients[client as usize] = State::Running;
        let world = SimWorld::new(Arc::clone(&self.net), client);
        let life: executor::Run = match &self.work {
            Work::Locks(algorithm) => {
                let jobs = Arc::clone(&self.jobs[client as usize]);
                Box::pin(workload::run_client(world, client, Arc::clone(algorithm), jobs, self.setup.clone()))
            }
            Work::Registers(noted) => {
                Box::pin(crate::torture::sim::registers::run_client(world, client, self.plan.end_us, Arc::clone(noted)))
            }
        };
        self.executor.spawn(client, life);
    }

    fn inject(&mut self, injection: Injection) {
        let mut net = lock(&self.net);
        let now_us = net.now_us;
        let state = injection.client().map(|client| self.clients[client as usize]);
        match injection {
            // A fault has no effect on a crashed client.
            _ if state == Some(State::Crashed) => {}
            Injection::Pause { client, for_us } => {
                if state == Some(State::Running) {
                    self.clients[client as usize] = State::Paused;
                    self.executor.pause(client);
                    net.record(client, EventKind::Pause { for_us });
                    net.at(now_us + for_us, Event::Resume(client));
                }
            }
            Injection::Jump { client, by_ms } => {
                net.clients[client as usize].clock.set_by_ms += by_ms;
                net.record(client, EventKind::Jump { by_ms });
            }
            Injection::Drift { client, ppm } => {
                net.clients[client as usize].clock.ppm = ppm;
                net.record(client, EventKind::Drift { ppm });
            }
            Injection::Crash { client, machine, again_after_us } => {
                self.clients[client as usize] = State::Crashed;
                net.record(client, EventKind::Crash { machine });
                net.crash(client, machine, now_us + again_after_us);
                net.at(now_us + again_after_us, Event::Restart(client));
                drop(net);
                self.executor.crash(client);
            }
            Injection::Down { server, lost, again_after_us } => {
                drop(net);
                let of = &mut self.servers[server as usize];
                let in_order = of.ends_in_order() && self.random.percent(50);
                let went = if in_order {
                    // A node that leads ends later, when another one does.
                    of.terminate(&self.net)
                } else {
                    // When a process ends, its machine closes the connections. When a machine ends, nothing is sent.
                    let silent = self.random.percent(30);
                    of.down(&self.net, lost, silent)
                };
                if went {
                    self.end_node(server, if in_order { End::InOrder } else { End::Killed });
                    let mut net = lock(&self.net);
                    net.record(NO_CLIENT, EventKind::Down { server, lost });
                    net.at(now_us + again_after_us, Event::Up(server));
                }
            }
            Injection::PowerLoss { server, wall_step_ms, again_after_us } => {
                drop(net);
                if self.servers[server as usize].lose_power(&self.net, wall_step_ms) {
                    self.end_node(server, End::PowerLost);
                    self.step_node(server, wall_step_ms);
                    let mut net = lock(&self.net);
                    net.record(NO_CLIENT, EventKind::PowerLoss { server, wall_step_ms });
                    net.at(now_us + again_after_us, Event::Up(server));
                }
            }
            Injection::Delay { client, server, for_us, most_us } => {
                net.link(client, server).delay(now_us + for_us, most_us);
                net.record(client, EventKind::Delay { server, for_us });
            }
            Injection::Loss { client, server, for_us, percent, breaks } => {
                net.link(client, server).lose(now_us + for_us, percent, breaks);
                net.record(client, EventKind::Loss { server, for_us });
            }
            Injection::Partition { .. }
            | Injection::Disorder { .. }
            | Injection::Stall { .. }
            | Injection::Wipe { .. }
            | Injection::BadDisk { .. }
            | Injection::HungDisk { .. }
            | Injection::BitRot { .. }
            | Injection::Members { .. }
            | Injection::CutOff { .. }
            | Injection::Foreign { .. }
            | Injection::DriftOfNode { .. }
            | Injection::StepOfNode { .. } => {
                drop(net);
                self.inject_in_nodes(injection);
            }
            Injection::Resend { client } => {
                if let Some(server) = net.resend(client) {
                    net.record(client, EventKind::Resend { server });
                }
            }
        }
    }

    /// Reads what the guarded resources have accepted, and returns the history.
    fn finish(mut self) -> History {
        for client in 0..self.clients.len() as u32 {
            // Drops the remaining tasks. This is not an event of the history.
            self.executor.crash(client);
        }
        let mut net = lock(&self.net);
        let store = &mut self.servers[self.plan.machines() as usize];
        for lock in 0..self.plan.locks {
            let ops = store.list(&mut net, &workload::resource_name("", lock)).into_iter().map(|op| op as Op).collect();
            net.record(NO_CLIENT, EventKind::Stored { lock, ops });
        }
        net.history.commands = net.clients.iter().map(|client| client.sent).sum();
        std::mem::take(&mut net.history)
    }
}
