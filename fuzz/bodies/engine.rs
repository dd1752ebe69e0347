//! The engine with arbitrary commands from two sessions and arbitrary steps of time. It does not panic, every reply is
//! well-formed, its invariants hold, and the same input gives the same bytes a second time.
//!
//! Each input has its own engine, whose creation takes a twentieth of the input's time. Expensive checks run for some inputs
//! only, depending on the input's digest: the second run, and the invariants at the end of time.
//!
//! An input is text that a person can write: a sequence of inline or multibulk requests. A byte 0xff is followed by two control
//! bytes: the session that continues (odd or even), and the time that passes before. A part of a request is kept until its
//! session continues. What a session sends while it is blocked is kept until it is not.

use std::hash::{DefaultHasher, Hasher};

use crate::frames;
use portcullis::base::ids::SessionId;
use portcullis::base::time::Now;
use portcullis::engine::Engine;
use portcullis::engine::config::Config;
use portcullis::engine::session::{Peer, SessionFlags};
use portcullis::resp::request::{Limits, Progress, RequestParser};

/// Maximum number of requests of one input.
const REQUESTS_MAX: usize = 150;
/// One input in this many is run twice.
const RERUN_EVERY: u64 = 8;
/// Maximum size in bytes of a reply that is decoded. Decoding a longer one would be slow.
const DECODED_MAX: usize = 16 * 1024;
/// Replacements for scripts, so that no script runs forever.
const SCRIPTS: [&[u8]; 6] = [
    b"return redis.call('GET', KEYS[1])",
    b"return ARGV",
    b"return redis.pcall(unpack(ARGV))",
    b"if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end",
    b"return {1, 'two', {3}, false, {err = 'ERR no'}}",
    b"return redis.call('HINCRBY', KEYS[1], ARGV[1], 1)",
];

/// Runs one input.
pub fn run(data: &[u8]) {
    let digest = digest(data);
    let first = Run::new().play(data, true);
    if digest.is_multiple_of(RERUN_EVERY) {
        compare(&first, data);
    }
}

/// Runs one input twice.
#[allow(dead_code, reason = "the targets leave it to the digest")]
pub fn run_twice(data: &[u8]) {
    compare(&Run::new().play(data, true), data);
}

fn compare(first: &[u64], data: &[u8]) {
    let second = Run::new().play(data, false);
    if let Some(step) = (0..first.len().max(second.len())).find(|&step| first.get(step) != second.get(step)) {
        panic!("the second run differs from the first after {step} replies");
    }
}

fn digest(bytes: &[u8]) -> u64 {
    let mut digest = DefaultHasher::new();
    digest.write(bytes);
    digest.finish()
}

/// One of the two sessions.
struct Client {
    id: SessionId,
    parser: RequestParser,
    input: Vec<u8>,
}

struct Run {
    engine: Engine,
    now: Now,
    clients: [Client; 2],
    /// A digest of the output of each step.
    digests: Vec<u64>,
}

impl Run {
    fn new() -> Self {
        let now = Now::new(1_000_000, 1_700_000_000_000);
        let config = Config { proto_max_bulk_len: 1 << 20, ..Config::default() };
        let mut engine = Engine::new(config, 1, now, portcullis::commands::table());
        let clients =
            [0, 1].map(|_| Client { id: engine.connect(now, Peer::default()), parser: RequestParser::new(), input: Vec::new() });
        Run { engine, now, clients, digests: Vec::new() }
    }

    fn play(mut self, data: &[u8], checked: bool) -> Vec<u64> {
        let mut chunks = data.split(|&byte| byte == 0xff);
        self.receive(0, chunks.next().unwrap_or_default());
        for chunk in chunks {
            let [client, time, text @ ..] = chunk else { continue };
            self.pass(*time);
            self.receive(*client as usize % 2, text);
        }
        if checked {
            self.engine.check_invariants();
        }
        // All timed events happen at the end.
        while let Some(deadline) = self.engine.next_deadline()
            && self.digests.len() < 4 * REQUESTS_MAX
        {
            self.now = Now::new(self.now.mono_us().max(deadline.saturating_mul(1000)), self.now.wall_offset_ms());
            self.settle();
        }
        if checked && self.digests.len().is_multiple_of(4) {
            self.engine.check_invariants();
        }
        self.digests
    }

