//! Replication, as clients see it: the role of this server among its nodes, which the driver sets.
//!
//! ```text
//!   driver ─▶ Engine::set_replication ─▶ State ─▶ refusals, ROLE, INFO, WAIT, CLUSTER, SENTINEL
//!      ▲                     └─▶ on a change: UNBLOCKED to blocked clients, Sentinel's events to subscribers
//!      └── Action::HandOver, ChangeMembers ◀── FAILOVER, SENTINEL FAILOVER, CLUSTER FAILOVER, NODE
//! ```
//!
//! Nothing here agrees with other nodes or copies anything: the driver does. A server that is not replicated has [`Role::Single`],
//! and its requests stay on the fast path; so do those of a leader.
//!
//! This file has the state. `change.rs` sets it, `events.rs` publishes what changed, `refusal.rs` refuses what only the leader may
//! answer, `acknowledged.rs` has `WAIT`, and `members.rs` and `report.rs` have what `NODE` orders and shows.

pub mod acknowledged;
mod change;
mod events;
pub mod members;
mod refusal;
pub mod report;
#[cfg(test)]
mod tests;

use crate::engine::replication::report::Reporter;

/// The number of a node, at least 1.
pub type NodeId = u64;

/// How a request waits for a leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patience {
    /// For so many milliseconds. An election takes less, and clients wait longer for a reply.
    pub ms: u64,
    /// Whether it is executed without a leader afterwards. Otherwise its connection is closed.
    pub answers: bool,
}

impl Patience {
    /// Of a subscription to shard channels.
    pub const OF_SUBSCRIPTION: Patience = Patience { ms: 2_000, answers: false };
    /// Of a question for the nodes: ioredis waits a second for the reply.
    pub const OF_QUESTION: Patience = Patience { ms: 800, answers: true };
}

/// What this server is among its nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// It is not replicated.
    #[default]
    Single,
    /// It executes all requests.
    Leader,
    /// It applies what the leader executes.
    Follower {
        /// The leader; `None` while none is known, such as during an election.
        leader: Option<NodeId>,
    },
    /// It reaches no majority, whatever it was before.
    NoQuorum,
}

/// A node, as clients reach it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Its number.
    pub id: NodeId,
    /// Host name or IP address for clients, without brackets; empty as long as it is not known.
    pub host: String,
    /// TCP port for clients; 0 without one.
    pub port: u16,
    /// TLS port for clients; 0 without one.
    pub tls_port: u16,
    /// Whether it counts for the majority.
    pub voter: bool,
    /// Whether it answers: as this node sees it, or as the leader told. Without meaning for this node itself.
    pub link_up: bool,
    /// How long it has not acknowledged anything, in milliseconds. Without meaning for this node itself.
    pub lag_ms: u64,
    /// Its position in the nodes' log: the last index that it has. Of this node itself, while it leads: behind everything that it has
    /// executed when the state is set.
    pub position: u64,
}

impl Node {
    /// Whether it is known where clients reach it. Until a node has told that, they are not told of it.
    pub fn is_shown(&self) -> bool {
        !self.host.is_empty() && (self.port, self.tls_port) != (0, 0)
    }

    /// The port for a client that uses TLS, or does not. The other one if the node has only that.
    pub fn port_for(&self, tls: bool) -> u16 {
        match (tls, self.port, self.tls_port) {
            (true, port, 0) | (false, port @ 1.., _) => port,
            (_, _, tls_port) => tls_port,
        }
    }
}

/// The replication's state, as the driver knows it. The default is that of a server that is not replicated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The role of this server.
    pub role: Role,
    /// Identifies the cluster. The nodes' ids of forty digits derive from it.
    pub cluster: u64,
    /// The number of this node, which is among `nodes`.
    pub node: NodeId,
    /// The term of the leader, or of the present election. Shown as the configuration epoch.
    pub term: u64,
    /// All nodes, this one included, ordered by their numbers.
    pub nodes: Vec<Node>,
    /// Whether this leader is handing leadership over.
    pub handing_over: bool,
}

