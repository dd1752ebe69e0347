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

/// Sends requests one after another, a hundred at a time.
fn pipeline(wire: &mut Wire, requests: impl Iterator<Item = Vec<Vec<u8>>>) {
    let mut waiting = 0;
    for request in requests {
        wire.queue(&request);
        waiting += 1;
        if waiting == 100 {
            wire.flush().unwrap();
            (0..waiting).for_each(|_| drop(wire.reply().unwrap()));
            waiting = 0;
        }
    }
    wire.flush().unwrap();
    (0..waiting).for_each(|_| drop(wire.reply().unwrap()));
}

/// An hour of a user who may only use locks, with the longest texts that it may send.
#[test]
fn one_user_of_locks_has_no_write_of_others_refused() {
    const BUDGET: u64 = 16 * MIB;
    const PER_MINUTE: usize = 60;
    let server = start();
    let mut wire = Wire::connect(server.addr()).unwrap();
    wire.call(&["ACL", "SETUSER", "mallory", "on", ">pw", "~m:*", "-@all", "+@lock"]).unwrap();
    set(&mut wire, "lock-slowlog-log-slower-than", "0");
    set(&mut wire, "lock-slowlog-max-len", "65536");
    set(&mut wire, "slowlog-log-slower-than", "0");
    set(&mut wire, "slowlog-max-len", "1000000");
    set(&mut wire, "acllog-max-len", "1000000");
    let login = |name: &str| {
        let mut wire = Wire::connect(server.addr()).unwrap();
        let reply = wire.call(&["HELLO", "2", "AUTH", "mallory", "pw", "SETNAME", name]).unwrap();
        assert!(!reply.frame.is_error("ERR"), "{:?}", reply.frame);
        wire
    };
    let text = |number: usize, length: usize| format!("{number:0length$}").into_bytes();
    let before = used(&mut wire);
    set(&mut wire, "maxmemory", &(64 * MIB).to_string());
    for minute in 0..60 {
        let (mut first, mut second) = (login(&"n".repeat(100_000)), login(&"n".repeat(100_000)));
        pipeline(
            &mut first,
            (0..PER_MINUTE).flat_map(|n| {
                let (name, owner) =
                    ([b"m:", &text(minute * PER_MINUTE + n, 4000)[..]].concat(), text(minute * PER_MINUTE + n, 1024));
                let id = text(n, 64);
                let acquire = [&b"LOCK.ACQUIRE"[..], &name, &owner, b"900000", b"REQUEST", &id];
                let release = [&b"LOCK.RELEASE"[..], &name, &owner, b"REQUEST", &id];
                let denied = [&b"LOCK.INFO"[..], &owner];
                let login = [&b"AUTH"[..], &name, &name];
                [&acquire[..], &release, &denied, &login].map(|args| args.iter().map(|arg| arg.to_vec()).collect())
            }),
        );
        // Many events of one name, a break by nobody, owners that are too long, and waits.
        pipeline(
            &mut first,
            (0..PER_MINUTE).map(|n| {
                let args = [&b"LOCK.ACQUIRE"[..], b"m:one", &text(n, 1024), b"50"];
                args.iter().map(|arg| arg.to_vec()).collect()
            }),
        );
        let long = vec![b'x'; 1 << 20];
        let refused = first.call(&[&b"LOCK.ACQUIRE"[..], b"m:long", &long, b"900000"]).unwrap().frame;
        assert!(refused.is_error("ERR owner is too long"), "{refused:?}");
        first.call(&[&b"LOCK.ACQUIRE"[..], b"m:wait", &text(minute, 1024), b"900000"]).unwrap();
        second.queue(&[&b"LOCK.ACQUIRE"[..], b"m:wait", &text(minute + 1, 1024), b"900000", b"WAIT", b"1000"]);
        second.flush().unwrap();
        first.call(&["LOCK.LIST"]).unwrap();
        server.clock().advance(Duration::from_secs(60));
        second.reply().unwrap();
        first.call(&[&b"LOCK.RELEASE"[..], b"m:wait", &text(minute, 1024)]).unwrap();
        drop((first, second));
        let reply = wire.call(&["SET", "others", "value"]).unwrap();
        assert_eq!(reply.raw, b"+OK\r\n", "after {minute} minutes");
    }
    server.clock().advance(Duration::from_secs(120));
    let not_counted = figure(&mut wire, "memory", "mem_not_counted_for_evict");
    let more = used(&mut wire) - before;
    assert!((BUDGET * 9 / 10..=BUDGET).contains(&not_counted), "{not_counted}");
    assert!(
        more <= BUDGET + 2 * MIB && more.abs_diff(not_counted) <= 2 * MIB,
        "{more} bytes, of which {not_counted} are counted"
    );
    // With everything that is remembered, others have all of the limit.
    let max = used(&mut wire) - not_counted + MIB;
    set(&mut wire, "maxmemory", &max.to_string());
    assert_eq!(fill(&mut wire, "data", 50, None), 0);
    server.check_invariants();
}
