//! A server inside a test, with its own port and its own clock. Dropping it stops it.
//!
//! Requests arrive over TCP, as in production. Only the clock and the inspection of keys bypass it. See the example at the top of
//! the [crate].

mod faults;
mod state;

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
pub use faults::TestFaults;
use redis_protocol::resp3::decode::complete::decode_bytes;
pub use redis_protocol::resp3::types::{BytesFrame as Frame, Resp3Frame};

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::driver::round::Driving;
use crate::engine::config::Config;
pub use crate::engine::faults::gates::Pace;
pub use crate::engine::faults::leaks::{Leak, LeakClient};
pub use crate::engine::faults::restart::Snapshot;
pub use crate::engine::faults::rules::{Fault, Rule as FaultRule, When};
use crate::engine::session::Peer;
use crate::resp::reply::Protocol;
use crate::server::shell::Shell;
use crate::server::{Server, ServerOptions, StartError};

/// A server on a free port of the loopback interface. One process can run any number of them.
///
/// The methods that inspect keys use database 0 and do not count as accesses to the keys.
pub struct TestServer {
    server: Server,
    /// Patterns of the plain keys that are locks. If empty, locks are recognized by their names.
    lock_keys: Vec<Vec<u8>>,
}

/// Configures a [`TestServer`].
pub struct TestServerBuilder {
    config: Config,
    seed: u64,
    frozen: bool,
    rules: Vec<FaultRule>,
    journal: u64,
    lock_keys: Vec<Vec<u8>>,
}

impl TestServerBuilder {
    setters! {
        /// Seed of all randomness, which makes a test repeatable. 0 unless given.
        pub fn seed(self, seed: u64) { self.seed = seed }

        /// Whether the clock is frozen from the start.
        pub fn frozen(self, frozen: bool) { self.frozen = frozen }

        /// Number of databases.
        pub fn databases(self, databases: u32) { self.config.databases = databases }
    }

    /// Sets a configuration directive, such as `requirepass` or `timeout`.
    ///
    /// # Panics
    ///
    /// If the directive does not exist or does not accept the value.
    pub fn config(mut self, name: &str, value: &str) -> Self {
        if let Err(reason) = self.config.set(name, value.as_bytes()) {
            panic!("{name} {value:?}: {reason}");
        }
        self
    }

    /// Starts the server.
    ///
    /// # Panics
    ///
    /// If the system provides no socket or no thread.
    pub fn start(self) -> TestServer {
        match self.try_start() {
            Ok(server) => server,
            Err(error) => panic!("{error}"),
        }
    }

    /// Starts the server, or returns why it did not start.
    pub fn try_start(self) -> Result<TestServer, StartError> {
        let options = ServerOptions { seed: Some(self.seed), frozen: self.frozen, test_mode: true, ..ServerOptions::default() };
        let server = TestServer { server: Server::start(self.config, options)?, lock_keys: self.lock_keys };
        let (rules, journal) = (self.rules, self.journal);
        server.control(move |shell| {
            shell.driver.engine.faults_mut().journal = journal;
            for rule in rules {
                assert!(shell.driver.engine.faults_mut().add(rule), "too many faults");
            }
            shell.driver.engine.update_journal();
        });
        Ok(server)
    }
}

impl TestServer {
    /// Starts a server with the default configuration and a running clock.
    ///
    /// # Panics
    ///
    /// If the system provides no socket or no thread.
    pub fn start() -> TestServer {
        Self::builder().start()
    }

    /// Returns a builder, to configure the server before it starts.
    pub fn builder() -> TestServerBuilder {
        // A test must not start from a snapshot that lies in its working directory.
        let (bind, dbfilename) = (vec!["127.0.0.1".to_owned()], String::new());
        let config = Config { port: 0, bind, dbfilename, ..Config::default() };
        TestServerBuilder { config, seed: 0, frozen: false, rules: Vec::new(), journal: 0, lock_keys: Vec::new() }
    }

    /// The server's address.
    pub fn addr(&self) -> SocketAddr {
        self.server.addresses()[0]
    }

    /// The server's port.
    pub fn port(&self) -> u16 {
        self.addr().port()
    }

