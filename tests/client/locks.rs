//! Native locks of the client: guards, their state, and notifications.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use portcullis::TestServer;
use portcullis::client::{Client, Command, Error, Lost, Wait};

use crate::common::clients::{client, frozen, ms, of_holder, options, run, until_empty, until_waiting};

#[test]
fn a_lock_is_had_by_one_and_passed_on_in_line() {
    run(async {
        let server = frozen();
        let (a, b) = (client(&server).await, client(&server).await);
        let guard = a.lock("door").acquire().await.expect("granted");
        assert!(guard.check().await.expect("a reply") && !guard.is_lost());
        assert!(b.lock("door").try_acquire().await.expect("a reply").is_none());
        let order = Arc::new(AtomicU64::new(0));
        let mut waits = Vec::new();
        for place in 0..20 {
            let (b, order) = (b.clone(), Arc::clone(&order));
            waits.push(tokio::spawn(async move {
                let guard = b.lock("door").acquire().await.expect("granted");
                assert_eq!(order.fetch_add(1, Ordering::Relaxed), place);
                let token = guard.token();
                guard.release().await.expect("released");
                token
            }));
            until_waiting(&a, "door", place as usize + 1).await;
        }
        let mut last = guard.token();
        guard.release().await.expect("released");
        for wait in waits {
            let token = wait.await.expect("a task");
            assert!(token > last);
            last = token;
        }
        assert_eq!(server.dbsize(), 0);
        server.check_invariants();
    });
}

#[test]
fn a_wait_ends_in_time() {
    run(async {
        let server = TestServer::start();
        let client = client(&server).await;
        let _guard = client.lock("a").acquire().await.expect("granted");
        let begin = Instant::now();
        let error = client.lock("a").wait(ms(50)).acquire().await.expect_err("held");
        assert!(matches!(&error, Error::NotGranted { name, waited } if name == "a" && *waited >= ms(50)), "{error}");
        assert!(begin.elapsed() < Duration::from_secs(5));
        let error = client.lock_all(["b", "a"]).wait(ms(20)).acquire().await.expect_err("held");
        assert!(matches!(&error, Error::NotGranted { name, .. } if name == "b', 'a"), "{error}");
        assert!(!server.exists("b"));
    });
}

#[test]
fn a_guard_that_is_dropped_gives_back() {
    run(async {
        let server = frozen();
        let client = client(&server).await;
        drop(client.lock("a").acquire().await.expect("granted"));
        drop(client.lock("b").session().acquire().await.expect("granted"));
        drop(client.lock_all(["c", "d"]).acquire().await.expect("granted"));
        drop(client.semaphore("e", 2).acquire().await.expect("granted"));
        // The release was dropped before it was complete.
        let guard = client.lock("f").acquire().await.expect("granted");
        tokio::select! {
            biased;
            _ = guard.release() => panic!("the server was not asked yet"),
            () = std::future::ready(()) => {}
        }
        until_empty(&server).await;
    });
}

#[test]
fn a_guard_may_outlive_its_runtime() {
    let server = frozen();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let first = runtime();
    let (guard, bound) = first.block_on(async {
        let client = client(&server).await;
        (client.lock("a").acquire().await.expect("granted"), client.lock("b").session().acquire().await.expect("granted"))
    });
    drop(first);
    // The lock of the session ended with its connection. The other one stays until the end of its lease.
    while server.exists("b") {
        std::thread::sleep(ms(1));
    }
    assert!(server.exists("a"));
    assert!(runtime().block_on(guard.release()).is_err());
    drop(bound);
    server.clock().advance(Duration::from_secs(30));
    assert!(!server.exists("a"));
    // From a thread without a runtime.
    let second = runtime();
    let guard = second.block_on(async { client(&server).await.lock("a").acquire().await.expect("granted") });
    drop(guard);
    second.block_on(until_empty(&server));
}

/// How often a server was asked to renew a lease.
async fn renewals(client: &Client) -> u32 {
    let info: String = client.query(Command::new("INFO").arg("commandstats")).await.expect("a reply");
    let calls = |name: &str| {
        let line = info.lines().find(|line| line.starts_with(name))?;
        line.split(['=', ',']).nth(1)?.parse::<u32>().ok()
    };
    calls("cmdstat_lock.renew").unwrap_or(0) + calls("cmdstat_sem.renew").unwrap_or(0)
}

