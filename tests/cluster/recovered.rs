//! Recovery of what is left of a lost majority.

use crate::members::{done, operate};
use crate::nodes::{Cluster, ask};

#[test]
fn what_is_left_of_a_lost_majority_is_recovered_and_the_others_are_kept_away() {
    let mut cluster = Cluster::start();
    let token = cluster.ask_leader(&["LOCK.ACQUIRE", "held", "me", "600000"]);
    assert_eq!(cluster.ask_leader(&["SET", "a", "1"]), "+OK");
    (0..3).for_each(|node| {
        // All have everything.
        cluster.until_equal(node);
    });
    std::thread::sleep(std::time::Duration::from_millis(300));
    let dir = cluster.dir(0).to_string_lossy().into_owned();
    let words = ["recover", "--dir", &dir, "--node-id", "1"];
    let refused = operate(&words);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("is locked by the node with process id"), "{refused:?}");
    (0..3).for_each(|node| cluster.kill(node));
    // The disk of node 3 is lost. That of node 2 is only believed to be.
    std::fs::remove_dir_all(cluster.dir(2).join("quorum")).unwrap();
    let asked = operate(&words);
    let said = String::from_utf8_lossy(&asked.stderr).into_owned();
    assert!(!asked.status.success(), "it must be confirmed");
    for part in ["WHAT MAY BE LOST", "node 2 at ", "node 3 at ", "nothing was changed: --yes-lose-what-was-not-replicated"] {
        assert!(said.contains(part), "{part} in {said}");
    }
    let said = done(&[&words[..], &["--yes-lose-what-was-not-replicated"]].concat());
    assert!(said.starts_with("node 1 is the only member now, of cluster "), "{said}");
    cluster.start_node(0);
    assert_eq!(cluster.ask_leader(&["GET", "a"]), "1");
    assert_eq!(cluster.ask_leader(&["LOCK.CHECK", "held", token.trim_start_matches(':')]), ":1");
    // Node 2 comes back with its old folder, and is refused. It serves nothing on its own.
    cluster.start_node(1);
    cluster.wait("the refusal", |cluster| cluster.log(0).contains("a majority was lost").then_some(()));
    assert!(ask(cluster.clients[1], &["GET", "a"]).unwrap().starts_with("-READONLY"));
    let refused = operate(&["add", &cluster.urls(), "2", &cluster.address(1)]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("a majority was lost"), "{refused:?}");
    assert_eq!(cluster.ask_leader(&["SET", "a", "1"]), "+OK", "one of one is a majority, as long as it lasts");
    cluster.kill(1);
    std::fs::remove_dir_all(cluster.dir(1).join("quorum")).unwrap();
    for node in [1, 2] {
        cluster.start_node(node);
        done(&["add", &cluster.urls(), &(node + 1).to_string(), &cluster.address(node)]);
    }
    // They are of the new cluster, also after a restart.
    (0..3).for_each(|node| cluster.kill(node));
    (0..3).for_each(|node| cluster.start_node(node));
    assert_eq!(cluster.ask_leader(&["LOCK.CHECK", "held", token.trim_start_matches(':')]), ":1");
    let leader = cluster.leader();
    cluster.kill(leader);
    assert_eq!(cluster.ask_leader(&["GET", "a"]), "1");
}

#[test]
fn only_a_member_with_a_log_is_recovered() {
    let cluster = Cluster::prepare();
    let dir = cluster.dir(0).to_string_lossy().into_owned();
    let words = ["recover", "--dir", &dir, "--node-id", "1", "--yes-lose-what-was-not-replicated"];
    let said = |words: &[&str]| String::from_utf8_lossy(&operate(words).stderr).into_owned();
    assert!(said(&words).contains("there is no such folder: --dir is the node's dir"), "{}", said(&words));
    std::fs::create_dir(cluster.dir(0).join("quorum")).unwrap();
    assert!(said(&words).contains("the node has no log: there is nothing to recover"), "{}", said(&words));
}
