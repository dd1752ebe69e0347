//! The operator of the nodes: removes members and adds them again, by the orders that the commands of a server give its node.
//!
//! The operator looks at the leader from time to time, and orders the next change. As long as the members are not what they
//! should be, the operator tries again.

use std::sync::Arc;

use crate::driver::replicated::Member;
use crate::quorum::node::{Change, Status};
use crate::quorum::types::NodeId;
use crate::torture::history::{EventKind, NO_CLIENT};
use crate::torture::sim::Simulation;
use crate::torture::sim::net::Event;
use crate::torture::sim::replica::sockets::host;
use crate::torture::sim::world::lock;

/// Interval of the looks.
const LOOK_US: u64 = 500_000;
/// Time in which a node with an empty disk is started.
const START_US: u64 = 100_000;

/// What the operator wants, and what is ordered.
#[derive(Default)]
pub struct Operator {
    /// The nodes that are to be removed, or were: a bit for each. 0 if there is nothing to do.
    away: u32,
    /// Those of them whose files are deleted before they are added.
    fresh: u32,
    /// When they are added.
    until_us: u64,
    /// Those that have been removed.
    removed: u32,
    /// The order that is carried out has a copy.
    order: Arc<()>,
    /// Number of looks so far.
    looks: u32,
}

/// The next thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Wait,
    /// The leader hands over to this node.
    HandOver(NodeId),
    Order(Change),
    /// This node, which is no member, loses its disk.
    Clear(u32),
    Done,
}

impl Operator {
    /// Whether nodes are away, or a change may still happen.
    pub fn is_busy(&self) -> bool {
        self.away != 0
    }

    /// The next thing to do, as the leader, which has this number, sees the members.
    fn step(&mut self, now_us: u64, leader: NodeId, nodes: u32, status: &Status) -> Step {
        if Arc::strong_count(&self.order) > 1 {
            return Step::Wait;
        }
        self.looks += 1;
        let id = |node: u32| NodeId::from(node) + 1;
        let all = |set: u32| (0..nodes).filter(move |node| set >> node & 1 == 1);
        let is_member = |node: u32| status.members.contains_key(&id(node));
        let changes = status.voters.len() > 1;
        for node in all(self.away & !self.removed) {
            if !is_member(node) && !changes {
                self.removed |= 1 << node;
                continue;
            }
            if id(node) != leader {
                return Step::Order(Change::Remove(id(node)));
            }
            let others: Vec<u32> = all(!self.away).collect();
            return others.get(self.looks as usize % others.len().max(1)).map_or(Step::Wait, |to| Step::HandOver(id(*to)));
        }
        if now_us < self.until_us {
            return Step::Wait;
        }
        for node in all(self.away) {
            if is_member(node) && !status.learners.contains(&id(node)) {
                continue;
            }
            if self.fresh >> node & 1 == 1 && !is_member(node) {
                return Step::Clear(node);
            }
            return Step::Order(Change::Add(id(node), host(id(node))));
        }
        if changes { Step::Wait } else { Step::Done }
    }
}