#[test]
fn guards_renew_at_a_third_of_the_lease() {
    run(async {
        let server = TestServer::start();
        let client = client(&server).await;
        let lease = Duration::from_secs(6);
        let begin = Instant::now();
        let guards = [
            client.lock("a").lease(lease).acquire().await.expect("granted"),
            client.lock("b").lease(lease).session().acquire().await.expect("granted"),
            client.lock_all(["c", "d"]).lease(lease).acquire().await.expect("granted"),
            client.semaphore("e", 2).lease(lease).acquire().await.expect("granted"),
        ];
        let still = client.lock("f").lease(lease).renew(false).acquire().await.expect("granted");
        loop {
            let calls = renewals(&client).await;
            assert!(calls == 0 || begin.elapsed() >= lease / 3, "too early");
            if calls >= 5 {
                break;
            }
            tokio::time::sleep(ms(5)).await;
        }
        for (guard, name) in guards.iter().zip(["a", "b", "c", "e"]) {
            assert!(server.ttl(name) > server.ttl("f").map(|left| left + ms(500)), "{name}");
            assert!(guard.remaining() > still.remaining() + ms(500), "{name}");
        }
        drop(guards);
    });
}

#[test]
fn a_lease_that_is_not_renewed_ends() {
    run(async {
        let server = TestServer::start();
        let client = client(&server).await;
        let begin = Instant::now();
        let guard = client.lock("a").lease(ms(300)).renew(false).acquire().await.expect("granted");
        assert_eq!(guard.lost().await, Lost::Lease);
        // Less the margin.
        assert!(begin.elapsed() >= ms(285), "{:?}", begin.elapsed());
        assert!(guard.is_lost() && guard.remaining() == Duration::ZERO);
        until_empty(&server).await;
        assert!(matches!(guard.release().await, Err(Error::NotHeld(text)) if text.contains("its lease ended")));
    });
}

#[test]
fn a_holder_is_told_at_once_what_it_lost_and_why() {
    run(async {
        let server = frozen();
        let client = client(&server).await;
        let lock = client.lock("a").lease(Duration::from_secs(3600));
        let ended = lock.clone().renew(false).acquire().await.expect("granted");
        let lost = tokio::spawn(ended.lost());
        server.clock().advance(Duration::from_secs(3600));
        assert_eq!(lost.await.expect("a task"), Lost::Lease);
        let broken = lock.acquire().await.expect("granted");
        assert!(!broken.is_lost() && ended.is_lost());
        client.command(&["DEL", "a"]).await.expect("a reply");
        assert_eq!(broken.lost().await, Lost::Deleted);
        let bounded = lock.clone().max_hold(Duration::from_secs(1)).acquire().await.expect("granted");
        assert!(bounded.remaining() <= Duration::from_secs(1));
        server.clock().advance(Duration::from_secs(1));
        assert_eq!(bounded.lost().await, Lost::MaxHold);
        let stuck = lock.clone().acquire().await.expect("granted");
        client.command(&["LOCK.BREAK", "a", "TOKEN", &stuck.token().to_string()]).await.expect("a reply");
        assert_eq!(stuck.lost().await, Lost::Broken);
        let one = client.lock_all(["a", "b"]).acquire().await.expect("granted");
        client.command(&["DEL", "b"]).await.expect("a reply");
        assert_eq!(one.lost().await, Lost::Deleted);
        let error = one.release().await.expect_err("half of it was lost");
        assert!(
            matches!(&error, Error::NotHeld(text) if text.contains("lock 'b'") && text.contains("deleted by client")),
            "{error}"
        );
        assert_eq!(server.dbsize(), 0, "the other half was given back");
        // A released lock is not lost.
        let guard = lock.acquire().await.expect("granted");
        let lost = tokio::spawn(guard.lost());
        guard.release().await.expect("released");
        assert_eq!(lost.await.expect("a task"), Lost::Released);
    });
}

