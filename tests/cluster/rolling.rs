//! All nodes are restarted, one after the other, while clients send requests and repeat those without a reply.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::servers::withheld_from_any;
use crate::nodes::{Asker, Cluster};

/// Longest time that a client may need for a request, with all repetitions, while a processor is free.
const LONGEST: Duration = Duration::from_secs(2);

/// Takes and releases a lock, and counts. Returns the longest time of a request, without that for which the machine was busy, and the
/// number of its writes.
fn run(number: usize, clients: Vec<SocketAddr>, ends: &AtomicBool, sent: &AtomicU64) -> (Duration, u64) {
    let mut asker = Asker { clients, last: number % 3 };
    let (mut longest, mut written) = (Duration::ZERO, 0);
    let mut timed = |request: &[&str]| {
        let (began, before) = (Instant::now(), withheld_from_any());
        let reply = asker.ask(request);
        longest = longest.max(began.elapsed().saturating_sub(withheld_from_any().saturating_sub(before)));
        sent.fetch_add(1, Ordering::Relaxed);
        reply
    };
    let (name, owner, key) = (format!("lock:{number}"), format!("client:{number}"), format!("key:{number}"));
    while !ends.load(Ordering::Relaxed) {
        written += 1;
        let id = written.to_string();
        assert_eq!(timed(&["SET", &key, &id]), "+OK");
        let token = timed(&["LOCK.ACQUIRE", &name, &owner, "60000", "REQUEST", &id]);
        let token = token.strip_prefix(':').unwrap_or_else(|| panic!("{name}: {token}"));
        let release = format!("r{id}");
        assert_eq!(timed(&["LOCK.RELEASE", &name, &owner, "TOKEN", token, "REQUEST", &release]), ":0");
    }
    (longest, written)
}

#[test]
fn a_rolling_restart_fails_no_request_and_loses_no_write() {
    let mut cluster = Cluster::start();
    let (ends, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut results = Vec::new();
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|number| {
                let (clients, ends, sent) = (cluster.clients.clone(), &ends, &sent);
                scope.spawn(move || run(number, clients, ends, sent))
            })
            .collect();
        // The leader is one of them, and after its hand-over another one is: leaders are restarted at least once.
        for node in 0..3 {
            let before = sent.load(Ordering::Relaxed);
            cluster.wait("requests", |_| (sent.load(Ordering::Relaxed) > before + 100).then_some(()));
            (0..3).filter(|other| *other != node).for_each(|other| {
                cluster.wait("a cluster", |cluster| {
                    let role = crate::nodes::role(cluster.clients[other]).ok()?;
                    let up = crate::nodes::info(cluster.clients[other], "master_link_status");
                    (role == "master" || up.is_ok_and(|up| up == "up")).then_some(())
                });
            });
            let led = crate::nodes::role(cluster.clients[node]).is_ok_and(|role| role == "master");
            cluster.terminate(node);
            assert!(!led || cluster.log(node).contains("hands the leadership over"), "{}", cluster.log(node));
            cluster.start_node(node);
            cluster.wait("the node", |cluster| {
                let up = crate::nodes::info(cluster.clients[node], "master_link_status");
                up.is_ok_and(|up| up == "up").then_some(())
            });
        }
        ends.store(true, Ordering::Relaxed);
        results.extend(clients.into_iter().map(|client| client.join().expect("the client succeeds")));
    });
    for (number, (_, written)) in results.iter().enumerate() {
        assert_eq!(cluster.ask_leader(&["GET", &format!("key:{number}")]), written.to_string());
    }
    let longest = results.iter().map(|(longest, _)| *longest).max().unwrap_or_default();
    println!("{} requests, the longest took {longest:?}", sent.into_inner());
    assert!(longest < LONGEST, "a request took {longest:?}");
}
