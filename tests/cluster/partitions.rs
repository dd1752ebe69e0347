//! Faults under load: partitions of every shape, pauses, full and lost disks. After each the cluster goes on, and at no time does a
//! client find a lost grant, a token that was given twice, or a second holder ([`Load`]).

use std::sync::Arc;
use std::time::Duration;

use crate::failover::Load;
use crate::nodes::{Cluster, full_size};
use crate::proxies::{self, Cuts};

/// Longer than an election takes.
const LASTS: Duration = Duration::from_millis(700);

/// Who a fault happens to: the leader, and the others.
#[derive(Clone, Copy)]
struct Nodes {
    leader: usize,
    a: usize,
    b: usize,
}

type Cut = fn(&Cuts, Nodes);

/// All partitions of three nodes that leave two of them in contact, by what they do to the leader.
const PARTITIONS: [(&str, Cut); 8] = [
    ("the leader is alone", |cuts, nodes| cuts.isolate(nodes.leader)),
    ("a follower is alone", |cuts, nodes| cuts.isolate(nodes.a)),
    ("no node hears the leader", |cuts, nodes| {
        cuts.cut(nodes.leader, nodes.a);
        cuts.cut(nodes.leader, nodes.b);
    }),
    ("the leader hears no node", |cuts, nodes| {
        cuts.cut(nodes.a, nodes.leader);
        cuts.cut(nodes.b, nodes.leader);
    }),
    ("the leader and a follower are parted", |cuts, nodes| cuts.part(nodes.leader, nodes.a)),
    ("the followers are parted", |cuts, nodes| cuts.part(nodes.a, nodes.b)),
    ("a follower does not hear the leader", |cuts, nodes| cuts.cut(nodes.leader, nodes.a)),
    ("the leader does not hear a follower", |cuts, nodes| cuts.cut(nodes.a, nodes.leader)),
];

/// Waits until there is a leader, and all others follow it.
fn settled(cluster: &mut Cluster) -> Nodes {
    let leader = cluster.leader();
    let (a, b) = ((leader + 1) % 3, (leader + 2) % 3);
    cluster.until_follows(a);
    cluster.until_follows(b);
    Nodes { leader, a, b }
}

pub fn behind_proxies() -> (Cluster, Arc<Cuts>) {
    let cuts = Arc::<Cuts>::default();
    let mut cluster = Cluster::prepare_behind(|ports| Some(proxies::start(ports, &cuts)));
    (0..3).for_each(|node| cluster.start_node(node));
    (0..3).for_each(|node| cluster.until_votes(node));
    settled(&mut cluster);
    (cluster, cuts)
}

fn rounds() -> usize {
    if full_size() { 25 } else { 1 }
}

/// How long it took until clients were granted locks again, while the fault lasted.
fn report(what: &str, gap: Duration) {
    println!("{what}: grants again after {} ms", gap.as_millis());
}

#[test]
fn partitions_of_every_shape_lose_nothing() {
    let (mut cluster, cuts) = behind_proxies();
    Load::during(&mut cluster, 6, |cluster, load| {
        for (what, cut) in PARTITIONS.iter().cycle().take(PARTITIONS.len() * rounds()) {
            let nodes = settled(cluster);
            load.wait_for_grants(cluster, 10, "before a partition");
            cut(&cuts, nodes);
            report(what, load.wait_for_grants(cluster, 1, what));
            std::thread::sleep(LASTS);
            load.wait_for_grants(cluster, 10, what);
            cuts.heal();
        }
        settled(cluster);
    });
}

#[test]
fn pauses_and_full_and_lost_disks_lose_nothing() {
    let mut cluster = Cluster::start();
    Load::during(&mut cluster, 6, |cluster, load| {
        for _ in 0..rounds() {
            let Nodes { leader, .. } = settled(cluster);
            load.wait_for_grants(cluster, 10, "before a pause");
            cluster.pause(leader);
            report("a paused leader", load.wait_for_grants(cluster, 1, "while the leader is paused"));
            std::thread::sleep(LASTS);
            cluster.resume(leader);

            let Nodes { a, .. } = settled(cluster);
            cluster.limit_files(a, Some(1));
            report("a follower's disk is full", load.wait_for_grants(cluster, 50, "while a follower's disk is full"));
            cluster.limit_files(a, None);

            let Nodes { leader, .. } = settled(cluster);
            cluster.limit_files(leader, Some(1));
            report("the leader's disk is full", load.wait_for_grants(cluster, 50, "while the leader's disk is full"));
            cluster.limit_files(leader, None);

            let Nodes { b, .. } = settled(cluster);
            cluster.kill(b);
            std::fs::remove_dir_all(cluster.dir(b).join("quorum")).unwrap();
            cluster.start_node(b);
            load.wait_for_grants(cluster, 50, "while a node that lost its disk catches up");
        }
        settled(cluster);
    });
}
