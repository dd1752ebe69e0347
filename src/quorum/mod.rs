//! The quorum: several nodes that agree on one order of batches, by Raft.
//!
//! ```text
//!   executor ─ a batch ─▶ node (a thread with a runtime of its own) ─▶ openraft ─▶ store: segments, votes, snapshots
//!      ▲                                                                    │  ▲
//!      └─────────── committed entries, changes of role ◀───────────────────┘  └─▶ net: frames to the other nodes
//! ```
//!
//! It knows nothing of keys or commands: a batch is bytes with a time. `driver::replicated` makes batches, and applies those of others.

pub mod admission;
mod append_check;
pub mod cluster;
mod epoch;
pub mod lease_evidence;
mod lineage;
pub mod net;
pub mod node;
pub mod recover;
pub mod runtime;
mod sane;
pub mod store;
pub mod types;
