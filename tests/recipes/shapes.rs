//! Features of some recipes besides mutual exclusion.

use std::sync::{Arc, Mutex};

use portcullis::recipes::{
    Clock, Fair, Latch, Lock, Nodes, Permits, ReadWrite, ReleaseOutcome, Semaphore, SlidingWindow, TokenBucket, UniqueRow,
    WithWatchdog,
};

use super::*;

const LEASE: Duration = ms(30_000);

#[test]
fn its_holder_takes_it_again_and_gives_it_back_as_often() {
    on_both(async |servers| {
        let world = servers.world().await;
        let mut found = Vec::new();
        for (facts, algorithm) in locks().into_iter().filter(|(facts, _)| servers.can(facts)) {
            let alice = request(facts, "alice", LEASE);
            let outer = try_for(&*algorithm, &world, &alice).await.unwrap();
            let Some(inner) = try_for(&*algorithm, &world, &alice).await else {
                assert!(!facts.reentrant, "{}", facts.name);
                continue;
            };
            if algorithm.holders() > 1 {
                continue;
            }
            assert!(facts.reentrant, "{}", facts.name);
            found.push(facts.name);
            let bob = request(facts, "bob", LEASE);
            assert_eq!(algorithm.release(&world, &inner).await.unwrap(), ReleaseOutcome::Released, "{}", facts.name);
            assert!(try_for(&*algorithm, &world, &bob).await.is_none(), "{}", facts.name);
            assert_eq!(algorithm.release(&world, &outer).await.unwrap(), ReleaseOutcome::Released, "{}", facts.name);
            assert_eq!(algorithm.release(&world, &outer).await.unwrap(), ReleaseOutcome::NotHeld, "{}", facts.name);
            assert!(try_for(&*algorithm, &world, &bob).await.is_some(), "{}", facts.name);
        }
        assert!(found.len() >= 5, "{found:?}");
    });
}

#[test]
fn readers_share_and_writers_do_not() {
    on_both(async |servers| {
        let world = servers.world().await;
        for (facts, algorithm) in locks().into_iter().filter(|(facts, _)| servers.can(facts) && facts.shared) {
            let ask = |owner: &str| request(facts, owner, LEASE);
            let first = try_for(&*algorithm, &world, &ask("alice").shared()).await.unwrap();
            let second = try_for(&*algorithm, &world, &ask("bob").shared()).await.unwrap();
            assert!(first.shared && second.shared);
            assert!(try_for(&*algorithm, &world, &ask("carol")).await.is_none(), "{}", facts.name);
            assert_eq!(algorithm.release(&world, &first).await.unwrap(), ReleaseOutcome::Released);
            assert_eq!(algorithm.release(&world, &first).await.unwrap(), ReleaseOutcome::NotHeld);
            assert!(try_for(&*algorithm, &world, &ask("carol")).await.is_none(), "{}", facts.name);
            assert_eq!(algorithm.release(&world, &second).await.unwrap(), ReleaseOutcome::Released);
            let writer = try_for(&*algorithm, &world, &ask("carol")).await.unwrap();
            assert!(!writer.shared && try_for(&*algorithm, &world, &ask("alice").shared()).await.is_none(), "{}", facts.name);
            assert_eq!(algorithm.release(&world, &writer).await.unwrap(), ReleaseOutcome::Released);
            assert!(try_for(&*algorithm, &world, &ask("alice").shared()).await.is_some(), "{}", facts.name);
        }
    });
}

