//! Files of a real redis-server read here, and files written here loaded there.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::common::servers::{Server, on_path};
use crate::common::wire::{Frame, Wire};
use crate::subject::Subject;

/// Requests that make every type in every encoding, with the default limits or with small ones. A newer server gets hashes whose
/// fields have deadlines, too.
fn fill(wire: &mut Wire, tag: &str, newer: bool) {
    let mut run = |args: &[&str]| {
        let reply = wire.call(args).unwrap();
        assert!(!reply.frame.is_error(""), "{args:?}: {:?}", reply.frame);
    };
    let key = |name: &str| format!("{tag}:{name}");
    run(&["SET", &key("text"), "some text"]);
    run(&["SET", &key("empty"), ""]);
    run(&["SET", &key("compressed"), &"abcabcabc".repeat(500)]);
    for n in [0_i64, -1, 127, -129, 40_000, -3_000_000, 1 << 40] {
        run(&["SET", &key(&format!("n{n}")), &n.to_string()]);
    }
    run(&["SET", &key("timed"), "x", "PX", "100000000"]);
    let mut elements = Vec::new();
    for n in 0..40 {
        elements.push(n.to_string());
        elements.push(format!("element-{n}-{}", "x".repeat(n)));
    }
    let with = |request: &str, name: &str, elements: &[String]| {
        let mut args = vec![request.to_owned(), key(name)];
        args.extend_from_slice(elements);
        args
    };
    let mut all = |args: Vec<String>| run(&args.iter().map(String::as_str).collect::<Vec<_>>());
    all(with("RPUSH", "list", &elements));
    all(with("RPUSH", "nodes", &["x".repeat(9000), "y".to_owned(), "z".repeat(9000)]));
    all(with("SADD", "set", &elements));
    all(with("SADD", "ints16", &(0..20).map(|n| n.to_string()).collect::<Vec<_>>()));
    all(with("SADD", "ints32", &(0..20).map(|n| (n * 1_000_000).to_string()).collect::<Vec<_>>()));
    all(with("SADD", "ints64", &(0..20_i64).map(|n| (n << 40).to_string()).collect::<Vec<_>>()));
    all(with("HSET", "hash", &elements));
    all(with("HSET", "long", &["f".to_owned(), "v".repeat(300)]));
    if newer {
        for name in ["hash-timed", "long-timed"] {
            all(with(
                "HSET",
                name,
                &["a".to_owned(), "1".repeat(if name == "long-timed" { 300 } else { 1 }), "b".to_owned(), "2".to_owned()],
            ));
            all(with("HPEXPIRE", name, &["100000000", "FIELDS", "1", "a"].map(str::to_owned)));
        }
    }
    let scores: Vec<String> =
        ["-inf", "a", "-1.5", "b", "0", "c", "3", "d", "1.25e30", "e", "inf", "f"].map(str::to_owned).to_vec();
    all(with("ZADD", "zset", &scores));
    all(with("ZADD", "zlong", &["1".to_owned(), "m".repeat(300), "-0".to_owned(), "zero".to_owned()]));
    for n in 1..250 {
        let fields = if n % 7 == 0 {
            vec!["other".to_owned(), n.to_string()]
        } else {
            vec!["a".to_owned(), n.to_string(), "b".to_owned(), "text".to_owned()]
        };
        let mut args = vec!["XADD".to_owned(), key("stream"), format!("{}-{}", 1000 + n / 3, n)];
        args.extend(fields);
        all(args);
    }
    for request in [
        "XDEL stream 1010-30 1020-62",
        "XGROUP CREATE stream group 0",
        "XGROUP CREATE stream late $",
        "XGROUP CREATECONSUMER stream group idle",
        "XREADGROUP GROUP group busy COUNT 10 STREAMS stream >",
        "XREADGROUP GROUP group other COUNT 5 STREAMS stream >",
        "XACK stream group 1000-1 1000-2",
        "XADD gone 1-1 a b",
        "XDEL gone 1-1",
        "PEXPIRE hash 200000000",
    ] {
        let named = |word: &str| if ["stream", "gone", "hash"].contains(&word) { key(word) } else { word.to_owned() };
        // The names of commands and subcommands are no keys, and `STREAMS` is none either.
        all(request.split(' ').map(named).collect());
    }
}

const LIBRARY: &str = "#!lua name=lib\nredis.register_function('f', function() return 1 end)";

fn bytes(frame: &Frame) -> Vec<u8> {
    frame.text().unwrap_or_default().to_vec()
}

/// All keys of a database.
fn keys(wire: &mut Wire) -> Vec<Vec<u8>> {
    let reply = wire.call(&["KEYS", "*"]).unwrap();
    let mut keys: Vec<Vec<u8>> = reply.frame.elements().unwrap().iter().map(bytes).collect();
    keys.sort();
    keys
}

fn unix_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64
}

