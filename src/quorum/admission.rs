//! What a node may take part in, of what the others ask of it.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use openraft::raft::AppendEntriesRequest;

use crate::quorum::types::Types;

/// How far a node takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Part {
    /// In nothing. It may have forgotten whose leader it follows.
    Nothing,
    /// It takes entries and snapshots, and has no vote.
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
}

impl Admission {
    /// A node that takes part like this.
    pub fn new(part: Part) -> Admission {
        Admission { part: AtomicU8::new(part as u8), heard: AtomicU64::new(0) }
    }

    /// Changes the part.
    pub fn set(&self, part: Part) {
        self.part.store(part as u8, Ordering::Relaxed);
    }

    /// Whether the node takes part like this, or more.
    pub fn permits(&self, part: Part) -> bool {
        self.part.load(Ordering::Relaxed) >= part as u8
    }

    /// Notes what a leader says is committed, if it has committed an entry of its own: then it knows of everything that is.
    pub fn hear(&self, append: &AppendEntriesRequest<Types>) {
        if let Some(committed) = append.leader_commit.filter(|committed| committed.leader_id.term == append.vote.leader_id.term) {
            self.heard.fetch_max(committed.index + 1, Ordering::Relaxed);
        }
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
        let admission = Admission::new(Part::Follows);
        assert!(admission.permits(Part::Follows) && !admission.permits(Part::Votes));
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