    /// The address of the HTTP endpoint, if the directive `http` names one.
    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.server.http_address()
    }

    /// The server's URL for Redis clients: `redis://127.0.0.1:<port>/`.
    pub fn url(&self) -> String {
        format!("redis://{}/", self.addr())
    }

    /// The server's clock.
    pub fn clock(&self) -> TestClock<'_> {
        TestClock { server: self }
    }

    /// The underlying [`Server`].
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Executes a command inside the server, without a socket and without a password. Returns the reply as a RESP3 frame.
    /// Requests without a reply, such as an empty request or `CLIENT REPLY OFF`, return [`Frame::Null`].
    ///
    /// # Panics
    /// If the `redis-protocol` crate cannot decode the reply, such as a set of maps.
    pub fn execute<A: AsRef<[u8]>>(&self, args: &[A]) -> Frame {
        let args: Vec<Vec<u8>> = args.iter().map(|arg| arg.as_ref().to_vec()).collect();
        let reply = self.control(move |shell| {
            let now = shell.clock.now();
            let session = inside(shell, now);
            let args: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
            shell.driver.engine.begin_times(now, shell.clock.stopwatch_ns(), shell.clock.stopwatch());
            shell.driver.engine.execute(now, session, &args);
            shell.driver.engine.end_times(now);
            let now = shell.perform_actions(now);
            let reply = std::mem::take(&mut shell.driver.engine.sessions_mut()[session].out);
            shell.driver.engine.disconnect(now, session);
            reply
        });
        if reply.is_empty() {
            return Frame::Null;
        }
        match decode_bytes(&Bytes::from(reply)) {
            Ok(Some((frame, ..))) => frame,
            other => panic!("no reply that can be read: {other:?}"),
        }
    }

    /// The keys, sorted. Bytes that are not UTF-8 are replaced.
    pub fn keys(&self) -> Vec<String> {
        let mut keys = self.control(|shell| {
            let now = shell.clock.now();
            let db = shell.driver.engine.keyspace_mut().db(0, now);
            let mut keys = Vec::new();
            let mut cursor = 0;
            loop {
                cursor = db.scan(cursor, 1024, |entry| keys.push(String::from_utf8_lossy(entry.key()).into_owned()));
                if cursor == 0 {
                    return keys;
                }
            }
        });
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// The string value of a key; `None` if the key does not exist or has another type. Bytes that are not UTF-8 are replaced.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Option<String> {
        self.get_bytes(key).map(|value| String::from_utf8_lossy(&value).into_owned())
    }

    /// The string value of a key, as raw bytes.
    pub fn get_bytes(&self, key: impl AsRef<[u8]>) -> Option<Vec<u8>> {
        let key = key.as_ref().to_vec();
        self.control(move |shell| {
            let now = shell.clock.now();
            Some(shell.driver.engine.keyspace_mut().db(0, now).peek(&key)?.bytes()?.to_vec())
        })
    }

    /// The remaining time to live of a key, in whole milliseconds; `None` if the key does not exist or has no deadline.
    pub fn ttl(&self, key: impl AsRef<[u8]>) -> Option<Duration> {
        let key = key.as_ref().to_vec();
        self.control(move |shell| {
            let now = shell.clock.now();
            let deadline = shell.driver.engine.keyspace_mut().db(0, now).peek(&key)?.deadline()?;
            Some(Duration::from_millis(now.left_ms(deadline)))
        })
    }

    /// Whether the key exists.
    pub fn exists(&self, key: impl AsRef<[u8]>) -> bool {
        let key = key.as_ref().to_vec();
        self.control(move |shell| {
            let now = shell.clock.now();
            shell.driver.engine.keyspace_mut().db(0, now).contains(&key)
        })
    }

    /// Number of keys.
    pub fn dbsize(&self) -> usize {
        self.control(|shell| {
            let now = shell.clock.now();
            shell.driver.engine.keyspace_mut().db(0, now).len()
        })
    }

    /// Panics if the server's state violates an invariant. Visits the whole state.
    pub fn check_invariants(&self) {
        self.control(|shell| shell.driver.engine.check_invariants());
    }

    fn control<T: Send + 'static>(&self, what: impl FnOnce(&mut Shell) -> T + Send + 'static) -> T {
        if let Some(outcome) = self.server.control(what) { outcome } else { panic!("the server has ended") }
    }
}

/// Opens a trusted session for a caller inside the process.
fn inside(shell: &mut Shell, now: Now) -> SessionId {
    let peer = Peer::default();
    let id = shell.driver.engine.connect(now, peer);
    shell.driver.engine.trust(id);
    let session = &mut shell.driver.engine.sessions_mut()[id];
    session.protocol = Protocol::Resp3;
    id
}

/// The clock of a [`TestServer`]. TTLs, deadlines, idle time-outs, `TIME` and scripts all use it.
#[derive(Clone, Copy)]
pub struct TestClock<'a> {
    server: &'a TestServer,
}

