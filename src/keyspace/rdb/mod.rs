//! Values in Redis's own serialization, for `DUMP` and `RESTORE`:
//!
//! ```text
//!   type, 1 byte · the value · version, 2 bytes · CRC-64, 8 bytes
//! ```
//!
//! `DUMP` writes the plain forms, which every version of Redis reads. `RESTORE` reads all forms that any version wrote.

pub mod compact;
pub mod dump;
pub mod load;
pub mod parts;
pub mod streams;

/// The types of values, with the names of Redis's documentation of the format.
pub mod kind {
    #![allow(missing_docs)]
    pub const STRING: u8 = 0;
    pub const LIST: u8 = 1;
    pub const SET: u8 = 2;
    /// Scores as text.
    pub const ZSET: u8 = 3;
    pub const HASH: u8 = 4;
    /// Scores as doubles.
    pub const ZSET_2: u8 = 5;
    pub const HASH_ZIPMAP: u8 = 9;
    pub const LIST_ZIPLIST: u8 = 10;
    pub const SET_INTSET: u8 = 11;
    pub const ZSET_ZIPLIST: u8 = 12;
    pub const HASH_ZIPLIST: u8 = 13;
    pub const LIST_QUICKLIST: u8 = 14;
    pub const STREAM_LISTPACKS: u8 = 15;
    pub const HASH_LISTPACK: u8 = 16;
    pub const ZSET_LISTPACK: u8 = 17;
    pub const LIST_QUICKLIST_2: u8 = 18;
    /// With the first id, the last deleted id, the number of entries ever added, and how far groups have read.
    pub const STREAM_LISTPACKS_2: u8 = 19;
    pub const SET_LISTPACK: u8 = 20;
    /// With the time of each consumer's last delivery.
    pub const STREAM_LISTPACKS_3: u8 = 21;
    /// The two types below as the release candidates of 7.4 wrote them, with absolute deadlines.
    pub const HASH_METADATA_PRE_GA: u8 = 22;
    pub const HASH_LISTPACK_EX_PRE_GA: u8 = 23;
    /// Fields with deadlines; the earliest of them comes first.
    pub const HASH_METADATA: u8 = 24;
    pub const HASH_LISTPACK_EX: u8 = 25;
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::base::scaled;
    use crate::engine::harness::Harness;

    const KEYS: [&str; 11] = ["s", "n", "l", "ll", "set", "ints", "z", "h", "t", "x", "xg"];

    fn filled() -> Harness {
        let mut harness = Harness::new();
        for request in [
            "SET s some-text",
            "SET n -70000",
            "RPUSH l a 1 -129 4000 70000",
            "SADD set a b c",
            "SADD ints 1 2 3",
            "ZADD z 1 a 2.5 b inf c",
            "HSET h a 1 b 2",
            "HSET t a 1 b 2 c 3",
            "XADD x 5-1 a 1 b 2",
            "XADD x 5-2 a 3 b 4",
            "XADD x 6-0 c 5",
            "XADD xg 1-1 a 1",
            "XADD xg 1-2 a 2",
            "XADD xg 1-3 a 3",
            "XDEL xg 1-2",
            "XGROUP CREATE xg g 0 ENTRIESREAD 0",
            "XGROUP CREATECONSUMER xg g idle",
            "XREADGROUP GROUP g busy COUNT 1 STREAMS xg >",
        ] {
            harness.run(request);
        }
        harness.args(&[b"RPUSH", b"ll", &[b'x'; 9_000], &[b'y'; 9_000]]);
        assert_eq!(harness.run("HPEXPIRE t 5000 FIELDS 2 a b"), "*2 :1 :1");
        harness
    }

    fn dumped(harness: &mut Harness, key: &str) -> Vec<u8> {
        let reply = harness.args(&[b"DUMP", key.as_bytes()]);
        let start = reply.iter().position(|&byte| byte == b'\n').unwrap() + 1;
        reply[start..reply.len() - 2].to_vec()
    }

    fn restore(harness: &mut Harness, key: &str, payload: &[u8]) -> String {
        let reply = harness.args(&[b"RESTORE", key.as_bytes(), b"0", payload, b"REPLACE"]);
        if scaled(true, false) {
            harness.engine.check_invariants();
        }
        String::from_utf8(reply).unwrap()
    }

