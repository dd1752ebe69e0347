//! A client for servers that speak the Redis protocol, and for the native locks of this server.
//!
//! [`Client`] sends commands to any server of the Redis family, in RESP3 or RESP2. [`Client::lock`] and the other lock methods
//! need this crate's server: they queue on the server and return a [`LockGuard`], which renews the lock, detects its loss and
//! releases it.
//!
//! ```text
//!   Client ─▶ Core ─┬─▶ the shared Connection ─ all commands that are answered at once
//!                   ├─▶ a pool of Connections ─ those that wait on the server, grants of a session, Dedicated
//!                   └─▶ Wire ─ Subscription
//!   Connection ─▶ Driver (one task) ─▶ Wire (socket, Decoder) ─▶ replies in order; pushes to whom they concern
//!
//!   Lock, LockAll, Semaphore ─▶ Wish ─▶ acquire ─▶ Held ─▶ LockGuard
//! ```

mod acquire;
#[allow(clippy::module_inception)]
mod client;
mod command;
mod connection;
mod core;
mod decode;
mod error;
mod guard;
mod held;
mod holds;
mod lock;
mod monitor;
mod options;
mod pubsub;
mod pushes;
mod resource;
mod script;
mod semaphore;
mod stream;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
mod tls;
mod value;
mod wire;
mod wish;

pub(crate) use acquire::EARLY_ENDS;
pub use client::{Client, Dedicated};
pub(crate) use command::Patience;
pub use command::{Argument, Command};
#[cfg(feature = "internals")]
pub use decode::Decoder;
#[cfg(not(feature = "internals"))]
pub(crate) use decode::Decoder;
pub use error::{Deadlock, Error, ReplyError, Result, Wait};
pub use guard::{LockGuard, Lost};
pub use lock::{Lock, LockAll};
pub(crate) use monitor::Monitor;
pub use options::Options;
pub use pubsub::{Message, Subscription};
pub use resource::{Rate, Resource, Throttle, Throttled};
pub use script::Script;
pub use semaphore::{Latch, Semaphore};
pub use value::{FromElement, FromValue, Value};
