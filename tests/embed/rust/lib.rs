//! The Rust examples of the README and the guide, compiled and run as a user of the crate does it: without the feature `internals`.
//!
//! The crate's own tests cannot show this, because they are always built with that feature. It runs by `cargo test -p portcullis-embed`.

#[doc = include_str!("../../../README.md")]
pub struct Readme;
#[doc = include_str!("../../../guide/native-locks.md")]
pub struct NativeLocks;
#[doc = include_str!("../../../guide/choosing-a-lock.md")]
pub struct ChoosingALock;
#[doc = include_str!("../../../guide/testing.md")]
pub struct Testing;

/// A server as a part of another program.
///
/// ```
/// use portcullis::{Config, Server, ServerOptions};
///
/// let mut config = Config { port: 0, bind: vec!["127.0.0.1".to_owned()], ..Config::default() };
/// config.set("maxclients", b"100").expect("a directive and its value");
/// let mut server = Server::start(config, ServerOptions::default()).expect("a port of loopback");
/// let mut client = redis::Client::open(format!("redis://{}/", server.addresses()[0])).unwrap().get_connection().unwrap();
/// redis::cmd("LOCK.ACQUIRE").arg("door").arg("me").arg(1000).query::<u64>(&mut client).unwrap();
/// assert_eq!(server.directory().len(), 1);
/// server.stop();
/// server.wait().unwrap();
/// ```
pub struct Embedded;

/// The insides stay closed. (Were one of these modules public, its example would compile, and fail.)
///
/// ```compile_fail,E0603
/// use portcullis::store::table::Table;
/// ```
/// ```compile_fail,E0603
/// use portcullis::engine::Engine;
/// ```
/// ```compile_fail,E0603
/// use portcullis::server::Server;
/// ```
/// ```compile_fail,E0603
/// use portcullis::script::Scripts;
/// ```
/// ```compile_fail,E0624
/// let _ = portcullis::TestServer::start().server().control(|shell| shell.engine.supervisor = None);
/// ```
pub struct Closed;