#[test]
fn each_reader_has_a_lease_of_its_own() {
    on_frozen(async |servers| {
        let world = servers.world().await;
        let ask = |owner: &str, lease| Request::new("page", owner, ms(lease));
        let short = try_for(&ReadWrite, &world, &ask("short", 1_000).shared()).await.unwrap();
        let mut long = try_for(&ReadWrite, &world, &ask("long", 10_000).shared()).await.unwrap();
        servers.advance(ms(1_000));
        assert_eq!(ReadWrite.release(&world, &short).await.unwrap(), ReleaseOutcome::NotHeld);
        assert!(ReadWrite.renew(&world, &mut long).await.unwrap());
        // The expired lease of another reader does not keep the lock held when the last reader leaves.
        try_for(&ReadWrite, &world, &ask("short", 1_000).shared()).await.unwrap();
        servers.advance(ms(1_000));
        assert_eq!(ReadWrite.release(&world, &long).await.unwrap(), ReleaseOutcome::Released);
        // A writer that also reads still reads after it has released the write lock.
        let write = try_for(&ReadWrite, &world, &ask("writer", 10_000)).await.unwrap();
        let read = try_for(&ReadWrite, &world, &ask("writer", 10_000).shared()).await.unwrap();
        assert!(try_for(&ReadWrite, &world, &ask("long", 10_000).shared()).await.is_none());
        assert_eq!(ReadWrite.release(&world, &write).await.unwrap(), ReleaseOutcome::Released);
        assert!(try_for(&ReadWrite, &world, &ask("long", 10_000).shared()).await.is_some());
        assert!(try_for(&ReadWrite, &world, &ask("other", 10_000)).await.is_none());
        assert_eq!(ReadWrite.release(&world, &read).await.unwrap(), ReleaseOutcome::Released);
    });
}

/// Waits until this number of clients are in the queue of an algorithm.
async fn until_queued(algorithm: &str, world: &Live, count: i64) {
    let client = world.client(0);
    let (request, most) = match algorithm {
        "fair" => (["LLEN", "{queue:fair}:queue"], count),
        // The holder has a node, too.
        "nodes" => (["ZCARD", "{queue:nodes}:nodes"], count + 1),
        _ => return until_blocked(client, count as usize).await,
    };
    while client.command(&request).await.unwrap().as_integer() != Some(most) {
        tokio::time::sleep(ms(1)).await;
    }
}

/// Lets clients wait one after the other for a held lock. Returns the order in which they were served.
async fn order(algorithm: Arc<dyn Algorithm<Live>>, world: &Live) -> Vec<usize> {
    let held =
        try_for(&*algorithm, world, &Request::new(format!("queue:{}", algorithm.facts().name), "holder", LEASE)).await.unwrap();
    let served = Arc::new(Mutex::new(Vec::new()));
    let (mut tasks, name, observer) = (Vec::new(), algorithm.facts().name, world);
    for number in 0..6 {
        let (algorithm, world, served) = (Arc::clone(&algorithm), world.clone(), Arc::clone(&served));
        tasks.push(tokio::spawn(async move {
            let asked = Request::new(format!("queue:{}", algorithm.facts().name), format!("client-{number}"), LEASE).wait(LEASE);
            let grant = try_for(&*algorithm, &world, &asked).await.unwrap();
            served.lock().unwrap().push(number);
            algorithm.release(&world, &grant).await.unwrap();
        }));
        until_queued(name, observer, number as i64 + 1).await;
    }
    algorithm.release(world, &held).await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    Arc::into_inner(served).unwrap().into_inner().unwrap()
}

#[test]
fn those_that_queue_serve_in_order() {
    on_both(async |servers| {
        for name in ["fair", "nodes", "blpop", "native"] {
            if name == "native" && matches!(servers, Servers::Redis(_)) {
                continue;
            }
            // Each client has its own world, because BLPOP and LOCK.ACQUIRE serve connections in the order of their requests.
            let world = servers.world().await;
            assert_eq!(order(lock(name).into(), &world).await, [0, 1, 2, 3, 4, 5], "{name}");
        }
    });
}

#[test]
fn a_dead_waiter_costs_its_time_and_no_more() {
    on_both(async |servers| {
        let world = servers.world().await;
        let algorithms: [(Arc<dyn Algorithm<Live>>, Duration); 2] =
            [(Arc::new(Fair::default().waiter_timeout(ms(150))), ms(30_000)), (Arc::new(Nodes), ms(150))];
        for (algorithm, lease) in algorithms {
            let held = try_for(&*algorithm, &world, &Request::new("door", "holder", LEASE)).await.unwrap();
            let waits = |owner: &str| Request::new("door", owner, lease).wait(ms(5_000));
            // It crashes while it waits.
            let dead = waits("dead");
            let crashed = tokio::time::timeout(ms(40), algorithm.acquire(&world, &dead)).await;
            assert!(crashed.is_err(), "{}", algorithm.facts().name);
            let living = tokio::spawn({
                let (algorithm, world, asked) = (Arc::clone(&algorithm), world.clone(), waits("living"));
                async move { try_for(&*algorithm, &world, &asked).await }
            });
            tokio::time::sleep(ms(30)).await;
            assert_eq!(algorithm.release(&world, &held).await.unwrap(), ReleaseOutcome::Released);
            let granted = tokio::time::timeout(ms(2_000), living).await;
            assert!(granted.is_ok_and(|granted| granted.unwrap().is_some()), "{}", algorithm.facts().name);
        }
    });
}

