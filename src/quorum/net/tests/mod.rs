//! Tests over loopback TCP.

mod cluster;
mod greetings;
mod messages;
mod nonsense;
mod requests;
mod snapshots;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest, TransferLeaderResponse, VoteRequest,
    VoteResponse,
};
use openraft::{RaftNetworkFactory, Vote};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use crate::quorum::admission::{Admission, Participation};
use crate::quorum::append_check::Said;
use crate::quorum::net::client::Client;
use crate::quorum::net::directory::PeerInfo;
use crate::quorum::net::handler::{Failed, Handler};
use crate::quorum::net::transport::Shutdown;
use crate::quorum::net::{
    ClientAddress, Cluster, Directory, Options, Security, Snapshot, SnapshotSink, SnapshotWriter, Standing, System, Transport,
};
use crate::quorum::sane::Nonsense;
use crate::quorum::types::{Batch, ClusterTime, Entry, LogId, NodeId, Peer, SnapshotFile, SnapshotMeta, Types};

/// Longer than anything takes on a busy machine.
const LONG: Duration = Duration::from_secs(20);

/// Waits for something that must happen.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(LONG, future).await.expect("it happens")
}

/// Waits until a node's entry in a directory is as expected.
async fn known(directory: &Directory, node: NodeId, expected: impl Fn(&PeerInfo) -> bool) -> PeerInfo {
    let mut changes = directory.subscribe();
    soon(async {
        loop {
            changes.mark_unchanged();
            match directory.get(node) {
                Some(info) if expected(&info) => return info,
                _ => changes.changed().await.unwrap(),
            }
        }
    })
    .await
}

fn log_id(index: u64) -> LogId {
    use openraft::vote::RaftLeaderId;
    openraft::LogId::new(openraft::alias::LeaderIdOf::<Types>::new(1, 1), index)
}

/// An append of one entry at `index`, of `len` bytes.
fn append(index: u64, len: usize) -> AppendEntriesRequest<Types> {
    AppendEntriesRequest {
        vote: Vote::new_committed(1, 1),
        prev_log_id: index.checked_sub(1).map(log_id),
        entries: vec![entry(index, len)],
        leader_commit: None,
    }
}

fn heartbeat() -> AppendEntriesRequest<Types> {
    AppendEntriesRequest { entries: Vec::new(), ..append(0, 0) }
}

fn entry(index: u64, len: usize) -> Entry {
    let batch = Batch { origin: 1, number: index, time: ClusterTime::default(), bytes: Bytes::from(vec![index as u8; len]) };
    Entry { log_id: log_id(index), payload: openraft::EntryPayload::Normal(batch) }
}

fn option() -> RPCOption {
    RPCOption::new(LONG)
}

/// Answers requests as a test says.
#[derive(Default)]
struct Answers {
    /// Indices of the first entries of appends, in the order in which they came; heartbeats are left out.
    appends: Mutex<Vec<u64>>,
    /// Of all appends: number of entries, and the index of the last committed one.
    commits: Mutex<Vec<(usize, Option<u64>)>>,
    /// If set, the append of entry `i` is answered only when this is `i`.
    turn: Option<watch::Sender<u64>>,
    /// What an append is answered.
    conflict: AtomicBool,
    higher: AtomicBool,
    stopped: AtomicBool,
    votes: AtomicU64,
    installed: Mutex<Vec<SnapshotFile>>,
}

impl Handler for Arc<Answers> {
    async fn fits(
        &self,
        _: Vote<openraft::alias::LeaderIdOf<Types>>,
        said: Said,
        _: Option<LogId>,
    ) -> Result<Result<Option<LogId>, Nonsense>, Failed> {
        Ok(Ok(said.commit))
    }

    async fn append_entries(&self, request: AppendEntriesRequest<Types>) -> Result<AppendEntriesResponse<Types>, Failed> {
        let commit = request.leader_commit.map(|at| at.index);
        self.commits.lock().unwrap().push((request.entries.len(), commit));
        if let Some(entry) = request.entries.first() {
            self.appends.lock().unwrap().push(entry.log_id.index);
            if let Some(turn) = &self.turn {
                turn.subscribe().wait_for(|turn| *turn == entry.log_id.index).await.unwrap();
                turn.send_modify(|turn| *turn = turn.wrapping_sub(1));
            }
        }
        match () {
            () if self.stopped.load(Relaxed) => Err("raft stopped".to_owned()),
            () if self.higher.load(Relaxed) => Ok(AppendEntriesResponse::HigherVote(Vote::new(9, 3))),
            () if self.conflict.load(Relaxed) => Ok(AppendEntriesResponse::Conflict),
            () => Ok(AppendEntriesResponse::Success),
        }
    }

    async fn vote(&self, request: VoteRequest<Types>) -> Result<VoteResponse<Types>, Failed> {
        self.votes.fetch_add(1, Relaxed);
        Ok(VoteResponse::new(request.vote, None, true))
    }

    async fn pre_vote(&self, request: VoteRequest<Types>) -> Result<VoteResponse<Types>, Failed> {
        Ok(VoteResponse::new(request.vote, None, true))
    }

