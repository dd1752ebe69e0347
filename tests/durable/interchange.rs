//! Folders of redis-server here, and ours there: each server starts from what the other has left.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use crate::common::talk::{call, until};
use crate::common::wire::{Frame, Wire};
use crate::process::{Folder, Server, required, rewrite};

/// Requests that make every type, in its smaller and its larger encodings, and keys with deadlines.
const FILL: &[&str] = &[
    "DEL stream emptied list",
    "SET text some-text",
    "SET number 12345678901",
    "SET timed x PX 100000000",
    "APPEND raw x",
    "SETRANGE sparse 300 x",
    "PFADD counter a b c",
    "SETBIT bits 70 1",
    "RPUSH list a -129 70000 b",
    "SADD ints 1 200 70000 5000000000",
    "SADD few a b 3",
    "ZADD scores 1 a 2.5 b -inf c 1e30 d",
    "HSET hash a 1 b two",
    "PEXPIRE hash 200000000",
    "GEOADD places 13.36 38.11 palermo 15.08 37.50 catania",
    "XADD stream 5-1 a 1",
    "XADD stream 5-2 a 2 b text",
    "XADD stream 6-1 other 3",
    "XADD stream 7-1 a 4",
    "XDEL stream 5-2",
    "XGROUP CREATE stream group 0",
    "XGROUP CREATE stream late $",
    "XGROUP CREATECONSUMER stream group idle",
    "XREADGROUP GROUP group busy COUNT 2 STREAMS stream >",
    "XACK stream group 5-1",
    "XADD emptied 1-1 a b",
    "XDEL emptied 1-1",
    "SET gone x PX 1",
];
const LIBRARY: &str = "#!lua name=lib\nredis.register_function('f', function(keys) return redis.call('INCR', keys[1]) end)";
/// Limits that force the larger encodings.
const SMALL: [&str; 12] = [
    "--hash-max-listpack-entries",
    "2",
    "--zset-max-listpack-entries",
    "2",
    "--set-max-intset-entries",
    "2",
    "--list-max-listpack-size",
    "3",
    "--stream-node-max-entries",
    "2",
    "--list-compress-depth",
    "1",
];

pub fn ask(wire: &mut Wire, args: &[&str]) -> Frame {
    let frame = wire.call(args).unwrap().frame;
    assert!(!frame.is_error(""), "{args:?}: {frame:?}");
    frame
}

/// Fills two databases, by plain requests, in a transaction and by a function.
pub fn fill(wire: &mut Wire) {
    ask(wire, &["FUNCTION", "LOAD", "REPLACE", LIBRARY]);
    for db in ["0", "9"] {
        ask(wire, &["SELECT", db]);
        for request in FILL {
            ask(wire, &request.split(' ').collect::<Vec<_>>());
        }
        let numbers: Vec<String> = (0..600).map(|n| format!("{n}-{}", "x".repeat(n % 90))).collect();
        let with = |request, key| [request, key].into_iter().chain(numbers.iter().map(String::as_str)).collect::<Vec<_>>();
        ask(wire, &with("RPUSH", "long list"));
        ask(wire, &with("SADD", "many"));
        ask(wire, &with("HSET", "long hash"));
        for (score, member) in numbers.iter().enumerate() {
            wire.queue(&["ZADD", "many scores", &score.to_string(), member]);
        }
        wire.flush().unwrap();
        numbers.iter().for_each(|_| assert!(wire.reply().unwrap().frame.integer().is_some()));
        ask(wire, &["SET", "binary \r\n\0\u{ff}", "\r\n\0*1\r\n"]);
        ask(wire, &["MULTI"]);
        ask(wire, &["INCR", "in transaction"]);
        ask(wire, &["FCALL", "f", "1", "by function"]);
        ask(wire, &["EXEC"]);
        ask(wire, &["EVAL", "redis.call('SET', KEYS[1], 1) redis.call('PEXPIRE', KEYS[1], 90000000)", "1", "by script"]);
    }
    ask(wire, &["SELECT", "0"]);
}

/// Changes some of it.
pub fn change(wire: &mut Wire) {
    for request in [
        "DEL many",
        "RPUSH list new",
        "XREADGROUP GROUP group busy STREAMS stream >",
        "FCALL f 1 changes",
        "SELECT 9",
        "SPOP few",
        "SELECT 0",
    ] {
        ask(wire, &request.split(' ').collect::<Vec<_>>());
    }
}

/// A key's value, type and deadline.
pub type Shown = (u32, Vec<u8>, [Vec<u8>; 3]);

/// All keys, and the functions.
pub fn shown(wire: &mut Wire) -> (Vec<Shown>, Frame) {
    let mut keys = Vec::new();
    for db in [0, 9] {
        ask(wire, &["SELECT", &db.to_string()]);
        // A key whose time has come is gone when it is looked for.
        ask(wire, &["EXISTS", "gone"]);
        for key in ask(wire, &["KEYS", "*"]).elements().unwrap() {
            let key = key.text().unwrap();
            let requests: [&[&[u8]]; 3] = [&[b"DEBUG", b"DIGEST-VALUE", key], &[b"TYPE", key], &[b"PEXPIRETIME", key]];
            let shown = requests.map(|request| wire.call(request).unwrap().raw);
            keys.push((db, key.to_vec(), shown));
        }
    }
    ask(wire, &["SELECT", "0"]);
    keys.sort();
    let functions = ask(wire, &["FUNCTION", "LIST", "WITHCODE"]);
    (keys, functions)
}

