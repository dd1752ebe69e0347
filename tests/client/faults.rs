//! Native locks leave nothing behind when the client's futures are dropped, connections break and servers end.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use portcullis::TestServer;
use portcullis::client::{Client, Command, Lost, Value};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::common::clients::{client, frozen, ms, of_holder, options, run, until_empty, until_waiting};
use crate::common::ports;
use crate::common::random::Random;

#[test]
fn nobody_holds_beyond_the_lease_when_the_server_is_gone() {
    run(async {
        let server = TestServer::start();
        let client = client(&server).await;
        let begin = Instant::now();
        let guard = client.lock("a").lease(ms(1500)).acquire().await.expect("granted");
        let bound = client.lock("b").lease(ms(600_000)).session().acquire().await.expect("granted");
        drop(server);
        assert_eq!(bound.lost().await, Lost::Connection);
        // On a busy machine the lease may be over by now.
        assert!(!guard.is_lost() || begin.elapsed() >= ms(1425));
        assert_eq!(guard.lost().await, Lost::Lease);
        // Less a margin of a twentieth.
        assert!(begin.elapsed() >= ms(1425), "{:?}", begin.elapsed());
        assert!(guard.is_lost() && guard.remaining().is_zero());
        let begin = Instant::now();
        drop((guard, bound));
        // A release would be tried for as long as a response may take.
        assert!(begin.elapsed() < ms(5_000), "a drop does not wait");
    });
}

#[test]
fn an_acquire_that_is_dropped_leaves_nothing_behind() {
    run(async {
        let server = frozen();
        let client = client(&server).await;
        let guard = client.lock("a").acquire().await.expect("granted");
        for kind in 0..4 {
            let client = client.clone();
            let wait = tokio::spawn(async move {
                match kind {
                    0 => client.lock("a").acquire().await,
                    1 => client.lock("a").session().acquire().await,
                    2 => client.lock("a").owner("me").acquire().await,
                    _ => client.lock_all(["b", "a"]).acquire().await,
                }
            });
            until_waiting(&Client::connect(&server.url()).await.expect("a client"), "a", 1).await;
            wait.abort();
            until_waiting(&Client::connect(&server.url()).await.expect("a client"), "a", 0).await;
        }
        guard.release().await.expect("released");
        assert_eq!(server.dbsize(), 0);
    });
}

#[test]
fn dropped_at_any_moment_an_acquire_leaves_nothing_behind() {
    run(async {
        let server = frozen();
        let client = client(&server).await;
        let mut random = Random::new(7);
        let mut tasks = Vec::new();
        for worker in 0..8u64 {
            let (client, seed) = (client.clone(), random.next() ^ worker);
            tasks.push(tokio::spawn(async move {
                let mut random = Random::new(seed);
                let mut granted = 0;
                for _ in 0..100 {
                    let lock = client.lock("a");
                    let lock = if random.below(3) == 0 { lock.session() } else { lock };
                    let most = if random.one_in(8) { 1_000_000 } else { 1500 };
                    let patience = Duration::from_micros(random.below(most));
                    let tried = match random.below(4) {
                        0 => tokio::time::timeout(patience, lock.try_acquire()).await.map(|it| it.expect("no error")),
                        _ => tokio::time::timeout(patience, lock.acquire()).await.map(|it| Some(it.expect("no error"))),
                    };
                    if let Ok(Some(guard)) = tried {
                        granted += 1;
                        match random.below(2) {
                            0 => drop(guard),
                            _ => guard.release().await.expect("released"),
                        }
                    }
                }
                granted
            }));
        }
        let mut granted = 0;
        for task in tasks {
            granted += task.await.expect("a task");
        }
        assert!(granted > 20, "{granted}");
        // The leases do not end, so a free lock was released.
        until_empty(&server).await;
        server.check_invariants();
    });
}

/// A proxy between a client and a server that cuts connections on request.
struct Proxy {
    addr: SocketAddr,
    /// Set by a test: the next request about locks passes, but its connection is cut before the reply.
    cut: watch::Sender<bool>,
}

