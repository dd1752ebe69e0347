//! What a node may take part in, of what the others ask of it.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use openraft::raft::{AppendEntriesRequest, VoteRequest};

use crate::quorum::types::{LogId, Types};

/// How far a node takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Participation {
    /// In nothing. It may have forgotten whose leader it follows.
    Nothing,
    /// It takes entries and snapshots, says what it has, and has no vote. See [`Admission::set_least`] for one exception.
    Follows,
    /// In all.
    Votes,
}

/// The part of a node, which changes while it runs, and what it has heard of its leader.
#[derive(Debug)]
pub struct Admission {
    part: AtomicU8,
    /// One more than the largest index that a leader has said is committed, or 0.
    heard: AtomicU64,
    /// Number of appends.
    appends: AtomicU64,
    /// See [`Admission::set_least`].
    least: Mutex<Option<LogId>>,
}

impl Admission {
    /// A node that takes part like this.
    pub fn new(part: Participation) -> Admission {
        Admission {
            part: AtomicU8::new(part as u8),
            heard: AtomicU64::new(0),
            appends: AtomicU64::new(0),
            least: Mutex::new(None),
        }
    }

    /// Changes the part.
    pub fn set(&self, part: Participation) {
        self.part.store(part as u8, Ordering::Relaxed);
    }

    /// Whether the node takes part like this, or more.
    pub fn permits(&self, part: Participation) -> bool {
        self.part.load(Ordering::Relaxed) >= part as u8
    }

    /// While the node only follows, gives its vote all the same to nodes that have this entry or a later one; with `None`, to none.
    pub fn set_least(&self, least: Option<LogId>) {
        *self.least.lock().unwrap_or_else(PoisonError::into_inner) = least;
    }

    /// Whether the node may give its vote. If not, it may say what it has.
    pub fn gives_vote(&self, request: &VoteRequest<Types>) -> bool {
        let least = *self.least.lock().unwrap_or_else(PoisonError::into_inner);
        self.permits(Participation::Votes) || least.is_some() && request.last_log_id >= least
    }

    /// Notes what a leader says is committed, if it has committed an entry of its own: then it knows of everything that is.
    pub fn hear(&self, append: &AppendEntriesRequest<Types>) {
        self.appends.fetch_add(1, Ordering::Relaxed);
        if let Some(committed) = append.leader_commit.filter(|committed| committed.leader_id.term == append.vote.leader_id.term) {
            self.heard.fetch_max(committed.index + 1, Ordering::Relaxed);
        }
    }

    /// Number of requests to append that were received, heartbeats among them.
    pub fn appends(&self) -> u64 {
        self.appends.load(Ordering::Relaxed)
    }

    /// The largest index that is known to be committed by what was heard.
    pub fn heard(&self) -> Option<u64> {
        self.heard.load(Ordering::Relaxed).checked_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use openraft::impls::leader_id_adv::LeaderId;

    use super::*;
    use crate::quorum::types::{LogId, Vote};

    #[test]
    fn only_a_leader_that_has_committed_an_entry_of_its_own_is_heard() {
        let admission = Admission::new(Participation::Follows);
        assert!(admission.permits(Participation::Follows) && !admission.permits(Participation::Votes));
        let append = |term: u64, committed: Option<(u64, u64)>| AppendEntriesRequest::<Types> {
            vote: Vote::new_committed(term, 1),
            prev_log_id: None,
            entries: Vec::new(),
            leader_commit: committed.map(|(term, index)| LogId::new(LeaderId { term, node_id: 1 }, index)),
        };
        admission.hear(&append(3, None));
        admission.hear(&append(3, Some((2, 9))));
        assert_eq!(admission.heard(), None);
        admission.hear(&append(3, Some((3, 0))));
        assert_eq!(admission.heard(), Some(0));
        admission.hear(&append(3, Some((3, 7))));
        admission.hear(&append(3, Some((3, 6))));
        assert_eq!(admission.heard(), Some(7));
    }
}