    async fn install_snapshot(
        &self,
        vote: Vote<openraft::alias::LeaderIdOf<Types>>,
        snapshot: Snapshot,
    ) -> Result<SnapshotResponse<Types>, Failed> {
        self.installed.lock().unwrap().push(snapshot.snapshot);
        Ok(SnapshotResponse::new(vote))
    }

    async fn transfer_leader(&self, _: TransferLeaderRequest<Types>) -> Result<TransferLeaderResponse<Types>, Failed> {
        Ok(Ok(()))
    }
}

/// The bytes of a snapshot, and, after its end, whether it is whole.
type Written = (Vec<u8>, Option<bool>);

/// Takes snapshots into memory.
#[derive(Clone)]
struct Memory {
    /// One permit is taken for each chunk.
    chunks: Arc<Semaphore>,
    /// What has been written of each snapshot, and whether it is whole.
    written: Arc<Mutex<Vec<Written>>>,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory { chunks: Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)), written: Arc::default() }
    }
}

struct Writing {
    memory: Memory,
    at: usize,
}

impl SnapshotSink for Memory {
    type Writer = Writing;

    async fn begin(&self, _: &SnapshotMeta, _: u64) -> io::Result<Writing> {
        let mut written = self.written.lock().unwrap();
        written.push((Vec::new(), None));
        Ok(Writing { memory: self.clone(), at: written.len() - 1 })
    }
}

impl SnapshotWriter for Writing {
    async fn write(&mut self, chunk: Bytes) -> io::Result<()> {
        self.memory.chunks.acquire().await.unwrap().forget();
        self.memory.written.lock().unwrap()[self.at].0.extend_from_slice(&chunk);
        Ok(())
    }

    async fn finish(self) -> io::Result<SnapshotFile> {
        let mut written = self.memory.written.lock().unwrap();
        let (bytes, whole) = &mut written[self.at];
        *whole = Some(true);
        Ok(SnapshotFile { path: PathBuf::from("memory"), len: bytes.len() as u64 })
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.memory.written.lock().unwrap()[self.at].1.get_or_insert(false);
    }
}

/// How a test's node differs from others.
#[derive(Default)]
struct Setup {
    secret: Option<&'static str>,
    cluster: u8,
    /// Instead of the one that `cluster` stands for.
    cluster_id: Option<Cluster>,
    client_port: Option<u16>,
    addr: Option<SocketAddr>,
    connections_max: Option<usize>,
    security: Security,
    answers: Answers,
    memory: Memory,
}

impl TestNode {
    /// What the node says of itself from now on.
    fn stand(&self, standing: Standing) {
        self.transport.change_standing(|known| *known = standing);
    }
}

/// A node without Raft.
struct TestNode {
    transport: Transport,
    shutdown: Option<Shutdown>,
    addr: SocketAddr,
    answers: Arc<Answers>,
    admission: Arc<Admission>,
    /// To whom it was asked to hand its leadership over.
    hand_overs: Arc<Mutex<Vec<Option<NodeId>>>>,
    serving: tokio::task::JoinHandle<()>,
}

impl TestNode {
    async fn start(node: NodeId) -> TestNode {
        TestNode::with(node, Setup::default()).await
    }

    async fn with(node: NodeId, setup: Setup) -> TestNode {
        let admission = Arc::new(Admission::new(Participation::Votes));
        let hand_overs = Arc::<Mutex<Vec<_>>>::default();
        let (transport, shutdown) = Transport::new(Options {
            node,
            client: ClientAddress {
                host: "client.example".to_owned(),
                port: setup.client_port.unwrap_or(node as u16),
                tls_port: 0,
            },
            secret: setup.secret.map(|secret| secret.as_bytes().to_vec()),
            standing: Standing {
                cluster: setup.cluster_id.unwrap_or(Cluster::from([setup.cluster; 16])),
                votes: true,
                ..Standing::default()
            },
            platform: Arc::new(System),
            security: setup.security,
            connections_max: setup.connections_max.unwrap_or(16),
            admission: admission.clone(),
            hand_over: {
                let asked = hand_overs.clone();
                Arc::new(move |to| asked.lock().unwrap().push(to))
            },
        });
        let listener = TcpListener::bind(setup.addr.unwrap_or_else(|| "127.0.0.1:0".parse().unwrap())).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let answers = Arc::new(setup.answers);
        let serving = tokio::spawn({
            let (transport, answers, memory) = (transport.clone(), answers.clone(), setup.memory);
            async move { transport.serve(listener, answers, memory).await }
        });
        TestNode { transport, shutdown: Some(shutdown), addr, answers, admission, hand_overs, serving }
    }

    fn meet(&self, others: &[(NodeId, SocketAddr)]) {
        let members: BTreeMap<_, _> = others.iter().map(|(node, addr)| (*node, addr.to_string())).collect();
        self.transport.set_peers(members);
    }

    async fn client(&self, node: NodeId, addr: SocketAddr) -> Client {
        self.transport.network().new_client(node, &Peer { addr: addr.to_string() }).await
    }

    fn directory(&self) -> &Directory {
        self.transport.directory()
    }

    async fn stop(&mut self) {
        drop(self.shutdown.take());
        soon(&mut self.serving).await.unwrap();
    }
}
