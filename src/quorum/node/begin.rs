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
//!   at the third. The node with the smallest number draws the cluster's id, keeps it, and begins; the others take the id from a node that
//!   has begun. Each removes its mark, so that it may vote, and only then begins: the first one at once, and the others if no leader has told
//!   them the members before their turn. So a leader's majority has no marks, and can elect the next one. A node that ends before it has
//!   voted or begun has a blank log, and joins again.
//! - It joins, and another one is not blank: its disk was lost, or it is new. It must not vote: it may have promised its vote to another
//!   node, and does not know what it has confirmed. It takes the id of the cluster, and votes once it has caught up with a leader.
//!
//! A node that joins believes what it is told at the addresses of the other members, and not who connects to it. If its members belong
//! to different clusters, it takes no id, and says so. A node that has taken an id and has received nothing since decides anew at its
//! next start: its log is blank.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use openraft::AsyncRuntime;
use openraft::async_runtime::WatchReceiver;

use crate::persist::disk::{Disk, SendDisk};
use crate::quorum::admission::{Admission, Participation};
use crate::quorum::lineage::{Belonging, draw};
use crate::quorum::net::{Hello, Network, Transport};
use crate::quorum::node::Raft;
use crate::quorum::node::application::Application;
use crate::quorum::node::regain::regain;
use crate::quorum::node::state_machine::{SharedSnapshots, lock};
use crate::quorum::node::watch;
use crate::quorum::runtime::{Runtime, blocking};
use crate::quorum::store::{Lineage, LogLoss, LogStore};
use crate::quorum::types::{ClusterId, NodeId, Peer};

/// Interval between looks at what the other nodes say of themselves.
const LOOK: Duration = Duration::from_millis(50);
/// Number of looks without anything from a leader after which a node that may have forgotten something looks for one in another way.
const QUIET: u32 = 10;
/// Number of leases for which a node that has forgotten something takes part in nothing, so that elections that it may have taken part in have
/// ended, and leaders of before them know that they lead no more.
const LEASES: u32 = 10;

/// Number of looks for which each node that begins a cluster leaves the election to the one before it, by their numbers.
const TURN_LOOKS: usize = 10;

/// Pause before a write that failed is tried again.
const KEEP_AGAIN: Duration = Duration::from_secs(1);

/// Number of looks at which a member was found that is not blank, after which those that do not answer are not waited for.
const FOUND_LOOKS: u32 = 10;

/// Number of looks after which it is said for whom the node waits: at first, and from then on.
const SAID_AFTER: (u32, u32) = (20, 1200);

/// What a node begins with.
pub struct Beginning<D: Disk> {
    pub node: NodeId,
    pub members: BTreeMap<NodeId, String>,
    /// What it may have forgotten. It has no vote yet if it is anything.
    pub forgotten: LogLoss,
    /// Which cluster it belongs to.
    pub belonging: Belonging<D>,
    /// Where it is kept that the node votes.
    pub snapshots: SharedSnapshots<D>,
    pub transport: Transport,
    /// The network for openraft.
    pub network: Network,
    pub admission: Arc<Admission>,
    pub log: LogStore,
    /// How long a lease lasts that the node may have granted before its restart.
    pub lease: Duration,
}

/// What a node takes part in at first.
pub fn admission(log: &LogStore, forgotten: LogLoss) -> Admission {
    // A node that has forgotten something may have followed another leader than the one that asks now. What a log says that is not
    // ready may not be durable.
    Admission::new(if forgotten == LogLoss::Nothing && log.is_ready() { Participation::Follows } else { Participation::Nothing })
}

/// Whether a node knows that no leader has added anything to its log.
pub fn is_blank(log: &LogStore, forgotten: LogLoss) -> bool {
    log.is_young() && forgotten != LogLoss::End
}

/// Lets the node take part in elections when it may, and begins a cluster if there is none.
pub async fn begin<D: SendDisk, M: Application>(mut beginning: Beginning<D>, raft: Raft<D, M>) {
    if !beginning.log.is_ready() {
        while !beginning.log.is_ready() {
            Runtime::sleep(LOOK).await;
        }
        tracing::info!("the log is ready: this node takes part from now on");
        if beginning.forgotten == LogLoss::Nothing {
            beginning.admission.set(Participation::Follows);
            raft.runtime_config().elect(true);
        }
    }
    match beginning.forgotten {
        LogLoss::Nothing => Runtime::sleep(beginning.lease).await,
        LogLoss::End => beginning.rejoin(&raft).await,
        LogLoss::All => beginning.join(&raft).await,
    }
    beginning.admission.set(Participation::Votes);
    beginning.transport.change_standing(|standing| standing.votes = true);
    while beginning.say() {
        Runtime::sleep(LOOK).await;
    }
    tracing::info!("this node votes");
}

impl<D: SendDisk> Beginning<D> {
    /// Tells the others how the node stands. Returns whether it is still blank.
    fn say(&mut self) -> bool {
        let blank = is_blank(&self.log, self.forgotten);
        self.transport.change_standing(|standing| standing.blank = blank);
        blank
    }

    /// What is said at the addresses of the other members.
    fn others(&self) -> Vec<Hello> {
        let others = self.members.keys().filter(|id| **id != self.node);
        others.filter_map(|id| self.transport.directory().get(*id)?.connected_hello().cloned()).collect()
    }

