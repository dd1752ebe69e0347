//! When a node may vote, and when blank nodes begin a cluster.
//!
//! A vote is a promise that is kept on the disk. A node *joins* from its first start on an empty folder until it votes, and a mark in
//! the folder says so. It is *blank* as long as no leader has added anything to its log. Three cases:
//!
//! - The node does not join: it votes when a lease that it may have granted before its restart has ended.
//! - It joins, and all other members are blank, each of which has said so: they begin the cluster, all with the same members. A majority
//!   would not do: if one member has never joined, and the disk of another one was lost, both are blank, and what clients were told is
//!   at the third. The mark is removed first. So a leader's majority has no marks, and can elect the next one.
//! - It joins, and another one is not blank: its disk was lost, or it is new. It must not vote: it may have promised its vote to another
//!   node, and does not know what it has confirmed. It votes once it has caught up with a leader. If the cluster was recovered from a
//!   lost majority, the node takes its epoch first.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use openraft::AsyncRuntime;
use openraft::async_runtime::WatchReceiver;

use crate::persist::disk::Disk;
use crate::quorum::epoch;
use crate::quorum::net::{Neighbours, Standing, epoch_of};
use crate::quorum::node::machine::Machine;
use crate::quorum::node::state::{SharedSnapshots, lock};
use crate::quorum::node::{Raft, run};
use crate::quorum::runtime::{Runtime, blocking};
use crate::quorum::types::{NodeId, Peer};

/// Interval between looks at what the other nodes say of themselves.
const LOOK: Duration = Duration::from_millis(50);
/// Number of leases for which a node that has lost its disk waits, so that an election that it may have taken part in has ended.
const LEASES: u32 = 10;

/// Pause before a write that failed is tried again.
const KEEP_AGAIN: Duration = Duration::from_secs(1);

/// Number of looks after which it is said for whom the node waits: at first, and from then on.
const SAID_AFTER: (u32, u32) = (20, 1200);

/// What a node begins with.
pub struct Beginning<T, D: Disk> {
    pub node: NodeId,
    pub members: BTreeMap<NodeId, String>,
    pub standing: Standing,
    /// Whether the node has no vote yet.
    pub joins: bool,
    /// Where the epoch of the cluster is kept.
    pub folder: PathBuf,
    /// Where it is kept that the node has joined.
    pub snapshots: SharedSnapshots<D>,
    pub transport: T,
    /// While it is true, the transport refuses votes.
    pub refuses: Arc<AtomicBool>,
    pub lease: Duration,
}

/// Lets the node take part in elections when it may, and begins a cluster if there is none.
pub async fn begin<D, M, T>(mut beginning: Beginning<T, D>, raft: Raft<D, M>)
where
    T: Neighbours,
    D: Disk + Send + 'static,
    D::File: Send,
    M: Machine,
{
    if beginning.joins {
        join(&mut beginning, &raft).await;
    } else {
        Runtime::sleep(beginning.lease).await;
    }
    run::admit(&beginning.refuses);
    tracing::info!("this node votes");
    if beginning.standing.blank {
        caught_up(&raft).await;
        beginning.standing.blank = false;
        beginning.transport.set_standing(beginning.standing);
    }
}

/// Waits until a node that joins may vote, or all nodes begin the cluster.
async fn join<D, M, T>(beginning: &mut Beginning<T, D>, raft: &Raft<D, M>)
where
    T: Neighbours,
    D: Disk + Send + 'static,
    D::File: Send,
    M: Machine,
{
    let Beginning { node, members, standing, folder, snapshots, transport, refuses, lease, .. } = beginning;
    for looks in 0u32.. {
        let others: Vec<_> = transport.directory().all().into_iter().filter(|peer| members.contains_key(&peer.node)).collect();
        let hellos = || others.iter().filter_map(|peer| peer.hello.as_ref());
        if hellos().any(|hello| !hello.blank) {
            tracing::info!("the cluster exists; this node has no vote before it has caught up");
            let joined = hellos().filter(|hello| !hello.blank);
            if let Some(epoch) = joined.map(|hello| epoch_of(hello.cluster)).find(|epoch| *epoch != 0)
                && epoch != epoch_of(standing.cluster)
            {
                // Nothing is received under it before it is kept.
                if let Err(reason) = epoch::write(folder, epoch) {
                    tracing::error!("The epoch of the cluster cannot be kept: {reason}");
                    Runtime::sleep(KEEP_AGAIN).await;
                    continue;
                }
                standing.cluster[8..].copy_from_slice(&epoch.to_be_bytes());
                transport.set_standing(*standing);
            }
            raft.runtime_config().elect(false);
            Runtime::sleep(*lease * LEASES).await;
            caught_up(raft).await;
            keep_vote(snapshots).await;
            raft.runtime_config().elect(true);
            return;
        }
        let missing: Vec<NodeId> =
            members.keys().copied().filter(|id| id != node && hellos().all(|hello| hello.node != *id)).collect();
        if members.contains_key(node) && missing.is_empty() {
            keep_vote(snapshots).await;
            run::admit(refuses);
            let nodes: BTreeMap<NodeId, Peer> = members.iter().map(|(id, addr)| (*id, Peer { addr: addr.clone() })).collect();
            // Another node may have begun the cluster meanwhile: then this one has its members already.
            match raft.initialize(nodes).await {
                Ok(()) => tracing::info!(nodes = members.len(), "begins a cluster"),
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

/// Removes the mark that the node joins, in as many attempts as it takes.
async fn keep_vote<D>(snapshots: &SharedSnapshots<D>)
where
    D: Disk + Send + 'static,
    D::File: Send,
{
    loop {
        let shared = Arc::clone(snapshots);
        match blocking(move || lock(&shared).joined()).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => tracing::error!("It cannot be kept that this node votes: {error}"),
            Err(error) => tracing::error!("It cannot be kept that this node votes: {error}"),
        }
        Runtime::sleep(KEEP_AGAIN).await;
    }
}

/// Waits until the node has applied what its leader has committed.
async fn caught_up<D, M>(raft: &Raft<D, M>)
where
    D: Disk + Send + 'static,
    D::File: Send,
    M: Machine,
{
    let mut metrics = raft.metrics();
    loop {
        {
            let now = metrics.borrow_watched();
            if now.current_leader.is_some() && now.last_applied.is_some() && now.last_applied >= now.cluster_committed {
                return;
            }
        }
        if metrics.changed().await.is_err() {
            return;
        }
    }
}