    /// A body with the footer that belongs to it.
    fn sealed(body: &[u8]) -> Vec<u8> {
        let mut payload = body.to_vec();
        parts::seal(&mut payload, 11);
        payload
    }

    #[test]
    fn every_type_comes_back() {
        let mut harness = filled();
        for key in KEYS {
            let payload = dumped(&mut harness, key);
            assert_eq!(restore(&mut harness, "copy", &payload), "+OK\r\n", "{key}");
            assert_eq!(dumped(&mut harness, "copy"), payload, "{key}");
        }
        let payload = dumped(&mut harness, "t");
        assert_eq!(restore(&mut harness, "copy", &payload), "+OK\r\n");
        harness.script(&[("HPTTL copy FIELDS 3 a b c", "*3 :5000 :5000 :-1")]);
        harness.pass(5000);
        assert_eq!(restore(&mut harness, "copy", &payload), "+OK\r\n");
        harness.script(&[("HGETALL copy", "*2 $1 c $1 3")]);
    }

    #[test]
    fn a_hash_whose_fields_have_all_ended_is_not_made() {
        let mut harness = filled();
        harness.run("HDEL t c");
        let payload = dumped(&mut harness, "t");
        harness.pass(5000);
        assert_eq!(restore(&mut harness, "s", &payload), "+OK\r\n");
        harness.script(&[("EXISTS s", ":0")]);
    }

    /// Forms that only older versions write: made by hand after their descriptions.
    #[test]
    fn older_forms_are_read() {
        let ziplist = b"\x17\0\0\0\x12\0\0\0\x04\0\0\x01a\x03\xf2\x02\xfe\x9c\x03\xc0\xe8\x03\xff";
        assert_eq!(compact::ziplist(ziplist).unwrap(), [&b"a"[..], b"1", b"-100", b"1000"]);
        let mut harness = Harness::new();
        let with = |kind: u8, buffer: &[u8]| sealed(&[&[kind, buffer.len() as u8], buffer].concat());
        for (payload, request, reply) in [
            (with(kind::LIST_ZIPLIST, ziplist), "LRANGE k 0 -1", "*4 $1 a $1 1 $4 -100 $4 1000"),
            (with(kind::HASH_ZIPLIST, ziplist), "HGETALL k", "*4 $1 a $1 1 $4 -100 $4 1000"),
            (with(kind::ZSET_ZIPLIST, ziplist), "ZRANGE k 0 -1 WITHSCORES", "*4 $1 a $1 1 $4 -100 $4 1000"),
            (with(kind::HASH_ZIPMAP, b"\x02\x01a\x01\x00b\x01c\x01\x02d..\xff"), "HGETALL k", "*4 $1 a $1 b $1 c $1 d"),
            (sealed(b"\x03\x02\x01a\x031.5\x01b\xfe"), "ZRANGE k 0 -1 WITHSCORES", "*4 $1 a $3 1.5 $1 b $3 inf"),
            (sealed(&[b"\x0e\x01\x17", &ziplist[..]].concat()), "LLEN k", ":4"),
        ] {
            assert_eq!(restore(&mut harness, "k", &payload), "+OK\r\n", "{request}");
            assert_eq!(harness.run(request), reply);
        }
    }

