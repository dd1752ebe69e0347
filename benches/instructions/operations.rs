//! The counted operations: each is run two thousand times in a steady state, from the bytes of requests to the bytes of replies.
//!
//! The code of a connection runs as in the server, from the parser to the outbox, without the system calls. The clock stands
//! still. Keys and locks lie among sixteen thousand others. Only the operations are counted: not the setup, the teardown and the
//! check of the replies.

use std::hint::black_box;
use std::sync::Arc;

use gungraun::{Callgrind, LibraryBenchmarkConfig, library_benchmark, library_benchmark_group, main};
use portcullis::base::ids::SessionId;
use portcullis::bench::servers::wire::encode;
use portcullis::engine::config::Config;
use portcullis::engine::session::Peer;
use portcullis::resp::reply::{Protocol, Sink, WireReply};
use portcullis::resp::request::{Limits, whole_request};
use portcullis::server::clock::Clock;
use portcullis::server::directory::{Directory, Entry};
use portcullis::server::heap::allocator;
use portcullis::server::net::connection::execute_input;
use portcullis::server::shell::Shell;
use portcullis::store::entry::NewValue;
use portcullis::store::space::Space;
use portcullis::store::wheel::Wheel;

use crate::redisson;

/// Number of runs of each operation.
pub const TIMES: usize = 2048;
/// Number of requests that arrive at once.
const PIPELINE: usize = 16;
/// Number of keys that the operations do not use.
const OTHERS: usize = 16_384;
/// Number of connections that hand a lock on among them.
const CROWD: usize = 16;

const TOKEN: &str = "5f0c7a52-8f0e-4f0c-9a31-0a6c1d8f4e21";
const LEASE_MS: &str = "60000";
const COMPARE_AND_DELETE: &str =
    "if redis.call('get',KEYS[1]) == ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";
const COMPARE_AND_RENEW: &str =
    "if redis.call('get',KEYS[1]) == ARGV[1] then return redis.call('pexpire',KEYS[1],ARGV[2]) else return 0 end";
const COUNT: &str = "local n for i = 1, 1024 do n = redis.call('incr', KEYS[1]) end return n";

/// The name of a lock. The odd factor gives neighbours very different names.
fn name(n: usize) -> String {
    format!("lock:order:{:09}", n.wrapping_mul(0x9e37_79b1) & 0x1fff_ffff)
}

/// A server without sockets, and its prepared input.
pub struct World {
    shell: Shell,
    sessions: Vec<SessionId>,
    /// The input of each turn, with the index of its session.
    turns: Vec<(usize, Vec<u8>)>,
    replies: Vec<u8>,
    /// The expected replies, in which # stands for any digit.
    expected: Vec<u8>,
    /// Milliseconds by which the clock moves after the turns.
    advance_ms: u64,
    /// Expected number of keys at the end, beside the unused ones.
    keys: usize,
}

impl World {
    /// A server with the unused keys.
    fn new() -> World {
        allocator::prepare();
        // The heap of the executor's thread. It is leaked, because the process ends with it.
        std::mem::forget(allocator::own_heap());
        let mut clock = Clock::new();
        clock.freeze();
        // Sets the clocks to fixed times.
        let now = clock.now();
        clock.advance_us(2_000_000_000 - now.mono_us());
        let now = clock.now();
        clock.jump_wall(1_750_000_000_000 - now.unix_ms());
        let shell = Shell::new(Config::default(), 1, clock, Arc::<Directory>::default()).expect("a timer");
        let mut world = World {
            shell,
            sessions: Vec::new(),
            turns: Vec::new(),
            replies: Vec::with_capacity(1 << 20),
            expected: Vec::new(),
            advance_ms: 0,
            keys: 0,
        };
        world.connect();
        let others = (0..OTHERS).map(|n| encode(&["SET", &format!("other:{n}"), TOKEN, "PX", "600000"]));
        world.prepare(others, "+OK\r\n");
        // Sets and deletes the locks once, so that no table grows later.
        world.prepare((0..TIMES).map(|n| encode(&["SET", &name(n), TOKEN, "PX", LEASE_MS])), "+OK\r\n");
        world.prepare((0..TIMES).map(|n| encode(&["DEL", &name(n)])), ":1\r\n");
        for script in [COMPARE_AND_DELETE, COMPARE_AND_RENEW, COUNT, redisson::ACQUIRE, redisson::RELEASE] {
            world.turn(0, &encode(&["SCRIPT", "LOAD", script]));
        }
        world
    }

    fn connect(&mut self) -> usize {
        let entry = Entry { addr: None, fd: -1, connected_at: 0, bytes_in: 0, bytes_out: 0 };
        self.sessions.push(self.shell.connect(Peer::default(), entry));
        self.sessions.len() - 1
    }

