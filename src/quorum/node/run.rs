//! Starts a node and carries out its orders.

use std::collections::BTreeMap;
use std::io;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use openraft::{Config, Instant, SnapshotPolicy};
use tokio::sync::mpsc;

use crate::persist::disk::Disk;
use crate::quorum::net::{self, ClientAddress, Security, Standing, Transport};
use crate::quorum::node::begin::{self, Beginning};
use crate::quorum::node::handle::{Node, Order, Shared};
use crate::quorum::node::machine::Machine;
use crate::quorum::node::sink::Sink;
use crate::quorum::node::state::State;
use crate::quorum::node::{Raft, watch};
use crate::quorum::store::{FolderLock, LogStore, LogThread, Options as LogOptions, Owner, Snapshots, Worker};
use crate::quorum::types::NodeId;

/// Maximum number of connections that other nodes may open.
const CONNECTIONS_MAX: usize = 256;
/// Maximum number of entries in one message.
const PAYLOAD_MAX: u64 = 512;
/// A node that is further behind than this number of entries is sent a snapshot.
const LAG_MAX: u64 = 1_000_000;
/// Number of entries in a snapshot that are kept in the log all the same, for nodes that are a little behind.
const KEPT: u64 = 10_000;
/// Time in which a snapshot must be sent and installed.
const SNAPSHOT_MS: u64 = 300_000;

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
}

impl Default for Timing {
    fn default() -> Timing {
        Timing { heartbeat_ms: 50, election_ms: (150, 250), snapshot_entries: 200_000 }
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
    let snapshots = Snapshots::open(disks.1, &folder, owner).map_err(|error| describe(&error))?;
    listener.set_nonblocking(true).map_err(|error| error.to_string())?;
    let mut cluster = [0; 16];
    cluster[..8].copy_from_slice(&owner.cluster.to_be_bytes());
    let standing = Standing { cluster, blank: log.is_blank() };
    let refuses = Arc::new(AtomicBool::new(true));
    let (transport, open) = Transport::new(net::Options {
        node,
        client,
        secret,
        standing,
        security,
        connections_max: CONNECTIONS_MAX,
        refuse_votes: Arc::clone(&refuses),
    });
    let config = config(timing).map_err(|error| error.to_string())?;
    let shared = Arc::<Shared>::default();
    let (orders, received) = mpsc::unbounded_channel();
    let (told, progress) = (machine.clone(), Arc::clone(log.progress()));
    transport.on_message(Box::new(move |message| told.message(message)));
    let telling = transport.clone();
    let running = Running {
        node,
        members,
        standing,
        config,
        log,
        worker,
        snapshots,
        listener,
        transport,
        refuses,
        shared: Arc::clone(&shared),
        machine,
        lease: Duration::from_millis(timing.election_ms.1),
    };
    let thread = std::thread::Builder::new().name("quorum".into()).spawn(move || {
        let machine = running.machine.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let ended = runtime.and_then(|runtime| runtime.block_on(running.run(received)));
        drop(open);
        if let Err(error) = ended {
            machine.failed(error.to_string());
        }
    });
    let thread = thread.map_err(|error| format!("Can't start the thread of the quorum: {error}"))?;
    let lease = Duration::from_millis(timing.election_ms.0);
    Ok(Node { orders, shared, transport: telling, progress, lease, thread: Some(thread) })
}

fn config(timing: Timing) -> Result<Arc<Config>, openraft::ConfigError> {
    let config = Config {
        cluster_name: "portcullis".to_owned(),
        heartbeat_interval: timing.heartbeat_ms,
        election_timeout_min: timing.election_ms.0,
        election_timeout_max: timing.election_ms.1,
        install_snapshot_timeout: SNAPSHOT_MS,
        max_payload_entries: PAYLOAD_MAX,
        replication_lag_threshold: LAG_MAX,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(timing.snapshot_entries),
        max_in_snapshot_log_to_keep: KEPT,
        enable_pre_vote: Some(true),
        // A leader that was restarted has no state yet: it must be elected like any other node.
        enable_leader_restore: Some(false),
        // A node whose disk was lost begins anew. It has no vote before it has caught up.
        allow_log_reversion: Some(true),
        ..Config::default()
    };
    config.validate().map(Arc::new)
}

struct Running<D: Disk, M> {
    node: NodeId,
    members: BTreeMap<NodeId, String>,
    standing: Standing,
    config: Arc<Config>,
    log: LogStore,
    worker: Worker<D>,
    snapshots: Snapshots<D>,
    listener: TcpListener,
    transport: Transport,
    refuses: Arc<AtomicBool>,
    shared: Arc<Shared>,
    machine: M,
    lease: Duration,
}

impl<D, M> Running<D, M>
where
    D: Disk + Send + 'static,
    D::File: Send,
    M: Machine,
{
    async fn run(self, orders: mpsc::UnboundedReceiver<Order>) -> io::Result<()> {
        let log_thread = self.worker.spawn(&self.log)?;
        let snapshots = Arc::new(Mutex::new(self.snapshots));
        let state = State::begin(self.machine.clone(), self.log.clone(), Arc::clone(&snapshots)).await?;
        let network = self.transport.network();
        let raft = Raft::build(self.node, self.config, network, self.log.clone(), state).await.map_err(io::Error::other)?;
        let acked = {
            let raft = raft.clone();
            move || raft.as_leader().ok()?.last_quorum_acked().map(|at| at.elapsed())
        };
        *self.shared.acked.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(acked));
        let heartbeats = {
            let raft = raft.clone();
            move |on| raft.runtime_config().heartbeat(on)
        };
        *self.shared.heartbeats.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(heartbeats));
        let listener = tokio::net::TcpListener::from_std(self.listener)?;
        let (transport, handler) = (self.transport.clone(), raft.clone());
        tokio::spawn(async move { transport.serve(listener, handler, Sink(snapshots)).await });
        self.transport.set_peers(self.members.clone());
        raft.run();
        let beginning = Beginning {
            node: self.node,
            members: self.members,
            standing: self.standing,
            transport: self.transport.clone(),
            refuses: self.refuses,
            lease: self.lease,
        };
        tokio::spawn(begin::begin(beginning, raft.clone()));
        tokio::spawn(watch::watch(raft.clone(), self.machine, Arc::clone(&self.shared), self.transport));
        carry_out(&raft, orders).await;
        *self.shared.acked.lock().unwrap_or_else(PoisonError::into_inner) = None;
        *self.shared.heartbeats.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let _ = raft.shutdown().await;
        close(log_thread).await
    }
}

async fn close(log: LogThread) -> io::Result<()> {
    tokio::task::spawn_blocking(move || log.close()).await.map_err(io::Error::other)?
}

/// Carries out orders until the node is to end.
async fn carry_out<D, M>(raft: &Raft<D, M>, mut orders: mpsc::UnboundedReceiver<Order>)
where
    D: Disk + Send + 'static,
    D::File: Send,
    M: Machine,
{
    while let Some(order) = orders.recv().await {
        match order {
            // If the leadership has ended, `watch` says so.
            Order::Propose(batch, leadership) => _ = raft.write(batch).with_leader(leadership).await,
            Order::Transfer(to, done) => {
                let begun = if raft.is_leader() {
                    raft.trigger().transfer_leader(to).await.map_err(|error| error.to_string())
                } else {
                    Err("this node does not lead".to_owned())
                };
                let _ = done.send(begun);
            }
            Order::Close => break,
        }
    }
}

/// Lets a node vote.
pub(super) fn admit(refuses: &AtomicBool) {
    refuses.store(false, Ordering::Relaxed);
}