    /// Hashes with field deadlines as release candidates of Redis 7.4 wrote them: a table, and a listpack, with absolute deadlines.
    #[test]
    fn hashes_of_release_candidates_are_read() {
        let mut harness = Harness::new();
        let at = harness.now.unix_ms() + 5000;
        let table = |a: i64| {
            let deadline = |ms: i64| [&[0x81][..], &ms.to_be_bytes()].concat();
            let fields = [&deadline(a)[..], b"\x01a\x011\x00\x01b\x012"].concat();
            sealed(&[&[kind::HASH_METADATA_PRE_GA, 2][..], &fields].concat())
        };
        let listpack = |a: i64| {
            let deadline = [&[0xf4][..], &a.to_le_bytes(), &[9]].concat();
            let elements = [&b"\x81a\x02\x01\x01"[..], &deadline, b"\x81b\x02\x02\x01\x00\x01\xff"].concat();
            let buffer = [&(elements.len() as u32 + 6).to_le_bytes()[..], &[6, 0], &elements].concat();
            sealed(&[&[kind::HASH_LISTPACK_EX_PRE_GA, buffer.len() as u8][..], &buffer].concat())
        };
        for payload in [table(at), listpack(at)] {
            assert_eq!(restore(&mut harness, "h", &payload), "+OK\r\n");
            harness.script(&[("HMGET h a b", "*2 $1 1 $1 2"), ("HPEXPIRETIME h FIELDS 2 a b", &format!("*2 :{at} :-1"))]);
        }
        // A deadline that has passed.
        for payload in [table(1), listpack(1)] {
            assert_eq!(restore(&mut harness, "h", &payload), "+OK\r\n");
            harness.script(&[("HGETALL h", "*2 $1 b $1 2")]);
        }
        for body in [&[kind::HASH_METADATA_PRE_GA, 0][..], b"\x17\x07\x07\0\0\0\0\0\xff", b"\x16\x01\x00\x01a"] {
            let reply = restore(&mut harness, "empty", &sealed(body));
            assert_eq!(reply, "-ERR Bad data format\r\n", "{}", body.escape_ascii());
        }
    }

    #[test]
    fn what_is_not_well_formed_is_refused() {
        let mut harness = Harness::new();
        for body in [
            &b""[..],
            b"\x01\x00",
            b"\x01\x01",
            b"\x01\x81\xff\xff\xff\xff\xff\xff\xff\xff",
            b"\x02\x02\x01a\x01a",
            b"\x04\x01\x01a",
            b"\x05\x01\x01a\x00\x00\x00\x00\x00\x00\xf8\x7f",
            b"\x00\x01ab",
            b"\x07\x01a",
            b"\x0b\x0c\x02\0\0\0\x02\0\0\0\x02\0\x01\0",
            b"\x10\x08\x08\0\0\0\x01\0\x01\xff",
            b"\x12\x01\x03\x01a",
            b"\xff",
        ] {
            assert_eq!(restore(&mut harness, "k", &sealed(body)), "-ERR Bad data format\r\n", "{}", body.escape_ascii());
        }
        assert_eq!(harness.run("EXISTS k"), ":0");
    }

    #[test]
    fn zeros_with_a_sign_stay_so_in_a_sorted_set_that_is_too_large_for_a_listpack() {
        let mut harness = Harness::new();
        let mut others = "1 m".to_owned();
        (0..150).for_each(|n| others += &format!(" 1 m:{n}"));
        harness.run(&format!("ZADD z {others}"));
        harness.run("ZADD z -0 zero 0 other");
        harness.run(&format!("ZADD long 1 {} -0 zero", "x".repeat(100)));
        harness.run("ZADD small -0 zero");
        for (key, score) in [("z", "-0"), ("long", "-0"), ("small", "0")] {
            let payload = dumped(&mut harness, key);
            restore(&mut harness, "copy", &payload);
            assert_eq!(harness.run("ZSCORE copy zero"), format!("${} {score}", score.len()), "{key}");
            harness.run("DEL copy");
        }
    }

    proptest! {
        /// Whatever is done to a payload, it is read or refused, and nothing else happens.
        #[test]
        fn changed_payloads_do_no_harm(
            which in 0..KEYS.len(),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
            cut in prop::option::of(any::<prop::sample::Index>()),
            kind in prop::option::of(0..27u8),
        ) {
            let mut harness = filled();
            let payload = dumped(&mut harness, KEYS[which]);
            let mut body = parts::open(&payload).unwrap().to_vec();
            for (at, byte) in changes {
                let at = at.index(body.len());
                body[at] = byte;
            }
            if let Some(cut) = cut {
                body.truncate(cut.index(body.len()) + 1);
            }
            if let Some(kind) = kind {
                body[0] = kind;
            }
            let reply = restore(&mut harness, "k", &sealed(&body));
            prop_assert!(reply == "+OK\r\n" || reply == "-ERR Bad data format\r\n", "{}", reply);
        }

        #[test]
        fn buffers_of_any_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = (compact::listpack(&bytes), compact::ziplist(&bytes), compact::zipmap(&bytes), compact::intset(&bytes));
        }
    }
}
