//! What the nodes of an episode share: their runtime, the parcels on their way, and the links.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::torture::plan::{Plan, streams};
use crate::torture::random::Random;
use crate::torture::sim::net::{Event, Net};
use crate::torture::sim::replica::links::{Fate, Links};
use crate::torture::sim::replica::runtime::Runtime;
use crate::torture::sim::replica::transport::{Parcel, Post, lock};

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
    /// The node that leads and reaches a majority, as far as the history says.
    pub leader: Option<u32>,
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
            leader: None,
        }
    }

    /// Sends what nodes have handed over. Returns whether there was anything.
    pub fn send(&mut self, net: &mut Net) -> bool {
        let outbox = std::mem::take(&mut lock(&self.post).outbox);
        let any = !outbox.is_empty();
        for parcel in outbox {
            let (from, to) = (parcel.from as u32 - 1, parcel.to as u32 - 1);
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

    /// Whether a node reaches a majority, and a majority reaches it.
    pub fn reaches_majority(&self, now_us: u64, node: u32) -> bool {
        let both =
            |other: &u32| *other == node || !(self.links.is_cut(now_us, node, *other) || self.links.is_cut(now_us, *other, node));
        (0..self.nodes).filter(both).count() * 2 > self.nodes as usize
    }
}
