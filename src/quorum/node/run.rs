//! Starts a node and carries out its orders.

use std::collections::BTreeMap;
use std::io;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use openraft::async_runtime::WatchReceiver;
use openraft::network::NetSnapshot;
use openraft::raft::VoteRequest;
use openraft::{AsyncRuntime, Config, Instant as _, RaftNetworkFactory, SnapshotPolicy};
use tokio::sync::{Semaphore, mpsc, watch};

use crate::persist::disk::Disk;
use crate::quorum::admission::{Admission, Part};
use crate::quorum::epoch;
use crate::quorum::lineage::Belonging;
use crate::quorum::net::{self, ClientAddress, Cluster, Neighbours, Security, Standing, Transport};
use crate::quorum::node::begin::{self, Beginning};
use crate::quorum::node::followed::{self, Awaited};
use crate::quorum::node::handle::{Node, Order, Shared};
use crate::quorum::node::machine::Machine;
use crate::quorum::node::members::Members;
use crate::quorum::node::sink::Sink;
use crate::quorum::node::state::{SharedSnapshots, State};
use crate::quorum::node::{Raft, bound, propose, watch as status};
use crate::quorum::runtime::{Instant, Runtime};
use crate::quorum::store::{
    DiskNow, FolderLock, Forgotten, Lineage, LogStore, LogThread, Options as LogOptions, Owner, Progress, Snapshots,
};
use crate::quorum::types::{Batch, LeaderId, NodeId, SnapshotFile, Types, Vote};

/// Maximum number of connections that other nodes may open.
const CONNECTIONS_MAX: usize = 256;
/// Maximum number of entries in one message.
const PAYLOAD_MAX: u64 = 512;
/// Time in which a snapshot must be sent and installed.
const SNAPSHOT_MS: u64 = 300_000;

/// Interval between looks at the disk.
const LOOK_AT_DISK: Duration = Duration::from_millis(100);
/// Time after which it is said that the disk does not answer.
const HANGS: Duration = Duration::from_millis(600);

/// Times of the election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Interval of the leader's heartbeats, in milliseconds.
    pub heartbeat_ms: u64,
    /// Milliseconds without a leader after which a node stands for election: at random between these two, in addition to the second,
    /// which is the leader's lease.
    pub election_ms: (u64, u64),
    /// Number of entries after which a snapshot is made.
    pub snapshot_entries: u64,
    /// Number of entries in a snapshot that are kept in the log all the same, for nodes that are a little behind.
    pub kept_entries: u64,
    /// A node that is further behind than this number of entries is sent a snapshot.
    pub lag_entries_max: u64,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            heartbeat_ms: 50,
            election_ms: (150, 250),
            snapshot_entries: 200_000,
            kept_entries: 10_000,
            lag_entries_max: 1_000_000,
        }
    }
}

/// What a node is started with.
pub struct Options<D> {
    /// The number of this node.
    pub node: NodeId,
    /// All nodes of a new cluster, this one included, with their addresses among themselves.
    pub members: BTreeMap<NodeId, String>,
    /// Whose files the folder must have.
    pub owner: Owner,
    /// The folder, for the log and for the snapshots.
    pub disks: (D, D),
    /// Where the folder is.
    pub folder: PathBuf,
    /// The lock on the folder.
    pub lock: Option<FolderLock>,
    /// Where the other nodes reach this one.
    pub listener: TcpListener,
    /// Where clients reach it.
    pub client: ClientAddress,
    /// What all nodes of the cluster know and nobody else.
    pub secret: Option<Vec<u8>>,
    /// TLS among the nodes.
    pub security: Security,
    /// Times.
    pub timing: Timing,
}

