//! Which cluster a node belongs to: kept in its log and its snapshots, and told to the other nodes.
//!
//! ```text
//!   begin: a blank node begins a cluster with a new id, or finds its cluster and takes its id ─┐
//!   settle: a cluster without an id gets one; a cluster that was recovered takes this one's place ─┴▶ log, snapshots ─▶ hellos
//! ```
//!
//! A cluster that an older version began has no id. Its leader draws one when each member is connected to it, votes, and runs a version
//! that knows ids; the followers take it from the leader. Nodes of an older version need not know it, since there are none. A leader that
//! finds that a member has an id already takes that one. Two leaders draw two ids only if the first one's disk takes longer to keep its
//! id than another leader is elected and waits [`STEADY`] looks; then the first one's node is refused by the others, and must start with an
//! empty folder.

use std::sync::Arc;
use std::time::Duration;

use openraft::AsyncRuntime;

use crate::persist::disk::{Disk, SendDisk};
use crate::quorum::net::{Hello, Transport};
use crate::quorum::node::Raft;
use crate::quorum::node::application::Application;
use crate::quorum::node::state_machine::{SharedSnapshots, lock};
use crate::quorum::node::watch;
use crate::quorum::runtime::{Runtime, random};
use crate::quorum::store::{Lineage, LogStore};
use crate::quorum::types::{ClusterId, NodeId};

/// Interval of looks, as long as the cluster's id is not settled.
const LOOK: Duration = Duration::from_millis(100);
/// Number of looks in a row at which a leader must find that all members can have an id.
const STEADY: u32 = 30;
/// Pause before the log is asked again.
const AGAIN: Duration = Duration::from_secs(1);

/// Draws the id of a new cluster.
pub fn draw() -> ClusterId {
    // Two numbers have meanings of their own.
    random().clamp(1, Lineage::UNNAMED - 1)
}

/// Keeps and tells which cluster a node belongs to.
pub struct Belonging<D: Disk> {
    pub node: NodeId,
    pub log: LogStore,
    pub snapshots: SharedSnapshots<D>,
    pub transport: Transport,
}

impl<D: Disk> Clone for Belonging<D> {
    fn clone(&self) -> Self {
        let Belonging { node, log, snapshots, transport } = self;
        Belonging { node: *node, log: log.clone(), snapshots: Arc::clone(snapshots), transport: transport.clone() }
    }
}

impl<D: SendDisk> Belonging<D> {
    /// The node belongs to this cluster from now on. Nobody is told before that is durable.
    pub async fn set(&self, lineage: Lineage) {
        while let Err(error) = self.log.belong(lineage).await {
            tracing::error!("It cannot be kept which cluster this node belongs to: {error}");
            Runtime::sleep(AGAIN).await;
        }
        if let Err(error) = lock(&self.snapshots).belong(lineage.id) {
            // The current snapshot is that of the log: it was checked at the start.
            tracing::error!("{error}");
        }
        self.transport.change_standing(|standing| standing.belong(lineage));
        self.transport.directory().changed();
    }

    /// Gives an id to a cluster without one, and ends the part of a node whose cluster has been replaced.
    pub async fn settle<M: Application>(self, raft: Raft<D, M>) {
        let mut successor = self.transport.successor();
        let mut steady = 0;
        loop {
            let lineage = self.log.lineage();
            let found = *successor.borrow_and_update();
            if lineage.successor != 0 || found != 0 {
                return self.give_up(&raft, Lineage { successor: lineage.successor.max(found), ..lineage }).await;
            }
            let standing = self.transport.standing();
            let mut rests = false;
            match lineage.id {
                0 if standing.blank || !standing.votes => {}
                0 => {
                    if let Some(id) = self.find(&raft, &mut steady) {
                        self.set(Lineage { open: true, ..Lineage::of(id) }).await;
                        tracing::info!("the cluster has an id from now on: {id:016x}");
                    }
                }
                id if lineage.open => {
                    let others = self.others(&raft);
                    if others.is_some_and(|others| others.iter().all(|hello| hello.cluster.id == id)) {
                        self.set(Lineage { open: false, ..lineage }).await;
                        tracing::info!("all members have the cluster's id");
                    }
                }
                _ => rests = true,
            }
            tokio::select! {
                // Without random choices, a simulation can be repeated.
                biased;
                changed = successor.changed() => if changed.is_err() { return },
                () = Runtime::sleep(LOOK), if !rests => {}
            }
        }
    }

    /// What all other members say of themselves; `None` if one of them is not connected, or no members are known.
    fn others<M: Application>(&self, raft: &Raft<D, M>) -> Option<Vec<Hello>> {
        let members = watch::status(raft, &self.log).members;
        let others = members.keys().filter(|id| **id != self.node);
        let hello = |id: &NodeId| self.transport.directory().get(*id)?.connected_hello().cloned();
        if members.is_empty() { None } else { others.map(hello).collect() }
    }

    /// The id of a cluster without one, as soon as it gets one.
    fn find<M: Application>(&self, raft: &Raft<D, M>, steady: &mut u32) -> Option<ClusterId> {
        let status = watch::status(raft, &self.log);
        if status.leads.is_none() {
            *steady = 0;
            let leader = status.leader.filter(|leader| *leader != self.node)?;
            let id = self.transport.directory().get(leader)?.connected_hello()?.cluster.id;
            return Some(id).filter(|id| *id != 0);
        }
        let others = self.others(raft).filter(|others| others.iter().all(|hello| hello.votes && hello.knows_ids()));
        let Some(others) = others else {
            *steady = 0;
            return None;
        };
        *steady += 1;
        if *steady < STEADY {
            return None;
        }
        Some(others.iter().map(|hello| hello.cluster.id).find(|id| *id != 0).unwrap_or_else(draw))
    }

    /// Takes part in nothing any more: another cluster has taken the place of this one.
    async fn give_up<M: Application>(&self, raft: &Raft<D, M>, lineage: Lineage) {
        raft.runtime_config().elect(false);
        // All connections end now: if it leads, it does so until its lease has ended.
        self.transport.change_standing(|standing| standing.belong(lineage));
        tracing::error!(
            "this node serves nothing any more: cluster {:016x} was recovered from its own, {:016x}, after a majority was lost; the \
             node must start with an empty folder",
            lineage.successor,
            lineage.id
        );
        self.set(lineage).await;
    }
}
