//! A paused leader, a lost disk, a lost majority, and folders that are not a node's own.

use std::time::Duration;

use crate::nodes::{Cluster, ask, ask_briefly, role, said};

const LEASE_MS: &str = "600000";

#[test]
fn a_paused_leader_never_answers_as_one_again() {
    let mut cluster = Cluster::start();
    let old = cluster.leader();
    assert_eq!(cluster.ask_leader(&["SET", "a", "1"]), "+OK");
    cluster.pause(old);
    let others: Vec<usize> = (0..3).filter(|node| *node != old).collect();
    let new = cluster.wait("another leader", |cluster| {
        others.iter().copied().find(|node| role(cluster.clients[*node]).is_ok_and(|role| role == "master"))
    });
    assert_eq!(cluster.ask_leader(&["SET", "a", "2"]), "+OK");
    cluster.resume(old);
    // It may close the connection, refuse, or already know better; it must not answer from its own state.
    for _ in 0..50 {
        if let Ok(reply) = ask_briefly(cluster.clients[old], &["GET", "a"]) {
            assert_ne!(reply, "1", "a deposed leader has answered");
            assert!(reply.starts_with('-') || reply == "2", "{reply}");
        }
    }
    cluster.until_follows(old);
    cluster.pause(new);
    let value = cluster.wait("the value at the third leader", |cluster| {
        (0..3)
            .filter(|node| *node != new)
            .find_map(|node| ask_briefly(cluster.clients[node], &["GET", "a"]).ok().filter(|reply| !reply.starts_with('-')))
    });
    assert_eq!(value, "2");
    cluster.resume(new);
}

#[test]
fn a_node_that_lost_its_disk_has_everything_again() {
    let mut cluster = Cluster::start();
    let token = cluster.ask_leader(&["LOCK.ACQUIRE", "held", "me", LEASE_MS]);
    assert_eq!(cluster.ask_leader(&["SET", "a", "1"]), "+OK");
    let leader = cluster.leader();
    let lost = (leader + 1) % 3;
    cluster.kill(lost);
    std::fs::remove_dir_all(cluster.dir(lost).join("quorum")).unwrap();
    cluster.start_node(lost);
    cluster.until_follows(lost);
    // It has a vote again when it has caught up for a while: then it can replace the leader together with the third node.
    assert_eq!(cluster.ask_leader(&["SET", "b", "1"]), "+OK");
    cluster.until_votes(lost);
    let third = (leader + 2) % 3;
    cluster.kill(third);
    assert_eq!(cluster.ask_leader(&["SET", "b", "2"]), "+OK", "two of three are a majority");
    cluster.start_node(third);
    cluster.until_follows(third);
    cluster.kill(leader);
    assert_eq!(cluster.ask_leader(&["GET", "b"]), "2");
    assert_eq!(cluster.ask_leader(&["LOCK.CHECK", "held", token.trim_start_matches(':')]), ":1");
}

#[test]
fn a_new_cluster_begins_when_all_of_its_nodes_are_there() {
    let mut cluster = Cluster::prepare();
    let waits = |cluster: &mut Cluster, node: usize, number: usize| {
        let text = format!("a new cluster begins when all of its nodes have answered: waits for node {number}");
        cluster.wait("the reason", |cluster| cluster.log(node).contains(&text).then_some(()));
        assert!(ask(cluster.clients[node], &["SET", "a", "1"]).unwrap().starts_with("-READONLY"));
    };
    cluster.start_node(0);
    cluster.start_node(1);
    waits(&mut cluster, 0, 3);
    cluster.start_node(2);
    assert_eq!(cluster.ask_leader(&["SET", "a", "1"]), "+OK");
    (0..3).for_each(|node| cluster.until_votes(node));
    // Two nodes whose disks are lost are a majority. While the one that knows what clients were told is away, they must not begin anew.
    (0..3).for_each(|node| cluster.kill(node));
    for node in [1, 2] {
        std::fs::remove_dir_all(cluster.dir(node).join("quorum")).unwrap();
        cluster.start_node(node);
    }
    waits(&mut cluster, 1, 1);
    // Nor later.
    cluster.start_node(0);
    cluster.wait("the discovery", |cluster| cluster.log(1).contains("the cluster exists; this node has no vote").then_some(()));
    assert!((0..3).all(|node| said(|| role(cluster.clients[node])) == "slave"), "a majority is lost");
}

