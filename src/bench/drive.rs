//! Clients that do a work over and over again, in slices.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::bench::cli::Plan;
use crate::bench::figures::Outcome;
use crate::bench::section::{Section, Seen};
use crate::bench::target::Target;
use crate::bench::work::{Other, Plain, Work};
use crate::bench::world::Counted;
use crate::client::{Client, Error};
use crate::recipes::{Algorithm, Live, Request};

/// How long a lock is waited for at most, so that one that is stuck ends the slice.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// How long a client whose server fails it waits before it asks again.
const AFTER_ERROR: Duration = Duration::from_millis(10);

/// The clients of one target that do one work.
pub struct Crew<'a> {
    /// What they do.
    pub work: &'a Work,
    /// Whose clients they are.
    pub target: &'a Target,
    /// A connection each.
    pub worlds: Vec<Counted>,
    /// What each lock guards.
    sections: Vec<Arc<Section>>,
    /// What came out so far.
    pub outcome: Outcome,
}

/// What the clients of a slice have in common.
struct Slice {
    stop: AtomicBool,
    hold: Duration,
    tally: Mutex<Tally>,
}

/// What they have seen.
struct Tally {
    outcome: Outcome,
}

impl Slice {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn tell(&self, tell: impl FnOnce(&mut Outcome)) {
        tell(&mut self.tally.lock().unwrap_or_else(PoisonError::into_inner).outcome);
    }

    fn failed(&self, error: &Error) {
        self.tell(|outcome| {
            outcome.failed += 1;
            outcome.error.get_or_insert_with(|| error.to_string());
        });
    }

    fn done(&self, client: usize, wait: Duration, handed_on: Option<Duration>) {
        self.tell(|outcome| {
            outcome.done += 1;
            outcome.shares[client] += 1;
            outcome.waits_us.saturating_record(us(wait));
            handed_on.iter().for_each(|gap| outcome.hand_offs_us.saturating_record(us(*gap)));
        });
    }
}

fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl<'a> Crew<'a> {
    /// Connects the clients.
    ///
    /// # Errors
    /// Where the server does not let them in, in words for people.
    pub async fn gather(plan: &Plan, work: &'a Work, target: &'a Target) -> Result<Crew<'a>, String> {
        let mut outcome = Outcome::new(work.name(), &target.name, plan.clients, target.cpu_source());
        let servers = if work.wants_several() { target.urls.len() } else { 1 };
        let holders = if let Work::Lock(algorithm, _) = work { algorithm.holders() } else { 1 };
        let sections = (0..plan.locks).map(|_| Arc::new(Section::new(holders))).collect();
        let mut worlds = Vec::new();
        for _ in 0..plan.clients {
            let mut clients = Vec::new();
            for url in &target.urls[..servers] {
                clients.push(Client::connect(url).await.map_err(|error| format!("{url}: {error}"))?);
            }
            worlds.push(Counted::new(Live::new(clients)));
        }
        if work.facts().is_some_and(|facts| facts.native) && !target.name.starts_with("portcullis") {
            outcome.skipped = Some("it needs native locks".to_owned());
        }
        Ok(Crew { work, target, worlds, sections, outcome })
    }

    /// Has them work for a slice of time.
    ///
    /// # Errors
    /// Where the server cannot be measured, in words for people.
    pub async fn slice(&mut self, plan: &Plan) -> Result<(), String> {
        if self.outcome.skipped.is_some() {
            return Ok(());
        }
        let servers = if self.work.wants_several() { self.target.urls.len() } else { 1 };
        let blank = Outcome::new("", "", 0, "");
        let tally = Mutex::new(Tally { outcome: std::mem::replace(&mut self.outcome, blank) });
        let slice = Arc::new(Slice { stop: AtomicBool::new(false), hold: plan.hold, tally });
        let (done, sent) = (slice.tally.lock().unwrap_or_else(PoisonError::into_inner).outcome.done, self.sent());
        let (begun, cpu_ns) = (Instant::now(), self.target.cpu_ns(servers).await?);
        let tasks: Vec<_> = self
            .worlds
            .iter()
            .enumerate()
            .map(|(client, world)| {
                let section = Arc::clone(&self.sections[client % self.sections.len()]);
                let name = plan.name(self.work, client % plan.locks);
                let (slice, world) = (Arc::clone(&slice), world.clone());
                match self.work {
                    Work::Lock(algorithm, _) => {
                        let owner = format!("client-{client}");
                        let request = Request::new(name, owner, plan.lease).wait(WAIT_MAX).retry(plan.retry);
                        tokio::spawn(locking(Arc::clone(algorithm), world, request, client, section, slice))
                    }
                    Work::Other(other, _) => tokio::spawn(doing(*other, world, name.into_bytes(), client, slice)),
                    Work::Plain(plain) => tokio::spawn(sending(plain.clone(), world, name.into_bytes(), client, slice)),
                }
            })
            .collect();
        tokio::time::sleep(plan.slice).await;
        slice.stop.store(true, Ordering::Relaxed);
        for task in tasks {
            task.await.map_err(|error| error.to_string())?;
        }
        let elapsed = begun.elapsed();
        let cpu_ns = self.target.cpu_ns(servers).await?.saturating_sub(cpu_ns);
        let slice = Arc::into_inner(slice).ok_or("a client goes on after its slice")?;
        self.outcome = slice.tally.into_inner().unwrap_or_else(PoisonError::into_inner).outcome;
        self.outcome.rates.push((self.outcome.done - done) as f64 / elapsed.as_secs_f64());
        self.outcome.cpu_ns += cpu_ns;
        self.outcome.commands += self.sent() - sent;
        Ok(())
    }

    fn sent(&self) -> u64 {
        self.worlds.iter().map(Counted::sent).sum()
    }

    /// Sends them home, and gives what came out.
    pub async fn dismiss(mut self) -> Outcome {
        if matches!(self.work, Work::Lock(..)) && self.outcome.skipped.is_none() {
            let seen = self.sections.iter().map(|section| section.seen());
            let add = |all: Seen, seen: Seen| Seen { violations: all.violations + seen.violations, lost: all.lost + seen.lost };
            self.outcome.seen = Some(seen.fold(Seen::default(), add));
        }
        self.outcome
    }
}

