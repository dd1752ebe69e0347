//! Nodes that join, leave and are replaced, by `portcullis cluster`.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Output};

use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::type_config::TypeConfigExt;
use openraft::vote::RaftLeaderId;
use openraft::{EntryPayload, Membership, RaftLogReader};
use portcullis::quorum::store::{LogStore, Options, Owner};
use portcullis::quorum::types::{Entry, LogId, Peer, Types, Vote};
use portcullis::server::durable::folder::Folder;
use xxhash_rust::xxh3::xxh3_64;

use crate::nodes::{Cluster, ask, ask_briefly};

/// Runs `portcullis cluster` with these words.
pub fn operate(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_portcullis")).arg("cluster").args(words).output().unwrap()
}

/// Runs `portcullis cluster`, which must succeed. Returns what it prints.
#[track_caller]
pub fn done(words: &[&str]) -> String {
    let output = operate(words);
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Starts a node with an empty folder, and adds it.
#[track_caller]
pub fn join(cluster: &mut Cluster) -> usize {
    let node = cluster.another();
    cluster.start_node(node);
    let said = done(&["add", &cluster.urls(), &(node + 1).to_string(), &cluster.address(node)]);
    assert_eq!(said, format!("node {} at {} is a member and votes\n", node + 1, cluster.address(node)));
    node
}

#[test]
fn a_node_joins_and_the_leader_leaves() {
    let mut cluster = Cluster::start();
    assert_eq!(cluster.ask_leader(&["SET", "a", "1"]), "+OK");
    let first = cluster.leader();
    let fourth = join(&mut cluster);
    let table = done(&["status", &cluster.urls()]);
    assert_eq!(table.lines().count(), 6, "{table}");
    let line = table.lines().nth(fourth + 1).unwrap();
    assert!(line.starts_with("4     follower  yes") && line.ends_with(&cluster.address(fourth)), "{table}");
    // The one that leads hands over before it leaves.
    let said = done(&["remove", &cluster.urls(), &(first + 1).to_string()]);
    assert!(said.starts_with(&format!("node {} is no member any more", first + 1)), "{said}");
    cluster.kill(first);
    // Three are left. If the fourth had no vote, one of the old ones would not be enough beside it.
    let old = (0..3).find(|node| *node != first).unwrap();
    cluster.kill(old);
    assert_eq!(cluster.ask_leader(&["GET", "a"]), "1");
    assert_eq!(cluster.ask_leader(&["SET", "a", "2"]), "+OK");
    let shown = operate(&["status", &cluster.urls(), "--json"]);
    assert_eq!(shown.status.code(), Some(1), "a node is missing: {shown:?}");
    let said = String::from_utf8_lossy(&shown.stderr);
    assert!(said.contains(&format!("node {} does not answer", old + 1)), "{said}");
    let text = String::from_utf8_lossy(&shown.stdout);
    assert!(text.contains("\"role\": \"down\"") && text.contains("\"role\": \"leader\""), "{text}");
    assert!(!text.contains(&format!("\"node\": {},", first + 1)), "the one that left is not shown: {text}");
}

#[test]
fn a_lost_node_is_replaced_by_another_one_at_another_address() {
    let mut cluster = Cluster::start();
    let token = cluster.ask_leader(&["LOCK.ACQUIRE", "held", "me", "600000"]);
    let leader = cluster.leader();
    let lost = (leader + 1) % 3;
    cluster.kill(lost);
    std::fs::remove_dir_all(cluster.dir(lost)).unwrap();
    let fourth = join(&mut cluster);
    done(&["remove", &cluster.urls(), &(lost + 1).to_string()]);
    assert_eq!(operate(&["status", &cluster.urls()]).status.code(), Some(0));
    cluster.kill(leader);
    assert_eq!(cluster.ask_leader(&["LOCK.CHECK", "held", token.trim_start_matches(':')]), ":1");
    // It keeps its place over a restart.
    cluster.start_node(leader);
    cluster.until_follows(leader);
    cluster.terminate(fourth);
    cluster.start_node(fourth);
    cluster.until_follows(fourth);
    assert_eq!(cluster.ask_leader(&["SET", "a", "1"]), "+OK");
}

#[test]
fn changes_that_cannot_be_are_refused_in_words() {
    let mut cluster = Cluster::start();
    let leader = cluster.leader();
    let (follower, other) = ((leader + 1) % 3, (leader + 2) % 3);
    cluster.until_follows(follower);
    cluster.until_follows(other);
    let id = |node: usize| (node + 1).to_string();
    let addr = cluster.clients[leader];
    assert_eq!(
        ask(addr, &["NODE", "REMOVE", &id(leader)]).unwrap(),
        format!("-ERR node {} leads: hand the leadership over first, with NODE HANDOVER", id(leader))
    );
    assert_eq!(ask(addr, &["NODE", "REMOVE", "9"]).unwrap(), "-ERR node 9 is no member");
    assert_eq!(
        ask(addr, &["NODE", "ADD", &id(follower), "127.0.0.1:1"]).unwrap(),
        format!("-ERR node {} is a member already, at {}", id(follower), cluster.address(follower))
    );
    assert_eq!(
        ask(addr, &["NODE", "ADD", "9", &cluster.address(follower)]).unwrap(),
        format!("-ERR {} is the address of node {}", cluster.address(follower), id(follower))
    );
    let refused = operate(&["add", &cluster.urls(), "9", "127.0.0.1:1"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("node 9 does not answer at 127.0.0.1:1: "), "{said}");
    let reply = ask(cluster.clients[follower], &["NODE", "REMOVE", &id(other)]).unwrap();
    assert_eq!(reply, format!("-ERR node {} at {addr} leads: send it the command", id(leader)));
    cluster.kill(other);
    cluster.wait("the refusal", |_| {
        let reply = ask_briefly(addr, &["NODE", "REMOVE", &id(follower)]).ok()?;
        (reply == format!("-ERR without node {} there is no majority: 1 of 2 nodes answer", id(follower))).then_some(())
    });
    assert_eq!(cluster.ask_leader(&["SET", "a", "1"]), "+OK");
}

#[test]
fn followers_pass_a_failover_on_to_the_leader() {
    let mut cluster = Cluster::start();
    for request in [&["SENTINEL", "FAILOVER", "mymaster"][..], &["NODE", "HANDOVER"]] {
        let leader = cluster.leader();
        let follower = (leader + 1) % 3;
        (0..3).filter(|node| *node != leader).for_each(|node| cluster.until_follows(node));
        assert_eq!(ask(cluster.clients[follower], request).unwrap(), "+OK");
        cluster.wait("another leader", |cluster| (cluster.leader() != leader).then_some(()));
    }
    let leader = cluster.leader();
    let follower = (leader + 1) % 3;
    (0..3).filter(|node| *node != leader).for_each(|node| cluster.until_follows(node));
    assert_eq!(ask(cluster.clients[follower], &["NODE", "HANDOVER", &(follower + 1).to_string()]).unwrap(), "+OK");
    cluster.wait("this leader", |cluster| (cluster.leader() == follower).then_some(()));
}

/// Adds to a stopped node's log what a leader leaves that ends between the two steps of a removal: the entry of the first one.
fn leave_between(cluster: &Cluster, leader: usize, removed: usize) {
    let folder = cluster.dir(leader).join("quorum");
    let disk = Folder::open(&folder).unwrap();
    let owner = Owner { node: leader as u64 + 1, cluster: xxh3_64(b"mymaster") };
    let (mut log, worker) = LogStore::open(disk, Options::new(owner, None)).unwrap();
    let thread = worker.spawn(&log).unwrap();
    let all: BTreeSet<u64> = (1..=3).collect();
    let rest: BTreeSet<u64> = all.iter().copied().filter(|id| *id != removed as u64 + 1).collect();
    let peers: BTreeMap<u64, Peer> = all.iter().map(|id| (*id, Peer { addr: cluster.address(*id as usize - 1) })).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let last = log.get_log_state().await.unwrap().last_log_id.unwrap();
        // It has stepped down, and leads again.
        let vote = Vote::new_committed(log.read_vote().await.unwrap().unwrap().leader_id.term + 1, leader as u64 + 1);
        log.save_vote(&vote).await.unwrap();
        let payload = EntryPayload::Membership(Membership::new(vec![all, rest], peers).unwrap());
        let (flushed, durable) = Types::oneshot();
        let entry = Entry { log_id: LogId::new(vote.leader_id.to_committed(), last.index + 1), payload };
        log.append([entry], IOFlushed::signal(flushed)).await.unwrap();
        durable.await.unwrap().unwrap();
    });
    thread.close().unwrap();
}

