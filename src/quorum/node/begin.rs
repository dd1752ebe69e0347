//! When a node may vote, and when blank nodes begin a cluster.
//!
//! A node whose disk was too full at its start to make its log ready takes part in nothing until there is space.
//!
//! A vote is a promise that is kept on the disk. A node *joins* from its first start on an empty folder until it votes, and a mark in
//! the folder says so. It is *blank* as long as no leader has added anything to its log. Four cases:
//!
//! - The node has forgotten nothing: it votes when a lease that it may have granted before its restart has ended.
//! - The end of its log was cut: another mark says so. It votes once it has caught up with a leader; see `regain` for when there is none.
//! - It joins, and all other members are blank, each of which has said so: they begin the cluster, all with the same members. A majority
//!   would not do: if one member has never joined, and the disk of another one was lost, both are blank, and what clients were told is
//!   at the third. The mark is removed first. So a leader's majority has no marks, and can elect the next one.
//! - It joins, and another one is not blank: its disk was lost, or it is new. It must not vote: it may have promised its vote to another
//!   node, and does not know what it has confirmed. It votes once it has caught up with a leader. If the cluster was recovered from a
//!   lost majority, the node takes its epoch first.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use openraft::async_runtime::WatchReceiver;
use openraft::network::NetSnapshot;
use openraft::{AsyncRuntime, RaftNetworkFactory};

use crate::persist::disk::Disk;
use crate::quorum::admission::{Admission, Part};
use crate::quorum::epoch;
use crate::quorum::net::{Neighbours, Standing, epoch_of};
use crate::quorum::node::Raft;
use crate::quorum::node::machine::Machine;
use crate::quorum::node::regain::regain;
use crate::quorum::node::state::{SharedSnapshots, lock};
use crate::quorum::node::watch;
use crate::quorum::runtime::{Runtime, blocking};
use crate::quorum::store::{Forgotten, LogStore};
use crate::quorum::types::{NodeId, Peer, SnapshotFile, Types};

/// Interval between looks at what the other nodes say of themselves.
const LOOK: Duration = Duration::from_millis(50);
/// Number of looks without anything from a leader after which a node that may have forgotten something looks for one in another way.
const QUIET: u32 = 10;
/// Number of leases for which a node that has forgotten something takes part in nothing, so that elections that it may have taken part in have
/// ended, and leaders of before them know that they lead no more.
const LEASES: u32 = 10;

/// Pause before a write that failed is tried again.
const KEEP_AGAIN: Duration = Duration::from_secs(1);

/// Number of looks after which it is said for whom the node waits: at first, and from then on.
const SAID_AFTER: (u32, u32) = (20, 1200);

/// What a node begins with.
pub struct Beginning<T, N, D: Disk> {
    pub node: NodeId,
    pub members: BTreeMap<NodeId, String>,
    pub standing: Standing,
    /// What it may have forgotten. It has no vote yet if it is anything.
    pub forgotten: Forgotten,
    /// Where the epoch of the cluster is kept.
    pub folder: PathBuf,
    /// Where it is kept that the node votes.
    pub snapshots: SharedSnapshots<D>,
    pub transport: T,
    /// The network for openraft.
    pub network: N,
    pub admission: Arc<Admission>,
    pub log: LogStore,
    /// How long a lease lasts that the node may have granted before its restart.
    pub lease: Duration,
}

/// What a node takes part in at first.
pub fn admission(log: &LogStore, forgotten: Forgotten) -> Admission {
    // A node that has forgotten something may have followed another leader than the one that asks now. What a log says that is not
    // ready may not be durable.
    Admission::new(if forgotten == Forgotten::Nothing && log.is_ready() { Part::Follows } else { Part::Nothing })
}

/// Whether a node knows that no leader has added anything to its log.
pub fn is_blank(log: &LogStore, forgotten: Forgotten) -> bool {
    log.is_young() && forgotten != Forgotten::End
}

/// Lets the node take part in elections when it may, and begins a cluster if there is none.
pub async fn begin<D, M, T, N>(mut beginning: Beginning<T, N, D>, raft: Raft<D, M>)
where
    T: Neighbours,
    N: RaftNetworkFactory<Types, Network: NetSnapshot<Types, SnapshotData = SnapshotFile>>,
    D: Disk + Send + 'static,
    D::File: Send,
    M: Machine,
{
    if !beginning.log.is_ready() {
        while !beginning.log.is_ready() {
            Runtime::sleep(LOOK).await;
        }
        tracing::info!("the log is ready: this node takes part from now on");
        if beginning.forgotten == Forgotten::Nothing {
            beginning.admission.set(Part::Follows);
            raft.runtime_config().elect(true);
        }
    }
    match beginning.forgotten {
        Forgotten::Nothing => Runtime::sleep(beginning.lease).await,
        Forgotten::End => beginning.rejoin(&raft).await,
        Forgotten::All => beginning.join(&raft).await,
    }
    beginning.admission.set(Part::Votes);
    beginning.standing.votes = true;
    while beginning.say() {
        Runtime::sleep(LOOK).await;
    }
    tracing::info!("this node votes");
}

