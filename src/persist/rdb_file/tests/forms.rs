//! Files made by hand: forms that only older or newer versions write, and faults.

use super::*;
use crate::keyspace::rdb::kind;
use crate::keyspace::rdb::parts::put_string;
use crate::persist::rdb_file::fault::{Counts, Doing};

#[test]
fn items_of_all_versions_are_read() {
    let mut items = Vec::new();
    let string = |items: &mut Vec<u8>, text: &[u8]| put_string(items, text);
    // An unknown field, and hints.
    items.extend_from_slice(&[opcode::AUX, 3]);
    items.extend_from_slice(b"new\x01x");
    items.extend_from_slice(&[opcode::SELECTDB, 2, opcode::RESIZEDB, 0x42, 0x00, 0x80, 0, 0, 0, 1]);
    items.extend_from_slice(&[opcode::SLOT_INFO, 7, 1, 0]);
    // A deadline in seconds, an idle time, a frequency.
    items.push(opcode::EXPIRETIME);
    items.extend_from_slice(&1_700_002_000_i32.to_le_bytes());
    items.extend_from_slice(&[opcode::IDLE, 0x40, 100, 0]);
    string(&mut items, b"seconds");
    string(&mut items, b"v");
    // None, and one that has passed.
    items.push(opcode::EXPIRETIME_MS);
    items.extend_from_slice(&(-1_i64).to_le_bytes());
    items.push(0);
    string(&mut items, b"stays");
    string(&mut items, b"v");
    items.push(opcode::EXPIRETIME);
    items.extend_from_slice(&1_i32.to_le_bytes());
    items.push(0);
    string(&mut items, b"past");
    string(&mut items, b"v");
    // In seconds, this is no deadline that stands for none.
    items.push(opcode::EXPIRETIME);
    items.extend_from_slice(&(-1_i32).to_le_bytes());
    items.push(0);
    string(&mut items, b"before 1970");
    string(&mut items, b"v");
    // A name and a value that are compressed: "aaaaaaaaaaaa", and a number as such.
    items.extend_from_slice(b"\0\xc3\x05\x0c\x00a\xe0\x02\x00");
    items.extend_from_slice(&[0xc1, 0x39, 0x30]);
    let mut h = Harness::new();
    for version in ["0001", "0005", "0012"] {
        let mut h2 = Harness::new();
        let mut file = sealed(version, &items);
        if version == "0001" {
            file.truncate(file.len() - 8);
        }
        let tally = load_in_pieces(&mut h2, &file, LoadOptions::default(), 3);
        h = h2;
        assert_eq!(tally.map(|tally| (tally.loaded, tally.expired)), Ok((3, 2)), "version {version}");
    }
    h.script(&[
        ("SELECT 2", "+OK"),
        ("PEXPIRETIME seconds", ":1700002000000"),
        ("OBJECT IDLETIME seconds", ":100"),
        ("PTTL stays", ":-1"),
        ("GET aaaaaaaaaaaa", "$5 12345"),
        ("DBSIZE", ":3"),
    ]);
}

/// A key `k` of a type and a value.
fn key_of(kind: u8, value: &[u8]) -> Vec<u8> {
    [&[kind, 1, b'k'][..], value].concat()
}

