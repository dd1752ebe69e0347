//! The simulation: the engine, a network and clients in one process on virtual time. The same plan gives the same history.

pub mod clock;
pub mod executor;
pub mod link;
pub mod net;
pub mod server;
pub mod world;

use std::sync::{Arc, Mutex};

use crate::recipes::Algorithm;
use crate::torture::history::{History, NOBODY, Op, What};
use crate::torture::plan::{Harm, Plan, Wish, purpose};
use crate::torture::random::Random;
use crate::torture::sim::executor::Executor;
use crate::torture::sim::net::{Event, Net};
use crate::torture::sim::server::Server;
use crate::torture::sim::world::{Shared, SimWorld, lock};
use crate::torture::workload::{self, Terms};

/// How an algorithm is run here.
pub type Simulated = Arc<dyn Algorithm<SimWorld>>;

/// What a client is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Lives,
    Pauses,
    /// Until it starts again.
    Crashed,
}

struct Simulation<'a> {
    plan: &'a Plan,
    algorithm: &'a Simulated,
    net: Shared,
    executor: Executor,
    servers: Vec<Server>,
    clients: Vec<State>,
    wishes: Vec<Arc<[Wish]>>,
    terms: Terms,
    /// Luck of servers.
    random: Random,
}

/// Runs an episode, and gives what has happened in it.
pub fn run(plan: &Plan, algorithm: &Simulated) -> History {
    let server = |number: u32| {
        let seed = Random::new(plan.seed, purpose::ENGINE, u64::from(number)).draw();
        let loses = |harm: &Harm| matches!(harm, Harm::Down { server, lost: Some(_), .. } if *server == number);
        Server::new(number, seed, plan.faults.iter().any(|fault| loses(&fault.harm)))
    };
    let mut simulation = Simulation {
        plan,
        algorithm,
        net: Arc::new(Mutex::new(Net::new(plan))),
        executor: Executor::new(plan.clients.len()),
        servers: (0..=plan.servers).map(server).collect(),
        clients: vec![State::Lives; plan.clients.len()],
        wishes: plan.clients.iter().map(|wishes| Arc::from(wishes.as_slice())).collect(),
        terms: Terms::new(plan, String::new()),
        random: Random::new(plan.seed, purpose::ENGINE, u64::MAX),
    };
    for client in 0..plan.clients.len() as u32 {
        // Who wants nothing does not appear.
        if !plan.clients[client as usize].is_empty() {
            simulation.start(client);
        }
    }
    simulation.run();
    simulation.finish()
}

impl Simulation<'_> {
    fn run(&mut self) {
        loop {
            self.settle();
            if self.executor.is_empty() && !self.clients.contains(&State::Crashed) {
                return;
            }
            let Some(event) = lock(&self.net).next(self.plan.end_us) else { return };
            self.happen(event);
        }
    }

    /// Has everybody do what they can do now.
    fn settle(&mut self) {
        while self.executor.run_one() {
            let spawned = std::mem::take(&mut lock(&self.net).spawned);
            for (client, task) in spawned {
                self.executor.spawn(client, task);
            }
        }
    }

    fn happen(&mut self, event: Event) {
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
            Event::Tick(server) => self.servers[server as usize].tick(&self.net),
            Event::Fault(index) => self.harm(self.plan.faults[index as usize].harm),
            Event::Resume(client) => {
                if self.clients[client as usize] == State::Pauses {
                    self.clients[client as usize] = State::Lives;
                    self.executor.resume(client);
                }
            }
            Event::Restart(client) => self.start(client),
            Event::Up(server) => {
                lock(&self.net).record(NOBODY, What::Up { server });
                self.servers[server as usize].start(&self.net);
            }
        }
    }

    fn start(&mut self, client: u32) {
        self.clients[client as usize] = State::Lives;
        let world = SimWorld::new(Arc::clone(&self.net), client);
        let wishes = Arc::clone(&self.wishes[client as usize]);
        let life = workload::live(world, client, Arc::clone(self.algorithm), wishes, self.terms.clone());
        self.executor.spawn(client, Box::pin(life));
    }

    fn harm(&mut self, harm: Harm) {
        let mut net = lock(&self.net);
        let now_us = net.now_us;
        let state = harm.client().map(|client| self.clients[client as usize]);
        match harm {
            // Nothing more can be done to who is not there.
            _ if state == Some(State::Crashed) => {}
            Harm::Pause { client, for_us } => {
                if state == Some(State::Lives) {
                    self.clients[client as usize] = State::Pauses;
                    self.executor.pause(client);
                    net.record(client, What::Pause { for_us });
                    net.at(now_us + for_us, Event::Resume(client));
                }
            }
            Harm::Jump { client, by_ms } => {
                net.clients[client as usize].clock.set_by_ms += by_ms;
                net.record(client, What::Jump { by_ms });
            }
            Harm::Drift { client, ppm } => {
                net.clients[client as usize].clock.ppm = ppm;
                net.record(client, What::Drift { ppm });
            }
            Harm::Crash { client, machine, again_after_us } => {
                self.clients[client as usize] = State::Crashed;
                net.record(client, What::Crash { machine });
                net.crash(client, machine, now_us + again_after_us);
                net.at(now_us + again_after_us, Event::Restart(client));
                drop(net);
                self.executor.crash(client);
            }
            Harm::Down { server, lost, again_after_us } => {
                drop(net);
                // A process that ends has its machine tell so; a machine tells nobody.
                let silent = self.random.percent(30);
                if self.servers[server as usize].down(&self.net, lost, silent) {
                    let mut net = lock(&self.net);
                    net.record(NOBODY, What::Down { server, lost });
                    net.at(now_us + again_after_us, Event::Up(server));
                }
            }
            Harm::Delay { client, server, for_us, most_us } => {
                net.link(client, server).delay(now_us + for_us, most_us);
                net.record(client, What::Delay { server, for_us });
            }
            Harm::Loss { client, server, for_us, percent, breaks } => {
                net.link(client, server).lose(now_us + for_us, percent, breaks);
                net.record(client, What::Loss { server, for_us });
            }
            Harm::Resend { client } => {
                if let Some(server) = net.resend(client) {
                    net.record(client, What::Resend { server });
                }
            }
        }
    }

    /// Asks the guarded resources what they have accepted, and ends it.
    fn finish(mut self) -> History {
        for client in 0..self.clients.len() as u32 {
            // Nobody is left to do anything; that is not part of what has happened.
            self.executor.crash(client);
        }
        let mut net = lock(&self.net);
        let now_us = net.now_us;
        let store = &mut self.servers[self.plan.servers as usize];
        for lock in 0..self.plan.locks {
            let ops = store.list(now_us, &workload::resource_name("", lock)).into_iter().map(|op| op as Op).collect();
            net.record(NOBODY, What::Stored { lock, ops });
        }
        net.history.commands = net.clients.iter().map(|client| client.sent).sum();
        std::mem::take(&mut net.history)
    }
}