    /// Waits until a node that joins may vote, or all nodes begin the cluster.
    async fn join<M: Application>(&mut self, raft: &Raft<D, M>) {
        // Number of looks since another member was found that is not blank.
        let mut found = 0;
        let mut torn = false;
        for looks in 0u32.. {
            let others = self.others();
            let is_missing = |id: &NodeId| *id != self.node && others.iter().all(|hello| hello.node != *id);
            let missing: Vec<NodeId> = self.members.keys().copied().filter(is_missing).collect();
            let exists = others.iter().any(|hello| !hello.blank);
            found += u32::from(exists);
            match ids(&others) {
                Err(_) if torn => {}
                Err(reason) => {
                    torn = true;
                    tracing::error!("this node takes part in nothing, because its peers belong to different clusters: {reason}");
                }
                // Those that do not answer yet may belong to another cluster.
                Ok(id) if exists && (missing.is_empty() || found > FOUND_LOOKS) => {
                    tracing::info!("the cluster exists; this node has no vote before it has caught up");
                    if let Some(id) = id {
                        self.belonging.set(Lineage::of(id)).await;
                        tracing::info!("this node belongs to cluster {id:016x}");
                    }
                    Runtime::sleep(self.lease * LEASES).await;
                    self.admission.set(Participation::Follows);
                    self.catch_up(raft).await;
                    self.keep_vote().await;
                    raft.runtime_config().elect(true);
                    return;
                }
                Ok(id) if !exists && self.members.contains_key(&self.node) && missing.is_empty() => {
                    // One of them draws the id. If it had begun and has lost its disk since, another one may know the id.
                    let draws = self.members.keys().next() == Some(&self.node);
                    if let Some(id) = id.or_else(|| draws.then(draw)) {
                        return self.begin_cluster(raft, id).await;
                    }
                    self.transport.inquire();
                }
                Ok(_) => {}
            }
            if looks == SAID_AFTER.0 || looks > 0 && looks.is_multiple_of(SAID_AFTER.1) {
                let missing: Vec<String> = missing.iter().map(ToString::to_string).collect();
                tracing::info!("a new cluster begins when all of its nodes have answered: waits for node {}", missing.join(", "));
            }
            Runtime::sleep(LOOK).await;
        }
    }

    /// Begins a cluster with this id, as all of its nodes do: those after the first one only if they hear of no leader meanwhile.
    async fn begin_cluster<M: Application>(&mut self, raft: &Raft<D, M>, id: ClusterId) {
        self.belonging.set(Lineage::of(id)).await;
        self.keep_vote().await;
        // Who begins stands for election at once. If several did so, one could lead, and be deposed by another one in the same term.
        self.admission.set(Participation::Votes);
        let before = self.members.keys().take_while(|id| **id != self.node).count();
        for _ in 0..before * TURN_LOOKS {
            if !watch::status(raft, &self.log).members.is_empty() {
                break;
            }
            Runtime::sleep(LOOK).await;
        }
        raft.runtime_config().elect(true);
        let nodes = self.members.iter().map(|(id, addr)| (*id, Peer { addr: addr.clone() }));
        // Another node may have begun the cluster meanwhile: then this one has its members already.
        match raft.initialize(nodes.collect::<BTreeMap<_, _>>()).await {
            Ok(()) => tracing::info!(nodes = self.members.len(), id = format!("{id:016x}"), "begins a cluster"),
            Err(error) => tracing::debug!(%error, "the cluster has begun already"),
        }
    }

    /// Waits until a node whose log was cut may vote.
    async fn rejoin<M: Application>(&mut self, raft: &Raft<D, M>) {
        tracing::warn!("the end of the log was cut; this node has no vote before it has caught up");
        Runtime::sleep(self.lease * LEASES).await;
        self.admission.set(Participation::Follows);
        let (mut target, mut appends, mut quiet) = (None, 0, 0);
        while !self.has_caught_up(raft, &mut target) && watch::status(raft, &self.log).leads.is_none() {
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

    async fn catch_up<M: Application>(&mut self, raft: &Raft<D, M>) {
        let mut target = None;
        while !self.has_caught_up(raft, &mut target) {
            // A cluster without an id may get one meanwhile.
            if self.log.lineage().id == 0
                && let Ok(Some(id)) = ids(&self.others())
            {
                self.belonging.set(Lineage::of(id)).await;
            }
            self.say();
            Runtime::sleep(LOOK).await;
        }
    }

    /// Whether the node has applied everything that was committed when it began to follow, which is the target. Only a leader that has
    /// committed an entry of its own knows what that is. What openraft knows from before a restart would not do.
    fn has_caught_up<M: Application>(&self, raft: &Raft<D, M>, target: &mut Option<u64>) -> bool {
        *target = target.or(self.admission.heard());
        let applied = raft.data_metrics().borrow_watched().last_applied.map(|last| last.index);
        target.is_some() && applied >= *target
    }
}

/// The id that other members have of their cluster. Blank ones count if they have begun it.
///
/// # Errors
/// In words: they belong to different clusters.
fn ids(others: &[Hello]) -> Result<Option<ClusterId>, String> {
    let mut having = others.iter().filter(|hello| hello.cluster.id != 0 && (hello.votes || !hello.blank));
    let Some(first) = having.next() else { return Ok(None) };
    let id = first.cluster.id;
    match having.find(|hello| hello.cluster.id != id) {
        Some(other) => Err(format!("node {} to {id:016x}, and node {} to {:016x}", first.node, other.node, other.cluster.id)),
        None => Ok(Some(id)),
    }
}
