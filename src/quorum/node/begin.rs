//! When a node may vote, and when blank nodes begin a cluster.
//!
//! A vote is a promise that is kept on the disk. Three cases:
//!
//! - The node has a log: it votes when a lease that it may have granted before its restart has ended.
//! - The node is blank, and so are enough others for a majority: they begin the cluster, all with the same members.
//! - The node is blank and another one is not: its disk was lost, or it is new. It must not vote: it may have promised its vote to
//!   another node, and does not know what it has confirmed. It votes once it has caught up with a leader. If the cluster was recovered
//!   from a lost majority, the node takes its epoch first.

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
use crate::quorum::node::{Raft, run};
use crate::quorum::runtime::Runtime;
use crate::quorum::types::{NodeId, Peer};

/// Interval between looks at what the other nodes say of themselves.
const LOOK: Duration = Duration::from_millis(50);
/// Number of leases for which a node that has lost its disk waits, so that an election that it may have taken part in has ended.
const LEASES: u32 = 10;

/// Pause before a write that failed is tried again.
const KEEP_AGAIN: Duration = Duration::from_secs(1);

/// What a node begins with.
pub struct Beginning<T> {
    pub node: NodeId,
    pub members: BTreeMap<NodeId, String>,
    pub standing: Standing,
    /// Where the epoch of the cluster is kept.
    pub folder: PathBuf,
    pub transport: T,
    /// While it is true, the transport refuses votes.
    pub refuses: Arc<AtomicBool>,
    pub lease: Duration,
}

/// Lets the node take part in elections when it may, and begins a cluster if there is none.
pub async fn begin<D, M, T>(beginning: Beginning<T>, raft: Raft<D, M>)
where
    T: Neighbours,
    D: Disk + Send + 'static,
    D::File: Send,
    M: Machine,
{
    let Beginning { node, members, mut standing, folder, transport, refuses, lease } = beginning;
    if !standing.blank {
        Runtime::sleep(lease).await;
        run::admit(&refuses);
        tracing::info!("this node votes");
        return;
    }
    loop {
        let others: Vec<_> = transport.directory().all().into_iter().filter(|peer| members.contains_key(&peer.node)).collect();
        let blank =
            |blank: bool| others.iter().filter(|peer| peer.hello.as_ref().is_some_and(|hello| hello.blank == blank)).count();
        if blank(false) > 0 {
            tracing::info!("the cluster exists; this node has no vote before it has caught up");
            let hellos = others.iter().filter_map(|peer| peer.hello.as_ref().filter(|hello| !hello.blank));
            if let Some(epoch) = hellos.map(|hello| epoch_of(hello.cluster)).find(|epoch| *epoch != 0)
                && epoch != epoch_of(standing.cluster)
            {
                // Nothing is received under it before it is kept.
                if let Err(reason) = epoch::write(&folder, epoch) {
                    tracing::error!("The epoch of the cluster cannot be kept: {reason}");
                    Runtime::sleep(KEEP_AGAIN).await;
                    continue;
                }
                standing.cluster[8..].copy_from_slice(&epoch.to_be_bytes());
                transport.set_standing(standing);
            }
            raft.runtime_config().elect(false);
            Runtime::sleep(lease * LEASES).await;
            caught_up(&raft).await;
            raft.runtime_config().elect(true);
            break;
        }
        if members.contains_key(&node) && (blank(true) + 1) * 2 > members.len() {
            run::admit(&refuses);
            let nodes: BTreeMap<NodeId, Peer> = members.iter().map(|(id, addr)| (*id, Peer { addr: addr.clone() })).collect();
            // Another node may have begun the cluster meanwhile: then this one has its members already.
            match raft.initialize(nodes).await {
                Ok(()) => tracing::info!(nodes = members.len(), "begins a cluster"),
                Err(error) => tracing::debug!(%error, "the cluster has begun already"),
            }
            caught_up(&raft).await;
            break;
        }
        Runtime::sleep(LOOK).await;
    }
    run::admit(&refuses);
    tracing::info!("this node votes");
    standing.blank = false;
    transport.set_standing(standing);
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
