//! The transport of one node as its user sees it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::quorum::admission::Admission;
use crate::quorum::cluster::Standing;
use crate::quorum::net::client::Network;
use crate::quorum::net::dial::{Listener, Platform, Security};
use crate::quorum::net::directory::Directory;
use crate::quorum::net::frame::{Kind, encode_message};
use crate::quorum::net::handler::Handler;
use crate::quorum::net::hello::{ClientAddress, Identity};
use crate::quorum::net::keeper::{OnMessage, Shared};
use crate::quorum::net::server::{Service, serve};
use crate::quorum::net::snapshot::SnapshotSink;
use crate::quorum::runtime::timeout;
use crate::quorum::types::{ClusterId, NodeId};

/// What a transport is made with.
pub struct Options {
    /// The number of this node.
    pub node: NodeId,
    /// Where clients reach this node.
    pub client: ClientAddress,
    /// `cluster-secret`: nodes that do not know it are refused. `None` if there is none.
    pub secret: Option<Vec<u8>>,
    /// What this node knows of itself at the start.
    pub standing: Standing,
    /// What opens sockets and files.
    pub platform: Arc<dyn Platform>,
    /// TLS, or none.
    pub security: Security,
    /// Maximum number of connections that other nodes may open.
    pub connections_max: usize,
    /// What this node takes part in.
    pub admission: Arc<Admission>,
    /// Called when another node asks this one to hand its leadership over.
    pub hand_over: HandOver,
}

/// Orders a hand-over of the leadership: to a node, or to the one that has most of the log. Returns at once.
pub type HandOver = Arc<dyn Fn(Option<NodeId>) + Send + Sync>;

/// Time within which a node must answer that it has been asked.
const ASKING_TIME: Duration = Duration::from_secs(2);

/// Ends the transport with all its connections and tasks when it is dropped.
pub struct Shutdown {
    _open: watch::Sender<()>,
}

/// The transport of one node. Its tasks run on the runtime on which it is used.
#[derive(Clone)]
pub struct Transport {
    shared: Arc<Shared>,
    connections_max: usize,
    admission: Arc<Admission>,
    hand_over: HandOver,
}

impl Transport {
    /// A transport that knows no other node yet.
    pub fn new(options: Options) -> (Transport, Shutdown) {
        let Options { node, client, secret, standing, platform, security, connections_max, admission, hand_over } = options;
        let (open, shutdown) = watch::channel(());
        let me = Identity::new(node, client, secret, standing);
        let shared = Arc::new(Shared::new(me, platform, security, shutdown));
        (Transport { shared, connections_max, admission, hand_over }, Shutdown { _open: open })
    }

    /// Sets what takes the messages of other nodes. The first call counts.
    pub fn on_message(&self, take: OnMessage) {
        let _ = self.shared.on_message.set(take);
    }

    /// The network for `openraft::Raft::new`. Nodes that openraft asks for become members here.
    pub fn network(&self) -> Network {
        Network { shared: self.shared.clone() }
    }

    /// Serves the other nodes on a listening socket until the shutdown.
    pub async fn serve<H: Handler, K: SnapshotSink>(self, listener: impl Listener, handler: H, sink: K) {
        let Transport { shared, connections_max, admission, hand_over } = self;
        let service = Service { shared, handler, sink, admission, hand_over, connections_max };
        serve(listener, Arc::new(service)).await;
    }

    /// What is known of the other nodes. Any thread may read it.
    pub fn directory(&self) -> &Arc<Directory> {
        &self.shared.directory
    }

    /// What this node says of itself. Any thread may call this.
    pub fn standing(&self) -> Standing {
        *self.shared.me.standing().borrow()
    }

    /// Changes what this node says of itself. The others are told at once. Any thread may call this.
    pub fn change_standing(&self, change: impl FnOnce(&mut Standing)) {
        self.shared.me.standing().send_if_modified(|known| {
            let before = *known;
            change(known);
            *known != before
        });
    }

    /// Plants a fault: the node takes messages of any cluster.
    #[cfg(feature = "torture")]
    pub fn take_any_cluster(&self) {
        self.shared.me.take_any_cluster();
    }

    /// Asks the members to which this node is connected what they are. Any thread may call this.
    pub fn inquire(&self) {
        // Each connection sends a ping.
        self.shared.me.standing().send_modify(|_| {});
    }

    /// Tells of the cluster that was recovered from this one, and has taken its place. 0: none is known.
    pub fn successor(&self) -> watch::Receiver<ClusterId> {
        self.shared.me.successor().subscribe()
    }

    /// The members are these nodes, at these addresses (`host:port`); this node may be among them. A connection to each is kept open.
    /// Must be called on the runtime.
    pub fn set_peers(&self, members: BTreeMap<NodeId, String>) {
        self.shared.set_peers(members);
    }

    /// Sends a message to all members that are connected. It may be lost, and each connection keeps the order. Any thread may call
    /// this.
    pub fn tell_all(&self, message: &[u8]) {
        self.shared.tell_all(message);
    }

    /// Asks the leader, which is a member, to hand its leadership over: to a node, or to the one that has most of the log. Returns when
    /// it has been asked.
    ///
    /// # Errors
    /// In words: there is no connection, or no answer in time.
    pub async fn ask_hand_over(&self, leader: NodeId, to: Option<NodeId>) -> Result<(), String> {
        let unreachable = || format!("node {leader}, which leads, does not answer");
        let addr = self.directory().get(leader).and_then(|peer| peer.addr).ok_or_else(unreachable)?;
        let frame = encode_message(Kind::HandOver, 0, &to, 8).unwrap_or_default();
        let asking = async {
            let link = self.shared.peer(leader, &addr).connection(ASKING_TIME).await.ok_or_else(unreachable)?;
            link.send(frame).await.map_err(|_| unreachable())?.map(drop)
        };
        timeout(ASKING_TIME, asking).await.map_err(|_| unreachable())?
    }
}
