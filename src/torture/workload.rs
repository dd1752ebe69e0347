//! What a client does with a lock: it takes it, works in steps with a write to the guarded resource before each, and gives it back.
//!
//! It is a careful client. It works only while it may think that it holds the lock, by the clock that is never set back; it looks right before
//! each write; it tries again to release what it could not release. What goes wrong all the same is the algorithm's doing, or nobody's.

use std::sync::Arc;
use std::time::Duration;

use crate::client::{Command, Error};
use crate::recipes::{Algorithm, Grant, Request, Retry, timeout};
use crate::torture::arena::Arena;
use crate::torture::history::{Op, Outcome, What};
use crate::torture::plan::{Plan, Wish};

/// Attempts to release.
const RELEASES_MAX: u32 = 3;
/// The pause before another attempt to release.
const RELEASE_PAUSE: Duration = Duration::from_millis(100);
/// Those algorithms that poll do so this many times a lease.
const POLLS: u32 = 50;

/// A write that is accepted only with a fencing token that is not behind another that was seen.
const FENCED_WRITE: &str = "redis.call('LOCK.GUARD', KEYS[1], ARGV[1]) return redis.call('RPUSH', KEYS[2], ARGV[2])";

/// The key of what a lock guards: a list of the acquisitions that have written.
pub fn resource_name(prefix: &str, lock: u32) -> Vec<u8> {
    format!("{prefix}resource:{lock}").into_bytes()
}

/// The keys of a lock.
#[derive(Clone, Debug)]
struct Names {
    lock: Vec<u8>,
    resource: Vec<u8>,
    /// The highest fencing token that came with a write.
    guard: Vec<u8>,
}

/// What all clients have in common.
#[derive(Clone, Debug)]
pub struct Terms {
    /// What all keys begin with.
    pub prefix: String,
    /// The lease of every acquisition.
    pub lease: Duration,
    /// Whether the resource looks at fencing tokens.
    fencing: bool,
    /// By the number of the lock.
    names: Arc<[Names]>,
}

impl Terms {
    /// Those of a plan, with keys that begin so.
    pub fn new(plan: &Plan, prefix: String) -> Terms {
        let names = |lock: u32| Names {
            lock: format!("{prefix}lock:{lock}").into_bytes(),
            resource: resource_name(&prefix, lock),
            guard: format!("{prefix}guard:{lock}").into_bytes(),
        };
        let names = (0..plan.locks).map(names).collect();
        Terms { lease: Duration::from_micros(plan.lease_us), fencing: plan.fencing, names, prefix }
    }

    fn names(&self, lock: u32) -> &Names {
        &self.names[lock as usize]
    }
}

/// One client's life, until it crashes or has nothing more to do. Wishes whose time has passed when it starts are not its own.
pub async fn live<A: Arena>(world: A, client: u32, algorithm: Arc<dyn Algorithm<A>>, wishes: Arc<[Wish]>, terms: Terms) {
    world.record(What::Start);
    let started_us = world.true_us();
    for (number, wish) in wishes.iter().enumerate().filter(|(_, wish)| wish.at_us >= started_us) {
        let wait_us = wish.at_us.saturating_sub(world.true_us());
        if wait_us > 0 {
            world.sleep(Duration::from_micros(wait_us)).await;
        }
        fulfil(&world, client, &*algorithm, (number as u32, wish), &terms).await;
    }
    world.record(What::Done);
}

async fn fulfil<A: Arena>(world: &A, client: u32, algorithm: &dyn Algorithm<A>, (number, wish): (u32, &Wish), terms: &Terms) {
    let op = world.next_op();
    let request = Request::new(&terms.names(wish.lock).lock, format!("c{client}.{op}"), terms.lease);
    let request = request.wait(Duration::from_micros(wish.wait_us)).retry(Retry::Fixed { pause: terms.lease / POLLS });
    let lease_us = terms.lease.as_micros() as u64;
    world.record(What::Acquire { op, lock: wish.lock, lease_us, wait_us: wish.wait_us, wish: number });
    let traced = world.traced();
    let acquired = algorithm.acquire(&traced, &request).await;
    let trace = traced.trace();
    let mut grant = match acquired {
        Ok(Some(grant)) => grant,
        Ok(None) => return world.record(What::NotGranted { op, trace }),
        Err(error) => return world.record(What::Failed { op, maybe: error.maybe_applied(), trace }),
    };
    let valid_until_us = grant.held_until().map(|until| world.true_of(until));
    world.record(What::Granted { op, token: grant.token, valid_until_us, watched: grant.watchdog.is_some(), trace });
    if holds(world, &grant) {
        world.record(What::Enter { op });
        work(world, algorithm, wish, terms, op, &mut grant).await;
        world.record(What::Exit { op });
    }
    release(world, algorithm, op, &grant).await;
}

