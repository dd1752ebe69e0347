//! Two clusters that meet: nodes of one at addresses of the other, and folders of one in the place of the other's. They have the same name,
//! the same numbers and no secret, as two clusters have that nobody has configured.

use std::collections::{BTreeMap, BTreeSet};

use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::type_config::TypeConfigExt;
use openraft::{EntryPayload, Membership, Vote};
use portcullis::quorum::store::{LogStore, Options, Owner};
use portcullis::quorum::types::{Entry, LeaderId, LogId, Peer, Types};
use portcullis::server::durable::folder::Folder;
use xxhash_rust::xxh3::xxh3_64;

use crate::members::{done, join, operate};
use crate::nodes::{Cluster, ask};

/// The id of a node's cluster, as it says itself.
fn id_of(cluster: &Cluster, node: usize) -> String {
    let shown = operate(&["status", &format!("redis://{}", cluster.clients[node]), "--json"]);
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    let id = text.split("\"cluster\": \"").nth(1).and_then(|rest| rest.split('"').next());
    id.unwrap_or_else(|| panic!("no cluster in {text}")).to_owned()
}

/// A cluster in which a key says whose it is.
fn cluster_of(name: &str) -> (Cluster, String) {
    let mut cluster = Cluster::start();
    assert_eq!(cluster.ask_leader(&["SET", "whose", name]), "+OK");
    (0..3).for_each(|node| cluster.until_equal(node));
    let id = id_of(&cluster, 0);
    assert_eq!(id.len(), 16, "{id}");
    (1..3).for_each(|node| assert_eq!(id_of(&cluster, node), id));
    (cluster, id)
}

/// Each cluster serves what is its own.
#[track_caller]
fn both_serve(clusters: [(&Cluster, &str); 2]) {
    for (cluster, name) in clusters {
        assert_eq!(cluster.ask_leader(&["GET", "whose"]), name);
        assert_eq!(cluster.ask_leader(&["SET", "again", name]), "+OK");
    }
}

/// The log of a node has a sentence with both ids, once.
#[track_caller]
fn is_named(cluster: &mut Cluster, node: usize, ids: [&str; 2]) {
    let named = |log: &str| log.lines().filter(|line| line.contains("refused") && ids.iter().all(|id| line.contains(id))).count();
    cluster.wait("the refusal with both ids", |cluster| (named(&cluster.log(node)) > 0).then_some(()));
    // It tries again several times a second.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    let log = cluster.log(node);
    let lines: Vec<&str> =
        log.lines().filter(|line| line.contains("refused") && ids.iter().all(|id| line.contains(id))).collect();
    let mut texts: Vec<&str> = lines.iter().map(|line| line.split(" WARN ").last().unwrap_or_default()).collect();
    texts.sort_unstable();
    texts.dedup();
    assert_eq!(texts.len(), lines.len(), "said more than once: {lines:#?}");
}

#[test]
fn a_running_node_of_another_cluster_is_not_added() {
    let ((mut a, id_a), (mut b, id_b)) = (cluster_of("a"), cluster_of("b"));
    assert_ne!(id_a, id_b);
    // The first cluster has no node 4.
    let fourth = join(&mut b);
    for (number, node) in [(4, fourth), (7, 0)] {
        let refused = operate(&["add", &a.urls(), &number.to_string(), &b.address(node)]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success(), "{said}");
        assert!(said.contains(&id_a) && said.contains(&id_b) && said.contains("cannot be added"), "{said}");
        is_named(&mut b, node, [&id_a, &id_b]);
    }
    let leader = a.leader();
    is_named(&mut a, leader, [&id_a, &id_b]);
    both_serve([(&a, "a"), (&b, "b")]);
    assert_eq!(done(&["status", &a.urls()]).lines().count(), 5, "nobody has joined");
}