/// Opens the node's files, and starts its threads.
///
/// # Errors
/// In words: the files cannot be read, are damaged, or belong to another node or cluster; or the system's.
pub fn start<D, M>(options: Options<D>, machine: M) -> Result<Node, String>
where
    D: Disk + Send + 'static,
    D::File: Send,
    M: Machine,
{
    let Options { node, members, owner, disks, folder, lock, listener, client, secret, security, timing } = options;
    let describe = |error: &dyn std::fmt::Display| format!("{}: {error}", folder.display());
    let (log, worker) = LogStore::open(disks.0, LogOptions::new(owner, lock)).map_err(|error| describe(&error))?;
    let mut snapshots = Snapshots::open(disks.1, &folder, owner).map_err(|error| describe(&error))?;
    listener.set_nonblocking(true).map_err(|error| error.to_string())?;
    // A version without ids has left this one, if the cluster was recovered from a lost majority.
    let epoch = if log.is_blank() || log.lineage().id != 0 { 0 } else { epoch::read(&folder)? };
    let lineage = if epoch == 0 { log.lineage() } else { Lineage::of(epoch) };
    snapshots.belong(lineage.id).map_err(|error| describe(&error))?;
    let forgotten = snapshots.forgotten(&log).map_err(|error| describe(&error))?;
    let standing = standing(owner, lineage, begin::is_blank(&log, forgotten));
    let admission = Arc::new(begin::admission(&log, forgotten));
    let (transport, open) = Transport::new(net::Options {
        node,
        client,
        secret,
        standing,
        security,
        connections_max: CONNECTIONS_MAX,
        admission: Arc::clone(&admission),
        hand_over: {
            let machine = machine.clone();
            Arc::new(move |to| machine.hand_over(to))
        },
    });
    let told = machine.clone();
    transport.on_message(Box::new(move |message| told.message(message)));
    let (network, thread_of_log) = (transport.network(), log.clone());
    let core = Core {
        node,
        members,
        forgotten,
        timing,
        log,
        snapshots,
        network,
        transport: transport.clone(),
        admission,
        machine: machine.clone(),
    };
    let progress = Arc::clone(core.log.progress());
    let (mut node, running) = core.start(move |raft, snapshots| {
        let handler = raft.clone();
        tokio::spawn(watch_disk(progress));
        tokio::spawn(async move {
            match tokio::net::TcpListener::from_std(listener) {
                Ok(listener) => transport.serve(listener, handler, Sink(snapshots)).await,
                Err(error) => tracing::error!(%error, "cannot listen for the other nodes"),
            }
        });
    })?;
    let thread = std::thread::Builder::new().name("quorum".into()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let ended = runtime.and_then(|runtime| {
            runtime.block_on(async {
                let log_thread = worker.spawn(&thread_of_log)?;
                if epoch != 0 {
                    thread_of_log.belong(lineage).await?;
                }
                running.await?;
                close(log_thread).await
            })
        });
        drop(open);
        if let Err(error) = ended {
            machine.failed(error.to_string());
        }
    });
    node.thread = Some(thread.map_err(|error| format!("Can't start the thread of the quorum: {error}"))?);
    Ok(node)
}

/// What a node says of itself when it starts.
pub fn standing(owner: Owner, lineage: Lineage, blank: bool) -> Standing {
    let mut standing = Standing { cluster: Cluster { name: owner.cluster, id: 0 }, blank, ..Standing::default() };
    standing.belong(lineage);
    standing
}

fn config(timing: Timing) -> Result<Arc<Config>, openraft::ConfigError> {
    let config = Config {
        cluster_name: "portcullis".to_owned(),
        heartbeat_interval: timing.heartbeat_ms,
        election_timeout_min: timing.election_ms.0,
        election_timeout_max: timing.election_ms.1,
        install_snapshot_timeout: SNAPSHOT_MS,
        max_payload_entries: PAYLOAD_MAX,
        replication_lag_threshold: timing.lag_entries_max,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(timing.snapshot_entries),
        max_in_snapshot_log_to_keep: timing.kept_entries,
        enable_pre_vote: Some(true),
        // A leader that was restarted has no state yet: it must be elected like any other node.
        enable_leader_restore: Some(false),
        // A node whose disk was lost begins anew. It has no vote before it has caught up.
        allow_log_reversion: Some(true),
        ..Config::default()
    };
    config.validate().map(Arc::new)
}

/// A node, all but its threads and sockets.
pub struct Core<D: Disk, M, N, T> {
    /// The number of this node.
    pub node: NodeId,
    /// All nodes of a new cluster, this one included.
    pub members: BTreeMap<NodeId, String>,
    /// What the node may have forgotten; see [`Snapshots::forgotten`].
    pub forgotten: Forgotten,
    /// Times.
    pub timing: Timing,
    /// The log. Its [`Worker`](crate::quorum::store::Worker) must run or be stepped meanwhile.
    pub log: LogStore,
    /// The snapshots.
    pub snapshots: Snapshots<D>,
    /// The network for openraft.
    pub network: N,
    /// The rest of the transport.
    pub transport: T,
    /// What the transport must let the others ask of this node.
    pub admission: Arc<Admission>,
    /// What the executor does.
    pub machine: M,
}

