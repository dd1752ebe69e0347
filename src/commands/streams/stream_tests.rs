//! Tests of all stream commands.

use crate::commands::keyspace_events::Listener;
use crate::engine::harness::Harness;
use crate::engine::session::Peer;

const WRONG_TYPE: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value";

#[test]
fn entries_are_added_with_growing_ids() {
    let mut h = Harness::new();
    h.script(&[
        ("XADD s 1-1 a 1", "$3 1-1"),
        ("XADD s 1-* a 2 b 3", "$3 1-2"),
        ("XADD s 2-* a 4", "$3 2-0"),
        ("XADD s 3 a 5", "$3 3-0"),
        ("XADD s 3-0 a 5", "-ERR The ID specified in XADD is equal or smaller than the target stream top item"),
        ("XADD s 0-0 a 5", "-ERR The ID specified in XADD must be greater than 0-0"),
        ("XADD new 0-* a 5", "$3 0-1"),
        ("XADD s x a 5", "-ERR Invalid stream ID specified as stream command argument"),
        ("XADD s - a 5", "-ERR Invalid stream ID specified as stream command argument"),
        ("XADD s * a", "-ERR wrong number of arguments for 'xadd' command"),
        ("XADD none NOMKSTREAM * a 1", "$-1"),
        ("EXISTS none", ":0"),
        ("XLEN s", ":4"),
        ("XLEN none", ":0"),
        ("TYPE s", "+stream"),
        ("OBJECT ENCODING s", "$6 stream"),
        (
            "XRANGE s - +",
            "*4 *2 $3 1-1 *2 $1 a $1 1 *2 $3 1-2 *4 $1 a $1 2 $1 b $1 3 *2 $3 2-0 *2 $1 a $1 4 *2 $3 3-0 *2 $1 a $1 5",
        ),
        ("XRANGE s 1-2 2", "*2 *2 $3 1-2 *4 $1 a $1 2 $1 b $1 3 *2 $3 2-0 *2 $1 a $1 4"),
        ("XRANGE s (1-1 + COUNT 1", "*1 *2 $3 1-2 *4 $1 a $1 2 $1 b $1 3"),
        ("XREVRANGE s + 3 COUNT 5", "*1 *2 $3 3-0 *2 $1 a $1 5"),
        ("XRANGE s - + COUNT 0", "*-1"),
        ("XRANGE s (18446744073709551615-18446744073709551615 +", "-ERR invalid start ID for the interval"),
        ("XREVRANGE s (0-0 -", "-ERR invalid end ID for the interval"),
        ("XDEL s 1-2 9-9", ":1"),
        ("XDEL s 1-1 2-0 3-0", ":3"),
        ("XLEN s", ":0"),
        ("EXISTS s", ":1"),
        ("XADD s 18446744073709551615-18446744073709551615 a 1", "$41 18446744073709551615-18446744073709551615"),
        ("XADD s * a 1", "-ERR The stream has exhausted the last possible ID, unable to add more items"),
        ("SET k v", "+OK"),
        ("XADD k * a 1", WRONG_TYPE),
        ("XLEN k", WRONG_TYPE),
        ("XREAD STREAMS k 0", WRONG_TYPE),
    ]);
    // The clock determines the id, unless the last id is in the future.
    h.script(&[("XADD t * a 1", "$15 1700001000000-0"), ("XADD t * a 1", "$15 1700001000000-1")]);
    h.pass(5);
    h.script(&[("XADD t * a 1", "$15 1700001000005-0"), ("XADD t 1800000000000-3 a 1", "$15 1800000000000-3")]);
    h.script(&[("XADD t * a 1", "$15 1800000000000-4")]);
}