#[test]
fn who_gives_up_leaves_nothing_behind() {
    on_frozen(async |servers| {
        let world = servers.world().await;
        let Servers::Ours(ours) = servers else { unreachable!() };
        for name in ["fair", "nodes", "reentrant", "multi", "redlock"] {
            let algorithm = lock(name);
            let held = try_for(&*algorithm, &world, &Request::new("door", "holder", LEASE)).await.unwrap();
            let before = ours[0].keys();
            assert!(try_for(&*algorithm, &world, &Request::new("door", "bob", LEASE).wait(ms(20))).await.is_none());
            let number = |keys: Vec<String>| keys.into_iter().filter(|key| !key.ends_with(":number")).collect::<Vec<_>>();
            assert_eq!(number(ours[0].keys()), number(before), "{name}");
            assert_eq!(algorithm.release(&world, &held).await.unwrap(), ReleaseOutcome::Released, "{name}");
            assert_eq!(number(ours[0].keys()), [""; 0], "{name}");
        }
    });
}

#[test]
fn several_are_had_together_or_not_at_all() {
    on_both(async |servers| {
        let world = servers.world().await;
        let both = Multi::new(Reentrant).of(["b", "a", "b"]);
        let ask = |name: &str, owner: &str| Request::new(name, owner, LEASE);
        let held = try_for(&Reentrant, &world, &ask("b", "bob")).await.unwrap();
        assert!(try_for(&both, &world, &ask("pair", "alice").wait(ms(30))).await.is_none());
        assert_eq!(world.client(0).command(&["EXISTS", "a"]).await.unwrap().as_integer(), Some(0), "given back");
        Reentrant.release(&world, &held).await.unwrap();
        let mut pair = try_for(&both, &world, &ask("pair", "alice")).await.unwrap();
        for name in ["a", "b"] {
            assert!(try_for(&Reentrant, &world, &ask(name, "bob")).await.is_none());
        }
        assert!(both.renew(&world, &mut pair).await.unwrap());
        assert_eq!(both.release(&world, &pair).await.unwrap(), ReleaseOutcome::Released);
        assert_eq!(both.release(&world, &pair).await.unwrap(), ReleaseOutcome::NotHeld);
    });
}

/// Each algorithm keeps other facts for the release or renewal of each part.
#[test]
fn several_are_had_of_those_that_number_their_grants() {
    on_both(async |servers| {
        let world = servers.world().await;
        let algorithms: [Multi<Live>; 2] = [Multi::new(Nodes), Multi::new(Permits::new(1))];
        for both in algorithms {
            let both = both.of(["left", "right"]);
            let ask = |owner: &str| Request::new("pair", owner, LEASE);
            let mut pair = try_for(&both, &world, &ask("alice")).await.unwrap();
            assert!(try_for(&both, &world, &ask("bob")).await.is_none());
            assert!(both.renew(&world, &mut pair).await.unwrap());
            assert_eq!(both.release(&world, &pair).await.unwrap(), ReleaseOutcome::Released);
            let next = try_for(&both, &world, &ask("bob")).await.expect("alice has given it back");
            assert_eq!(both.release(&world, &next).await.unwrap(), ReleaseOutcome::Released);
        }
        // Each part has its own watchdog.
        let both = Multi::new(WithWatchdog::new(Arc::<dyn Algorithm<Live>>::from(lock("reentrant"))));
        let both: Arc<dyn Algorithm<Live>> = Arc::new(both);
        with_leases_from(ms(90), async |_, lease| {
            let guard = Lock::of(&world, Arc::clone(&both), "watched").lease(lease).acquire().await.unwrap();
            tokio::time::sleep(lease * 2).await;
            holds(!guard.is_lost(), || format!("it was not renewed within {lease:?}"))?;
            guard.release().await.unwrap();
            Ok(())
        })
        .await;
    });
}