impl Proxy {
    async fn to(server: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("an address");
        let cut = watch::Sender::new(false);
        let told = cut.clone();
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let told = told.clone();
                tokio::spawn(async move {
                    let mut far = TcpStream::connect(server).await.expect("connected");
                    let (mut from_near, mut from_far) = ([0; 4096], [0; 4096]);
                    let mut doomed = false;
                    loop {
                        tokio::select! {
                            read = near.read(&mut from_near) => match read {
                                Ok(count) if count > 0 => {
                                    let about_locks = from_near[..count].windows(5).any(|word| word == b"LOCK.");
                                    doomed |= about_locks && told.send_replace(false);
                                    drop(far.write_all(&from_near[..count]).await);
                                }
                                _ => return,
                            },
                            read = far.read(&mut from_far) => match read {
                                Ok(count) if count > 0 && !doomed => drop(near.write_all(&from_far[..count]).await),
                                _ => return,
                            },
                        }
                    }
                });
            }
        });
        Proxy { addr, cut }
    }
}

#[test]
fn a_grant_that_was_not_heard_of_is_had_by_asking_again() {
    run(async {
        for owner in [None, Some("me")] {
            for wait in [true, false] {
                let server = frozen();
                let direct = client(&server).await;
                let proxy = Proxy::to(server.addr()).await;
                let client = Client::with(options(proxy.addr).response_timeout(Duration::from_secs(5))).await.expect("a client");
                let lock = match owner {
                    None => client.lock("a"),
                    Some(owner) => client.lock("a").owner(owner),
                };
                proxy.cut.send_replace(true);
                let guard = match wait {
                    true => lock.acquire().await,
                    false => lock.try_acquire().await.map(|guard| guard.expect("it is its own")),
                };
                let guard = guard.expect("granted");
                assert_eq!(of_holder(&direct, "a", "holds").await, Some(1), "owner {owner:?}, wait {wait}");
                assert_eq!(of_holder(&direct, "a", "token").await, Some(guard.token() as i64));
                guard.release().await.expect("released");
                assert_eq!(server.dbsize(), 0, "owner {owner:?}, wait {wait}");
            }
        }
    });
}

#[test]
fn a_grant_of_a_session_that_was_not_heard_of_is_not_taken_for_the_next() {
    run(async {
        let server = frozen();
        let direct = client(&server).await;
        let proxy = Proxy::to(server.addr()).await;
        let client = Client::with(options(proxy.addr)).await.expect("a client");
        proxy.cut.send_replace(true);
        let guard = client.lock("a").session().acquire().await.expect("granted");
        assert_eq!(of_holder(&direct, "a", "holds").await, Some(1));
        assert!(guard.check().await.expect("a reply"));
        guard.release().await.expect("released");
        assert_eq!(server.dbsize(), 0);
    });
}

#[test]
fn a_session_with_a_grace_outlives_its_connections() {
    run(async {
        let server = frozen();
        let (direct, client) = (client(&server).await, client(&server).await);
        let guard = client.lock("a").session_grace(ms(60_000)).acquire().await.expect("granted");
        for round in 0..3 {
            let before = of_holder(&direct, "a", "client").await.expect("a number");
            direct.command(&["CLIENT", "KILL", "ID", &before.to_string()]).await.expect("a reply");
            // The holder may ask before the guard has its next connection.
            match round {
                0 => assert!(guard.check().await.expect("a reply")),
                1 => assert!(guard.renew().await.expect("renewed") > ms(0)),
                _ => {}
            }
            let begin = Instant::now();
            while of_holder(&direct, "a", "client").await.is_none_or(|now| now == 0 || now == before) {
                assert!(begin.elapsed() < ms(10_000), "it does not come back");
                tokio::time::sleep(ms(2)).await;
            }
        }
        assert!(!guard.is_lost());
        assert!(guard.check().await.expect("a reply"));
        assert_eq!(of_holder(&direct, "a", "token").await, Some(guard.token() as i64));
        guard.release().await.expect("released");
        assert_eq!(server.dbsize(), 0);
    });
}

