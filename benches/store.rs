//! The store: looking up, inserting and removing keys, timers, and memory per lock: `cargo bench --bench store`.
//!
//! Before the benches of criterion it prints what averages do not show: resident bytes per key, and the slowest operations while
//! a database, a hash or a set grows to four million keys, fields or members and shrinks again. For comparison there is `std`'s
//! map with the same hash function.

// criterion's macro generates items without docs.
#![allow(missing_docs)]

use std::collections::HashMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group};
use foldhash::fast::FixedState;
use portcullis::server::heap::allocator;
use portcullis::store::dict::KeyHasher;
use portcullis::store::entry::NewValue;
use portcullis::store::space::Space;
use portcullis::store::values::hash;
use portcullis::store::values::hash::{FieldTtl, Hash};
use portcullis::store::values::set;
use portcullis::store::values::set::{Member, Set};
use portcullis::store::wheel::Wheel;
use rustix::time::{ClockId, clock_gettime};

const TOKEN: &[u8; 36] = b"5f0c2a3e-8f0e-4f47-9d2b-0c2c4f2f7a10";
const MILLION: u64 = 1_000_000;
/// Number of operations that are timed at once, so that reading the clock costs next to nothing.
const BLOCK: u64 = 500;

/// The name of a lock, of 20 bytes. The odd factor gives neighbours very different names.
fn key(n: u64) -> [u8; 20] {
    let mut key = *b"lock:order:000000000";
    let mut rest = n.wrapping_mul(0x9e37_79b1) & 0x1fff_ffff;
    for digit in key[11..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

fn insert(space: &mut Space, key: &[u8], deadline: Option<u64>) {
    let hash = space.hash(key);
    space.insert(0, hash, key, NewValue::Bytes(TOKEN), deadline);
}

fn remove(space: &mut Space, key: &[u8]) {
    if let Some(place) = space.find(0, space.hash(key), key) {
        drop(space.remove(0, place));
    }
}

/// A database of `count` locks. The wheel is at time 0, and deadlines are within ten minutes.
fn filled(count: u64, leases: bool) -> Space {
    let mut space = Space::new(1, 7, 0);
    for n in 0..count {
        insert(&mut space, &key(n), leases.then_some(1 + n * 600_000 / count));
    }
    space
}

/// Resident memory in bytes.
fn resident() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// Must run first: memory that was freed before is reused and not counted.
fn print_memory() {
    let before = resident();
    let space = filled(MILLION, true);
    if let (Some(before), Some(after)) = (before, resident()) {
        let per_key = (after - before) as f64 / MILLION as f64;
        let slots = space.dict(0).allocated() as f64 / MILLION as f64;
        println!("memory: {per_key:.1} B per lock with a lease (20-byte name, 36-byte token), {slots:.1} of them slots");
    }
}

/// CPU time of this thread, which excludes other processes.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn print_slowest() {
    let mut space = Space::new(1, 7, 0);
    let mut slowest: Vec<(Duration, u64)> = Vec::new();
    let start = Instant::now();
    for n in 0..4 * MILLION {
        let key = key(n);
        let before = cpu_time();
        insert(&mut space, &key, Some(30_000 + n / 100));
        let took = cpu_time() - before;
        if took > Duration::from_micros(50) {
            slowest.push((took, n));
        }
    }
    slowest.sort_unstable_by(|a, b| b.cmp(a));
    println!("growth to 4M: {:?} in all, {} inserts over 50 us, the slowest:", start.elapsed(), slowest.len());
    for (took, n) in slowest.iter().take(5) {
        println!("  {took:?} at {n} keys");
    }
    let mut slowest = Duration::ZERO;
    for n in 0..2 * MILLION {
        let key = key(n * 2);
        let before = cpu_time();
        remove(&mut space, &key);
        slowest = slowest.max(cpu_time() - before);
    }
    println!("taking 2M of them out: the slowest took {slowest:?}");
    space.clear(0, Default::default());
    let (mut slowest, mut turns, start) = (Duration::ZERO, 0, cpu_time());
    while space.has_unfreed() {
        let before = cpu_time();
        space.free_some(&mut 2000);
        slowest = slowest.max(cpu_time() - before);
        turns += 1;
    }
    println!("emptying it of 2M, 2,000 a turn: {:?} in {turns} turns, the slowest {slowest:?}", cpu_time() - start);
}

/// The slowest of many steps, and the mean.
fn slowest(count: u64, mut step: impl FnMut(u64)) -> (Duration, Duration) {
    let (mut slowest, start) = (Duration::ZERO, cpu_time());
    for n in 0..count {
        let before = cpu_time();
        step(n);
        slowest = slowest.max(cpu_time() - before);
    }
    (slowest, (cpu_time() - start) / count as u32)
}

/// The same for a hash and a set of millions of elements.
fn print_slowest_of_values() {
    let hasher = KeyHasher::new(7);
    let mut hash = Hash::default();
    let took = slowest(4 * MILLION, |n| {
        hash.set(&hasher, hash::Limits::default(), &key(n), b"1", FieldTtl::Clear);
    });
    println!("a hash of {}: the slowest HSET took {:?}, the mean {:?}", hash.len(), took.0, took.1);
    let took = slowest(2 * MILLION, |n| {
        hash.remove(&hasher, &key(n * 2));
    });
    println!("  the slowest HDEL of 2M took {:?}, the mean {:?}", took.0, took.1);
    drop(hash);
    let mut set = Set::default();
    let took = slowest(4 * MILLION, |n| {
        set.add(&hasher, set::Limits::default(), Member::Bytes(&key(n)));
    });
    println!("a set of {}: the slowest SADD took {:?}, the mean {:?}", set.len(), took.0, took.1);
    let mut seed = 1u64;
    let took = slowest(MILLION, |_| {
        let member = set.random(&mut || {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            seed ^ (seed >> 29)
        });
        black_box(member);
    });
    println!("  the slowest SRANDMEMBER of 1M took {:?}, the mean {:?}", took.0, took.1);
}

fn keys(c: &mut Criterion) {
    let mut group = c.benchmark_group("keys");
    for count in [1_000, MILLION] {
        let mut space = filled(count, true);
        let mut i = 0;
        let names: Vec<[u8; 20]> = (0..count).map(|n| key(n * 7919 % count)).collect();
        let mut next = || {
            i = if i + 1 == count { 0 } else { i + 1 };
            names[i as usize]
        };
        group.bench_function(BenchmarkId::new("find", count), |b| {
            b.iter(|| {
                let key = next();
                let place = space.find(0, space.hash(&key), &key)?;
                space.get(0, place).bytes().map(|b| b[0])
            });
        });
        group.bench_function(BenchmarkId::new("find-none", count), |b| {
            b.iter(|| {
                let mut key = next();
                key[4] = b';';
                space.find(0, space.hash(&key), &key)
            });
        });
        for (what, leases, timing_inserts) in
            [("insert-lease", true, true), ("remove-lease", true, false), ("insert", false, true), ("remove", false, false)]
        {
            let mut lowest = 0;
            group.bench_function(BenchmarkId::new(what, count), |b| {
                b.iter_custom(|iters| {
                    let mut total = Duration::ZERO;
                    for _ in 0..iters.div_ceil(BLOCK) {
                        let block: Vec<_> = (0..BLOCK).map(|n| key((lowest + n) % count)).collect();
                        lowest = (lowest + BLOCK) % count;
                        let start = Instant::now();
                        block.iter().for_each(|key| remove(&mut space, key));
                        let removed = Instant::now();
                        for (n, key) in block.iter().enumerate() {
                            insert(&mut space, key, leases.then_some(30_000 + n as u64 % 64));
                        }
                        total += if timing_inserts { removed.elapsed() } else { removed - start };
                    }
                    total.mul_f64(iters as f64 / (iters.div_ceil(BLOCK) * BLOCK) as f64)
                });
            });
        }
        for share in [10, 1000] {
            let (mut cursor, mut seen) = (0, 0);
            group.bench_function(BenchmarkId::new(format!("scan-count-{share}"), count), |b| {
                b.iter(|| cursor = space.dict(0).scan(cursor, share, |entry| seen += entry.key().len()));
            });
        }
        let mut map: HashMap<Box<[u8]>, Box<[u8]>, FixedState> = HashMap::with_hasher(FixedState::with_seed(7));
        map.extend((0..count).map(|n| (key(n).into(), TOKEN[..].into())));
        group.bench_function(BenchmarkId::new("std-map-find", count), |b| {
            b.iter(|| map.get(&next()[..]).map(|value| value[0]));
        });
    }
    group.finish();
}

/// Times blocks of operations, without the work around them.
fn blocks(iters: u64, mut run: impl FnMut() -> Duration) -> Duration {
    let blocks = iters.div_ceil(BLOCK);
    let total: Duration = (0..blocks).map(|_| run()).sum();
    total.mul_f64(iters as f64 / (blocks * BLOCK) as f64)
}

fn wheel(c: &mut Criterion) {
    let mut group = c.benchmark_group("wheel");
    type Leases = fn(u64) -> u64;
    let leases: [(&str, Leases); 2] = [("alike", |_| 30_000), ("spread", |n| n.wrapping_mul(0x9e37_79b1) % 600_000)];
    for (what, lease) in leases {
        let mut wheel = Wheel::new(0);
        for n in 0..MILLION {
            wheel.insert(lease(n) + n % 1000, n);
        }
        let (mut n, mut timers) = (0, Vec::with_capacity(BLOCK as usize));
        for timing_inserts in [true, false] {
            let name = format!("{}-{what}", if timing_inserts { "insert" } else { "cancel" });
            group.bench_function(name, |b| {
                b.iter_custom(|iters| {
                    blocks(iters, || {
                        let start = Instant::now();
                        for _ in 0..BLOCK {
                            n += 1;
                            timers.push(wheel.insert(lease(n) + 500, n));
                        }
                        let inserted = Instant::now();
                        timers.drain(..).for_each(|timer| wheel.cancel(timer));
                        if timing_inserts { inserted - start } else { inserted.elapsed() }
                    })
                });
            });
        }
        let mut timer = wheel.insert(lease(0), 0);
        group.bench_function(format!("rearm-earlier-{what}"), |b| {
            b.iter(|| {
                n += 1;
                wheel.cancel(timer);
                timer = wheel.insert(lease(n), n);
            });
        });
        group.bench_function(format!("next-wake-{what}"), |b| b.iter(|| wheel.next_wake()));
    }
    for (what, per_ms, ahead) in [("fire-500-in-1ms", BLOCK, 1), ("fire-1-in-1ms", 1, 1), ("move-and-fire", 1, 5000)] {
        let (mut wheel, mut now) = (Wheel::new(0), 0);
        group.bench_function(what, |b| {
            b.iter_custom(|iters| {
                blocks(iters, || {
                    // The token of a timer is its deadline, so that no entry is looked up.
                    for n in 0..BLOCK {
                        let deadline = now + ahead + n / per_ms;
                        wheel.insert(deadline, deadline);
                    }
                    let start = Instant::now();
                    while let Some(wake) = wheel.next_wake() {
                        now = now.max(wake);
                        let mut budget = 2000;
                        while let Some(token) = wheel.poll(now, &mut budget, |token| token) {
                            black_box(token);
                        }
                    }
                    start.elapsed()
                })
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1)).sample_size(20);
    targets = keys, wheel
}

fn main() {
    allocator::prepare();
    // For a list or a test run only criterion's part is needed.
    if std::env::args().any(|arg| arg == "--bench") {
        print_memory();
        print_slowest();
        print_slowest_of_values();
    }
    benches();
    Criterion::default().configure_from_args().final_summary();
}
