//! Wall clocks that are wrong by minutes and jump, while leaders are killed: leases and TTLs go by the cluster's time, in which no wall
//! clock has a part.

use std::time::{Duration, Instant};

use crate::failover::Load;
use crate::nodes::{Asker, Cluster, ask, full_size, said};

/// What each node's wall clock is wrong by at first.
const WRONG_MS: [i64; 3] = [600_000, -600_000, 0];
/// The jumps of the third one.
const JUMPS_MS: [i64; 4] = [-3_600_000, 1_200_000, 86_400_000, -5_000];
const LEASE: Duration = Duration::from_millis(3000);
/// A lease may end later by the time of a failover; on a busy machine that is seconds.
const FAILOVER: Duration = Duration::from_secs(10);

fn start() -> Cluster {
    let mut cluster = Cluster::prepare();
    for (node, wrong_ms) in WRONG_MS.iter().enumerate() {
        cluster.arguments[node] = vec![format!("--test-wall-clock-ms={wrong_ms}")];
    }
    (0..3).for_each(|node| cluster.start_node(node));
    cluster.leader();
    (0..3).for_each(|node| cluster.until_votes(node));
    cluster
}

fn unix_s() -> i64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64
}

/// The seconds by which a node's wall clock is wrong, as it shows itself: the least and the most, as time passes while the node
/// answers.
fn wrong_s(cluster: &Cluster, node: usize) -> (i64, i64) {
    let time = || crate::nodes::info_of(cluster.clients[node], "server", "server_time_usec");
    let (before, time) = (unix_s(), said(time).parse::<i64>().unwrap() / 1_000_000);
    (time - unix_s(), time - before)
}

fn set_clock(cluster: &Cluster, node: usize, wrong_ms: i64) {
    let set = ["CONFIG", "SET", "test-wall-clock-ms", &wrong_ms.to_string()];
    assert_eq!(ask(cluster.clients[node], &set).unwrap(), "+OK");
}

fn number(reply: &str) -> i64 {
    reply.trim_start_matches(':').parse().unwrap_or_else(|_| panic!("{reply}"))
}

#[test]
fn leases_and_ttls_are_right_whatever_the_wall_clocks_show() {
    let mut cluster = start();
    for (node, wrong_ms) in WRONG_MS.iter().enumerate() {
        let (least, most) = wrong_s(&cluster, node);
        assert!((least - 2..=most + 2).contains(&(wrong_ms / 1000)), "node {node}: {least} to {most}");
    }
    let mut asker = Asker { clients: cluster.clients.clone(), last: 0 };
    let (lease, px) = (LEASE.as_millis().to_string(), "600000");
    let mut last = 0;
    let rounds = if full_size() { 30 } else { 2 };
    for round in 0..rounds {
        let kept = Instant::now();
        assert_eq!(asker.ask(&["SET", "kept", "value", "PX", px]), "+OK");
        assert_eq!(asker.ask(&["SET", "short", "value", "PX", &lease]), "+OK");
        let asked = Instant::now();
        let token = number(&asker.ask(&["LOCK.ACQUIRE", "lock", "first", &lease]));
        let granted = Instant::now();
        assert!(token > last, "token {token} after {last}");
        let leader = cluster.leader();
        cluster.kill(leader);
        set_clock(&cluster, (leader + 1) % 3, JUMPS_MS[round % JUMPS_MS.len()]);
        // Another client is granted the lock when the lease is over, and not before.
        let id = round.to_string();
        last = loop {
            let reply = asker.ask(&["LOCK.ACQUIRE", "lock", "second", px, "REQUEST", &id]);
            if reply != "$-1" {
                break number(&reply);
            }
            assert!(granted.elapsed() < LEASE + FAILOVER, "the lease does not end");
            std::thread::sleep(Duration::from_millis(5));
        };
        assert!(asked.elapsed() >= LEASE, "the lease ended {:?} early", LEASE - asked.elapsed());
        assert!(last > token, "token {last} after {token}");
        // Both keys were set before the lease began, and all go by one clock.
        assert_eq!(asker.ask(&["PTTL", "short"]), ":-2");
        let left = number(&asker.ask(&["PTTL", "kept"]));
        let most = 600_000 - LEASE.as_millis() as i64;
        let least = 600_000 - kept.elapsed().as_millis() as i64 - 1000;
        assert!((least..=most).contains(&left), "{left} ms of 600,000 are left after {:?}", asked.elapsed());
        assert_eq!(asker.ask(&["LOCK.RELEASE", "lock", "second", "TOKEN", &last.to_string()]), ":0");
        cluster.start_node(leader);
        cluster.until_follows(leader);
    }
}

#[test]
fn clocks_that_jump_under_load_lose_nothing() {
    let mut cluster = start();
    let rounds = if full_size() { 50 } else { 2 };
    Load::during(&mut cluster, 6, |cluster, load| {
        for round in 0..rounds {
            for node in 0..3 {
                set_clock(cluster, node, JUMPS_MS[(round + node) % JUMPS_MS.len()]);
            }
            load.wait_for_grants(cluster, 20, "after a jump");
            let leader = cluster.leader();
            cluster.kill(leader);
            load.wait_for_grants(cluster, 20, "after the kill");
            cluster.start_node(leader);
            cluster.until_follows(leader);
        }
    });
}
