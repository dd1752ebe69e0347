//! The same workload and the same faults against real servers, in real time.
//!
//! Each client reaches each server through a proxy of its own, on which messages are late or lost and connections break. Servers that were
//! started here are ended and started again; those of this crate in test mode are told to by `FAULT`, also to lose their last writes. Clients
//! pause, crash and have wrong clocks as in the simulation. The guarded resources are on a server of this crate that nothing happens to.
//!
//! The plan follows from the seed; what happens does not, as real time comes in. In which order servers granted native locks is known of those
//! that were started here by their change logs ([`orders`]), and of other servers of this crate by `MONITOR` ([`monitor`]), unless they refuse
//! it. Otherwise a grant counts from when its holder knew of it.

mod monitor;
mod orders;
mod proxy;
mod servers;
mod world;

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout_at;

use crate::bench::unless_told_to_end;
use crate::client::{Client, Command, Options, Result};
use crate::recipes::{Algorithm, Live};
use crate::torture::history::{History, NOBODY, Op, What};
use crate::torture::live::monitor::Following;
use crate::torture::live::orders::Orders;
use crate::torture::live::proxy::Proxy;
use crate::torture::live::servers::Backend;
use crate::torture::live::world::{LiveWorld, Machine, Order, Shared, lock};
use crate::torture::plan::{Harm, Plan, When, Wish, purpose};
use crate::torture::random::Random;
use crate::torture::subject::Subject;
use crate::torture::workload::{self, Terms};

/// When a server hears at the latest that a client's machine is gone, in leases.
const UNSEEN_LEASES: u32 = 2;
/// Between two attempts of a client that starts to connect.
const CONNECT_PAUSE: Duration = Duration::from_millis(20);

/// What came of a live run.
pub struct Tortured {
    /// What has happened.
    pub history: History,
    /// By what it is known in which order servers did it; a line for each that was given by its URL and has native locks.
    pub orders: Vec<String>,
}

/// Runs a plan against servers: `self` and `redis-server` are started, all else are URLs. Gives what has happened.
///
/// # Errors
/// Where it cannot be run.
pub fn run(plan: &Plan, subject: &Subject, servers: &[String]) -> std::result::Result<Tortured, String> {
    let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
    runtime.block_on(unless_told_to_end(async {
        let algorithm = subject.make().ok_or_else(|| format!("there is no algorithm '{}'", subject.algorithm))?;
        let mut torture = Torture::new(plan, algorithm, servers).await?;
        torture.run().await?;
        torture.finish().await
    }))
}

struct Torture<'a> {
    plan: &'a Plan,
    algorithm: Arc<dyn Algorithm<LiveWorld>>,
    shared: Arc<Shared>,
    orders: UnboundedReceiver<Order>,
    /// What servers did in which order.
    done: Arc<Orders>,
    /// And what those have shown that were given by their URLs.
    followed: Vec<Following>,
    /// What is said of them.
    says: Vec<String>,
    /// The last one has the guarded resources.
    backends: Vec<Backend>,
    /// Of each client to each server.
    proxies: Vec<Vec<Proxy>>,
    machines: Vec<Arc<Machine>>,
    /// Clients that are there, by how often they have started; 0 for those that are not.
    alive: Vec<u32>,
    lives: u32,
    up: Vec<bool>,
    terms: Terms,
}

