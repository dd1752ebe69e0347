//! The Rust examples of the README and the guide, compiled and run as a user of the crate does: without the feature `internals`
//! and without those of the program.
//!
//! The crate's own tests cannot show this, because they are always built with the default features and `internals`. To run
//! it: `cargo test -p portcullis-embed`. With `--no-default-features` it is a project that uses only the test server, and shows
//! how long that takes to build.

#[cfg(feature = "client")]
#[doc = include_str!("../../../README.md")]
pub struct Readme;
#[cfg(feature = "client")]
#[doc = include_str!("../../../guide/native-locks.md")]
pub struct NativeLocks;
#[cfg(feature = "client")]
#[doc = include_str!("../../../guide/choosing-a-lock.md")]
pub struct ChoosingALock;
#[cfg(feature = "client")]
#[doc = include_str!("../../../guide/testing.md")]
pub struct Testing;

/// A test server on plain TCP needs no feature. Features that are missing are refused by name.
///
/// ```
/// use portcullis::TestServer;
///
/// let server = TestServer::start();
/// let mut client = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
/// redis::cmd("SET").arg("lock:door").arg("me").arg("NX").arg("PX").arg(1000).exec(&mut client).unwrap();
/// assert_eq!(server.get("lock:door").as_deref(), Some("me"));
///
/// let refused = TestServer::builder().config("tls-port", "7000").try_start().err().expect("no TLS");
/// assert_eq!(refused.to_string(), "TLS cannot be configured: this server is built without TLS (cargo feature 'tls')");
/// let refused = redis::cmd("CONFIG").arg("SET").arg("tls-port").arg(7000).exec(&mut client).unwrap_err();
/// assert!(refused.to_string().contains("built without TLS"), "{refused}");
/// ```
pub struct Light;

/// A client of a build without the feature `tls` refuses an address that asks for TLS, and names the feature.
///
/// ```
/// use portcullis::client::Client;
///
/// let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
/// let refused = runtime.block_on(Client::connect("rediss://127.0.0.1:1/")).err().expect("no TLS");
/// assert!(refused.to_string().contains("built without TLS (cargo feature 'tls')"), "{refused}");
/// ```
#[cfg(feature = "client")]
pub struct LightClient;

/// A server inside another program.
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

/// The internals are private. (If one of these modules were public, its example would compile, and the test would fail.)
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
/// use portcullis::script::ScriptState;
/// ```
/// ```compile_fail,E0624
/// let _ = portcullis::TestServer::start().server().control(|shell| shell.engine.supervisor = None);
/// ```
pub struct Closed;