/// The path of a server's file.
fn file_of(wire: &mut Wire) -> PathBuf {
    let mut option = |name: &str| {
        let reply = wire.call(&["CONFIG", "GET", name]).unwrap();
        String::from_utf8(bytes(&reply.frame.elements().unwrap()[1])).unwrap()
    };
    Path::new(&option("dir")).join(option("dbfilename"))
}

/// The file that a server saves.
fn saved(wire: &mut Wire) -> Vec<u8> {
    assert_eq!(wire.call(&["SAVE"]).unwrap().raw, b"+OK\r\n");
    std::fs::read(file_of(wire)).unwrap()
}

/// Compares all keys of two databases: their values, types and deadlines.
fn compare(wire: &mut Wire, subject: &mut Subject, db: u32) -> usize {
    wire.call(&["SELECT", &db.to_string()]).unwrap();
    subject.run(&format!("SELECT {db}"));
    let keys = keys(wire);
    assert_eq!(subject.run("DBSIZE"), format!(":{}\r\n", keys.len()).as_bytes());
    for key in &keys {
        let name = key.escape_ascii().to_string();
        for request in [&[&b"DEBUG"[..], b"DIGEST-VALUE", key][..], &[b"TYPE", key], &[b"PEXPIRETIME", key]] {
            assert_eq!(
                subject.args(request).escape_ascii().to_string(),
                wire.call(request).unwrap().raw.escape_ascii().to_string(),
                "{} of {name}",
                request[0].escape_ascii()
            );
        }
        if name.ends_with("-timed") {
            let request = &[&b"HPEXPIRETIME"[..], key, b"FIELDS", b"2", b"a", b"b"];
            assert_eq!(subject.args(request), wire.call(request).unwrap().raw, "deadlines of fields of {name}");
        }
        if wire.call(&[b"TYPE", &key[..]]).unwrap().raw == b"+stream\r\n" {
            for request in [&[&b"XINFO"[..], b"GROUPS", key][..], &[b"XRANGE", key, b"-", b"+"]] {
                assert_eq!(
                    subject.args(request).escape_ascii().to_string(),
                    wire.call(request).unwrap().raw.escape_ascii().to_string(),
                    "{} of {name}",
                    request[1].escape_ascii()
                );
            }
            if name.ends_with(":stream") {
                let request = &[&b"XPENDING"[..], key, b"group"];
                assert_eq!(subject.args(request), wire.call(request).unwrap().raw, "pending entries of {name}");
            }
        }
    }
    keys.len()
}

/// The server's limits that force the larger encodings.
const SMALL: [&str; 14] = [
    "--hash-max-listpack-entries",
    "3",
    "--zset-max-listpack-entries",
    "3",
    "--set-max-intset-entries",
    "3",
    "--list-max-listpack-size",
    "4",
    "--stream-node-max-entries",
    "10",
    "--rdbcompression",
    "no",
    "--list-compress-depth",
    "1",
];

/// The program, unless it is missing and tests may be skipped.
fn required(found: Option<PathBuf>, name: &str) -> Option<PathBuf> {
    if found.is_none() {
        let required = std::env::var_os("PORTCULLIS_REQUIRE_REDIS").is_some_and(|value| !value.is_empty());
        assert!(!required, "no {name} on the PATH, and PORTCULLIS_REQUIRE_REDIS is set");
        println!("SKIPPED: no {name} on the PATH");
    }
    found
}

/// The redis-servers to exchange files with, and whether they are newer than 7.2.
fn servers() -> Vec<(PathBuf, bool)> {
    let installed = required(on_path("redis-server"), "redis-server").map(|program| (program, false));
    let newer = std::env::var_os("PORTCULLIS_REDIS8").filter(|value| !value.is_empty());
    if newer.is_none() {
        println!("SKIPPED: PORTCULLIS_REDIS8 names no redis-server");
    }
    installed.into_iter().chain(newer.map(|program| (program.into(), true))).collect()
}

fn read_from_redis(args: &[&str], uses: Option<&str>) {
    for (program, newer) in servers() {
        read_from(&program, newer, args, uses);
    }
}

fn read_from(program: &Path, newer: bool, args: &[&str], uses: Option<&str>) {
    let server = Server::redis_with(program, args).unwrap();
    let mut wire = Wire::connect(server.addr).unwrap();
    let began = std::time::Instant::now();
    fill(&mut wire, "a", newer);
    wire.call(&["FUNCTION", "LOAD", LIBRARY]).unwrap();
    wire.call(&["SELECT", "9"]).unwrap();
    fill(&mut wire, "b", newer);
    wire.call(&["SELECT", "0"]).unwrap();
    if uses.is_some() {
        std::thread::sleep(std::time::Duration::from_millis(2100));
    }
    let file = saved(&mut wire);
    for piece in [1, 999, 1 << 20] {
        let mut subject = Subject::new(unix_ms());
        if let Some(policy) = uses {
            subject.run(&format!("CONFIG SET maxmemory-policy {policy}"));
        }
        let (tally, libraries) = subject.load(&file, piece).unwrap();
        assert_eq!(libraries, [LIBRARY.as_bytes()]);
        match uses {
            Some("allkeys-lru") => {
                let idle = String::from_utf8(subject.run("OBJECT IDLETIME a:text")).unwrap();
                let idle: u32 = idle.trim().trim_start_matches(':').parse().unwrap();
                let most = began.elapsed().as_secs() + 2;
                assert!(idle >= 2 && u64::from(idle) <= most, "{idle} of at most {most} s");
            }
            Some(_) => assert_eq!(subject.run("OBJECT FREQ a:text"), wire.call(&["OBJECT", "FREQ", "a:text"]).unwrap().raw),
            None => {}
        }
        let compared = compare(&mut wire, &mut subject, 0) + compare(&mut wire, &mut subject, 9);
        assert_eq!(compared as u64, tally.loaded);
        wire.call(&["SELECT", "0"]).unwrap();
        subject.engine.check_invariants();
    }
}

