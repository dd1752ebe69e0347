//! What the executor is told of leaders and members.

use openraft::async_runtime::WatchReceiver;
use openraft::storage::RaftStateMachine;
use openraft::vote::RaftLeaderId;

use crate::persist::disk::SendDisk;
use crate::quorum::net::Transport;
use crate::quorum::node::Raft;
use crate::quorum::node::application::{Application, Asked, Status};
use crate::quorum::store::LogStore;
use crate::quorum::types::Types;

/// What a node can say of its cluster now.
pub fn status<D: SendDisk, M: Application>(raft: &Raft<D, M>, log: &LogStore) -> Status {
    let metrics = raft.metrics();
    let now = metrics.borrow_watched();
    let members = &now.membership_config;
    // Not by `Raft::as_leader`, which would lock the same metrics again: while openraft waits to write them, that never ends.
    let leading = Some(now.vote.leader_id.to_committed()).filter(|leader| now.vote.committed && leader.node_id == now.id);
    let leading = leading.filter(|_| now.state.is_leader());
    Status {
        cluster: log.lineage().id,
        term: now.current_term,
        leader: now.current_leader,
        // Entries of this leadership are committed behind all earlier ones.
        leads: leading.filter(|leader| now.last_applied.is_some_and(|applied| applied.leader_id == *leader)),
        members: members.nodes().map(|(id, peer)| (*id, peer.addr.clone())).collect(),
        learners: members.membership().learner_ids().collect(),
        voters: members.membership().get_joint_config().clone(),
        committed: now.cluster_committed.or(now.local_committed).map_or(0, |at| at.index),
        applied: now.last_applied.map_or(0, |at| at.index),
        matched: now.replication.iter().flatten().map(|(id, at)| (*id, at.map_or(0, |at| at.index))).collect(),
    }
}

/// Tells the application of every change but those of indexes, until openraft ends.
pub async fn watch<D: SendDisk, M: Application>(raft: Raft<D, M>, log: LogStore, application: M, transport: Transport) {
    let (mut servers, mut indexes) = (raft.server_metrics(), raft.data_metrics());
    let mut peers = transport.directory().subscribe();
    let mut told = Status::default();
    loop {
        let status = status(&raft, &log);
        // With each commit, indexes change. They are looked at only by a leader that waits for its first entry.
        let waits = status.leads.is_none() && raft.as_leader().is_ok();
        let moves = |status: &Status| {
            let Status { cluster, term, leader, leads, members, learners, voters, .. } = status;
            (*cluster, *term, *leader, *leads, members.clone(), learners.clone(), voters.clone())
        };
        if moves(&status) != moves(&told) {
            if !status.members.is_empty() && status.members != told.members {
                transport.set_peers(status.members.clone());
            }
            application.ask(Asked::Changed(status.clone()));
        }
        told = status;
        let ended = tokio::select! {
            // Without random choices, a simulation can be repeated.
            biased;
            changed = servers.changed() => changed.is_err(),
            changed = indexes.changed(), if waits => changed.is_err(),
            _ = peers.changed() => {
                application.ask(Asked::Changed(told.clone()));
                false
            }
        };
        if ended {
            application.ask(Asked::Failed(why_ended(&raft)));
            return;
        }
    }
}

/// Why openraft, which tells nothing any more, has ended. It says so itself, unless it has panicked: then the process would look alive and
/// be none of the cluster.
pub fn why_ended<M: RaftStateMachine<Types>>(raft: &openraft::Raft<Types, M>) -> String {
    let said = raft.metrics().borrow_watched().running_state.clone();
    said.map_or_else(|error| error.to_string(), |()| "a defect has ended its part in the cluster, see what is above".to_owned())
}