#[test]
fn values_in_the_forms_of_older_versions_are_read() {
    let ziplist = b"\x17\0\0\0\x12\0\0\0\x04\0\0\x01a\x03\xf2\x02\xfe\x9c\x03\xc0\xe8\x03\xff";
    let packed = |buffer: &[u8]| [&[buffer.len() as u8], buffer].concat();
    let listpack = b"\x0d\0\0\0\x02\0\x81a\x02\x01\x01\xff";
    let listpack = &listpack[..];
    let ex = b"\x11\0\0\0\x03\0\x81a\x02\x81v\x02\x00\x01\xff";
    let ex = [&(ex.len() as u32).to_le_bytes()[..], &ex[4..]].concat();
    let lp = [&(listpack.len() as u32).to_le_bytes()[..], &listpack[4..]].concat();
    let quick = [&[1][..], &packed(ziplist)].concat();
    let quick_2 = [&[2, 1, 1, b'x', 2][..], &packed(&lp)].concat();
    for (kind, value, request, reply) in [
        (kind::LIST_ZIPLIST, packed(ziplist), "LRANGE k 0 -1", "*4 $1 a $1 1 $4 -100 $4 1000"),
        (kind::HASH_ZIPLIST, packed(ziplist), "HGETALL k", "*4 $1 a $1 1 $4 -100 $4 1000"),
        (kind::ZSET_ZIPLIST, packed(ziplist), "ZRANGE k 0 -1 WITHSCORES", "*4 $1 a $1 1 $4 -100 $4 1000"),
        (kind::HASH_ZIPMAP, packed(b"\x02\x01a\x01\x00b\x01c\x01\x02d..\xff"), "HGETALL k", "*4 $1 a $1 b $1 c $1 d"),
        (kind::ZSET, b"\x02\x01a\x031.5\x01b\xfe".to_vec(), "ZRANGE k 0 -1 WITHSCORES", "*4 $1 a $3 1.5 $1 b $3 inf"),
        (kind::LIST_QUICKLIST, quick, "LRANGE k 0 -1", "*4 $1 a $1 1 $4 -100 $4 1000"),
        (kind::LIST_QUICKLIST_2, quick_2, "LRANGE k 0 -1", "*3 $1 x $1 a $1 1"),
        (kind::HASH_LISTPACK, packed(&lp), "HGETALL k", "*2 $1 a $1 1"),
        (kind::SET_LISTPACK, packed(&lp), "SCARD k", ":2"),
        (kind::HASH_LISTPACK_EX_PRE_GA, packed(&ex), "HGETALL k", "*2 $1 a $1 v"),
        (kind::HASH_LISTPACK_EX, [&[0; 8][..], &packed(&ex)].concat(), "HGETALL k", "*2 $1 a $1 v"),
        (
            kind::HASH_METADATA_PRE_GA,
            [&[1, 0x81][..], &1_700_001_005_000_u64.to_be_bytes(), b"\x01a\x01v"].concat(),
            "HPEXPIRETIME k FIELDS 1 a",
            "*1 :1700001005000",
        ),
        (
            kind::HASH_METADATA,
            [&1_700_001_005_000_i64.to_le_bytes()[..], b"\x02\x01\x01a\x01v\x00\x01b\x01w"].concat(),
            "HPEXPIRETIME k FIELDS 2 a b",
            "*2 :1700001005000 :-1",
        ),
    ] {
        for piece in [1, 1000] {
            let mut h = Harness::new();
            let tally = load_in_pieces(&mut h, &sealed("0012", &key_of(kind, &value)), LoadOptions::default(), piece);
            assert_eq!(tally.map(|tally| tally.loaded), Ok(1), "type {kind}");
            assert_eq!(h.run(request), reply, "type {kind}");
        }
    }
}

#[test]
fn keys_without_elements_are_skipped() {
    let empty = b"\x07\x07\0\0\0\0\0\xff";
    for (kind, value) in [
        (kind::LIST, &b"\0"[..]),
        (kind::SET, b"\0"),
        (kind::HASH, b"\0"),
        (kind::ZSET_2, b"\0"),
        (kind::LIST_QUICKLIST_2, b"\0"),
        (kind::LIST_QUICKLIST_2, b"\x01\x02\x07\x07\0\0\0\0\0\xff"),
        (kind::HASH_LISTPACK, empty),
        (kind::ZSET_LISTPACK, empty),
        (kind::SET_LISTPACK, empty),
    ] {
        let mut h = Harness::new();
        let tally = load(&mut h, &sealed("0010", &key_of(kind, value)));
        assert_eq!(tally.map(|tally| (tally.loaded, tally.empty)), Ok((0, 1)), "type {kind}");
    }
}