    /// One turn of a connection, without `recv` and `send`.
    fn turn(&mut self, session: usize, input: &[u8]) {
        let id = self.sessions[session];
        self.shell.driver.count_read(id, input.len());
        execute_input(&mut self.shell, id, input);
        self.flush(id);
    }

    fn flush(&mut self, id: SessionId) {
        if let Some(bytes) = self.shell.driver.unsent(id) {
            // Copies the bytes, as the system does in `send`.
            self.replies.extend_from_slice(bytes);
            let written = bytes.len();
            self.shell.driver.count_written(id, written);
        }
        self.shell.driver.reclaim(id);
    }

    /// Executes requests now and checks their replies.
    fn prepare(&mut self, requests: impl Iterator<Item = Vec<u8>>, reply: &str) {
        for request in requests {
            self.replies.clear();
            self.turn(0, &request);
            assert!(matches(&self.replies, reply.as_bytes()), "{:?}", String::from_utf8_lossy(&self.replies));
        }
    }

    /// Sets all locks.
    fn held(mut self) -> World {
        self.prepare((0..TIMES).map(|n| encode(&["SET", &name(n), TOKEN, "NX", "PX", LEASE_MS])), "+OK\r\n");
        self.keys = TIMES;
        self
    }

    /// Executes a command for each lock now, and checks the replies.
    fn after(mut self, request: fn(&str) -> Vec<u8>, reply: &str) -> World {
        self.prepare((0..TIMES).map(|n| request(&name(n))), reply);
        self
    }

    /// Prepares a request for each lock, several per turn.
    fn pipelined(mut self, request: fn(&str) -> Vec<u8>, reply: &str) -> World {
        let requests: Vec<_> = (0..TIMES).map(|n| request(&name(n))).collect();
        self.turns = requests.chunks(PIPELINE).map(|some| (0, some.concat())).collect();
        self.expect(reply)
    }

    /// Prepares a request for each lock, one per turn.
    fn one_by_one(mut self, request: fn(&str) -> Vec<u8>, reply: &str) -> World {
        self.turns = (0..TIMES).map(|n| (0, request(&name(n)))).collect();
        self.expect(reply)
    }

    fn expect(mut self, reply: &str) -> World {
        self.expected = reply.repeat(TIMES).into_bytes();
        self.ready()
    }

    fn ready(mut self) -> World {
        self.replies.clear();
        self
    }

    /// Sets the number of locks that are left at the end.
    fn leaving(mut self, keys: usize) -> World {
        self.keys = keys;
        self
    }

    /// Lets time pass after the turns.
    fn advancing(mut self, ms: u64) -> World {
        self.advance_ms = ms;
        self.ready()
    }

    /// The counted part.
    fn run(&mut self) {
        for (session, input) in std::mem::take(&mut self.turns) {
            self.turn(session, &input);
        }
        if self.advance_ms > 0 {
            self.shell.move_clock(self.advance_ms * 1000);
        }
    }

    fn check(mut self) {
        assert!(matches(&self.replies, &self.expected), "{:.200}", String::from_utf8_lossy(&self.replies));
        self.replies.clear();
        // Another connection may have unread replies.
        let another = self.connect();
        self.turn(another, &encode(&["DBSIZE"]));
        assert_eq!(String::from_utf8_lossy(&self.replies), format!(":{}\r\n", OTHERS + self.keys));
    }
}

/// Whether bytes match a pattern in which # stands for any digit.
fn matches(bytes: &[u8], pattern: &[u8]) -> bool {
    let alike = |(byte, must): (&u8, &u8)| byte == must || *must == b'#' && byte.is_ascii_digit();
    bytes.len() == pattern.len() && bytes.iter().zip(pattern).all(alike)
}

fn take(key: &str) -> Vec<u8> {
    encode(&["SET", key, TOKEN, "NX", "PX", LEASE_MS])
}

fn acquire(key: &str) -> Vec<u8> {
    encode(&["LOCK.ACQUIRE", key, TOKEN, LEASE_MS])
}

const GRANTED: &str = ":################\r\n";

fn enter(key: &str) -> Vec<u8> {
    encode(&["EVALSHA", redisson::ACQUIRE_SHA, "1", key, LEASE_MS, TOKEN])
}

fn evalsha(script: &str, args: &[&str]) -> Vec<u8> {
    encode(&[&["EVALSHA", &sha1(script)], args].concat())
}

