//! Changes of the members, on the leader.
//!
//! ```text
//!   add:    connect ─▶ learner ─▶ it has caught up ─▶ voter
//!   remove: a majority of the others answers ─▶ learner ─▶ no member
//! ```
//!
//! A node that is removed is a learner first, so that it hears that it has no vote any more.
//!
//! A change of the voters has two steps: at first, a majority of the old voters and one of the new ones must agree, and then the new
//! ones alone. A leader that ends between them, or whose first step is late, leaves a cluster in which both majorities must agree, which
//! tolerates fewer losses than its members show. The leader that finds it so ends the change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use openraft::async_runtime::WatchReceiver;
use openraft::errors::{ClientWriteError, RaftError};
use openraft::{AsyncRuntime, ChangeMembers};
use tokio::sync::Semaphore;

use crate::persist::disk::SendDisk;
use crate::quorum::admission::Admission;
use crate::quorum::net::Transport;
use crate::quorum::node::Raft;
use crate::quorum::node::application::Application;
use crate::quorum::runtime::{Instant, Runtime};
use crate::quorum::types::{NodeId, Peer, Types};

/// Time within which a new node must answer.
const ANSWER_TIME: Duration = Duration::from_secs(3);
/// Time within which a majority must have confirmed a change.
const CONFIRM_TIME: Duration = Duration::from_secs(10);
/// Time after which a new node that is not connected is given up while it catches up.
const LOST_TIME: Duration = Duration::from_secs(10);
/// Time within which a new member must say that it votes.
const VOTE_TIME: Duration = Duration::from_secs(15);
/// Number of entries that a new node may lack when it gets its vote.
const LACK_MAX: u64 = 1_000;
/// Pause before the second step of a change is tried again that was left unfinished.
const END_AGAIN: Duration = Duration::from_secs(1);
/// Interval between looks at what a new node has.
const LOOK: Duration = Duration::from_millis(20);

/// A change of the members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A node joins, by its address among the nodes.
    Add(NodeId, String),
    /// A node leaves.
    Remove(NodeId),
}

/// Why a node is not added.
enum NotAdded {
    /// There is no connection to it.
    Silent(String),
    /// It refuses this node, or this node refuses it.
    Refused(String),
    /// It has a log, and nothing shows that this is the log of this cluster.
    HasALog,
}

impl NotAdded {
    fn of(self, node: NodeId, addr: &str) -> String {
        match self {
            NotAdded::Silent(reason) => format!("node {node} does not answer at {addr}: {reason}"),
            NotAdded::Refused(reason) => format!("node {node} at {addr} cannot be added: {reason}"),
            NotAdded::HasALog => format!(
                "node {node} at {addr} cannot be added: it has a log, and no id of a cluster shows whose log that is: it must start \
                 with an empty folder"
            ),
        }
    }
}

/// Changes members of the cluster that this node leads.
pub struct Members<D: SendDisk, M: Application> {
    pub raft: Raft<D, M>,
    pub transport: Transport,
    /// This node.
    pub node: NodeId,
    /// What it takes part in.
    pub admission: Arc<Admission>,
}

/// The members, and which of them vote.
struct Known {
    addrs: BTreeMap<NodeId, String>,
    voters: BTreeSet<NodeId>,
}

impl<D: SendDisk, M: Application> Members<D, M> {
    /// Carries out a change. It may take long: a new node must catch up.
    ///
    /// # Errors
    /// In words. Unless the text says something else, nothing has changed.
    pub async fn change(&self, change: Change) -> Result<(), String> {
        fail_if!(!self.raft.is_leader(), "this node does not lead any more".to_owned());
        match change {
            Change::Add(node, addr) => self.add(node, addr).await,
            Change::Remove(node) => self.remove(node).await,
        }
    }

    fn known(&self) -> Known {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let members = &metrics.membership_config;
        Known {
            addrs: members.nodes().map(|(id, peer)| (*id, peer.addr.clone())).collect(),
            voters: members.membership().voter_ids().collect(),
        }
    }

