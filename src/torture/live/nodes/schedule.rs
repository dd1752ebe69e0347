//! Which faults happen to the nodes, and when. All of it follows from the seed; which node leads at that time does not.

use crate::torture::fault::Fault;
use crate::torture::plan::{Plan, Settings, streams};
use crate::torture::random::Random;

/// No fault lasts longer, so that clients have found the new leader within the time that the checks allow for.
const LASTS_MAX_US: u64 = 3_000_000;

/// Number of leases after the last faults for which a run goes on at most.
const LEASES_AFTER: u64 = 2;

/// The node that a fault happens to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whom {
    /// The one that leads.
    Leader,
    /// One that follows, counted from the leader on: from 1.
    Follower(u32),
}

/// A partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// The leader is alone.
    LeaderAlone,
    /// No node hears the leader, which hears them.
    LeaderUnheard,
    /// The leader hears no node, and they hear it.
    LeaderDeaf,
    /// A follower is alone.
    FollowerAlone,
    /// The leader and a follower are parted; both reach the others.
    LeaderAndFollower,
    /// Two followers are parted; both reach the leader.
    Followers,
    /// A follower does not hear the leader.
    LeaderToFollower,
    /// The leader does not hear a follower.
    FollowerToLeader,
    /// The leader is with a minority.
    LeaderWithMinority,
    /// No node reaches another one: there is no majority.
    AllApart,
    /// Each node hears only the one before it.
    Ring,
}

impl Shape {
    /// All shapes.
    pub const ALL: [Shape; 11] = [
        Shape::LeaderAlone,
        Shape::LeaderUnheard,
        Shape::LeaderDeaf,
        Shape::FollowerAlone,
        Shape::LeaderAndFollower,
        Shape::Followers,
        Shape::LeaderToFollower,
        Shape::FollowerToLeader,
        Shape::LeaderWithMinority,
        Shape::AllApart,
        Shape::Ring,
    ];

    /// The cuts of which it consists, as in [`Injection::Partition`](crate::torture::plan::Injection::Partition). `nodes`: their
    /// number.
    pub fn cuts(self, leader: u32, nodes: u32) -> Vec<((u32, u32), (bool, bool))> {
        let bit = |behind: u32| 1 << ((leader + behind) % nodes);
        let all = (1 << nodes) - 1;
        let (both, out) = ((true, true), (true, false));
        match self {
            Shape::LeaderAlone => vec![((bit(0), all & !bit(0)), both)],
            Shape::LeaderUnheard => vec![((bit(0), all & !bit(0)), out)],
            Shape::LeaderDeaf => vec![((bit(0), all & !bit(0)), (false, true))],
            Shape::FollowerAlone => vec![((bit(1), all & !bit(1)), both)],
            Shape::LeaderAndFollower => vec![((bit(0), bit(1)), both)],
            Shape::Followers => vec![((bit(1), bit(2)), both)],
            Shape::LeaderToFollower => vec![((bit(0), bit(1)), out)],
            Shape::FollowerToLeader => vec![((bit(1), bit(0)), out)],
            Shape::LeaderWithMinority => {
                let minority = (0..nodes / 2).map(bit).sum::<u32>();
                vec![((minority, all & !minority), both)]
            }
            Shape::AllApart => (0..nodes).map(|node| ((bit(node), all & !bit(node)), both)).collect(),
            Shape::Ring => (0..nodes).map(|node| ((bit(node), all & !bit(node) & !bit(node + 1)), out)).collect(),
        }
    }

    /// Whether it keeps the leader from a majority.
    pub fn strikes_leader(self, nodes: u32) -> bool {
        match self {
            Shape::LeaderAlone | Shape::LeaderUnheard | Shape::LeaderDeaf | Shape::LeaderWithMinority => true,
            Shape::AllApart => true,
            Shape::Ring => nodes > 2,
            _ => false,
        }
    }
}

/// A fault of nodes, with its parameters. `for_us` is how long the fault lasts, and `again_after_us` the time until the node
/// starts again.
#[allow(missing_docs, reason = "the documentation of the enum and of its variants has them")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeFault {
    /// A node is killed, and started again.
    Kill { whom: Whom, again_after_us: u64 },
    /// A node is stopped.
    Stop { whom: Whom, for_us: u64 },
    /// Nodes are cut off from others, in this shape.
    Part { shape: Shape, for_us: u64 },
    /// Messages between the nodes are late, by at most `most_us`, or lost with this probability, and connections break.
    Disorder { for_us: u64, most_us: u64, percent: u64 },
    /// A node is killed and loses its disk.
    Wipe { whom: Whom, again_after_us: u64 },
    /// A node's disk is full.
    FullDisk { whom: Whom, for_us: u64 },
    /// A node's disk hangs.
    HungDisk { whom: Whom, for_us: u64 },
    /// A node is killed, and one of another cluster runs at its address. `place` decides on the files of the other one.
    Foreign { whom: Whom, for_us: u64, place: u64 },
}