/// Takes a lock and gives it back until the slice is over.
async fn locking(
    algorithm: Arc<dyn Algorithm<Counted>>,
    world: Counted,
    request: Request,
    client: usize,
    section: Arc<Section>,
    slice: Arc<Slice>,
) {
    while !slice.stopped() {
        let asked = Instant::now();
        let grant = match algorithm.acquire(&world, &request).await {
            Ok(Some(grant)) => grant,
            Ok(None) => {
                slice.tell(|outcome| outcome.refused += 1);
                continue;
            }
            Err(error) => {
                slice.failed(&error);
                tokio::time::sleep(AFTER_ERROR).await;
                continue;
            }
        };
        let waited = asked.elapsed();
        let inside = section.enter(asked);
        // Others have their turn meanwhile, and are seen if they come in.
        tokio::task::yield_now().await;
        if !slice.hold.is_zero() {
            tokio::time::sleep(slice.hold).await;
        }
        section.leave(&inside);
        if let Err(error) = algorithm.release(&world, &grant).await {
            slice.failed(&error);
        }
        slice.done(client, waited, inside.handed_on);
    }
}

/// Does something that is no lock until the slice is over.
async fn doing(other: Other, world: Counted, key: Vec<u8>, client: usize, slice: Arc<Slice>) {
    while !slice.stopped() {
        let asked = Instant::now();
        match other.once(&world, &key, client).await {
            Ok(()) => slice.done(client, asked.elapsed(), None),
            Err(error) => {
                slice.failed(&error);
                tokio::time::sleep(AFTER_ERROR).await;
            }
        }
    }
}

/// Sends a command until the slice is over.
async fn sending(plain: Plain, world: Counted, key: Vec<u8>, client: usize, slice: Arc<Slice>) {
    while !slice.stopped() {
        let asked = Instant::now();
        match plain.once(&world, &key, client).await {
            Ok(()) => slice.done(client, asked.elapsed(), None),
            Err(error) => {
                slice.failed(&error);
                tokio::time::sleep(AFTER_ERROR).await;
            }
        }
    }
}