#[test]
fn without_pushes_a_renewal_tells() {
    run(async {
        let server = TestServer::start();
        let client = Client::with(options(server.addr()).resp2()).await.expect("a client");
        assert_eq!(client.protocol().await, Ok(2));
        let guard = client.lock("a").lease(ms(4500)).acquire().await.expect("granted");
        client.command(&["DEL", "a"]).await.expect("a reply");
        assert!(!guard.is_lost());
        let Lost::NotHeld(cause) = guard.lost().await else { panic!("another reason") };
        assert!(cause.contains("deleted by client"), "{cause}");
        let guard = client.lock("a").renew(false).acquire().await.expect("granted");
        client.command(&["DEL", "a"]).await.expect("a reply");
        assert!(!guard.check().await.expect("a reply") && guard.is_lost());
        let guard = client.lock("a").renew(false).acquire().await.expect("granted");
        client.command(&["DEL", "a"]).await.expect("a reply");
        assert!(matches!(guard.renew().await, Err(Error::NotHeld(_))) && guard.is_lost());
    });
}

#[test]
fn a_grant_after_a_long_wait_is_held_for_a_whole_lease() {
    run(async {
        let server = TestServer::start();
        let client = client(&server).await;
        let first = client.lock("a").acquire().await.expect("granted");
        let lease = Duration::from_secs(3);
        let wait = tokio::spawn({
            let lock = client.lock("a").lease(lease).renew(false);
            async move { lock.acquire().await }
        });
        tokio::time::sleep(ms(1200)).await;
        let released = Instant::now();
        first.release().await.expect("released");
        let guard = wait.await.expect("a task").expect("granted");
        // Counted from its request, the lease would have at most 1.7 s left. The margin is a twentieth.
        let left = guard.remaining();
        assert!(left <= lease && left + released.elapsed() >= lease - lease / 20, "{left:?} after {:?}", released.elapsed());
    });
}

#[test]
fn a_session_goes_with_its_connection() {
    run(async {
        let server = frozen();
        let (a, b) = (client(&server).await, client(&server).await);
        let guard = a.lock("a").session().acquire().await.expect("granted");
        let plain = a.lock("b").acquire().await.expect("granted");
        let wait = tokio::spawn(async move { b.lock("a").acquire().await });
        until_waiting(&a, "a", 1).await;
        let id = of_holder(&a, "a", "client").await.expect("a holder");
        a.command(&["CLIENT", "KILL", "ID", &id.to_string()]).await.expect("a reply");
        assert_eq!(guard.lost().await, Lost::Connection);
        let _next = wait.await.expect("a task").expect("granted");
        assert!(matches!(guard.release().await, Err(Error::NotHeld(_))));
        assert!(!plain.is_lost());
        // After a release the connection is used by others.
        let guard = a.lock("c").session().acquire().await.expect("granted");
        let id = of_holder(&a, "c", "client").await;
        guard.release().await.expect("released");
        let guard = a.lock("c").session().acquire().await.expect("granted");
        assert_eq!(of_holder(&a, "c", "client").await, id);
        assert!(guard.renew().await.is_ok());
    });
}

#[test]
fn a_deadlock_is_an_error_that_names_the_cycle() {
    run(async {
        let server = frozen();
        let client = client(&server).await;
        let lock = |name: &str, owner: &str| client.lock(name).owner(owner);
        let _a = lock("a", "x").acquire().await.expect("granted");
        let b = lock("b", "y").acquire().await.expect("granted");
        let wait = tokio::spawn({
            let a = lock("a", "y");
            async move { a.acquire().await }
        });
        until_waiting(&client, "a", 1).await;
        let Err(Error::Deadlock(deadlock)) = lock("b", "x").acquire().await else { panic!("no deadlock") };
        let edge = |owner: &str, lock: &str, behind: &str| Wait {
            owner: owner.to_owned(),
            lock: lock.to_owned(),
            behind: behind.to_owned(),
            held: true,
        };
        assert_eq!(deadlock.cycle, [edge("x", "b", "y"), edge("y", "a", "x")]);
        assert!(!wait.is_finished());
        wait.abort();
        until_waiting(&client, "a", 0).await;
        b.release().await.expect("released");
        lock("b", "x").acquire().await.expect("granted").release().await.expect("released");
    });
}

