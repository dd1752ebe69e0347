//! Owners, leases, waiting.

use std::sync::Arc;
use std::time::Instant;

use portcullis::recipes::{ReleaseOutcome, WithWatchdog, World, guard};

use super::*;

#[test]
fn a_stranger_cannot_give_it_back_unless_the_algorithm_is_flawed() {
    on_both(async |servers| {
        let world = servers.world().await;
        for (facts, algorithm) in locks().into_iter().filter(|(facts, _)| servers.can(facts)) {
            let alice = request(facts, "alice", ms(30_000));
            let grant = try_for(&*algorithm, &world, &alice).await.unwrap();
            let stolen = Grant { owner: b"mallory".to_vec(), memo: b"0".to_vec(), parts: Vec::new(), ..grant.clone() };
            let given = algorithm.release(&world, &stolen).await.unwrap();
            let mut stolen = stolen;
            assert!(!algorithm.renew(&world, &mut stolen).await.unwrap(), "{}: a stranger renewed it", facts.name);
            if algorithm.holders() > 1 {
                continue;
            }
            let taken = try_for(&*algorithm, &world, &request(facts, "bob", ms(30_000))).await.is_some();
            match facts.name {
                "set-nx-px-get-del" => assert_eq!((given, taken), (ReleaseOutcome::NotHeld, false), "{}", facts.name),
                name if facts.flawed && name != "multi-unordered" => {
                    assert_eq!((given, taken), (ReleaseOutcome::Unchecked, true), "{name}")
                }
                name => {
                    assert_eq!((given, taken), (ReleaseOutcome::NotHeld, false), "{name}");
                    assert_eq!(algorithm.release(&world, &grant).await.unwrap(), ReleaseOutcome::Released, "{name}");
                    assert_eq!(algorithm.release(&world, &grant).await.unwrap(), ReleaseOutcome::NotHeld, "{name}");
                }
            }
        }
    });
}

#[test]
fn a_forgotten_lock_ends_with_its_lease_and_not_before() {
    on_both(async |servers| {
        let world = servers.world().await;
        let each = locks().into_iter().filter(|(facts, _)| servers.can(facts)).map(async |(facts, algorithm)| {
            let first = ms(if facts.name == "memcached-add" { 1000 } else { 150 });
            with_leases_from(first, async |trial, lease| {
                let of = |owner: String, lease| Request {
                    name: format!("{trial}:{}", facts.name).into(),
                    ..request(facts, &owner, lease)
                };
                let begin = Instant::now();
                for number in 0..algorithm.holders() {
                    let Some(grant) = try_for(&*algorithm, &world, &of(format!("alice-{number}"), lease)).await else {
                        panic!("{}: it is not granted", facts.name)
                    };
                    let expected = facts.expires.then(|| world.elapsed() + lease);
                    assert!(grant.valid_until <= expected, "{}: {:?}", facts.name, grant.valid_until);
                }
                let bob = of("bob".to_owned(), ms(30_000));
                let early = try_for(&*algorithm, &world, &bob).await.is_some();
                assert!(!early || begin.elapsed() >= lease, "{}: {:?}", facts.name, begin.elapsed());
                holds(!early, || format!("{}: {lease:?} were over", facts.name))?;
                let granted = try_for(&*algorithm, &world, &bob.wait(lease * 3)).await;
                // The holder does not release it. A watchdog renews it.
                let watched = facts.name == "watchdog";
                let is_right = granted.is_some() == (facts.expires && !watched);
                holds(is_right, || format!("{}: after three times {lease:?}: {granted:?}", facts.name))?;
                assert!(begin.elapsed() >= lease, "{}: {:?}", facts.name, begin.elapsed());
                Ok(())
            })
            .await;
        });
        all_at_once(each).await;
    });
}

#[test]
fn a_renewed_lease_begins_anew() {
    on_frozen(async |servers| {
        let world = servers.world().await;
        let mut renewed = Vec::new();
        for (facts, algorithm) in locks() {
            let lease = ms(10_000);
            let mut grant = try_for(&*algorithm, &world, &request(facts, "alice", lease)).await.unwrap();
            // Further holders, so that no other permit is free.
            for number in 1..algorithm.holders() {
                try_for(&*algorithm, &world, &request(facts, &format!("other-{number}"), ms(60_000))).await.unwrap();
            }
            let bob = request(facts, "bob", lease);
            if !algorithm.renew(&world, &mut grant).await.unwrap() {
                assert!(!facts.renews, "{}", facts.name);
                continue;
            }
            assert!(facts.renews, "{}", facts.name);
            if facts.name == "permits" {
                // Its leases end by the client's clock, which the test does not move.
                continue;
            }
            servers.advance(ms(9_000));
            assert!(algorithm.renew(&world, &mut grant).await.unwrap(), "{}", facts.name);
            servers.advance(ms(9_999));
            assert!(try_for(&*algorithm, &world, &bob).await.is_none(), "{}", facts.name);
            servers.advance(ms(1));
            assert!(try_for(&*algorithm, &world, &bob).await.is_some(), "{}", facts.name);
            assert!(!algorithm.renew(&world, &mut grant).await.unwrap(), "{}", facts.name);
            renewed.push(facts.name);
        }
        assert!(renewed.len() >= 11, "{renewed:?}");
    });
}

