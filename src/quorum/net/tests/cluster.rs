//! Three nodes of openraft over the transport, each with a thread and a runtime of its own, and logs in memory.

use std::fmt::Debug;
use std::ops::RangeBounds;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Instant;

use futures_util::{Stream, TryStreamExt};
use openraft::async_runtime::WatchReceiver;
use openraft::storage::{
    EntryResponder, IOFlushed, LogState, RaftLogReader, RaftLogStorage, RaftSnapshotBuilder, RaftStateMachine,
};
use openraft::{Config, EntryPayload, OptionalSend, Raft, SnapshotPolicy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use super::*;
use crate::quorum::node::watch::why_ended;
use crate::quorum::types::Vote as Promise;

/// The time between two heartbeats.
const HEARTBEAT_MS: u64 = 200;

type StoredMembership = openraft::alias::StoredMembershipOf<Types>;

/// A log that is durable as soon as it is written.
#[derive(Clone, Default)]
struct MemoryLog(Arc<Mutex<Log>>);

#[derive(Default)]
struct Log {
    entries: BTreeMap<u64, Entry>,
    vote: Option<Promise>,
}

impl RaftLogReader<Types> for MemoryLog {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: R,
    ) -> io::Result<Vec<Entry>> {
        Ok(self.0.lock().unwrap().entries.range(range).map(|(_, entry)| entry.clone()).collect())
    }

    async fn read_vote(&mut self) -> io::Result<Option<Promise>> {
        Ok(self.0.lock().unwrap().vote)
    }
}

impl RaftLogStorage<Types> for MemoryLog {
    type LogReader = MemoryLog;

    async fn get_log_state(&mut self) -> io::Result<LogState<Types>> {
        let last_log_id = self.0.lock().unwrap().entries.values().next_back().map(|entry| entry.log_id);
        Ok(LogState { last_purged_log_id: None, last_log_id })
    }

    async fn get_log_reader(&mut self) -> MemoryLog {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Promise) -> io::Result<()> {
        self.0.lock().unwrap().vote = Some(*vote);
        Ok(())
    }

    async fn append<I>(&mut self, entries: I, flushed: IOFlushed<Types>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        self.0.lock().unwrap().entries.extend(entries.into_iter().map(|entry| (entry.log_id.index, entry)));
        flushed.io_completed(Ok(()));
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        self.0.lock().unwrap().entries.split_off(&last.map_or(0, |last| last.index + 1));
        Ok(())
    }

    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        self.0.lock().unwrap().entries.retain(|index, _| *index > upto.index);
        Ok(())
    }
}

/// Remembers the numbers of applied batches. There are no snapshots.
#[derive(Clone, Default)]
struct Applied(Arc<Mutex<State>>);

/// Numbers of batches, the last entry, and the members.
type State = (Vec<u64>, Option<LogId>, StoredMembership);

impl RaftSnapshotBuilder<Types> for Applied {
    type SnapshotData = SnapshotFile;

