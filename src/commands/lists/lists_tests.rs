use crate::commands::keyspace_events::Listener;
use crate::engine::harness::Harness;

const WRONG_TYPE: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value";

#[test]
fn elements_go_in_and_come_out_at_both_ends() {
    let mut h = Harness::new();
    h.script(&[
        ("RPUSH k b c", ":2"),
        ("LPUSH k a 7", ":4"),
        ("LRANGE k 0 -1", "*4 $1 7 $1 a $1 b $1 c"),
        ("LPUSHX k x", ":5"),
        ("RPUSHX none x", ":0"),
        ("EXISTS none", ":0"),
        ("LLEN k", ":5"),
        ("LPOP k", "$1 x"),
        ("RPOP k 2", "*2 $1 c $1 b"),
        ("LPOP k 100", "*2 $1 7 $1 a"),
        ("EXISTS k", ":0"),
        ("LPOP k", "$-1"),
        ("LPOP k 0", "*-1"),
        ("LLEN k", ":0"),
        ("RPUSH k a", ":1"),
        ("LPOP k 0", "*0"),
        ("LPOP k -1", "-ERR value is out of range, must be positive"),
        ("LPOP k x", "-ERR value is out of range, must be positive"),
        ("LPOP k 9223372036854775807", "*1 $1 a"),
        ("LPOP k 1 2", "-ERR wrong number of arguments for 'lpop' command"),
        ("HELLO 3", h3().as_str()),
        ("LPOP k 1", "_"),
        ("LMPOP 1 k LEFT", "_"),
        ("LPOS k a", "_"),
    ]);
}

/// The reply to `HELLO 3`.
fn h3() -> String {
    let mut h = Harness::new();
    h.run("HELLO 3")
}

#[test]
fn indexes_count_from_both_ends() {
    let mut h = Harness::new();
    h.script(&[
        ("RPUSH k a b c d e", ":5"),
        ("LINDEX k 0", "$1 a"),
        ("LINDEX k -1", "$1 e"),
        ("LINDEX k 5", "$-1"),
        ("LINDEX k -9223372036854775808", "$-1"),
        ("LINDEX k x", "-ERR value is not an integer or out of range"),
        ("LRANGE k -2 100", "*2 $1 d $1 e"),
        ("LRANGE k 3 1", "*0"),
        ("LRANGE k -9223372036854775808 9223372036854775807", "*5 $1 a $1 b $1 c $1 d $1 e"),
        ("LSET k -2 x", "+OK"),
        ("LSET k 5 x", "-ERR index out of range"),
        ("LSET k -6 x", "-ERR index out of range"),
        ("LSET none 0 x", "-ERR no such key"),
        ("LTRIM k 1 -2", "+OK"),
        ("LRANGE k 0 -1", "*3 $1 b $1 c $1 x"),
        ("LTRIM k 5 1", "+OK"),
        ("EXISTS k", ":0"),
        ("LTRIM k 0 0", "+OK"),
    ]);
}

#[test]
fn elements_are_found_put_in_and_removed_by_what_they_are() {
    let mut h = Harness::new();
    h.script(&[
        ("RPUSH k a b c 1 2 3 c c", ":8"),
        ("LPOS k c", ":2"),
        ("LPOS k c RANK 2", ":6"),
        ("LPOS k c RANK -1", ":7"),
        ("LPOS k c COUNT 2", "*2 :2 :6"),
        ("LPOS k c RANK -1 COUNT 2", "*2 :7 :6"),
        ("LPOS k c COUNT 0 MAXLEN 7", "*2 :2 :6"),
        ("LPOS k x", "$-1"),
        ("LPOS k x COUNT 0", "*0"),
        ("LPOS k c RANK 0", "-ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... or use negative to start from the end of the list"),
        ("LPOS k c RANK -9223372036854775808", "-ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807"),
        ("LPOS k c COUNT -1", "-ERR COUNT can't be negative"),
        ("LPOS k c MAXLEN -1", "-ERR MAXLEN can't be negative"),
        ("LPOS k c MAXLEN", "-ERR syntax error"),
        ("LINSERT k BEFORE 1 x", ":9"),
        ("LINSERT k after c y", ":10"),
        ("LINSERT k AFTER none y", ":-1"),
        ("LINSERT none AFTER c y", ":0"),
        ("LINSERT k BESIDE c y", "-ERR syntax error"),
        ("LRANGE k 0 -1", "*10 $1 a $1 b $1 c $1 y $1 x $1 1 $1 2 $1 3 $1 c $1 c"),
        ("LREM k -2 c", ":2"),
        ("LREM k 1 c", ":1"),
        ("LREM k 0 none", ":0"),
        ("LREM none 0 c", ":0"),
        ("LRANGE k 0 -1", "*7 $1 a $1 b $1 y $1 x $1 1 $1 2 $1 3"),
    ]);
}

