//! Drives an engine in unit tests: requests and replies as text, and manual time.

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::Engine;
use crate::engine::config::Config;
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

    /// Executes a request. Returns the bytes of its reply.
    pub fn args(&mut self, args: &[&[u8]]) -> Vec<u8> {
        self.engine.execute(self.now, self.session, args);
        std::mem::take(&mut self.engine.sessions[self.session.0 as usize].out)
    }

    /// Executes a request of words separated by blanks. Line ends in the reply are shown as blanks, without the last one.
    pub fn run(&mut self, words: &str) -> String {
        let args: Vec<&[u8]> = words.split_whitespace().map(str::as_bytes).collect();
        let reply = self.args(&args);
        self.engine.check_invariants();
        String::from_utf8_lossy(&reply).trim_end().replace("\r\n", " ")
    }

    /// Lets milliseconds pass, and executes what falls due.
    pub fn pass(&mut self, ms: u64) {
        self.now.mono_us += ms * 1000;
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
