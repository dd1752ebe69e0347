//! What a client does with a lock: it acquires the lock, works in steps with a write to the guarded resource before each, and
//! releases it.
//!
//! The client is careful. It works only while it may count on the lock, by its monotonic clock. It checks that right before each
//! write. It retries a release that failed. A violation is thus a fault of the algorithm, or one that no algorithm can prevent.

use std::sync::Arc;
use std::time::Duration;

use crate::client::{Command, Error};
use crate::recipes::{Algorithm, Grant, Request, Retry, timeout};
use crate::torture::history::{EventKind, Op, Outcome};
use crate::torture::plan::{Job, Plan};
use crate::torture::traced_world::TracedWorld;

/// Maximum number of attempts to release.
const RELEASES_MAX: u32 = 3;
/// Pause between attempts to release.
const RELEASE_PAUSE: Duration = Duration::from_millis(100);
/// Number of polls per lease of algorithms that poll.
const POLLS: u32 = 50;

/// A write that the resource accepts only if it has seen no larger fencing token.
const FENCED_WRITE: &str = "redis.call('LOCK.GUARD', KEYS[1], ARGV[1]) return redis.call('RPUSH', KEYS[2], ARGV[2])";

/// The key of the resource that a lock guards: a list of the acquisitions that have written.
pub fn resource_name(prefix: &str, lock: u32) -> Vec<u8> {
    format!("{prefix}resource:{lock}").into_bytes()
}

/// The keys of a lock.
#[derive(Clone, Debug)]
struct Names {
    lock: Vec<u8>,
    resource: Vec<u8>,
    /// Holds the largest fencing token that came with a write.
    guard: Vec<u8>,
}

/// What all clients of an episode share.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The prefix of all keys.
    pub prefix: String,
    /// The lease of every acquisition.
    pub lease: Duration,
    /// Whether the resource checks fencing tokens.
    fencing: bool,
    /// The keys of each lock.
    names: Arc<[Names]>,
}

impl Setup {
    /// The setup of a plan, with this prefix for all keys.
    pub fn new(plan: &Plan, prefix: String) -> Setup {
        let names = |lock: u32| Names {
            lock: format!("{prefix}lock:{lock}").into_bytes(),
            resource: resource_name(&prefix, lock),
            guard: format!("{prefix}guard:{lock}").into_bytes(),
        };
        let names = (0..plan.locks).map(names).collect();
        Setup { lease: Duration::from_micros(plan.lease_us), fencing: plan.fencing, names, prefix }
    }

    fn names(&self, lock: u32) -> &Names {
        &self.names[lock as usize]
    }
}

/// Runs a client until it crashes or has finished its jobs. Jobs whose time has passed when the client starts are skipped.
pub async fn run_client<A: TracedWorld>(world: A, client: u32, algorithm: Arc<dyn Algorithm<A>>, jobs: Arc<[Job]>, setup: Setup) {
    world.record(EventKind::Start);
    let started_us = world.true_us();
    for (number, job) in jobs.iter().enumerate().filter(|(_, job)| job.at_us >= started_us) {
        let wait_us = job.at_us.saturating_sub(world.true_us());
        if wait_us > 0 {
            world.sleep(Duration::from_micros(wait_us)).await;
        }
        run_job(&world, client, &*algorithm, (number as u32, job), &setup).await;
    }
    world.record(EventKind::Done);
}

async fn run_job<A: TracedWorld>(
    world: &A,
    client: u32,
    algorithm: &dyn Algorithm<A>,
    (number, job): (u32, &Job),
    setup: &Setup,
) {
    let op = world.next_op();
    let request = Request::new(&setup.names(job.lock).lock, format!("c{client}.{op}"), setup.lease);
    let request = request.wait(Duration::from_micros(job.wait_us)).retry(Retry::Fixed { pause: setup.lease / POLLS });
    let lease_us = setup.lease.as_micros() as u64;
    world.record(EventKind::Acquire { op, lock: job.lock, lease_us, wait_us: job.wait_us, job: number });
    let traced = world.traced();
    let acquired = algorithm.acquire(&traced, &request).await;
    let trace = traced.trace();
    let mut grant = match acquired {
        Ok(Some(grant)) => grant,
        Ok(None) => return world.record(EventKind::NotGranted { op, trace }),
        Err(error) => return world.record(EventKind::Failed { op, maybe: error.maybe_applied(), trace }),
    };
    let valid_until_us = grant.held_until().map(|until| world.true_of(until));
    world.record(EventKind::Granted { op, token: grant.token, valid_until_us, watched: grant.watchdog.is_some(), trace });
    if holds(world, &grant) {
        world.record(EventKind::Enter { op });
        work(world, algorithm, job, setup, op, &mut grant).await;
        world.record(EventKind::Exit { op });
    }
    release(world, algorithm, op, &grant).await;
}

