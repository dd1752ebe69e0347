//! Tests of all set commands.

use std::collections::BTreeSet;

use crate::commands::keyspace_events::Listener;
use crate::engine::harness::Harness;

const WRONG_TYPE: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value";

/// The bulk strings of a reply, without the cursor of a scan.
fn members(reply: &str) -> Vec<String> {
    let words: Vec<&str> = reply.split(' ').collect();
    words.windows(2).filter(|pair| pair[0].starts_with('$')).map(|pair| pair[1].to_owned()).collect()
}

#[test]
fn members_are_added_asked_for_and_removed() {
    Harness::new().script(&[
        ("SADD s b a b", ":2"),
        ("SADD s a", ":0"),
        ("TYPE s", "+set"),
        ("SCARD s", ":2"),
        ("SCARD none", ":0"),
        ("SMEMBERS s", "*2 $1 b $1 a"),
        ("SMEMBERS none", "*0"),
        ("SISMEMBER s a", ":1"),
        ("SISMEMBER s x", ":0"),
        ("SISMEMBER none a", ":0"),
        ("SMISMEMBER s a x b", "*3 :1 :0 :1"),
        ("SMISMEMBER none a x", "*2 :0 :0"),
        ("COPY s t", ":1"),
        ("SREM s x a", ":1"),
        ("SREM s b x", ":1"),
        ("EXISTS s", ":0"),
        ("SREM s b", ":0"),
        ("SMEMBERS t", "*2 $1 b $1 a"),
        ("SCAN 0 TYPE set", "*2 $1 0 *1 $1 t"),
        ("RENAME t s", "+OK"),
        ("SMOVE s u a", ":1"),
        ("SMOVE s u a", ":0"),
        ("SMOVE s s b", ":1"),
        ("SMOVE s u b", ":1"),
        ("SMOVE s u b", ":0"),
        ("EXISTS s", ":0"),
        ("SMEMBERS u", "*2 $1 a $1 b"),
    ]);
}

#[test]
fn errors_change_nothing() {
    Harness::new().script(&[
        ("SET str x", "+OK"),
        ("SADD s a b", ":2"),
        ("SADD str a", WRONG_TYPE),
        ("SREM str a", WRONG_TYPE),
        ("SMEMBERS str", WRONG_TYPE),
        ("SMOVE str s a", WRONG_TYPE),
        ("SMOVE s str a", WRONG_TYPE),
        ("SMOVE none str a", ":0"),
        ("SMOVE s str nothing", WRONG_TYPE),
        ("SPOP str", WRONG_TYPE),
        ("SPOP str 0", WRONG_TYPE),
        ("SRANDMEMBER str", WRONG_TYPE),
        ("SINTER none str", WRONG_TYPE),
        ("SUNION s str", WRONG_TYPE),
        ("SDIFF none s str", WRONG_TYPE),
        ("SINTERSTORE d none str", WRONG_TYPE),
        ("SINTERCARD 2 s str", WRONG_TYPE),
        ("SSCAN str 0", WRONG_TYPE),
        ("SSCAN str x", "-ERR invalid cursor"),
        ("SSCAN s 0 COUNT 0", "-ERR syntax error"),
        ("SSCAN s 0 NOVALUES", "-ERR syntax error"),
        ("SPOP s -1", "-ERR value is out of range, must be positive"),
        ("SPOP s x", "-ERR value is out of range, must be positive"),
        ("SPOP s 1 1", "-ERR syntax error"),
        ("SRANDMEMBER s x", "-ERR value is not an integer or out of range"),
        (
            "SRANDMEMBER s -9223372036854775808",
            "-ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807",
        ),
        ("SRANDMEMBER s -9223372036854775807", "-ERR value is out of range"),
        ("SRANDMEMBER s 1 1", "-ERR syntax error"),
        ("SINTERCARD 0 s", "-ERR numkeys should be greater than 0"),
        ("SINTERCARD x s", "-ERR numkeys should be greater than 0"),
        ("SINTERCARD 2 s", "-ERR Number of keys can't be greater than number of args"),
        ("SINTERCARD 1 s LIMIT -1", "-ERR LIMIT can't be negative"),
        ("SINTERCARD 1 s LIMIT x", "-ERR LIMIT can't be negative"),
        ("SINTERCARD 1 s LIMIT", "-ERR syntax error"),
        ("SINTERCARD 1 s s", "-ERR syntax error"),
        ("SMEMBERS s", "*2 $1 a $1 b"),
        ("EXISTS d", ":0"),
    ]);
}