    /// Advances by 0 to 31 units. A unit is a microsecond, or 8, 64, … microseconds: up to about a minute in all.
    fn pass(&mut self, code: u8) {
        self.now.advance_us(((code & 31) as u64) << (3 * (code >> 5)));
        self.settle();
    }

    /// Runs everything that is due.
    fn settle(&mut self) {
        let mut turns = 0;
        while self.engine.advance(self.now) {
            turns += 1;
            assert!(turns < 100_000, "time does not settle");
        }
        self.collect();
        for index in 0..self.clients.len() {
            self.receive(index, b"");
        }
    }

    /// Takes the output, and closes sessions that ask for it.
    fn collect(&mut self) {
        self.engine.take_pending_writes(&mut Vec::new());
        self.engine.take_actions();
        for index in 0..self.clients.len() {
            let id = self.clients[index].id;
            let session = &mut self.engine.sessions_mut()[id];
            let out = std::mem::take(&mut session.out);
            if out.len() <= DECODED_MAX {
                frames::assert_whole(&out, session.protocol, false);
            }
            self.digests.push(if out.is_empty() { 0 } else { digest(&out) });
            if session.flags.intersects(SessionFlags::CLOSE_NOW | SessionFlags::CLOSE_AFTER_REPLY) {
                self.reconnect(index);
            }
        }
    }

    fn reconnect(&mut self, index: usize) {
        self.engine.disconnect(self.now, self.clients[index].id);
        let id = self.engine.connect(self.now, Peer::default());
        self.clients[index] = Client { id, parser: RequestParser::new(), input: Vec::new() };
    }

    fn receive(&mut self, index: usize, text: &[u8]) {
        let mut input = std::mem::take(&mut self.clients[index].input);
        input.extend_from_slice(text);
        let mut done = 0;
        while self.digests.len() < 2 * REQUESTS_MAX {
            let client = &mut self.clients[index];
            let id = client.id;
            let flags = self.engine.sessions()[id].flags;
            if flags.contains(SessionFlags::BLOCKED) {
                break;
            }
            let authenticated = flags.contains(SessionFlags::AUTHENTICATED);
            let limits = Limits { max_bulk_len: 1 << 20, authenticated, ..Limits::default() };
            let rest = &input[done..];
            match client.parser.parse(rest, &limits) {
                Ok(Progress::Incomplete) => break,
                Ok(Progress::Empty { consumed }) => done += consumed,
                Ok(Progress::Complete { consumed }) => {
                    let mut args: Vec<&[u8]> = client.parser.arguments(rest).collect();
                    if limit_work(&mut args) {
                        self.engine.execute(self.now, id, &args);
                    }
                    done += consumed;
                }
                Err(_) => {
                    self.reconnect(index);
                    return;
                }
            }
            self.clients[index].parser.reset();
            self.collect();
            if self.clients[index].id != id {
                // Input that the session sent ahead is lost with it.
                return;
            }
        }
        input.drain(..done);
        self.clients[index].input = input;
    }
}

/// Changes a request that would run forever or use all memory, which Redis permits as well. Returns whether it may run.
fn limit_work(args: &mut [&[u8]]) -> bool {
    let is = |at: usize, name: &str| args.get(at).is_some_and(|arg| arg.eq_ignore_ascii_case(name.as_bytes()));
    if is(0, "config") && is(1, "set") && args[2..].iter().any(|arg| arg.eq_ignore_ascii_case(b"proto-max-bulk-len")) {
        return false;
    }
    let script = if is(0, "eval") || is(0, "eval_ro") {
        1
    } else if is(0, "script") && is(1, "load") {
        2
    } else {
        return true;
    };
    if let Some(text) = args.get_mut(script) {
        *text = SCRIPTS[text.first().map_or(0, |&byte| byte as usize % SCRIPTS.len())];
    }
    true
}
