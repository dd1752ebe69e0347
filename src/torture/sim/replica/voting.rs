//! Tells when a node gives its vote: some faults follow a vote.

use std::sync::{Arc, Mutex, PoisonError};

use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest, TransferLeaderResponse, VoteRequest,
    VoteResponse,
};

use crate::quorum::net::{Failed, Handler, Nonsense, Said, Snapshot};
use crate::quorum::types::{LogId, Types, Vote};

/// What answers the requests of other nodes.
pub struct Voting<H> {
    /// Answers them.
    pub handler: H,
    /// Index of the node.
    pub node: u32,
    /// Where its votes are noted.
    pub votes: Votes,
}

/// Nodes that have given a vote lately.
pub type Votes = Arc<Mutex<Vec<u32>>>;

impl<H: Handler> Handler for Voting<H> {
    async fn fits(&self, vote: Vote, said: Said, matched: Option<LogId>) -> Result<Result<Option<LogId>, Nonsense>, Failed> {
        self.handler.fits(vote, said, matched).await
    }

    async fn append_entries(&self, request: AppendEntriesRequest<Types>) -> Result<AppendEntriesResponse<Types>, Failed> {
        self.handler.append_entries(request).await
    }

    async fn vote(&self, request: VoteRequest<Types>) -> Result<VoteResponse<Types>, Failed> {
        let response = self.handler.vote(request).await?;
        if response.vote_granted {
            self.votes.lock().unwrap_or_else(PoisonError::into_inner).push(self.node);
        }
        Ok(response)
    }

    async fn pre_vote(&self, request: VoteRequest<Types>) -> Result<VoteResponse<Types>, Failed> {
        self.handler.pre_vote(request).await
    }

    async fn install_snapshot(&self, vote: Vote, snapshot: Snapshot) -> Result<SnapshotResponse<Types>, Failed> {
        self.handler.install_snapshot(vote, snapshot).await
    }

    async fn transfer_leader(&self, request: TransferLeaderRequest<Types>) -> Result<TransferLeaderResponse<Types>, Failed> {
        self.handler.transfer_leader(request).await
    }
}
