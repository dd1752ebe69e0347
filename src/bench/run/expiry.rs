//! How late a waiter is granted a lock whose holder never releases it.

use std::time::{Duration, Instant};

use crate::bench::plan::Plan;
use crate::bench::run::clients::ClientGroup;
use crate::bench::run::workload::Workload;
use crate::recipes::Request;

/// Locks that are left to expire, all at about the same time.
const LOCKS: usize = 16;
/// The lease of algorithms whose leases are whole seconds.
const WHOLE_SECOND: Duration = Duration::from_secs(1);

/// Acquires locks that are never released, and waits for each with another client. The lateness counts from when the holder's
/// request was sent, so that the request's way to the server counts too. Skips algorithms whose locks do not expire or are
/// renewed.
pub async fn measure(plan: &Plan, group: &mut ClientGroup<'_>) {
    let Workload::Lock(algorithm, name) = group.workload else { return };
    let facts = algorithm.facts();
    let renewed = facts.name == "watchdog" || name.ends_with("+watchdog");
    if group.outcome.skipped.is_some() || !facts.expires || renewed || group.worlds.len() < 2 {
        return;
    }
    let lease = if facts.name == "memcached-add" { WHOLE_SECOND } else { plan.forgotten_lease };
    let tasks: Vec<_> = (0..LOCKS)
        .map(|number| {
            let algorithm = std::sync::Arc::clone(algorithm);
            let world = |client: usize| group.worlds[client % group.worlds.len()].clone();
            let (holder, waiter) = (world(number), world(number + 1));
            let key = format!("{}:forgotten:{number}", plan.key(group.workload, 0));
            let (retry, holders) = (plan.retry, algorithm.holders());
            tokio::spawn(async move {
                let request = |owner: String| Request::new(&key, owner, lease).retry(retry);
                let requested = Instant::now();
                for number in 0..holders {
                    algorithm.acquire(&holder, &request(format!("holder-{number}"))).await.ok()??;
                }
                let wait = lease * 10 + WHOLE_SECOND;
                let grant = algorithm.acquire(&waiter, &request("waiter".to_owned()).wait(wait)).await.ok()??;
                let late_us = i64::try_from(requested.elapsed().as_micros()).ok()? - i64::try_from(lease.as_micros()).ok()?;
                // Best effort: the lease ends anyway.
                let _ = algorithm.release(&waiter, &grant).await;
                Some(late_us)
            })
        })
        .collect();
    for task in tasks {
        group.outcome.late_us.extend(task.await.ok().flatten());
    }
    group.outcome.late_us.sort_unstable();
}