#[test]
fn elements_move_from_list_to_list() {
    let mut h = Harness::new();
    h.script(&[
        ("RPUSH a 1 2 3", ":3"),
        ("LMOVE a b LEFT RIGHT", "$1 1"),
        ("RPOPLPUSH a b", "$1 3"),
        ("LRANGE b 0 -1", "*2 $1 3 $1 1"),
        ("LMOVE a a RIGHT LEFT", "$1 2"),
        ("PEXPIRE a 5000", ":1"),
        ("LMOVE a a LEFT LEFT", "$1 2"),
        ("PTTL a", ":5000"),
        ("LMOVE a b left right", "$1 2"),
        ("EXISTS a", ":0"),
        ("LMOVE a b LEFT RIGHT", "$-1"),
        ("LMOVE a b LEFT UP", "-ERR syntax error"),
        ("LMPOP 2 a b RIGHT COUNT 2", "*2 $1 b *2 $1 2 $1 1"),
        ("LMPOP 2 a b LEFT", "*2 $1 b *1 $1 3"),
        ("LMPOP 2 a b LEFT", "*-1"),
        ("LMPOP 0 a LEFT", "-ERR numkeys should be greater than 0"),
        ("LMPOP 2 a LEFT", "-ERR syntax error"),
        ("LMPOP 9223372036854775807 a LEFT", "-ERR syntax error"),
        ("LMPOP 1 a LEFT COUNT 0", "-ERR count should be greater than 0"),
        ("LMPOP 1 a LEFT COUNT 1 COUNT 1", "-ERR syntax error"),
    ]);
}

#[test]
fn other_types_are_refused_and_nothing_changes() {
    let mut h = Harness::new();
    h.script(&[
        ("SET s v", "+OK"),
        ("RPUSH l a b", ":2"),
        ("GET l", WRONG_TYPE),
        ("HGET l f", WRONG_TYPE),
        ("APPEND l x", WRONG_TYPE),
    ]);
    for request in [
        "LPUSH s a",
        "RPUSHX s a",
        "LPOP s",
        "RPOP s 1",
        "LLEN s",
        "LINDEX s 0",
        "LSET s 0 a",
        "LINSERT s BEFORE a b",
        "LRANGE s 0 -1",
        "LREM s 0 a",
        "LTRIM s 0 -1",
        "LPOS s a",
        "LMOVE s l LEFT LEFT",
        "LMOVE l s LEFT LEFT",
        "RPOPLPUSH l s",
        "LMPOP 2 none s LEFT",
    ] {
        assert_eq!(h.run(request), WRONG_TYPE, "{request}");
    }
    h.script(&[("LRANGE l 0 -1", "*2 $1 a $1 b"), ("GET s", "$1 v"), ("TYPE l", "+list"), ("DBSIZE", ":2")]);
}

