//! What clients of each node are told.

use std::io::{Read, Write};
use std::net::TcpStream;

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

#[test]
fn a_request_that_is_too_long_for_the_other_nodes_is_refused_and_disturbs_nobody() {
    let mut cluster = Cluster::start();
    let leader = cluster.leader();
    let addr = cluster.clients[leader];
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.write_all(b"*3\r\n$3\r\nSET\r\n$4\r\nlong\r\n$80000000\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert_eq!(reply, "-ERR Protocol error: invalid bulk length\r\n");
    for directive in ["proto-max-bulk-len", "client-query-buffer-limit"] {
        let refused = ask(addr, &["CONFIG", "SET", directive, "1gb"]).unwrap();
        assert!(refused.contains("a node passes on at most"), "{refused}");
    }
    assert_eq!(ask(addr, &["EXISTS", "long"]).unwrap(), ":0");
    assert_eq!(cluster.leader(), leader);
}