#[test]
fn files_of_redis_are_read() {
    read_from_redis(&[], None);
}

#[test]
fn files_of_redis_with_the_larger_encodings_are_read() {
    read_from_redis(&SMALL, None);
}

#[test]
fn files_of_redis_with_idle_times_and_without_a_checksum_are_read() {
    read_from_redis(&["--maxmemory-policy", "allkeys-lru", "--rdbchecksum", "no"], Some("allkeys-lru"));
}

#[test]
fn files_of_redis_with_frequencies_are_read() {
    read_from_redis(&["--maxmemory-policy", "allkeys-lfu"], Some("allkeys-lfu"));
}

#[test]
fn redis_loads_our_files_with_every_type_and_skips_native_locks() {
    for (program, newer) in servers() {
        exchange(&program, newer);
    }
}

fn exchange(program: &Path, newer: bool) {
    let source = Server::redis_with(program, &[]).unwrap();
    let mut wire = Wire::connect(source.addr).unwrap();
    fill(&mut wire, "a", newer);
    wire.call(&["SELECT", "9"]).unwrap();
    fill(&mut wire, "b", newer);
    wire.call(&["SELECT", "0"]).unwrap();
    let mut subject = Subject::new(unix_ms());
    let (tally, _) = subject.load(&saved(&mut wire), 1 << 20).unwrap();

    for request in [
        "LOCK.SESSION mine GRACE 5000",
        "LOCK.ACQUIRE lock me 60000 REQUEST first",
        "LOCK.ACQUIRE bound me 60000 SESSION",
        "SEM.ACQUIRE sem a 60000 LIMIT 5",
        "LATCH.SET latch 3",
        "LOCK.GUARD guard 17",
        // One that was never given an entry, which the version for Redis 7.0 cannot say.
        "XGROUP CREATECONSUMER a:stream group fresh",
    ] {
        assert!(!subject.run(request).starts_with(b"-"), "{request}");
    }
    let file = subject.file(vec![LIBRARY.as_bytes().into()]);
    let server = Server::redis_with(program, &[]).unwrap();
    let mut loaded = Wire::connect(server.addr).unwrap();
    let path = file_of(&mut loaded);
    std::fs::write(&path, &file).unwrap();
    // The newer one is beside its server.
    let beside = program.with_file_name("redis-check-rdb");
    let check = if newer { Some(beside).filter(|check| check.is_file()) } else { on_path("redis-check-rdb") };
    if let Some(check) = required(check, "redis-check-rdb") {
        let output = Command::new(check).arg(&path).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && said.contains("Checksum OK") && said.contains("\\o/ RDB looks OK! \\o/"), "{said}");
    }
    // This loads the file as a start does.
    let reply = loaded.call(&["DEBUG", "RELOAD", "NOSAVE"]).unwrap();
    assert_eq!(reply.raw.escape_ascii().to_string(), "+OK\\r\\n", "{}", server.log());
    // Natives are in none of the two.
    let mut plain = Subject::new(subject.now.unix_ms());
    plain.load(&saved(&mut wire), 1 << 20).unwrap();
    plain.run("XGROUP CREATECONSUMER a:stream group fresh");
    let compared = compare(&mut loaded, &mut plain, 0) + compare(&mut loaded, &mut plain, 9);
    assert_eq!(compared as u64, tally.loaded);
    let list = loaded.call(&["FUNCTION", "LIST"]).unwrap();
    assert!(list.raw.windows(3).any(|window| window == b"lib"));
    // And back: what Redis saves of ours is the same again.
    let mut again = Subject::new(subject.now.unix_ms());
    loaded.call(&["SELECT", "0"]).unwrap();
    let (back, libraries) = again.load(&saved(&mut loaded), 1000).unwrap();
    assert_eq!((back.loaded, libraries.len()), (tally.loaded, 1));
    compare(&mut loaded, &mut again, 0);
    let digests = [&mut wire, &mut loaded].map(|wire| wire.call(&["DEBUG", "DIGEST"]).unwrap().raw);
    assert_eq!(digests[0], digests[1], "the digest of the whole server");
}