/// The replication's state, and the last leader.
#[derive(Clone, Debug, Default)]
pub struct Replication {
    state: State,
    /// The last leader that was known, as it was then. Survives times without a leader.
    last_leader: Option<Node>,
    /// On a leader: the index of the nodes' log up to which everything is settled. The driver sets it.
    pub settled_index: u64,
    /// Whether a request is executed that has waited in vain for a leader.
    pub(in crate::engine) gives_up: bool,
    /// Reads what the driver knows besides; `None` if the server is not replicated.
    pub reporter: Option<Reporter>,
}

/// What `SENTINEL CKQUORUM` finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quorum {
    /// Number of voters that answer, this node included.
    pub usable: usize,
    /// Number of voters that make a majority.
    pub majority: usize,
}

impl Replication {
    /// The state that the driver has set.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Whether the server is replicated.
    pub fn is_on(&self) -> bool {
        self.state.role != Role::Single
    }

    /// Whether this is the leader.
    pub fn leads(&self) -> bool {
        self.state.role == Role::Leader
    }

    /// Whether the server is replicated and does not lead, so that it refuses everything that needs keys.
    pub(crate) fn refuses(&self) -> bool {
        matches!(self.state.role, Role::Follower { .. } | Role::NoQuorum)
    }

    fn find(&self, id: NodeId) -> Option<&Node> {
        self.state.nodes.iter().find(|node| node.id == id)
    }

    /// This node.
    pub fn me(&self) -> Option<&Node> {
        self.find(self.state.node)
    }

    /// The leader, if this node knows one that serves, and where clients reach it. A node that has just started knows from its log who
    /// led, but not where.
    pub fn leader(&self) -> Option<&Node> {
        match self.state.role {
            Role::Leader => self.me(),
            Role::Follower { leader } => leader.and_then(|id| self.find(id)).filter(|node| node.is_shown()),
            Role::Single | Role::NoQuorum => None,
        }
    }

    /// Whether there is a leader that is not known to be dead. A follower names its last leader until it knows of another one.
    pub(in crate::engine) fn has_live_leader(&self) -> bool {
        !self.is_on() || self.leader().is_some_and(|leader| leader.id == self.state.node || leader.link_up)
    }

    /// The leader, or else the last one.
    pub fn master(&self) -> Option<&Node> {
        self.leader().or(self.last_leader.as_ref())
    }

    /// The nodes other than [`Replication::master`], as far as it is known where clients reach them.
    pub fn replicas(&self) -> impl Iterator<Item = &Node> {
        let master = self.master().map(|node| node.id);
        self.state.nodes.iter().filter(move |node| Some(node.id) != master && node.is_shown())
    }

    /// The nodes other than this one, as far as it is known where clients reach them.
    pub fn shown_others(&self) -> impl Iterator<Item = &Node> {
        self.others().filter(|node| node.is_shown())
    }

    /// The nodes other than this one.
    pub fn others(&self) -> impl Iterator<Item = &Node> {
        self.state.nodes.iter().filter(|node| node.id != self.state.node)
    }

    /// Whether a node answers. A master that is not the leader any more does not.
    pub fn is_up(&self, node: &Node) -> bool {
        let is_master = self.master().is_some_and(|master| master.id == node.id);
        if is_master { self.leader().is_some() } else { node.id == self.state.node || node.link_up }
    }

    /// Number of voters that make a majority.
    pub fn majority(&self) -> usize {
        self.state.nodes.iter().filter(|node| node.voter).count() / 2 + 1
    }

    /// The voters that answer. With a leader they are a majority, even if this node does not see all of them.
    pub fn quorum(&self) -> Quorum {
        let majority = self.majority();
        let voters = self.state.nodes.iter().filter(|node| node.voter);
        let seen = voters.filter(|node| node.id == self.state.node || node.link_up).count();
        let usable = match self.state.role {
            Role::NoQuorum => seen.min(majority - 1),
            _ if self.leader().is_some() => seen.max(majority),
            _ => seen,
        };
        Quorum { usable, majority }
    }

    /// The forty hexadecimal digits by which clients know a node. Those of node 0 stand for the cluster's history.
    pub fn name_of(&self, id: NodeId) -> String {
        let word = |at: u64| mix(mix(self.state.cluster ^ mix(at)) ^ id) >> 32;
        (1..=5).map(|at| format!("{:08x}", word(at))).collect()
    }
}

/// Mixes the bits of a number (the last step of splitmix64).
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