impl<D, M, N, T> Core<D, M, N, T>
where
    D: Disk + Send + 'static,
    D::File: Send,
    M: Machine,
    N: RaftNetworkFactory<Types, Network: NetSnapshot<Types, SnapshotData = SnapshotFile>> + Clone,
    T: Neighbours,
{
    /// Returns the node, and what runs it until it is closed. `serve` must pass on what other nodes ask of it.
    ///
    /// # Errors
    /// The times contradict each other, in words.
    pub fn start(
        self,
        serve: impl FnOnce(&Raft<D, M>, SharedSnapshots<D>) + Send,
    ) -> Result<(Node, impl Future<Output = io::Result<()>> + Send), String> {
        let config = config(self.timing).map_err(|error| error.to_string())?;
        let shared = Arc::<Shared>::default();
        let (orders, received) = mpsc::unbounded_channel();
        let (proposals, batches) = mpsc::unbounded_channel();
        let directory = Arc::clone(self.transport.directory());
        let (progress, lease) = (Arc::clone(self.log.progress()), Duration::from_millis(self.timing.election_ms.0));
        let telling = self.transport.clone();
        let tell = Box::new(move |message: &[u8]| telling.tell_all(message));
        let (awaited, awaiting) = watch::channel(Vec::new());
        let node =
            Node { orders, awaited, proposals, shared: Arc::clone(&shared), directory, tell, progress, lease, thread: None };
        Ok((node, self.run(config, shared, (received, batches, awaiting), serve)))
    }

    async fn run(
        self,
        config: Arc<Config>,
        shared: Arc<Shared>,
        (orders, batches, awaited): Received,
        serve: impl FnOnce(&Raft<D, M>, SharedSnapshots<D>) + Send,
    ) -> io::Result<()> {
        let snapshots = Arc::new(Mutex::new(self.snapshots));
        let state = State::begin(self.machine.clone(), self.log.clone(), Arc::clone(&snapshots)).await?;
        let network = self.network.clone();
        let raft = Raft::build(self.node, config, self.network, self.log.clone(), state).await.map_err(io::Error::other)?;
        let acked = {
            let (raft, node, acks) = (raft.clone(), self.node, Arc::clone(&self.transport.directory().acks));
            move || {
                let leader = raft.as_leader().ok()?.to_committed_leader_id();
                let members = Arc::clone(&raft.server_metrics().borrow_watched().membership_config);
                let now = Instant::now();
                acks.quorum(node, leader, members.get_joint_config(), now).map(|at| now - at)
            }
        };
        *shared.acked.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(acked));
        let look = {
            let (raft, log) = (raft.clone(), self.log.clone());
            move || status::status(&raft, &log)
        };
        *shared.look.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(look));
        let bound = bound::bound(raft.clone(), Arc::clone(&snapshots), Arc::clone(self.log.progress()));
        serve(&raft, Arc::clone(&snapshots));
        self.transport.set_peers(self.members.clone());
        // A node that has forgotten something may have a log: it must not stand for election.
        let elects = self.forgotten == Forgotten::Nothing && self.log.is_ready() && self.log.lineage().successor == 0;
        raft.runtime_config().elect(elects);
        raft.run();
        let belonging = Belonging {
            node: self.node,
            log: self.log.clone(),
            snapshots: Arc::clone(&snapshots),
            transport: self.transport.clone(),
        };
        drop(Runtime::spawn(belonging.clone().settle(raft.clone())));
        let beginning = Beginning {
            node: self.node,
            members: self.members,
            forgotten: self.forgotten,
            belonging,
            snapshots,
            transport: self.transport.clone(),
            network,
            admission: Arc::clone(&self.admission),
            log: self.log.clone(),
            lease: Duration::from_millis(self.timing.election_ms.1),
        };
        drop(Runtime::spawn(begin::begin(beginning, raft.clone())));
        drop(Runtime::spawn(bound));
        drop(Runtime::spawn(propose::propose(raft.clone(), batches)));
        drop(Runtime::spawn(followed::followed(raft.clone(), self.machine.clone(), awaited)));
        drop(Runtime::spawn(status::watch(raft.clone(), self.log.clone(), self.machine, self.transport.clone())));
        let members = Members { raft: raft.clone(), transport: self.transport, node: self.node, admission: self.admission };
        let (members, changing) = (Arc::new(members), Arc::new(Semaphore::new(1)));
        drop(Runtime::spawn(Arc::clone(&members).end_changes(Arc::clone(&changing))));
        carry_out(members, changing, orders).await;
        *shared.acked.lock().unwrap_or_else(PoisonError::into_inner) = None;
        *shared.look.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let _ = raft.shutdown().await;
        Ok(())
    }
}