    async fn add(&self, node: NodeId, addr: String) -> Result<(), String> {
        let Known { mut addrs, voters } = self.known();
        match addrs.get(&node) {
            // An earlier attempt may have ended in between.
            Some(at) if *at == addr && !voters.contains(&node) => {}
            Some(at) => return Err(format!("node {node} is a member already, at {at}")),
            None => {}
        }
        if let Some((other, _)) = addrs.iter().find(|(id, at)| **id != node && **at == addr) {
            return Err(format!("{addr} is the address of node {other}"));
        }
        addrs.insert(node, addr.clone());
        self.transport.set_peers(addrs.clone());
        if let Err(reason) = self.connected(node).await {
            addrs.remove(&node);
            self.transport.set_peers(addrs);
            return Err(reason.of(node, &addr));
        }
        tracing::info!("node {node} at {addr} joins");
        let peer = Peer { addr };
        self.confirmed(|| self.raft.add_learner(node, peer.clone(), false)).await?;
        if let Err(reason) = self.caught_up(node).await {
            let removed = self.write(ChangeMembers::RemoveNodes(BTreeSet::from([node]))).await;
            let left = removed.err().map_or_else(String::new, |error| format!("; it is a member without a vote: {error}"));
            return Err(format!("node {node} has not caught up: {reason}{left}"));
        }
        self.write(ChangeMembers::AddVoterIds(BTreeSet::from([node]))).await?;
        self.votes(node).await?;
        tracing::info!("node {node} votes");
        Ok(())
    }

    /// Waits until a new member says that it votes, which it does when it has been without a vote for long enough.
    async fn votes(&self, node: NodeId) -> Result<(), String> {
        let began = Instant::now();
        let votes = || {
            let peer = self.transport.directory().get(node);
            peer.and_then(|peer| peer.hello).is_some_and(|hello| hello.votes)
        };
        while !votes() {
            fail_if!(began.elapsed() > VOTE_TIME, format!("node {node} is a member, and has not said yet that it votes"));
            Runtime::sleep(LOOK).await;
        }
        Ok(())
    }

    /// Waits until there is a connection to a node, which is blank or belongs to this cluster.
    async fn connected(&self, node: NodeId) -> Result<(), NotAdded> {
        let began = Instant::now();
        loop {
            let peer = self.transport.directory().get(node);
            if let Some(hello) = peer.as_ref().and_then(|peer| peer.connected_hello()) {
                // Clusters without ids cannot be told apart.
                let ours = self.transport.standing().cluster.id;
                let fits = hello.blank || (ours != 0 && hello.cluster.id == ours);
                return if fits { Ok(()) } else { Err(NotAdded::HasALog) };
            }
            if began.elapsed() > ANSWER_TIME {
                let failure = peer.and_then(|peer| peer.failure);
                let failure = failure.unwrap_or_else(|| "there is no connection to it".to_owned());
                return Err(if failure.starts_with("refused") { NotAdded::Refused(failure) } else { NotAdded::Silent(failure) });
            }
            Runtime::sleep(LOOK).await;
        }
    }

    /// Waits until a learner has nearly all of the log.
    async fn caught_up(&self, node: NodeId) -> Result<(), String> {
        let mut heard = Instant::now();
        loop {
            {
                let metrics = self.raft.metrics();
                let metrics = metrics.borrow_watched();
                let Some(replication) = &metrics.replication else {
                    return Err("this node does not lead any more".to_owned());
                };
                let has = replication.get(&node).copied().flatten().map(|at| at.index);
                if has.is_some_and(|has| has + LACK_MAX >= metrics.last_log_index.unwrap_or(0)) {
                    return Ok(());
                }
            }
            if self.transport.directory().get(node).is_some_and(|peer| peer.connected) {
                heard = Instant::now();
            } else if heard.elapsed() > LOST_TIME {
                return Err("the connection to it is lost".to_owned());
            }
            Runtime::sleep(LOOK).await;
        }
    }

