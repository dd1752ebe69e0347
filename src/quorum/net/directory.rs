//! What this node knows of the other nodes. Any thread may read it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::base::durations::{Durations, Histogram};
use crate::quorum::lease_evidence::LeaseEvidence;
use crate::quorum::net::hello::{ClientAddress, Hello};
use crate::quorum::runtime::Instant;
use crate::quorum::types::NodeId;

/// What is known of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// Its number.
    pub node: NodeId,
    /// Where this node reaches it, as `host:port`, if it is a member.
    pub addr: Option<String>,
    /// What it said of itself last.
    pub hello: Option<Hello>,
    /// What was said last at its address, on the connection that this node has opened. Any process can call itself this node on a
    /// connection that it opens.
    pub dialled: Option<Hello>,
    /// There is a connection to it.
    pub connected: bool,
    /// Number of its connections to this node.
    pub inbound: u32,
    /// Time since anything was received from it.
    pub last_heard: Option<Duration>,
    /// Why the last attempt to connect to it failed, unless one succeeded since.
    pub failure: Option<String>,
    /// Round trips of pings: the network and both event loops.
    pub pings: Durations,
    /// Round trips of appends: the same with the other node's disk.
    pub appends: Durations,
}

impl PeerInfo {
    /// What the node at its address says of itself, while there is a connection to it.
    pub fn connected_hello(&self) -> Option<&Hello> {
        self.dialled.as_ref().filter(|_| self.connected)
    }

    /// Where clients reach it.
    pub fn client(&self) -> Option<&ClientAddress> {
        self.hello.as_ref().map(|hello| &hello.client)
    }
}

/// The part of an entry that changes with each frame.
#[derive(Default)]
pub struct Traffic {
    /// Microseconds since the directory's beginning, plus one; 0 is never.
    heard: AtomicU64,
    inbound: AtomicU32,
    /// See [`PeerInfo::pings`].
    pub pings: Histogram,
    /// See [`PeerInfo::appends`].
    pub appends: Histogram,
}

#[derive(Default)]
struct Known {
    addr: Option<String>,
    hello: Option<Hello>,
    dialled: Option<Hello>,
    connected: bool,
    failure: Option<String>,
    traffic: Arc<Traffic>,
}

/// A node whose connection this node has refused, and when it did so last.
struct Refused {
    who: String,
    reason: String,
    at: Instant,
}

/// What this node knows of the other nodes.
pub struct Directory {
    /// When they are known to have followed this node.
    pub acks: Arc<LeaseEvidence>,
    began: Instant,
    nodes: Mutex<BTreeMap<NodeId, Known>>,
    refused: Mutex<Vec<Refused>>,
    changes: watch::Sender<u64>,
}

/// Time for which a refused connection is shown. A node that is refused tries again within a second.
const REFUSED_TIME: Duration = Duration::from_secs(10);
/// Maximum number of refused connections that are shown.
const REFUSED_MAX: usize = 8;

impl Default for Directory {
    fn default() -> Directory {
        let (acks, began, changes) = (Arc::default(), Instant::now(), watch::Sender::new(0));
        Directory { acks, began, nodes: Mutex::default(), refused: Mutex::default(), changes }
    }
}

impl Directory {
    /// What is known of a node.
    pub fn get(&self, node: NodeId) -> Option<PeerInfo> {
        self.lock().get(&node).map(|known| self.info(node, known))
    }

    /// What is known of each node, in the order of their numbers. This node is not among them.
    pub fn all(&self) -> Vec<PeerInfo> {
        self.lock().iter().map(|(node, known)| self.info(*node, known)).collect()
    }

    /// Tells of each change but those of times and round trips. The number counts the changes.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The counters of a node, which becomes known.
    pub fn traffic(&self, node: NodeId) -> Arc<Traffic> {
        self.lock().entry(node).or_default().traffic.clone()
    }

    /// Records that something was received.
    pub fn heard(&self, traffic: &Traffic) {
        traffic.heard.store(self.began.elapsed().as_micros() as u64 + 1, Relaxed);
    }

    /// Sets the address of a member, or that the node is no member.
    pub fn set_address(&self, node: NodeId, addr: Option<String>) {
        self.change(node, |known| std::mem::replace(&mut known.addr, addr.clone()) != addr);
    }