#[test]
fn a_change_of_voters_that_a_leader_has_left_between_its_steps_is_ended() {
    let mut cluster = Cluster::start();
    assert_eq!(cluster.ask_leader(&["SET", "a", "1"]), "+OK");
    let leader = cluster.leader();
    let removed = (leader + 1) % 3;
    (0..3).filter(|node| *node != leader).for_each(|node| cluster.kill(node));
    // The leader has then written everything that it has sent to the others.
    cluster.wait("a lost majority", |cluster| {
        ask_briefly(cluster.clients[leader], &["GET", "a"]).is_ok_and(|reply| reply.starts_with('-')).then_some(())
    });
    cluster.kill(leader);
    leave_between(&cluster, leader, removed);
    // Without it, the other two would elect one of them, and the change would be gone.
    [leader, (leader + 2) % 3].into_iter().for_each(|node| cluster.start_node(node));
    assert_eq!(cluster.leader(), leader, "only its log has the change");
    cluster.start_node(removed);
    let line = format!("{}     follower  no ", removed + 1);
    cluster.wait("the end of the change", |cluster| {
        // Its exit code says whether all nodes answer, which they do not at once.
        let shown = operate(&["status", &cluster.urls()]);
        String::from_utf8_lossy(&shown.stdout).lines().any(|shown| shown.starts_with(&line)).then_some(())
    });
    let said = done(&["remove", &cluster.urls(), &(removed + 1).to_string()]);
    assert!(said.starts_with(&format!("node {} is no member any more", removed + 1)), "{said}");
    assert_eq!(cluster.ask_leader(&["GET", "a"]), "1");
}
