//! DUMP and RESTORE with a real redis-server: each server reads what the other wrote, in all encodings.
//!
//! `PORTCULLIS_REDIS8` names a newer redis-server, for hashes whose fields have a TTL.

use std::path::{Path, PathBuf};

use portcullis::TestServer;

use crate::common::servers::{self, Server};
use crate::common::wire::{Frame, Wire};

/// The command that makes each key. `{long}` stands for 3,000 bytes that hardly compress, `{same}` for 3,000 that do.
const VALUES: &[&str] = &[
    "SET empty ''",
    "SET text hello",
    "SET tiny 7",
    "SET byte -128",
    "SET word 32767",
    "SET int -2147483648",
    "SET wide 2147483648",
    "SET padded 007",
    "SET long {long}",
    "SET same {same}",
    "RPUSH list a b c 1 -1 127 128 4095 4096 -4097 8388607 -8388609 2147483648 9223372036854775807 007 ''",
    "RPUSH plain {long} x {same}",
    "SADD ints 1 2 3 -5",
    "SADD words 1 2 70000 -9000000000",
    "SADD set a b c 12 {same}",
    "SADD strings a b c 12",
    "ZADD zset 1 a 2.5 b -inf c inf d 65536 e 0.125 f -0 g 12 12",
    "ZADD large 1 a 2 {same}",
    "HSET hash a 1 b two c 3.5 '' ''",
    "HSET table a {long} b {same}",
    "XADD stream 1-1 a 1 b 2",
];

/// Commands that make a stream.
const STREAM: &[&str] = &[
    "XADD groups 5-1 a 1 b two",
    "XADD groups 5-2 a 3 b -4",
    "XADD groups 6-0 c {long} d {same}",
    "XADD groups 7-0 c 1 d 2 e 3",
    "XADD groups 18446744073709551614-9 c 1 d 2",
    "XDEL groups 5-2",
    "XGROUP CREATE groups g 0",
    "XGROUP CREATE groups h $ ENTRIESREAD 3",
    "XREADGROUP GROUP g one COUNT 1 STREAMS groups >",
    "XREADGROUP GROUP g two COUNT 2 STREAMS groups >",
    "XACK groups g 6-0",
];

/// Keys of many elements: command, key and number of elements.
const MANY: &[(&str, &str, usize)] = &[("RPUSH", "longlist", 5_000), ("SADD", "bigset", 3_000), ("SADD", "intset", 400)];