    /// Records what a node says of itself.
    pub fn set_hello(&self, hello: Hello) {
        self.change(hello.node, |known| replace(&mut known.hello, hello));
    }

    /// Records what was said at the address of a node.
    pub fn set_dialled(&self, hello: Hello) {
        self.change(hello.node, |known| {
            let changed = replace(&mut known.dialled, hello.clone());
            replace(&mut known.hello, hello) || changed
        });
    }

    /// Tells subscribers of a change of this node itself.
    pub fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    /// Records that a connection was refused. `who` has opened it.
    pub fn note_refused(&self, who: String, reason: String) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.retain(|of| of.who != who && of.at.elapsed() < REFUSED_TIME);
        if refused.len() < REFUSED_MAX {
            refused.push(Refused { who, reason, at: Instant::now() });
        }
    }

    /// The nodes whose connections were refused lately, each with the reason.
    pub fn refused(&self) -> Vec<String> {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let lately = refused.iter().filter(|of| of.at.elapsed() < REFUSED_TIME);
        lately.map(|of| format!("{}: {}", of.who, of.reason)).collect()
    }

    /// Records that there is a connection to a node, or why there is none.
    pub fn set_connected(&self, node: NodeId, connected: Result<(), String>) {
        let (connected, failure) = (connected.is_ok(), connected.err());
        self.change(node, |known| {
            let changed = (known.connected, &known.failure) != (connected, &failure);
            (known.connected, known.failure) = (connected, failure);
            changed
        });
    }

    /// Counts a connection of a node to this one, until the guard is dropped.
    pub fn inbound(self: &Arc<Directory>, node: NodeId) -> Inbound {
        let traffic = self.traffic(node);
        traffic.inbound.fetch_add(1, Relaxed);
        self.changes.send_modify(|count| *count += 1);
        Inbound { directory: self.clone(), traffic }
    }

    fn change(&self, node: NodeId, change: impl FnOnce(&mut Known) -> bool) {
        if change(self.lock().entry(node).or_default()) {
            self.changes.send_modify(|count| *count += 1);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<NodeId, Known>> {
        // Each change is one assignment: after a panic the entries are whole.
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn info(&self, node: NodeId, known: &Known) -> PeerInfo {
        let traffic = &known.traffic;
        let heard = traffic.heard.load(Relaxed).checked_sub(1).map(Duration::from_micros);
        PeerInfo {
            node,
            addr: known.addr.clone(),
            hello: known.hello.clone(),
            dialled: known.dialled.clone(),
            connected: known.connected,
            inbound: traffic.inbound.load(Relaxed),
            last_heard: heard.map(|heard| self.began.elapsed().saturating_sub(heard)),
            failure: known.failure.clone(),
            pings: traffic.pings.read(),
            appends: traffic.appends.read(),
        }
    }
}

/// Replaces what is known of a node. Returns whether it has changed.
fn replace(known: &mut Option<Hello>, mut hello: Hello) -> bool {
    hello.greeting = hello.greeting.or(known.as_ref().and_then(|known| known.greeting));
    let changed = known.as_ref() != Some(&hello);
    *known = Some(hello);
    changed
}

/// Counts one connection.
pub struct Inbound {
    directory: Arc<Directory>,
    traffic: Arc<Traffic>,
}

impl Inbound {
    /// Records that something was received.
    pub fn heard(&self) {
        self.directory.heard(&self.traffic);
    }
}

impl Drop for Inbound {
    fn drop(&mut self) {
        self.traffic.inbound.fetch_sub(1, Relaxed);
        self.directory.changes.send_modify(|count| *count += 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changes_are_told() {
        let directory = Arc::new(Directory::default());
        let mut changes = directory.subscribe();
        directory.set_address(2, Some("a:1".to_owned()));
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        directory.set_address(2, Some("a:1".to_owned()));
        directory.set_connected(2, Err("no".to_owned()));
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        directory.set_connected(2, Err("no".to_owned()));
        assert!(!changes.has_changed().unwrap());
        let inbound = directory.inbound(2);
        inbound.heard();
        let info = directory.get(2).unwrap();
        assert_eq!((info.inbound, info.failure.as_deref()), (1, Some("no")));
        assert!(info.last_heard.is_some());
        drop(inbound);
        assert_eq!(directory.all()[0].inbound, 0);
        assert!(changes.has_changed().unwrap());
    }
}
