//! Whose messages a node takes: those of its own cluster.
//!
//! A cluster has a name, which the configuration gives and many clusters share, and a random id, which it draws when it begins. Nodes
//! compare both when a connection begins and whenever one of them says something new of itself, so openraft never sees a message of
//! another cluster. Besides nodes of the same id, these may meet:
//!
//! - A node without an id connects to a node that has one: it is blank and looks for its cluster. Nobody with an id connects to it
//!   before: it would get entries before it has kept whose they are.
//! - In a cluster that an older version began, the leader draws the id when all members run a version that knows ids (see
//!   `quorum::lineage`). Until each member has it, the cluster is *open*: nodes with the id and nodes without one take each other.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::quorum::store::Lineage;
use crate::quorum::types::{ClusterId, NodeId};

/// A cluster as hellos name it: sixteen bytes on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "[u8; 16]", into = "[u8; 16]")]
pub struct Cluster {
    /// A hash of its name, or 0 if the node does not know it.
    pub name: u64,
    /// Its id, or 0. Versions without ids have 0 here until their cluster is recovered from a lost majority.
    pub id: ClusterId,
}

impl From<[u8; 16]> for Cluster {
    fn from(bytes: [u8; 16]) -> Cluster {
        let bits = u128::from_be_bytes(bytes);
        Cluster { name: (bits >> 64) as u64, id: bits as u64 }
    }
}

impl From<Cluster> for [u8; 16] {
    fn from(cluster: Cluster) -> [u8; 16] {
        (u128::from(cluster.name) << 64 | u128::from(cluster.id)).to_be_bytes()
    }
}

/// What this node is on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It has opened it.
    Connector,
    /// The other node has.
    Acceptor,
}

/// What changes in the hello of a running node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The cluster.
    pub cluster: Cluster,
    /// The cluster from which this one was recovered, or 0; see [`Lineage::parent`].
    pub parent: ClusterId,
    /// The cluster that has taken this one's place, or 0; see [`Lineage::successor`]. The node meets nobody any more. Hellos do not
    /// say it.
    pub successor: ClusterId,
    /// Whether members without an id are let in; see [`Lineage::open`]. Hellos do not say it.
    pub open: bool,
    /// The node has nothing that a leader has added: no entry but the one that begins a cluster.
    pub blank: bool,
    /// The node votes, if it is a member.
    pub votes: bool,
}

impl Standing {
    /// Whether the other nodes of the node's cluster are the same.
    pub fn is_same_cluster(&self, other: &Standing) -> bool {
        (self.cluster, self.successor) == (other.cluster, other.successor)
    }

    /// Sets the cluster's id and what goes with it.
    pub fn belong(&mut self, lineage: Lineage) {
        self.cluster.id = lineage.id;
        (self.parent, self.successor, self.open) = (lineage.parent, lineage.successor, lineage.open);
    }

    /// Whether node `them` may be one of the cluster of this node, which is `me`.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, me: NodeId, them: NodeId, theirs: &Standing, side: Side) -> Result<(), Foreign> {
        let (ours, other) = (self.cluster, theirs.cluster);
        let pair = Pair { ours: (me, ours.id), theirs: (them, other.id) };
        fail_if!(ours.name != other.name && ours != Cluster::default() && other != Cluster::default(), Foreign::Name(pair));
        let connector = if side == Side::Connector { self } else { theirs };
        let looks_for_its_cluster = connector.cluster.id == 0 && connector.blank && !connector.votes;
        let has_no_id = |node: &Standing| node.cluster.id == 0 && !node.blank;
        // Of the two, the one that has the id decides.
        let is_let_in = (has_no_id(theirs) && self.open) || has_no_id(self);
        match () {
            () if self.successor != 0 => Err(Foreign::Over(pair, self.successor)),
            () if ours.id == other.id => Ok(()),
            () if is_recovered_from(theirs.parent, self) => Err(Foreign::Replaced(pair)),
            () if looks_for_its_cluster || is_let_in => Ok(()),
            () if is_recovered_from(self.parent, theirs) => Err(Foreign::Left(pair)),
            () if has_no_id(theirs) => Err(Foreign::Unnamed(pair)),
            () if ours.id == 0 || other.id == 0 => Err(Foreign::NoId(pair)),
            () => Err(Foreign::Id(pair)),
        }
    }
}

/// Whether a cluster with this parent was recovered from the one of a node.
fn is_recovered_from(parent: ClusterId, node: &Standing) -> bool {
    match node.cluster.id {
        0 => parent == Lineage::UNNAMED && !node.blank,
        id => parent == id,
    }
}

/// Two nodes with the ids of their clusters: this node and the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// This node.
    pub ours: (NodeId, ClusterId),
    /// The other one.
    pub theirs: (NodeId, ClusterId),
}

