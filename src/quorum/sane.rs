//! Refuses messages that no node of ours sends, before openraft sees them.
//!
//! openraft trusts the nodes that it talks to. A vote in the last term there is ends all elections, a gap between entries ends the
//! process, and an append in the name of another node takes the leadership. Whoever is behind the handshake could send those.
//!
//! | message | what holds of it |
//! | --- | --- |
//! | each request | its vote is the sender's own, and its term is at most [`term_max`] |
//! | append | its entries follow each other and what is before them; no entry is later than its vote; a membership is whole |
//! | snapshot | it has an entry, which is not later than its vote; its membership is whole |
//! | answer | its term is at most [`term_max`]; what it says is stored was sent |
//!
//! The largest term grows with time. A fixed one could be used up by one message, and would end elections for ever. One above the term
//! of the receiver would let a stranger move one node so far ahead that the others refuse it.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use openraft::EntryPayload;
use openraft::entry::RaftEntry;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, TransferLeaderRequest, VoteRequest, VoteResponse};

use crate::quorum::types::{LogId, Membership, NodeId, Peer, SnapshotMeta, Types, Vote};

/// The largest term at least, whatever the system clock shows: the unix time in milliseconds when this was written.
pub const TERM_FLOOR: u64 = 1_795_000_000_000;

/// The largest index of an entry. With a million entries a second, a log gets there in two thousand years.
pub const INDEX_MAX: u64 = 1 << 56;

/// Maximum number of nodes in a membership.
const NODES_MAX: usize = 1_000;

/// Maximum length in bytes of a node's address.
const ADDRESS_MAX: usize = 300;

/// What is wrong with a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nonsense(pub String);

impl fmt::Display for Nonsense {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a message that makes no sense: {}", self.0)
    }
}

impl std::error::Error for Nonsense {}

/// Whether a message makes sense.
pub type Checked = Result<(), Nonsense>;

/// Expects that a message makes sense.
pub fn expect(holds: bool, wrong: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(Nonsense(wrong())) }
}

/// The largest term at a unix time in milliseconds: that time. Nodes elect leaders a few times a second, so that none gets there by
/// itself, and one that was moved there can go on. A node whose clock is behind refuses such a one until its clock is as far.
pub fn term_max(unix_ms: u64) -> u64 {
    unix_ms.max(TERM_FLOOR)
}

fn expect_term(vote: &Vote) -> Checked {
    let term = vote.leader_id.term;
    // The clock is asked only about what is not so by any clock.
    if term <= TERM_FLOOR {
        return Ok(());
    }
    let unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    expect(term <= term_max(unix_ms), || format!("term {term}"))
}

/// Expects a vote that the sender of a request has: for itself, and in a term that can be.
fn expect_own(vote: &Vote, committed: bool, sender: NodeId) -> Checked {
    let named = vote.leader_id.node_id;
    expect(named == sender, || format!("a message of node {sender} in the name of node {named}"))?;
    expect(vote.committed == committed, || format!("vote {vote}, which {}", if committed { "does not lead" } else { "leads" }))?;
    expect_term(vote)
}

/// Expects an entry that a node with this vote may have.
fn expect_entry(id: &LogId, vote: &Vote) -> Checked {
    let (leader, of) = ((id.leader_id.term, id.leader_id.node_id), (vote.leader_id.term, vote.leader_id.node_id));
    expect(leader <= of, || format!("entry {id}, which is later than vote {vote}"))?;
    expect(id.index <= INDEX_MAX, || format!("entry {id}"))
}

/// Expects that a name of this many bytes is no longer than an address.
///
/// # Errors
/// That it is.
pub fn expect_name(bytes: usize) -> Checked {
    expect(bytes <= ADDRESS_MAX, || format!("a name of {bytes} bytes"))
}

fn expect_members(members: &openraft::Membership<NodeId, Peer>) -> Checked {
    let sets = members.get_joint_config();
    expect(!sets.is_empty() && sets.iter().all(|set| !set.is_empty()), || "a membership without members".to_owned())?;
    let nodes: Vec<(NodeId, Peer)> = members.nodes().take(NODES_MAX + 1).map(|(id, peer)| (*id, peer.clone())).collect();
    expect(nodes.len() <= NODES_MAX, || "a membership of too many nodes".to_owned())?;
    nodes.iter().try_for_each(|(_, peer)| expect_name(peer.addr.len()))?;
    let whole = openraft::Membership::new(sets.clone(), nodes.into_iter().collect::<std::collections::BTreeMap<_, _>>());
    whole.map(drop).map_err(|error| Nonsense(error.to_string()))
}

