//! Values in Redis's serialization, of any bytes: RESTORE takes a payload or refuses it, with no more memory than its size allows, and
//! what it takes is a sound value that DUMP and RESTORE give again as it is.
//!
//! An input's first byte says what the rest is: the body of a payload, which is sealed here, since no chance finds a checksum; a whole
//! payload; or requests, a line each, that make values.

use crate::allocation;
use crate::driver::Driver;
use portcullis::engine::config::Config;
use portcullis::keyspace::rdb::parts;

/// Bytes of an input.
const INPUT_MAX: usize = 16 << 10;
/// Requests of one input.
const REQUESTS_MAX: usize = 60;
/// What may be taken for each byte of a payload. A compressed byte stands for up to 88, and each of those may be half an element of a
/// list, which takes a `Cow` and its integer's text while it is read.
const EACH: usize = 88 * 48;
/// And beyond that: tables of a database, the reply. Bytes.
const ROOM: usize = 1 << 20;
/// Commands that make values which can be dumped.
const MAKERS: &[&str] = &[
    "append",
    "bitfield",
    "del",
    "expire",
    "geoadd",
    "hdel",
    "hincrby",
    "hmset",
    "hpexpire",
    "hpexpireat",
    "hset",
    "incr",
    "incrbyfloat",
    "linsert",
    "lpop",
    "lpush",
    "lrem",
    "lset",
    "pfadd",
    "rpush",
    "sadd",
    "set",
    "setbit",
    "setrange",
    "srem",
    "xack",
    "xadd",
    "xautoclaim",
    "xclaim",
    "xdel",
    "xgroup",
    "xreadgroup",
    "xsetid",
    "xtrim",
    "zadd",
    "zincrby",
    "zrem",
];

/// Runs one input.
pub fn run(data: &[u8]) {
    let Some((&control, rest)) = data.split_first() else { return };
    let rest = &rest[..rest.len().min(INPUT_MAX)];
    let mut driver = Driver::new(Config { proto_max_bulk_len: 1 << 20, ..Config::default() });
    match control % 4 {
        0 | 1 => {
            let mut payload = rest.to_vec();
            parts::seal(&mut payload, u16::from(control / 4) % (parts::VERSION_MAX + 2));
            restore(&mut driver, &payload);
        }
        2 => restore(&mut driver, rest),
        _ => {
            make(&mut driver, rest);
            let keys: Vec<Vec<u8>> = {
                let now = driver.now;
                let mut keys = Vec::new();
                let db = driver.engine.keyspace.db(0, now);
                let mut cursor = 0;
                loop {
                    cursor = db.scan(cursor, 1024, |entry| keys.push(entry.key().to_vec()));
                    if cursor == 0 {
                        break keys;
                    }
                }
            };
            for key in keys.iter().filter(|key| **key != b"copy") {
                let payload = dump(&mut driver, key);
                assert_eq!(driver.call(&[b"RESTORE", b"copy", b"0", &payload, b"REPLACE"], false), b"+OK\r\n", "what was dumped");
                // A small sorted set keeps no zero with a sign, which the value may have from before it was small.
                come_back(&mut driver, b"copy");
            }
        }
    }
    driver.engine.check_invariants();
}

/// Offers a payload, and has what is made of it come back.
fn restore(driver: &mut Driver, payload: &[u8]) {
    let reply =
        allocation::bounded(ROOM + EACH * payload.len(), || driver.call(&[b"RESTORE", b"k", b"0", payload, b"REPLACE"], false));
    driver.engine.check_invariants();
    match &reply[..] {
        b"+OK\r\n" if driver.call(&[b"EXISTS", b"k"], false) == b":1\r\n" => come_back(driver, b"k"),
        // A hash all of whose fields have ended.
        b"+OK\r\n" | b"-ERR Bad data format\r\n" | b"-ERR DUMP payload version or checksum are wrong\r\n" => {}
        other => panic!("{}", other.escape_ascii()),
    }
}

/// Dumps a key, restores that, and dumps again.
fn come_back(driver: &mut Driver, key: &[u8]) {
    for request in
        [&[b"TYPE", key][..], &[b"OBJECT", b"ENCODING", key], &[b"MEMORY", b"USAGE", key], &[b"DEBUG", b"DIGEST-VALUE", key]]
    {
        driver.call(request, false);
    }
    let digest = driver.call(&[b"DEBUG", b"DIGEST-VALUE", key], false);
    let payload = dump(driver, key);
    assert_eq!(driver.call(&[b"RESTORE", b"again", b"0", &payload], false), b"+OK\r\n", "what was dumped is taken");
    assert_eq!(driver.call(&[b"DEBUG", b"DIGEST-VALUE", b"again"], false), digest, "the same value");
    assert_eq!(dump(driver, b"again"), payload, "dumped again");
    driver.engine.check_invariants();
    driver.call(&[b"DEL", b"again"], false);
}

/// The payload of a key that is there.
fn dump(driver: &mut Driver, key: &[u8]) -> Vec<u8> {
    let reply = driver.call(&[b"DUMP", key], false);
    let head = reply.iter().position(|&byte| byte == b'\n').map_or(reply.len(), |at| at + 1);
    assert!(reply.starts_with(b"$") && reply.len() >= head + 2, "{}", reply.escape_ascii());
    reply[head..reply.len() - 2].to_vec()
}

/// Executes requests, words separated by blanks, of those commands that make values.
fn make(driver: &mut Driver, text: &[u8]) {
    for line in text.split(|&byte| byte == b'\n').take(REQUESTS_MAX) {
        let args: Vec<&[u8]> = line.split(|&byte| byte == b' ').filter(|word| !word.is_empty()).collect();
        let Some(name) = args.first().map(|name| name.to_ascii_lowercase()) else { continue };
        if MAKERS.iter().any(|maker| maker.as_bytes() == name) && !far(&args) {
            driver.call(&args, false);
        }
    }
}

/// Whether a bit or byte far out is asked for, which takes as much memory as that.
fn far(args: &[&[u8]]) -> bool {
    let long = |arg: &&&[u8]| arg.len() > 6 && arg.iter().filter(|byte| byte.is_ascii_digit()).count() > 5;
    matches!(args[0].to_ascii_lowercase().as_slice(), b"setbit" | b"setrange" | b"bitfield") && args.iter().any(|arg| long(&arg))
}