#[test]
fn small_sets_have_redis_forms_and_orders() {
    let mut h = Harness::new();
    h.script(&[
        ("SADD i 3 1 2 1", ":3"),
        ("OBJECT ENCODING i", "$6 intset"),
        ("SMEMBERS i", "*3 $1 1 $1 2 $1 3"),
        ("SSCAN i 0 COUNT 1", "*2 $1 0 *3 $1 1 $1 2 $1 3"),
        ("SADD i 70000 9223372036854775807 -9223372036854775808", ":3"),
        ("SISMEMBER i 007", ":0"),
        ("SREM i 9223372036854775807 -9223372036854775808 70000", ":3"),
        ("SADD i a", ":1"),
        ("OBJECT ENCODING i", "$8 listpack"),
        ("SMEMBERS i", "*4 $1 1 $1 2 $1 3 $1 a"),
        ("SREM i 1 a", ":2"),
        ("OBJECT ENCODING i", "$8 listpack"),
        ("CONFIG SET set-max-intset-entries 3 set-max-listpack-entries 4 set-max-listpack-value 5", "+OK"),
        ("SADD j 1 2 3", ":3"),
        ("OBJECT ENCODING j", "$6 intset"),
        ("SADD j 4", ":1"),
        ("OBJECT ENCODING j", "$9 hashtable"),
        ("SADD k 1 1 1 1", ":1"),
        ("OBJECT ENCODING k", "$8 listpack"),
        ("SADD l a b c d", ":4"),
        ("OBJECT ENCODING l", "$8 listpack"),
        ("SADD l a b c d a", ":0"),
        ("OBJECT ENCODING l", "$9 hashtable"),
        ("SADD m 123456", ":1"),
        ("OBJECT ENCODING m", "$6 intset"),
        ("SADD m a", ":1"),
        ("OBJECT ENCODING m", "$9 hashtable"),
        ("SADD n abcdef", ":1"),
        ("OBJECT ENCODING n", "$9 hashtable"),
    ]);
}

#[test]
fn sets_are_intersected_united_and_subtracted() {
    let mut h = Harness::new();
    h.script(&[
        ("SADD a 1 2 3 4", ":4"),
        ("SADD b 3 4 5", ":3"),
        ("SADD c x 4 3 y", ":4"),
        ("SINTER a b c", "*2 $1 3 $1 4"),
        ("SINTER c a", "*2 $1 4 $1 3"),
        ("SINTER a none", "*0"),
        ("SINTER a", "*4 $1 1 $1 2 $1 3 $1 4"),
        ("SINTERCARD 2 a b", ":2"),
        ("SINTERCARD 2 a b LIMIT 1", ":1"),
        ("SINTERCARD 2 a b LIMIT 0 LIMIT 9", ":2"),
        ("SINTERCARD 2 a none", ":0"),
        ("SUNION b a", "*5 $1 1 $1 2 $1 3 $1 4 $1 5"),
        ("SUNION none", "*0"),
        ("SDIFF a b", "*2 $1 1 $1 2"),
        ("SDIFF a b a", "*0"),
        ("SDIFF none a", "*0"),
        ("SDIFF a none", "*4 $1 1 $1 2 $1 3 $1 4"),
        ("SINTERSTORE d c a", ":2"),
        ("OBJECT ENCODING d", "$6 intset"),
        ("SMEMBERS d", "*2 $1 3 $1 4"),
        ("SUNIONSTORE d c b", ":5"),
        ("SMEMBERS d", "*5 $1 x $1 4 $1 3 $1 y $1 5"),
        ("SDIFFSTORE d c b", ":2"),
        ("OBJECT ENCODING d", "$8 listpack"),
        ("SDIFFSTORE d a a", ":0"),
        ("EXISTS d", ":0"),
        ("SET d x EX 100", "+OK"),
        ("SUNIONSTORE d d2 a", ":4"),
        ("TTL d", ":-1"),
        ("SINTERSTORE d none a", ":0"),
        ("EXISTS d", ":0"),
        ("SUNIONSTORE a a b", ":5"),
        ("SCARD a", ":5"),
    ]);
    for n in 0..300 {
        h.args(&[b"SADD", b"big", format!("m{n}").as_bytes()]);
    }
    h.script(&[
        ("SADD small m1 m2 m3 nothing", ":4"),
        ("SDIFF small big", "*1 $7 nothing"),
        ("SDIFFSTORE e big small small small small small", ":297"),
        ("SINTERCARD 2 e small", ":0"),
        ("SINTERSTORE e big small", ":3"),
        ("SMEMBERS e", "*3 $2 m1 $2 m2 $2 m3"),
    ]);
    assert_eq!(members(&h.run("SDIFF big small small small small small")).len(), 297);
    assert_eq!(members(&h.run("SUNION small big")).len(), 301);
}

