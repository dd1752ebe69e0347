//! An engine, one session on it, and a clock that stands still: what the smaller targets run on.

use crate::frames;
use portcullis::base::ids::SessionId;
use portcullis::base::time::Now;
use portcullis::engine::Engine;
use portcullis::engine::config::Config;
use portcullis::engine::session::Peer;

/// Longer replies are not decoded, for speed.
const DECODED_MAX: usize = 16 * 1024;

/// The instant at which every input begins.
pub const START: Now = Now::new(1_000_000, 1_700_000_000_000);

/// An engine and one session.
pub struct Driver {
    /// The engine.
    pub engine: Engine,
    /// The session that [`Driver::call`] speaks for.
    pub session: SessionId,
    /// The instant.
    pub now: Now,
}

impl Driver {
    /// A new engine with this configuration.
    pub fn new(config: Config) -> Self {
        let mut engine = Engine::new(config, 1, START, portcullis::commands::table());
        let session = engine.connect(START, Peer::default());
        Driver { engine, session, now: START }
    }

    /// Executes a request and gives its reply, which is whole; `free` as [`frames::assert_whole`] has it.
    pub fn call(&mut self, args: &[&[u8]], free: bool) -> Vec<u8> {
        self.engine.execute(self.now, self.session, args);
        self.engine.take_dirty(&mut Vec::new());
        self.engine.take_actions();
        let session = &mut self.engine.sessions[self.session.0 as usize];
        let out = std::mem::take(&mut session.out);
        assert!(!out.is_empty(), "no reply");
        if out.len() <= DECODED_MAX {
            frames::assert_whole(&out, session.protocol, free);
        }
        out
    }
}
