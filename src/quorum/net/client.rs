//! Requests to the other nodes, in the form that openraft makes them.
//!
//! An error is `Unreachable` if there is no connection or the other node has stopped: openraft then waits before it tries again. It is
//! `Network` if the connection was lost with the request on it, and `Timeout` if there was no answer in time: openraft tries again at
//! once.

use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use openraft::OptionalSend;
use openraft::RaftNetworkFactory;
use openraft::base::{BoxFuture, BoxStream};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Timeout, Unreachable};
use openraft::network::{Backoff, RPCOption, RPCTypes, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::quorum::net::append::{self, Sent};
use crate::quorum::net::frame::{Kind, encode_message};
use crate::quorum::net::handler::Snapshot;
use crate::quorum::net::hello::Purpose;
use crate::quorum::net::keeper::Shared;
use crate::quorum::net::link::{Link, Peer};
use crate::quorum::net::snapshot::{self, Unsent};
use crate::quorum::runtime::{Instant, timeout};
use crate::quorum::sane::{self, Nonsense};
use crate::quorum::types::{NodeId, Peer as Member, SnapshotFile, Types, Vote};

/// Minimum time that a stream of appends waits for a connection, or for the next answer. openraft's own limit is the interval of
/// heartbeats, which a slow disk exceeds; the stream would then begin again with all that is under way. A lost connection ends it
/// sooner.
const PATIENCE_MIN: Duration = Duration::from_secs(2);

/// First and longest pause before openraft tries again to reach a node. The connection is opened again meanwhile.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));

type Failure = RPCError<Types>;

/// Pauses that double from the first to the longest one.
fn doubling((first, longest): (Duration, Duration)) -> Backoff {
    Backoff::new(std::iter::successors(Some(first), move |pause| Some((*pause * 2).min(longest))))
}

/// Makes the clients through which openraft reaches other nodes.
#[derive(Clone)]
pub struct Network {
    /// The transport.
    pub(in crate::quorum::net) shared: Arc<Shared>,
}

/// Sends requests to one node.
pub struct Client {
    shared: Arc<Shared>,
    peer: Arc<Peer>,
    addr: String,
    patience_min: Duration,
}

impl Network {
    fn client(&self, target: NodeId, node: &Member, patience_min: Duration) -> Client {
        let peer = self.shared.peer(target, &node.addr);
        Client { shared: self.shared.clone(), peer, addr: node.addr.clone(), patience_min }
    }
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Client;

    async fn new_client(&mut self, target: NodeId, node: &Member) -> Client {
        self.client(target, node, PATIENCE_MIN)
    }

    async fn new_heartbeat_client(&mut self, target: NodeId, node: &Member) -> Client {
        self.client(target, node, Duration::ZERO)
    }
}

impl Client {
    fn unreachable(&self) -> Failure {
        Unreachable::from_string(format!("there is no connection to node {}", self.peer.node())).into()
    }

    fn late(&self, action: RPCTypes, timeout: Duration) -> Failure {
        Timeout { action, id: self.shared.me.node(), target: self.peer.node(), timeout }.into()
    }

    /// Has a request made within the time that openraft gives.
    async fn within<T>(
        &self,
        action: RPCTypes,
        option: &RPCOption,
        request: impl AsyncFnOnce(Link) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let time = option.soft_ttl();
        let began = Instant::now();
        let link = self.peer.connection(time).await.ok_or_else(|| self.unreachable())?;
        timeout(time.saturating_sub(began.elapsed()), request(link)).await.map_err(|_| self.late(action, time))?
    }

    /// An answer, unless it makes no sense.
    fn judged<A>(&self, answer: A, check: impl FnOnce(&A) -> Result<(), Nonsense>) -> Result<A, Failure> {
        self.peer.judge(check(&answer)).map_err(|nonsense| NetworkError::new(&nonsense))?;
        Ok(answer)
    }

    async fn ask<Q, A>(&self, kind: Kind, action: RPCTypes, request: Q, option: &RPCOption) -> Result<A, Failure>
    where
        Q: Serialize,
        A: DeserializeOwned,
    {
        let frame = encode_message(kind, 0, &request, 128).unwrap_or_default();
        self.within(action, option, async move |link: Link| append::read_answer(self.peer.node(), link.send(frame).await)).await
    }
}

impl RaftNetworkV2<Types> for Client {
    type SnapshotData = SnapshotFile;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, Failure> {
        let mut parts = append::parts(request);
        let first = parts.pop_front();
        let last = parts.front().map(|rest| rest.prev_log_id);
        let this = &*self;
        let response = this.within(RPCTypes::AppendEntries, &option, async move |link: Link| {
            let sent = first.and_then(|first| Sent::new(&link, &first));
            let mut sent = sent.ok_or_else(|| Unreachable::from_string("an entry is too long to be sent"))?;
            append::answer(&mut sent, &this.peer).await
        });
        match (response.await?, last) {
            (AppendEntriesResponse::Success, Some(last)) => Ok(AppendEntriesResponse::PartialSuccess(last)),
            (response, _) => Ok(response),
        }
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<'s, Result<BoxStream<'s, Result<StreamAppendResult<Types>, Failure>>, Failure>>
    where
        S: Stream<Item = AppendEntriesRequest<Types>> + OptionalSend + Unpin + 'static,
    {
        let patience = option.soft_ttl().max(self.patience_min);
        let results: BoxStream<'s, _> = Box::pin(append::stream(self.peer.clone(), self.shared.me.node(), input, patience));
        Box::pin(std::future::ready(Ok(results)))
    }

    async fn vote(&mut self, request: VoteRequest<Types>, option: RPCOption) -> Result<VoteResponse<Types>, Failure> {
        let response = self.ask(Kind::Vote, RPCTypes::Vote, request, &option).await?;
        self.judged(response, sane::voted)
    }

    async fn pre_vote(&mut self, request: VoteRequest<Types>, option: RPCOption) -> Result<VoteResponse<Types>, Failure> {
        let response = self.ask(Kind::PreVote, RPCTypes::Vote, request, &option).await?;
        self.judged(response, sane::voted)
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let (node, addr) = (self.peer.node(), self.peer.addr.borrow().clone().unwrap_or_else(|| self.addr.clone()));
        let sending = async {
            let dialled = self.shared.dial(node, &addr, Purpose::Snapshot).await;
            let mut wire = dialled.map_err(|failure| StreamingError::Unreachable(Unreachable::new(&failure)))?;
            let sent = snapshot::send(&mut wire, &self.shared.platform, vote, snapshot).await.map_err(|unsent| match unsent {
                Unsent::Io(error) => StreamingError::Network(NetworkError::new(&error)),
                Unsent::Refused(reason) => StreamingError::Unreachable(Unreachable::from_string(reason)),
            });
            sent.and_then(|response| {
                let checked = self.peer.judge(sane::answered(&response.vote));
                checked.map(|()| response).map_err(|nonsense| StreamingError::Network(NetworkError::new(&nonsense)))
            })
        };
        tokio::select! {
            biased;
            closed = cancel => Err(StreamingError::Closed(closed)),
            sent = sending => sent,
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<Types>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types>, Failure> {
        self.ask(Kind::TransferLeader, RPCTypes::TransferLeader, request, &option).await
    }

    fn backoff(&self) -> Option<Backoff> {
        Some(doubling(PAUSE))
    }
}