fn sha1(script: &str) -> String {
    use sha1::Digest as _;
    sha1::Sha1::digest(script.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Two scripts, each of which counts to half of the total.
fn counting() -> World {
    let mut world = World::new().leaving(1);
    world.turns = vec![(0, evalsha(COUNT, &["1", "counter"])); 2];
    world.expected = b":1024\r\n:2048\r\n".to_vec();
    world.ready()
}

/// Leases that end a millisecond apart.
fn ending() -> World {
    let mut world = World::new();
    let leases = (0..TIMES).map(|n| encode(&["SET", &name(n), TOKEN, "PX", &(1000 + n).to_string()]));
    world.prepare(leases, "+OK\r\n");
    world.advancing(5000)
}

/// All connections wait for one lock. Each holder releases it to the next and waits again.
fn crowd() -> World {
    let mut world = World::new().leaving(1);
    for _ in 1..CROWD {
        world.connect();
    }
    let owner = |member: usize| format!("owner:{member:02}");
    let ask = |member: usize| encode(&["LOCK.ACQUIRE", "crowded", &owner(member), LEASE_MS, "WAIT", "0"]);
    for member in 0..CROWD {
        world.turn(member, &ask(member));
    }
    world.turns = (0..TIMES)
        .map(|n| (n % CROWD, [encode(&["LOCK.RELEASE", "crowded", &owner(n % CROWD)]), ask(n % CROWD)].concat()))
        .collect();
    // The next holder's grant stays in its outbox until its own turn.
    world.expected = format!(":0\r\n{}", format!("{GRANTED}:0\r\n").repeat(TIMES - 1)).into_bytes();
    world.ready()
}

#[library_benchmark(teardown = World::check)]
#[bench::ping(World::new().pipelined(|_| encode(&["PING"]), "+PONG\r\n"))]
#[bench::ping_alone(World::new().one_by_one(|_| encode(&["PING"]), "+PONG\r\n"))]
#[bench::set(World::new().held().pipelined(|key| encode(&["SET", key, TOKEN]), "+OK\r\n"))]
#[bench::set_nx_px(World::new().leaving(TIMES).pipelined(take, "+OK\r\n"))]
#[bench::set_nx_px_alone(World::new().leaving(TIMES).one_by_one(take, "+OK\r\n"))]
#[bench::set_nx_px_refused(World::new().held().pipelined(take, "$-1\r\n"))]
#[bench::get(World::new().held().pipelined(|key| encode(&["GET", key]), "$36\r\n5f0c7a52-8f0e-4f0c-9a31-0a6c1d8f4e21\r\n"))]
#[bench::get_alone(World::new().held().one_by_one(|key| encode(&["GET", key]), "$36\r\n5f0c7a52-8f0e-4f0c-9a31-0a6c1d8f4e21\r\n"))]
#[bench::get_nothing(World::new().pipelined(|key| encode(&["GET", key]), "$-1\r\n"))]
#[bench::del(World::new().held().leaving(0).pipelined(|key| encode(&["DEL", key]), ":1\r\n"))]
#[bench::pexpire(World::new().held().pipelined(|key| encode(&["PEXPIRE", key, "70000"]), ":1\r\n"))]
#[bench::compare_and_delete(World::new().held().leaving(0).pipelined(|key| evalsha(COMPARE_AND_DELETE, &["1", key, TOKEN]), ":1\r\n"))]
#[bench::compare_and_renew(World::new().held().pipelined(|key| evalsha(COMPARE_AND_RENEW, &["1", key, TOKEN, "70000"]), ":1\r\n"))]
#[bench::reentrant_acquire(World::new().leaving(TIMES).pipelined(enter, "$-1\r\n"))]
#[bench::reentrant_acquire_again(World::new().after(enter, "$-1\r\n").leaving(TIMES).pipelined(enter, "$-1\r\n"))]
#[bench::reentrant_release(World::new().after(enter, "$-1\r\n").leaving(0).pipelined(leave, ":1\r\n"))]
#[bench::incr_in_script(counting())]
#[bench::lock_acquire(World::new().leaving(TIMES).pipelined(acquire, GRANTED))]
#[bench::lock_renew(World::new().after(acquire, GRANTED).leaving(TIMES).pipelined(|key| encode(&["LOCK.RENEW", key, TOKEN, "70000"]), ":70000\r\n"))]
#[bench::lock_release(World::new().after(acquire, GRANTED).leaving(0).pipelined(|key| encode(&["LOCK.RELEASE", key, TOKEN]), ":0\r\n"))]
#[bench::lock_handed_on(crowd())]
#[bench::lease_ends(ending())]
#[bench::leases_end_at_once(World::new().held().leaving(0).advancing(60_000))]
fn request(mut world: World) -> World {
    world.run();
    world
}

fn leave(key: &str) -> Vec<u8> {
    encode(&["EVALSHA", redisson::RELEASE_SHA, "2", key, "unlocked", "0", LEASE_MS, TOKEN])
}

/// A request, repeated.
fn received(request: &[&str]) -> Vec<u8> {
    encode(request).repeat(TIMES)
}

// Parses the whole input, as the server does with complete requests, and touches every argument, as execution would.
#[library_benchmark(teardown = drop)]
#[bench::set_nx_px(received(&["SET", "lock:order:000012345", TOKEN, "NX", "PX", LEASE_MS]))]
#[bench::get(received(&["GET", "lock:order:000012345"]))]
#[bench::evalsha(received(&["EVALSHA", redisson::ACQUIRE_SHA, "1", "lock:order:000012345", TOKEN]))]
fn parse(received: Vec<u8>) -> Vec<u8> {
    let limits = Limits::default();
    let mut arguments = Vec::with_capacity(16);
    let mut rest = &received[..];
    while let Some(behind) = whole_request(rest, &limits, &mut arguments) {
        for argument in arguments.drain(..) {
            black_box(argument);
        }
        rest = behind;
    }
    assert!(rest.is_empty(), "all of it is complete requests");
    drop(arguments);
    received
}

/// A buffer with room for all replies.
fn room(say: fn(&mut dyn Sink)) -> (Vec<u8>, fn(&mut dyn Sink)) {
    (Vec::with_capacity(64 * TIMES), say)
}

#[library_benchmark(teardown = drop)]
#[bench::ok(room(|sink| sink.ok()))]
#[bench::integer(room(|sink| sink.integer(black_box(1))))]
#[bench::integer_long(room(|sink| sink.integer(black_box(1_763_707_123_456))))]
#[bench::bulk(room(|sink| sink.bulk(black_box(TOKEN.as_bytes()))))]
#[bench::null(room(|sink| sink.null()))]
fn encoding((mut out, say): (Vec<u8>, fn(&mut dyn Sink))) -> Vec<u8> {
    for _ in 0..TIMES {
        say(&mut WireReply::new(&mut out, Protocol::Resp2));
    }
    out
}

/// Leases spread over ten minutes.
fn lease(n: u64) -> u64 {
    1000 + n.wrapping_mul(0x9e37_79b1) % 600_000
}

/// A wheel with other timers.
fn wheel() -> Wheel {
    let mut wheel = Wheel::new(0);
    let timers: Vec<_> = (0..(OTHERS + TIMES) as u64).map(|n| wheel.insert(lease(n), n)).collect();
    timers[OTHERS..].iter().for_each(|timer| wheel.cancel(*timer));
    wheel
}

#[library_benchmark(teardown = drop)]
#[bench::spread(wheel())]
fn wheel_insert(mut wheel: Wheel) -> Wheel {
    for n in 0..TIMES as u64 {
        black_box(wheel.insert(lease(n), n));
    }
    wheel
}

/// A wheel with timers that end within about two seconds. The token of a timer is its deadline.
fn firing() -> Wheel {
    let mut wheel = Wheel::new(0);
    for n in 0..TIMES as u64 {
        let deadline = 1000 + n;
        wheel.insert(deadline, deadline);
    }
    wheel
}

#[library_benchmark(teardown = drop)]
#[bench::one_by_one(firing())]
fn wheel_fire(mut wheel: Wheel) -> Wheel {
    while let Some(now) = wheel.next_wake() {
        let mut budget = 2000;
        while let Some(token) = wheel.poll(now, &mut budget, |token| token) {
            black_box(token);
        }
    }
    wheel
}

/// Number of keys that are inserted into an empty database.
const GROWN: usize = 32 * TIMES;

fn names() -> (Space, Vec<String>) {
    (Space::new(1, 7, 0), (0..GROWN).map(name).collect())
}

#[library_benchmark(teardown = drop)]
#[bench::from_nothing(names())]
fn table_grow((mut space, names): (Space, Vec<String>)) -> (Space, Vec<String>) {
    for name in &names {
        let hash = space.hash(name.as_bytes());
        space.insert(0, hash, name.as_bytes(), NewValue::Bytes(TOKEN.as_bytes()), Some(60_000));
    }
    (space, names)
}

/// Number of runs of an operation.
pub fn times(name: &str) -> usize {
    if name.starts_with("table_grow") { GROWN } else { TIMES }
}

library_benchmark_group!(name = wire, benchmarks = [parse, encoding]);
library_benchmark_group!(name = requests, benchmarks = request);
library_benchmark_group!(name = store, benchmarks = [wheel_insert, wheel_fire, table_grow]);

main!(
    config = LibraryBenchmarkConfig::default().tool(Callgrind::with_args(["--cache-sim=no"])),
    library_benchmark_groups = [wire, requests, store]
);

/// Counts, or lets gungraun count, depending on how the program was started.
pub fn count() {
    main();
}
