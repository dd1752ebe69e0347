//! Keeps a connection to each member open.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;

use crate::quorum::append_check::LeaderCheck;
use crate::quorum::net::dial::{self, Platform, Security};
use crate::quorum::net::directory::Directory;
use crate::quorum::net::frame::{Kind, encode};
use crate::quorum::net::hello::{self, Identity, Purpose};
use crate::quorum::net::link::{self, Link, Peer};
use crate::quorum::net::quiet::Quiet;
use crate::quorum::net::wire::Wire;
use crate::quorum::runtime::{Instant, random, sleep, spawn};
use crate::quorum::types::NodeId;

/// First and longest pause between two attempts to connect.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));

/// A connection that has lasted so long makes the next pause the first one again.
const LASTING: Duration = Duration::from_secs(2);

/// Maximum length of a message in bytes.
const MESSAGE_MAX: usize = 32 << 20;

/// Takes the messages of other nodes.
pub type OnMessage = Box<dyn Fn(Bytes) + Send + Sync>;

/// What all tasks of the transport share.
pub struct Shared {
    /// Who this node is.
    pub me: Identity,
    /// What it knows of the others.
    pub directory: Arc<Directory>,
    /// What opens sockets and files.
    pub platform: Arc<dyn Platform>,
    /// How sockets are encrypted.
    pub security: Security,
    /// Closes when everything is to end.
    pub shutdown: watch::Receiver<()>,
    /// Takes the messages of other nodes. Without it they are dropped.
    pub on_message: OnceLock<OnMessage>,
    peers: Mutex<BTreeMap<NodeId, Arc<Peer>>>,
    /// What the last leader has said of its log, over all its connections.
    pub leader: LeaderCheck,
}

impl Shared {
    /// A transport that knows no other node.
    pub fn new(me: Identity, platform: Arc<dyn Platform>, security: Security, shutdown: watch::Receiver<()>) -> Shared {
        let (directory, on_message) = (Arc::default(), OnceLock::new());
        Shared {
            me,
            directory,
            platform,
            security,
            shutdown,
            on_message,
            peers: Mutex::default(),
            leader: LeaderCheck::default(),
        }
    }

    /// Waits until everything is to end.
    pub async fn ended(&self) {
        let mut shutdown = self.shutdown.clone();
        while shutdown.changed().await.is_ok() {}
    }

    /// Opens a connection to a node and begins it.
    ///
    /// # Errors
    /// See [`hello::Failure`].
    pub async fn dial(&self, node: NodeId, addr: &str, purpose: Purpose) -> Result<Wire, hello::Failure> {
        let mut wire = dial::open(&*self.platform, addr, &self.security).await?;
        let hello = hello::connect(&mut wire, &self.me, node, purpose).await?;
        self.directory.set_dialled(hello);
        Ok(wire)
    }

    /// Sends a message to each member that is connected.
    pub fn tell_all(&self, message: &[u8]) {
        if message.len() > MESSAGE_MAX {
            return tracing::warn!(bytes = message.len(), "a message is too long for the other nodes");
        }
        let peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        for peer in peers.values() {
            if let Some(link) = &*peer.link.borrow() {
                link.tell(encode(Kind::Message, 0, message));
            }
        }
    }

    /// The members are these nodes, at these addresses. The connections to others end.
    pub fn set_peers(self: &Arc<Shared>, members: BTreeMap<NodeId, String>) {
        let gone: Vec<_> = {
            let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
            let gone = peers.keys().copied().filter(|node| !members.contains_key(node)).collect::<Vec<_>>();
            gone.into_iter().filter_map(|node| peers.remove(&node)).collect()
        };
        for peer in gone {
            peer.addr.send_replace(None);
            self.directory.set_address(peer.node(), None);
        }
        for (node, addr) in members {
            if node != self.me.node() {
                self.peer(node, &addr);
            }
        }
    }

    /// A member and its address. It is kept connected from now on.
    pub fn peer(self: &Arc<Shared>, node: NodeId, addr: &str) -> Arc<Peer> {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        self.directory.set_address(node, Some(addr.to_owned()));
        if let Some(peer) = peers.get(&node) {
            peer.addr.send_if_modified(|known| {
                let changed = known.as_deref() != Some(addr);
                *known = Some(addr.to_owned());
                changed
            });
            return peer.clone();
        }
        let peer = Arc::new(Peer::new(node, addr.to_owned(), &self.directory));
        peers.insert(node, peer.clone());
        spawn(keep(self.clone(), peer.clone()));
        peer
    }
}

/// Keeps a connection to a node open until it is no member any more or everything ends.
async fn keep(shared: Arc<Shared>, peer: Arc<Peer>) {
    let quiet = Quiet::default();
    let mut pause = PAUSE.0;
    let mut addr = peer.addr.subscribe();
    loop {
        let Some(target) = addr.borrow_and_update().clone() else { break };
        let began = Instant::now();
        let (reason, told) = tokio::select! {
            biased;
            () = shared.ended() => break,
            // A node that is no member any more has none. Its removal is told by who removes it.
            _ = addr.changed() => match addr.borrow().as_deref() {
                Some(addr) => (format!("its address is {addr} now"), Told::Often),
                None => break,
            },
            ended = stay_connected(&shared, &peer, &target, &quiet) => ended,
        };
        peer.link.send_replace(None);
        if match told {
            Told::Never => false,
            Told::Once => quiet.is_new(&reason),
            Told::Often => quiet.allows(&reason),
        } {
            tracing::warn!("No connection to node {} at {target}: {reason}", peer.node());
        }
        shared.directory.set_connected(peer.node(), Err(reason));
        if began.elapsed() > LASTING {
            pause = PAUSE.0;
        }
        // From half of the pause to all of it, at random, so that nodes do not meet in step.
        let random = f64::from(random() as u32) / f64::from(u32::MAX);
        tokio::select! {
            biased;
            () = sleep(pause.mul_f64(0.5 + 0.5 * random)) => {}
            _ = addr.changed() => {}
            () = shared.ended() => break,
        }
        pause = (pause * 2).min(PAUSE.1);
    }
    peer.link.send_replace(None);
    shared.directory.set_connected(peer.node(), Err("it is no member".to_owned()));
}

/// How often it is logged that there is no connection.
enum Told {
    /// It is over soon.
    Never,
    /// Until there was a connection.
    Once,
    Often,
}

/// Connects, and carries requests until the connection ends. Returns why there is none.
async fn stay_connected(shared: &Arc<Shared>, peer: &Peer, addr: &str, quiet: &Quiet) -> (String, Told) {
    let mut wire = match shared.dial(peer.node(), addr, Purpose::Requests).await {
        Ok(wire) => wire,
        Err(failure) if failure.is_early() => return (failure.to_string(), Told::Never),
        Err(failure) if failure.lasts() => return (failure.to_string(), Told::Once),
        Err(failure) => return (failure.to_string(), Told::Often),
    };
    peer.nonsense.send_replace(None);
    let mut nonsense = peer.nonsense.subscribe();
    let (link, requests) = Link::new();
    peer.link.send_replace(Some(link));
    shared.directory.set_connected(peer.node(), Ok(()));
    quiet.reset();
    tracing::info!("Connected to node {} at {addr}", peer.node());
    let reason = tokio::select! {
        biased;
        Ok(nonsense) = nonsense.wait_for(Option::is_some) => nonsense.as_ref().map(ToString::to_string).unwrap_or_default(),
        reason = link::carry(&mut wire, peer, &shared.me, &shared.directory, requests) => reason,
    };
    (reason, Told::Often)
}
