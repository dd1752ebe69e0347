//! An engine that executes generated calls, while time passes.

use portcullis::base::ids::SessionId;
use portcullis::base::time::Now;
use portcullis::engine::Engine;
use portcullis::engine::config::Config;
use portcullis::engine::session::SessionFlags;
use portcullis::persist::append::clock::Moment;

use crate::append_only::{boot_at, enter};
use crate::common::random::Random;

/// An engine, and the connection that calls it while time passes.
pub struct Caller {
    pub engine: Engine,
    pub session: SessionId,
    pub now: Now,
    /// The calls so far.
    pub history: Vec<String>,
}

/// How seldom much time passes after a call, and how much: whole multiples of `whole_ms`, below `most_ms`.
#[derive(Clone, Copy)]
pub struct Jumps {
    pub one_in: u64,
    pub most_ms: u64,
    pub whole_ms: u64,
}

impl Caller {
    pub fn new(seed: u64, now: Now) -> Caller {
        let config = Config { proto_max_bulk_len: 1 << 20, ..Config::default() };
        let mut engine = Engine::new(config, seed, now, portcullis::commands::table());
        let session = enter(&mut engine, now);
        Caller { engine, session, now, history: Vec::new() }
    }

    /// The clocks.
    pub fn moment(&self) -> Moment {
        Moment { now: self.now, boot: boot_at(self.now) }
    }

    /// Ends the connection, and begins another one.
    pub fn connect_again(&mut self) {
        self.engine.disconnect(self.now, self.session);
        self.session = enter(&mut self.engine, self.now);
    }

    /// Executes a call to its end. Some time passes, and what is due then happens at once one time in three.
    pub fn call(&mut self, random: &mut Random, call: &[Vec<u8>], jumps: Jumps) {
        let shown = call.iter().map(|arg| arg[..arg.len().min(60)].escape_ascii().to_string());
        self.history.push(shown.collect::<Vec<_>>().join(" "));
        let args: Vec<&[u8]> = call.iter().map(Vec::as_slice).collect();
        self.engine.execute(self.now, self.session, &args);
        while self.engine.sessions()[self.session].flags.contains(SessionFlags::BLOCKED) {
            self.now.advance_us(1_000);
            self.engine.advance(self.now);
        }
        self.engine.sessions_mut()[self.session].out.clear();
        self.engine.take_actions();
        self.now.advance_us(random.below(3_000));
        if random.one_in(jumps.one_in) {
            self.now.advance_us(random.below(jumps.most_ms / jumps.whole_ms) * jumps.whole_ms * 1000);
        }
        if random.one_in(3) {
            while self.engine.advance(self.now) {}
        }
    }
}
