//! How nodes that may have forgotten the ends of their logs can vote although no node leads.
//!
//! Usually such a node catches up with a leader. But if all machines lose their power at once, so many logs may be cut that nobody can be
//! elected. Then the node asks all members what they have. As long as damage has struck one node only, each entry that this node has
//! confirmed and forgotten is in the log of another one, and the node to which it has given a forgotten vote knows that vote. So this
//! node
//!
//! - promises the highest vote of any member, and gives none that is lower from then on;
//! - gives its vote only to a node whose last entry is not before that of any member, and stands for election only if its own is not.

use std::time::Duration;

use futures_util::future::join_all;
use openraft::RaftNetworkFactory;
use openraft::async_runtime::WatchReceiver;
use openraft::network::{NetVote, RPCOption};
use openraft::raft::{VoteRequest, VoteResponse};

use crate::persist::disk::SendDisk;
use crate::quorum::net::Network;
use crate::quorum::node::Raft;
use crate::quorum::node::application::Application;
use crate::quorum::types::{LogId, NodeId, Peer, Types, Vote};

/// Time within which a member must say what it has.
const ANSWER_TIME: Duration = Duration::from_millis(500);

/// Makes the promise, if all voters answer, and lets the node stand for election or not. Returns the last entry of any member, which a
/// node must have to get this node's vote.
pub async fn regain<D: SendDisk, M: Application>(raft: &Raft<D, M>, network: &mut Network, node: NodeId) -> Option<LogId> {
    let answers = ask_others(raft, network, node).await?;
    let others = answers.iter().map(|answer| (answer.vote.leader_id, answer.last_log_id)).collect::<Vec<_>>();
    let highest = others.iter().map(|(vote, _)| *vote).max();
    let highest = highest.map_or_else(|| Vote::new(0, node), |vote| Vote::new(vote.term, vote.node_id));
    let theirs = others.iter().filter_map(|(_, last)| *last).max();
    // As if the other node had asked for a vote and had enough in its log. Nobody is told of it.
    let enough = theirs.max(raft.data_metrics().borrow_watched().last_log);
    let own = raft.vote(VoteRequest::new(highest, enough)).await.ok()?;
    if own.vote.leader_id < highest.leader_id {
        return None;
    }
    let last = theirs.max(own.last_log_id);
    raft.runtime_config().elect(own.last_log_id == last);
    last
}

/// What all other voters have. `None` if one of them does not say it.
async fn ask_others<D: SendDisk, M: Application>(
    raft: &Raft<D, M>,
    network: &mut Network,
    node: NodeId,
) -> Option<Vec<VoteResponse<Types>>> {
    let voters: Vec<(NodeId, Peer)> = {
        let metrics = raft.server_metrics();
        let metrics = metrics.borrow_watched();
        let members = metrics.membership_config.membership();
        members.voter_ids().filter_map(|id| Some((id, members.get_node(&id)?.clone()))).collect()
    };
    if !voters.iter().any(|(id, _)| *id == node) {
        return None;
    }
    let mut asked = Vec::new();
    for (id, peer) in voters.into_iter().filter(|(id, _)| *id != node) {
        let mut client = network.new_client(id, &peer).await;
        // Nobody gives a vote for term 0. The answer says what the node has.
        asked.push(
            async move { client.pre_vote(VoteRequest::new(Vote::new(0, node), None), RPCOption::new(ANSWER_TIME)).await.ok() },
        );
    }
    join_all(asked).await.into_iter().collect()
}
