//! What the nodes of an episode share: their runtime, their sockets, and the links.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use crate::quorum::types::NodeId;
use crate::torture::plan::{Plan, When, streams};
use crate::torture::random::Random;
use crate::torture::sim::net::{Event, Net};
use crate::torture::sim::replica::links::Links;
use crate::torture::sim::replica::operator::Operator;
use crate::torture::sim::replica::runtime::Runtime;
use crate::torture::sim::replica::sockets::{Shared, Sockets, lock};
use crate::torture::sim::replica::voting::Votes;

/// The nodes' surroundings.
pub struct Cluster {
    /// The runtime of all nodes.
    pub runtime: Runtime,
    /// The links between them.
    pub links: Links,
    /// Their sockets.
    pub sockets: Shared,
    /// Their votes.
    pub votes: Votes,
    /// Number of nodes.
    pub nodes: u32,
    /// Faults that follow a vote: the node, the time from which on, the time from the vote, and the fault's index.
    after_votes: Vec<(u32, u64, u64, u32)>,
    /// The node that leads and reaches a majority, as far as the history says.
    pub leader: Option<u32>,
    /// Since when.
    pub leader_since_us: u64,
    /// Who changes the members.
    pub operator: Operator,
}

impl Cluster {
    /// The surroundings of a plan's nodes.
    pub fn new(plan: &Plan) -> Cluster {
        let nodes = plan.machines();
        Cluster {
            runtime: Runtime::new(plan),
            links: Links::new(Random::new(plan.seed, streams::NODES, 0)),
            sockets: Arc::new(Mutex::new(Sockets::new(Random::new(plan.seed, streams::NODES, 1)))),
            votes: Votes::default(),
            nodes,
            after_votes: after_votes(plan),
            leader: None,
            leader_since_us: 0,
            operator: Operator::default(),
        }
    }

    /// Sends what nodes have written. Returns whether there was anything.
    pub fn send(&mut self, net: &mut Net) -> bool {
        let voted = std::mem::take(&mut *self.votes.lock().unwrap_or_else(PoisonError::into_inner));
        voted.into_iter().for_each(|node| self.voted(net, node));
        lock(&self.sockets).send(net, &mut self.links)
    }

    /// Handles an event of a socket.
    pub fn handle(&mut self, net: &mut Net, event: Event) {
        let mut sockets = lock(&self.sockets);
        match event {
            Event::Arrives(number, side) => sockets.arrives(net, &self.links, number, side),
            Event::SentAgain(number, side) => sockets.again(number, side),
            Event::Breaks(number) => sockets.breaks(number),
            _ => {}
        }
    }

    /// Schedules the faults that follow a node's vote.
    fn voted(&mut self, net: &mut Net, node: u32) {
        self.after_votes.retain(|(server, from_us, after_us, fault)| {
            let follows = *server == node && *from_us <= net.now_us;
            if follows {
                net.at(net.now_us + after_us, Event::Fault(*fault));
            }
            !follows
        });
    }

    /// Whether a node and others that reach it and that it reaches are a majority of each of these sets of voters. Those that do not
    /// act do not count.
    pub fn reaches_majority(&self, now_us: u64, node: u32, voters: &[BTreeSet<NodeId>], acts: impl Fn(u32) -> bool) -> bool {
        let both =
            |other: u32| other == node || !(self.links.is_cut(now_us, node, other) || self.links.is_cut(now_us, other, node));
        let counts = |id: &&NodeId| both(**id as u32 - 1) && acts(**id as u32 - 1);
        voters.iter().all(|voters| voters.iter().filter(counts).count() * 2 > voters.len())
    }
}

fn after_votes(plan: &Plan) -> Vec<(u32, u64, u64, u32)> {
    let of = |(index, fault): (usize, &crate::torture::plan::PlannedFault)| match fault.when {
        When::Voted { server, from_us, after_us } => Some((server, from_us, after_us, index as u32)),
        _ => None,
    };
    plan.faults.iter().enumerate().filter_map(of).collect()
}