#[test]
fn a_watchdog_renews_until_the_release() {
    on_both(async |servers| {
        let world = servers.world().await;
        let each = locks().into_iter().filter(|(facts, _)| servers.can(facts) && facts.renews).map(async |(facts, algorithm)| {
            let watched = WithWatchdog::new(algorithm);
            with_leases_from(ms(150), async |trial, lease| {
                let of = |owner: String, lease| Request {
                    name: format!("{trial}:{}", facts.name).into(),
                    ..request(facts, &owner, lease)
                };
                let grant = try_for(&watched, &world, &of("alice".to_owned(), lease)).await.unwrap();
                for number in 1..watched.holders() {
                    try_for(&watched, &world, &of(format!("other-{number}"), ms(60_000))).await.unwrap();
                }
                tokio::time::sleep(lease * 8 / 3).await;
                let held = grant.held_until() > Some(world.elapsed());
                holds(held, || format!("{}: it was not renewed within {lease:?}", facts.name))?;
                let taken = try_for(&watched, &world, &of("bob".to_owned(), lease)).await.is_some();
                holds(!taken, || format!("{}: {lease:?} were over", facts.name))?;
                let released = watched.release(&world, &grant).await.unwrap();
                holds(released == ReleaseOutcome::Released, || format!("{}: {released:?} after {lease:?}", facts.name))?;
                assert!(try_for(&watched, &world, &of("bob".to_owned(), lease)).await.is_some(), "{}", facts.name);
                Ok(())
            })
            .await;
        });
        all_at_once(each).await;
    });
}

#[test]
fn a_watchdog_notices_that_the_lock_is_gone() {
    on_both(async |servers| {
        let world = servers.world().await;
        let watched = WithWatchdog::new(lock("set-nx-px")).every(ms(10));
        let grant = try_for(&watched, &world, &Request::new("door", "alice", ms(60_000))).await.unwrap();
        world.client(0).command(&["DEL", "door"]).await.unwrap();
        assert!(grant.watchdog.as_ref().unwrap().lost().await);
        assert_eq!(grant.held_until(), Some(Duration::ZERO));
        assert_eq!(watched.release(&world, &grant).await.unwrap(), ReleaseOutcome::NotHeld);
    });
}

#[test]
fn a_wait_ends_with_the_release_or_in_time() {
    on_both(async |servers| {
        let world = servers.world().await;
        for (facts, algorithm) in locks().into_iter().filter(|(facts, _)| servers.can(facts)) {
            let algorithm: Arc<dyn Algorithm<Live>> = algorithm.into();
            let mut grants = Vec::new();
            for number in 0..algorithm.holders() {
                let alice = request(facts, &format!("alice-{number}"), ms(30_000));
                grants.push(try_for(&*algorithm, &world, &alice).await.unwrap());
            }
            for retry in [Retry::Fixed { pause: ms(2) }, Retry::Blocking] {
                let bob = request(facts, "bob", ms(30_000)).wait(ms(40)).retry(retry);
                let begin = Instant::now();
                assert!(try_for(&*algorithm, &world, &bob).await.is_none(), "{}", facts.name);
                assert!(begin.elapsed() >= ms(39), "{}: {:?}", facts.name, begin.elapsed());
            }
            let bob = request(facts, "bob", ms(30_000)).wait(Duration::MAX).retry(Retry::Blocking);
            let waiting = tokio::spawn({
                let (algorithm, world) = (Arc::clone(&algorithm), world.clone());
                async move { try_for(&*algorithm, &world, &bob).await }
            });
            tokio::time::sleep(ms(30)).await;
            assert!(!waiting.is_finished(), "{}", facts.name);
            algorithm.release(&world, &grants[0]).await.unwrap();
            let granted = tokio::time::timeout(ms(5_000), waiting).await.unwrap_or_else(|_| panic!("{}: not woken", facts.name));
            assert!(granted.unwrap().is_some(), "{}", facts.name);
        }
    });
}

#[test]
fn tries_are_bounded() {
    on_both(async |servers| {
        let world = servers.world().await;
        let token = lock("set-nx-px");
        let _held = try_for(&*token, &world, &Request::new("door", "alice", ms(60_000))).await.unwrap();
        let retry = Retry::Exponential { first: ms(1), factor: 2.0, most: ms(50), jitter: 0.5, tries: Some(4) };
        let bob = Request::new("door", "bob", ms(60_000)).wait(Duration::MAX).retry(retry);
        assert!(try_for(&*token, &world, &bob).await.is_none());
    });
}