fn text(word: &str) -> Vec<u8> {
    match word {
        "''" => Vec::new(),
        "{long}" => (0..3000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect(),
        "{same}" => b"abcabcabd".repeat(333),
        word => word.as_bytes().to_vec(),
    }
}

fn call(wire: &mut Wire, words: &str) -> Frame {
    let args: Vec<Vec<u8>> = words.split(' ').map(text).collect();
    wire.call(&args).unwrap().frame
}

fn fill(wire: &mut Wire) -> Vec<String> {
    let mut keys = Vec::new();
    for line in VALUES {
        assert!(!matches!(call(wire, line), Frame::Error(_)), "{line}");
        keys.push(line.split(' ').nth(1).unwrap().to_owned());
    }
    for (command, key, count) in MANY {
        let numbers: Vec<String> = (0..*count).map(|i| if *key == "intset" { i.to_string() } else { format!("e{i}") }).collect();
        assert_eq!(call(wire, &format!("{command} {key} {}", numbers.join(" "))).integer(), Some(*count as i64));
        keys.push((*key).to_owned());
    }
    for line in STREAM {
        assert!(!matches!(call(wire, line), Frame::Error(_)), "{line}");
    }
    for i in 1..500 {
        call(wire, &format!("XADD longstream {i}-1 name {i} other x"));
    }
    keys.extend(["groups".to_owned(), "longstream".to_owned()]);
    let pairs: Vec<String> = (0..2_000).map(|i| format!("{i} m{i}")).collect();
    assert_eq!(call(wire, &format!("ZADD bigzset {}", pairs.join(" "))).integer(), Some(2_000));
    let pairs: Vec<String> = (0..2_000).map(|i| format!("f{i} {i}")).collect();
    assert_eq!(call(wire, &format!("HSET bighash {}", pairs.join(" "))).integer(), Some(2_000));
    keys.extend(["bigzset".to_owned(), "bighash".to_owned()]);
    keys
}

/// The contents of a key, sorted if the type has no order, and details such as its encoding.
fn content(wire: &mut Wire, key: &str) -> (Frame, Vec<Vec<u8>>) {
    let kind = String::from_utf8(call(wire, &format!("TYPE {key}")).text().unwrap().to_vec()).unwrap();
    let read = match kind.as_str() {
        "string" => format!("GETRANGE {key} 0 -1"),
        "list" => format!("LRANGE {key} 0 -1"),
        "set" => format!("SMEMBERS {key}"),
        "zset" => format!("ZRANGE {key} 0 -1 WITHSCORES"),
        "hash" => format!("HGETALL {key}"),
        "stream" => format!("XRANGE {key} - +"),
        other => panic!("{key} is of type {other}"),
    };
    if kind == "stream" {
        // Without idle times, which change, and radix trees, which only Redis has.
        let mut parts = vec![format!("{:?}", call(wire, &read)).into_bytes()];
        for asked in [format!("XPENDING {key} g"), format!("XINFO GROUPS {key}")] {
            parts.push(format!("{:?}", call(wire, &asked)).into_bytes());
        }
        return (call(wire, &format!("OBJECT ENCODING {key}")), parts);
    }
    let held = call(wire, &read);
    let mut parts: Vec<Vec<u8>> = match held.elements() {
        None => vec![held.text().unwrap().to_vec()],
        Some(elements) if kind == "hash" => {
            elements.chunks(2).map(|pair| [pair[0].text().unwrap(), b"=", pair[1].text().unwrap()].concat()).collect()
        }
        Some(elements) => elements.iter().map(|element| element.text().unwrap().to_vec()).collect(),
    };
    if matches!(kind.as_str(), "set" | "hash") {
        parts.sort();
    }
    (call(wire, &format!("OBJECT ENCODING {key}")), parts)
}

fn shown(parts: &[Vec<u8>]) -> String {
    parts.iter().take(40).map(|part| format!("{} ", part.escape_ascii())).collect()
}

fn redis() -> Option<Server> {
    match servers::on_path("redis-server") {
        Some(program) => Some(Server::redis(&program).unwrap()),
        None => {
            assert!(std::env::var_os("PORTCULLIS_REQUIRE_REDIS").is_none(), "redis-server is not installed");
            println!("skipped: redis-server is not installed");
            None
        }
    }
}

fn carry(from: &mut Wire, to: &mut Wire, key: &str) {
    let payload = call(from, &format!("DUMP {key}"));
    let payload = payload.text().unwrap();
    let restored = to.call(&[b"RESTORE", key.as_bytes(), b"0", payload, b"REPLACE"]).unwrap();
    assert_eq!(restored.frame, Frame::Simple(b"OK".to_vec()), "{key}");
}

#[test]
fn each_server_reads_what_the_other_wrote() {
    let Some(redis) = redis() else { return };
    let ours = TestServer::start();
    let (mut theirs, mut ours) = (Wire::connect(redis.addr).unwrap(), Wire::connect(ours.addr()).unwrap());
    // In the second round Redis uses its large encodings, and several nodes for a list.
    for (round, compact) in [true, false].into_iter().enumerate() {
        call(&mut theirs, "FLUSHALL");
        call(&mut ours, "FLUSHALL");
        if !compact {
            for directive in
                ["hash-max-listpack-entries", "zset-max-listpack-entries", "set-max-intset-entries", "list-max-listpack-size"]
            {
                for wire in [&mut theirs, &mut ours] {
                    assert_eq!(call(wire, &format!("CONFIG SET {directive} 1")), Frame::Simple(b"OK".to_vec()));
                }
            }
        }
        let keys = fill(&mut theirs);
        for key in &keys {
            let (before, held) = content(&mut theirs, key);
            carry(&mut theirs, &mut ours, key);
            let (encoding, got) = content(&mut ours, key);
            assert!(got == held, "{key} from Redis, round {round}:\n{}\n{}", shown(&got), shown(&held));
            // Redis 7.0 has no listpacks for sets, and quicklists for all lists.
            if !matches!(before.text(), Some(b"quicklist" | b"hashtable")) {
                assert_eq!(encoding, before, "{key}, round {round}");
            }
            call(&mut theirs, &format!("DEL {key}"));
            carry(&mut ours, &mut theirs, key);
            assert!(content(&mut theirs, key) == (before, held), "{key} to Redis, round {round}");
        }
    }
}

#[test]
fn fields_take_their_deadlines_along() {
    let Some(program) = std::env::var_os("PORTCULLIS_REDIS8").map(PathBuf::from) else {
        println!("skipped: PORTCULLIS_REDIS8 is not set");
        return;
    };
    let redis = Server::redis(Path::new(&program)).unwrap();
    let ours = TestServer::start();
    let (mut theirs, mut ours) = (Wire::connect(redis.addr).unwrap(), Wire::connect(ours.addr()).unwrap());
    for entries in [0, 128] {
        call(&mut theirs, &format!("CONFIG SET hash-max-listpack-entries {entries}"));
        call(&mut theirs, "DEL h");
        call(&mut theirs, "HSET h a 1 b 2 c 3");
        call(&mut theirs, "HPEXPIREAT h 4102444800123 FIELDS 1 a");
        call(&mut theirs, "HPEXPIREAT h 4102444900000 FIELDS 1 b");
        let asked = "HPEXPIRETIME h FIELDS 3 a b c";
        let told = call(&mut theirs, asked);
        carry(&mut theirs, &mut ours, "h");
        assert_eq!(call(&mut ours, asked), told, "{entries}");
        call(&mut theirs, "DEL h");
        carry(&mut ours, &mut theirs, "h");
        assert_eq!(call(&mut theirs, asked), told, "{entries}");
        assert_eq!(content(&mut theirs, "h").1, content(&mut ours, "h").1);
    }
}

#[test]
fn options_and_refusals_are_redis_s() {
    let Some(redis) = redis() else { return };
    let ours = TestServer::start();
    let (mut theirs, mut ours) = (Wire::connect(redis.addr).unwrap(), Wire::connect(ours.addr()).unwrap());
    for wire in [&mut theirs, &mut ours] {
        call(wire, "SET k hello");
    }
    let payload = call(&mut theirs, "DUMP k").text().unwrap().to_vec();
    let mut broken = payload.clone();
    broken[2] ^= 1;
    let mut newer = payload.clone();
    newer[payload.len() - 10] = 99;
    for words in [
        "k 0 P",
        "n 0 P",
        "n 0 P",
        "n 0 P REPLACE",
        "n -1 P REPLACE",
        "n x P REPLACE",
        "m 0 B",
        "m 0 V",
        "m 0 ''",
        "m 0 P IDLETIME",
        "m 0 P IDLETIME -1",
        "m 0 P IDLETIME 100",
        "m 0 P REPLACE FREQ 256",
        "m 0 P REPLACE FREQ 5",
        "m 0 P REPLACE IDLETIME 1 FREQ 5",
        "m 0 P REPLACE FREQ 1 IDLETIME 5",
        "m 0 P NONSENSE",
        "e 100000 P",
        "e 4102444800123 P REPLACE ABSTTL",
        "e 1 P REPLACE ABSTTL",
        "e 1 P ABSTTL",
        "m 0 P REPLACE REPLACE ABSTTL",
        "m x P",
        "m -1 B",
        "k 0 B",
        "m 0 P IDLETIME x",
    ] {
        let mut args: Vec<Vec<u8>> = vec![b"RESTORE".to_vec()];
        args.extend(words.split(' ').map(|word| match word {
            "P" => payload.clone(),
            "B" => broken.clone(),
            "V" => newer.clone(),
            word => text(word),
        }));
        assert_eq!(ours.call(&args).unwrap().raw, theirs.call(&args).unwrap().raw, "RESTORE {words}");
        for check in ["EXISTS k n m e", "PEXPIRETIME e", "TTL n", "OBJECT IDLETIME m", "DUMP missing"] {
            if check == "PEXPIRETIME e" && words == "e 100000 P" {
                continue;
            }
            assert_eq!(call(&mut ours, check), call(&mut theirs, check), "{check} after RESTORE {words}");
        }
    }
}
