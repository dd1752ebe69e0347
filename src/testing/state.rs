//! What a server holds: kept and put back between tests, and looked through for locks that nobody has given back.

use std::time::{Duration, Instant};

use super::{Leak, Snapshot, TestServer, TestServerBuilder};
#[cfg(feature = "client")]
use crate::client::Client;

/// How long is waited for what other threads do, at most.
const PATIENCE: Duration = Duration::from_secs(10);

impl TestServerBuilder {
    /// Says which plain keys are locks, as globs: [`TestServer::assert_no_leaked_locks`] looks for them. Without any, those are meant in whose
    /// names a word is `lock`, `mutex`, `semaphore` or the like, as in `lock:order:7`, `job-7.mutex` and `orderLock`. To be called once
    /// for each pattern.
    pub fn lock_keys(mut self, pattern: impl AsRef<[u8]>) -> Self {
        self.lock_keys.push(pattern.as_ref().to_vec());
        self
    }
}

impl TestServer {
    /// What it holds: data with deadlines, native locks with their holders, functions and cached scripts. [`TestServer::restore`] puts it back.
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
            shell.engine.snapshot(now)
        })
    }

    /// Has it hold what a snapshot has, its own or that of a server with the same seed, and nothing else. Whatever had a time left has as much left as it had then.
    ///
    /// Connections stay, and so do their subscriptions, what they track, and transactions that they have begun; keys that they watch have changed, so
    /// that `EXEC` gives nil. Who waits does so no more, and is told what it would be told when its time is over. Who held a lock is told on
    /// RESP3 that it was deleted. A grant bound to its connection (`SESSION`) is had again if that connection is still there. Fencing tokens go on growing.
    ///
    /// Requests that a fault delays or `CLIENT PAUSE` holds back are carried out before, and the pause is over: nothing of one test comes about in
    /// the next. Clock, configuration, statistics and the rules of faults are none of it.
    ///
    /// # Panics
    ///
    /// Where the snapshot is of a server with another seed, or has keys in databases that this one has not.
    #[track_caller]
    pub fn restore(&self, snapshot: &Snapshot) {
        let snapshot = snapshot.clone();
        let restored = self.control(move |shell| {
            let now = shell.clock.now();
            shell.engine.restore(now, &snapshot)
        });
        if let Err(reason) = restored {
            panic!("{reason}");
        }
    }

    /// The locks that are still held, in all databases: native locks and semaphores with each of their holders, and plain keys that are locks (see
    /// [`TestServerBuilder::lock_keys`]).
    pub fn leaked_locks(&self) -> Vec<Leak> {
        let patterns = self.lock_keys.clone();
        self.control(move |shell| {
            let now = shell.clock.now();
            shell.engine.leaks(now, &patterns)
        })
    }

    /// To be called at the end of a test: panics if a lock is still held, and says which, by whom, for how long and until when, and by which connection
    /// it was acquired.
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

    /// A client of its own, connected.
    ///
    /// # Panics
    ///
    /// Where it cannot connect, as when the server wants a password.
    #[cfg(feature = "client")]
    pub async fn client(&self) -> Client {
        match Client::connect(&self.url()).await {
            Ok(client) => client,
            Err(error) => panic!("no client of the test server: {error}"),
        }
    }

    /// How many clients wait in it, be it for keys, locks, the end of a pause or of a delay.
    pub fn blocked_clients(&self) -> usize {
        self.control(|shell| shell.engine.blocked_clients())
    }

    /// Waits until so many clients wait in it, for a test that then moves the clock or frees what they wait for.
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
    /// Where that does not come about within ten seconds.
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
