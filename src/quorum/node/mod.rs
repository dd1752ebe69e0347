//! One node of the quorum: openraft, its storage and its transport on a thread of their own.
//!
//! ```text
//!   executor ── propose ──▶ batches ─▶ openraft ─▶ store, net
//!      ▲                                 │
//!      │  Asked::Committed, Install          ▼
//!      └──────────────────────── state: committed entries, in order
//!      ▲  Asked::Changed, Failed
//!      └──────────────────────── watch: who leads, who belongs to it
//! ```
//!
//! - `application`: what the node does its work for, which is the executor;
//! - `state_machine`: the state machine of openraft, which passes on what is committed;
//! - `apply_queue`: how entries reach the executor: at once, or in groups;
//! - `snapshot_builder`: snapshots, made of the last one and the entries behind it;
//! - `begin`: when a node may vote, and when blank nodes begin a cluster; `lineage`: which cluster a node belongs to; `regain`: how nodes vote whose logs were cut;
//! - `compaction`: when a snapshot is made because of the log's length, and which entries are removed;
//! - `propose`: passes on batches in their order;
//! - `members`: nodes that join and leave;
//! - `followed`: tells the executor when followers have what clients wait for;
//! - `watch`: what the executor is told of leaders and members;
//! - `sink`: takes snapshots that arrive from other nodes;
//! - `run`: the node's start, its tasks, and the orders that it carries out;
//! - `handle`: the node as the executor sees it.

pub(in crate::quorum) mod application;
mod apply_queue;
mod begin;
mod compaction;
mod followed;
mod handle;
mod members;
mod propose;
mod regain;
mod run;
mod sink;
mod snapshot_builder;
pub(in crate::quorum) mod state_machine;
pub(in crate::quorum) mod watch;

pub use crate::quorum::lineage::draw as draw_id;
#[cfg(test)]
pub use application::done;
pub use application::{Application, Applied, Asked, Committed, Done, Status};
pub use followed::Awaited;
pub use handle::{Node, Observer};
pub use members::Change;
#[cfg_attr(not(feature = "torture"), allow(unused_imports))]
pub use run::run_to_end;
pub use run::{Opened, Options, Timing, open, start};

/// Openraft, with our types and state machine.
pub type Raft<D, M> = openraft::Raft<crate::quorum::types::Types, state_machine::StateMachine<D, M>>;

/// An error of the storage, in words.
fn storage(error: impl std::fmt::Display) -> std::io::Error {
    std::io::Error::other(error.to_string())
}
