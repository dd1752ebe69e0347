//! Drives an engine in unit tests: requests and replies as text, and manual time.

use crate::base::ids::SessionId;
use crate::base::scaled;
use crate::base::time::Now;
use crate::engine::Engine;
use crate::engine::config::Config;
use crate::engine::replication::{Node, NodeId, Role, State};
use crate::engine::session::Peer;

/// An engine, one session, and a manual clock.
pub struct Harness {
    /// The engine.
    pub engine: Engine,
    /// The session of [`Harness::run`].
    pub session: SessionId,
    /// The instant.
    pub now: Now,
}

impl Harness {
    #[allow(clippy::new_without_default, reason = "only tests make one")]
    /// An engine with the default configuration, a million milliseconds after the origin.
    pub fn new() -> Self {
        let now = Now::new(1_000_000_000, 1_700_000_000_000);
        let mut engine = Engine::new(Config::default(), 7, now, crate::commands::table());
        let session = engine.connect(now, Peer::default());
        Harness { engine, session, now }
    }

    /// As [`Harness::new`], as the first of three nodes. The others are the second and the third of 10.0.0.0/24.
    pub fn replicated(role: Role, cluster_enabled: bool) -> Self {
        let mut harness = Harness::new();
        let config = Config { cluster_enabled, tls_port: 6390, ..Config::default() };
        harness.engine = Engine::new(config, 7, harness.now, crate::commands::table());
        harness.session = harness.engine.connect(harness.now, Peer { laddr: "10.0.0.1:6379".into(), ..Peer::default() });
        harness.engine.set_replication(harness.now, Self::three_nodes(role));
        harness
    }

    /// Three nodes that answer. This is the first.
    pub fn three_nodes(role: Role) -> State {
        let node = |id: NodeId| Node {
            id,
            host: format!("10.0.0.{id}"),
            port: 6379,
            tls_port: 6390,
            voter: true,
            link_up: true,
            lag_ms: 1500,
            position: 100 - id,
        };
        State { role, cluster: 9, node: 1, term: 4, nodes: (1..=3).map(node).collect(), handing_over: false }
    }

    /// Sets another role, with the nodes of [`Harness::three_nodes`].
    pub fn become_one(&mut self, role: Role) {
        self.engine.set_replication(self.now, Self::three_nodes(role));
    }

    /// Takes what a session has in its outbox, as text like [`Harness::run`].
    pub fn outbox(&mut self, id: SessionId) -> String {
        let out = std::mem::take(&mut self.engine.clients.sessions[id].out);
        String::from_utf8_lossy(&out).trim_end().replace("\r\n", " ")
    }

    /// Executes a request. Returns the bytes of its reply.
    pub fn args(&mut self, args: &[&[u8]]) -> Vec<u8> {
        self.engine.execute(self.now, self.session, args);
        std::mem::take(&mut self.engine.clients.sessions[self.session].out)
    }

    /// Executes a request of words separated by blanks. Line ends in the reply are shown as blanks, without the last one.
    pub fn run(&mut self, words: &str) -> String {
        let args: Vec<&[u8]> = words.split_whitespace().map(str::as_bytes).collect();
        let reply = self.args(&args);
        // It takes Miri many times as long as the request.
        if scaled(true, false) {
            self.engine.check_invariants();
        }
        String::from_utf8_lossy(&reply).trim_end().replace("\r\n", " ")
    }

    /// Lets milliseconds pass, and executes what falls due.
    pub fn pass(&mut self, ms: u64) {
        self.now.advance_us(ms * 1000);
        while self.engine.advance(self.now) {}
        self.engine.check_invariants();
    }

    /// Runs pairs of a request and its expected reply.
    #[track_caller]
    pub fn script(&mut self, steps: &[(&str, &str)]) {
        for (request, reply) in steps {
            assert_eq!(self.run(request), *reply, "{request}");
        }
    }
}
