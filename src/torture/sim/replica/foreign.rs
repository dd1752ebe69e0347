//! The files of a node of another cluster, which has the same number and the same members: the worst that can be at a node's address.
//!
//! ```text
//!   log of the node:     … entry 1, 2, 3, 4, 5, 6      cluster A
//!   log of the other one: … entry 1, 2, 3, x, x, x, x, x …   cluster B, a later term
//! ```
//!
//! Its log is longer and of a later term. If one of the cluster's nodes took it for the member, it would be elected, and all that was
//! agreed on behind entry 3 would be overwritten.

use std::io;

use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::type_config::TypeConfigExt;
use openraft::{EntryPayload, RaftLogReader};

use crate::persist::disk::Disk;
use crate::quorum::store::{Lineage, LogStore, Options, Worker};
use crate::quorum::types::{Batch, ClusterId, ClusterTime, Entry, LeaderId, LogId, NodeId, Types, Vote};
use crate::torture::random::Random;

/// Maximum number of entries at the end of the log that the other cluster has not, and of those that it has instead.
const ENTRIES: (u64, u64) = (20, 200);
/// How many terms the other cluster is ahead at most.
const TERMS: u64 = 20;

/// Makes the log of a node one of another cluster, whose id it returns. `place` decides on what is in it. Nothing changes if the log is blank.
///
/// # Errors
/// In words: the log cannot be opened, or the disk fails.
pub fn make_foreign<D: Disk>(disk: D, options: Options, node: NodeId, place: u64) -> Result<ClusterId, String> {
    let random = &mut Random::new(place, 0, 0);
    let (mut log, mut worker) = LogStore::open(disk, options).map_err(|error| error.to_string())?;
    let found = (log.lineage().id, now(log.get_log_state(), &mut worker)?, now(log.read_vote(), &mut worker)?);
    let (id, state, Some(vote)) = found else { return Ok(found.0) };
    let Some(last) = state.last_log_id else { return Ok(id) };
    now(log.belong(Lineage::of(!id)), &mut worker)?;
    // The first entry, which has the members, stays.
    let first = state.last_purged_log_id.map_or(0, |purged| purged.index + 1);
    let kept = last.index.saturating_sub(random.below(ENTRIES.0)).max(first);
    if kept < last.index {
        let after = now(log.next_entries(kept, kept + 1), &mut worker)?.first().map(|entry| entry.log_id);
        now(log.truncate_after(after), &mut worker)?;
    }
    let leader = LeaderId { term: vote.leader_id.term.max(last.leader_id.term) + 1 + random.below(TERMS), node_id: node };
    now(log.save_vote(&Vote::new_committed(leader.term, node)), &mut worker)?;
    let first = kept.min(last.index) + 1;
    let entries = (first..).zip(1..=ENTRIES.0 + random.below(ENTRIES.1)).map(|(index, number)| {
        // Only time passes in the other cluster.
        let batch = Batch { origin: place, number, time: ClusterTime::default(), bytes: bytes::Bytes::new() };
        Entry { log_id: LogId::new(leader, index), payload: EntryPayload::Normal(batch) }
    });
    let (flushed, _) = Types::oneshot();
    now(log.append(entries.collect::<Vec<_>>(), IOFlushed::signal(flushed)), &mut worker)?;
    worker.turn();
    Ok(!id)
}

/// Carries out an operation of the log: the worker has done its part as soon as it has had a turn.
fn now<T, D: Disk>(operation: impl Future<Output = io::Result<T>>, worker: &mut Worker<D>) -> Result<T, String> {
    let mut operation = std::pin::pin!(operation);
    for _ in 0..2 {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        if let std::task::Poll::Ready(done) = operation.as_mut().poll(&mut context) {
            return done.map_err(|error| error.to_string());
        }
        worker.turn();
    }
    Err("the disk does not take what is written".to_owned())
}