#[test]
fn a_node_that_was_restarted_before_it_had_caught_up_has_no_vote() {
    let mut cluster = Cluster::start();
    assert_eq!(cluster.ask_leader(&["SET", "a", "1"]), "+OK");
    let leader = cluster.leader();
    let (lost, third) = ((leader + 1) % 3, (leader + 2) % 3);
    cluster.kill(lost);
    // What a node leaves that lost its disk, has got a part of the log again, and ends.
    std::fs::write(cluster.dir(lost).join("quorum/joining"), "").unwrap();
    assert_eq!(cluster.ask_leader(&["SET", "a", "2"]), "+OK");
    cluster.kill(leader);
    cluster.start_node(lost);
    cluster.wait("the discovery", |cluster| {
        let log = cluster.log(lost);
        (log.rfind(" listening on ") < log.rfind("the cluster exists; this node has no vote")).then_some(())
    });
    // Longer than it takes part in nothing. The other node has all that was acknowledged, and it alone is no majority.
    let began = std::time::Instant::now();
    while began.elapsed() < Duration::from_secs(7) {
        for node in [lost, third] {
            assert_ne!(said(|| role(cluster.clients[node])), "master", "node {} leads", node + 1);
        }
        let asked = ask_briefly(cluster.clients[lost], &["SENTINEL", "FAILOVER", "mymaster"]);
        assert!(asked.is_ok_and(|reply| reply.starts_with('-') || reply == "+OK"));
        std::thread::sleep(Duration::from_millis(50));
    }
    cluster.start_node(leader);
    assert_eq!(cluster.ask_leader(&["GET", "a"]), "2");
    cluster.until_votes(lost);
    assert!(!cluster.dir(lost).join("quorum/joining").exists());
}

#[test]
fn without_a_majority_nothing_is_served_and_nothing_is_lost() {
    let mut cluster = Cluster::start();
    let token = cluster.ask_leader(&["LOCK.ACQUIRE", "held", "me", LEASE_MS]);
    let leader = cluster.leader();
    let others: Vec<usize> = (0..3).filter(|node| *node != leader).collect();
    others.iter().for_each(|node| cluster.kill(*node));
    cluster.wait("the refusal", |cluster| {
        let reply = ask_briefly(cluster.clients[leader], &["GET", "held"]).ok()?;
        reply.starts_with("-READONLY Link with MASTER is down").then_some(())
    });
    // It steps down, and closes its connections once.
    cluster.wait("a refused write", |cluster| {
        let reply = ask(cluster.clients[leader], &["SET", "a", "1"]).ok()?;
        assert!(reply.starts_with('-'), "{reply}");
        Some(())
    });
    others.iter().for_each(|node| cluster.start_node(*node));
    assert_eq!(cluster.ask_leader(&["LOCK.CHECK", "held", token.trim_start_matches(':')]), ":1");
    // The whole cluster ends and begins again.
    (0..3).for_each(|node| cluster.kill(node));
    (0..3).for_each(|node| cluster.start_node(node));
    assert_eq!(cluster.ask_leader(&["LOCK.CHECK", "held", token.trim_start_matches(':')]), ":1");
    let next = cluster.ask_leader(&["LOCK.ACQUIRE", "other", "me", LEASE_MS]);
    let number = |token: &str| token.trim_start_matches(':').parse::<i64>().unwrap();
    assert!(number(&next) > number(&token), "{next} is not behind {token}");
}

#[test]
fn leases_go_on_over_a_change_of_leaders_and_end() {
    // A lease that is over before there is another leader shows nothing. Then the next one is longer.
    let seen = [2500, 5000, 10_000].into_iter().any(lease_goes_on);
    assert!(seen, "no new leader has seen the lease");
}

/// Whether a new leader has seen a lease.
fn lease_goes_on(lease_ms: u64) -> bool {
    let mut cluster = Cluster::start();
    let (lease, px) = (Duration::from_millis(lease_ms), lease_ms.to_string());
    let began = std::time::Instant::now();
    assert!(cluster.ask_leader(&["LOCK.ACQUIRE", "short", "me", &px]).starts_with(':'));
    assert_eq!(cluster.ask_leader(&["SET", "key", "me", "PX", &px]), "+OK");
    let leader = cluster.leader();
    cluster.kill(leader);
    let mut seen = false;
    loop {
        let (lock, key) = (cluster.ask_leader(&["LOCK.ACQUIRE", "short", "you", "1000"]), cluster.ask_leader(&["EXISTS", "key"]));
        let elapsed = began.elapsed();
        if lock.starts_with(':') {
            assert!(elapsed >= lease, "the lease ended early: after {elapsed:?}");
            break;
        }
        seen = true;
        assert_eq!(lock, "$-1");
        assert!(key == ":1" || elapsed >= lease, "the key ended early: after {elapsed:?}");
        assert!(elapsed < lease + Duration::from_secs(30), "the lease does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
    cluster.wait("the end of the key", |cluster| (cluster.ask_leader(&["EXISTS", "key"]) == ":0").then_some(()));
    seen
}

#[test]
fn a_folder_belongs_to_one_node_of_one_cluster() {
    let mut cluster = Cluster::start();
    (0..3).for_each(|node| cluster.kill(node));
    let (first, second) = (cluster.dir(0), cluster.dir(1));
    let log = cluster.refused(0, &second, &[]);
    assert!(log.contains("it belongs to node 2, and this is node 1"), "{log}");
    let log = cluster.refused(0, &first, &["--cluster-name", "other"]);
    assert!(log.contains("it belongs to another cluster"), "{log}");
    let log = cluster.refused(0, &first, &["--appendonly", "yes"]);
    assert!(log.contains("appendonly must be no where node-id is set"), "{log}");
    let log = cluster.refused(0, &first, &["--peers", "2=127.0.0.1:1"]);
    assert!(log.contains("node 1, which is this one (node-id), is not among them"), "{log}");
}