#[test]
fn streams_are_trimmed_exactly_or_by_whole_blocks() {
    let mut h = Harness::new();
    h.run("CONFIG SET stream-node-max-entries 10");
    for n in 1..=100 {
        h.run(&format!("XADD s {n}-0 f v"));
    }
    h.script(&[
        ("XTRIM s MAXLEN ~ 95", ":0"),
        ("XTRIM s MAXLEN ~ 85", ":10"),
        ("XTRIM s MAXLEN = 85", ":5"),
        ("XTRIM s MINID ~ 27", ":5"),
        ("XTRIM s MINID 27", ":6"),
        ("XTRIM s MAXLEN ~ 0 LIMIT 25", ":24"),
        ("XLEN s", ":50"),
        ("XADD s MAXLEN 3 101-0 f v", "$5 101-0"),
        ("XRANGE s - + COUNT 1", "*1 *2 $4 99-0 *2 $1 f $1 v"),
        ("XTRIM s MAXLEN 3 LIMIT 1", "-ERR syntax error, LIMIT cannot be used without the special ~ option"),
        ("XTRIM s LIMIT 1", "-ERR syntax error, LIMIT cannot be used without specifying a trimming strategy"),
        ("XTRIM s LIMIT 0 x", "-ERR syntax error"),
        ("XTRIM s MAXLEN 1 MINID 1", "-ERR syntax error, MAXLEN and MINID options at the same time are not compatible"),
        ("XTRIM s MAXLEN -1", "-ERR The MAXLEN argument must be >= 0."),
        ("XTRIM s MAXLEN 0", ":3"),
        ("XINFO STREAM s", "*20 $6 length :0 $15 radix-tree-keys :0 $16 radix-tree-nodes :1 $17 last-generated-id $5 101-0 $20 max-deleted-entry-id $3 0-0 $13 entries-added :101 $23 recorded-first-entry-id $3 0-0 $6 groups :0 $11 first-entry $-1 $10 last-entry $-1"),
        ("XSETID s 100", "+OK"),
        ("XSETID s 200-1 ENTRIESADDED 7 MAXDELETEDID 150", "+OK"),
        ("XSETID s 149", "-ERR The ID specified in XSETID is smaller than current max_deleted_entry_id"),
        ("XSETID s 100 MAXDELETEDID 101", "-ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id"),
        ("XSETID none 1", "-ERR no such key"),
    ]);
}

#[test]
fn groups_deliver_each_entry_once_and_remember_who_has_it() {
    let mut h = Harness::new();
    h.script(&[
        ("XGROUP CREATE s g $", "-ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the MKSTREAM option to create an empty stream automatically."),
        ("XGROUP CREATE s g $ MKSTREAM", "+OK"),
        ("XGROUP CREATE s g 0", "-BUSYGROUP Consumer Group name already exists"),
        ("XREADGROUP GROUP g a STREAMS s >", "*-1"),
        ("XADD s 1-0 f 1", "$3 1-0"),
        ("XADD s 2-0 f 2", "$3 2-0"),
        ("XADD s 3-0 f 3", "$3 3-0"),
        ("XREADGROUP GROUP g a COUNT 2 STREAMS s >", "*1 *2 $1 s *2 *2 $3 1-0 *2 $1 f $1 1 *2 $3 2-0 *2 $1 f $1 2"),
        ("XREADGROUP GROUP g b STREAMS s >", "*1 *2 $1 s *1 *2 $3 3-0 *2 $1 f $1 3"),
        ("XREADGROUP GROUP g b STREAMS s >", "*-1"),
        ("XREADGROUP GROUP g a STREAMS s 0", "*1 *2 $1 s *2 *2 $3 1-0 *2 $1 f $1 1 *2 $3 2-0 *2 $1 f $1 2"),
        ("XPENDING s g", "*4 :3 $3 1-0 $3 3-0 *2 *2 $1 a $1 2 *2 $1 b $1 1"),
        ("XPENDING s g - + 10 b", "*1 *4 $3 3-0 $1 b :0 :1"),
        ("XACK s g 1-0 9-9", ":1"),
        ("XDEL s 2-0", ":1"),
        ("XREADGROUP GROUP g a STREAMS s 0", "*1 *2 $1 s *1 *2 $3 2-0 *-1"),
    ]);
    h.pass(100);
    h.script(&[
        ("XPENDING s g IDLE 100 - + 10", "*2 *4 $3 2-0 $1 a :100 :2 *4 $3 3-0 $1 b :100 :1"),
        ("XPENDING s g IDLE 101 - + 10", "*0"),
        ("XCLAIM s g c 200 3-0", "*0"),
        ("XCLAIM s g c 100 3-0 JUSTID", "*1 $3 3-0"),
        ("XPENDING s g - + 10 c", "*1 *4 $3 3-0 $1 c :0 :1"),
        ("XCLAIM s g c 0 3-0 IDLE 50 RETRYCOUNT 7", "*1 *2 $3 3-0 *2 $1 f $1 3"),
        ("XPENDING s g - + 10 c", "*1 *4 $3 3-0 $1 c :50 :7"),
        ("XCLAIM s g c 0 1-0 FORCE", "*1 *2 $3 1-0 *2 $1 f $1 1"),
        ("XAUTOCLAIM s g d 0 0 COUNT 2", "*3 $3 3-0 *1 *2 $3 1-0 *2 $1 f $1 1 *1 $3 2-0"),
        ("XAUTOCLAIM s g d 0 3-0 JUSTID", "*3 $3 0-0 *1 $3 3-0 *0"),
        ("XINFO GROUPS s", "*1 *12 $4 name $1 g $9 consumers :4 $7 pending :2 $17 last-delivered-id $3 3-0 $12 entries-read :3 $3 lag :0"),
        ("XINFO CONSUMERS s g", "*4 *8 $4 name $1 a $7 pending :0 $4 idle :100 $8 inactive :100 *8 $4 name $1 b $7 pending :0 $4 idle :100 $8 inactive :100 *8 $4 name $1 c $7 pending :0 $4 idle :0 $8 inactive :0 *8 $4 name $1 d $7 pending :2 $4 idle :0 $8 inactive :0"),
        ("XGROUP CREATECONSUMER s g a", ":0"),
        ("XGROUP CREATECONSUMER s g e", ":1"),
        ("XGROUP DELCONSUMER s g d", ":2"),
        ("XGROUP DELCONSUMER s g d", ":0"),
        ("XPENDING s g", "*4 :0 $-1 $-1 *-1"),
        ("XGROUP SETID s g 0 ENTRIESREAD -2", "-ERR value for ENTRIESREAD must be positive or -1"),
        ("XGROUP SETID s g 0", "+OK"),
        ("XREADGROUP GROUP g a NOACK STREAMS s >", "*1 *2 $1 s *2 *2 $3 1-0 *2 $1 f $1 1 *2 $3 3-0 *2 $1 f $1 3"),
        ("XPENDING s g - + 1", "*0"),
        ("XGROUP DESTROY s g", ":1"),
        ("XGROUP DESTROY s g", ":0"),
        ("XREADGROUP GROUP g a STREAMS s >", "-NOGROUP No such key 's' or consumer group 'g' in XREADGROUP with GROUP option"),
        ("XPENDING s g", "-NOGROUP No such key 's' or consumer group 'g'"),
        ("XCLAIM s g c 0 1-0", "-NOGROUP No such key 's' or consumer group 'g'"),
        ("XGROUP DELCONSUMER s g c", "-NOGROUP No such consumer group 'g' for key name 's'"),
        ("XINFO CONSUMERS s g", "-NOGROUP No such consumer group 'g' for key name 's'"),
        ("XACK s g 1-0", ":0"),
        ("XINFO STREAM none", "-ERR no such key"),
    ]);
}