#[test]
fn a_fenced_resource_refuses_who_was_too_slow() {
    run(async {
        let servers = Servers::ours(true);
        let world = servers.world().await;
        let native = lock("native");
        let first = try_for(&*native, &world, &Request::new("door", "alice", ms(10))).await.unwrap();
        servers.advance(ms(10));
        let second = try_for(&*native, &world, &Request::new("door", "bob", ms(10))).await.unwrap();
        assert!(second.token > first.token);
        assert!(guard(&world, 0, b"ledger", second.token.unwrap()).await.unwrap());
        assert!(!guard(&world, 0, b"ledger", first.token.unwrap()).await.unwrap());
    });
}

#[test]
fn a_lost_reply_does_not_lose_a_lock_that_knows_its_owner() {
    run(async {
        let servers = Servers::ours(false);
        let world = servers.world().await;
        world.client(0).command(&["FAULT", "ADD", "lost", "RESET-AFTER", "ON", "set", "TIMES", "1"]).await.unwrap();
        let alice = Request::new("door", "alice", ms(60_000));
        assert!(try_for(&*lock("set-nx-px"), &world, &alice).await.is_some());
        world.client(0).command(&["FAULT", "ADD", "lost", "RESET-AFTER", "ON", "setnx", "TIMES", "1"]).await.unwrap();
        let naive = lock("setnx").acquire(&world, &Request::new("window", "alice", ms(60_000))).await;
        assert!(naive.is_err_and(|error| error.maybe_applied()));
        assert!(try_for(&*lock("setnx"), &world, &Request::new("window", "alice", ms(60_000))).await.is_none());
    });
}

/// After a long wait the client asks for the rest of the lease. If that request fails, the lock is held nevertheless and can be
/// released.
#[test]
fn a_native_lock_is_not_forgotten_where_its_lease_cannot_be_asked_for() {
    run(async {
        let servers = Servers::ours(false);
        let world = servers.world().await;
        let native = lock("native");
        world.client(0).command(&["FAULT", "ADD", "busy", "ERROR", "BUSY later", "ON", "lock.renew"]).await.unwrap();
        with_leases_from(ms(400), async |trial, lease| {
            let door = format!("door:{trial}");
            let held = try_for(&*native, &world, &Request::new(&door, "alice", ms(60_000))).await.unwrap();
            let bob = Request::new(&door, "bob", lease).wait(ms(60_000));
            let (granted, _) = tokio::join!(native.acquire(&world, &bob), async {
                tokio::time::sleep(lease * 3 / 8).await;
                native.release(&world, &held).await.unwrap()
            });
            let granted = granted.unwrap().expect("alice has given it back");
            let released = native.release(&world, &granted).await.unwrap();
            holds(released == ReleaseOutcome::Released, || format!("{released:?} after {lease:?}"))
        })
        .await;
    });
}

#[test]
fn redlock_goes_on_without_a_minority() {
    run(async {
        let mut servers = Servers::ours(false);
        let world = servers.world().await;
        let Servers::Ours(running) = &mut servers else { unreachable!() };
        running.pop();
        let alice = Request::new("door", "alice", ms(60_000));
        // Each step waits for this long for the server that is gone.
        let redlock = redlock(ms(1_000));
        let mut grant = try_for(&*redlock, &world, &alice).await.unwrap();
        assert!(grant.valid_until.unwrap() < world.elapsed() + ms(59_500), "the drift is taken off");
        assert!(try_for(&*redlock, &world, &Request::new("door", "bob", ms(60_000))).await.is_none());
        assert!(redlock.renew(&world, &mut grant).await.unwrap());
        assert_eq!(redlock.release(&world, &grant).await.unwrap(), ReleaseOutcome::Released);
        running.pop();
        assert!(redlock.acquire(&world, &alice).await.is_err(), "a majority is away");
        assert!(!running[0].exists("door"), "it is given back where it was granted");
    });
}

#[test]
fn an_administrator_can_end_the_wait_for_a_native_lock() {
    run(async {
        let server = TestServer::start();
        let (world, admin) = (Live::new([client(&server).await]), client(&server).await);
        let native = lock("native");
        let holder = request(native.facts(), "holder", ms(60_000));
        let grant = try_for(&*native, &world, &holder).await.unwrap();
        let ends = async {
            let mut ended = 0;
            loop {
                let list = admin.command(&["CLIENT", "LIST"]).await.unwrap();
                let list = list.as_str().unwrap().to_owned();
                let waits = list.lines().find(|line| line.contains(" cmd=lock.acquire ") && line.contains(" flags=b "));
                if let Some(id) = waits.and_then(|line| line.strip_prefix("id=")?.split(' ').next()) {
                    ended += admin.command(&["CLIENT", "UNBLOCK", id]).await.unwrap().as_integer().unwrap();
                }
                assert!(ended <= 10, "it is asked for without end");
                tokio::time::sleep(ms(1)).await;
            }
        };
        let waiter = Request { wait: Duration::MAX, ..request(native.facts(), "waiter", ms(60_000)) };
        tokio::select! {
            outcome = native.acquire(&world, &waiter) => assert!(outcome.unwrap().is_none()),
            () = ends => {}
        }
        assert_eq!(native.release(&world, &grant).await.unwrap(), ReleaseOutcome::Released);
    });
}