#[test]
fn sorted_sets_are_combined_with_sets_whose_members_score_one() {
    Harness::new().script(&[
        ("SADD i 1 2", ":2"),
        ("SADD l 2 x", ":2"),
        ("ZADD z 5 2 7 x", ":2"),
        ("ZUNION 3 i l z WITHSCORES", "*6 $1 1 $1 1 $1 2 $1 7 $1 x $1 8"),
        ("ZINTER 3 i l z WEIGHTS 2 3 1 WITHSCORES", "*2 $1 2 $2 10"),
        ("ZDIFF 2 i l WITHSCORES", "*2 $1 1 $1 1"),
        ("ZDIFF 2 i i", "*0"),
        ("ZINTERCARD 2 l z", ":2"),
        ("ZUNIONSTORE d 1 i WEIGHTS 4", ":2"),
        ("ZRANGE d 0 -1 WITHSCORES", "*4 $1 1 $1 4 $1 2 $1 4"),
        ("ZRANGE i 0 -1", WRONG_TYPE),
        ("SADD z a", WRONG_TYPE),
        ("SUNION i z", WRONG_TYPE),
    ]);
}

#[test]
fn replies_are_sets_where_the_protocol_has_them() {
    let mut h = Harness::new();
    h.run("HELLO 3");
    h.script(&[
        ("SADD s 1 2", ":2"),
        ("SMEMBERS s", "~2 $1 1 $1 2"),
        ("SMEMBERS none", "~0"),
        ("SINTER s none", "~0"),
        ("SINTER s", "~2 $1 1 $1 2"),
        ("SUNION s", "~2 $1 1 $1 2"),
        ("SDIFF s", "~2 $1 1 $1 2"),
        ("SRANDMEMBER s 2", "*2 $1 1 $1 2"),
        ("SRANDMEMBER none 2", "*0"),
        ("SRANDMEMBER none", "_"),
        ("SSCAN s 0", "*2 $1 0 *2 $1 1 $1 2"),
        ("SPOP s 0", "~0"),
        ("SPOP s 2", "~2 $1 1 $1 2"),
        ("SPOP s 2", "~0"),
        ("SPOP s", "_"),
    ]);
}

#[test]
fn random_members_are_different_ones_or_any() {
    for (count, form) in [(100, "intset"), (100, "listpack"), (1000, "hashtable")] {
        let mut h = Harness::new();
        let prefix = if form == "intset" { "" } else { "m" };
        for n in 0..count {
            h.args(&[b"SADD", b"s", format!("{prefix}{n}").as_bytes()]);
        }
        assert!(h.run("OBJECT ENCODING s").ends_with(form));
        for wanted in [1, 2, count / 4, count - 1, count, count + 5] {
            let given: BTreeSet<String> = members(&h.run(&format!("SRANDMEMBER s {wanted}"))).into_iter().collect();
            assert_eq!(given.len(), wanted.min(count), "{form}");
        }
        assert_eq!(members(&h.run("SRANDMEMBER s -3000")).len(), 3000);
        assert_eq!(h.run("SCARD s"), format!(":{count}"));
        let drawn: BTreeSet<String> = (0..50).flat_map(|_| members(&h.run("SRANDMEMBER s"))).collect();
        assert!(drawn.len() > 10, "{form}: {drawn:?}");
    }
}

