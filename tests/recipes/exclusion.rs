//! Contention for one lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

const CLIENTS: usize = 6;
const TIMES: u64 = 8;
/// The broken lock is found out in nearly every round, and so certainly in one of them.
const ROUNDS: u32 = 30;

/// A resource for a number of users at a time, which notices when there are more.
#[derive(Default)]
struct Resource {
    inside: AtomicU64,
    most: AtomicU64,
    count: AtomicU64,
}

impl Resource {
    /// Increments a counter as a read and a later write, so that concurrent increments are lost.
    async fn increment(&self) {
        let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(inside, Ordering::SeqCst);
        let seen = self.count.load(Ordering::SeqCst);
        tokio::task::yield_now().await;
        self.count.store(seen + 1, Ordering::SeqCst);
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Lets clients acquire and release a lock repeatedly. Returns the maximum number of concurrent holders and the final count.
async fn contend(algorithm: Arc<dyn Algorithm<Live>>, servers: &Servers, retry: Retry) -> (u64, u64) {
    let guarded = Arc::new(Resource::default());
    let tasks = (0..CLIENTS).map(|number| {
        let (algorithm, guarded) = (Arc::clone(&algorithm), Arc::clone(&guarded));
        let asked = request(algorithm.facts(), &format!("client-{number}"), ms(30_000)).wait(ms(30_000)).retry(retry);
        async move {
            let world = servers.world().await;
            for _ in 0..TIMES {
                let grant = try_for(&*algorithm, &world, &asked).await;
                let grant = grant.unwrap_or_else(|| panic!("{}: not granted", algorithm.facts().name));
                guarded.increment().await;
                algorithm.release(&world, &grant).await.unwrap();
            }
        }
    });
    all_at_once(tasks).await;
    (guarded.most.load(Ordering::SeqCst), guarded.count.load(Ordering::SeqCst))
}

#[test]
fn no_more_hold_it_at_once_than_may() {
    on_both(async |servers| {
        for (facts, algorithm) in locks().into_iter().filter(|(facts, _)| servers.can(facts)) {
            let holders = u64::from(algorithm.holders());
            let (most, count) = contend(algorithm.into(), servers, Retry::Fixed { pause: ms(1) }).await;
            assert!(most <= holders, "{}: {most} at once", facts.name);
            assert!(holders > 1 || count == CLIENTS as u64 * TIMES, "{}: {count} counted", facts.name);
        }
    });
}

#[test]
fn the_broken_one_is_found_out() {
    on_both(async |servers| {
        // Whether two clients meet between the two steps of the lock is a matter of luck, in each of the rounds.
        let mut found = Vec::new();
        for _ in 0..ROUNDS {
            let (most, count) = contend(lock("broken").into(), servers, Retry::Fixed { pause: ms(1) }).await;
            found.push((most, count));
            if most > 1 && count < CLIENTS as u64 * TIMES {
                return;
            }
        }
        panic!("at once, and counted: {found:?}");
    });
}

#[test]
fn who_waits_without_polling_is_told() {
    on_both(async |servers| {
        for (facts, algorithm) in locks().into_iter().filter(|(facts, _)| servers.can(facts)) {
            let holders = u64::from(algorithm.holders());
            let (most, _) = contend(algorithm.into(), servers, Retry::Blocking).await;
            assert!(most <= holders, "{}: {most} at once", facts.name);
        }
    });
}