/// What is pending in a group, without times.
pub fn pending(wire: &mut Wire) -> String {
    call(wire, "XPENDING stream group") + &call(wire, "XINFO GROUPS stream")
}

#[track_caller]
pub fn assert_same(here: &mut Wire, there: &(Vec<Shown>, Frame)) {
    let (keys, functions) = shown(here);
    for (ours, theirs) in keys.iter().zip(&there.0) {
        let text = |(db, key, shown): &Shown| {
            format!("{db} {} {:?}", key.escape_ascii(), shown.each_ref().map(|of| of.escape_ascii().to_string()))
        };
        assert_eq!(text(ours), text(theirs));
    }
    assert_eq!((keys.len(), &functions), (there.0.len(), &there.1));
}

/// Asserts that redis-check-aof finds nothing wrong.
fn check_aof(manifest: &Path) {
    let Some(program) = required("redis-check-aof") else { return };
    let output = Command::new(program).arg(manifest).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.contains("All AOF files and manifest are valid"), "{said}");
}

/// Starts from redis-server's folder, writes on, and lets redis-server start from that. `torn` ends its last file too early.
fn there_and_back(args: &[&str], rewrites: bool, torn: bool) {
    let Some(redis) = required("redis-server") else { return };
    let folder = Folder::new();
    let server = Server::start_redis(&redis, &folder, args);
    let mut wire = server.wire();
    fill(&mut wire);
    if rewrites {
        ask(&mut wire, &["BGREWRITEAOF"]);
        until(&mut wire, "INFO persistence", "aof_rewrite_in_progress:0 ");
    }
    change(&mut wire);
    // Redis does not log how many entries a group has read.
    ask(&mut wire, &["DEBUG", "LOADAOF"]);
    let (theirs, waiting) = (shown(&mut wire), pending(&mut wire));
    if torn {
        // Redis writes before it answers.
        server.kill();
        let last = folder.increments().pop().unwrap();
        OpenOptions::new().append(true).open(last).unwrap().write_all(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nto").unwrap();
        let refused = Server::refused(&folder, &["--aof-load-truncated", "no"]);
        assert!(refused.contains("incr.aof") && refused.contains("offset"), "{refused}");
    } else {
        server.stop();
    }

    let server = Server::start(&folder, &["--appendfsync", "always"]);
    let mut wire = server.wire();
    assert_same(&mut wire, &theirs);
    assert_eq!(pending(&mut wire), waiting);
    fill(&mut wire);
    if rewrites {
        rewrite(&mut wire);
    }
    change(&mut wire);
    let (ours, waiting, digest) = (shown(&mut wire), pending(&mut wire), call(&mut wire, "DEBUG DIGEST"));
    server.stop();
    check_aof(&folder.manifest());

    let server = Server::start_redis(&redis, &folder, args);
    let mut wire = server.wire();
    assert_same(&mut wire, &ours);
    assert_eq!(call(&mut wire, "DEBUG DIGEST"), digest);
    assert_eq!(pending(&mut wire), waiting);
    ask(&mut wire, &["SET", "last", "theirs"]);
    server.stop();

    let server = Server::start(&folder, &[]);
    assert_eq!(call(&mut server.wire(), "GET last"), "$6 theirs");
}

#[test]
fn increments_go_there_and_back() {
    there_and_back(&[], false, false);
}

#[test]
fn bases_go_there_and_back() {
    there_and_back(&["--aof-timestamp-enabled", "yes"], true, false);
}

#[test]
fn bases_with_the_larger_encodings_go_there_and_back() {
    there_and_back(&SMALL, true, false);
}

#[test]
fn bases_of_requests_go_there_and_back() {
    there_and_back(&["--aof-use-rdb-preamble", "no"], true, false);
}

#[test]
fn a_torn_tail_of_a_killed_redis_is_cut_off() {
    there_and_back(&[], true, true);
}

/// redis-server goes on where we were killed, and leaves the native records alone until then.
#[test]
fn redis_goes_on_where_we_were_killed() {
    let Some(redis) = required("redis-server") else { return };
    let folder = Folder::new();
    let server = Server::start(&folder, &["--appendfsync", "always"]);
    let mut wire = server.wire();
    fill(&mut wire);
    let ours = shown(&mut wire);
    server.kill();
    check_aof(&folder.manifest());
    let server = Server::start_redis(&redis, &folder, &[]);
    let mut wire = server.wire();
    assert_same(&mut wire, &ours);
    fill(&mut wire);
    let theirs = shown(&mut wire);
    server.kill();
    let server = Server::start(&folder, &[]);
    assert_same(&mut server.wire(), &theirs);
}
