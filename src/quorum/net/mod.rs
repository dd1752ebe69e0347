//! What carries openraft's messages between the nodes: frames over TCP, or TLS over TCP.
//!
//! ```text
//!   openraft ─▶ client ─▶ link (one connection to each member, kept by the keeper) ─▶ wire ═══▶ server ─▶ handler ─▶ openraft
//!          appends: streamed, several under way                                        ═══▶ on a connection of its own: snapshot
//!   hellos and pings of both directions ─▶ directory: what is known of the other nodes
//! ```
//!
//! Each node opens one connection to each other member, for its own requests. Everything runs on the runtime of the node's thread; the
//! directory may be read from any thread.

mod append;
mod client;
mod dial;
mod directory;
mod frame;
pub(super) mod handler;
mod hello;
mod keeper;
mod link;
mod quiet;
mod server;
mod snapshot;
#[cfg(test)]
mod tests;
mod transport;
mod wire;

#[cfg(feature = "torture")]
pub use crate::quorum::append_check::Said;
pub use crate::quorum::cluster::{Cluster, Standing};
#[cfg(feature = "torture")]
pub use crate::quorum::sane::Nonsense;
pub use client::Network;
#[cfg_attr(not(feature = "torture"), allow(unused_imports))]
pub use dial::KEEPALIVE;
pub use dial::{Listener, Platform, Security, System};
pub use directory::Directory;
pub use handler::{Failed, Handler, Snapshot};
pub use hello::{ClientAddress, Hello};
#[cfg(feature = "torture")]
pub use hello::{INTRODUCTION, introduced};
pub use snapshot::{SnapshotSink, SnapshotWriter};
pub use transport::{Options, Shutdown, Transport};
pub use wire::Socket;
