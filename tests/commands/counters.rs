//! Counters in INFO: what counts as a change, a call and an error, here and on redis-server.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use portcullis::testing::TestServer;

use crate::common::servers::{Server, on_path};
use crate::common::wire::Wire;

/// Runs a check against a server of this crate, and against redis-server if it is installed.
#[track_caller]
fn on_both(check: impl Fn(SocketAddr, &str)) {
    let server = TestServer::start();
    check(server.addr(), "here");
    match on_path("redis-server") {
        Some(program) => check(Server::redis(&program).expect("the redis-server starts").addr, "on redis"),
        None => println!("SKIPPED: no redis-server on the PATH, the counters were not held against one"),
    }
}

/// The fields of a section of INFO.
fn info(wire: &mut Wire, section: &str) -> BTreeMap<String, String> {
    let reply = wire.call(&["INFO", section]).expect("INFO").raw;
    let text = String::from_utf8_lossy(&reply).into_owned();
    text.lines().filter_map(|line| line.split_once(':')).map(|(field, value)| (field.to_owned(), value.to_owned())).collect()
}

fn changes(wire: &mut Wire) -> i64 {
    info(wire, "persistence")["rdb_changes_since_last_save"].parse().expect("a number")
}

/// Commands in sequence, with the number of changes that each counts as.
const CHANGES: &[(&str, i64)] = &[
    ("SET k v", 1),
    ("SET k v PX 100000", 1),
    ("SET k v NX", 0),
    ("SET k v XX GET EX 100", 1),
    ("SETEX k 100 v", 1),
    ("GETEX k PERSIST", 1),
    ("GETEX k PERSIST", 0),
    ("GETEX k EX 100", 1),
    ("MSET a 1 b 2", 2),
    ("INCR a", 1),
    ("DEL a b nope", 2),
    ("EXPIRE k 100", 1),
    ("PERSIST k", 1),
    ("RENAME k j", 1),
    ("MOVE j 1", 1),
    ("RPUSH l a b c d e f", 6),
    ("LPUSHX l z", 1),
    ("LPOP l", 1),
    ("LPOP l 2", 2),
    ("LMOVE l m LEFT RIGHT", 1),
    ("LMOVE l l LEFT RIGHT", 1),
    ("RPOPLPUSH l m", 1),
    ("LREM m 0 nope", 0),
    ("LTRIM l 0 -1", 0),
    ("LTRIM l 0 0", 1),
    ("BLPOP l 0", 1),
    ("RPUSH l a b c", 3),
    ("BLMOVE l m LEFT RIGHT 0", 1),
    ("LMPOP 1 l LEFT COUNT 9", 2),
    ("SADD s a b c", 3),
    ("SADD s a", 0),
    ("SREM s a nope", 1),
    ("SPOP s 9", 2),
    ("HSET h a 1 b 2", 2),
    ("HDEL h a nope", 1),
    ("ZADD z 1 a 2 b 3 c", 3),
    ("ZADD z 1 a", 0),
    ("ZPOPMIN z 2", 2),
    ("BZPOPMIN z 0", 1),
    ("RPUSH n 3 2 1", 3),
    ("SORT n STORE sorted", 3),
    ("XGROUP CREATE x g $ MKSTREAM", 1),
    ("XADD x 1-1 f v", 1),
    ("XADD x 2-1 f v", 1),
    ("XADD x 3-1 f v", 1),
    ("XGROUP CREATECONSUMER x g c", 1),
    ("XREADGROUP GROUP g c COUNT 2 STREAMS x >", 1),
    ("XREADGROUP GROUP g c STREAMS x >", 1),
    ("XREADGROUP GROUP g c STREAMS x 0", 1),
    ("XCLAIM x g d 0 1-1 2-1", 3),
    ("XCLAIM x g d 0 1-1", 1),
    ("XAUTOCLAIM x g d 0 0", 3),
    ("XACK x g 1-1 2-1 9-9", 2),
    ("XADD x MAXLEN 2 4-1 f v", 1),
    ("XTRIM x MAXLEN 1", 1),
    ("XDEL x 4-1", 1),
    ("XSETID x 9-1", 1),
    ("XGROUP DELCONSUMER x g c", 1),
    ("XGROUP DESTROY x g", 1),
    ("XGROUP CREATE y g $ MKSTREAM", 1),
    ("XADD y 1-1 f v", 1),
    ("XADD y 2-1 f v", 1),
    ("XREADGROUP GROUP g new STREAMS y >", 2),
    ("GET nope", 0),
    ("EVAL redis.call('set','k',1)redis.call('rpush','list',1,2) 0", 3),
    ("SET short 1 PX 1", 1),
    ("DEBUG SLEEP 0.05", 0),
    ("EXISTS short", 0),
    ("FLUSHDB", 8),
    ("FLUSHDB", 0),
    ("FLUSHALL", 1),
];

