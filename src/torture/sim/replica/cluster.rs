//! What the nodes of an episode share: their runtime, the parcels on their way, and the links.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use crate::quorum::types::NodeId;
use crate::torture::plan::{Plan, When, streams};
use crate::torture::random::Random;
use crate::torture::sim::net::{Event, Net};
use crate::torture::sim::replica::links::{Fate, Links};
use crate::torture::sim::replica::operator::Operator;
use crate::torture::sim::replica::runtime::Runtime;
use crate::torture::sim::replica::transport::{Answer, Content, Parcel, Post, lock};

/// The nodes' surroundings.
pub struct Cluster {
    /// The runtime of all nodes.
    pub runtime: Runtime,
    /// The links between them.
    pub links: Links,
    /// What they send.
    pub post: Arc<Mutex<Post>>,
    /// Number of nodes.
    pub nodes: u32,
    /// Parcels on their way, and those that are lost and whose loss will be noticed.
    parcels: BTreeMap<u64, Parcel>,
    last: u64,
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
            links: Links::new(nodes, Random::new(plan.seed, streams::NODES, 0)),
            post: Arc::default(),
            nodes,
            parcels: BTreeMap::new(),
            last: 0,
            after_votes: after_votes(plan),
            leader: None,
            leader_since_us: 0,
            operator: Operator::default(),
        }
    }

    /// Sends what nodes have handed over. Returns whether there was anything.
    pub fn send(&mut self, net: &mut Net) -> bool {
        let outbox = std::mem::take(&mut lock(&self.post).outbox);
        let any = !outbox.is_empty();
        for parcel in outbox {
            let (from, to) = (parcel.from as u32 - 1, parcel.to as u32 - 1);
            if matches!(&parcel.content, Content::Answer(_, Answer::Vote(response)) if response.vote_granted) {
                self.voted(net, from);
            }
            match self.links.send(net.now_us, from, to) {
                Fate::Arrives(times) => times.into_iter().for_each(|at_us| {
                    let number = self.keep(parcel.clone());
                    net.at(at_us, Event::Parcel(to, number));
                }),
                Fate::Lost(None) => {}
                Fate::Lost(Some(at_us)) => {
                    let number = self.keep(parcel);
                    net.at(at_us, Event::Lost(from, number));
                }
            }
        }
        any
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

    fn keep(&mut self, parcel: Parcel) -> u64 {
        self.last += 1;
        self.parcels.insert(self.last, parcel);
        self.last
    }

    /// Takes a parcel that arrives.
    pub fn arrives(&mut self, number: u64) -> Option<Parcel> {
        self.parcels.remove(&number)
    }

    /// Its sender, or its receiver if it is an answer, notices that a parcel is lost.
    pub fn lost(&mut self, number: u64) {
        if let Some(parcel) = self.parcels.remove(&number) {
            lock(&self.post).broken(&parcel);
        }
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
