//! The links between nodes: when a segment of a connection arrives, if at all.

use crate::torture::random::Random;

/// Minimum and maximum latency of an unimpaired link.
const LATENCY_US: (u64, u64) = (100, 500);
/// Time within which both nodes notice that a connection is broken.
const BREAKS_US: u64 = 200_000;

/// The disorder of all links.
#[derive(Clone, Copy, Debug)]
struct Disorder {
    until_us: u64,
    most_us: u64,
    lost_percent: u64,
    broken_permille: u64,
}

/// Nodes that are cut off.
#[derive(Clone, Copy, Debug)]
struct Partition {
    until_us: u64,
    apart: (u32, u32),
    ways: (bool, bool),
}

/// What becomes of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It arrives at this time, unless those before it on its connection are later.
    Arrives(u64),
    /// It is lost.
    Lost,
    /// Its connection breaks at this time.
    Breaks(u64),
}

/// All links between nodes, which have the numbers from 0 on.
pub struct Links {
    random: Random,
    disorders: Vec<Disorder>,
    partitions: Vec<Partition>,
}

impl Links {
    /// Links that are unimpaired.
    pub fn new(random: Random) -> Links {
        Links { random, disorders: Vec::new(), partitions: Vec::new() }
    }

    /// Cuts nodes off from others: whether they cannot send, and whether they cannot receive.
    pub fn part(&mut self, until_us: u64, apart: (u32, u32), ways: (bool, bool)) {
        self.partitions.push(Partition { until_us, apart, ways });
    }

    /// Lets segments be late and lost, and connections break.
    pub fn disorder(&mut self, until_us: u64, most_us: u64, lost_percent: u64, broken_permille: u64) {
        self.disorders.push(Disorder { until_us, most_us, lost_percent, broken_permille });
    }

    /// Whether nothing passes from a node to another one now.
    pub fn is_cut(&self, now_us: u64, from: u32, to: u32) -> bool {
        let is_in = |nodes: u32, node: u32| nodes >> node & 1 == 1;
        self.partitions.iter().filter(|partition| partition.until_us > now_us).any(|Partition { apart, ways, .. }| {
            (is_in(apart.0, from) && is_in(apart.1, to) && ways.0) || (is_in(apart.1, from) && is_in(apart.0, to) && ways.1)
        })
    }

    /// Decides on a segment that is sent now.
    pub fn send(&mut self, now_us: u64, from: u32, to: u32) -> Fate {
        self.partitions.retain(|partition| partition.until_us > now_us);
        self.disorders.retain(|disorder| disorder.until_us > now_us);
        if self.is_cut(now_us, from, to) {
            return Fate::Lost;
        }
        let at_us = now_us + self.random.between(LATENCY_US.0, LATENCY_US.1);
        match self.disorders.last() {
            None => Fate::Arrives(at_us),
            Some(disorder) if self.random.percent(disorder.lost_percent) => Fate::Lost,
            Some(disorder) if self.random.below(1_000) < disorder.broken_permille => {
                Fate::Breaks(now_us + self.random.below(BREAKS_US))
            }
            Some(disorder) => Fate::Arrives(at_us + self.random.below(disorder.most_us)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_arrive_unless_their_links_are_impaired() {
        let mut links = Links::new(Random::new(1, 2, 3));
        assert!((0..100).all(|at| matches!(links.send(at, 0, 1), Fate::Arrives(then) if (at + 100..=at + 500).contains(&then))));
        links.part(1_000, (1, !1), (true, false));
        assert_eq!((links.send(999, 0, 2), links.is_cut(999, 2, 0)), (Fate::Lost, false));
        assert!(matches!(links.send(1_000, 0, 2), Fate::Arrives(_)), "it is over");
        links.disorder(5_000, 1_000, 30, 300);
        let fates: Vec<Fate> = (0..100).map(|_| links.send(2_000, 1, 2)).collect();
        assert!(fates.contains(&Fate::Lost) && fates.iter().any(|fate| matches!(fate, Fate::Breaks(2_000..202_000))));
        assert!(fates.iter().any(|fate| matches!(fate, Fate::Arrives(2_501..))));
    }
}
