//! `maxmemory` by real memory: the memory of the data is measured, keys are evicted if a policy says so, and otherwise nothing is
//! lost.

#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::wire::{Frame, Wire};
use portcullis::server::heap::allocator::Counting;
use portcullis::testing::TestServer;

// As in the program: the server measures the memory that its thread allocated.
#[global_allocator]
static ALLOCATOR: Counting = Counting;

const MIB: u64 = 1 << 20;
const REFUSED: &str = "OOM command not allowed when used memory > 'maxmemory'.";

fn start() -> TestServer {
    TestServer::builder().frozen(true).start()
}

fn figure(wire: &mut Wire, section: &str, name: &str) -> u64 {
    let reply = wire.call(&["INFO", section]).unwrap();
    let text = String::from_utf8(reply.frame.text().unwrap().to_vec()).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
    line.parse().unwrap()
}

fn used(wire: &mut Wire) -> u64 {
    figure(wire, "memory", "used_memory")
}

fn set(wire: &mut Wire, directive: &str, value: &str) {
    assert_eq!(wire.call(&["CONFIG", "SET", directive, value]).unwrap().raw, b"+OK\r\n", "{directive}");
}

/// Sets the memory limit to a number of bytes above what is in use.
fn bound(wire: &mut Wire, more: u64) -> u64 {
    let max = used(wire) + more;
    set(wire, "maxmemory", &max.to_string());
    max
}

/// Writes numbered keys of 10 KB, with a TTL in seconds if given. Returns how many were refused.
fn fill(wire: &mut Wire, prefix: &str, count: usize, seconds: Option<&str>) -> usize {
    let value = vec![b'v'; 10_000];
    let mut refused = 0;
    for n in 0..count {
        let key = format!("{prefix}{n}");
        let mut args: Vec<&[u8]> = vec![b"SET", key.as_bytes(), &value];
        if let Some(seconds) = seconds {
            args.extend([&b"EX"[..], seconds.as_bytes()]);
        }
        let reply = wire.call(&args).unwrap().frame;
        assert!(reply == Frame::Simple(b"OK".to_vec()) || reply.is_error(REFUSED), "{reply:?}");
        refused += usize::from(reply.is_error(REFUSED));
    }
    refused
}

fn count(wire: &mut Wire, prefix: &str, count: usize) -> i64 {
    let keys = (0..count).map(|n| format!("{prefix}{n}"));
    let args: Vec<String> = std::iter::once("EXISTS".to_owned()).chain(keys).collect();
    wire.call(&args).unwrap().frame.integer().unwrap()
}

#[test]
fn without_a_policy_nothing_is_lost_and_what_needs_memory_is_refused() {
    let server = start();
    let mut wire = Wire::connect(server.addr()).unwrap();
    let max = bound(&mut wire, 2 * MIB);
    let refused = fill(&mut wire, "lock", 400, Some("1000"));
    assert!((150..250).contains(&refused), "{refused}");
    assert_eq!(count(&mut wire, "lock", 400), 400 - refused as i64);
    assert_eq!(figure(&mut wire, "stats", "evicted_keys"), 0);
    assert!(used(&mut wire) <= max + MIB / 4);
    // A command that frees memory is never refused. Afterwards there is room again.
    assert_eq!(wire.call(&["DEL", "lock0", "lock1"]).unwrap().frame.integer(), Some(2));
    assert_eq!(fill(&mut wire, "again", 1, None), 0);
    server.check_invariants();
}

#[test]
fn memory_stays_bounded_while_keys_give_way() {
    for policy in
        ["allkeys-lru", "allkeys-lfu", "allkeys-random", "volatile-lru", "volatile-lfu", "volatile-ttl", "volatile-random"]
    {
        let server = start();
        let mut wire = Wire::connect(server.addr()).unwrap();
        set(&mut wire, "maxmemory-policy", policy);
        assert_eq!(fill(&mut wire, "kept", 50, None), 0);
        let max = bound(&mut wire, 3 * MIB);
        for _ in 0..4 {
            assert_eq!(fill(&mut wire, "leased", 400, Some("1000")), 0, "{policy}");
            let used = used(&mut wire);
            assert!(used <= max + MIB / 4, "{policy}: {used} of {max}");
        }
        assert!(figure(&mut wire, "stats", "evicted_keys") >= 400, "{policy}");
        if policy.starts_with("volatile") {
            assert_eq!(count(&mut wire, "kept", 50), 50, "{policy}");
        }
        server.check_invariants();
    }
}

