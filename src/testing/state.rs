//! The state of a server: tests save and restore it, and search it for locks that were not released.

use std::time::{Duration, Instant};

use super::{Leak, Snapshot, TestServer, TestServerBuilder};
#[cfg(feature = "client")]
use crate::client::Client;

/// Maximum wait for the effects of other threads.
const PATIENCE: Duration = Duration::from_secs(10);

impl TestServerBuilder {
    /// Adds a glob for the plain keys that are locks; [`TestServer::assert_no_leaked_locks`] looks for them. Call it once for
    /// each pattern. Without a pattern, a key counts as a lock if one word of its name is `lock`, `mutex`, `semaphore` or the
    /// like, as in `lock:order:7`, `job-7.mutex` and `orderLock`.
    pub fn lock_keys(mut self, pattern: impl AsRef<[u8]>) -> Self {
        self.lock_keys.push(pattern.as_ref().to_vec());
        self
    }
}

impl TestServer {
    /// Saves the server's state: data with deadlines, native locks with their holders, functions and cached scripts.
    /// [`TestServer::restore`] restores it.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let server = portcullis::TestServer::builder().frozen(true).start();
    /// server.execute(&["SET", "fixture", "1", "PX", "5000"]);
    /// let fixture = server.snapshot();
    ///
    /// server.execute(&["SET", "of a test", "1"]);
    /// server.clock().advance(Duration::from_secs(60));
    ///
    /// server.restore(&fixture);
    /// assert_eq!(server.keys(), ["fixture"]);
    /// assert_eq!(server.ttl("fixture"), Some(Duration::from_millis(5000)));
    /// ```
    pub fn snapshot(&self) -> Snapshot {
        self.control(|shell| {
            let now = shell.clock.now();
            shell.driver.engine.snapshot(now)
        })
    }

    /// Replaces the server's state by a snapshot of this server or of one with the same seed. Remaining times are those at the
    /// time of the snapshot.
    ///
    /// Connections stay, with their subscriptions, tracking and open transactions. Watched keys count as changed, so that `EXEC`
    /// returns nil. Blocked clients are unblocked with their time-out reply. Holders on RESP3 connections receive a push that
    /// their lock was deleted. A grant bound to its connection (`SESSION`) is restored if that connection still exists. Fencing
    /// tokens keep growing.
    ///
    /// Requests that a fault delays or that `CLIENT PAUSE` holds back run before the restore, and the pause ends, so that nothing
    /// of one test happens in the next. The snapshot does not include the clock, the configuration, statistics and the rules of
    /// faults.
    ///
    /// # Panics
    ///
    /// If the snapshot is of a server with another seed, or has keys in databases that this server does not have.
    #[track_caller]
    pub fn restore(&self, snapshot: &Snapshot) {
        let snapshot = snapshot.clone();
        let restored = self.control(move |shell| {
            let now = shell.clock.now();
            shell.driver.engine.restore(now, &snapshot)
        });
        if let Err(reason) = restored {
            panic!("{reason}");
        }
    }

    /// The locks that are still held, in all databases: native locks and semaphores with each of their holders, and plain keys
    /// that are locks (see [`TestServerBuilder::lock_keys`]).
    pub fn leaked_locks(&self) -> Vec<Leak> {
        let patterns = self.lock_keys.clone();
        self.control(move |shell| {
            let now = shell.clock.now();
            shell.driver.engine.leaks(now, &patterns)
        })
    }

    /// Panics if a lock is still held. Call it at the end of a test. The message names the lock, its holder, how long it has been
    /// held, when it ends, and the connection that acquired it.
    ///
    /// ```should_panic
    /// let server = portcullis::TestServer::start();
    /// server.execute(&["SET", "lock:order:7", "alice", "NX", "PX", "30000"]);
    /// // lock:order:7 (string) held by 'alice', last used 0 s ago, ends in 30000 ms
    /// server.assert_no_leaked_locks();
    /// ```
    #[track_caller]
    pub fn assert_no_leaked_locks(&self) {
        let leaks = self.leaked_locks();
        let (count, plural) = (leaks.len(), if leaks.len() == 1 { " is" } else { "s are" });
        let lines: Vec<String> = leaks.iter().map(|leak| format!("\n  {leak}")).collect();
        assert!(leaks.is_empty(), "{count} lock{plural} still held:{}", lines.concat());
    }

    /// Connects a new client to the server.
    ///
    /// # Panics
    ///
    /// If it cannot connect, for example because the server requires a password.
    #[cfg(feature = "client")]
    pub async fn client(&self) -> Client {
        match Client::connect(&self.url()).await {
            Ok(client) => client,
            Err(error) => panic!("no client of the test server: {error}"),
        }
    }

    /// Number of clients blocked in the server: on keys, on locks, by a pause or by a delay.
    pub fn blocked_clients(&self) -> usize {
        self.control(|shell| shell.driver.engine.blocked_clients())
    }

    /// Waits until exactly this number of clients is blocked. A test then moves the clock or frees what they wait for.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let server = portcullis::TestServer::builder().frozen(true).start();
    /// let url = server.url();
    /// let waiter = std::thread::spawn(move || {
    ///     let mut client = redis::Client::open(url)?.get_connection()?;
    ///     redis::cmd("BLPOP").arg("queue").arg(30).query::<Option<(String, String)>>(&mut client)
    /// });
    /// server.until_blocked(1);
    /// server.clock().advance(Duration::from_secs(30));
    /// assert_eq!(waiter.join().unwrap().unwrap(), None);
    /// ```
    ///
    /// # Panics
    ///
    /// If that does not happen within ten seconds.
    #[track_caller]
    pub fn until_blocked(&self, clients: usize) {
        let begin = Instant::now();
        loop {
            let blocked = self.blocked_clients();
            if blocked == clients {
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "{blocked} clients wait, and not {clients}");
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}
