//! What the executor is told of leaders and members.

use std::sync::{Arc, PoisonError};

use openraft::async_runtime::WatchReceiver;

use crate::persist::disk::Disk;
use crate::quorum::net::Neighbours;
use crate::quorum::node::Raft;
use crate::quorum::node::handle::Shared;
use crate::quorum::node::machine::{Machine, Status};

/// Tells the machine of every change, until openraft ends.
pub async fn watch<D, M, T>(raft: Raft<D, M>, machine: M, shared: Arc<Shared>, transport: T)
where
    T: Neighbours,
    D: Disk + Send + 'static,
    D::File: Send,
    M: Machine,
{
    let mut metrics = raft.metrics();
    let mut peers = transport.directory().subscribe();
    let mut told = Status::default();
    loop {
        let (status, failed) = {
            let now = metrics.borrow_watched();
            let members = &now.membership_config;
            let leading = raft_leader(&raft).filter(|_| now.state.is_leader());
            let status = Status {
                term: now.current_term,
                leader: now.current_leader,
                // Entries of this leadership are committed behind all earlier ones.
                leads: leading.filter(|leader| now.last_applied.is_some_and(|applied| applied.leader_id == *leader)),
                members: members.nodes().map(|(id, peer)| (*id, peer.addr.clone())).collect(),
                learners: members.membership().learner_ids().collect(),
                committed: now.cluster_committed.or(now.local_committed).map_or(0, |at| at.index),
                applied: now.last_applied.map_or(0, |at| at.index),
                matched: now.replication.iter().flatten().map(|(id, at)| (*id, at.map_or(0, |at| at.index))).collect(),
            };
            (status, now.running_state.clone().err())
        };
        if let Some(error) = failed {
            return machine.failed(error.to_string());
        }
        let moves = |status: &Status| (status.term, status.leader, status.leads, status.members.clone(), status.learners.clone());
        if moves(&status) != moves(&told) {
            if !status.members.is_empty() && status.members != told.members {
                transport.set_peers(status.members.clone());
            }
            machine.changed(status.clone());
        }
        told.clone_from(&status);
        *shared.status.lock().unwrap_or_else(PoisonError::into_inner) = status;
        tokio::select! {
            // Without random choices, a simulation can be repeated.
            biased;
            changed = metrics.changed() => if changed.is_err() { return },
            _ = peers.changed() => machine.changed(told.clone()),
        }
    }
}

fn raft_leader<D, M>(raft: &Raft<D, M>) -> Option<crate::quorum::types::LeaderId>
where
    D: Disk + Send + 'static,
    D::File: Send,
    M: Machine,
{
    raft.as_leader().ok().map(|leader| leader.to_committed_leader_id())
}
