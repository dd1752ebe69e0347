//! Values in Redis's serialization with arbitrary bytes. RESTORE accepts or refuses a payload, with bounded memory. An accepted
//! value is sound, and DUMP and RESTORE give it back unchanged.
//!
//! The first byte of an input says what the rest is: the body of a payload, to which the checksum is added here, because random
//! bytes would not have a valid one; a whole payload; or requests that make values, one per line.

use crate::allocation;
use crate::driver::Driver;
use portcullis::engine::config::Config;
use portcullis::keyspace::rdb::parts;

/// Maximum size of an input in bytes.
const INPUT_MAX: usize = 16 << 10;
/// Maximum number of requests of one input.
const REQUESTS_MAX: usize = 60;
/// Memory bound in bytes for each byte of a payload. A compressed byte stands for up to 88 bytes, each of which may be half an
/// element of a list; while it is read, an element takes a `Cow` and the text of its integer.
const EACH: usize = 88 * 48;
/// Memory bound in bytes beyond that: tables of a database, and the reply.
const ROOM: usize = 1 << 20;
/// Commands that make values that can be dumped.
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
                let db = driver.engine.keyspace_mut().db(0, now);
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
                // A small sorted set does not keep the sign of a zero, which the value may have from before it was small.
                come_back(&mut driver, b"copy");
            }
        }
    }
    driver.engine.check_invariants();
}

/// Restores a payload, and checks the result.
fn restore(driver: &mut Driver, payload: &[u8]) {
    let reply =
        allocation::bounded(ROOM + EACH * payload.len(), || driver.call(&[b"RESTORE", b"k", b"0", payload, b"REPLACE"], false));
    driver.engine.check_invariants();
    match &reply[..] {
        b"+OK\r\n" if driver.call(&[b"EXISTS", b"k"], false) == b":1\r\n" => come_back(driver, b"k"),
        // OK also for a hash whose fields have all expired.
        b"+OK\r\n" | b"-ERR Bad data format\r\n" | b"-ERR DUMP payload version or checksum are wrong\r\n" => {}
        other => panic!("{}", other.escape_ascii()),
    }
}

/// Dumps a key, restores the payload and dumps it again.
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

/// The payload of an existing key.
fn dump(driver: &mut Driver, key: &[u8]) -> Vec<u8> {
    let reply = driver.call(&[b"DUMP", key], false);
    let head = reply.iter().position(|&byte| byte == b'\n').map_or(reply.len(), |at| at + 1);
    assert!(reply.starts_with(b"$") && reply.len() >= head + 2, "{}", reply.escape_ascii());
    reply[head..reply.len() - 2].to_vec()
}

/// Executes requests that make values. Words are separated by blanks.
fn make(driver: &mut Driver, text: &[u8]) {
    for line in text.split(|&byte| byte == b'\n').take(REQUESTS_MAX) {
        let args: Vec<&[u8]> = line.split(|&byte| byte == b' ').filter(|word| !word.is_empty()).collect();
        let Some(name) = args.first().map(|name| name.to_ascii_lowercase()) else { continue };
        if MAKERS.iter().any(|maker| maker.as_bytes() == name) && !far(&args) {
            driver.call(&args, false);
        }
    }
}

/// Whether a request names a far bit or byte, which takes that much memory.
fn far(args: &[&[u8]]) -> bool {
    let long = |arg: &&&[u8]| arg.len() > 6 && arg.iter().filter(|byte| byte.is_ascii_digit()).count() > 5;
    matches!(args[0].to_ascii_lowercase().as_slice(), b"setbit" | b"setrange" | b"bitfield") && args.iter().any(|arg| long(&arg))
}