impl<'a> Torture<'a> {
    async fn new(
        plan: &'a Plan,
        algorithm: Arc<dyn Algorithm<LiveWorld>>,
        servers: &[String],
    ) -> std::result::Result<Torture<'a>, String> {
        let (sender, orders) = unbounded_channel();
        let shared = Arc::new(Shared::new(sender));
        let done = Orders::new(shared.start);
        let mut backends = Vec::new();
        for word in servers.iter().map(String::as_str).chain(["self"]) {
            backends.push(Backend::new(word, Arc::clone(&done)).await?);
        }
        let prefix = format!("torture:{:x}:", std::process::id() as u64 ^ plan.seed);
        let (mut followed, mut says) = (Vec::new(), Vec::new());
        for backend in backends.iter().filter(|backend| algorithm.facts().native && backend.can_be_followed()) {
            match Following::begin(&backend.url_by(&backend.addr), &prefix, shared.start).await {
                Ok(following) => {
                    followed.push(following);
                    says.push(format!("judged by the order of {}, which MONITOR shows", backend.addr));
                }
                Err(error) => {
                    says.push(format!("judged without the order of {}, which does not show it by MONITOR: {error}", backend.addr))
                }
            }
        }
        let (mut proxies, mut machines) = (Vec::new(), Vec::new());
        for client in 0..plan.clients.len() as u32 {
            let mut of_client = Vec::new();
            for (server, backend) in backends.iter().enumerate() {
                let random = Random::new(plan.seed, purpose::LINK, u64::from(client) << 32 | server as u64);
                let proxy = Proxy::start(backend.addr.clone(), shared.start, random).await;
                of_client.push(proxy.map_err(|error| format!("proxy: {error}"))?);
            }
            proxies.push(of_client);
            let mut triggers = Vec::new();
            for (index, fault) in plan.faults.iter().enumerate() {
                if let When::Sent { client: whose, nth, after_us } = fault.when
                    && whose == client
                {
                    triggers.push((nth, Duration::from_micros(after_us), index as u32));
                }
            }
            triggers.sort_by_key(|trigger| Reverse((trigger.0, trigger.2)));
            machines.push(Arc::new(Machine::new(client, Arc::clone(&shared), servers.len(), triggers)));
        }
        let terms = Terms::new(plan, prefix);
        let (alive, up) = (vec![0; machines.len()], vec![true; backends.len()]);
        Ok(Torture {
            plan,
            algorithm,
            shared,
            orders,
            done,
            followed,
            says,
            backends,
            proxies,
            machines,
            alive,
            lives: 0,
            up,
            terms,
        })
    }

    async fn run(&mut self) -> std::result::Result<(), String> {
        for (index, fault) in self.plan.faults.iter().enumerate() {
            if let When::At(at_us) = fault.when {
                self.order(Order::Harm(index as u32, Duration::from_micros(at_us)));
            }
        }
        (0..self.machines.len() as u32).for_each(|client| self.start(client));
        let end = (self.shared.start + Duration::from_micros(self.plan.end_us)).into();
        // Those that crashed come again.
        let mut gone = 0;
        while gone > 0 || self.alive.iter().any(|life| *life > 0) {
            let Ok(Some(order)) = timeout_at(end, self.orders.recv()).await else { break };
            match order {
                Order::Harm(index, Duration::ZERO) => gone += self.harm(self.plan.faults[index as usize].harm).await,
                Order::Harm(index, after) => self.later(after, Order::Harm(index, Duration::ZERO)),
                Order::Start(client) => {
                    self.start(client);
                    gone -= 1;
                }
                Order::Up(server) => {
                    self.backends[server as usize].up()?;
                    self.up[server as usize] = true;
                    self.shared.record(NOBODY, What::Up { server });
                }
                Order::Done(client, life) if self.alive[client as usize] == life => self.alive[client as usize] = 0,
                Order::Done(..) => {}
            }
        }
        Ok(())
    }

    fn order(&self, order: Order) {
        // Somebody listens as long as this is there.
        let _ = self.shared.orders.send(order);
    }

    fn later(&self, after: Duration, order: Order) {
        let orders = self.shared.orders.clone();
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            let _ = orders.send(order);
        });
    }

    fn start(&mut self, client: u32) {
        self.lives += 1;
        let life = self.lives;
        self.alive[client as usize] = life;
        let machine = Arc::clone(&self.machines[client as usize]);
        let urls: Vec<String> = self
            .backends
            .iter()
            .zip(&self.proxies[client as usize])
            .map(|(backend, proxy)| backend.url_by(&proxy.addr))
            .collect();
        let (algorithm, terms) = (Arc::clone(&self.algorithm), self.terms.clone());
        let wishes: Arc<[Wish]> = Arc::from(self.plan.clients[client as usize].as_slice());
        let (shared, of_client) = (Arc::clone(&self.shared), Arc::clone(&machine));
        machine.run(async move {
            let live = connect(&urls, terms.lease / 5).await;
            workload::live(LiveWorld::new(live, of_client), client, algorithm, wishes, terms).await;
            let _ = shared.orders.send(Order::Done(client, life));
        });
    }

    /// Gives how many clients are gone by it, and will come again.
    async fn harm(&mut self, harm: Harm) -> usize {
        let now_us = self.shared.now_us();
        let soon = |us: u64| Instant::now() + Duration::from_micros(us);
        if harm.client().is_some_and(|client| self.alive[client as usize] == 0) {
            return 0;
        }
        match harm {
            Harm::Pause { client, for_us } => {
                if self.machines[client as usize].pause(soon(for_us)) {
                    self.shared.record(client, What::Pause { for_us });
                }
            }
            Harm::Jump { client, by_ms } => {
                self.machines[client as usize].clock().set_by_ms += by_ms;
                self.shared.record(client, What::Jump { by_ms });
            }
            Harm::Drift { client, ppm } => {
                self.machines[client as usize].clock().ppm = ppm;
                self.shared.record(client, What::Drift { ppm });
            }
            Harm::Crash { client, machine, again_after_us } => {
                if machine {
                    let unseen = (self.terms.lease * UNSEEN_LEASES).min(Duration::from_micros(again_after_us));
                    self.proxies[client as usize].iter().for_each(|proxy| proxy.silent_until(Instant::now() + unseen));
                }
                self.shared.record(client, What::Crash { machine });
                self.machines[client as usize].crash();
                self.alive[client as usize] = 0;
                self.later(Duration::from_micros(again_after_us), Order::Start(client));
                return 1;
            }
            Harm::Down { server, lost, again_after_us } => {
                let backend = &mut self.backends[server as usize];
                if self.up[server as usize] && backend.can_go_down(lost) {
                    self.shared.record(NOBODY, What::Down { server, lost });
                    if backend.down(lost).await {
                        self.up[server as usize] = false;
                        self.later(Duration::from_micros(again_after_us), Order::Up(server));
                    } else {
                        self.shared.record(NOBODY, What::Up { server });
                    }
                }
            }
            Harm::Delay { client, server, for_us, most_us } => {
                self.proxies[client as usize][server as usize].link().delay(now_us + for_us, most_us);
                self.shared.record(client, What::Delay { server, for_us });
            }
            Harm::Loss { client, server, for_us, percent, breaks } => {
                self.proxies[client as usize][server as usize].link().lose(now_us + for_us, percent, breaks);
                self.shared.record(client, What::Loss { server, for_us });
            }
            Harm::Resend { client } => {
                self.machines[client as usize].resend();
                self.proxies[client as usize][0].swallow();
                self.shared.record(client, What::Resend { server: 0 });
            }
        }
        0
    }

    async fn finish(mut self) -> std::result::Result<Tortured, String> {
        self.machines.iter().for_each(|machine| machine.crash());
        let store = self.backends.pop().ok_or("there is no server for the resources")?;
        for lock in 0..self.plan.locks {
            let ops = stored(&store, &workload::resource_name(&self.terms.prefix, lock)).await;
            let ops = ops.map_err(|error| format!("the guarded resource: {error}"))?;
            self.shared.record(NOBODY, What::Stored { lock, ops });
        }
        for backend in &self.backends {
            backend.clean(&self.terms.prefix).await;
        }
        let mut history = std::mem::take(&mut *lock(&self.shared.history));
        self.done.complete(&mut history);
        for following in self.followed {
            following.complete(&mut history).await;
        }
        Ok(Tortured { history, orders: self.says })
    }
}

async fn stored(store: &Backend, key: &[u8]) -> Result<Vec<Op>> {
    let client = Client::connect(&store.url_by(&store.addr)).await?;
    let ops: Vec<u64> = client.query(Command::new("LRANGE").arg(key).arg(0).arg(-1)).await?;
    Ok(ops.into_iter().map(|op| op as Op).collect())
}

/// Connects to all servers, however long it takes.
async fn connect(urls: &[String], timeout: Duration) -> Live {
    let mut clients = Vec::new();
    for url in urls {
        loop {
            let options: Result<Options> = url.parse();
            let connected = match options {
                Ok(options) => Client::with(options.response_timeout(timeout).connect_timeout(timeout)).await,
                Err(error) => Err(error),
            };
            match connected {
                Ok(client) => break clients.push(client),
                Err(_) => tokio::time::sleep(CONNECT_PAUSE).await,
            }
        }
    }
    Live::new(clients)
}
