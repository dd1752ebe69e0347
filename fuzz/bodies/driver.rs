//! An engine with one session and a clock that stands still, for the targets that need no more.

use crate::frames;
use portcullis::base::ids::SessionId;
use portcullis::base::time::Now;
use portcullis::engine::Engine;
use portcullis::engine::config::Config;
use portcullis::engine::session::Peer;

/// Maximum size in bytes of a reply that is decoded. Decoding a longer one would be slow.
const DECODED_MAX: usize = 64 * 1024;

/// The time at the beginning of every input.
pub const START: Now = Now::new(1_000_000, 1_700_000_000_000);

/// An engine with one session.
pub struct Driver {
    /// The engine.
    pub engine: Engine,
    /// The session of [`Driver::call`].
    pub session: SessionId,
    /// The current time.
    pub now: Now,
}

impl Driver {
    /// A new engine with this configuration.
    pub fn new(config: Config) -> Self {
        let mut engine = Engine::new(config, 1, START, portcullis::commands::table());
        let session = engine.connect(START, Peer::default());
        Driver { engine, session, now: START }
    }

    /// Executes a request and returns its reply, which must be well-formed. `free` as in [`frames::assert_whole`].
    pub fn call(&mut self, args: &[&[u8]], free: bool) -> Vec<u8> {
        self.engine.execute(self.now, self.session, args);
        self.engine.take_pending_writes(&mut Vec::new());
        self.engine.take_actions();
        let session = &mut self.engine.sessions_mut()[self.session];
        let out = std::mem::take(&mut session.out);
        assert!(!out.is_empty(), "no reply");
        if out.len() <= DECODED_MAX {
            frames::assert_whole(&out, session.protocol, free);
        }
        out
    }
}