    async fn build_snapshot(&mut self) -> io::Result<Snapshot> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl RaftStateMachine<Types> for Applied {
    type SnapshotData = SnapshotFile;
    type SnapshotBuilder = Applied;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        let applied = self.0.lock().unwrap();
        Ok((applied.1, applied.2.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Types>>> + Unpin + OptionalSend,
    {
        while let Some((entry, responder)) = entries.try_next().await? {
            let mut applied = self.0.lock().unwrap();
            applied.1 = Some(entry.log_id);
            match entry.payload {
                EntryPayload::Normal(batch) => applied.0.push(batch.number),
                EntryPayload::Membership(membership) => applied.2 = StoredMembership::new(Some(entry.log_id), membership),
                EntryPayload::Blank => {}
            }
            if let Some(responder) = responder {
                responder.send(());
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Applied {
        self.clone()
    }

    async fn install_snapshot(&mut self, _: &SnapshotMeta, _: SnapshotFile) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snapshot>> {
        Ok(None)
    }
}

/// A thread with a runtime, until it is dropped.
struct Site {
    runtime: Handle,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Site {
    fn new() -> Site {
        let (sender, receiver) = mpsc::channel();
        let (end, ended) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            sender.send(runtime.handle().clone()).unwrap();
            let _ = runtime.block_on(ended);
        });
        Site { runtime: receiver.recv().unwrap(), end: Some(end), thread: Some(thread) }
    }

    /// Runs something on the site's thread and returns its result.
    fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        let (sender, receiver) = mpsc::channel();
        self.runtime.spawn(async move { sender.send(soon(work).await) });
        receiver.recv_timeout(2 * LONG).expect("the work ends")
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.end.take();
        self.thread.take().map(JoinHandle::join);
    }
}

struct Member {
    node: NodeId,
    raft: Raft<Types, Applied>,
    applied: Applied,
    transport: Transport,
    _shutdown: Shutdown,
    site: Site,
}

impl Member {
    fn start(node: NodeId, listener: std::net::TcpListener) -> Member {
        let site = Site::new();
        let (transport, shutdown) = Transport::new(Options {
            node,
            client: ClientAddress::default(),
            secret: Some(b"secret".to_vec()),
            standing: Standing::default(),
            platform: Arc::new(System),
            security: Security::default(),
            connections_max: 16,
            admission: Arc::new(Admission::new(Participation::Votes)),
            hand_over: Arc::new(|_| ()),
        });
        let applied = Applied::default();
        let (network, machine, served) = (transport.clone(), applied.clone(), transport.clone());
        let raft = site.run(async move {
            let config = Config {
                // So long that a busy machine deposes no leader.
                heartbeat_interval: HEARTBEAT_MS,
                election_timeout_min: 5 * HEARTBEAT_MS,
                election_timeout_max: 10 * HEARTBEAT_MS,
                snapshot_policy: SnapshotPolicy::Never,
                enable_pre_vote: Some(true),
                ..Config::default()
            };
            let config = Arc::new(config.validate().unwrap());
            let raft = Raft::new(node, config, network.network(), MemoryLog::default(), machine).await.unwrap();
            let handler = raft.clone();
            listener.set_nonblocking(true).unwrap();
            let listener = TcpListener::from_std(listener).unwrap();
            tokio::spawn(async move { served.serve(listener, handler, Memory::default()).await });
            raft
        });
        Member { node, raft, applied, transport, _shutdown: shutdown, site }
    }

    /// Commits batches one after the other, and returns how long each took.
    fn commit(&self, numbers: std::ops::Range<u64>) -> Vec<Duration> {
        let raft = self.raft.clone();
        self.site.run(async move {
            let mut took = Vec::new();
            for number in numbers {
                let began = Instant::now();
                raft.client_write(batch(number)).await.unwrap();
                took.push(began.elapsed());
            }
            took
        })
    }
}

fn batch(number: u64) -> Batch {
    Batch { origin: 1, number, time: ClusterTime::default(), bytes: Bytes::from_static(&[b'x'; 100]) }
}

fn median(mut took: Vec<Duration>) -> Duration {
    took.sort();
    took[took.len() / 2]
}

/// Waits until one of the members leads and has committed something as leader.
fn leader(members: &[Member]) -> usize {
    let began = Instant::now();
    loop {
        for (at, member) in members.iter().enumerate() {
            let raft = member.raft.clone();
            if raft.is_leader()
                && member.site.run(async move { raft.ensure_linearizable(openraft::ReadPolicy::ReadIndex).await.is_ok() })
            {
                return at;
            }
        }
        assert!(began.elapsed() < LONG, "nobody leads");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until all members have applied these batches, and nothing else.
fn all_applied(members: &[Member], expected: std::ops::Range<u64>) {
    let expected: Vec<_> = expected.collect();
    let began = Instant::now();
    while members.iter().any(|member| member.applied.0.lock().unwrap().0 != expected) {
        if began.elapsed() > LONG {
            for member in members {
                let applied = &member.applied.0.lock().unwrap().0;
                let differs = applied.iter().zip(&expected).position(|(a, b)| a != b);
                println!(
                    "node {} has applied {} batches, of {}; the first difference is at {differs:?}",
                    member.node,
                    applied.len(),
                    expected.len()
                );
            }
            panic!("not all have applied the batches");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn three_nodes_elect_a_leader_commit_and_survive_its_end() {
    let listeners: Vec<_> = (0..3).map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let peers =
        listeners.iter().zip(1..).map(|(listener, node)| (node, Peer { addr: listener.local_addr().unwrap().to_string() }));
    let peers: BTreeMap<NodeId, Peer> = peers.collect();
    let mut members: Vec<_> = listeners.into_iter().zip(1..).map(|(listener, node)| Member::start(node, listener)).collect();
    let raft = members[0].raft.clone();
    members[0].site.run(async move { raft.initialize(peers).await.unwrap() });

    let first = leader(&members);
    let one_by_one = median(members[first].commit(1..1_001));
    let (others, appends) = appends(&members, first);
    let raft = members[first].raft.clone();
    let many = members[first].site.run(async move {
        let began = Instant::now();
        for number in 1_001..2_000 {
            raft.client_write_ff(batch(number), None).await.unwrap();
        }
        raft.client_write(batch(2_000)).await.unwrap();
        began.elapsed()
    });
    all_applied(&members, 1..2_001);
    let ended = members.remove(first);
    let began = Instant::now();
    drop(ended);
    let second = leader(&members);
    let without = began.elapsed();
    members[second].commit(2_001..2_101);
    all_applied(&members, 1..2_101);

    let (alone, echo, transport) = (median(alone()), median(echoes()), median(round_trips()));
    println!(
        "a commit takes {one_by_one:?} (median of 1,000, one after the other) and {:.1} appends to each of {others} nodes; 1,000 at once \
         take {many:?}; a commit of a single node takes {alone:?}, the transport's round trip {transport:?}, an echo over TCP {echo:?}; \
         there was no leader for {without:?}",
        appends as f64 / others as f64 / 1_000.0
    );
    // A commit that waits for a heartbeat waits for half of the time between two, in the median.
    assert!(one_by_one < Duration::from_millis(HEARTBEAT_MS) / 4, "a commit takes {one_by_one:?}");
}

/// Number of the other nodes, and of the appends that they have answered to the leader.
fn appends(members: &[Member], leader: usize) -> (usize, u64) {
    let known = members[leader].transport.directory().all();
    (known.len(), known.iter().map(|info| info.appends.count).sum())
}

/// Commits of a cluster of one node: what openraft itself takes.
fn alone() -> Vec<Duration> {
    let member = Member::start(1, std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let (raft, peers) = (member.raft.clone(), BTreeMap::from([(1, Peer::default())]));
    member.site.run(async move { raft.initialize(peers).await.unwrap() });
    leader(std::slice::from_ref(&member));
    member.commit(1..1_001)
}

/// Round trips of 200 bytes over TCP between two runtimes, without the transport.
fn echoes() -> Vec<Duration> {
    let (near, far) = (Site::new(), Site::new());
    let addr = far.run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.set_nodelay(true).unwrap();
            let mut bytes = [0; 200];
            while stream.read_exact(&mut bytes).await.is_ok() {
                stream.write_all(&bytes).await.unwrap();
            }
        });
        addr
    });
    near.run(async move {
        let mut stream = tokio::net::TcpStream::connect(addr).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let mut took = Vec::new();
        for _ in 0..1_000 {
            let (began, mut bytes) = (Instant::now(), [0; 200]);
            stream.write_all(&bytes).await.unwrap();
            stream.read_exact(&mut bytes).await.unwrap();
            took.push(began.elapsed());
        }
        took
    })
}

/// Round trips of appends between two runtimes, without Raft.
fn round_trips() -> Vec<Duration> {
    let (near, far) = (Site::new(), Site::new());
    let two = far.run(TestNode::start(2));
    let addr = two.addr;
    near.run(async move {
        use openraft::network::RaftNetworkV2;
        let one = TestNode::start(1).await;
        let mut client = one.client(2, addr).await;
        known(one.directory(), 2, |info| info.connected).await;
        let mut took = Vec::new();
        for index in 1..=1_000 {
            let began = Instant::now();
            client.append_entries(append(index, 100), option()).await.unwrap();
            took.push(began.elapsed());
        }
        took
    })
}

#[test]
fn a_node_that_has_panicked_in_openraft_says_that_it_has_ended() {
    let listen = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let why = |panics: bool| {
        let member = Member::start(1, listen());
        let raft = member.raft.clone();
        member.site.run(async move {
            let mut metrics = raft.server_metrics();
            if panics {
                let _ = raft.with_raft_state(|_| -> () { panic!("on purpose") }).await;
            } else {
                raft.shutdown().await.unwrap();
            }
            while metrics.changed().await.is_ok() {}
            why_ended(&raft)
        })
    };
    assert!(why(true).contains("a defect has ended its part"));
    assert!(why(false).contains("stopped"), "{}", why(false));
}