impl Simulation<'_> {
    /// From now on, the operator removes nodes, and adds them again from a time on.
    pub(in crate::torture::sim) fn change_members(&mut self, away: u32, fresh: u32, until_us: u64) {
        let Some(cluster) = &mut self.cluster else { return };
        cluster.operator = Operator { away, fresh, until_us, ..Operator::default() };
        let mut net = lock(&self.net);
        let now_us = net.now_us;
        net.at(now_us, Event::Operate);
    }

    /// The operator looks at the members.
    pub(in crate::torture::sim) fn operate(&mut self) {
        let Some(cluster) = &mut self.cluster else { return };
        let now_us = lock(&self.net).now_us;
        // The leader of the latest term knows of all that is committed: what a leader before it began and did not end has either
        // reached it, or never happens.
        let leads = self.servers.iter().filter_map(|server| {
            let status = server.driver.member().filter(|_| server.up)?.node().status();
            status.leads.map(|leads| (leads.term, server.number, status))
        });
        let leader = leads.max_by_key(|(term, ..)| *term);
        let step = leader.as_ref().map_or(Step::Wait, |(_, leader, status)| {
            cluster.operator.step(now_us, NodeId::from(*leader) + 1, cluster.nodes, status)
        });
        let leading = leader.as_ref().map(|(_, leader, _)| *leader as usize);
        let mut hands_over = None;
        let node = leader.and_then(|(_, leader, _)| {
            cluster.runtime.enter(leader, now_us);
            self.servers[leader as usize].driver.member().map(Member::node)
        });
        match (step, node) {
            (Step::HandOver(to), Some(_)) => hands_over = Some(to),
            (Step::Order(change), Some(node)) => {
                let order = Arc::clone(&cluster.operator.order);
                let changed = move |result: Result<(), String>| {
                    if let Err(reason) = result {
                        tracing::debug!(reason, "the members have not changed");
                    }
                    drop(order);
                };
                node.change(change, Box::new(changed));
            }
            (Step::Done, _) => {
                cluster.operator.away = 0;
                return lock(&self.net).record(NO_CLIENT, EventKind::AllMembers);
            }
            (Step::Clear(node), _) => self.clear(node),
            _ => {}
        }
        if let (Some(to), Some(leading)) = (hands_over, leading)
            && self.servers[leading].stalled_until_us <= now_us
        {
            self.servers[leading].transfer_leadership(&mut lock(&self.net), to);
        }
        lock(&self.net).at(now_us + LOOK_US, Event::Operate);
    }

    /// A node that is no member ends, and starts with an empty disk.
    fn clear(&mut self, node: u32) {
        if !self.servers[node as usize].down(&self.net, Some(0), false) {
            return;
        }
        self.end_node(node, false);
        if let Some(replica) = &mut self.servers[node as usize].replica {
            replica.wipe();
        }
        if let Some(cluster) = &mut self.cluster {
            cluster.operator.fresh &= !(1 << node);
        }
        let mut net = lock(&self.net);
        net.record(NO_CLIENT, EventKind::Wipe { server: node });
        let up_us = net.now_us + START_US;
        net.at(up_us, Event::Up(node));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn status(voters: &[&[NodeId]], learners: &[NodeId]) -> Status {
        let sets: Vec<BTreeSet<NodeId>> = voters.iter().map(|voters| voters.iter().copied().collect()).collect();
        let members = sets.iter().flatten().chain(learners).map(|id| (*id, host(*id))).collect();
        Status { voters: sets, learners: learners.to_vec(), members, ..Status::default() }
    }

    #[test]
    fn the_leader_hands_over_before_it_is_removed_and_a_node_is_added_with_an_empty_disk() {
        let mut operator = Operator { away: 1, fresh: 1, until_us: 100, ..Operator::default() };
        let all = status(&[&[1, 2, 3]], &[]);
        assert!(matches!(operator.step(0, 1, 3, &all), Step::HandOver(2 | 3)));
        assert_eq!(operator.step(1, 2, 3, &all), Step::Order(Change::Remove(1)));
        // A leader ended in the middle of the change: it is ordered again.
        assert_eq!(operator.step(2, 2, 3, &status(&[&[1, 2, 3], &[2, 3]], &[])), Step::Order(Change::Remove(1)));
        assert_eq!(operator.step(3, 2, 3, &status(&[&[2, 3]], &[1])), Step::Order(Change::Remove(1)));
        let without = status(&[&[2, 3]], &[]);
        assert_eq!(operator.step(4, 2, 3, &without), Step::Wait);
        assert_eq!(operator.step(100, 2, 3, &without), Step::Clear(0));
        operator.fresh = 0;
        assert_eq!(operator.step(101, 2, 3, &without), Step::Order(Change::Add(1, host(1))));
        let order = Arc::clone(&operator.order);
        assert_eq!(operator.step(102, 2, 3, &without), Step::Wait, "an order is carried out");
        drop(order);
        assert_eq!(operator.step(103, 2, 3, &status(&[&[2, 3]], &[1])), Step::Order(Change::Add(1, host(1))));
        assert_eq!(operator.step(104, 2, 3, &status(&[&[2, 3], &[1, 2, 3]], &[])), Step::Wait, "the change has not ended");
        assert_eq!(operator.step(105, 2, 3, &all), Step::Done);
        assert!(operator.is_busy());
    }
}