#[test]
fn faults_are_told_with_redis_texts_the_offset_and_the_key() {
    let text = |file: &[u8]| fault_of(file).reason.to_string();
    // Texts of Redis.
    assert_eq!(text(b"RODIS0010"), "Wrong signature trying to load DB from file");
    assert_eq!(text(b"REDIS0013\xff"), "Can't handle RDB format version 13");
    assert_eq!(text(b"REDIS0000\xff"), "Can't handle RDB format version 0");
    assert_eq!(text(b"REDISabcd\xff"), "Can't handle RDB format version 0");
    assert_eq!(text(b""), "Unexpected EOF reading RDB file");
    assert_eq!(text(b"RODIS"), "Unexpected EOF reading RDB file");
    assert_eq!(text(b"REDIS0010\xfe"), "Unexpected EOF reading RDB file");
    assert_eq!(text(b"REDIS0010\x1e\x01k"), "Invalid object type: 30");
    assert_eq!(text(b"REDIS0010\x08\x01k"), "Invalid object type: 8");
    assert_eq!(text(b"REDIS0010\x00\x01k\xc7"), "Unknown RDB string encoding type 7");
    assert_eq!(text(b"REDIS0010\x00\x01k\x83"), "Unknown length encoding 2 in rdbLoadLen()");
    assert_eq!(text(b"REDIS0010\x06\x01k"), "Pre-release module format not supported");
    assert_eq!(text(b"REDIS0010\xf6"), "Pre-release function format not supported.");
    assert_eq!(
        text(b"REDIS0010\xfe\x10"),
        "FATAL: Data file was created with a Redis server configured to handle more than 16 databases. Exiting"
    );
    // Texts of our own.
    assert_eq!(text(b"REDIS0010\x01\x01k\xc5"), "Portcullis: the byte 197 begins no length");
    // The name "ReJSON-RL" and version 3 in an id.
    let letters: Vec<u64> = b"ReJSON-RL".iter().map(|&c| letter(c)).collect();
    let number = letters.iter().fold(0, |id, letter| id << 6 | letter) << 10 | 3;
    let id = [&[0x81][..], &number.to_be_bytes()].concat();
    let module = fault_of(&[b"REDIS0010\x07\x03doc", &id[..]].concat());
    assert_eq!(module.reason.to_string(), "The RDB file contains module data I can't load: no matching module type 'ReJSON-RL'");
    assert_eq!(module.key.as_deref(), Some(&b"doc"[..]));
    assert_eq!(
        text(&[b"REDIS0010\xf7", &id[..]].concat()),
        "The RDB file contains AUX module data I can't load: no matching module 'ReJSON-RL'"
    );
    assert_eq!(text(&sealed("0010", b"\x00\x01k\x01v\x00\x01k\x01w")), "RDB has duplicated key 'k' in DB 0");

    // As `redis-check-rdb` says it of this file.
    let cut = fault_of(b"REDIS0010\xfc\x01\0\0\0\0\0\0\0\x00\x01a\x01v\x04\x03key\x02\x01f");
    assert_eq!((cut.offset, cut.doing), (31, Doing::Value));
    assert_eq!(
        cut.explanation(),
        "--- RDB ERROR DETECTED ---\n[offset 31] Unexpected EOF reading RDB file\n[additional info] While doing: read-object-value\n\
         [additional info] Reading key 'key'\n[additional info] Reading type 4 (hash-hashtable)\n[info] 2 keys read\n[info] 1 expires\n\
         [info] 1 already expired"
    );
    let malformed = fault_of(&sealed("0010", b"\x10\x01k\x01x"));
    assert_eq!(
        malformed.to_string(),
        "Portcullis: the value does not have the form of its type at offset 9, while doing: read-object-value, key 'k'"
    );
    let mut file = sealed("0010", b"\x00\x01k\x01v");
    let at = file.len() - 10;
    file[at] ^= 1;
    let wrong = fault_of(&file);
    assert!(matches!(wrong.reason, Reason::Checksum { .. }), "{wrong}");
    assert!(wrong.to_string().starts_with("Wrong RDB checksum expected: ("), "{wrong}");
    // A fault in what is no key has the counts of the keys before it.
    let beyond = fault_of(b"REDIS0010\xfc\x01\0\0\0\0\0\0\0\x00\x01a\x01v\xfe\x10");
    assert_eq!((beyond.doing, beyond.counts), (Doing::Length, Counts { keys: 1, expires: 1, already_expired: 1 }));
    // A short file with a wrong beginning has no ninth byte.
    for len in [None, Some(5)] {
        let mut reader = Reader::new(len, true, 0);
        reader.feed(b"RODIS");
        let first = reader.next().map(|event| assert!(event.is_none()));
        let fault = first.and_then(|()| reader.check_end()).unwrap_err();
        assert_eq!((fault.reason, fault.offset), (Reason::End, 5));
    }
    // A length beyond the end of the file is found before the bytes arrive.
    let mut reader = Reader::new(Some(100), true, 0);
    reader.feed(b"REDIS0010\x00\x01k\x80\x10\0\0\0");
    assert!(matches!(reader.next(), Ok(Some(Event::Version(10)))));
    assert_eq!(reader.next().unwrap_err().reason, Reason::End);
}

fn letter(c: u8) -> u64 {
    match c {
        b'A'..=b'Z' => u64::from(c - b'A'),
        b'a'..=b'z' => u64::from(c - b'a') + 26,
        b'0'..=b'9' => u64::from(c - b'0') + 52,
        b'-' => 62,
        _ => 63,
    }
}