/// Checks a request to append.
///
/// # Errors
/// What is wrong with it. The same holds for the others.
pub fn append(append: &AppendEntriesRequest<Types>, sender: NodeId) -> Checked {
    let vote = &append.vote;
    expect_own(vote, true, sender)?;
    for id in append.prev_log_id.iter().chain(&append.leader_commit) {
        expect_entry(id, vote)?;
    }
    let mut before = append.prev_log_id;
    for entry in &append.entries {
        let id = entry.log_id();
        expect_entry(&id, vote)?;
        follows(&id, before.as_ref())?;
        if let EntryPayload::Membership(members) = &entry.payload {
            expect_members(members)?;
        }
        before = Some(id);
    }
    Ok(())
}

fn follows(id: &LogId, before: Option<&LogId>) -> Checked {
    let (index, least) = before.map_or((0, None), |before| (before.index + 1, Some(before.leader_id)));
    let wrong = || format!("entry {id} behind {}", before.map_or_else(|| "nothing".to_owned(), ToString::to_string));
    expect(id.index == index && least.is_none_or(|least| least <= id.leader_id), wrong)
}

/// Checks a request for a vote, or a question whether one would be given.
pub fn vote(request: &VoteRequest<Types>, sender: NodeId) -> Checked {
    expect_own(&request.vote, false, sender)?;
    request.last_log_id.iter().try_for_each(|id| expect_entry(id, &request.vote))
}

/// Checks that the leadership is given away by the one who has it.
pub fn transfer(request: &TransferLeaderRequest<Types>, sender: NodeId) -> Checked {
    expect_own(request.from_leader(), true, sender)?;
    request.last_log_id().iter().try_for_each(|id| expect_entry(id, request.from_leader()))
}

/// Checks what begins a snapshot.
pub fn snapshot(vote: &Vote, meta: &SnapshotMeta, sender: NodeId) -> Checked {
    expect_own(vote, true, sender)?;
    let last = meta.last_log_id.as_ref().ok_or_else(|| Nonsense("a snapshot of nothing".to_owned()))?;
    expect_entry(last, vote)?;
    let membership: &Membership = &meta.last_membership;
    let of = membership.log_id();
    expect(of.as_ref().is_none_or(|of| of <= last), || "a snapshot with a later membership".to_owned())?;
    expect_members(membership.membership())
}

/// Checks the answer to a request for a vote.
pub fn voted(response: &VoteResponse<Types>) -> Checked {
    expect_term(&response.vote)?;
    let last = response.last_log_id.as_ref();
    expect(last.is_none_or(|id| id.index <= INDEX_MAX), || format!("entry {}", last.map_or(0, |id| id.index)))
}

/// Checks the answer to an append of entries behind `prev`, up to `last`.
pub fn appended(response: &AppendEntriesResponse<Types>, prev: Option<&LogId>, last: Option<&LogId>) -> Checked {
    match response {
        AppendEntriesResponse::Success => Ok(()),
        AppendEntriesResponse::PartialSuccess(upto) => {
            let upto = upto.as_ref();
            expect(prev <= upto && upto <= last, || "an answer about entries that were not sent".to_owned())
        }
        // Nothing conflicts with the beginning of the log. An answer that says so would end the process in openraft.
        AppendEntriesResponse::Conflict => expect(prev.is_some(), || "a conflict with nothing".to_owned()),
        AppendEntriesResponse::HigherVote(vote) => expect_term(vote),
    }
}

/// Checks the vote in any other answer.
pub fn answered(vote: &Vote) -> Checked {
    expect_term(vote)
}

/// The entry before those of an append, and these.
pub fn ids(append: &AppendEntriesRequest<Types>) -> Vec<LogId> {
    append.prev_log_id.into_iter().chain(append.entries.iter().map(RaftEntry::log_id)).collect()
}
