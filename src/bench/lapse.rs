//! How late the next one has a lock whose holder has forgotten it.

use std::time::{Duration, Instant};

use crate::bench::cli::Plan;
use crate::bench::drive::Crew;
use crate::bench::work::Work;
use crate::recipes::Request;

/// Locks that are forgotten, all at about the same time.
const LOCKS: usize = 16;
/// What leases are rounded up to where they are whole seconds.
const WHOLE: Duration = Duration::from_secs(1);

/// Has locks taken and forgotten, and waits for each. Counted from when the holder's request was sent, so that its way to the server counts
/// as lateness. Nothing is measured of what does not expire, or is renewed.
pub async fn measure(plan: &Plan, crew: &mut Crew<'_>) {
    let Work::Lock(algorithm, name) = crew.work else { return };
    let facts = algorithm.facts();
    let renewed = facts.name == "watchdog" || name.ends_with("+watchdog");
    if crew.outcome.skipped.is_some() || !facts.expires || renewed || crew.worlds.len() < 2 {
        return;
    }
    let lease = if facts.name == "memcached-add" { WHOLE } else { plan.forgotten };
    let tasks: Vec<_> = (0..LOCKS)
        .map(|number| {
            let algorithm = std::sync::Arc::clone(algorithm);
            let world = |client: usize| crew.worlds[client % crew.worlds.len()].clone();
            let (holder, waiter) = (world(number), world(number + 1));
            let key = format!("{}:forgotten:{number}", plan.name(crew.work, 0));
            let (retry, holders) = (plan.retry, algorithm.holders());
            tokio::spawn(async move {
                let ask = |owner: String| Request::new(&key, owner, lease).retry(retry);
                let asked = Instant::now();
                for holder_number in 0..holders {
                    algorithm.acquire(&holder, &ask(format!("holder-{holder_number}"))).await.ok()??;
                }
                let grant = algorithm.acquire(&waiter, &ask("waiter".to_owned()).wait(lease * 10 + WHOLE)).await.ok()??;
                let late_us = i64::try_from(asked.elapsed().as_micros()).ok()? - i64::try_from(lease.as_micros()).ok()?;
                // Others need not wait for it.
                let _ = algorithm.release(&waiter, &grant).await;
                Some(late_us)
            })
        })
        .collect();
    for task in tasks {
        crew.outcome.late_us.extend(task.await.ok().flatten());
    }
    crew.outcome.late_us.sort_unstable();
}
