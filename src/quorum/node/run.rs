//! Starts a node and carries out its orders.

use std::collections::BTreeMap;
use std::io;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use openraft::async_runtime::WatchReceiver;
use openraft::raft::VoteRequest;
use openraft::{Config, SnapshotPolicy};
use tokio::sync::{Semaphore, mpsc, watch};

use crate::persist::disk::{Disk, SendDisk};
use crate::quorum::admission::{Admission, Participation};
use crate::quorum::epoch;
use crate::quorum::lineage::Belonging;
use crate::quorum::net::{self, ClientAddress, Cluster, Handler, Listener, Platform, Security, Shutdown, Standing, Transport};
use crate::quorum::node::application::{Application, Asked};
use crate::quorum::node::begin::{self, Beginning};
use crate::quorum::node::followed::{self, Awaited};
use crate::quorum::node::handle::{Node, Order, Shared};
use crate::quorum::node::members::Members;
use crate::quorum::node::sink::Sink;
use crate::quorum::node::state_machine::StateMachine;
use crate::quorum::node::{Raft, compaction, propose, watch as status};
use crate::quorum::runtime::{Instant, sleep, spawn};
use crate::quorum::store::{
    DiskNow, Lineage, LogLoss, LogStore, LogThread, Options as LogOptions, Owner, Progress, Snapshots, Worker,
};
use crate::quorum::types::{Batch, LeaderId, NodeId, Vote};

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
    /// The folder, for the log and for the snapshots.
    pub disks: (D, D),
    /// Where the folder is.
    pub folder: PathBuf,
    /// How the log is kept, and whose files the folder must have.
    pub log: LogOptions,
    /// Where clients reach the node.
    pub client: ClientAddress,
    /// What all nodes of the cluster know and nobody else.
    pub secret: Option<Vec<u8>>,
    /// What opens sockets and files.
    pub platform: Arc<dyn Platform>,
    /// TLS among the nodes.
    pub security: Security,
    /// Times.
    pub timing: Timing,
}

/// A node whose files are open, and that nothing runs yet.
pub struct Opened<D: Disk, R> {
    /// The node as the executor sees it.
    pub node: Node,
    /// What writes the log. It must run or be stepped while the node runs.
    pub worker: Worker<D>,
    /// The log.
    pub log: LogStore,
    /// What carries its messages.
    pub transport: Transport,
    /// Runs the node until it is closed, or tells the executor why it cannot go on.
    pub running: R,
    /// Ends the transport when it is dropped.
    pub shutdown: Shutdown,
}

/// Opens the node's files, and starts its threads. The other nodes reach it by `listener`.
///
/// # Errors
/// In words: the files cannot be read, are damaged, or belong to another node or cluster; or there can be no thread.
pub fn start<D: SendDisk, M: Application>(options: Options<D>, listener: TcpListener, application: M) -> Result<Node, String> {
    listener.set_nonblocking(true).map_err(|error| error.to_string())?;
    let listen = move || tokio::net::TcpListener::from_std(listener);
    let Opened { mut node, worker, log, running, shutdown, .. } = open(options, application.clone(), listen, Raft::clone)?;
    let thread = std::thread::Builder::new().name("quorum".into()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let ended = runtime.and_then(|runtime| {
            runtime.block_on(async {
                let log_thread = worker.spawn(&log)?;
                spawn(watch_disk(Arc::clone(log.progress())));
                run_to_end(running, shutdown, || close(log_thread)).await
            })
        });
        if let Err(error) = ended {
            application.ask(Asked::Failed(error.to_string()));
        }
    });
    node.thread = Some(thread.map_err(|error| format!("Can't start the thread of the quorum: {error}"))?);
    Ok(node)
}

