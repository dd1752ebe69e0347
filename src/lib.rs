//! Portcullis: a Redis-compatible in-memory lock server, as a program and as a library.
//!
//! The program is `portcullis serve`. The library is for tests: [`TestServer`] is the same server on its own port, with a clock
//! that the test freezes, moves and jumps. In this example a lock is taken and forgotten, and another client takes it when its
//! lease has ended:
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
//! The [guide] has one page a subject, among them [native locks], [testing with the clock and faults] and [operating a server].
//!
//! [guide]: https://github.com/portcullis-lock/portcullis#the-guide
//! [native locks]: https://github.com/portcullis-lock/portcullis/blob/main/guide/native-locks.md
//! [testing with the clock and faults]: https://github.com/portcullis-lock/portcullis/blob/main/guide/testing.md
//! [operating a server]: https://github.com/portcullis-lock/portcullis/blob/main/guide/operating.md
//!
//! [`Server`] runs a server inside another program. [`client`] is an asynchronous client for this server and for others that
//! speak the Redis protocol. [`recipes`] holds the lock algorithms that run on the client's side.
//!
//! Everything else is private: the engine, a state machine without sockets and clocks; the server around it; and the tools.

// Only the whole program uses everything: the build with default features is the one that looks for dead code.
#![cfg_attr(
    not(all(feature = "tls", feature = "bench", feature = "torture", feature = "quorum")),
    allow(dead_code, unused_imports)
)]

// Before all others, because they use its macros.
#[cfg(not(feature = "internals"))]
#[macro_use]
mod base;
#[cfg(feature = "internals")]
#[macro_use]
pub mod base;

#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod program;
#[cfg(feature = "client")]
pub mod recipes;
pub mod testing;

// The rest is private. The feature `internals` opens it to benches, fuzz targets and the tests of internals. Each module is
// listed twice rather than declared by a macro, because rustfmt does not follow modules that a macro declares.
#[cfg(all(feature = "bench", not(feature = "internals")))]
mod bench;
#[cfg(all(feature = "bench", feature = "internals"))]
pub mod bench;
#[cfg(feature = "quorum")]
mod cluster;
#[cfg(not(feature = "internals"))]
mod commands;
#[cfg(feature = "internals")]
pub mod commands;
#[cfg(not(feature = "internals"))]
mod driver;
#[cfg(feature = "internals")]
pub mod driver;
#[cfg(not(feature = "internals"))]
mod engine;
#[cfg(feature = "internals")]
pub mod engine;
mod files;
#[cfg(feature = "http")]
mod http;
#[cfg(not(feature = "internals"))]
mod keyspace;
#[cfg(feature = "internals")]
pub mod keyspace;
#[cfg(not(feature = "internals"))]
mod lock;
#[cfg(feature = "internals")]
pub mod lock;
#[cfg(not(feature = "internals"))]
mod persist;
#[cfg(feature = "internals")]
pub mod persist;
#[cfg(all(any(feature = "bench", feature = "quorum"), not(feature = "internals")))]
mod ports;
#[cfg(all(any(feature = "bench", feature = "quorum"), feature = "internals"))]
pub mod ports;
#[cfg(all(feature = "quorum", not(feature = "internals")))]
mod quorum;
#[cfg(all(feature = "quorum", feature = "internals"))]
pub mod quorum;
#[cfg(not(feature = "internals"))]
mod resp;
#[cfg(feature = "internals")]
pub mod resp;
#[cfg(not(feature = "internals"))]
mod script;
#[cfg(feature = "internals")]
pub mod script;
#[cfg(not(feature = "internals"))]
mod server;
#[cfg(feature = "internals")]
pub mod server;
#[cfg(not(feature = "internals"))]
mod store;
#[cfg(feature = "internals")]
pub mod store;
#[cfg(feature = "top")]
mod top;
#[cfg(all(feature = "torture", not(feature = "internals")))]
mod torture;
#[cfg(all(feature = "torture", feature = "internals"))]
pub mod torture;

pub use engine::config::Config;
pub use server::directory::{Directory, Entry};
pub use server::{Server, ServerOptions, StartError};
pub use testing::TestServer;

/// Compiles the examples of the README and the guide.
#[cfg(doctest)]
mod guide {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../guide/native-locks.md")]
    struct NativeLocks;
    #[doc = include_str!("../guide/choosing-a-lock.md")]
    struct ChoosingALock;
    #[doc = include_str!("../guide/testing.md")]
    struct Testing;
}

/// Runs a test with the executor's stack size.
#[cfg(test)]
fn on_executor_stack(test: fn()) {
    let thread = std::thread::Builder::new().stack_size(64 << 20).spawn(test).expect("a thread");
    thread.join().expect("the test passes");
}
