//! The transport of one node as its user sees it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::quorum::net::client::Network;
use crate::quorum::net::dial::Security;
use crate::quorum::net::directory::Directory;
use crate::quorum::net::handler::Handler;
use crate::quorum::net::hello::{ClientAddress, Identity, Standing};
use crate::quorum::net::keeper::{OnMessage, Shared};
use crate::quorum::net::server::{Service, serve};
use crate::quorum::net::snapshot::SnapshotSink;
use crate::quorum::types::NodeId;

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
    /// TLS, or none.
    pub security: Security,
    /// Maximum number of connections that other nodes may open.
    pub connections_max: usize,
    /// While it is true, no other node gets a vote from this one.
    pub refuse_votes: Arc<AtomicBool>,
}

/// Ends the transport with all its connections and tasks when it is dropped.
pub struct Shutdown {
    _open: watch::Sender<()>,
}

/// The transport of one node. Its tasks run on the runtime on which it is used.
#[derive(Clone)]
pub struct Transport {
    shared: Arc<Shared>,
    connections_max: usize,
    refuse_votes: Arc<AtomicBool>,
}

impl Transport {
    /// A transport that knows no other node yet.
    pub fn new(options: Options) -> (Transport, Shutdown) {
        let Options { node, client, secret, standing, security, connections_max, refuse_votes } = options;
        let (open, shutdown) = watch::channel(());
        let shared = Arc::new(Shared::new(Identity::new(node, client, secret, standing), security, shutdown));
        (Transport { shared, connections_max, refuse_votes }, Shutdown { _open: open })
    }

    /// What is known of the other nodes. Any thread may read it.
    pub fn directory(&self) -> &Arc<Directory> {
        &self.shared.directory
    }

    /// What this node says of itself from now on. The others are told at once. Any thread may call this.
    pub fn set_standing(&self, standing: Standing) {
        self.shared.me.standing().send_if_modified(|known| {
            let changed = *known != standing;
            *known = standing;
            changed
        });
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

    /// Sets what takes the messages of other nodes. The first call counts.
    pub fn on_message(&self, take: OnMessage) {
        let _ = self.shared.on_message.set(take);
    }

    /// The network for `openraft::Raft::new`. Nodes that openraft asks for become members here.
    pub fn network(&self) -> Network {
        Network { shared: self.shared.clone() }
    }

    /// Serves the other nodes on a listening socket until the shutdown.
    pub async fn serve<H: Handler, K: SnapshotSink>(&self, listener: TcpListener, handler: H, sink: K) {
        let (shared, refuse_votes) = (self.shared.clone(), self.refuse_votes.clone());
        let service = Service { shared, handler, sink, refuse_votes, connections_max: self.connections_max };
        serve(listener, Arc::new(service)).await;
    }
}