#[test]
fn a_named_owner_is_reentrant_and_no_guard_shortens_the_lease_of_another() {
    run(async {
        let server = TestServer::start();
        let client = client(&server).await;
        let lock = client.lock("a").owner("me");
        let outer = lock.clone().lease(Duration::from_secs(100)).acquire().await.expect("granted");
        let inner = lock.clone().lease(Duration::from_secs(3)).acquire().await.expect("granted");
        assert_eq!(outer.token(), inner.token());
        assert_eq!(of_holder(&client, "a", "holds").await, Some(2));
        // Until the inner one is renewed.
        while renewals(&client).await == 0 {
            tokio::time::sleep(ms(5)).await;
        }
        assert!(of_holder(&client, "a", "lease").await > Some(90_000));
        drop(outer);
        while of_holder(&client, "a", "holds").await != Some(1) {
            tokio::time::sleep(ms(1)).await;
        }
        assert!(inner.check().await.expect("a reply"));
        inner.release().await.expect("released");
        assert_eq!(server.dbsize(), 0);
        // The inner guard is not valid for longer than the bound of the outer one.
        let outer = lock.clone().max_hold(Duration::from_secs(2)).acquire().await.expect("granted");
        let inner = lock.clone().lease(Duration::from_secs(100)).acquire().await.expect("granted");
        assert!(inner.remaining() <= Duration::from_secs(2));
        drop((outer, inner));
    });
}

#[test]
fn shared_locks_semaphores_and_latches() {
    run(async {
        let server = frozen();
        let client = client(&server).await;
        let read = client.lock("a").shared();
        let (one, two) = (read.acquire().await.expect("granted"), read.acquire().await.expect("granted"));
        assert!(two.token() > one.token());
        assert!(client.lock("a").try_acquire().await.expect("a reply").is_none());
        drop((one, two));
        until_empty(&server).await;

        let lock = client.lock("a").delay(Duration::from_secs(5));
        let guard = lock.acquire().await.expect("granted");
        server.clock().advance(Duration::from_secs(31));
        assert_eq!(guard.lost().await, Lost::Lease);
        assert!(lock.try_acquire().await.expect("a reply").is_none(), "it is held back");
        server.clock().advance(Duration::from_secs(5));
        lock.acquire().await.expect("granted").release().await.expect("released");

        let permits = client.semaphore("s", 3);
        let two = permits.clone().permits(2).acquire().await.expect("granted");
        assert!(permits.clone().permits(2).try_acquire().await.expect("a reply").is_none());
        let error = client.semaphore("s", 4).acquire().await.expect_err("another limit");
        assert!(matches!(&error, Error::Limit(text) if text == "semaphore 's' has limit 3, not 4"), "{error}");
        let one = permits.acquire().await.expect("granted");
        assert!(one.check().await.expect("a reply") && one.token() > two.token());
        drop((one, two));
        until_empty(&server).await;

        let latch = client.latch("l");
        assert_eq!(latch.down().await, Ok(None));
        let opens = tokio::spawn({
            let latch = latch.clone();
            async move { latch.wait(None).await }
        });
        assert_eq!((latch.set_for(3, Duration::from_secs(60)).await, latch.set(5).await), (Ok(true), Ok(false)));
        assert_eq!((latch.down().await, latch.down_by(2).await), (Ok(Some(2)), Ok(Some(0))));
        assert_eq!(opens.await.expect("a task"), Ok(true));
    });
}

#[test]
fn stale_tokens_are_refused_by_a_guarded_resource() {
    run(async {
        let server = frozen();
        let client = client(&server).await;
        let resource = client.resource("r");
        let old = client.lock("a").acquire().await.expect("granted");
        client.command(&["DEL", "a"]).await.expect("a reply");
        let new = client.lock("a").acquire().await.expect("granted");
        assert_eq!(resource.admit(&new).await, Ok(()));
        assert_eq!(resource.admit(&new).await, Ok(()));
        assert_eq!(resource.admit(&old).await, Err(Error::Stale { token: old.token(), seen: new.token() }));
        client.query::<()>(Command::new("DEL").arg("a")).await.expect("a reply");
        assert_eq!(new.lost().await, Lost::Deleted);
        assert!(matches!(resource.admit(&new).await, Err(Error::NotHeld(_))), "nobody was here since, but it is lost");
    });
}
