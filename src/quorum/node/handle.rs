//! The node as the executor sees it.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::quorum::net::{Directory, Transport};
use crate::quorum::node::machine::Status;
use crate::quorum::store::Progress;
use crate::quorum::types::{Batch, LeaderId, NodeId};

/// What the executor asks of its node.
pub(super) enum Order {
    /// Replicate a batch, if this leadership goes on.
    Propose(Batch, LeaderId),
    /// Hand the leadership over.
    Transfer(NodeId, oneshot::Sender<Result<(), String>>),
    /// End.
    Close,
}

/// How long ago a majority is known to have followed this leader, measured from when it was asked.
pub(super) type Acked = Box<dyn Fn() -> Option<Duration> + Send + Sync>;

/// Has heartbeats sent, or none.
pub(super) type Heartbeats = Box<dyn Fn(bool) + Send + Sync>;

/// What the node's thread shares with the executor.
#[derive(Default)]
pub(super) struct Shared {
    pub status: Mutex<Status>,
    pub acked: Mutex<Option<Acked>>,
    pub heartbeats: Mutex<Option<Heartbeats>>,
}

/// A running node. Dropping it ends the node.
pub struct Node {
    pub(super) orders: mpsc::UnboundedSender<Order>,
    pub(super) shared: Arc<Shared>,
    pub(super) transport: Transport,
    pub(super) progress: Arc<Progress>,
    pub(super) lease: Duration,
    pub(super) thread: Option<JoinHandle<()>>,
}

impl Node {
    /// Proposes a batch. It is committed, or dropped if the leadership has ended: [`Machine`](super::Machine) is told of either.
    pub fn propose(&self, batch: Batch, leadership: LeaderId) {
        // A node that has ended has reported why.
        let _ = self.orders.send(Order::Propose(batch, leadership));
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
        self.shared.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What is known of the other nodes.
    pub fn directory(&self) -> &Directory {
        self.transport.directory()
    }

    /// Sends heartbeats while this node leads, or none: a leader that hears nobody may still be heard, and would keep the others from
    /// electing one that is of use.
    pub fn set_heartbeats(&self, on: bool) {
        // Not by an order: those wait until what was proposed before is committed.
        if let Some(set) = &*self.shared.heartbeats.lock().unwrap_or_else(PoisonError::into_inner) {
            set(on);
        }
    }

    /// Sends a message to the users of all other nodes that are connected. It may be lost.
    pub fn tell_all(&self, message: &[u8]) {
        self.transport.tell_all(message);
    }

    /// What the log's thread has done.
    pub fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Hands the leadership over to a node. The result says whether that has begun.
    pub fn transfer(&self, to: NodeId) -> oneshot::Receiver<Result<(), String>> {
        self.order(|done| Order::Transfer(to, done))
    }

    fn order<T>(&self, order: impl FnOnce(oneshot::Sender<T>) -> Order) -> oneshot::Receiver<T> {
        let (done, result) = oneshot::channel();
        let _ = self.orders.send(order(done));
        result
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
