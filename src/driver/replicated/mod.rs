//! One of several nodes that replicate.
//!
//! ```text
//!   leader:   requests ─▶ engine ─▶ Log ─ submit: batches ─▶ quorum::node ─▶ committed ─▶ the commit gate opens
//!   follower: quorum::node ─ committed batches ─▶ follower: a second engine; the first one refuses what needs keys
//!
//!   follower ── lead: the load is finished, the clock goes on from the last committed time ──▶ leader
//!   leader ── depose: connections are closed, the state is dropped ──▶ nothing ── snapshot and log ──▶ follower
//! ```
//!
//! A follower is a server that is always loading, and a new leader one that has finished: what a restart promises of locks,
//! sessions and tokens, a change of leaders promises, too. The gate is that of the append-only file ([`crate::driver::log`]).
//!
//! The cluster's clock is the monotonic clock of the leader's engine. Each batch has a time of it, and a follower's engine lives
//! at the time of the last batch, so all nodes have the same deadlines. A new leader sets its clock to the last committed time:
//! no lease ends early, and each is late by the time without a leader.

pub mod asked;
mod backlog;
pub mod clock;
pub mod follower;
mod hand_over;
mod lead;
pub mod leadership;
mod leading;
mod members;
mod messages;
mod relay;
mod status;
mod wait_command;

use crate::driver::gate::{BatchNumber, Executed};
use crate::driver::replicated::backlog::Backlog;
use crate::driver::replicated::leadership::NodeState;
use crate::driver::replicated::leading::Leading;
use crate::driver::replicated::messages::Messages;
use crate::driver::{Destination, Driver, Present};
use crate::quorum::net::ClientAddress;
use crate::quorum::node::{Node, Status};
use crate::quorum::types::NodeId;

/// A hand-over of the leadership in progress.
#[derive(Clone, Copy)]
struct HandOver {
    to: NodeId,
    /// When it is given up, in monotonic milliseconds.
    until_ms: u64,
    /// Whether the node has been told.
    ordered: bool,
    why: Why,
}

/// Why the leadership is handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// Somebody has asked for it.
    Asked,
    /// The server ends afterwards.
    Ends,
    /// The disk of this node does not answer.
    Disk,
}

/// This server as a node.
pub struct Member {
    node: Node,
    /// The number of this node.
    id: NodeId,
    cluster: u64,
    state: NodeState,
    /// What a follower has yet to apply.
    backlog: Backlog,
    status: Status,
    /// When to look at the lease and to commit the time, in monotonic milliseconds; `u64::MAX` unless this node leads.
    tick_ms: u64,
    /// Interval of that.
    tick_every_ms: u64,
    handing_over: Option<HandOver>,
    /// Whether it has led, reached no majority, and known no leader since.
    was_alone: bool,
    /// Where clients reach this node.
    client: ClientAddress,
    /// Messages for the subscribers of other nodes.
    messages: Messages,
}

/// What a member is made of.
pub struct MemberOptions {
    /// The running node.
    pub node: Node,
    /// Its number.
    pub id: NodeId,
    /// Hash of the cluster's name.
    pub cluster: u64,
    /// Where clients reach it.
    pub client: ClientAddress,
    /// Interval at which a leader looks at its lease, and has its time committed if nothing else is, in milliseconds: a lease is
    /// late by up to this after a change of leaders, besides the time without a leader.
    pub tick_every_ms: u64,
}

impl Member {
    /// The node. Adapters may ask it for what is no decision.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// The state of the cluster, as this node was told.
    #[cfg(feature = "torture")]
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// Whether this node leads.
    #[inline]
    pub fn leads(&self) -> bool {
        matches!(self.state, NodeState::Leads(_))
    }

    /// Whether this node leads and reaches a majority, as far as it knows.
    pub fn serves(&self) -> bool {
        self.leading().is_some_and(|leading| !leading.leadership.alone())
    }

    #[inline]
    pub(super) fn leading(&self) -> Option<&Leading> {
        if let NodeState::Leads(leading) = &self.state { Some(leading) } else { None }
    }

    #[inline]
    pub(super) fn leading_mut(&mut self) -> Option<&mut Leading> {
        if let NodeState::Leads(leading) = &mut self.state { Some(leading) } else { None }
    }

    /// The node and what it has while it leads, if it does.
    pub(super) fn as_leader(&mut self) -> Option<(&Node, &mut Leading)> {
        if let NodeState::Leads(leading) = &mut self.state { Some((&self.node, leading)) } else { None }
    }

    /// When it needs a turn, in monotonic milliseconds; `u64::MAX` if it does not.
    pub(super) fn due_ms(&self) -> u64 {
        self.handing_over.as_ref().map_or(self.tick_ms, |handing_over| handing_over.until_ms.min(self.tick_ms))
    }

    /// The batch that the reply to a request waits for; 0 if it waits for none, or this node does not lead.
    pub(super) fn batch_of_reply(&mut self, request: Executed<'_>, ns: u64, trusts_itself: bool) -> BatchNumber {
        match &mut self.state {
            NodeState::Leads(leading) => leading.batch_of_reply(&self.node, request, ns, trusts_itself),
            NodeState::Follows(_) | NodeState::Empty => 0,
        }
    }
}

impl Driver {
    /// This server as a node, if it is one.
    pub fn member(&self) -> Option<&Member> {
        if let Destination::Quorum(member) = &self.destination { Some(member) } else { None }
    }

    /// Ends the node, together with the process: nothing is told or stored any more.
    #[cfg(feature = "torture")]
    pub fn end_membership(&mut self) {
        self.destination = Destination::Nowhere;
    }

    fn member_mut(&mut self) -> Option<&mut Member> {
        if let Destination::Quorum(member) = &mut self.destination { Some(member) } else { None }
    }

    /// Makes the server a node. Until the node has said who leads, nothing is served.
    ///
    /// # Panics
    /// In debug builds: it has been one, or writes a file.
    pub fn begin_membership(&mut self, at: Present, MemberOptions { node, id, cluster, client, tick_every_ms }: MemberOptions) {
        debug_assert!(self.is_memory_only(), "a server begins with nothing");
        self.engine.be_node();
        self.destination = Destination::Quorum(Box::new(Member {
            node,
            id,
            cluster,
            state: NodeState::Empty,
            backlog: Backlog::default(),
            status: Status::default(),
            tick_ms: u64::MAX,
            tick_every_ms,
            handing_over: None,
            was_alone: false,
            client,
            messages: Messages::default(),
        }));
        self.show_cluster(at);
        self.install(at, self.new_follower());
    }
}