/// The time for which the holder may still count on the lock.
fn left<A: TracedWorld>(world: &A, grant: &Grant) -> Duration {
    grant.held_until().map_or(Duration::MAX, |until| until.saturating_sub(world.elapsed()))
}

/// Whether the holder may count on the lock.
fn holds<A: TracedWorld>(world: &A, grant: &Grant) -> bool {
    !left(world, grant).is_zero()
}

/// Waits for a future for no longer than the holder may count on the lock. A client gives a reply up after a fifth of a lease, so
/// no timer is needed if far more time than that is left.
async fn while_held<A: TracedWorld, T>(world: &A, lease: Duration, left: Duration, future: impl Future<Output = T>) -> Option<T> {
    if left > lease / 2 { Some(future.await) } else { timeout(world, left, future).await }
}

async fn work<A: TracedWorld>(world: &A, algorithm: &dyn Algorithm<A>, job: &Job, setup: &Setup, op: Op, grant: &mut Grant) {
    for step_us in &job.steps_us {
        let compute = Duration::from_micros(job.compute_us);
        // The client does not begin a computation that may end too late.
        if left(world, grant) <= compute {
            return;
        }
        world.sleep(compute).await;
        write(world, job.lock, setup, op, grant).await;
        // No step lasts longer than the client may count on the lock.
        let left = left(world, grant);
        if left.is_zero() {
            return;
        }
        world.sleep(left.min(Duration::from_micros(*step_us))).await;
        if job.renews && !(holds(world, grant) && renew(world, algorithm, setup, op, grant).await) {
            return;
        }
    }
}

/// Writes to the guarded resource. The client goes on if the write is refused or lost.
async fn write<A: TracedWorld>(world: &A, lock: u32, setup: &Setup, op: Op, grant: &Grant) {
    world.record(EventKind::Write { op });
    let names = setup.names(lock);
    let command = match grant.token.filter(|_| setup.fencing) {
        Some(token) => {
            let eval = Command::new("EVAL").arg(FENCED_WRITE).arg(2).arg(&names.guard).arg(&names.resource);
            eval.arg(token).arg(u64::from(op))
        }
        None => Command::new("RPUSH").arg(&names.resource).arg(u64::from(op)),
    };
    let written = while_held(world, setup.lease, left(world, grant), world.call(world.store(), command)).await;
    let outcome = match written {
        Some(Ok(_)) => Outcome::Yes,
        Some(Err(error)) if !error.is_of_connection() => Outcome::No,
        Some(Err(_)) | None => Outcome::Unknown,
    };
    world.record(EventKind::Written { op, outcome });
}

/// Renews the lease. Returns whether the work may go on.
async fn renew<A: TracedWorld>(world: &A, algorithm: &dyn Algorithm<A>, setup: &Setup, op: Op, grant: &mut Grant) -> bool {
    world.record(EventKind::Renew { op });
    let traced = world.traced();
    let left = left(world, grant);
    let (outcome, on) = match while_held(world, setup.lease, left, algorithm.renew(&traced, grant)).await {
        Some(Ok(true)) => (Outcome::Yes, true),
        // The algorithm cannot renew, or the lock is lost. The holder stops working.
        Some(Ok(false)) => (Outcome::No, false),
        // The old lease still counts.
        Some(Err(_)) => (Outcome::Unknown, true),
        None => (Outcome::Unknown, false),
    };
    let valid_until_us = grant.held_until().map(|until| world.true_of(until));
    world.record(EventKind::Renewed { op, outcome, valid_until_us, trace: traced.trace() });
    on
}

async fn release<A: TracedWorld>(world: &A, algorithm: &dyn Algorithm<A>, op: Op, grant: &Grant) {
    world.record(EventKind::Release { op });
    let mut tries = 0;
    let (outcome, trace) = loop {
        let traced = world.traced();
        let released = algorithm.release(&traced, grant).await;
        tries += 1;
        match released {
            Ok(outcome) => break (Some(outcome), traced.trace()),
            Err(Error::NotHeld(_)) => break (Some(crate::recipes::ReleaseOutcome::NotHeld), traced.trace()),
            Err(_) if tries == RELEASES_MAX => break (None, traced.trace()),
            Err(_) => world.sleep(RELEASE_PAUSE).await,
        }
    };
    world.record(EventKind::Released { op, outcome, tries, trace });
}
