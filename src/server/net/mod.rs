//! Sockets and the executor's event loop.
//!
//! ```text
//!   listener ─▶ accept ─▶ handshake (TLS) ─▶ connection ─▶ driver
//!        event_loop: runs what is ready ◀─ poller: epoll ◀─ sockets, timer, control
//! ```

pub mod accept;
pub mod connection;
pub mod control;
pub mod descriptors;
pub mod event_loop;
pub mod handshake;
pub mod listener;
pub mod poller;
pub mod timer;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
pub mod tls;
