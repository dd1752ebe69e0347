//! An engine without a server: several sessions, requests as words, replies as bytes, and a clock that the test sets.
#![allow(dead_code)]

use portcullis::base::ids::SessionId;
use portcullis::base::time::Now;
use portcullis::engine::Engine;
use portcullis::engine::config::Config;
use portcullis::engine::session::Peer;

/// An engine with its clock.
pub struct Bare {
    pub engine: Engine,
    pub now: Now,
    clients: u32,
}

impl Bare {
    pub fn new() -> Self {
        Self::with(|_| ())
    }

    pub fn with(configure: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::default();
        configure(&mut config);
        let now = Now::new(5_000_000, 1_700_000_000_000);
        Bare { engine: Engine::new(config, 1, now, portcullis::commands::table()), now, clients: 0 }
    }

    /// Opens a session from `127.0.0.1:40001`, the next from `:40002`, and so on.
    pub fn connect(&mut self) -> SessionId {
        self.clients += 1;
        let addr = format!("127.0.0.1:{}", 40_000 + self.clients);
        self.engine.connect(self.now, Peer { addr: addr.into(), laddr: "127.0.0.1:6379".into(), unix: false })
    }

    /// Opens a session that uses RESP3.
    pub fn connect3(&mut self) -> SessionId {
        let id = self.connect();
        self.run(id, "HELLO 3");
        id
    }

    /// Executes a request and takes the contents of the session's outbox.
    pub fn args(&mut self, id: SessionId, args: &[&[u8]]) -> String {
        self.engine.execute(self.now, id, args);
        self.engine.check_invariants();
        self.take(id)
    }

    /// Executes a request whose words are separated by blanks.
    pub fn run(&mut self, id: SessionId, words: &str) -> String {
        let args: Vec<&[u8]> = words.split_whitespace().map(str::as_bytes).collect();
        self.args(id, &args)
    }

    /// Runs requests and checks their replies, in which blanks stand for line ends.
    #[track_caller]
    pub fn script(&mut self, id: SessionId, steps: &[(&str, &str)]) {
        for (request, reply) in steps {
            let got = self.run(id, request);
            assert_eq!(got.replace("\r\n", " ").trim_end(), *reply, "{request}");
        }
    }

    /// Takes the contents of an outbox.
    pub fn take(&mut self, id: SessionId) -> String {
        let out = std::mem::take(&mut self.engine.sessions_mut()[id].out);
        String::from_utf8_lossy(&out).into_owned()
    }

    /// Lets milliseconds pass, and runs what is due.
    pub fn pass(&mut self, ms: u64) {
        self.now.advance_us(ms * 1000);
        while self.engine.advance(self.now) {}
        self.engine.check_invariants();
    }
}