#[test]
fn reads_of_several_streams_in_both_protocols() {
    let mut h = Harness::new();
    h.script(&[
        ("XADD a 1-0 f 1", "$3 1-0"),
        ("XADD a 2-0 f 2", "$3 2-0"),
        ("XADD b 5-0 f 5", "$3 5-0"),
        (
            "XREAD STREAMS a b none 0 0 0",
            "*2 *2 $1 a *2 *2 $3 1-0 *2 $1 f $1 1 *2 $3 2-0 *2 $1 f $1 2 *2 $1 b *1 *2 $3 5-0 *2 $1 f $1 5",
        ),
        ("XREAD COUNT 1 STREAMS a 1", "*1 *2 $1 a *1 *2 $3 2-0 *2 $1 f $1 2"),
        ("XREAD STREAMS a $", "*-1"),
        ("XREAD STREAMS a +", "*1 *2 $1 a *1 *2 $3 2-0 *2 $1 f $1 2"),
        ("XDEL a 2-0", ":1"),
        ("XREAD STREAMS a +", "*1 *2 $1 a *1 *2 $3 1-0 *2 $1 f $1 1"),
        (
            "XREAD STREAMS a b 0",
            "-ERR Unbalanced 'xread' list of streams: for each stream key an ID, '+', or '$' must be specified.",
        ),
        (
            "XREAD STREAMS a >",
            "-ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> option.",
        ),
        ("XREAD NOACK STREAMS a 0", "-ERR The NOACK option is only supported by XREADGROUP. You called XREAD instead."),
        ("XREAD COUNT 1 a 0", "-ERR syntax error"),
        ("XREADGROUP COUNT 1 NOACK STREAMS a b 0 0", "-ERR Missing GROUP option for XREADGROUP"),
    ]);
    h.run("HELLO 3");
    h.script(&[("XREAD STREAMS a b 0 9", "%1 $1 a *1 *2 $3 1-0 *2 $1 f $1 1"), ("XREAD STREAMS a 9", "_")]);
}