#[test]
fn lists_are_keys_like_others() {
    let mut h = Harness::new();
    h.script(&[
        ("RPUSH k a 1 b", ":3"),
        ("COPY k copy", ":1"),
        ("LSET k 0 x", "+OK"),
        ("LRANGE copy 0 -1", "*3 $1 a $1 1 $1 b"),
        ("RENAME copy other", "+OK"),
        ("MOVE other 3", ":1"),
        ("SELECT 3", "+OK"),
        ("LLEN other", ":3"),
        ("SCAN 0 TYPE list", "*2 $1 0 *1 $5 other"),
        ("SCAN 0 TYPE hash", "*2 $1 0 *0"),
        ("MEMORY USAGE other", ":81"),
        ("SET other v", "+OK"),
        ("TYPE other", "+string"),
    ]);
}

#[test]
fn encodings_follow_the_size() {
    let mut h = Harness::new();
    let element = "e".repeat(100);
    for n in 1..=79 {
        h.run(&format!("RPUSH k {element}"));
        assert_eq!(h.run("OBJECT ENCODING k"), "$8 listpack", "{n}");
    }
    // 7 + 79 * 103 + 100 are more than 8,192 bytes.
    h.script(&[
        (&format!("RPUSH k {element}"), ":80"),
        ("OBJECT ENCODING k", "$9 quicklist"),
        ("LTRIM k 0 39", "+OK"),
        ("OBJECT ENCODING k", "$9 quicklist"),
        ("RPOP k", &format!("$100 {element}")),
        ("OBJECT ENCODING k", "$8 listpack"),
        ("CONFIG SET list-max-listpack-size 4", "+OK"),
        ("RPUSH few 1 2 3 4", ":4"),
        ("OBJECT ENCODING few", "$8 listpack"),
        ("LSET few 9 x", "-ERR index out of range"),
        ("OBJECT ENCODING few", "$9 quicklist"),
        ("RPOP few", "$1 4"),
        ("OBJECT ENCODING few", "$9 quicklist"),
        ("RPOP few", "$1 3"),
        ("OBJECT ENCODING few", "$8 listpack"),
    ]);
}

#[test]
fn events_come_in_redis_s_order() {
    let mut h = Harness::new();
    let listener = Listener::new(&mut h, "An");
    for (requests, events) in [
        (&["LPUSH a 1 2"][..], &["a new", "a lpush"][..]),
        (&["RPUSH a 1", "LPOP a"], &["a lpop", "a del"]),
        (&["RPUSH a 1 2", "RPOP a 1"], &["a rpop"]),
        (&["RPUSH a 1", "RPOP a 0"], &[]),
        (&["RPUSH a 1", "LMOVE a b RIGHT LEFT"], &["b new", "b lpush", "a rpop", "a del"]),
        (&["RPUSH a 1", "LMOVE a a LEFT RIGHT"], &["a rpush", "a lpop"]),
        (&["RPUSH a 1 1", "LREM a 0 1"], &["a lrem", "a del"]),
        (&["RPUSH a 1", "LREM a 0 2"], &[]),
        (&["RPUSH a 1", "LTRIM a 0 -1"], &["a ltrim"]),
        (&["RPUSH a 1", "LTRIM a 5 6"], &["a ltrim", "a del"]),
        (&["RPUSH a 1", "LSET a 0 2"], &["a lset"]),
        (&["RPUSH a 1", "LINSERT a BEFORE 1 0"], &["a linsert"]),
        (&["RPUSH b 1", "LMPOP 2 a b LEFT"], &["b lpop", "b del"]),
    ] {
        listener.check(&mut h, requests, events);
    }
}

#[test]
fn what_was_trimmed_is_freed_later_and_in_pieces() {
    let mut h = Harness::new();
    let element = vec![b'x'; 4000];
    let mut args: Vec<&[u8]> = vec![b"RPUSH", b"k"];
    args.resize(20_002, &element);
    h.args(&args);
    assert_eq!(h.run("LTRIM k 0 9"), "+OK");
    assert!(h.engine.keyspace().has_unfreed());
    h.pass(0);
    assert!(!h.engine.keyspace().has_unfreed());
    assert_eq!(h.run("LLEN k"), ":10");
}