impl TestClock<'_> {
    /// Freezes the clock at the next whole millisecond. The server still answers requests.
    pub fn freeze(&self) {
        self.server.control(|shell| shell.clock.freeze());
    }

    /// Lets the clock run on from its current time.
    pub fn resume(&self) {
        self.server.control(|shell| shell.clock.resume());
    }

    /// Whether the clock is frozen.
    pub fn is_frozen(&self) -> bool {
        self.server.control(|shell| shell.clock.is_frozen())
    }

    /// Moves the clock forward, frozen or not. Everything that falls due on the way happens at its own time and in order, before
    /// this returns.
    pub fn advance(&self, by: Duration) {
        let us = u64::try_from(by.as_micros()).unwrap_or(u64::MAX);
        self.server.control(move |shell| shell.move_clock(us));
    }

    /// Steps only the wall clock by this number of milliseconds, like an administrator who sets the system's clock. Deadlines do
    /// not change.
    pub fn jump_wall(&self, ms: i64) {
        self.server.control(move |shell| shell.clock.jump_wall(ms));
    }

    /// The clock's current unix time, in milliseconds.
    pub fn now_unix_ms(&self) -> i64 {
        self.server.control(|shell| shell.clock.now().unix_ms())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::time::Instant;

    use super::*;

    fn ask(server: &TestServer, request: &str) -> String {
        let mut stream = TcpStream::connect(server.addr()).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    }

    #[test]
    fn several_servers_know_nothing_of_each_other() {
        let (a, b) = (TestServer::start(), TestServer::start());
        assert_ne!(a.port(), b.port());
        assert_eq!(ask(&a, "SET k 1\r\n"), "+OK\r\n");
        assert_eq!((a.dbsize(), b.dbsize()), (1, 0));
        assert_eq!(a.keys(), ["k"]);
    }

    #[test]
    fn it_is_gone_when_it_is_dropped() {
        let server = TestServer::start();
        let addr = server.addr();
        let _idle = TcpStream::connect(addr).unwrap();
        drop(server);
        assert!(TcpStream::connect(addr).is_err());
    }

    #[test]
    fn what_is_due_happens_at_its_own_time_while_the_clock_is_moved() {
        let server = TestServer::builder().frozen(true).config("notify-keyspace-events", "Ex").start();
        let start = server.clock().now_unix_ms();
        for i in 0..1000 {
            server.execute(&["SET", &format!("k{i}"), "v", "PX", &(i * 977 % 100_000 + 1).to_string()]);
        }
        assert_eq!(server.dbsize(), 1000);
        server.clock().advance(Duration::from_millis(50_000));
        let left = server.dbsize();
        assert_eq!(left, (0..1000).filter(|i| i * 977 % 100_000 + 1 > 50_000).count());
        server.clock().advance(Duration::from_secs(3600));
        assert_eq!(server.dbsize(), 0);
        assert_eq!(server.clock().now_unix_ms(), start + 3_650_000);
        server.check_invariants();
    }

    #[test]
    fn a_step_of_the_wall_clock_ends_no_lease() {
        let server = TestServer::builder().frozen(true).start();
        server.execute(&["SET", "k", "v", "PX", "1000"]);
        server.clock().jump_wall(3_600_000);
        assert_eq!(server.ttl("k"), Some(Duration::from_millis(1000)));
        server.clock().jump_wall(-7_200_000);
        server.clock().advance(Duration::from_millis(999));
        assert!(server.exists("k"));
        server.clock().advance(Duration::from_millis(1));
        assert!(!server.exists("k"));
    }

    #[test]
    fn the_clock_moves_as_far_as_it_goes_and_no_further() {
        for frozen in [false, true] {
            let server = TestServer::builder().frozen(frozen).start();
            server.execute(&["SET", "k", "v", "EX", "100"]);
            for _ in 0..3 {
                server.clock().advance(Duration::MAX);
                server.clock().jump_wall(i64::MIN);
                server.clock().jump_wall(i64::MIN);
                server.clock().jump_wall(i64::MAX);
            }
            assert!(!server.exists("k"));
            server.execute(&["SET", "k", "v", "EX", "100"]);
            assert!(server.exists("k"));
            // The clock is at its end, where no further deadline falls due.
            server.clock().advance(Duration::from_secs(1000));
            assert!(server.exists("k"));
            server.check_invariants();
        }
    }

    #[test]
    fn deadlines_fire_on_a_running_clock_without_any_request() {
        let server = TestServer::start();
        let begin = Instant::now();
        server.execute(&["SET", "k", "v", "PX", "20"]);
        while server.dbsize() == 1 {
            assert!(begin.elapsed() < Duration::from_secs(10));
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(begin.elapsed() >= Duration::from_millis(15));
    }

    #[test]
    fn after_a_resume_deadlines_fire_again() {
        let server = TestServer::builder().frozen(true).start();
        server.execute(&["SET", "k", "v", "PX", "20"]);
        std::thread::sleep(Duration::from_millis(40));
        assert_eq!(server.dbsize(), 1);
        server.clock().resume();
        let begin = Instant::now();
        while server.dbsize() == 1 {
            assert!(begin.elapsed() < Duration::from_secs(10));
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn replies_are_decoded() {
        let server = TestServer::start();
        assert_eq!(server.execute(&["GET", "nosuch"]), Frame::Null);
        server.execute(&["SET", "k", "v"]);
        assert_eq!(server.execute(&["GET", "k"]).as_str(), Some("v"));
        assert_eq!(server.get("k").as_deref(), Some("v"));
        assert_eq!(server.execute::<&str>(&[]), Frame::Null);
        assert_eq!(server.execute(&["CLIENT", "REPLY", "OFF"]), Frame::Null);
        assert!(matches!(server.execute(&["NOSUCH"]), Frame::SimpleError { .. }));
    }

    #[test]
    fn a_panic_inside_ends_the_server_and_is_told() {
        let server = TestServer::start();
        assert!(server.server().control(|_| -> () { panic!("on purpose") }).is_none());
        let TestServer { mut server, .. } = server;
        assert!(server.wait().is_err_and(|error| error.to_string().contains("panicked")));
    }
}