#[test]
fn a_folder_of_another_cluster_in_the_place_of_a_node_is_refused_by_all() {
    let ((mut a, id_a), (mut b, id_b)) = (cluster_of("a"), cluster_of("b"));
    let place = (a.leader() + 1) % 3;
    a.terminate(place);
    b.terminate(place);
    let (own, other) = (a.dir(place).join("quorum"), b.dir(place).join("quorum"));
    let aside = a.dir(place).join("aside");
    std::fs::rename(&own, &aside).unwrap();
    copy(&other, &own);
    b.start_node(place);
    b.until_follows(place);
    a.start_node(place);
    let leader = a.leader();
    is_named(&mut a, leader, [&id_a, &id_b]);
    is_named(&mut a, place, [&id_a, &id_b]);
    // Its members are those of the other cluster. They have that node already.
    a.wait("the refusal of a copy", |a| {
        a.log(place).contains("two processes have its number, or copies of its folder").then_some(())
    });
    assert!(ask(a.clients[place], &["SET", "whose", "nobody"]).unwrap().starts_with('-'));
    both_serve([(&a, "a"), (&b, "b")]);
    a.terminate(place);
    std::fs::remove_dir_all(&own).unwrap();
    std::fs::rename(&aside, &own).unwrap();
    a.start_node(place);
    a.until_follows(place);
    both_serve([(&a, "a"), (&b, "b")]);
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for file in std::fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

#[test]
fn blank_nodes_that_are_told_of_nodes_of_another_cluster_harm_nobody() {
    let (b, id_b) = cluster_of("b");
    let mut a = Cluster::prepare();
    // The peers of node 1 are right but for node 2, whose address is that of the other cluster's node 2.
    let peers = format!("1={},2={},3={}", a.address(0), b.address(1), a.address(2));
    a.arguments[0] = vec!["--peers".to_owned(), peers];
    (0..3).for_each(|node| a.start_node(node));
    // The other cluster has a node 1 already.
    a.wait("the refusal", |a| a.log(0).contains(&format!("node 1 of cluster {id_b} is another process")).then_some(()));
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert_eq!(a.log(0).matches("is another process").count(), 1, "it is said once: {}", a.log(0));
    assert!((0..3).all(|node| !a.log(node).contains("begins a cluster")), "{}", a.log(1));
    assert_eq!(b.ask_leader(&["GET", "whose"]), "b");
    let shown = operate(&["status", &b.urls()]);
    assert_eq!(String::from_utf8_lossy(&shown.stdout).lines().count(), 5, "{shown:?}");
    assert!(String::from_utf8_lossy(&shown.stderr).contains("is another process, for clients at"), "{shown:?}");
    // With the right peers, they begin: nothing of the other cluster is left.
    a.terminate(0);
    a.arguments[0].clear();
    a.start_node(0);
    a.leader();
    assert_eq!(a.ask_leader(&["SET", "whose", "a"]), "+OK");
    assert_ne!(id_of(&a, 0), id_b);
    both_serve([(&a, "a"), (&b, "b")]);
}

#[test]
fn a_blank_node_whose_peers_belong_to_different_clusters_takes_no_id() {
    let ((a, id_a), (b, id_b)) = (cluster_of("a"), cluster_of("b"));
    let mut new = Cluster::prepare();
    let node = new.another();
    let peers = format!("1={},2={},4={}", a.address(0), b.address(1), new.address(node));
    new.arguments[node] = vec!["--peers".to_owned(), peers];
    new.start_node(node);
    new.wait("what it says", |new| {
        let log = new.log(node);
        log.lines().any(|line| line.contains("different clusters") && line.contains(&id_a) && line.contains(&id_b)).then_some(())
    });
    both_serve([(&a, "a"), (&b, "b")]);
}

/// Two old nodes are a majority of the old cluster. They learn of the recovered one when they reach it.
#[test]
fn nodes_that_are_left_behind_by_a_recovery_do_not_serve_beside_it() {
    let (mut cluster, old) = cluster_of("old");
    (0..3).for_each(|node| cluster.kill(node));
    let dir = cluster.dir(0).to_string_lossy().into_owned();
    let said = done(&["recover", "--dir", &dir, "--node-id", "1", "--yes-lose-what-was-not-replicated"]);
    assert!(said.starts_with("node 1 is the only member now, of cluster "), "{said}");
    cluster.start_node(0);
    let new = id_of(&cluster, 0);
    assert_ne!(old, new);
    [1, 2].into_iter().for_each(|node| cluster.start_node(node));
    for node in [1, 2] {
        cluster.wait("the end of its service", |cluster| {
            let log = cluster.log(node);
            log.lines()
                .any(|line| line.contains("serves nothing any more") && line.contains(&old) && line.contains(&new))
                .then_some(())
        });
    }
    std::thread::sleep(std::time::Duration::from_secs(1));
    for node in [1, 2] {
        assert!(ask(cluster.clients[node], &["SET", "whose", "nobody"]).unwrap().starts_with('-'));
    }
    assert_eq!(cluster.ask_leader(&["GET", "whose"]), "old");
    // Nor when the recovered node is away.
    cluster.kill(0);
    [1, 2].into_iter().for_each(|node| cluster.kill(node));
    [1, 2].into_iter().for_each(|node| cluster.start_node(node));
    std::thread::sleep(std::time::Duration::from_secs(3));
    for node in [1, 2] {
        assert!(ask(cluster.clients[node], &["GET", "whose"]).unwrap().starts_with('-'), "{}", cluster.log(node));
    }
}

/// Leaves in a node's folder what a version without ids leaves: a log with the first entry and that of a leader.
fn leave_old(cluster: &Cluster, node: usize) {
    let folder = cluster.dir(node).join("quorum");
    std::fs::create_dir_all(&folder).unwrap();
    let owner = Owner { node: node as u64 + 1, cluster: xxh3_64(b"mymaster") };
    let (mut log, worker) = LogStore::open(Folder::open(&folder).unwrap(), Options::new(owner, None)).unwrap();
    let thread = worker.spawn(&log).unwrap();
    let all: BTreeSet<u64> = (1..=3).collect();
    let peers: BTreeMap<u64, Peer> = all.iter().map(|id| (*id, Peer { addr: cluster.address(*id as usize - 1) })).collect();
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
        log.save_vote(&Vote::new_committed(1, 1)).await.unwrap();
        let payload = EntryPayload::Membership(Membership::new(vec![all], peers).unwrap());
        let first = Entry { log_id: LogId::new(LeaderId { term: 0, node_id: 0 }, 0), payload };
        let second = Entry { log_id: LogId::new(LeaderId { term: 1, node_id: 1 }, 1), payload: EntryPayload::Blank };
        let (flushed, durable) = Types::oneshot();
        log.append([first, second], IOFlushed::signal(flushed)).await.unwrap();
        durable.await.unwrap().unwrap();
    });
    thread.close().unwrap();
}