/// The plan of what clients suffer. Faults of nodes are in the [`schedule`](draw).
pub fn plan_of_clients(settings: &Settings, episode: u64) -> Plan {
    let faults = settings.faults.iter().copied().filter(|fault| !is_of_processes(*fault)).collect();
    let plan = Plan::draw(&Settings { faults, ..settings.clone() }, episode);
    // What is real takes real time: clients that still wait when the last fault is over wait in vain.
    Plan { end_us: settings.episode_us + LEASES_AFTER * settings.lease_us, ..plan }
}

fn is_of_processes(fault: Fault) -> bool {
    fault.is_of_nodes() || fault == Fault::Restart
}

/// Draws the faults of nodes, with their times.
pub fn draw(settings: &Settings, nodes: u32, seed: u64) -> Vec<(u64, NodeFault)> {
    let kinds: Vec<Fault> = settings.faults.iter().copied().filter(|fault| is_of_processes(*fault)).collect();
    let lease_us = settings.lease_us.min(LASTS_MAX_US);
    let mut schedule = Vec::new();
    for (place, kind) in (0..).zip(&kinds) {
        let mut random = Random::new(seed, streams::NODES, 1 + *kind as u64);
        // Faults of one kind follow each other soon if they are alone. Each kind has its first one early.
        let mean_us = lease_us * 6 / 5 * (1 + kinds.len() as u64) / 2;
        let mut at_us = lease_us / 4 + place * lease_us / 2 + random.below(lease_us / 4);
        // The first one strikes the leader.
        let mut number = 2 * random.below(1000) as usize;
        while at_us < settings.episode_us {
            schedule.push((at_us, one(*kind, nodes, lease_us, number, &mut random)));
            number += 1;
            at_us += random.between(mean_us / 2, mean_us * 3 / 2);
        }
    }
    schedule.sort_by_key(|(at_us, _)| *at_us);
    schedule
}

fn one(kind: Fault, nodes: u32, lease_us: u64, number: usize, random: &mut Random) -> NodeFault {
    let whom = if number.is_multiple_of(2) { Whom::Leader } else { Whom::Follower(random.between(1, u64::from(nodes)) as u32) };
    match kind {
        Fault::Partition => {
            let shape = Shape::ALL[number * 5 % Shape::ALL.len()];
            NodeFault::Part { shape, for_us: random.between(lease_us / 10, lease_us) }
        }
        Fault::CutOff => NodeFault::Part { shape: Shape::LeaderAlone, for_us: random.between(lease_us / 10, lease_us) },
        Fault::Disorder => NodeFault::Disorder {
            for_us: random.between(lease_us / 10, lease_us),
            most_us: random.between(lease_us / 1000, lease_us / 20),
            percent: random.below(3),
        },
        Fault::Stall => NodeFault::Stop { whom, for_us: random.between(lease_us / 10, lease_us) },
        Fault::Wipe => NodeFault::Wipe { whom, again_after_us: random.between(lease_us / 1000, lease_us / 3) },
        Fault::BadDisk => NodeFault::FullDisk { whom, for_us: random.between(lease_us / 10, lease_us) },
        Fault::HungDisk => NodeFault::HungDisk { whom, for_us: random.between(lease_us / 10, lease_us) },
        Fault::Foreign => NodeFault::Foreign { whom, for_us: random.between(lease_us / 3, lease_us), place: random.draw() },
        _ => NodeFault::Kill { whom, again_after_us: random.between(lease_us / 1000, lease_us / 3) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_comes_and_cuts_what_it_says() {
        for nodes in [3, 5] {
            let settings = Settings { faults: vec![Fault::Partition], lease_us: 3_000_000, ..Settings::default() };
            let drawn = draw(&settings, nodes, 1);
            assert_eq!(drawn, draw(&settings, nodes, 1));
            for shape in Shape::ALL {
                assert!(drawn.iter().any(|(_, fault)| matches!(fault, NodeFault::Part { shape: of, .. } if *of == shape)));
            }
        }
        let cut = |shape: Shape, from: u32, to: u32| {
            shape.cuts(1, 3).into_iter().any(|(apart, ways)| {
                let has = |set: u32, node: u32| set >> node & 1 == 1;
                (has(apart.0, from) && has(apart.1, to) && ways.0) || (has(apart.1, from) && has(apart.0, to) && ways.1)
            })
        };
        for (shape, expected) in [
            (Shape::LeaderUnheard, &[(1, 0), (1, 2)][..]),
            (Shape::LeaderDeaf, &[(0, 1), (2, 1)]),
            (Shape::LeaderAndFollower, &[(1, 2), (2, 1)]),
            (Shape::Followers, &[(0, 2), (2, 0)]),
            (Shape::Ring, &[(0, 2), (1, 0), (2, 1)]),
        ] {
            for (from, to) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
                assert_eq!(cut(shape, from, to), expected.contains(&(from, to)), "{shape:?}: {from} to {to}");
            }
        }
    }
}
