//! When the other nodes are known to have followed a leader.
//!
//! openraft has such a time, too, but it is no measure of a lease: it takes the answer to one append for an answer to all appends
//! without entries that were made before it arrived, sent or not. A node that is cut off in one direction could then be taken for a
//! follower of long after its lease ended. Here, an answer proves what was true when its own request was sent, and no more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::quorum::runtime::Instant;
use crate::quorum::types::{LeaderId, NodeId, Vote};
use openraft::vote::RaftLeaderId;

/// The last request of each node's that was answered by a follower of its sender.
#[derive(Debug, Default)]
pub struct LeaseEvidence {
    nodes: Mutex<BTreeMap<NodeId, (LeaderId, Instant)>>,
}

impl LeaseEvidence {
    /// Records that a node followed a leader when it received what was sent at this moment.
    pub fn record(&self, node: NodeId, vote: &Vote, sent: Instant) {
        let leader = vote.leader_id.to_committed();
        let mut nodes = self.lock();
        let known = nodes.entry(node).or_insert((leader, sent));
        if known.0 != leader || known.1 < sent {
            *known = (leader, sent);
        }
    }

    /// The last moment at which a majority of each of these sets followed a leader. `me` always does: it is the leader.
    pub fn quorum(&self, me: NodeId, leader: LeaderId, sets: &[BTreeSet<NodeId>], now: Instant) -> Option<Instant> {
        let nodes = self.lock();
        let at = |node: &NodeId| match nodes.get(node) {
            _ if *node == me => Some(now),
            Some((of, at)) if *of == leader => Some(*at),
            _ => None,
        };
        let majority = |set: &BTreeSet<NodeId>| {
            let mut times: Vec<Option<Instant>> = set.iter().map(at).collect();
            times.sort_unstable();
            // The last moment that a majority has reached. `None` is before all moments.
            times.get((times.len().max(1) - 1) / 2).copied().flatten()
        };
        sets.iter().map(majority).min().flatten()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<NodeId, (LeaderId, Instant)>> {
        // Each change is one assignment: after a panic the entries are whole.
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_majority_counts_and_only_under_the_same_leader() {
        let acks = LeaseEvidence::default();
        let began = Instant::now();
        let at = |ms: u64| began + Duration::from_millis(ms);
        let vote = |term| Vote::new_committed(term, 1);
        let leader = vote(5).leader_id.to_committed();
        let set = |nodes: &[NodeId]| nodes.iter().copied().collect::<BTreeSet<NodeId>>();
        let quorum = |sets: &[BTreeSet<NodeId>]| acks.quorum(1, leader, sets, at(100));
        assert_eq!(quorum(&[set(&[1])]), Some(at(100)));
        assert_eq!(quorum(&[set(&[1, 2, 3])]), None);
        acks.record(2, &vote(5), at(10));
        acks.record(2, &vote(5), at(8));
        assert_eq!(quorum(&[set(&[1, 2, 3])]), Some(at(10)));
        acks.record(3, &vote(5), at(20));
        assert_eq!(quorum(&[set(&[1, 2, 3])]), Some(at(20)));
        assert_eq!(quorum(&[set(&[1, 2, 3, 4])]), Some(at(10)), "three of four");
        assert_eq!(quorum(&[set(&[1, 2, 3, 4, 5])]), Some(at(10)));
        assert_eq!(quorum(&[set(&[2, 3])]), Some(at(10)), "it need not be a member");
        assert_eq!(quorum(&[set(&[1, 2, 3]), set(&[1, 4, 5])]), None, "a majority of each");
        acks.record(2, &vote(6), at(30));
        acks.record(3, &vote(6), at(30));
        assert_eq!(quorum(&[set(&[1, 2, 3])]), None, "they have followed another leader since");
    }
}