impl<T, N, D> Beginning<T, N, D>
where
    T: Neighbours,
    N: RaftNetworkFactory<Types, Network: NetSnapshot<Types, SnapshotData = SnapshotFile>>,
    D: Disk + Send + 'static,
    D::File: Send,
{
    /// Tells the others how the node stands. Returns whether it is still blank.
    fn say(&mut self) -> bool {
        self.standing.blank = is_blank(&self.log, self.forgotten);
        self.transport.set_standing(self.standing);
        self.standing.blank
    }

    /// Waits until a node that joins may vote, or all nodes begin the cluster.
    async fn join<M: Machine>(&mut self, raft: &Raft<D, M>) {
        for looks in 0u32.. {
            let known = self.transport.directory().all();
            let others: Vec<_> = known
                .iter()
                .filter(|peer| self.members.contains_key(&peer.node) && (peer.connected || peer.inbound > 0))
                .filter_map(|peer| peer.hello.as_ref())
                .collect();
            if others.iter().any(|hello| !hello.blank) {
                tracing::info!("the cluster exists; this node has no vote before it has caught up");
                let epoch =
                    others.iter().filter(|hello| !hello.blank).map(|hello| epoch_of(hello.cluster)).find(|epoch| *epoch != 0);
                if let Some(epoch) = epoch.filter(|epoch| *epoch != epoch_of(self.standing.cluster)) {
                    // Nothing is received under it before it is kept.
                    if let Err(reason) = epoch::write(&self.folder, epoch) {
                        tracing::error!("The epoch of the cluster cannot be kept: {reason}");
                        Runtime::sleep(KEEP_AGAIN).await;
                        continue;
                    }
                    self.standing.cluster[8..].copy_from_slice(&epoch.to_be_bytes());
                    self.say();
                }
                Runtime::sleep(self.lease * LEASES).await;
                self.admission.set(Part::Follows);
                self.catch_up(raft).await;
                self.keep_vote().await;
                raft.runtime_config().elect(true);
                return;
            }
            let is_missing = |id: &NodeId| *id != self.node && others.iter().all(|hello| hello.node != *id);
            let missing: Vec<NodeId> = self.members.keys().copied().filter(is_missing).collect();
            if self.members.contains_key(&self.node) && missing.is_empty() {
                self.keep_vote().await;
                raft.runtime_config().elect(true);
                let nodes = self.members.iter().map(|(id, addr)| (*id, Peer { addr: addr.clone() }));
                // Another node may have begun the cluster meanwhile: then this one has its members already.
                match raft.initialize(nodes.collect::<BTreeMap<_, _>>()).await {
                    Ok(()) => tracing::info!(nodes = self.members.len(), "begins a cluster"),
                    Err(error) => tracing::debug!(%error, "the cluster has begun already"),
                }
                return;
            }
            if looks == SAID_AFTER.0 || looks > 0 && looks.is_multiple_of(SAID_AFTER.1) {
                let missing: Vec<String> = missing.iter().map(ToString::to_string).collect();
                tracing::info!("a new cluster begins when all of its nodes have answered: waits for node {}", missing.join(", "));
            }
            Runtime::sleep(LOOK).await;
        }
    }

    /// Waits until a node whose log was cut may vote.
    async fn rejoin<M: Machine>(&mut self, raft: &Raft<D, M>) {
        tracing::warn!("the end of the log was cut; this node has no vote before it has caught up");
        Runtime::sleep(self.lease * LEASES).await;
        self.admission.set(Part::Follows);
        let (mut target, mut appends, mut quiet) = (None, 0, 0);
        while !self.has_caught_up(raft, &mut target) && watch::status(raft).leads.is_none() {
            self.say();
            quiet = if self.admission.appends() == appends { quiet + 1 } else { 0 };
            appends = self.admission.appends();
            if quiet >= QUIET {
                let least = regain(raft, &mut self.network, self.node).await;
                self.admission.set_least(least);
            }
            Runtime::sleep(LOOK).await;
        }
        self.keep_vote().await;
        raft.runtime_config().elect(true);
    }

    /// Removes the mark that the node has no vote, in as many attempts as it takes.
    async fn keep_vote(&self) {
        loop {
            let shared = Arc::clone(&self.snapshots);
            let failure = match blocking(move || lock(&shared).joined()).await {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error.to_string(),
                Err(error) => error.to_string(),
            };
            tracing::error!("It cannot be kept that this node votes: {failure}");
            Runtime::sleep(KEEP_AGAIN).await;
        }
    }

    async fn catch_up<M: Machine>(&mut self, raft: &Raft<D, M>) {
        let mut target = None;
        while !self.has_caught_up(raft, &mut target) {
            self.say();
            Runtime::sleep(LOOK).await;
        }
    }

    /// Whether the node has applied everything that was committed when it began to follow, which is the target. Only a leader that has
    /// committed an entry of its own knows what that is. What openraft knows from before a restart would not do.
    fn has_caught_up<M: Machine>(&self, raft: &Raft<D, M>, target: &mut Option<u64>) -> bool {
        *target = target.or(self.admission.heard());
        let applied = raft.data_metrics().borrow_watched().last_applied.map(|last| last.index);
        target.is_some() && applied >= *target
    }
}
