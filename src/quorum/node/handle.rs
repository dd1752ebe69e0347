//! The node as the executor sees it.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use crate::base::ids::SessionId;
use crate::quorum::net::Directory;
use crate::quorum::node::application::Status;
use crate::quorum::node::followed::Awaited;
use crate::quorum::node::members::Change;
use crate::quorum::store::{DiskNow, Progress};
use crate::quorum::types::{Batch, LeaderId, NodeId};

/// What the executor asks of its node.
pub(super) enum Order {
    /// Hand the leadership over, if this node leads.
    Transfer(NodeId),
    /// Ask for a hand-over: the leader, or without one the others for their votes if this node is to lead.
    AskForHandOver(Option<NodeId>),
    /// Change the members, and tell the session what became of that.
    Change(Change, SessionId),
    /// Send heartbeats while this node leads, or none.
    Heartbeats(bool),
    /// Lead no more.
    StepDown,
    /// End.
    Close,
}

/// How long ago a majority is known to have followed this leader, measured from when it was asked.
pub(super) type Acked = Box<dyn Fn() -> Option<Duration> + Send + Sync>;

/// What the node says of its cluster.
pub(super) type Look = Box<dyn Fn() -> Status + Send + Sync>;
/// Sends a message to all other nodes.
pub(super) type Tell = Box<dyn Fn(&[u8]) + Send + Sync>;

/// What the node's thread shares with the executor.
#[derive(Default)]
pub(super) struct Shared {
    pub look: Mutex<Option<Look>>,
    pub acked: Mutex<Option<Acked>>,
}

/// A running node. Dropping it ends the node.
pub struct Node {
    pub(super) orders: mpsc::UnboundedSender<Order>,
    pub(super) awaited: watch::Sender<Vec<Awaited>>,
    pub(super) proposals: mpsc::UnboundedSender<(Batch, LeaderId)>,
    pub(super) shared: Arc<Shared>,
    pub(super) directory: Arc<Directory>,
    pub(super) tell: Tell,
    pub(super) progress: Arc<Progress>,
    pub(super) lease: Duration,
    pub(super) thread: Option<JoinHandle<()>>,
}

impl Node {
    /// Proposes a batch. It is committed, or dropped if the leadership has ended: [`Application`](super::Application) is told of
    /// either.
    pub fn propose(&self, batch: Batch, leadership: LeaderId) {
        // A node that has ended has reported why.
        let _ = self.proposals.send((batch, leadership));
    }

    /// How long this node certainly leads from now on: no other node is given a vote by a majority until then. Zero if it does not lead.
    pub fn lease(&self) -> Duration {
        let acked = self.shared.acked.lock().unwrap_or_else(PoisonError::into_inner);
        let since = acked.as_ref().and_then(|acked| acked());
        since.map_or(Duration::ZERO, |since| self.lease.saturating_sub(since))
    }

    /// The longest lease there is, which a leader has after each contact with a majority.
    pub fn lease_max(&self) -> Duration {
        self.lease
    }

    /// The state of the cluster, as this node knows it.
    pub fn status(&self) -> Status {
        self.shared.look.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|look| look()).unwrap_or_default()
    }

    /// What is known of the other nodes.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Sends heartbeats while this node leads, or none. A leader that hears no other node may still be heard by them. Its heartbeats
    /// would keep them from electing another one.
    pub fn set_heartbeats(&self, on: bool) {
        let _ = self.orders.send(Order::Heartbeats(on));
    }

    /// Takes note that this node leads and reaches no majority, or reaches one again. Without one it sends no heartbeats and steps down,
    /// because it must be elected again: another node may have led meanwhile, and one that has lost its disk does not remember that. It
    /// would confirm what this node sends, and two histories would be committed.
    pub fn set_alone(&self, alone: bool) {
        self.set_heartbeats(!alone);
        if alone {
            let _ = self.orders.send(Order::StepDown);
        }
    }

    /// Sends a message to the users of all other nodes that are connected. It may be lost.
    pub fn tell_all(&self, message: &[u8]) {
        (self.tell)(message);
    }

    /// What the log's thread has done.
    pub fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// What the disk of the log does now.
    pub fn disk(&self) -> DiskNow {
        self.progress.disk()
    }

    /// Hands the leadership over to a node. Who leads next says what became of it.
    pub fn transfer(&self, to: NodeId) {
        let _ = self.orders.send(Order::Transfer(to));
    }

    /// Asks the leader to hand its leadership over: to a node, or to the one that has most of the log. Without a leader this node
    /// stands for election, if it is the one that is to lead.
    pub fn ask_for_hand_over(&self, to: Option<NodeId>) {
        let _ = self.orders.send(Order::AskForHandOver(to));
    }

    /// Has the executor told of [`Asked::WaitReached`](super::Asked::WaitReached) once when any of these has come true, and
    /// then not before this is called with others. With none, nothing is looked at.
    pub fn await_followers(&self, awaited: Vec<Awaited>) {
        self.awaited.send_if_modified(|before| {
            let changed = *before != awaited;
            *before = awaited;
            changed
        });
    }

    /// Changes the members, if this node leads. One change is carried out at a time. What became of it is asked of the application,
    /// for this session ([`Asked::MembersChanged`](super::Asked::MembersChanged)).
    pub fn change(&self, change: Change, id: SessionId) {
        let _ = self.orders.send(Order::Change(change, id));
    }

    /// Reads what this node knows, from any thread and after the node has ended.
    pub fn observer(&self) -> Observer {
        Observer {
            shared: Arc::clone(&self.shared),
            directory: Arc::clone(&self.directory),
            progress: Arc::clone(&self.progress),
        }
    }
}

/// Reads what a node knows.
#[derive(Clone)]
pub struct Observer {
    shared: Arc<Shared>,
    directory: Arc<Directory>,
    progress: Arc<Progress>,
}

impl Observer {
    /// The state of the cluster, as this node knows it.
    pub fn status(&self) -> Status {
        self.shared.look.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|look| look()).unwrap_or_default()
    }

    /// What is known of the other nodes.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// What the log's thread has done.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.orders.send(Order::Close);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
