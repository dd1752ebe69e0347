//! What nodes send to each other. Requests and answers are parcels; whether and when one arrives is not decided here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use openraft::base::{BoxFuture, BoxStream};
use openraft::entry::RaftEntry;
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Timeout, Unreachable};
use openraft::network::{Backoff, RPCOption, RPCTypes, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::{AsyncRuntime, Instant as _, OptionalSend, RaftNetworkFactory};
use tokio::sync::{oneshot, watch};

use crate::quorum::admission::{Admission, Part};
use crate::quorum::net::{
    ClientAddress, Directory, Greeting, Hello, Neighbours, Side, Snapshot, SnapshotSink, SnapshotWriter, Standing, doubling,
};
use crate::quorum::node::{Raft, SharedSnapshots, Sink};
use crate::quorum::runtime::{Instant, Runtime};
use crate::quorum::types::{ClusterId, NodeId, Peer, SnapshotFile, SnapshotMeta, Types, Vote};
use crate::torture::sim::replica::Flaw;
use crate::torture::sim::replica::disk::NodeDisk;
use crate::torture::sim::replica::machine::SimMachine;

/// Number of appends without an answer in a stream.
const WINDOW: usize = 64;
/// Minimum time that a stream of appends waits for an answer: as long as a broken connection is not noticed.
const PATIENCE_MIN: Duration = Duration::from_secs(1);
/// Time that a snapshot may take.
const SNAPSHOT_TIME: Duration = Duration::from_secs(10);
/// First and longest pause before openraft tries again to reach a node.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(500));
/// Interval at which a blank node asks the others what they are.
const GREETS_EVERY: Duration = Duration::from_millis(200);

type Failure = RPCError<Types>;

/// A request.
#[derive(Clone)]
pub enum Request {
    /// Append entries.
    Append(AppendEntriesRequest<Types>),
    /// Give a vote.
    Vote(VoteRequest<Types>),
    /// Say whether a vote would be given.
    PreVote(VoteRequest<Types>),
    /// Lead.
    Transfer(TransferLeaderRequest<Types>),
    /// Install a snapshot with this content.
    Snapshot(Vote, SnapshotMeta, Bytes),
}

/// An answer.
#[derive(Clone)]
pub enum Answer {
    /// To an append.
    Append(AppendEntriesResponse<Types>),
    /// To a request for a vote.
    Vote(VoteResponse<Types>),
    /// To the question whether a vote would be given.
    PreVote(VoteResponse<Types>),
    /// To a request to lead.
    Transfer(TransferLeaderResponse<Types>),
    /// To a snapshot.
    Snapshot(SnapshotResponse<Types>),
    /// The node does not answer, for this reason.
    Failed(String),
}

/// What a parcel has in it.
#[derive(Clone)]
pub enum Content {
    /// A request with its number.
    Request(u64, Request),
    /// The answer to a request of this number.
    Answer(u64, Answer),
    /// What the sender is; and whether it asks the same of the receiver.
    Hello(Hello, bool),
}

/// Something on its way from a node to another one.
#[derive(Clone)]
pub struct Parcel {
    /// The sender.
    pub from: NodeId,
    /// The receiver.
    pub to: NodeId,
    /// What the sender says of its cluster: real nodes say it when a connection begins, and again when it changes.
    pub standing: Standing,
    /// What it is.
    pub content: Content,
}

/// What all nodes share: parcels that are to be sent, and who waits for answers.
#[derive(Default)]
pub struct Post {
    /// In the order in which they were sent.
    pub outbox: Vec<Parcel>,
    waiting: BTreeMap<u64, oneshot::Sender<Answer>>,
    last: u64,
}

impl Post {
    /// Hands an answer to who waits for it.
    pub fn answered(&mut self, number: u64, answer: Answer) {
        if let Some(sender) = self.waiting.remove(&number) {
            // Who waited may have given up.
            let _ = sender.send(answer);
        }
    }

    /// The connection that a parcel was on is broken: who waits for an answer is told.
    pub fn broken(&mut self, parcel: &Parcel) {
        if let Content::Request(number, _) | Content::Answer(number, _) = &parcel.content {
            self.waiting.remove(number);
        }
    }
}

/// Locks what nodes share. The lock is never contended, because there is one thread.
pub fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What answers the requests of other nodes, once the node runs.
pub type Door = Arc<Mutex<Option<(Raft<NodeDisk, SimMachine>, SharedSnapshots<NodeDisk>)>>>;

/// The transport of one process of a node.
#[derive(Clone)]
pub struct Transport {
    node: NodeId,
    nodes: u32,
    post: Arc<Mutex<Post>>,
    directory: Arc<Directory>,
    standing: Arc<Mutex<Standing>>,
    disk: NodeDisk,
    admission: Arc<Admission>,
    door: Door,
    /// The other members.
    peers: Arc<Mutex<BTreeSet<NodeId>>>,
    successor: Arc<watch::Sender<ClusterId>>,
    flaw: Flaw,
}

impl Transport {
    /// The transport of node number `node` of so many.
    pub fn new(
        node: NodeId,
        nodes: u32,
        post: Arc<Mutex<Post>>,
        standing: Standing,
        admission: Arc<Admission>,
        disk: NodeDisk,
        flaw: Flaw,
    ) -> Transport {
        Transport {
            node,
            nodes,
            post,
            directory: Arc::default(),
            standing: Arc::new(Mutex::new(standing)),
            disk,
            admission,
            door: Door::default(),
            // All nodes are members when a process begins, as far as it knows.
            peers: Arc::new(Mutex::new((1..=NodeId::from(nodes)).filter(|other| *other != node).collect())),
            successor: Arc::new(watch::Sender::new(0)),
            flaw,
        }
    }

    /// Where to put what answers other nodes.
    pub fn door(&self) -> &Door {
        &self.door
    }

    /// Whether the node votes, as it says.
    pub fn votes(&self) -> bool {
        lock(&self.standing).votes
    }

    fn send(&self, to: NodeId, content: Content) {
        let standing = *lock(&self.standing);
        lock(&self.post).outbox.push(Parcel { from: self.node, to, standing, content });
    }

    fn others(&self) -> impl Iterator<Item = NodeId> {
        let me = self.node;
        (1..=NodeId::from(self.nodes)).filter(move |node| *node != me)
    }

    fn hello(&self) -> Hello {
        let Standing { cluster, parent, blank, votes, .. } = *lock(&self.standing);
        let client = ClientAddress { host: host(self.node), port: 6379, tls_port: 0 };
        let greeting = Some(Greeting { minor: u8::MAX, parent });
        Hello { node: self.node, cluster, blank, votes, client, program: String::new(), greeting }
    }

    /// Asks a new member what it is until it answers.
    async fn connect(self, node: NodeId) {
        let is_wanted = || {
            let connected = self.directory.get(node).is_some_and(|peer| peer.connected);
            !connected && lock(&self.peers).contains(&node)
        };
        while is_wanted() {
            self.send(node, Content::Hello(self.hello(), true));
            Runtime::sleep(GREETS_EVERY).await;
        }
    }

    /// Asks the other nodes what they are, as long as this one does not vote.
    pub async fn greet(self) {
        loop {
            let asks = !self.votes();
            self.others().for_each(|node| self.send(node, Content::Hello(self.hello(), asks)));
            if !asks {
                return;
            }
            Runtime::sleep(GREETS_EVERY).await;
        }
    }

    /// Takes a parcel for this node. Returns the task that answers it, if it needs one.
    pub fn take(&self, parcel: Parcel) -> Option<impl Future<Output = ()> + Send + use<>> {
        if let Err(reason) = self.check(&parcel) {
            // Its sender finds no connection.
            if let Content::Request(number, _) = parcel.content {
                lock(&self.post).answered(number, Answer::Failed(reason.clone()));
            }
            if lock(&self.peers).contains(&parcel.from) {
                self.directory.set_connected(parcel.from, Err(reason));
            }
            return None;
        }
        // What comes from a member comes on a connection.
        if lock(&self.peers).contains(&parcel.from) {
            self.directory.set_connected(parcel.from, Ok(()));
        }
        match parcel.content {
            Content::Answer(number, answer) => {
                lock(&self.post).answered(number, answer);
                None
            }
            Content::Hello(hello, asks) => {
                self.directory.set_dialled(hello);
                if asks {
                    self.send(parcel.from, Content::Hello(self.hello(), false));
                }
                None
            }
            Content::Request(number, request) => {
                let this = self.clone();
                Some(async move {
                    let answer = this.perform(request).await.unwrap_or_else(Answer::Failed);
                    this.send(parcel.from, Content::Answer(number, answer));
                })
            }
        }
    }

    /// Whether the sender of a parcel belongs to the cluster of this node, as real nodes check it.
    fn check(&self, parcel: &Parcel) -> Result<(), String> {
        if self.flaw == Flaw::AnyCluster {
            return Ok(());
        }
        let side = match parcel.content {
            Content::Request(..) | Content::Hello(_, true) => Side::Acceptor,
            Content::Answer(..) | Content::Hello(_, false) => Side::Connector,
        };
        let standing = *lock(&self.standing);
        standing.check(self.node, parcel.from, &parcel.standing, side).map_err(|foreign| foreign.to_string())
    }

    async fn perform(&self, request: Request) -> Result<Answer, String> {
        let door = lock(&self.door).clone();
        let Some((raft, snapshots)) = door else { return Err("it does not run yet".to_owned()) };
        let words = |error: &dyn std::fmt::Display| error.to_string();
        let needs = if matches!(request, Request::Transfer(_)) { Part::Votes } else { Part::Follows };
        if !self.admission.permits(needs) {
            return Err("it does not take part".to_owned());
        }
        if let Request::Append(request) = &request {
            self.admission.hear(request);
        }
        match request {
            Request::Append(request) => raft.append_entries(request).await.map(Answer::Append).map_err(|error| words(&error)),
            Request::Vote(request) if !self.admission.gives_vote(&request) => tells(raft, request).await.map(Answer::Vote),
            Request::PreVote(request) if !self.admission.gives_vote(&request) => tells(raft, request).await.map(Answer::PreVote),
            Request::Vote(request) => raft.vote(request).await.map(Answer::Vote).map_err(|error| words(&error)),
            Request::PreVote(request) => raft.pre_vote(request).await.map(Answer::PreVote).map_err(|error| words(&error)),
            Request::Transfer(request) => {
                raft.handle_transfer_leader(request).await.map(Answer::Transfer).map_err(|error| words(&error))
            }
            Request::Snapshot(vote, meta, bytes) => {
                let mut writer = Sink(snapshots).begin(&meta, bytes.len() as u64).await.map_err(|error| words(&error))?;
                writer.write(bytes).await.map_err(|error| words(&error))?;
                let snapshot = Snapshot { meta, snapshot: writer.finish().await.map_err(|error| words(&error))? };
                raft.install_full_snapshot(vote, snapshot).await.map(Answer::Snapshot).map_err(|error| words(&error))
            }
        }
    }
}

/// What a node says that has no vote.
async fn tells(raft: Raft<NodeDisk, SimMachine>, request: VoteRequest<Types>) -> Result<VoteResponse<Types>, String> {
    let response = raft.pre_vote(request).await.map_err(|error| error.to_string())?;
    Ok(VoteResponse { vote_granted: false, ..response })
}

/// The host of a node.
pub fn host(node: NodeId) -> String {
    format!("node-{node}")
}

impl Neighbours for Transport {
    fn directory(&self) -> &Arc<Directory> {
        &self.directory
    }

    fn standing(&self) -> Standing {
        *lock(&self.standing)
    }

    /// As long as something may change, it is said at each look: what is said may be lost.
    fn change_standing(&self, change: impl FnOnce(&mut Standing)) {
        change(&mut lock(&self.standing));
        self.others().for_each(|node| self.send(node, Content::Hello(self.hello(), false)));
    }

    /// As the real transport does: connects to new members, and ends the connections to those that are none any more.
    fn set_peers(&self, members: BTreeMap<NodeId, String>) {
        let members: BTreeSet<NodeId> = members.into_keys().filter(|node| *node != self.node).collect();
        let before = std::mem::replace(&mut *lock(&self.peers), members.clone());
        for gone in before.difference(&members) {
            self.directory.set_connected(*gone, Err("it is no member".to_owned()));
        }
        for new in members.difference(&before).copied() {
            drop(Runtime::spawn(self.clone().connect(new)));
        }
    }

    /// A node asks as long as it does not vote: see [`Transport::greet`].
    fn inquire(&self) {}

    /// No cluster of a simulation is recovered.
    fn successor(&self) -> watch::Receiver<ClusterId> {
        self.successor.subscribe()
    }

    /// Clients of the simulation do not subscribe.
    fn tell_all(&self, _message: &[u8]) {}

    async fn ask_hand_over(&self, _leader: NodeId, _to: Option<NodeId>) -> Result<(), String> {
        Err("a node of a simulation is not asked to hand over".to_owned())
    }
}

impl RaftNetworkFactory<Types> for Transport {
    type Network = Client;

    async fn new_client(&mut self, target: NodeId, _node: &Peer) -> Client {
        Client { transport: self.clone(), target }
    }
}

/// Sends requests to one node.
pub struct Client {
    transport: Transport,
    target: NodeId,
}

/// The receiver of an answer. If the connection breaks, it ends.
type Answered = oneshot::Receiver<Answer>;

impl Client {
    fn send(&self, request: Request) -> Answered {
        let (sender, receiver) = oneshot::channel();
        let number = {
            let mut post = lock(&self.transport.post);
            post.last += 1;
            let number = post.last;
            post.waiting.insert(number, sender);
            number
        };
        self.transport.send(self.target, Content::Request(number, request));
        receiver
    }

    /// Notes that the node followed, as the real transport does.
    fn note(&self, vote: &Vote, at: Instant, response: AppendEntriesResponse<Types>) -> AppendEntriesResponse<Types> {
        if !matches!(response, AppendEntriesResponse::HigherVote(_)) {
            self.transport.directory.acks.record(self.target, vote, at);
        }
        response
    }

    fn late(&self, action: RPCTypes, timeout: Duration) -> Failure {
        Timeout { action, id: self.transport.node, target: self.target, timeout }.into()
    }

    async fn ask(&self, action: RPCTypes, request: Request, time: Duration) -> Result<Answer, Failure> {
        let answered = self.send(request);
        match Runtime::timeout(time, answered).await {
            Ok(answered) => read(answered),
            Err(_) => Err(self.late(action, time)),
        }
    }
}

fn read(answered: Result<Answer, oneshot::error::RecvError>) -> Result<Answer, Failure> {
    match answered {
        Err(_) => Err(NetworkError::from_string("the connection was lost").into()),
        Ok(Answer::Failed(reason)) => Err(Unreachable::from_string(reason).into()),
        Ok(answer) => Ok(answer),
    }
}

fn unexpected<T>() -> Result<T, Failure> {
    Err(NetworkError::from_string("the answer to another request").into())
}

impl RaftNetworkV2<Types> for Client {
    type SnapshotData = SnapshotFile;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, Failure> {
        let (vote, at) = (request.vote, Instant::now());
        match self.ask(RPCTypes::AppendEntries, Request::Append(request), option.soft_ttl()).await? {
            Answer::Append(response) => Ok(self.note(&vote, at, response)),
            _ => unexpected(),
        }
    }

    /// As the real transport does: each is sent as soon as there is one, and the answers are returned in order.
    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<'s, Result<BoxStream<'s, Result<StreamAppendResult<Types>, Failure>>, Failure>>
    where
        S: Stream<Item = AppendEntriesRequest<Types>> + OptionalSend + Unpin + 'static,
    {
        let patience = option.soft_ttl().max(PATIENCE_MIN);
        let this = &*self;
        let answers = input.map(move |request| {
            let (prev, entries_last) = (request.prev_log_id, request.entries.last().map(RaftEntry::log_id));
            let (vote, at) = (request.vote, Instant::now());
            let answered = this.send(Request::Append(request));
            async move {
                let answer = match Runtime::timeout(patience, answered).await {
                    Ok(answered) => read(answered)?,
                    Err(_) => return Err(this.late(RPCTypes::AppendEntries, patience)),
                };
                let Answer::Append(response) = answer else { return unexpected() };
                let response = this.note(&vote, at, response);
                if response.is_conflict() && prev.is_none() {
                    return Err(NetworkError::from_string("a conflict with nothing").into());
                }
                Ok(response.into_stream_result(prev, entries_last.or(prev)))
            }
        });
        // What follows an error was sent for nothing.
        let answers = answers.buffered(WINDOW);
        let results = stream::unfold(Some(Box::pin(answers)), |answers| async move {
            let mut answers = answers?;
            let result = answers.next().await?;
            let goes_on = matches!(result, Ok(Ok(_)));
            Some((result, goes_on.then_some(answers)))
        });
        let results: BoxStream<'s, _> = Box::pin(results);
        Box::pin(std::future::ready(Ok(results)))
    }

    async fn vote(&mut self, request: VoteRequest<Types>, option: RPCOption) -> Result<VoteResponse<Types>, Failure> {
        match self.ask(RPCTypes::Vote, Request::Vote(request), option.soft_ttl()).await? {
            Answer::Vote(response) => Ok(response),
            _ => unexpected(),
        }
    }

    async fn pre_vote(&mut self, request: VoteRequest<Types>, option: RPCOption) -> Result<VoteResponse<Types>, Failure> {
        match self.ask(RPCTypes::Vote, Request::PreVote(request), option.soft_ttl()).await? {
            Answer::PreVote(response) => Ok(response),
            _ => unexpected(),
        }
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let bytes = self.transport.disk.read(&snapshot.snapshot.path);
        let bytes = bytes.map_err(|reason| StreamingError::Unreachable(Unreachable::from_string(reason)))?;
        let request = Request::Snapshot(vote, snapshot.meta, bytes.into());
        let answered = self.send(request);
        let sending = async {
            match Runtime::timeout(SNAPSHOT_TIME, answered).await {
                Ok(Ok(Answer::Snapshot(response))) => Ok(response),
                Ok(Ok(Answer::Failed(reason))) => Err(StreamingError::Unreachable(Unreachable::from_string(reason))),
                _ => Err(StreamingError::Network(NetworkError::from_string("the connection was lost"))),
            }
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
        match self.ask(RPCTypes::TransferLeader, Request::Transfer(request), option.soft_ttl()).await? {
            Answer::Transfer(response) => Ok(response),
            _ => unexpected(),
        }
    }

    fn backoff(&self) -> Option<Backoff> {
        Some(doubling(PAUSE))
    }
}