#[test]
fn events_come_in_redis_s_order() {
    let mut h = Harness::new();
    let listener = Listener::new(&mut h, "An");
    for (request, events) in [
        ("XADD s MAXLEN 1 1-0 f v", &["s new", "s xadd"][..]),
        ("XADD s MAXLEN 1 2-0 f v", &["s xadd", "s xtrim"]),
        ("XADD s 3-0 f v", &["s xadd"]),
        ("XTRIM s MAXLEN 1", &["s xtrim"]),
        ("XSETID s 9-0", &["s xsetid"]),
        ("XGROUP CREATE s g 0", &["s xgroup-create"]),
        ("XREADGROUP GROUP g a STREAMS s >", &["s xgroup-createconsumer"]),
        ("XACK s g 3-0", &[]),
        ("XGROUP SETID s g $", &["s xgroup-setid"]),
        ("XGROUP DELCONSUMER s g a", &["s xgroup-delconsumer"]),
        ("XGROUP DESTROY s g", &["s xgroup-destroy"]),
        ("XDEL s 3-0", &["s xdel"]),
        ("XGROUP CREATE t g 0 MKSTREAM", &["t new", "t xgroup-create"]),
    ] {
        assert_eq!(listener.events_of(&mut h, request), events, "{request}");
    }
}

#[test]
fn a_large_stream_and_its_groups_are_freed_in_pieces() {
    let mut h = Harness::new();
    h.run("XGROUP CREATE s g 0 MKSTREAM");
    for _ in 0..3000 {
        h.args(&[b"XADD", b"s", b"*", b"field", b"value"]);
    }
    h.args(&[b"XREADGROUP", b"GROUP", b"g", b"c", b"STREAMS", b"s", b">"]);
    let used: usize = h.run("MEMORY USAGE s")[1..].parse().expect("a number");
    assert!((3000 * 10..3000 * 150).contains(&used), "{used} bytes");
    h.run("COPY s t");
    assert_eq!(h.run("XPENDING t g - + 1"), "*1 *4 $15 1700001000000-0 $1 c :0 :1");
    h.run("XGROUP DESTROY t g");
    assert!(h.engine.keyspace().has_unfreed());
    h.pass(0);
    h.run("DEL s");
    assert!(h.engine.keyspace().has_unfreed());
    h.pass(0);
    assert!(!h.engine.keyspace().has_unfreed());
}

/// A harness and additional sessions.
fn crowd<const N: usize>() -> (Harness, [crate::base::ids::SessionId; N]) {
    let mut h = Harness::new();
    let sessions = [0; N].map(|_| h.engine.connect(h.now, Peer::default()));
    (h, sessions)
}

/// The output of a session since the last call, with line ends replaced by blanks.
fn said(h: &mut Harness, id: crate::base::ids::SessionId) -> String {
    let out = std::mem::take(&mut h.engine.sessions_mut()[id].out);
    String::from_utf8_lossy(&out).trim_end().replace("\r\n", " ")
}

fn ask(h: &mut Harness, id: crate::base::ids::SessionId, words: &str) {
    let args: Vec<&[u8]> = words.split_whitespace().map(str::as_bytes).collect();
    h.engine.execute(h.now, id, &args);
    h.engine.check_invariants();
}

#[test]
fn readers_wait_for_what_comes_and_no_longer_than_they_say() {
    let (mut h, [a, b, c]) = crowd();
    h.run("XADD s 1-0 f 1");
    ask(&mut h, a, "XREAD BLOCK 0 STREAMS s none $ 0");
    ask(&mut h, b, "XREAD BLOCK 100 COUNT 1 STREAMS s $");
    ask(&mut h, c, "XREAD BLOCK 50 STREAMS none $");
    assert_eq!([said(&mut h, a), said(&mut h, b), said(&mut h, c)], ["", "", ""]);
    h.pass(50);
    assert_eq!([said(&mut h, a), said(&mut h, b), said(&mut h, c)], ["", "", "*-1"]);
    // Deleting entries and setting the last id back wake no reader.
    h.script(&[("XDEL s 1-0", ":1"), ("XSETID s 5-0", "+OK")]);
    assert_eq!([said(&mut h, a), said(&mut h, b)], ["", ""]);
    h.run("XADD s 7-0 f 7");
    let reply = "*1 *2 $1 s *1 *2 $3 7-0 *2 $1 f $1 7";
    assert_eq!([said(&mut h, a), said(&mut h, b)], [reply, reply]);
    h.script(&[
        ("XREAD BLOCK x STREAMS s $", "-ERR timeout is not an integer or out of range"),
        ("XREAD BLOCK -1 STREAMS s $", "-ERR timeout is negative"),
        ("XREAD BLOCK 9223372036854775807 STREAMS s $", "-ERR timeout is out of range"),
        ("MULTI", "+OK"),
        ("XREAD BLOCK 0 STREAMS s $", "+QUEUED"),
        ("EXEC", "*1 *-1"),
    ]);
    ask(&mut h, a, "XREAD BLOCK 0 STREAMS s $");
    h.script(&[("MULTI", "+OK"), ("XADD s 8-0 f 8", "+QUEUED"), ("XADD s 9-0 f 9", "+QUEUED"), ("EXEC", "*2 $3 8-0 $3 9-0")]);
    assert_eq!(said(&mut h, a), "*1 *2 $1 s *2 *2 $3 8-0 *2 $1 f $1 8 *2 $3 9-0 *2 $1 f $1 9");
}

