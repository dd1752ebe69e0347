use crate::commands::keyspace_events::Listener;
use crate::engine::environment::Usage;
use crate::engine::harness::Harness;

const NO_NUMBERS: &str = "-ERR One or more scores can't be converted into double";

#[test]
fn elements_are_sorted_as_numbers_or_as_texts() {
    let mut h = Harness::new();
    h.script(&[
        ("RPUSH l 10 9 -3 2.5 0x10 1e1 inf", ":7"),
        ("SORT l", "*7 $2 -3 $3 2.5 $1 9 $2 10 $3 1e1 $4 0x10 $3 inf"),
        ("SORT l DESC", "*7 $3 inf $4 0x10 $3 1e1 $2 10 $1 9 $3 2.5 $2 -3"),
        ("SORT l DESC ASC LIMIT 1 2", "*2 $3 2.5 $1 9"),
        ("SORT l ALPHA", "*7 $2 -3 $4 0x10 $2 10 $3 1e1 $3 2.5 $1 9 $3 inf"),
        ("SORT l LIMIT -5 2", "*2 $2 -3 $3 2.5"),
        ("SORT l LIMIT 5 -1", "*2 $4 0x10 $3 inf"),
        ("SORT l LIMIT 7 1", "*0"),
        ("SORT l LIMIT 3 0", "*0"),
        ("SORT l LIMIT 9223372036854775807 9223372036854775807", "*0"),
        ("SORT l LIMIT 1", "-ERR syntax error"),
        ("SORT l LIMIT x 1", "-ERR value is not an integer or out of range"),
        ("SORT l WHAT", "-ERR syntax error"),
        ("RPUSH l word", ":8"),
        ("SORT l", NO_NUMBERS),
        ("SORT l STORE d", NO_NUMBERS),
        ("SORT none", "*0"),
        ("SET s v", "+OK"),
        ("SORT s", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
        ("SORT_RO l ALPHA LIMIT 0 1", "*1 $2 -3"),
        ("SORT_RO l STORE d", "-ERR syntax error"),
    ]);
    for (text, number) in
        [(&b""[..], true), (b" 5", true), (b"5 ", false), (b"nan", false), (b"5\0x", true), (b"1e999", false), (b" ", false)]
    {
        h.run("DEL n");
        h.args(&[b"RPUSH", b"n", text]);
        assert_eq!(h.args(&[b"SORT", b"n"]).starts_with(b"*"), number, "{text:?}");
    }
}

#[test]
fn other_keys_give_the_weights_and_the_values() {
    let mut h = Harness::new();
    h.script(&[
        ("RPUSH l a b c d", ":4"),
        ("MSET w:a 3 w:b 1 w:c 2 v:a A v:b B", "+OK"),
        ("HSET h:a n 1 t x", ":2"),
        ("HSET h:b n 9", ":1"),
        ("SORT l BY w:*", "*4 $1 d $1 b $1 c $1 a"),
        ("SORT l BY w:* DESC LIMIT 0 2", "*2 $1 a $1 c"),
        ("SORT l BY w:* GET v:* GET #", "*8 $-1 $1 d $1 B $1 b $-1 $1 c $1 A $1 a"),
        ("SORT l BY h:*->n", "*4 $1 c $1 d $1 a $1 b"),
        ("SORT l BY h:*->n GET h:*->t GET h:*-> GET h:* GET plain LIMIT 2 1", "*4 $1 x $-1 $-1 $-1"),
        ("SORT l BY v:* ALPHA DESC", "*4 $1 b $1 a $1 c $1 d"),
        ("SORT l BY v:*", NO_NUMBERS),
        ("SORT l BY nosort", "*4 $1 a $1 b $1 c $1 d"),
        ("SORT l BY nosort DESC LIMIT 1 2", "*2 $1 c $1 b"),
        ("SORT l BY nosort BY w:* LIMIT 0 1", "*1 $1 a"),
        ("SORT l BY w:* STORE d GET v:*", ":4"),
        ("LRANGE d 0 -1", "*4 $0  $1 B $0  $1 A"),
        ("TYPE d", "+list"),
        ("OBJECT ENCODING d", "$8 listpack"),
        ("SORT none STORE d", ":0"),
        ("EXISTS d", ":0"),
    ]);
}

#[test]
fn sets_and_sorted_sets_are_sorted_too() {
    let mut h = Harness::new();
    h.script(&[
        ("SADD s 3 1 2", ":3"),
        ("SORT s DESC", "*3 $1 3 $1 2 $1 1"),
        ("SORT s BY nosort LIMIT 1 1", "*1 $1 2"),
        ("SADD t b a c", ":3"),
        ("SORT t BY nosort STORE d", ":3"),
        ("LRANGE d 0 -1", "*3 $1 a $1 b $1 c"),
        ("EVAL return(redis.call('SORT','t','BY','nosort','DESC')) 0", "*3 $1 c $1 b $1 a"),
        ("ZADD z 5 x 3 y 4 z", ":3"),
        ("SORT z ALPHA", "*3 $1 x $1 y $1 z"),
        ("SORT z BY nosort", "*3 $1 y $1 z $1 x"),
        ("SORT z BY nosort DESC", "*3 $1 x $1 z $1 y"),
        ("SORT z BY nosort DESC LIMIT 1 5", "*2 $1 z $1 y"),
        ("SORT z BY nosort LIMIT 1 1", "*1 $1 z"),
        ("SORT z BY nosort DESC LIMIT 0 1", "*1 $1 x"),
        ("OBJECT ENCODING z", "$8 skiplist"),
    ]);
}

#[test]
fn store_publishes_an_event_of_the_destination() {
    let mut h = Harness::new();
    h.script(&[
        ("RPUSH l 2 1", ":2"),
        ("COMMAND GETKEYSANDFLAGS SORT l BY store STORE a GET store STORE b", "*2 *2 $1 l *2 +RO +access *2 $1 b *2 +OW +update"),
        ("COMMAND GETKEYS SORT_RO l GET STORE", "*1 $1 l"),
    ]);
    let listener = Listener::new(&mut h, "A");
    assert_eq!(listener.events_of(&mut h, "SORT l STORE d"), ["d sortstore"]);
    assert_eq!(listener.events_of(&mut h, "SORT none STORE d"), ["d del"]);
    assert!(listener.events_of(&mut h, "SORT none STORE d").is_empty());
}

#[test]
fn who_may_not_read_every_key_may_not_use_patterns() {
    let mut h = Harness::new();
    h.script(&[
        ("RPUSH l 2 1", ":2"),
        ("ACL SETUSER u on nopass +@all ~l", "+OK"),
        ("AUTH u x", "+OK"),
        ("SORT l", "*2 $1 1 $1 2"),
        ("SORT l BY nosort", "*2 $1 2 $1 1"),
        ("SORT l BY w:*", "-ERR BY option of SORT denied due to insufficient ACL permissions."),
        ("SORT l GET #", "-ERR GET option of SORT denied due to insufficient ACL permissions."),
        ("SORT l STORE d", "-NOPERM No permissions to access a key"),
    ]);
}

#[test]
fn no_request_looks_up_without_bound() {
    let mut h = Harness::new();
    let mut args: Vec<&[u8]> = vec![b"RPUSH", b"l"];
    args.resize(2002, b"1");
    h.args(&args);
    let big = vec![b'v'; 10_000];
    h.args(&[b"SET", b"k1", &big]);
    let refused = "-ERR SORT needs more key lookups than one request may make";
    assert_eq!(h.run("SORT l GET k*"), refused);
    assert_eq!(h.run("SORT l BY k* ALPHA"), refused);
    assert_eq!(h.run("SORT l BY k*"), NO_NUMBERS);
    let mut args: Vec<&[u8]> = vec![b"SORT", b"l"];
    args.resize(2 + 2 * 6000, b"GET");
    args.iter_mut().skip(3).step_by(2).for_each(|arg| *arg = b"#");
    assert_eq!(h.args(&args), format!("{refused}\r\n").as_bytes());
    assert_eq!(h.run("SORT l GET k* LIMIT 0 0"), "*0");
}

#[test]
fn what_is_stored_must_have_room() {
    let mut h = Harness::new();
    h.engine.environment_mut().usage = Some(|| Usage { allocated: 900_000, ..Usage::default() });
    let value = vec![b'v'; 60_000];
    h.args(&[b"RPUSH", b"l", &value, &value]);
    h.script(&[
        ("CONFIG SET maxmemory 1000000", "+OK"),
        ("SORT l ALPHA STORE d", "-OOM command not allowed when used memory > 'maxmemory'."),
        ("EXISTS d", ":0"),
        ("SORT l ALPHA STORE d LIMIT 0 1", ":1"),
    ]);
}

#[test]
fn a_cluster_looks_up_only_what_it_has_in_the_same_slot() {
    let mut h = Harness::new();
    h.engine.change_config(|config| config.cluster_enabled = true);
    let by = "-ERR BY option of SORT denied in Cluster mode when keys formed by the pattern may be in different slots.";
    let get = "-ERR GET option of SORT denied in Cluster mode when keys formed by the pattern may be in different slots.";
    h.script(&[
        ("RPUSH {t}l 1 2", ":2"),
        ("MSET {t}w1 5 {t}w2 4", "+OK"),
        ("SORT {t}l BY {t}w*", "*2 $1 2 $1 1"),
        ("SORT {t}l BY {t}w* GET {t}w*", "*2 $1 4 $1 5"),
        ("SORT {t}l BY nosort", "*2 $1 1 $1 2"),
        ("SORT {t}l BY w*", by),
        ("SORT {t}l BY {u}w*", by),
        ("SORT {t}l BY w*{t}", by),
        ("SORT {t}l BY {}{t}w*", by),
        ("SORT {t}l BY \\{t}w*", by),
        ("SORT {t}l GET w*", get),
        ("SORT {t}l GET #", get),
    ]);
}
