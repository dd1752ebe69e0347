//! A client for servers that speak the Redis protocol, and for the native locks of this server.
//!
//! [`Client`] sends commands to any server of the Redis family, in RESP3 or RESP2. [`Client::lock`] and the other lock methods
//! need this crate's server: they queue on the server and return a [`LockGuard`], which renews the lock, detects its loss and
//! releases it.
//!
//! ```text
//!   Client ─▶ Core ─┬─▶ the shared connection ─ commands that the server answers at once
//!                   ├─▶ a pool of connections ─ blocking commands, locks that are bound to a connection, Dedicated
//!                   └─▶ a connection of its own ─ Subscription
//!
//!   Lock, LockAll, Semaphore ─▶ acquire ─▶ Held ─▶ LockGuard
//! ```
//!
//! `client` is the place to begin: it shows each way of sending a command. `core` chooses the connection. The folder `connection`
//! is one connection: socket, handshake, decoder, and the task that drives it. The folder `locks` is everything about native
//! locks.

#[allow(clippy::module_inception)]
mod client;
mod command;
mod connection;
mod core;
mod error;
mod locks;
mod monitor;
mod options;
mod pubsub;
mod script;
mod throttle;
mod value;

pub use client::{Client, Dedicated};
pub(crate) use command::Blocking;
pub use command::{Argument, Command};
#[cfg(feature = "internals")]
pub use connection::decode::Decoder;
#[cfg(not(feature = "internals"))]
pub(crate) use connection::decode::Decoder;
pub use error::{Deadlock, Error, ReplyError, Result, Wait};
pub(crate) use locks::acquire::EARLY_ENDS_MAX;
pub use locks::guard::{LockGuard, Lost};
pub use locks::latch::Latch;
pub use locks::lock::{Lock, LockAll};
pub use locks::resource::Resource;
pub use locks::semaphore::Semaphore;
pub(crate) use monitor::Monitor;
pub use options::Options;
pub use pubsub::{Message, Subscription};
pub use script::Script;
pub use throttle::{Rate, Throttle, Throttled};
pub use value::{FromElement, FromValue, Value};