#[test]
fn popped_members_are_gone_and_the_rest_stays() {
    for (count, prefix) in [(100, ""), (100, "m"), (3000, "m")] {
        for wanted in [1, 10, count / 2, count - 5, count - 1] {
            let mut h = Harness::new();
            for n in 0..count {
                h.args(&[b"SADD", b"s", format!("{prefix}{n}").as_bytes()]);
            }
            let popped: BTreeSet<String> = members(&h.run(&format!("SPOP s {wanted}"))).into_iter().collect();
            let left: BTreeSet<String> = members(&h.run("SMEMBERS s")).into_iter().collect();
            assert_eq!((popped.len(), left.len()), (wanted, count - wanted));
            assert!(popped.is_disjoint(&left));
            let one = members(&h.run("SPOP s"));
            assert!(left.contains(&one[0]) && !h.run("SMEMBERS s").contains(&format!(" {} ", one[0])));
            h.run("SPOP s 5000");
            h.script(&[("EXISTS s", ":0"), ("SPOP s", "$-1")]);
        }
    }
}

#[test]
fn a_set_that_lost_most_of_its_members_at_once_is_small_again() {
    let mut h = Harness::new();
    for n in 0..600 {
        h.args(&[b"SADD", b"s", format!("m{n}").as_bytes()]);
    }
    h.script(&[("OBJECT ENCODING s", "$9 hashtable")]);
    h.run("SPOP s 590");
    h.script(&[("OBJECT ENCODING s", "$8 listpack"), ("SCARD s", ":10")]);
    h.pass(1);
}

#[test]
fn a_scan_sees_every_member_that_stays_while_the_set_grows_into_a_table() {
    let mut h = Harness::new();
    for n in 0..200 {
        h.args(&[b"SADD", b"s", format!("stay{n}").as_bytes()]);
    }
    let (mut cursor, mut seen, mut calls) = ("0".to_owned(), BTreeSet::new(), 0);
    loop {
        let reply = h.run(&format!("SSCAN s {cursor} COUNT 50 MATCH stay*"));
        cursor = reply.split(' ').nth(2).unwrap_or_default().to_owned();
        seen.extend(members(&reply).into_iter().skip(1));
        if cursor == "0" {
            break;
        }
        calls += 1;
        if calls > 12 {
            continue;
        }
        let more: Vec<Vec<u8>> = (0..400).map(|n| format!("pass{calls}:{n}").into_bytes()).collect();
        let mut args: Vec<&[u8]> = vec![if calls % 4 == 3 { b"SREM" } else { b"SADD" }, b"s"];
        args.extend(more.iter().map(Vec::as_slice));
        h.args(&args);
    }
    assert_eq!(seen.len(), 200);
    assert!(calls > 10, "{calls} calls");
}

#[test]
fn events_say_what_happened_in_redis_order() {
    let mut h = Harness::new();
    let listener = Listener::new(&mut h, "An");
    for (request, events) in [
        ("SADD s a b c", &["s new", "s sadd"][..]),
        ("SADD s a", &[]),
        ("SREM s a x", &["s srem"]),
        ("SREM s x", &[]),
        ("SMOVE s t b", &["s srem", "t new", "t sadd"]),
        ("SMOVE s t c", &["s srem", "s del", "t sadd"]),
        ("SPOP t", &["t spop"]),
        ("SPOP t", &["t spop", "t del"]),
        ("SADD s a b c", &["s new", "s sadd"]),
        ("SUNIONSTORE u s", &["u new", "u sunionstore"]),
        ("SDIFFSTORE u s v", &["u sdiffstore"]),
        ("SINTERSTORE u s u", &["u sinterstore"]),
        ("SINTERSTORE u s v", &["u del"]),
        ("SINTERSTORE u s v", &[]),
        ("SPOP s 0", &[]),
        ("SPOP s 2", &["s spop"]),
        ("SPOP s 9", &["s spop", "s del"]),
    ] {
        assert_eq!(listener.events_of(&mut h, request), events, "{request}");
    }
}

#[test]
fn a_large_set_is_freed_in_pieces() {
    let mut h = Harness::new();
    let names: Vec<String> = (0..20_000).map(|n| format!("m{n}")).collect();
    let mut args: Vec<&[u8]> = vec![b"SADD", b"s"];
    args.extend(names.iter().map(String::as_bytes));
    h.args(&args);
    h.script(&[("DEL s", ":1")]);
    assert!(h.engine.keyspace().has_unfreed());
    h.pass(1);
    assert!(!h.engine.keyspace().has_unfreed());
}