#[test]
fn a_cluster_without_an_id_gets_one_when_all_of_its_nodes_are_there() {
    let mut cluster = Cluster::prepare();
    (0..3).for_each(|node| leave_old(&cluster, node));
    [0, 1].into_iter().for_each(|node| cluster.start_node(node));
    assert_eq!(cluster.ask_leader(&["SET", "whose", "old"]), "+OK");
    // A node of another cluster cannot be told apart by an id. It is not added as long as it has a log.
    let (other, _) = cluster_of("other");
    let refused = operate(&["add", &cluster.urls(), "2", &other.address(1)]);
    assert!(!refused.status.success(), "{refused:?}");
    std::thread::sleep(std::time::Duration::from_secs(4));
    assert_eq!(id_of(&cluster, 0), "", "a node is missing");
    cluster.start_node(2);
    cluster.wait("an id", |cluster| (0..3).all(|node| id_of(cluster, node).len() == 16).then_some(()));
    let id = id_of(&cluster, 0);
    assert!((1..3).all(|node| id_of(&cluster, node) == id));
    let leader = cluster.leader();
    cluster.wait("the end", |cluster| cluster.log(leader).contains("all members have the cluster's id").then_some(()));
    (0..3).for_each(|node| cluster.kill(node));
    (0..3).for_each(|node| cluster.start_node(node));
    assert_eq!(cluster.ask_leader(&["GET", "whose"]), "old");
    // The third node may have begun a moment ago.
    cluster.wait("the ids", |cluster| (0..3).all(|node| id_of(cluster, node).len() == 16).then_some(()));
    assert!((0..3).all(|node| id_of(&cluster, node) == id));
    both_serve([(&cluster, "old"), (&other, "other")]);
}
