//! The operator of the nodes: removes members and adds them again, by the commands of a server.
//!
//! The operator looks at the leader from time to time, and orders the next change. As long as the members are not what they
//! should be, the operator tries again.

use crate::client::Command;
use crate::quorum::node::Status;
use crate::quorum::types::NodeId;
use crate::torture::history::{EventKind, NO_CLIENT};
use crate::torture::sim::Simulation;
use crate::torture::sim::net::Event;
use crate::torture::sim::replica::node::End;
use crate::torture::sim::replica::sockets::host;
use crate::torture::sim::server::local::LocalId;
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
    /// The server and the process that carry an order out, and the client that waits for it.
    order: Option<(u32, u64, LocalId)>,
    /// Number of looks so far.
    looks: u32,
}

/// The next thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Wait,
    /// The leader gets this command, whose reply is waited for.
    Order(String),
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
        if self.order.is_some() {
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
                return Step::Order(format!("NODE REMOVE {}", id(node)));
            }
            let others: Vec<u32> = all(!self.away).collect();
            let to = others.get(self.looks as usize % others.len().max(1));
            return to.map_or(Step::Wait, |to| Step::Order(format!("NODE HANDOVER {}", id(*to))));
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
            return Step::Order(format!("NODE ADD {} {}", id(node), host(id(node))));
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
        let mut net = lock(&self.net);
        let now_us = net.now_us;
        if let Some((server, process, client)) = cluster.operator.order {
            let of = &mut self.servers[server as usize];
            let runs = of.up && of.replica.as_ref().is_some_and(|replica| replica.number == process);
            let is_answered =
                !runs || of.local_reply(client).is_ok_and(|reply| reply.is_some()) || of.local_reply(client).is_err();
            if is_answered && of.stalled_until_us <= now_us {
                if runs {
                    cluster.runtime.enter(server, now_us);
                    of.on(&mut net).wake(|serving| serving.server.act_on_local(client, |client| client.broken = true));
                }
                cluster.operator.order = None;
            }
        }
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
        match (step, leader) {
            (Step::Order(command), Some((_, leader, _))) => {
                let of = &mut self.servers[leader as usize];
                if of.stalled_until_us <= now_us {
                    cluster.runtime.enter(leader, now_us);
                    let process = of.replica.as_ref().map_or(0, |replica| replica.number);
                    let words = command.split(' ').collect::<Vec<_>>();
                    let command = words[1..].iter().fold(Command::new(words[0]), |command, word| command.arg(*word));
                    let client = of.ask_locally(&command);
                    of.on(&mut net).wake(|_| ());
                    cluster.operator.order = Some((leader, process, client));
                }
            }
            (Step::Done, _) => {
                cluster.operator.away = 0;
                return net.record(NO_CLIENT, EventKind::AllMembers);
            }
            (Step::Clear(node), _) => {
                drop(net);
                self.clear(node);
                net = lock(&self.net);
            }
            _ => {}
        }
        net.at(now_us + LOOK_US, Event::Operate);
    }

    /// A node that is no member ends, and starts with an empty disk.
    fn clear(&mut self, node: u32) {
        if !self.servers[node as usize].down(&self.net, Some(0), false) {
            return;
        }
        self.end_node(node, End::Killed);
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
        let order = |command: &str| Step::Order(command.to_owned());
        let hands_over = operator.step(0, 1, 3, &all);
        assert!(hands_over == order("NODE HANDOVER 2") || hands_over == order("NODE HANDOVER 3"), "{hands_over:?}");
        assert_eq!(operator.step(1, 2, 3, &all), order("NODE REMOVE 1"));
        // A leader ended in the middle of the change: it is ordered again.
        assert_eq!(operator.step(2, 2, 3, &status(&[&[1, 2, 3], &[2, 3]], &[])), order("NODE REMOVE 1"));
        assert_eq!(operator.step(3, 2, 3, &status(&[&[2, 3]], &[1])), order("NODE REMOVE 1"));
        let without = status(&[&[2, 3]], &[]);
        assert_eq!(operator.step(4, 2, 3, &without), Step::Wait);
        assert_eq!(operator.step(100, 2, 3, &without), Step::Clear(0));
        operator.fresh = 0;
        let add = Step::Order(format!("NODE ADD 1 {}", host(1)));
        assert_eq!(operator.step(101, 2, 3, &without), add);
        operator.order = Some((1, 1, 1));
        assert_eq!(operator.step(102, 2, 3, &without), Step::Wait, "an order is carried out");
        operator.order = None;
        assert_eq!(operator.step(103, 2, 3, &status(&[&[2, 3]], &[1])), add);
        assert_eq!(operator.step(104, 2, 3, &status(&[&[2, 3], &[1, 2, 3]], &[])), Step::Wait, "the change has not ended");
        assert_eq!(operator.step(105, 2, 3, &all), Step::Done);
        assert!(operator.is_busy());
    }
}
