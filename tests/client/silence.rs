//! Holders whose connections stand, and whom nobody answers: they count as no holders before the server's leases end, and find another
//! node before that.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use portcullis::TestServer;
use portcullis::client::{Client, Error, Lost};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use crate::common::clients::{client, ms, of_holder, run};

/// A network that can fall silent: connections stand, nothing gets through, and what was sent arrives later.
struct Proxy {
    port: u16,
    silent: Arc<AtomicBool>,
}

impl Proxy {
    async fn to(server: &TestServer) -> Proxy {
        let (listener, target) = (TcpListener::bind("127.0.0.1:0").await.expect("a port"), server.addr());
        let (port, silent) = (listener.local_addr().expect("an address").port(), Arc::new(AtomicBool::new(false)));
        let told = Arc::clone(&silent);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let told = Arc::clone(&told);
                tokio::spawn(async move {
                    speaks(&told).await;
                    let far = TcpStream::connect(target).await.expect("connected");
                    let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
                    tokio::join!(pump(near_in, far_out, &told), pump(far_in, near_out, &told));
                });
            }
        });
        Proxy { port, silent }
    }

    fn silence(&self, silent: bool) {
        self.silent.store(silent, Ordering::Relaxed);
    }
}

async fn speaks(silent: &AtomicBool) {
    while silent.load(Ordering::Relaxed) {
        tokio::time::sleep(ms(2)).await;
    }
}

async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, silent: &AtomicBool) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        speaks(silent).await;
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
    speaks(silent).await;
}

fn url(proxies: &[&Proxy]) -> String {
    let hosts: Vec<_> = proxies.iter().map(|proxy| format!("127.0.0.1:{}", proxy.port)).collect();
    format!("redis://{}", hosts.join(","))
}

#[test]
fn nobody_holds_when_the_server_has_not_answered_for_the_lease() {
    run(async {
        let server = TestServer::start();
        let proxy = Proxy::to(&server).await;
        let client = Client::connect(&url(&[&proxy])).await.expect("a client");
        let (lease, certain) = (Duration::from_secs(6), ms(5700));
        let grace = Duration::from_secs(60);
        let guards = [
            client.lock("lock").lease(lease).acquire().await.expect("granted"),
            client.lock("still").lease(lease).renew(false).acquire().await.expect("granted"),
            client.lock("shared").lease(lease).shared().acquire().await.expect("granted"),
            client.lock("owner").lease(lease).owner("me").acquire().await.expect("granted"),
            client.lock_all(["a", "b"]).lease(lease).acquire().await.expect("granted"),
            client.semaphore("permits", 2).lease(lease).acquire().await.expect("granted"),
            client.lock("session").lease(lease).session().acquire().await.expect("granted"),
            client.lock("named").lease(lease).session_grace(grace).acquire().await.expect("granted"),
            client.lock("bounded").max_hold(lease).acquire().await.expect("granted"),
        ];
        proxy.silence(true);
        let silent = Instant::now();
        let mut told = Vec::new();
        for guard in &guards {
            let left = guard.remaining();
            assert!(!guard.is_lost() && left > Duration::ZERO && left <= certain, "{guard:?}: {left:?}");
            let lost = guard.lost();
            told.push((left, tokio::spawn(async move { (lost.await, silent.elapsed()) })));
        }
        for ((left, told), guard) in told.into_iter().zip(&guards) {
            let (lost, after) = told.await.expect("a task");
            assert_eq!(lost, Lost::Lease, "{guard:?}");
            assert!(after < left + (lease - certain), "{guard:?}: {left:?} were left, and it was told after {after:?}");
            assert!(guard.is_lost() && guard.remaining() == Duration::ZERO);
        }
        proxy.silence(false);
        for guard in guards {
            assert!(!guard.check().await.expect("no error"), "an answer that comes now is too late");
            drop(guard);
        }
    });
}

#[test]
fn a_node_that_does_not_answer_is_left_for_the_next_leader() {
    run(async {
        let server = TestServer::start();
        // Two ways to one server: the one that led stands still, and the other one leads.
        let (first, second) = (Proxy::to(&server).await, Proxy::to(&server).await);
        let others = client(&server).await;
        let client = Client::connect(&url(&[&first, &second])).await.expect("a client");
        let (lease, grace) = (Duration::from_secs(4), Duration::from_secs(60));
        let plain = client.lock("plain").lease(lease).acquire().await.expect("granted");
        let named = client.lock("named").lease(lease).session_grace(grace).acquire().await.expect("granted");
        let session = client.lock("session").lease(lease).session().acquire().await.expect("granted");
        let before = of_holder(&others, "named", "client").await;
        first.silence(true);
        tokio::time::sleep(lease * 2).await;
        for guard in [&plain, &named, &session] {
            assert!(!guard.is_lost() && guard.check().await.expect("a reply"), "{guard:?}");
        }
        assert_ne!(
            of_holder(&others, "named", "client").await,
            before,
            "its session is bound to a connection to the next leader"
        );
        for guard in [plain, named, session] {
            guard.release().await.expect("released");
        }
    });
}

#[test]
fn a_session_that_cannot_come_back_is_lost_with_its_grace() {
    run(async {
        let server = TestServer::start();
        let client = client(&server).await;
        let named = client.lock("a").lease(Duration::from_secs(60)).session_grace(ms(800)).acquire().await.expect("granted");
        let begun = Instant::now();
        drop(server);
        assert_eq!(named.lost().await, Lost::Connection);
        assert!(named.is_lost() && begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
        assert!(matches!(named.release().await, Err(Error::NotHeld(_) | Error::Connect(_) | Error::Disconnected { .. })));
    });
}