#[test]
fn changes_are_counted_as_redis_counts_them() {
    on_both(|addr, place| {
        let mut wire = Wire::connect(addr).expect("connect");
        let mut before = changes(&mut wire);
        for (command, count) in CHANGES {
            // The server's clock runs, so that the key with a TTL of a millisecond expires.
            let reply = wire.call(&command.split(' ').collect::<Vec<_>>()).expect("a reply").raw;
            let now = changes(&mut wire);
            assert_eq!(now - before, *count, "{place}: {command}: {}", String::from_utf8_lossy(&reply));
            before = now;
        }
    });
}

/// A blocked command that is served later counts as much as one that is served at once. Redis 7.0 does not count what it gives to
/// waiters; later versions do.
#[test]
fn what_is_served_later_counts_as_if_it_were_served_at_once() {
    let server = TestServer::start();
    let mut wire = Wire::connect(server.addr()).expect("connect");
    for (wait, feed, count) in [
        ("BLPOP l 0", "RPUSH l a", 2),
        ("BLMOVE l m LEFT RIGHT 0", "RPUSH l a", 2),
        ("BLMPOP 0 1 l LEFT COUNT 2", "RPUSH l a b", 4),
        ("BZPOPMIN z 0", "ZADD z 1 a", 2),
        ("XREADGROUP GROUP g c BLOCK 0 STREAMS x >", "XADD x * f v", 2),
    ] {
        wire.call(&["XGROUP", "CREATE", "x", "g", "$", "MKSTREAM"]).expect("a reply");
        wire.call(&["XGROUP", "CREATECONSUMER", "x", "g", "c"]).expect("a reply");
        let before = changes(&mut wire);
        let mut waiter = Wire::connect(server.addr()).expect("connect");
        waiter.queue(&wait.split(' ').collect::<Vec<_>>());
        waiter.flush().expect("sent");
        while info(&mut wire, "clients")["blocked_clients"] != "1" {}
        wire.call(&feed.split(' ').collect::<Vec<_>>()).expect("a reply");
        waiter.reply().expect("what it waited for");
        assert_eq!(changes(&mut wire) - before, count, "{wait}");
    }
}

/// The calls of a command in `INFO`, without the times.
fn calls(wire: &mut Wire, command: &str) -> Option<String> {
    let stats = info(wire, "commandstats");
    let line = stats.get(&format!("cmdstat_{command}"))?;
    Some(line.split(',').filter(|field| !field.starts_with("usec")).collect::<Vec<_>>().join(","))
}

#[test]
fn commands_that_were_only_refused_are_in_the_statistics() {
    on_both(|addr, place| {
        let mut wire = Wire::connect(addr).expect("connect");
        wire.call(&["CONFIG", "RESETSTAT"]).expect("OK");
        for refused in ["SET k", "SET", "CONFIG", "CONFIG GET", "CONFIG NOPE", "NOPE", "CLIENT KILL"] {
            let reply = wire.call(&refused.split(' ').collect::<Vec<_>>()).expect("a reply");
            assert!(reply.raw.starts_with(b"-ERR"), "{place}: {refused}");
        }
        for (command, count) in [("set", 2), ("config", 1), ("config|get", 1), ("client|kill", 1)] {
            let expected = format!("calls=0,rejected_calls={count},failed_calls=0");
            assert_eq!(calls(&mut wire, command), Some(expected), "{place}: {command}");
        }
        assert_eq!(calls(&mut wire, "nope"), None);
        assert_eq!(info(&mut wire, "errorstats")["errorstat_ERR"], "count=7", "{place}");
        assert_eq!(info(&mut wire, "stats")["total_error_replies"], "7", "{place}");
        // One call is rejected when it is queued, and one fails when it runs.
        for command in ["MULTI", "LPUSH k", "EXEC", "SET k v", "LPUSH k v"] {
            wire.call(&command.split(' ').collect::<Vec<_>>()).expect("a reply");
        }
        let expected = "calls=1,rejected_calls=1,failed_calls=1".to_owned();
        assert_eq!(calls(&mut wire, "lpush"), Some(expected), "{place}");
    });
}

#[test]
fn commands_whose_time_to_wait_was_over_are_in_the_statistics() {
    on_both(|addr, place| {
        let mut wire = Wire::connect(addr).expect("connect");
        wire.call(&["CONFIG", "RESETSTAT"]).expect("OK");
        for wait in ["BLPOP l 0.01", "BZPOPMIN z 0.01", "XREAD BLOCK 10 STREAMS s $", "WAIT 1 10"] {
            wire.call(&wait.split(' ').collect::<Vec<_>>()).expect("a reply");
        }
        for command in ["blpop", "bzpopmin", "xread", "wait"] {
            let expected = "calls=1,rejected_calls=0,failed_calls=0".to_owned();
            assert_eq!(calls(&mut wire, command), Some(expected), "{place}: {command}");
        }
        // RESETSTAT, the waits, and four times INFO: an INFO counts when it is done.
        assert_eq!(info(&mut wire, "stats")["total_commands_processed"], "9", "{place}");
    });
}