#[test]
fn consumers_of_a_group_wait_in_turn_and_hear_when_it_goes() {
    let (mut h, [a, b, c]) = crowd();
    h.run("XGROUP CREATE s g $ MKSTREAM");
    for (id, name) in [(a, "a"), (b, "b"), (c, "c")] {
        ask(&mut h, id, &format!("XREADGROUP GROUP g {name} BLOCK 0 STREAMS s >"));
    }
    let entry = |n: u32| format!("*1 *2 $1 s *1 *2 $3 {n}-0 *2 $1 f $1 {n}");
    h.run("XADD s 1-0 f 1");
    assert_eq!([said(&mut h, a), said(&mut h, b), said(&mut h, c)], [entry(1), String::new(), String::new()]);
    h.script(&[("XACK s g 1-0", ":1"), ("XADD s 2-0 f 2", "$3 2-0")]);
    assert_eq!([said(&mut h, b), said(&mut h, c)], [entry(2), String::new()]);
    ask(&mut h, a, "XREADGROUP GROUP g a BLOCK 0 STREAMS s >");
    h.run("XGROUP DESTROY s g");
    let gone = "-NOGROUP No such key 's' or consumer group 'g' in XREADGROUP with GROUP option";
    assert_eq!([said(&mut h, a), said(&mut h, c)], [gone, gone]);
    h.run("XGROUP CREATE s g $");
    ask(&mut h, a, "XREADGROUP GROUP g a BLOCK 0 STREAMS s >");
    h.run("DEL s");
    assert_eq!(said(&mut h, a), gone);
    h.run("XGROUP CREATE s g $ MKSTREAM");
    ask(&mut h, a, "XREADGROUP GROUP g a BLOCK 0 STREAMS s >");
    h.run("SET s v");
    assert_eq!(said(&mut h, a), WRONG_TYPE);
    h.run("FLUSHALL");
    h.run("XGROUP CREATE s g $ MKSTREAM");
    ask(&mut h, a, "XREADGROUP GROUP g a BLOCK 0 STREAMS s >");
    h.run("FLUSHALL");
    assert_eq!(said(&mut h, a), gone);
}

#[test]
fn a_reader_of_several_streams_hears_that_one_is_none_when_a_group_of_another_goes() {
    let (mut h, [a, b]) = crowd();
    h.run("XADD s 1-0 f 1");
    h.run("XGROUP CREATE t g $ MKSTREAM");
    ask(&mut h, a, "XREAD BLOCK 0 STREAMS s t $ $");
    ask(&mut h, b, "XREAD BLOCK 0 STREAMS t $");
    h.run("SET s v");
    assert_eq!(said(&mut h, a), "");
    h.run("XGROUP DESTROY t g");
    assert_eq!([said(&mut h, a), said(&mut h, b)], [WRONG_TYPE, ""]);
    h.run("XADD t 1-0 f 1");
    assert_eq!(said(&mut h, b), "*1 *2 $1 t *1 *2 $3 1-0 *2 $1 f $1 1");
}

#[test]
fn a_stream_that_is_named_twice_gives_a_group_the_second_time_what_is_left() {
    let mut h = Harness::new();
    let entry = |id: &str| format!("*2 $3 {id} *2 $1 f $1 v");
    h.script(&[
        ("XGROUP CREATE s g 0 MKSTREAM", "+OK"),
        ("XADD s 1-1 f v", "$3 1-1"),
        ("XREADGROUP GROUP g c STREAMS s s > >", &format!("*1 *2 $1 s *1 {}", entry("1-1"))),
        ("XADD s 1-2 f v", "$3 1-2"),
        ("XADD s 1-3 f v", "$3 1-3"),
        ("XADD s 1-4 f v", "$3 1-4"),
        ("XREADGROUP GROUP g c COUNT 1 STREAMS s s > >", &format!("*2 *2 $1 s *1 {} *2 $1 s *1 {}", entry("1-2"), entry("1-3"))),
        ("XREADGROUP GROUP g c COUNT 1 STREAMS s s > >", &format!("*1 *2 $1 s *1 {}", entry("1-4"))),
        ("XREADGROUP GROUP g c STREAMS s s > >", "*-1"),
    ]);
}
