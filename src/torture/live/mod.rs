//! A live run: the same workload and faults against real servers, in real time.
//!
//! Each client reaches each server through its own [`proxy`], which delays and loses messages and breaks connections. Servers
//! that were started here are stopped and started again. A given server of this crate in test mode is restarted by `FAULT`, which
//! also makes it lose its last writes. Clients pause, crash and have wrong clocks as in the simulation. The guarded resources are
//! on a server of this crate that has no faults.
//!
//! A replicated server is started as processes, and has faults of its own ([`nodes`]). Algorithms see one server, whose client has all
//! nodes.
//!
//! The plan follows from the seed; the history does not, because it depends on real time. The order in which a server granted
//! native locks comes from its change log if it was started here ([`grant_log`]), and from `MONITOR` if it is another server of
//! this crate that permits it ([`monitor`]). Otherwise a grant counts from when its holder knew of it.

mod grant_log;
mod monitor;
pub mod nodes;
mod proxy;
mod servers;
mod world;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout_at;

use crate::bench::unless_interrupted;
use crate::client::{Client, Command, Options, Result};
use crate::recipes::{Algorithm, Live};
use crate::torture::history::{EventKind, History, NO_CLIENT, Op};
use crate::torture::live::grant_log::GrantLog;
use crate::torture::live::monitor::MonitorFollower;
use crate::torture::live::nodes::{Nodes, Toll};
use crate::torture::live::proxy::Proxy;
use crate::torture::live::servers::Backend;
use crate::torture::live::world::{Action, LiveWorld, Machine, Shared, lock};
use crate::torture::plan::{Injection, Job, Plan, Settings, UNSEEN_LEASES, When, streams};
use crate::torture::random::Random;
use crate::torture::subject::Subject;
use crate::torture::workload::{self, Setup};

/// The part of a lease after which a client gives a reply up, of one server and of nodes, which need some time to elect a leader.
const REPLY_PARTS: u32 = 5;
const NODE_REPLY_PARTS: u32 = 3;
/// Pause between a starting client's attempts to connect.
const CONNECT_PAUSE: Duration = Duration::from_millis(20);

/// The result of a live run.
pub struct LiveResult {
    /// The history.
    pub history: History,
    /// For each server that was given by its URL and has native locks: the source of the order of its grants, in words.
    pub order_sources: Vec<String>,
    /// What happened to the nodes of a replicated service.
    pub toll: Option<Toll>,
}

/// The plan of a live run.
pub fn plan(settings: &Settings, episode: u64) -> Plan {
    if settings.replicas.is_some() { nodes::plan_of_clients(settings, episode) } else { Plan::draw(settings, episode) }
}

/// Runs a plan against servers. The words `self` and `redis-server` start a server; all others are URLs.
///
/// # Errors
/// The reason why it cannot be run, in words for people.
pub fn run(settings: &Settings, plan: &Plan, subject: &Subject, servers: &[String]) -> std::result::Result<LiveResult, String> {
    let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
    runtime.block_on(unless_interrupted(async {
        let algorithm = subject.make().ok_or_else(|| format!("there is no algorithm '{}'", subject.algorithm))?;
        let mut torture = LiveRun::new(settings, plan, algorithm, servers).await?;
        torture.run().await?;
        torture.finish().await
    }))
}

struct LiveRun<'a> {
    plan: &'a Plan,
    algorithm: Arc<dyn Algorithm<LiveWorld>>,
    shared: Arc<Shared>,
    actions: UnboundedReceiver<Action>,
    /// The order of grants of the servers that were started here.
    grant_log: Arc<GrantLog>,
    /// The followers of servers that were given by their URLs.
    followers: Vec<MonitorFollower>,
    /// See [`LiveResult::order_sources`].
    order_sources: Vec<String>,
    /// The nodes of a replicated service, of which algorithms see one server.
    nodes: Option<Nodes>,
    /// The servers. The last one has the guarded resources.
    backends: Vec<Backend>,
    /// The proxies of each client, one for each server.
    proxies: Vec<Vec<Proxy>>,
    machines: Vec<Arc<Machine>>,
    /// For each client, the number of its current life. 0 if it is not running.
    alive: Vec<u32>,
    lives: u32,
    up: Vec<bool>,
    setup: Setup,
}