#[test]
fn what_is_too_long_for_a_server_is_as_long_as_can_be() {
    on_both(async |servers| {
        let world = servers.world().await;
        let bucket = TokenBucket::new(1, Duration::MAX);
        assert!(bucket.take(&world, b"century", 1).await.unwrap().allowed);
        assert!(!bucket.take(&world, b"century", 1).await.unwrap().allowed);
        assert!(SlidingWindow::new(1, Duration::MAX).enter(&world, b"ever", 1).await.unwrap().allowed);
        let longest = Duration::from_secs(u64::MAX / 2);
        for (facts, algorithm) in locks().into_iter().filter(|(facts, _)| servers.can(facts)) {
            let ask = |owner: &str| Request::new(format!("long:{}", facts.name), owner, longest).wait(longest);
            let held = algorithm.acquire(&world, &ask("alice")).await.unwrap().expect(facts.name);
            let (alice, bob) = tokio::join!(
                async {
                    tokio::time::sleep(ms(20)).await;
                    algorithm.release(&world, &held).await
                },
                async {
                    // An algorithm that polls has no limit. One that blocks on the server sends a timeout.
                    let wish = ask("bob");
                    tokio::time::timeout(ms(5_000), algorithm.acquire(&world, &wish)).await
                }
            );
            alice.unwrap_or_else(|error| panic!("{}: {error}", facts.name));
            let next = bob.expect(facts.name).unwrap_or_else(|error| panic!("{}: {error}", facts.name));
            assert!(next.is_some(), "{}", facts.name);
        }
    });
}

#[test]
fn permits_are_counted() {
    on_both(async |servers| {
        let world = servers.world().await;
        let algorithms: [Box<dyn Algorithm<Live>>; 2] = [Box::new(Semaphore::new(2)), Box::new(Permits::new(2))];
        for algorithm in algorithms {
            let ask = |owner: &str| request(algorithm.facts(), owner, LEASE);
            let first = try_for(&*algorithm, &world, &ask("a")).await.unwrap();
            let _second = try_for(&*algorithm, &world, &ask("b")).await.unwrap();
            assert!(try_for(&*algorithm, &world, &ask("c")).await.is_none());
            algorithm.release(&world, &first).await.unwrap();
            assert!(try_for(&*algorithm, &world, &ask("c")).await.is_some());
            assert!(try_for(&*algorithm, &world, &ask("d")).await.is_none());
            // Only the algorithm with numbered grants knows that this one was released already.
            let again = algorithm.release(&world, &first).await.unwrap();
            let more = try_for(&*algorithm, &world, &ask("d")).await.is_some();
            match algorithm.facts().name {
                "permits" => assert_eq!((again, more), (ReleaseOutcome::NotHeld, false)),
                _ => assert_eq!((again, more), (ReleaseOutcome::Unchecked, true)),
            }
        }
    });
}

#[test]
fn a_latch_opens_when_it_was_counted_down() {
    on_both(async |servers| {
        let world = servers.world().await;
        let latch = Latch::new(&world, "parts");
        assert!(latch.wait(Duration::ZERO).await.unwrap(), "it was never set");
        assert!(latch.set(3).await.unwrap());
        assert!(!latch.set(5).await.unwrap());
        let waiting: Vec<_> = (0..4)
            .map(|_| {
                let latch = latch.clone();
                tokio::spawn(async move { latch.wait(Duration::MAX).await.unwrap() })
            })
            .collect();
        assert_eq!(latch.down(2).await.unwrap(), 1);
        tokio::time::sleep(ms(20)).await;
        assert!(waiting.iter().all(|task| !task.is_finished()));
        assert_eq!(latch.down(1).await.unwrap(), 0);
        for task in waiting {
            assert!(task.await.unwrap());
        }
        assert_eq!(latch.down(1).await.unwrap(), 0);
        assert!(latch.set(1).await.unwrap());
        assert_eq!(latch.down(7).await.unwrap(), 0);
        assert!(latch.wait(Duration::ZERO).await.unwrap());
    });
}