/// Opens the node's files. When it runs, it calls `listen` for what accepts the connections of other nodes, and `handler` for what
/// answers their requests.
///
/// # Errors
/// In words: the files cannot be read, are damaged, or belong to another node or cluster.
pub fn open<D: SendDisk, M: Application, L: Listener + 'static, H: Handler>(
    options: Options<D>,
    application: M,
    listen: impl FnOnce() -> io::Result<L> + Send,
    handler: impl FnOnce(&Raft<D, M>) -> H + Send,
) -> Result<Opened<D, impl Future<Output = ()> + Send>, String> {
    let Options { node, members, disks, folder, log, client, secret, platform, security, timing } = options;
    let owner = log.owner;
    let describe = |error: &dyn std::fmt::Display| match folder.as_os_str().is_empty() {
        true => error.to_string(),
        false => format!("{}: {error}", folder.display()),
    };
    let (log, worker) = LogStore::open(disks.0, log).map_err(|error| describe(&error))?;
    let mut disk = disks.1;
    // A version without ids has left this one, if the cluster was recovered from a lost majority.
    let has_id = log.is_blank() || log.lineage().id != 0;
    let epoch = if has_id { 0 } else { epoch::read(&mut disk).map_err(|error| describe(&error))? };
    let lineage = if epoch == 0 { log.lineage() } else { Lineage::of(epoch) };
    let mut snapshots = Snapshots::open(disk, &folder, owner).map_err(|error| describe(&error))?;
    snapshots.belong(lineage.id).map_err(|error| describe(&error))?;
    let forgotten = snapshots.forgotten(&log).map_err(|error| describe(&error))?;
    let standing = standing(owner, lineage, begin::is_blank(&log, forgotten));
    let admission = Arc::new(begin::admission(&log, forgotten));
    let (transport, shutdown) = Transport::new(net::Options {
        node,
        client,
        secret,
        standing,
        platform,
        security,
        connections_max: CONNECTIONS_MAX,
        admission: Arc::clone(&admission),
        hand_over: {
            let application = application.clone();
            Arc::new(move |to| application.ask(Asked::HandOver(to)))
        },
    });
    let (told, reports) = (application.clone(), application.clone());
    transport.on_message(Box::new(move |message| told.ask(Asked::Message(message))));
    let belongs = (epoch != 0).then_some(lineage);
    let core = Core {
        node,
        members,
        forgotten,
        belongs,
        lease: Duration::from_millis(timing.election_ms.1),
        log: log.clone(),
        snapshots,
        transport: transport.clone(),
        admission,
        application,
    };
    let config = config(timing).map_err(|error| error.to_string())?;
    let shared = Arc::<Shared>::default();
    let (orders, received) = mpsc::unbounded_channel();
    let (proposals, batches) = mpsc::unbounded_channel();
    let (awaited, awaiting) = watch::channel(Vec::new());
    let telling = transport.clone();
    let node = Node {
        orders,
        awaited,
        proposals,
        shared: Arc::clone(&shared),
        directory: Arc::clone(transport.directory()),
        tell: Box::new(move |message: &[u8]| telling.tell_all(message)),
        progress: Arc::clone(log.progress()),
        lease: Duration::from_millis(timing.election_ms.0),
        thread: None,
    };
    let running = async move {
        if let Err(error) = core.run(config, shared, (received, batches, awaiting), listen, handler).await {
            reports.ask(Asked::Failed(error.to_string()));
        }
    };
    Ok(Opened { node, worker, log, transport, running, shutdown })
}

