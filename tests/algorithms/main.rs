//! The lock algorithms of tutorials and libraries. Eight clients at once run each of them through the `redis` crate, with RESP2
//! and RESP3.
//!
//! - `exclusion`: one winner each time and no lost updates, on a running clock;
//! - `leases`: the lock of a dead holder becomes free at the end of its lease and not before, on a clock that the test moves;
//! - `flaws`: the known flaws of each algorithm;
//! - `rates`: token bucket and windows;
//! - `scenarios`: uses of locks.
//!
//! With `PORTCULLIS_ALGORITHMS_URL=redis://host:port/` the tests that do not move a clock also run against that server, which
//! shows whether the code of an algorithm is right.

#![allow(clippy::unwrap_used)]

mod exclusion;
mod flaws;
mod leases;
mod locks;
mod rates;
mod scenarios;

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use portcullis::TestServer;
use redis::Connection;

/// Number of clients of each test.
const CLIENTS: usize = 8;

/// A server under test, with one of the two protocols.
struct Arena {
    /// `None` for the server of the environment.
    server: Option<TestServer>,
    url: String,
    /// The prefix of the test's keys.
    prefix: String,
}

impl Arena {
    /// Runs a test on a new server for each protocol, with a running clock; and on the server of the environment, if there is
    /// one.
    fn each(name: &str, test: impl Fn(&Arena)) {
        Self::each_ours(name, false, &test);
        if let Some(url) = std::env::var("PORTCULLIS_ALGORITHMS_URL").ok().filter(|url| !url.is_empty()) {
            for protocol in ["resp2", "resp3"] {
                let url = format!("{}?protocol={protocol}", url.split('?').next().unwrap());
                test(&Arena { server: None, url, prefix: format!("algorithms:{}:{name}:{protocol}:", std::process::id()) });
            }
        }
    }

    /// Runs a test on a new server for each protocol, with a frozen clock.
    fn each_frozen(name: &str, test: impl Fn(&Arena)) {
        Self::each_ours(name, true, &test);
    }

    fn each_ours(name: &str, frozen: bool, test: &impl Fn(&Arena)) {
        for protocol in ["resp2", "resp3"] {
            let server = TestServer::builder().frozen(frozen).start();
            let url = format!("{}?protocol={protocol}", server.url());
            let arena = Arena { server: Some(server), url, prefix: format!("{name}:{protocol}:") };
            test(&arena);
            if let Some(server) = &arena.server {
                server.check_invariants();
            }
        }
    }

    fn connect(&self) -> Connection {
        redis::Client::open(self.url.as_str()).unwrap().get_connection().unwrap()
    }

    /// A key of this test that does not exist yet.
    fn key(&self, name: &str) -> String {
        let key = format!("{}{name}", self.prefix);
        redis::cmd("DEL").arg(&key).exec(&mut self.connect()).unwrap();
        key
    }

    /// The server that was started for the test.
    fn own(&self) -> &TestServer {
        self.server.as_ref().expect("only asked for where the server is the test's own")
    }

    /// Moves the clock.
    fn advance_ms(&self, ms: u64) {
        self.own().clock().advance(std::time::Duration::from_millis(ms));
    }

    /// Unix milliseconds by the server's clock, or by this machine's for the server of the environment.
    fn unix_ms(&self) -> i64 {
        match &self.server {
            Some(server) => server.clock().now_unix_ms(),
            None => std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as i64,
        }
    }

    /// Runs a client in each of eight threads, which start at once. Returns their results.
    fn together<T: Send>(&self, client: impl Fn(usize, &mut Connection) -> T + Sync) -> Vec<T> {
        let barrier = Barrier::new(CLIENTS);
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..CLIENTS)
                .map(|number| {
                    let (client, barrier) = (&client, &barrier);
                    let mut connection = self.connect();
                    scope.spawn(move || {
                        barrier.wait();
                        client(number, &mut connection)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }
}

/// A resource for one user at a time, which notices concurrent users.
#[derive(Default)]
struct Guarded {
    inside: AtomicBool,
    intrusions: AtomicU64,
    count: AtomicU64,
}

impl Guarded {
    /// Increments a counter as a read and a later write, so that concurrent increments are lost.
    fn increment(&self) {
        if self.inside.swap(true, Ordering::SeqCst) {
            self.intrusions.fetch_add(1, Ordering::SeqCst);
        }
        let seen = self.count.load(Ordering::SeqCst);
        std::thread::yield_now();
        self.count.store(seen + 1, Ordering::SeqCst);
        self.inside.store(false, Ordering::SeqCst);
    }

    fn assert_count(&self, expected: u64, what: &str) {
        assert_eq!(self.intrusions.load(Ordering::SeqCst), 0, "{what}: two holders at once");
        assert_eq!(self.count.load(Ordering::SeqCst), expected, "{what}: lost");
    }
}