#[test]
fn a_lower_bound_is_reached_without_any_request_and_each_key_is_told() {
    let server = start();
    let mut wire = Wire::connect(server.addr()).unwrap();
    fill(&mut wire, "k", 2000, None);
    set(&mut wire, "notify-keyspace-events", "Ee");
    set(&mut wire, "maxmemory-policy", "allkeys-lru");
    let mut listener = Wire::connect(server.addr()).unwrap();
    listener.call(&["SUBSCRIBE", "__keyevent@0__:evicted"]).unwrap();
    let max = used(&mut wire) - 5 * MIB;
    set(&mut wire, "maxmemory", &max.to_string());
    server.clock().advance(Duration::from_millis(1));
    assert!(used(&mut wire) <= max + MIB / 4);
    // Requests use memory too. From here on nothing is evicted for them.
    set(&mut wire, "maxmemory", "0");
    let evicted = figure(&mut wire, "stats", "evicted_keys");
    assert!((450..700).contains(&evicted), "{evicted}");
    assert_eq!(count(&mut wire, "k", 2000) as u64, 2000 - evicted);
    for _ in 0..evicted {
        let told = listener.reply().unwrap().frame;
        let name = told.elements().unwrap()[2].text().unwrap().to_vec();
        assert!(name.starts_with(b"k"), "{told:?}");
    }
    server.check_invariants();
}

#[test]
fn a_big_value_that_is_freed_in_pieces_costs_no_other_key_its_place() {
    let server = start();
    let mut wire = Wire::connect(server.addr()).unwrap();
    set(&mut wire, "maxmemory-policy", "volatile-lru");
    fill(&mut wire, "small", 100, Some("1000"));
    let members: Vec<String> = (0..50_000).map(|n| format!("a member of the big set: {n}")).collect();
    let args: Vec<&str> = ["SADD", "big"].into_iter().chain(members.iter().map(String::as_str)).collect();
    wire.call(&args).unwrap();
    wire.call(&["DEL", "nosuch"]).unwrap();
    bound(&mut wire, MIB / 4);
    assert_eq!(wire.call(&["DEL", "big"]).unwrap().frame.integer(), Some(1));
    assert_eq!(fill(&mut wire, "more", 100, Some("1000")), 0);
    server.clock().advance(Duration::from_millis(1));
    assert_eq!(count(&mut wire, "small", 100) + count(&mut wire, "more", 100), 200);
    assert_eq!(figure(&mut wire, "stats", "evicted_keys"), 0);
}

#[test]
fn scripts_and_transactions_find_memory_as_it_was_when_they_began() {
    let server = start();
    let mut wire = Wire::connect(server.addr()).unwrap();
    fill(&mut wire, "k", 100, None);
    set(&mut wire, "maxmemory", "1");
    let script = "return redis.call('SET', KEYS[1], 'v')";
    let reply = wire.call(&["EVAL", script, "1", "new"]).unwrap().frame;
    assert!(reply.is_error(REFUSED), "{reply:?}");
    let reply = wire.call(&["EVAL", &format!("#!lua flags=allow-oom\n{script}"), "1", "new"]).unwrap();
    assert_eq!(reply.raw, b"+OK\r\n");
    assert_eq!(wire.call(&["MULTI"]).unwrap().raw, b"+OK\r\n");
    assert_eq!(wire.call(&["GET", "new"]).unwrap().raw, b"+QUEUED\r\n");
    assert!(wire.call(&["SET", "new", "w"]).unwrap().frame.is_error(REFUSED));
    assert!(wire.call(&["EXEC"]).unwrap().frame.is_error("EXECABORT Transaction discarded because of previous errors."));
    assert_eq!(wire.call(&["GET", "new"]).unwrap().raw, b"$1\r\nv\r\n");
}
