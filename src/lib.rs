//! Portcullis: a Redis-compatible in-memory lock server, as a program and as a library.
//!
//! The program is `portcullis serve`. The library is for tests: [`TestServer`] is the same server on a port of its own, with a clock that
//! the test freezes, moves and jumps. A lock that is taken, forgotten, and taken by another when its lease has ended:
//!
//! ```
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = portcullis::TestServer::start();
//! server.clock().freeze();
//! let mut alice = redis::Client::open(server.url())?.get_connection()?;
//! let mut bob = redis::Client::open(server.url())?.get_connection()?;
//! let lock = |token: &str| redis::cmd("SET").arg("lock:door").arg(token).arg("NX").arg("PX").arg(30_000).to_owned();
//!
//! assert!(lock("alice").query::<bool>(&mut alice)?);
//! assert!(!lock("bob").query::<bool>(&mut bob)?);
//! assert_eq!(server.ttl("lock:door"), Some(Duration::from_secs(30)));
//!
//! // Alice's lease ends without anybody waiting for it.
//! server.clock().advance(Duration::from_secs(30));
//! assert!(!server.exists("lock:door"));
//! assert!(lock("bob").query::<bool>(&mut bob)?);
//! assert_eq!(server.get("lock:door").as_deref(), Some("bob"));
//! # Ok(())
//! # }
//! ```
//!
//! [`engine`] is the state machine under both; it knows nothing of sockets and clocks. [`server`] is the shell round it. [`client`] is an
//! asynchronous client of this server and of others that speak its protocol.

pub mod bench;
pub mod client;
pub mod commands;
pub mod engine;
pub mod lock;
pub mod recipes;
pub mod resp;
pub mod script;
pub mod server;
pub mod store;
pub mod testing;
pub mod torture;

pub use testing::TestServer;

/// Its examples compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Runs a test with the stack that the server gives its executor.
#[cfg(test)]
fn on_executor_stack(test: fn()) {
    let thread = std::thread::Builder::new().stack_size(64 << 20).spawn(test).expect("a thread");
    thread.join().expect("the test passes");
}