impl<'a> LiveRun<'a> {
    async fn new(
        settings: &Settings,
        plan: &'a Plan,
        algorithm: Arc<dyn Algorithm<LiveWorld>>,
        servers: &[String],
    ) -> std::result::Result<LiveRun<'a>, String> {
        let mut nodes = match settings.replicas {
            Some(replicas) => Some(Nodes::start(settings, replicas, plan).await?),
            None => None,
        };
        let (sender, actions) = unbounded_channel();
        let shared = Arc::new(Shared::new(sender));
        let grant_log = GrantLog::new(shared.start);
        let mut backends = Vec::new();
        backends.extend(nodes.iter().flat_map(Nodes::addresses).map(|addr| Backend::node(addr, Arc::clone(&grant_log))));
        for word in servers.iter().filter(|_| nodes.is_none()).map(String::as_str).chain(["self"]) {
            backends.push(Backend::new(word, Arc::clone(&grant_log)).await?);
        }
        let prefix = format!("torture:{:x}:", std::process::id() as u64 ^ plan.seed);
        let (mut followers, mut order_sources) = (Vec::new(), Vec::new());
        for backend in backends.iter().filter(|backend| algorithm.facts().native && backend.can_be_monitored()) {
            match MonitorFollower::begin(&backend.url_by(&backend.addr), &prefix, shared.start).await {
                Ok(following) => {
                    followers.push(following);
                    order_sources.push(format!("grants of {} are judged in the order that MONITOR shows", backend.addr));
                }
                Err(error) => order_sources.push(format!(
                    "grants of {} are judged without their order, because it refuses MONITOR: {error}",
                    backend.addr
                )),
            }
        }
        let (mut proxies, mut machines) = (Vec::new(), Vec::new());
        for client in 0..plan.clients.len() as u32 {
            let mut of_client = Vec::new();
            for (server, backend) in backends.iter().enumerate() {
                let random = Random::new(plan.seed, streams::LINK, u64::from(client) << 32 | server as u64);
                let proxy = Proxy::start(backend.addr.clone(), shared.start, random).await;
                of_client.push(proxy.map_err(|error| format!("proxy: {error}"))?);
            }
            proxies.push(of_client);
            let known = if nodes.is_some() { 1 } else { servers.len() };
            machines.push(Arc::new(Machine::new(client, Arc::clone(&shared), known, plan.triggers(client))));
        }
        if let Some(nodes) = &mut nodes {
            nodes.begin(&shared, &prefix);
        }
        let setup = Setup::new(plan, prefix);
        let (alive, up) = (vec![0; machines.len()], vec![true; backends.len()]);
        Ok(LiveRun {
            plan,
            algorithm,
            shared,
            actions,
            grant_log,
            followers,
            order_sources,
            nodes,
            backends,
            proxies,
            machines,
            alive,
            lives: 0,
            up,
            setup,
        })
    }

    async fn run(&mut self) -> std::result::Result<(), String> {
        for (index, fault) in self.plan.faults.iter().enumerate() {
            if let When::At(at_us) = fault.when {
                self.send(Action::Inject(index as u32, Duration::from_micros(at_us)));
            }
        }
        (0..self.machines.len() as u32).for_each(|client| self.start(client));
        let end = (self.shared.start + Duration::from_micros(self.plan.end_us)).into();
        // Counts crashed clients that will restart.
        let mut gone = 0;
        while gone > 0 || self.alive.iter().any(|life| *life > 0) {
            let Ok(Some(action)) = timeout_at(end, self.actions.recv()).await else { break };
            match action {
                Action::Inject(index, Duration::ZERO) => gone += self.inject(self.plan.faults[index as usize].injection).await,
                Action::Inject(index, after) => self.later(after, Action::Inject(index, Duration::ZERO)),
                Action::Start(client) => {
                    self.start(client);
                    gone -= 1;
                }
                Action::Up(server) => {
                    self.backends[server as usize].up()?;
                    self.up[server as usize] = true;
                    self.shared.record(NO_CLIENT, EventKind::Up { server });
                }
                Action::Node(step) => self.nodes.iter_mut().try_for_each(|nodes| nodes.step(step))?,
                Action::Done(client, life) if self.alive[client as usize] == life => self.alive[client as usize] = 0,
                Action::Done(..) => {}
            }
        }
        Ok(())
    }

    fn send(&self, action: Action) {
        // `self` owns the receiver, so sending cannot fail.
        let _ = self.shared.actions.send(action);
    }

    fn later(&self, after: Duration, action: Action) {
        let actions = self.shared.actions.clone();
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            let _ = actions.send(action);
        });
    }

    fn start(&mut self, client: u32) {
        self.lives += 1;
        let life = self.lives;
        self.alive[client as usize] = life;
        let machine = Arc::clone(&self.machines[client as usize]);
        let proxies = &self.proxies[client as usize];
        let mut urls: Vec<String> =
            self.backends.iter().zip(proxies).map(|(backend, proxy)| backend.url_by(&proxy.addr)).collect();
        let mut timeout = self.setup.lease / REPLY_PARTS;
        if self.nodes.is_some()
            && let Some(store) = urls.pop()
        {
            // One server with several addresses.
            let nodes: Vec<&str> = proxies[..urls.len()].iter().map(|proxy| proxy.addr.as_str()).collect();
            urls = vec![format!("redis://{}", nodes.join(",")), store];
            timeout = self.setup.lease / NODE_REPLY_PARTS;
        }
        let (algorithm, setup) = (Arc::clone(&self.algorithm), self.setup.clone());
        let jobs: Arc<[Job]> = Arc::from(self.plan.clients[client as usize].as_slice());
        let (shared, of_client) = (Arc::clone(&self.shared), Arc::clone(&machine));
        machine.run(async move {
            let live = connect(&urls, timeout).await;
            workload::run_client(LiveWorld::new(live, of_client), client, algorithm, jobs, setup).await;
            let _ = shared.actions.send(Action::Done(client, life));
        });
    }

    /// Injects a fault. Returns the number of clients that crashed by it and will restart.
    async fn inject(&mut self, injection: Injection) -> usize {
        let now_us = self.shared.now_us();
        let soon = |us: u64| Instant::now() + Duration::from_micros(us);
        if injection.client().is_some_and(|client| self.alive[client as usize] == 0) {
            return 0;
        }
        match injection {
            Injection::Pause { client, for_us } => {
                if self.machines[client as usize].pause(soon(for_us)) {
                    self.shared.record(client, EventKind::Pause { for_us });
                }
            }
            Injection::Jump { client, by_ms } => {
                self.machines[client as usize].clock().set_by_ms += by_ms;
                self.shared.record(client, EventKind::Jump { by_ms });
            }
            Injection::Drift { client, ppm } => {
                self.machines[client as usize].clock().ppm = ppm;
                self.shared.record(client, EventKind::Drift { ppm });
            }
            Injection::Crash { client, machine, again_after_us } => {
                if machine {
                    let unseen = (self.setup.lease * UNSEEN_LEASES).min(Duration::from_micros(again_after_us));
                    self.proxies[client as usize].iter().for_each(|proxy| proxy.silent_until(Instant::now() + unseen));
                }
                self.shared.record(client, EventKind::Crash { machine });
                self.machines[client as usize].crash();
                self.alive[client as usize] = 0;
                self.later(Duration::from_micros(again_after_us), Action::Start(client));
                return 1;
            }
            Injection::Down { server, lost, again_after_us } => {
                let backend = &mut self.backends[server as usize];
                if self.up[server as usize] && backend.can_go_down(lost) {
                    self.shared.record(NO_CLIENT, EventKind::Down { server, lost });
                    if backend.down(lost).await {
                        self.up[server as usize] = false;
                        self.later(Duration::from_micros(again_after_us), Action::Up(server));
                    } else {
                        self.shared.record(NO_CLIENT, EventKind::Up { server });
                    }
                }
            }
            Injection::StepOfNode { server, by_ms } => {
                if let Some(nodes) = &mut self.nodes {
                    nodes.step_clock(server, by_ms);
                }
            }
            // Real servers keep no files here, and the faults of nodes have a schedule of their own.
            Injection::PowerLoss { .. }
            | Injection::Partition { .. }
            | Injection::Disorder { .. }
            | Injection::Stall { .. }
            | Injection::Wipe { .. }
            | Injection::BadDisk { .. }
            | Injection::HungDisk { .. }
            | Injection::BitRot { .. }
            | Injection::Members { .. }
            | Injection::CutOff { .. }
            | Injection::Foreign { .. }
            | Injection::DriftOfNode { .. } => {}
            Injection::Delay { client, server, for_us, most_us } => {
                self.proxies[client as usize][server as usize].link().delay(now_us + for_us, most_us);
                self.shared.record(client, EventKind::Delay { server, for_us });
            }
            Injection::Loss { client, server, for_us, percent, breaks } => {
                self.proxies[client as usize][server as usize].link().lose(now_us + for_us, percent, breaks);
                self.shared.record(client, EventKind::Loss { server, for_us });
            }
            Injection::Resend { client } => {
                self.machines[client as usize].resend();
                let server = self.nodes.as_ref().map_or(0, Nodes::leader);
                self.proxies[client as usize][server as usize].swallow();
                self.shared.record(client, EventKind::Resend { server });
            }
        }
        0
    }

    async fn finish(mut self) -> std::result::Result<LiveResult, String> {
        self.machines.iter().for_each(|machine| machine.crash());
        let store = self.backends.pop().ok_or("the server of the guarded resources is missing")?;
        for lock in 0..self.plan.locks {
            let ops = stored(&store, &workload::resource_name(&self.setup.prefix, lock)).await;
            let ops = ops.map_err(|error| format!("the guarded resource: {error}"))?;
            self.shared.record(NO_CLIENT, EventKind::Stored { lock, ops });
        }
        for backend in &self.backends {
            backend.clean(&self.setup.prefix).await;
        }
        let mut history = std::mem::take(&mut *lock(&self.shared.history));
        self.grant_log.complete(&mut history);
        for following in self.followers {
            following.complete(&mut history).await;
        }
        let toll = self.nodes.as_mut().map(|nodes| nodes.finish(&mut history));
        Ok(LiveResult { history, order_sources: self.order_sources, toll })
    }
}

async fn stored(store: &Backend, key: &[u8]) -> Result<Vec<Op>> {
    let client = Client::connect(&store.url_by(&store.addr)).await?;
    let ops: Vec<u64> = client.query(Command::new("LRANGE").arg(key).arg(0).arg(-1)).await?;
    Ok(ops.into_iter().map(|op| op as Op).collect())
}

/// Connects to all servers, and retries until that succeeds.
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