    async fn remove(&self, node: NodeId) -> Result<(), String> {
        let Known { addrs, mut voters } = self.known();
        fail_if!(node == self.node, format!("node {node} leads: hand the leadership over first, with NODE HANDOVER"));
        fail_if!(!addrs.contains_key(&node), format!("node {node} is no member"));
        if voters.remove(&node) {
            let directory = self.transport.directory();
            let answers = |id: &&NodeId| **id == self.node || directory.get(**id).is_some_and(|peer| peer.connected);
            let (all, answering) = (voters.len(), voters.iter().filter(answers).count());
            if answering < all / 2 + 1 {
                return Err(format!("without node {node} there is no majority: {answering} of {all} nodes answer"));
            }
            tracing::info!("node {node} leaves");
            self.write(ChangeMembers::RemoveVoters(BTreeSet::from([node]))).await?;
        }
        self.write(ChangeMembers::RemoveNodes(BTreeSet::from([node]))).await?;
        tracing::info!("node {node} is no member any more");
        Ok(())
    }

    /// While this node leads, ends changes of the voters that were left between their two steps. Returns when openraft ends.
    pub async fn end_changes(self: Arc<Self>, changing: Arc<Semaphore>) {
        let mut metrics = self.raft.server_metrics();
        loop {
            if self.is_between() {
                // The change may be under way.
                let Ok(permit) = changing.acquire().await else { return };
                while self.is_between() && !self.first_step_is_committed() {
                    Runtime::sleep(LOOK).await;
                }
                // No voter is added: what follows is the second step.
                let ended = match self.is_between() {
                    true => {
                        tracing::info!("a change of the voters was left unfinished, and is ended");
                        self.write(ChangeMembers::AddVoterIds(BTreeSet::new())).await
                    }
                    false => Ok(()),
                };
                drop(permit);
                if let Err(reason) = ended {
                    tracing::warn!("a change of the voters that was left unfinished cannot be ended: {reason}");
                    Runtime::sleep(END_AGAIN).await;
                    continue;
                }
            }
            if metrics.changed().await.is_err() {
                return;
            }
        }
    }

    /// Whether this node leads, and a change of the voters is between its two steps.
    fn is_between(&self) -> bool {
        let metrics = self.raft.server_metrics();
        let now = metrics.borrow_watched();
        now.state.is_leader() && now.membership_config.membership().get_joint_config().len() > 1
    }

    /// Whether the first step of a change is known to be on a majority. The second one is refused before.
    fn first_step_is_committed(&self) -> bool {
        let step = self.raft.server_metrics().borrow_watched().membership_config.log_id().map(|at| at.index);
        self.raft.data_metrics().borrow_watched().last_applied.map(|at| at.index) >= step
    }

    async fn write(&self, change: ChangeMembers<NodeId, Peer>) -> Result<(), String> {
        self.confirmed(|| self.raft.change_membership(change.clone(), true)).await
    }

    /// Has a change made until a majority has confirmed it. A leader that has just not heard from a majority takes no change: it is
    /// asked again.
    async fn confirmed<R, F>(&self, change: impl Fn() -> F + Send + Sync) -> Result<(), String>
    where
        F: Future<Output = Result<R, RaftError<Types, ClientWriteError<Types>>>> + Send,
    {
        let changing = async {
            loop {
                match change().await.map(drop) {
                    Ok(()) => return Ok(()),
                    Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_))) if self.raft.is_leader() => {
                        Runtime::sleep(LOOK).await
                    }
                    Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_))) => {
                        return Err("this node does not lead any more; the change may still happen".to_owned());
                    }
                    Err(error) => return Err(error.to_string()),
                }
            }
        };
        let late = |_| "no majority has confirmed the change in time; it may still happen".to_owned();
        Runtime::timeout(CONFIRM_TIME, changing).await.map_err(late)?
    }
}
