//! One connection to a server.
//!
//! ```text
//!   Stream (TCP, TLS or unix socket) ─▶ Wire (handshake, Decoder) ─▶ multiplexed: a task that serves any number of callers
//! ```
//!
//! `multiplexed` is the connection that the rest of the client uses. [`Wire`](wire::Wire) alone serves subscriptions and
//! `MONITOR`, which have one user each. `pushes` distributes the RESP3 pushes of all connections of a client.

pub(crate) mod backoff;
pub(crate) mod decode;
pub(crate) mod multiplexed;
pub(crate) mod pushes;
pub(crate) mod stream;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
pub(crate) mod tls;
pub(crate) mod wire;
