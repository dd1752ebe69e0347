//! Changes of the members, as `NODE` asks for them.

use crate::engine::replication::NodeId;

/// A change of the members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberChange {
    /// A node joins, and votes when it has caught up.
    Add {
        /// Its number, at least 1.
        id: NodeId,
        /// Its address among the nodes, as `host:port`.
        addr: String,
    },
    /// A node leaves.
    Remove {
        /// Its number.
        id: NodeId,
    },
}