#[test]
fn a_bucket_gives_what_it_has_and_fills_again() {
    on_frozen(async |servers| {
        let world = servers.world().await;
        let bucket = TokenBucket::new(10, ms(1_000));
        let take = async |tokens| bucket.take(&world, b"rate:ip:192.0.2.7", tokens).await.unwrap();
        let first = take(7).await;
        assert!(first.allowed && first.remaining == 3);
        let refused = take(5).await;
        assert_eq!((refused.allowed, refused.remaining, refused.retry_after), (false, 3, ms(200)));
        servers.advance(ms(199));
        assert!(!take(5).await.allowed);
        servers.advance(ms(1));
        assert!(take(5).await.allowed);
        assert_eq!(take(11).await.retry_after, Duration::MAX);
        servers.advance(ms(5_000));
        assert_eq!(take(0).await.remaining, 10);
    });
}

#[test]
fn a_window_lets_so_many_in_and_slides() {
    on_frozen(async |servers| {
        let world = servers.world().await;
        let window = SlidingWindow::new(3, ms(1_000));
        let enter = async |requests| window.enter(&world, b"rate:api:/orders", requests).await.unwrap();
        assert!(enter(1).await.allowed);
        servers.advance(ms(400));
        assert_eq!(enter(2).await.remaining, 0);
        let refused = enter(1).await;
        assert_eq!((refused.allowed, refused.retry_after), (false, ms(600)));
        servers.advance(ms(600));
        assert!(enter(1).await.allowed);
        let refused = enter(1).await;
        assert_eq!((refused.allowed, refused.retry_after), (false, ms(400)));
        assert_eq!(enter(4).await.retry_after, Duration::MAX);
    });
}

#[test]
fn rates_hold_among_many_by_either_clock() {
    on_both(async |servers| {
        let world = servers.world().await;
        for clock in [Clock::Server, Clock::Caller] {
            let (bucket, window) =
                (TokenBucket::new(20, ms(3_600_000)).clock(clock), SlidingWindow::new(20, ms(3_600_000)).clock(clock));
            let tasks: Vec<_> = (0..8)
                .map(|_| {
                    let world = world.clone();
                    tokio::spawn(async move {
                        let mut allowed = (0, 0);
                        for _ in 0..5 {
                            let name = format!("{clock:?}").into_bytes();
                            allowed.0 += u32::from(bucket.take(&world, &[b"b:", &name[..]].concat(), 1).await.unwrap().allowed);
                            allowed.1 += u32::from(window.enter(&world, &[b"w:", &name[..]].concat(), 1).await.unwrap().allowed);
                        }
                        allowed
                    })
                })
                .collect();
            let mut allowed = (0, 0);
            for task in tasks {
                let (bucket, window) = task.await.unwrap();
                allowed = (allowed.0 + bucket, allowed.1 + window);
            }
            assert_eq!(allowed, (20, 20), "{clock:?}");
        }
    });
}

#[test]
fn a_cleaner_frees_rows_that_are_too_old() {
    on_frozen(async |servers| {
        let world = servers.world().await;
        let rows = UniqueRow::of("jobs");
        let ask = |name: &str| Request::new(name, "dead", ms(1_000));
        for number in 0..150 {
            try_for(&rows, &world, &ask(&number.to_string())).await.unwrap();
        }
        try_for(&rows, &world, &Request::new("living", "alice", ms(5_000))).await.unwrap();
        assert_eq!(rows.clean(&world).await.unwrap(), 0);
        servers.advance(ms(1_000));
        assert_eq!(rows.clean(&world).await.unwrap(), 100);
        assert_eq!(rows.clean(&world).await.unwrap(), 50);
        assert_eq!(rows.clean(&world).await.unwrap(), 0);
        assert!(try_for(&rows, &world, &Request::new("living", "bob", ms(5_000))).await.is_none());
    });
}
