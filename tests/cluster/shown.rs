//! What clients of each node are told.

use crate::nodes::{Cluster, ask, info, said};

#[test]
fn followers_name_the_leader_and_answer_nothing_of_their_own() {
    let mut cluster = Cluster::start();
    let leader = cluster.leader();
    let port = cluster.clients[leader].port().to_string();
    assert_eq!(cluster.ask_leader(&["SET", "a", "1"]), "+OK");
    for follower in (0..3).filter(|node| *node != leader) {
        cluster.until_follows(follower);
        let addr = cluster.clients[follower];
        for request in [&["SET", "a", "2"][..], &["LOCK.ACQUIRE", "l", "me", "1000"], &["DEL", "a"]] {
            assert_eq!(ask(addr, request).unwrap(), "-READONLY You can't write against a read only replica.");
        }
        for request in [&["GET", "a"][..], &["LOCK.INFO", "l"], &["EXISTS", "a"]] {
            let reply = ask(addr, request).unwrap();
            assert!(reply.starts_with("-READONLY") && reply.contains(&port), "{reply}");
        }
        assert_eq!(said(|| info(addr, "role")), "slave");
        assert_eq!(said(|| info(addr, "master_port")), port);
        assert!(ask(addr, &["SAVE"]).unwrap().starts_with("-READONLY"), "it has nothing to save");
        assert!(ask(addr, &["CONFIG", "SET", "appendonly", "yes"]).unwrap().contains("the nodes have a log of their own"));
    }
    assert_eq!(said(|| info(cluster.clients[leader], "connected_slaves")), "2");
    // It says how many have confirmed, which may be more.
    assert!(matches!(&*ask(cluster.clients[leader], &["WAIT", "1", "1000"]).unwrap(), ":1" | ":2"));
}

#[test]
fn the_leadership_is_handed_over_without_a_loss() {
    let mut cluster = Cluster::start();
    let old = cluster.leader();
    assert_eq!(cluster.ask_leader(&["SET", "a", "1"]), "+OK");
    for node in (0..3).filter(|node| *node != old) {
        cluster.until_follows(node);
    }
    let to = (old + 1) % 3;
    let port = cluster.clients[to].port().to_string();
    assert_eq!(ask(cluster.clients[old], &["FAILOVER", "TO", "127.0.0.1", &port]).unwrap(), "+OK");
    cluster.wait("the new leader", |cluster| (cluster.leader() == to).then_some(()));
    cluster.until_follows(old);
    assert_eq!(cluster.ask_leader(&["GET", "a"]), "1");
}
