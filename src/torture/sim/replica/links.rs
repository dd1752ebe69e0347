//! The links between nodes: when a parcel arrives, if at all.
//!
//! Unimpaired, parcels arrive once and in order, as on a connection. Under `disorder` they are late, lost, doubled and overtake each
//! other, which is more than a connection does: Raft must bear it.

use crate::torture::random::Random;

/// Minimum and maximum latency of an unimpaired link.
const LATENCY_US: (u64, u64) = (100, 500);
/// Percentage of losses that both sides notice, as when a connection is reset; and within which time.
const NOTICED: (u64, u64) = (50, 200_000);

/// The disorder of all links.
#[derive(Clone, Copy, Debug)]
struct Disorder {
    until_us: u64,
    most_us: u64,
    percent: (u64, u64),
}

/// Nodes that are cut off.
#[derive(Clone, Copy, Debug)]
struct Partition {
    until_us: u64,
    apart: u32,
    ways: (bool, bool),
}

/// What becomes of a parcel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It arrives at these times; more than one are copies.
    Arrives(Vec<u64>),
    /// It is lost; who sent it notices at this time, or never.
    Lost(Option<u64>),
}

/// All links between nodes, which have the numbers from 0 on.
pub struct Links {
    random: Random,
    nodes: u32,
    disorders: Vec<Disorder>,
    partitions: Vec<Partition>,
    /// For each pair of nodes: when the last parcel arrives.
    arrives_us: Vec<u64>,
}

impl Links {
    /// The links among so many nodes.
    pub fn new(nodes: u32, random: Random) -> Links {
        Links { random, nodes, disorders: Vec::new(), partitions: Vec::new(), arrives_us: vec![0; (nodes * nodes) as usize] }
    }

    /// Cuts nodes off from the others: whether they cannot send, and whether they cannot receive.
    pub fn part(&mut self, until_us: u64, apart: u32, ways: (bool, bool)) {
        self.partitions.push(Partition { until_us, apart, ways });
    }

    /// Lets parcels be late, lost and doubled.
    pub fn disorder(&mut self, until_us: u64, most_us: u64, percent: (u64, u64)) {
        self.disorders.push(Disorder { until_us, most_us, percent });
    }

    /// Whether nothing passes from a node to another one now.
    pub fn is_cut(&self, now_us: u64, from: u32, to: u32) -> bool {
        let is_apart = |partition: &Partition, node: u32| partition.apart >> node & 1 == 1;
        self.partitions.iter().filter(|partition| partition.until_us > now_us).any(|partition| {
            match (is_apart(partition, from), is_apart(partition, to)) {
                (true, false) => partition.ways.0,
                (false, true) => partition.ways.1,
                _ => false,
            }
        })
    }

    /// Decides on a parcel that is sent now.
    pub fn send(&mut self, now_us: u64, from: u32, to: u32) -> Fate {
        self.partitions.retain(|partition| partition.until_us > now_us);
        self.disorders.retain(|disorder| disorder.until_us > now_us);
        if self.is_cut(now_us, from, to) {
            return Fate::Lost(None);
        }
        let mut at_us = now_us + self.random.between(LATENCY_US.0, LATENCY_US.1);
        let last_us = &mut self.arrives_us[(from * self.nodes + to) as usize];
        let Some(disorder) = self.disorders.last() else {
            at_us = at_us.max(*last_us);
            *last_us = at_us;
            return Fate::Arrives(vec![at_us]);
        };
        if self.random.percent(disorder.percent.0) {
            let noticed = self.random.percent(NOTICED.0);
            return Fate::Lost(noticed.then(|| now_us + self.random.below(NOTICED.1)));
        }
        at_us += self.random.below(disorder.most_us);
        let mut times = vec![at_us];
        if self.random.percent(disorder.percent.1) {
            times.push(at_us + self.random.below(disorder.most_us));
        }
        Fate::Arrives(times)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parcels_arrive_in_order_unless_their_links_are_impaired() {
        let mut links = Links::new(3, Random::new(1, 2, 3));
        let times: Vec<Fate> = (0..100).map(|at| links.send(at, 0, 1)).collect();
        let in_order = |pair: &[Fate]| matches!(pair, [Fate::Arrives(a), Fate::Arrives(b)] if a[0] <= b[0]);
        assert!(times.windows(2).all(in_order));
        links.part(1_000, 1, (true, false));
        assert_eq!((links.send(999, 0, 2), links.is_cut(999, 2, 0)), (Fate::Lost(None), false));
        assert!(matches!(links.send(1_000, 0, 2), Fate::Arrives(_)), "it is over");
        links.disorder(5_000, 1_000, (50, 50));
        let fates: Vec<Fate> = (0..100).map(|_| links.send(2_000, 1, 2)).collect();
        assert!(fates.contains(&Fate::Lost(None)) && fates.iter().any(|fate| matches!(fate, Fate::Lost(Some(2_000..202_000)))));
        assert!(fates.iter().any(|fate| matches!(fate, Fate::Arrives(times) if times.len() == 2)));
        assert!(!fates.windows(2).all(in_order));
    }
}
