//! Recovery from a lost majority: makes the node of a folder the only member of its cluster.
//!
//! ```text
//!   folder of a stopped node ─▶ another id of the cluster ─▶ log: … the old entries │ a membership of this node alone
//! ```
//!
//! The node leads when it is started, and commits all entries that it has. What the majority had and this node had not is lost: it is
//! not known what that was. Raft permits no such step: another node that is still alive could have promised something else. The new
//! id keeps it away: for the nodes that are left behind, the recovered cluster is another one. A node that is left behind and reaches the
//! recovered one serves nothing any more.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::type_config::TypeConfigExt;
use openraft::{EntryPayload, RaftLogReader};

use crate::persist::disk::{Disk, SendDisk};
use crate::quorum::epoch;
use crate::quorum::store::{FolderLock, Lineage, LogLoss, LogStore, LogThread, Options, Owner, Snapshots};
use crate::quorum::types::{ClusterId, Entry, LeaderId, LogId, NodeId, Peer, Types, Vote};

/// Maximum number of entries read at a time.
const ENTRIES_MAX: u64 = 10_000;

/// What a folder has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The members that this node knows last, with their addresses, and which of them vote.
    pub members: BTreeMap<NodeId, (String, bool)>,
    /// The last entry that this node has.
    pub last: LogId,
    /// The last entry that it knows to be on a majority; it may be later in fact.
    pub committed: Option<u64>,
    /// The id of the cluster, or 0 if it has none.
    pub cluster: ClusterId,
    /// What the node may have forgotten: it has not caught up since.
    pub forgotten: LogLoss,
}

/// A folder that is to be recovered. Nothing is changed before [`Recovery::carry_out`].
pub struct Recovery<D: Disk> {
    snapshots: Snapshots<D>,
    log: LogStore,
    thread: LogThread,
    owner: Owner,
    found: Found,
}

impl<D: SendDisk> Recovery<D> {
    /// Opens the folder of a stopped node, and reads what it has.
    ///
    /// # Errors
    /// In words: the node runs, the files are damaged or another node's, there is nothing, or the node is no member that votes.
    pub async fn open(disks: (D, D), folder: &Path, owner: Owner) -> Result<Recovery<D>, String> {
        let describe = |error: &dyn std::fmt::Display| format!("{}: {error}", folder.display());
        let lock = FolderLock::acquire(folder)?;
        let (mut log, worker) = LogStore::open(disks.0, Options::new(owner, Some(lock))).map_err(|error| describe(&error))?;
        let mut disk = disks.1;
        let cluster = match log.lineage().id {
            0 => epoch::read(&mut disk).map_err(|error| describe(&error))?,
            id => id,
        };
        let mut snapshots = Snapshots::open(disk, folder, owner).map_err(|error| describe(&error))?;
        snapshots.belong(cluster).map_err(|error| describe(&error))?;
        let state = log.get_log_state().await.map_err(|error| describe(&error))?;
        let last = state.last_log_id.ok_or_else(|| describe(&"the node has no log: there is nothing to recover"))?;
        let mut membership = snapshots.current().map(|(meta, _)| meta.last_membership.membership().clone());
        let mut next = state.last_purged_log_id.map_or(0, |purged| purged.index + 1);
        let thread = worker.spawn(&log).map_err(|error| describe(&error))?;
        while next <= last.index {
            let end = (next + ENTRIES_MAX).min(last.index + 1);
            let entries = log.try_get_log_entries(next..end).await.map_err(|error| describe(&error))?;
            for entry in entries {
                if let EntryPayload::Membership(of) = entry.payload {
                    membership = Some(of);
                }
            }
            next = end;
        }
        let membership = membership.ok_or_else(|| describe(&"the log has no members"))?;
        let voters: BTreeSet<NodeId> = membership.voter_ids().collect();
        let members: BTreeMap<_, _> =
            membership.nodes().map(|(id, peer)| (*id, (peer.addr.clone(), voters.contains(id)))).collect();
        if !voters.contains(&owner.node) {
            return Err(describe(&format!("node {} has no vote: recover a node that has one", owner.node)));
        }
        let committed = log.read_committed().await.map_err(|error| describe(&error))?.map(|at| at.index);
        let forgotten = snapshots.forgotten(&log).map_err(|error| describe(&error))?;
        let found = Found { members, last, committed, cluster, forgotten };
        Ok(Recovery { snapshots, log, thread, owner, found })
    }

    /// What the folder has.
    pub fn found(&self) -> &Found {
        &self.found
    }

    /// Makes the node the only member of a cluster with another id, which is not 0.
    ///
    /// # Errors
    /// In words: the system's. The step can be repeated.
    pub async fn carry_out(self, folder: &Path, id: ClusterId) -> Result<(), String> {
        let describe = |error: &dyn std::fmt::Display| format!("{}: {error}", folder.display());
        let Recovery { mut snapshots, mut log, thread, owner, found } = self;
        // First: if this is all that happens, the node is kept away from the others.
        let parent = if found.cluster == 0 { Lineage::UNNAMED } else { found.cluster };
        // A snapshot without an id belongs to either cluster.
        snapshots.relabel(0).map_err(|error| describe(&error))?;
        log.belong(Lineage { parent, ..Lineage::of(id) }).await.map_err(|error| describe(&error))?;
        snapshots.relabel(id).map_err(|error| describe(&error))?;
        snapshots.joined().map_err(|error| describe(&error))?;
        let node = owner.node;
        let voted = log.read_vote().await.map_err(|error| describe(&error))?;
        let term = voted.map_or(0, |vote| vote.leader_id.term).max(found.last.leader_id.term) + 1;
        log.save_vote(&Vote::new_committed(term, node)).await.map_err(|error| describe(&error))?;
        let peer = Peer { addr: found.members.get(&node).map(|(addr, _)| addr.clone()).unwrap_or_default() };
        let members = openraft::Membership::new(vec![BTreeSet::from([node])], BTreeMap::from([(node, peer)]));
        let payload = EntryPayload::Membership(members.map_err(|error| describe(&error))?);
        let entry = Entry { log_id: LogId::new(LeaderId { term, node_id: node }, found.last.index + 1), payload };
        let (flushed, durable) = Types::oneshot();
        log.append([entry], IOFlushed::signal(flushed)).await.map_err(|error| describe(&error))?;
        let durable = durable.await.map_err(|_| describe(&"the log has ended"))?;
        durable.map_err(|error| describe(&error))?;
        tokio::task::spawn_blocking(move || thread.close())
            .await
            .map_err(|error| describe(&error))?
            .map_err(|error| describe(&error))
    }
}
