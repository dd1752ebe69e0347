//! What answers the requests of other nodes.

use openraft::alias::SnapshotOf;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest, TransferLeaderResponse, VoteRequest,
    VoteResponse,
};
use openraft::storage::RaftStateMachine;
use openraft::{Raft, RaftState};

use crate::quorum::append_check::{Here, Said, fits};
use crate::quorum::sane::Nonsense;
use crate::quorum::types::{LogId, SnapshotFile, Types, Vote};

/// A snapshot with what it is of.
pub type Snapshot = SnapshotOf<Types, SnapshotFile>;

/// Why there is no answer, for the other node's log.
pub type Failed = String;

/// Answers the requests of other nodes. Several may be under way; appends are begun in the order in which they were sent.
pub trait Handler: Send + Sync + 'static {
    /// Expects that what a leader says of its log contradicts nothing that is committed here, and nothing up to `matched`; see [`fits`].
    /// Returns what is committed.
    fn fits(
        &self,
        vote: Vote,
        said: Said,
        matched: Option<LogId>,
    ) -> impl Future<Output = Result<Result<Option<LogId>, Nonsense>, Failed>> + Send;

    /// Appends entries to the log.
    ///
    /// # Errors
    /// The node has stopped. The same holds for the other requests.
    fn append_entries(
        &self,
        request: AppendEntriesRequest<Types>,
    ) -> impl Future<Output = Result<AppendEntriesResponse<Types>, Failed>> + Send;

    /// Asks for a vote.
    fn vote(&self, request: VoteRequest<Types>) -> impl Future<Output = Result<VoteResponse<Types>, Failed>> + Send;

    /// Asks whether a vote would be given.
    fn pre_vote(&self, request: VoteRequest<Types>) -> impl Future<Output = Result<VoteResponse<Types>, Failed>> + Send;

    /// Installs a snapshot that has arrived whole.
    fn install_snapshot(
        &self,
        vote: Vote,
        snapshot: Snapshot,
    ) -> impl Future<Output = Result<SnapshotResponse<Types>, Failed>> + Send;

    /// Hands the leadership over.
    fn transfer_leader(
        &self,
        request: TransferLeaderRequest<Types>,
    ) -> impl Future<Output = Result<TransferLeaderResponse<Types>, Failed>> + Send;
}

impl<M> Handler for Raft<Types, M>
where
    M: RaftStateMachine<Types, SnapshotData = SnapshotFile>,
{
    async fn fits(&self, vote: Vote, said: Said, matched: Option<LogId>) -> Result<Result<Option<LogId>, Nonsense>, Failed> {
        let look = move |state: &RaftState<Types>| {
            let at = |index| state.log_ids.get(index);
            let here = Here { vote: state.vote_ref(), committed: state.local_committed(), matched, at };
            fits(&said, &vote, &here)
        };
        self.with_raft_state(look).await.map_err(|error| error.to_string())
    }

    async fn append_entries(&self, request: AppendEntriesRequest<Types>) -> Result<AppendEntriesResponse<Types>, Failed> {
        Raft::append_entries(self, request).await.map_err(|error| error.to_string())
    }

    async fn vote(&self, request: VoteRequest<Types>) -> Result<VoteResponse<Types>, Failed> {
        Raft::vote(self, request).await.map_err(|error| error.to_string())
    }

    async fn pre_vote(&self, request: VoteRequest<Types>) -> Result<VoteResponse<Types>, Failed> {
        Raft::pre_vote(self, request).await.map_err(|error| error.to_string())
    }

    async fn install_snapshot(&self, vote: Vote, snapshot: Snapshot) -> Result<SnapshotResponse<Types>, Failed> {
        Raft::install_full_snapshot(self, vote, snapshot).await.map_err(|error| error.to_string())
    }

    async fn transfer_leader(&self, request: TransferLeaderRequest<Types>) -> Result<TransferLeaderResponse<Types>, Failed> {
        Raft::handle_transfer_leader(self, request).await.map_err(|error| error.to_string())
    }
}
