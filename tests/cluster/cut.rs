//! Logs whose ends are cut: torn by a loss of power, or damaged. Nobody can tell which.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::nodes::{Cluster, role, said};

/// The last segment of a stopped node's log, and the offset behind its last byte that is not zero.
fn end_of_log(cluster: &Cluster, node: usize) -> (File, u64) {
    let files = std::fs::read_dir(cluster.dir(node).join("quorum")).unwrap().map(|file| file.unwrap().path());
    let mut segments: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|end| end == "segment")).collect();
    segments.sort();
    let path = segments.last().unwrap();
    let used = std::fs::read(path).unwrap().iter().rposition(|byte| *byte != 0).unwrap();
    (File::options().write(true).open(path).unwrap(), used as u64 + 1)
}

/// What a write leaves of which only the beginning came to the disk.
fn tear(cluster: &Cluster, node: usize) {
    let (file, end) = end_of_log(cluster, node);
    file.write_all_at(&[1; 10], end.next_multiple_of(8)).unwrap();
}

/// The node forgets about this number of bytes of what it has confirmed: there are zeros in their place, up to the last byte.
fn forget(cluster: &Cluster, node: usize, bytes: u64) {
    let (file, end) = end_of_log(cluster, node);
    file.write_all_at(&vec![0; bytes as usize], end - 1 - bytes).unwrap();
}

fn is_marked(cluster: &Cluster, node: usize) -> bool {
    cluster.dir(node).join("quorum/cut").exists()
}

#[test]
fn a_node_whose_log_was_cut_has_no_vote_before_it_has_caught_up() {
    let mut cluster = Cluster::start();
    let leader = cluster.leader();
    let (cut, third) = ((leader + 1) % 3, (leader + 2) % 3);
    cluster.kill(third);
    assert_eq!(cluster.ask_leader(&["SET", "a", "1"]), "+OK");
    cluster.kill(cut);
    forget(&cluster, cut, 100);
    cluster.kill(leader);
    // A majority, and both know less than what was acknowledged.
    cluster.start_node(cut);
    cluster.start_node(third);
    cluster.until_votes(third);
    let began = std::time::Instant::now();
    // Longer than the node takes part in nothing.
    while began.elapsed() < std::time::Duration::from_secs(5) {
        for node in [cut, third] {
            assert_ne!(said(|| role(cluster.clients[node])), "master", "node {} leads", node + 1);
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert!(is_marked(&cluster, cut));
    cluster.start_node(leader);
    assert_eq!(cluster.ask_leader(&["GET", "a"]), "1");
    cluster.until_votes(cut);
    assert!(!is_marked(&cluster, cut));
}

#[test]
fn after_a_loss_of_all_power_the_cluster_goes_on_with_the_longest_log() {
    let mut cluster = Cluster::start();
    let leader = cluster.leader();
    let (torn, behind) = ((leader + 1) % 3, (leader + 2) % 3);
    cluster.kill(behind);
    let token = cluster.ask_leader(&["LOCK.ACQUIRE", "held", "me", "600000"]);
    assert_eq!(cluster.ask_leader(&["SET", "a", "1"]), "+OK");
    cluster.kill(leader);
    cluster.kill(torn);
    // One of the two that have what was acknowledged has forgotten it.
    forget(&cluster, leader, 400);
    tear(&cluster, torn);
    tear(&cluster, behind);
    (0..3).for_each(|node| cluster.start_node(node));
    cluster.leader();
    assert_eq!(cluster.ask_leader(&["GET", "a"]), "1");
    assert_eq!(cluster.ask_leader(&["LOCK.CHECK", "held", token.trim_start_matches(':')]), ":1");
    (0..3).for_each(|node| cluster.until_votes(node));
    assert!((0..3).all(|node| !is_marked(&cluster, node)));
}