/// What a node says of itself when it starts.
fn standing(owner: Owner, lineage: Lineage, blank: bool) -> Standing {
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

/// What a node runs with.
struct Core<D: Disk, M> {
    node: NodeId,
    members: BTreeMap<NodeId, String>,
    /// What the node may have forgotten; see [`Snapshots::forgotten`].
    forgotten: LogLoss,
    /// What the log does not know yet of its cluster.
    belongs: Option<Lineage>,
    /// The longest lease that the node may have granted before its restart.
    lease: Duration,
    log: LogStore,
    snapshots: Snapshots<D>,
    transport: Transport,
    admission: Arc<Admission>,
    application: M,
}

impl<D: SendDisk, M: Application> Core<D, M> {
    async fn run<L: Listener + 'static, H: Handler>(
        self,
        config: Arc<Config>,
        shared: Arc<Shared>,
        (orders, batches, awaited): Received,
        listen: impl FnOnce() -> io::Result<L> + Send,
        handler: impl FnOnce(&Raft<D, M>) -> H + Send,
    ) -> io::Result<()> {
        if let Some(lineage) = self.belongs {
            self.log.belong(lineage).await?;
        }
        let snapshots = Arc::new(Mutex::new(self.snapshots));
        let state = StateMachine::begin(self.application.clone(), self.log.clone(), Arc::clone(&snapshots)).await?;
        let network = self.transport.network();
        let raft = Raft::build(self.node, config, network.clone(), self.log.clone(), state).await.map_err(io::Error::other)?;
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
        let compaction = compaction::compact(raft.clone(), Arc::clone(&snapshots), Arc::clone(self.log.progress()));
        spawn(self.transport.clone().serve(listen()?, handler(&raft), Sink(Arc::clone(&snapshots))));
        self.transport.set_peers(self.members.clone());
        // A node that has forgotten something may have a log: it must not stand for election.
        let elects = self.forgotten == LogLoss::Nothing && self.log.is_ready() && self.log.lineage().successor == 0;
        raft.runtime_config().elect(elects);
        raft.run();
        let belonging = Belonging {
            node: self.node,
            log: self.log.clone(),
            snapshots: Arc::clone(&snapshots),
            transport: self.transport.clone(),
        };
        spawn(belonging.clone().settle(raft.clone()));
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
            lease: self.lease,
        };
        spawn(begin::begin(beginning, raft.clone()));
        spawn(compaction);
        spawn(propose::propose(raft.clone(), batches));
        spawn(followed::followed(raft.clone(), self.application.clone(), awaited));
        let application = self.application;
        spawn(status::watch(raft.clone(), self.log.clone(), application.clone(), self.transport.clone()));
        let members = Members { raft: raft.clone(), transport: self.transport, node: self.node, admission: self.admission };
        let (members, changing) = (Arc::new(members), Arc::new(Semaphore::new(1)));
        spawn(Arc::clone(&members).end_changes(Arc::clone(&changing)));
        carry_out(members, changing, orders, application).await;
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
        sleep(LOOK_AT_DISK).await;
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

/// Runs a node to its end, closes its log by `close_log`, and ends its transport.
pub async fn run_to_end<C: Future>(
    running: impl Future<Output = ()>,
    shutdown: Shutdown,
    close_log: impl FnOnce() -> C,
) -> C::Output {
    running.await;
    let closed = close_log().await;
    drop(shutdown);
    closed
}

async fn close(log: LogThread) -> io::Result<()> {
    tokio::task::spawn_blocking(move || log.close()).await.map_err(io::Error::other)?
}

/// Carries out orders until the node is to end.
async fn carry_out<D: SendDisk, M: Application>(
    members: Arc<Members<D, M>>,
    changing: Arc<Semaphore>,
    mut orders: mpsc::UnboundedReceiver<Order>,
    application: M,
) {
    let raft = &members.raft;
    while let Some(order) = orders.recv().await {
        match order {
            Order::Transfer(to) => {
                if raft.is_leader() {
                    let _ = raft.trigger().transfer_leader(to).await;
                }
            }
            Order::AskForHandOver(to) => spawn(ask_for_hand_over(Arc::clone(&members), to)),
            Order::Change(change, id) => match Arc::clone(&changing).try_acquire_owned() {
                Ok(permit) => {
                    let (members, application) = (Arc::clone(&members), application.clone());
                    spawn(async move {
                        let result = members.change(change).await;
                        drop(permit);
                        application.ask(Asked::MembersChanged(id, result));
                    });
                }
                Err(_) => {
                    let refused = Err("another change of the members is under way".to_owned());
                    application.ask(Asked::MembersChanged(id, refused));
                }
            },
            Order::Heartbeats(on) => raft.runtime_config().heartbeat(on),
            Order::StepDown => spawn(step_down(raft.clone(), members.node)),
            Order::Close => break,
        }
    }
}

/// Ends this node's leadership: as if another voter had asked for its vote in the next term. Nobody is told of it.
async fn step_down<D: SendDisk, M: Application>(raft: Raft<D, M>, node: NodeId) {
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
async fn ask_for_hand_over<D: SendDisk, M: Application>(members: Arc<Members<D, M>>, to: Option<NodeId>) {
    let leader = members.raft.current_leader().await.filter(|leader| *leader != members.node);
    let asked = match leader {
        Some(leader) => members.transport.ask_hand_over(leader, to).await,
        None if !members.admission.permits(Participation::Votes) => Err("this node has no vote yet".to_owned()),
        None if to == Some(members.node) => members.raft.trigger().elect(true).await.map_err(|error| error.to_string()),
        None => Err("no node leads".to_owned()),
    };
    if let Err(reason) = asked {
        tracing::warn!("The leadership cannot be handed over: {reason}");
    }
}