/// What comes from the executor: orders, batches, and what it awaits of followers.
type Received = (mpsc::UnboundedReceiver<Order>, mpsc::UnboundedReceiver<(Batch, LeaderId)>, watch::Receiver<Vec<Awaited>>);

/// Says when the disk of the log does not answer, and when it answers again.
async fn watch_disk(progress: Arc<Progress>) {
    let mut said = false;
    loop {
        tokio::time::sleep(LOOK_AT_DISK).await;
        let DiskNow { busy, refuses } = progress.disk();
        // The log's thread says itself what the disk refuses.
        let hangs = busy >= HANGS && !refuses;
        if hangs && !said {
            tracing::warn!(
                ms = busy.as_millis() as u64,
                "the disk does not answer: nothing that this node confirms is stored until it does"
            );
        } else if said && !hangs {
            tracing::info!("the disk answers again");
        }
        said = hangs;
    }
}

async fn close(log: LogThread) -> io::Result<()> {
    tokio::task::spawn_blocking(move || log.close()).await.map_err(io::Error::other)?
}

/// Carries out orders until the node is to end.
async fn carry_out<D, M, T>(members: Arc<Members<D, M, T>>, changing: Arc<Semaphore>, mut orders: mpsc::UnboundedReceiver<Order>)
where
    T: Neighbours,
    D: Disk + Send + 'static,
    D::File: Send,
    M: Machine,
{
    let raft = &members.raft;
    while let Some(order) = orders.recv().await {
        match order {
            Order::Transfer(to) => {
                if raft.is_leader() {
                    let _ = raft.trigger().transfer_leader(to).await;
                }
            }
            Order::AskForHandOver(to) => drop(Runtime::spawn(ask_for_hand_over(Arc::clone(&members), to))),
            Order::Change(change, changed) => match Arc::clone(&changing).try_acquire_owned() {
                Ok(permit) => {
                    let members = Arc::clone(&members);
                    drop(Runtime::spawn(async move {
                        let result = members.change(change).await;
                        drop(permit);
                        changed(result);
                    }));
                }
                Err(_) => changed(Err("another change of the members is under way".to_owned())),
            },
            Order::Heartbeats(on) => raft.runtime_config().heartbeat(on),
            Order::StepDown => drop(Runtime::spawn(step_down(raft.clone(), members.node))),
            Order::Close => break,
        }
    }
}

/// Ends this node's leadership: as if another voter had asked for its vote in the next term. Nobody is told of it.
async fn step_down<D, M>(raft: Raft<D, M>, node: NodeId)
where
    D: Disk + Send + 'static,
    D::File: Send,
    M: Machine,
{
    let (term, other) = {
        let metrics = raft.server_metrics();
        let metrics = metrics.borrow_watched();
        let mut voters = metrics.membership_config.membership().voter_ids();
        (metrics.vote.leader_id.term, voters.find(|id| *id != node))
    };
    let (Some(other), true) = (other, raft.is_leader()) else { return };
    let last = raft.data_metrics().borrow_watched().last_log;
    if raft.vote(VoteRequest::new(Vote::new(term + 1, other), last)).await.is_ok_and(|answer| answer.vote_granted) {
        tracing::info!("this node has stepped down");
    }
}

/// Asks the leader to hand its leadership over; without one, stands for election if this node is the one that is to lead.
async fn ask_for_hand_over<D, M, T>(members: Arc<Members<D, M, T>>, to: Option<NodeId>)
where
    T: Neighbours,
    D: Disk + Send + 'static,
    D::File: Send,
    M: Machine,
{
    let leader = members.raft.current_leader().await.filter(|leader| *leader != members.node);
    let asked = match leader {
        Some(leader) => members.transport.ask_hand_over(leader, to).await,
        None if !members.admission.permits(Part::Votes) => Err("this node has no vote yet".to_owned()),
        None if to == Some(members.node) => members.raft.trigger().elect(true).await.map_err(|error| error.to_string()),
        None => Err("no node leads".to_owned()),
    };
    if let Err(reason) = asked {
        tracing::warn!("The leadership cannot be handed over: {reason}");
    }
}
