//! A client of servers that speak the Redis protocol, and of the native locks of this one.
//!
//! [`Client`] sends commands to any server of the Redis family, in RESP3 or RESP2.
//!
//! ```text
//!   Client ─▶ Core ─┬─▶ the shared Connection ─ all commands that are answered at once
//!                   ├─▶ a pool of Connections ─ those that wait on the server, grants of a session, Dedicated
//!                   └─▶ Wire ─ Subscription
//!   Connection ─▶ Driver (one task) ─▶ Wire (socket, Decoder) ─▶ replies in order; pushes to whom they concern
//! ```

#[allow(clippy::module_inception)]
mod client;
mod command;
mod connection;
mod core;
mod decode;
mod error;
mod options;
mod pubsub;
mod pushes;
mod script;
mod stream;
mod value;
mod wire;

pub use client::{Client, Dedicated};
pub use command::{Argument, Command};
pub use error::{Deadlock, Error, ReplyError, Result, Wait};
pub use options::Options;
pub use pubsub::{Message, Subscription};
pub use script::Script;
pub use value::{FromElement, FromValue, Value};