/// Why another node is none of this node's cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Foreign {
    /// Their clusters have different names.
    Name(Pair),
    /// Their clusters have different ids.
    Id(Pair),
    /// One of them is blank and has no id yet.
    NoId(Pair),
    /// The other one has a log of a cluster without an id.
    Unnamed(Pair),
    /// The other cluster was recovered from the one of this node, and has taken its place.
    Replaced(Pair),
    /// The cluster of this node was recovered from that of the other one, which was left behind.
    Left(Pair),
    /// The cluster with this id has taken the place of the one of this node.
    Over(Pair, ClusterId),
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |(node, id): (NodeId, ClusterId)| match id {
            0 => format!("node {node} belongs to no cluster yet"),
            id => format!("node {node} belongs to cluster {id:016x}"),
        };
        let both = |Pair { ours, theirs }: Pair| format!("{}, and {}", of(theirs), of(ours));
        let recovered_into = |new: ClusterId, (node, id): (NodeId, ClusterId)| {
            let from = if id == 0 { "a cluster without an id".to_owned() } else { format!("cluster {id:016x}") };
            format!(
                "cluster {new:016x} was recovered from {from} after a majority was lost, and node {node} belongs to the latter: it \
                 must start with an empty folder"
            )
        };
        let recovered = |(node, id): (NodeId, ClusterId), old: (NodeId, ClusterId)| {
            format!("node {node} belongs to cluster {id:016x}; {}", recovered_into(id, old))
        };
        match *self {
            Foreign::Name(pair) => write!(f, "{}: their clusters have different names (cluster-name)", both(pair)),
            Foreign::Id(pair) => write!(f, "{}: only a node with an empty folder can join another cluster", both(pair)),
            Foreign::Unnamed(Pair { ours, theirs: (them, _) }) => write!(
                f,
                "node {them} belongs to a cluster without an id, and {}: only a node with an empty folder can join another cluster",
                of(ours)
            ),
            Foreign::NoId(pair) => write!(f, "{}: it joins when its peers name a node of that cluster", both(pair)),
            Foreign::Replaced(Pair { ours, theirs }) => f.write_str(&recovered(theirs, ours)),
            Foreign::Left(Pair { ours, theirs }) => f.write_str(&recovered(ours, theirs)),
            Foreign::Over(Pair { ours, .. }, successor) => f.write_str(&recovered_into(successor, ours)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node that votes, with the id of its cluster.
    fn member(id: ClusterId) -> Standing {
        Standing { cluster: Cluster { name: 7, id }, votes: true, ..Standing::default() }
    }

    /// A node that looks for its cluster.
    fn new() -> Standing {
        Standing { blank: true, votes: false, ..member(0) }
    }

    /// What each side says when node 1 connects to node 2.
    fn meet(one: Standing, two: Standing) -> (Result<(), Foreign>, Result<(), Foreign>) {
        (one.check(1, 2, &two, Side::Connector), two.check(2, 1, &one, Side::Acceptor))
    }

    #[test]
    fn nodes_of_another_cluster_are_refused_by_both_with_both_ids() {
        let (one, two) = meet(member(0xa), member(0xb));
        let text = "node 2 belongs to cluster 000000000000000b, and node 1 belongs to cluster 000000000000000a";
        assert!(one.unwrap_err().to_string().starts_with(text), "{one:?}");
        let text = "node 1 belongs to cluster 000000000000000a, and node 2 belongs to cluster 000000000000000b";
        assert!(two.unwrap_err().to_string().starts_with(text), "{two:?}");
        let renamed = Standing { cluster: Cluster { name: 8, id: 0xa }, ..member(0xa) };
        assert!(matches!(meet(member(0xa), renamed), (Err(Foreign::Name(_)), Err(Foreign::Name(_)))));
        for same in [0, 0xa] {
            assert_eq!(meet(member(same), member(same)), (Ok(()), Ok(())));
        }
        // A blank node that has taken an id is a node of that cluster, although it does not vote yet.
        let joins = Standing { blank: true, votes: false, ..member(0xa) };
        assert_eq!(meet(joins, member(0xa)), (Ok(()), Ok(())));
        assert!(matches!(meet(joins, member(0xb)), (Err(Foreign::Id(_)), Err(Foreign::Id(_)))));
    }

    #[test]
    fn a_node_without_an_id_finds_its_cluster_and_is_not_found() {
        assert_eq!(meet(new(), member(0xa)), (Ok(()), Ok(())));
        assert_eq!(meet(new(), new()), (Ok(()), Ok(())));
        assert!(matches!(meet(member(0xa), new()), (Err(Foreign::NoId(_)), Err(Foreign::NoId(_)))));
    }

    #[test]
    fn members_without_an_id_are_let_in_by_an_open_cluster_alone() {
        let (open, old) = (Standing { open: true, ..member(0xa) }, member(0));
        assert_eq!((meet(open, old), meet(old, open)), ((Ok(()), Ok(())), (Ok(()), Ok(()))));
        assert_eq!(meet(old, new()), (Ok(()), Ok(())));
        // The one with an id decides.
        assert!(matches!(meet(member(0xa), old).0, Err(Foreign::Unnamed(_))));
        assert!(matches!(meet(old, member(0xa)).1, Err(Foreign::Unnamed(_))));
    }

    #[test]
    fn a_node_that_was_left_behind_learns_of_the_recovered_cluster() {
        let recovered = Standing { parent: 0xa, ..member(0xb) };
        assert!(matches!(meet(member(0xa), recovered), (Err(Foreign::Replaced(_)), Err(Foreign::Left(_)))));
        assert!(matches!(meet(recovered, member(0xa)), (Err(Foreign::Left(_)), Err(Foreign::Replaced(_)))));
        let unnamed = Standing { parent: Lineage::UNNAMED, ..member(0xb) };
        assert!(matches!(meet(unnamed, member(0)), (Err(Foreign::Left(_)), Err(Foreign::Replaced(_)))));
        let (one, two) = meet(member(0xc), recovered);
        assert!(matches!((one, two), (Err(Foreign::Id(_)), Err(Foreign::Id(_)))), "it was recovered from another cluster");
        // From then on it meets nobody, not even those who do not know it yet.
        let over = Standing { successor: 0xb, ..member(0xa) };
        assert!(matches!(meet(over, member(0xa)), (Err(Foreign::Over(_, 0xb)), Ok(()))));
    }
}