#[test]
fn a_release_that_was_not_heard_of_was_one() {
    run(async {
        let server = frozen();
        let proxy = Proxy::to(server.addr()).await;
        let client = Client::with(options(proxy.addr)).await.expect("a client");
        let guard = client.lock("a").acquire().await.expect("granted");
        proxy.cut.send_replace(true);
        assert_eq!(guard.release().await, Ok(()));
        assert_eq!(server.dbsize(), 0);
    });
}

/// The number of the connection on which the only waiter waits.
async fn of_waiter(client: &Client, name: &str) -> String {
    let info = client.command(&["LOCK.INFO", name]).await.expect("a reply");
    let waiter = &info.field("waiters").and_then(Value::as_array).expect("waiters")[0];
    waiter.field("client").and_then(Value::as_integer).expect("a number").to_string()
}

#[test]
fn a_late_copy_of_a_request_does_not_keep_the_place_that_it_takes() {
    run(async {
        let server = frozen();
        let (a, b) = (client(&server).await, client(&server).await);
        let guard = a.lock("a").acquire().await.expect("granted");
        let wait = tokio::spawn(async move { b.lock("a").acquire().await });
        until_waiting(&a, "a", 1).await;
        let monitor = tokio::net::TcpStream::connect(server.addr()).await.expect("a connection");
        let mut monitor = tokio::io::BufReader::new(monitor);
        monitor.write_all(b"MONITOR\r\n").await.expect("sent");
        let mut line = String::new();
        monitor.read_line(&mut line).await.expect("a line");
        assert_eq!(line, "+OK\r\n");
        // The client resends its request.
        a.command(&["CLIENT", "KILL", "ID", &of_waiter(&a, "a").await]).await.expect("a reply");
        while !line.contains("\"LOCK.ACQUIRE\"") {
            line.clear();
            monitor.read_line(&mut line).await.expect("a line");
        }
        let words: Vec<&str> = line.split('"').skip(1).step_by(2).collect();
        // The first copy of the request arrives only now, and takes the place in the queue until the client sends the request
        // again.
        let mut late = tokio::net::TcpStream::connect(server.addr()).await.expect("a connection");
        late.write_all(Command::new(words[0]).args(&words[1..]).wire()).await.expect("sent");
        let mut reply = [0; 5];
        late.read_exact(&mut reply).await.expect("a reply");
        assert_eq!(&reply, b"$-1\r\n");
        until_waiting(&a, "a", 1).await;
        assert!(!wait.is_finished());
        guard.release().await.expect("released");
        let next = wait.await.expect("a task").expect("granted");
        next.release().await.expect("released");
        assert_eq!(server.dbsize(), 0);
    });
}

#[test]
fn a_wait_goes_on_after_its_connection_was_killed_and_after_a_restart() {
    run(async {
        let port = ports::free();
        let start = || {
            ports::until_free(port);
            TestServer::builder().frozen(true).config("port", &port.to_string()).start()
        };
        let server = start();
        let (a, b) = (client(&server).await, client(&server).await);
        let guard = a.lock("a").acquire().await.expect("granted");
        let wait = tokio::spawn(async move { b.lock("a").acquire().await });
        until_waiting(&a, "a", 1).await;
        let killed = of_waiter(&a, "a").await;
        a.command(&["CLIENT", "KILL", "ID", &killed]).await.expect("a reply");
        loop {
            until_waiting(&a, "a", 1).await;
            if of_waiter(&a, "a").await != killed {
                break;
            }
        }
        assert!(!wait.is_finished());
        // The server loses all data: the holder learns of it, and the waiter is granted the lock.
        drop(server);
        let server = start();
        let next = wait.await.expect("a task").expect("granted");
        assert!(next.check().await.expect("a reply"));
        assert!(!guard.check().await.expect("a reply"));
        assert!(guard.is_lost() && next.token() > guard.token());
        next.release().await.expect("released");
        assert_eq!(server.dbsize(), 0);
    });
}