/// How long it may still think that it holds it.
fn left<A: Arena>(world: &A, grant: &Grant) -> Duration {
    grant.held_until().map_or(Duration::MAX, |until| until.saturating_sub(world.elapsed()))
}

/// Whether it may think that it holds it.
fn holds<A: Arena>(world: &A, grant: &Grant) -> bool {
    !left(world, grant).is_zero()
}

/// Waits for something for no longer than the holder may think that it holds the lock. A client gives a reply up after a fifth of a lease: no
/// clock is needed where much more is left.
async fn while_held<A: Arena, T>(world: &A, lease: Duration, left: Duration, future: impl Future<Output = T>) -> Option<T> {
    if left > lease / 2 { Some(future.await) } else { timeout(world, left, future).await }
}

async fn work<A: Arena>(world: &A, algorithm: &dyn Algorithm<A>, wish: &Wish, terms: &Terms, op: Op, grant: &mut Grant) {
    for step_us in &wish.steps_us {
        let compute = Duration::from_micros(wish.compute_us);
        // What it cannot end in time it does not begin.
        if left(world, grant) <= compute {
            return;
        }
        world.sleep(compute).await;
        write(world, wish.lock, terms, op, grant).await;
        // No step goes on for longer than it may think to hold the lock.
        let left = left(world, grant);
        if left.is_zero() {
            return;
        }
        world.sleep(left.min(Duration::from_micros(*step_us))).await;
        if wish.renews && !(holds(world, grant) && renew(world, algorithm, terms, op, grant).await) {
            return;
        }
    }
}

/// Writes to what the lock guards. That it is refused, or lost, is no reason to stop.
async fn write<A: Arena>(world: &A, lock: u32, terms: &Terms, op: Op, grant: &Grant) {
    world.record(What::Write { op });
    let names = terms.names(lock);
    let command = match grant.token.filter(|_| terms.fencing) {
        Some(token) => {
            let eval = Command::new("EVAL").arg(FENCED_WRITE).arg(2).arg(&names.guard).arg(&names.resource);
            eval.arg(token).arg(u64::from(op))
        }
        None => Command::new("RPUSH").arg(&names.resource).arg(u64::from(op)),
    };
    let written = while_held(world, terms.lease, left(world, grant), world.call(world.store(), command)).await;
    let outcome = match written {
        Some(Ok(_)) => Outcome::Yes,
        Some(Err(error)) if !error.is_of_connection() => Outcome::No,
        Some(Err(_)) | None => Outcome::Unknown,
    };
    world.record(What::Written { op, outcome });
}

/// Whether the work may go on.
async fn renew<A: Arena>(world: &A, algorithm: &dyn Algorithm<A>, terms: &Terms, op: Op, grant: &mut Grant) -> bool {
    world.record(What::Renew { op });
    let traced = world.traced();
    let left = left(world, grant);
    let (outcome, on) = match while_held(world, terms.lease, left, algorithm.renew(&traced, grant)).await {
        Some(Ok(true)) => (Outcome::Yes, true),
        // It cannot, or it has lost it. It is to be out of there soon.
        Some(Ok(false)) => (Outcome::No, false),
        // The old lease is what it can count on.
        Some(Err(_)) => (Outcome::Unknown, true),
        None => (Outcome::Unknown, false),
    };
    let valid_until_us = grant.held_until().map(|until| world.true_of(until));
    world.record(What::Renewed { op, outcome, valid_until_us, trace: traced.trace() });
    on
}

async fn release<A: Arena>(world: &A, algorithm: &dyn Algorithm<A>, op: Op, grant: &Grant) {
    world.record(What::Release { op });
    let mut tries = 0;
    let (given, trace) = loop {
        let traced = world.traced();
        let released = algorithm.release(&traced, grant).await;
        tries += 1;
        match released {
            Ok(given) => break (Some(given), traced.trace()),
            Err(Error::NotHeld(_)) => break (Some(crate::recipes::ReleaseOutcome::NotHeld), traced.trace()),
            Err(_) if tries == RELEASES_MAX => break (None, traced.trace()),
            Err(_) => world.sleep(RELEASE_PAUSE).await,
        }
    };
    world.record(What::Released { op, given, tries, trace });
}
