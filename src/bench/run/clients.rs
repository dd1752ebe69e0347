//! Clients that run a workload over and over again, in slices.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::bench::plan::Plan;
use crate::bench::report::outcome::Outcome;
use crate::bench::run::counting_world::CountingWorld;
use crate::bench::run::critical_section::{CriticalSection, Violations};
use crate::bench::run::workload::{OtherAlgorithm, PlainCommand, Workload};
use crate::bench::servers::target::{Target, connect};
use crate::client::Error;
use crate::recipes::{Algorithm, Live, Request};

/// Maximum time that a client waits for a lock, so that a stuck lock ends the slice.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// Pause of a client after an error of its server.
const ERROR_PAUSE: Duration = Duration::from_millis(10);

/// The clients of one target that run one workload.
pub struct ClientGroup<'a> {
    /// What the clients run.
    pub workload: &'a Workload,
    /// The server or servers that they are connected to.
    pub target: &'a Target,
    /// The connections of each client.
    pub worlds: Vec<CountingWorld>,
    /// The critical section of each lock.
    sections: Vec<Arc<CriticalSection>>,
    /// The outcome so far.
    pub outcome: Outcome,
}

/// What the clients share during a slice.
struct Slice {
    stop: AtomicBool,
    hold: Duration,
    outcome: Mutex<Outcome>,
}

impl Slice {
    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn outcome(&self) -> MutexGuard<'_, Outcome> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record_error(&self, error: &Error) {
        let mut outcome = self.outcome();
        outcome.failed += 1;
        outcome.error.get_or_insert_with(|| error.to_string());
    }

    fn record_success(&self, client: usize, wait: Duration, hand_off: Option<Duration>) {
        let mut outcome = self.outcome();
        outcome.done += 1;
        outcome.shares[client] += 1;
        outcome.waits_us.saturating_record(us(wait));
        hand_off.iter().for_each(|time| outcome.hand_offs_us.saturating_record(us(*time)));
    }
}

fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl<'a> ClientGroup<'a> {
    /// Connects the clients.
    ///
    /// # Errors
    /// The reason why a server does not accept them, in words for people.
    pub async fn connect(plan: &Plan, workload: &'a Workload, target: &'a Target) -> Result<ClientGroup<'a>, String> {
        let mut outcome = Outcome::new(workload.name(), &target.name, plan.clients, target.cpu_source());
        let servers = if workload.needs_several_servers() { target.urls.len() } else { 1 };
        let holders = if let Workload::Lock(algorithm, _) = workload { algorithm.holders() } else { 1 };
        let sections = (0..plan.locks).map(|_| Arc::new(CriticalSection::new(holders))).collect();
        let mut worlds = Vec::new();
        for _ in 0..plan.clients {
            let mut clients = Vec::new();
            for url in &target.urls[..servers] {
                clients.push(connect(url).await.map_err(|error| format!("{url}: {error}"))?);
            }
            worlds.push(CountingWorld::new(Live::new(clients)));
        }
        if workload.facts().is_some_and(|facts| facts.native) && !target.name.starts_with("portcullis") {
            outcome.skipped = Some("it needs native locks".to_owned());
        }
        Ok(ClientGroup { workload, target, worlds, sections, outcome })
    }

    /// Runs the workload for one slice of time.
    ///
    /// # Errors
    /// The reason why a server cannot be measured, in words for people.
    pub async fn run_slice(&mut self, plan: &Plan) -> Result<(), String> {
        if self.outcome.skipped.is_some() {
            return Ok(());
        }
        let servers = if self.workload.needs_several_servers() { self.target.urls.len() } else { 1 };
        let (done, sent) = (self.outcome.done, self.sent());
        let blank = Outcome::new("", "", 0, "");
        let outcome = Mutex::new(std::mem::replace(&mut self.outcome, blank));
        let slice = Arc::new(Slice { stop: AtomicBool::new(false), hold: plan.hold, outcome });
        let (start, cpu_ns) = (Instant::now(), self.target.cpu_ns(servers).await?);
        let tasks: Vec<_> = (0..self.worlds.len()).map(|client| self.spawn(client, plan, &slice)).collect();
        tokio::time::sleep(plan.slice).await;
        slice.stop.store(true, Ordering::Relaxed);
        for task in tasks {
            task.await.map_err(|error| error.to_string())?;
        }
        let elapsed = start.elapsed();
        let cpu_ns = self.target.cpu_ns(servers).await?.saturating_sub(cpu_ns);
        let slice = Arc::into_inner(slice).ok_or("a client goes on after its slice")?;
        self.outcome = slice.outcome.into_inner().unwrap_or_else(PoisonError::into_inner);
        self.outcome.rates.push((self.outcome.done - done) as f64 / elapsed.as_secs_f64());
        self.outcome.cpu_ns += cpu_ns;
        self.outcome.commands += self.sent() - sent;
        Ok(())
    }

    /// Spawns the task of one client for a slice.
    fn spawn(&self, client: usize, plan: &Plan, slice: &Arc<Slice>) -> tokio::task::JoinHandle<()> {
        let section = Arc::clone(&self.sections[client % self.sections.len()]);
        let name = plan.key(self.workload, client % plan.locks);
        let (slice, world) = (Arc::clone(slice), self.worlds[client].clone());
        match self.workload {
            Workload::Lock(algorithm, _) => {
                let owner = format!("client-{client}");
                let request = Request::new(name, owner, plan.lease).wait(WAIT_MAX).retry(plan.retry);
                tokio::spawn(run_lock(Arc::clone(algorithm), world, request, client, section, slice))
            }
            Workload::Other(algorithm, _) => tokio::spawn(repeat(Action::Other(*algorithm), world, name, client, slice)),
            Workload::Command(command) => tokio::spawn(repeat(Action::Command(command.clone()), world, name, client, slice)),
        }
    }

    /// Number of commands that all clients have sent.
    fn sent(&self) -> u64 {
        self.worlds.iter().map(CountingWorld::sent).sum()
    }

    /// Disconnects the clients and returns the outcome.
    pub fn finish(mut self) -> Outcome {
        if matches!(self.workload, Workload::Lock(..)) && self.outcome.skipped.is_none() {
            self.outcome.violations = Some(self.sections.iter().map(|section| section.violations()).sum::<Violations>());
        }
        self.outcome
    }
}

/// Acquires and releases a lock until the slice is over.
async fn run_lock(
    algorithm: Arc<dyn Algorithm<CountingWorld>>,
    world: CountingWorld,
    request: Request,
    client: usize,
    section: Arc<CriticalSection>,
    slice: Arc<Slice>,
) {
    while !slice.is_over() {
        let requested = Instant::now();
        let grant = match algorithm.acquire(&world, &request).await {
            Ok(Some(grant)) => grant,
            Ok(None) => {
                slice.outcome().refused += 1;
                continue;
            }
            Err(error) => {
                slice.record_error(&error);
                tokio::time::sleep(ERROR_PAUSE).await;
                continue;
            }
        };
        let waited = requested.elapsed();
        let visit = section.enter(requested);
        // Other clients run here. The section notices if one of them enters.
        tokio::task::yield_now().await;
        if !slice.hold.is_zero() {
            tokio::time::sleep(slice.hold).await;
        }
        section.leave(&visit);
        if let Err(error) = algorithm.release(&world, &grant).await {
            slice.record_error(&error);
        }
        slice.record_success(client, waited, visit.hand_off);
    }
}

/// A workload that is no lock.
enum Action {
    Other(OtherAlgorithm),
    Command(PlainCommand),
}

/// Runs an action until the slice is over.
async fn repeat(action: Action, world: CountingWorld, key: String, client: usize, slice: Arc<Slice>) {
    while !slice.is_over() {
        let start = Instant::now();
        let result = match &action {
            Action::Other(algorithm) => algorithm.run_once(&world, key.as_bytes(), client).await,
            Action::Command(command) => command.send_once(&world, key.as_bytes(), client).await,
        };
        match result {
            Ok(()) => slice.record_success(client, start.elapsed(), None),
            Err(error) => {
                slice.record_error(&error);
                tokio::time::sleep(ERROR_PAUSE).await;
            }
        }
    }
}
