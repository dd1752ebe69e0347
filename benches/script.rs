//! Scripts on one thread without sockets: the cost of EVALSHA and `redis.call` beyond that of the commands they run.

// criterion's macro generates items without docs.
#![allow(missing_docs)]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use portcullis::base::ids::SessionId;
use portcullis::base::time::Now;
use portcullis::engine::Engine;
use portcullis::engine::config::Config;
use portcullis::engine::session::Peer;

const NAME: &[u8] = b"lock:order:000012345";
const TOKEN: &[u8] = b"5f0c2a3e-8f0e-4f47-9d2b-0c2c4f2f7a10";

const RELEASE: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

/// Acquires a reentrant lock, or returns the rest of its lease.
const ACQUIRE: &str = "
if redis.call('exists', KEYS[1]) == 0 then
    redis.call('hincrby', KEYS[1], ARGV[2], 1)
    redis.call('pexpire', KEYS[1], ARGV[1])
    return nil
end
if redis.call('hexists', KEYS[1], ARGV[2]) == 1 then
    redis.call('hincrby', KEYS[1], ARGV[2], 1)
    redis.call('pexpire', KEYS[1], ARGV[1])
    return nil
end
return redis.call('pttl', KEYS[1])";

struct Bench {
    engine: Engine,
    session: SessionId,
    now: Now,
}

impl Bench {
    fn new() -> Self {
        let now = Now::new(1_000_000, 1_700_000_000_000);
        let mut engine = Engine::new(Config::default(), 1, now, portcullis::commands::table());
        let session = engine.connect(now, Peer::default());
        Bench { engine, session, now }
    }

    fn send(&mut self, args: &[&[u8]]) {
        self.engine.sessions_mut()[self.session].out.clear();
        self.engine.execute(self.now, self.session, args);
        black_box(&self.engine.sessions()[self.session].out);
    }

    fn load(&mut self, script: &str) -> Vec<u8> {
        self.send(&[b"SCRIPT", b"LOAD", script.as_bytes()]);
        self.engine.sessions()[self.session].out[5..45].to_vec()
    }
}

fn floor(criterion: &mut Criterion) {
    let mut bench = Bench::new();
    criterion.bench_function("execute/get", |b| b.iter(|| bench.send(&[b"GET", NAME])));
    let sha = bench.load("return 1");
    criterion.bench_function("evalsha/return 1", |b| b.iter(|| bench.send(&[b"EVALSHA", &sha, b"0"])));
    criterion.bench_function("evalsha/return 1, a key and an argument", |b| {
        b.iter(|| bench.send(&[b"EVALSHA", &sha, b"1", NAME, TOKEN]))
    });
    criterion.bench_function("eval/return 1", |b| b.iter(|| bench.send(&[b"EVAL", b"return 1", b"0"])));
}

fn locks(criterion: &mut Criterion) {
    let mut bench = Bench::new();
    let sha = bench.load(RELEASE);
    criterion.bench_function("commands/set, get, del", |b| {
        b.iter(|| {
            bench.send(&[b"SET", NAME, TOKEN]);
            bench.send(&[b"GET", NAME]);
            bench.send(&[b"DEL", NAME]);
        });
    });
    criterion.bench_function("commands/set", |b| b.iter(|| bench.send(&[b"SET", NAME, TOKEN])));
    criterion.bench_function("evalsha/set and compare-and-delete", |b| {
        b.iter(|| {
            bench.send(&[b"SET", NAME, TOKEN]);
            bench.send(&[b"EVALSHA", &sha, b"1", NAME, TOKEN]);
        });
    });
    criterion.bench_function("evalsha/compare-and-delete of another's", |b| {
        bench.send(&[b"SET", NAME, b"somebody else"]);
        b.iter(|| bench.send(&[b"EVALSHA", &sha, b"1", NAME, TOKEN]));
    });
    let mut bench = Bench::new();
    let sha = bench.load(ACQUIRE);
    criterion.bench_function("evalsha/reentrant acquire, 4 calls", |b| {
        b.iter(|| bench.send(&[b"EVALSHA", &sha, b"1", NAME, b"30000", b"client:7"]));
    });
}

fn calls(criterion: &mut Criterion) {
    const CALLS: u64 = 1000;
    let mut group = criterion.benchmark_group("calls");
    group.throughput(Throughput::Elements(CALLS));
    for (name, script) in [
        ("loop alone", "local n = 0 for i = 1, 1000 do n = n + 1 end return n"),
        ("incr", "for i = 1, 1000 do redis.call('incr', KEYS[1]) end"),
        ("incr, redis.call kept in a local", "local call = redis.call for i = 1, 1000 do call('incr', KEYS[1]) end"),
        ("get of nothing", "for i = 1, 1000 do redis.call('get', KEYS[2]) end"),
        ("echo", "for i = 1, 1000 do redis.call('echo', 'x') end"),
        ("echo of a number", "for i = 1, 1000 do redis.call('echo', i) end"),
        ("set", "for i = 1, 1000 do redis.call('set', KEYS[3], 'value') end"),
    ] {
        let mut bench = Bench::new();
        let sha = bench.load(script);
        group.bench_function(name, |b| b.iter(|| bench.send(&[b"EVALSHA", &sha, b"3", b"counter", b"nothing", b"key"])));
    }
    let mut bench = Bench::new();
    group.bench_function("incr without a script", |b| {
        b.iter(|| (0..CALLS).for_each(|_| bench.send(&[b"INCR", b"counter"])));
    });
    group.finish();
}

criterion_group!(benches, floor, locks, calls);
criterion_main!(benches);
