//! Lists, sorting and bitmaps over TCP, with both protocols, here and on redis-server.

use crate::common::scenes::{play, play_as_newer, play_here};

#[test]
fn a_queue_with_a_list_of_what_is_being_done_loses_nothing() {
    play(
        "A: RPUSH jobs 1 2 3 => :3
         B: LMOVE jobs doing:b LEFT RIGHT => $1 1
         C: LMOVE jobs doing:c LEFT RIGHT => $1 2
         # B has done its job. C has died, and its job goes back to the queue.
         B: LREM doing:b 1 1 => :1
         B: EXISTS doing:b => :0
         A: LMOVE doing:c jobs RIGHT LEFT => $1 2
         A: LRANGE jobs 0 -1 => *2 $1 2 $1 3
         B: LMOVE jobs doing:b LEFT RIGHT => $1 2
         B: RPOPLPUSH jobs doing:b => $1 3
         B: LMOVE jobs doing:b LEFT RIGHT => $-1
         B: LRANGE doing:b 0 -1 => *2 $1 3 $1 2
         B: RPOPLPUSH doing:b doing:b => $1 2
         B: LRANGE doing:b 0 -1 => *2 $1 2 $1 3",
    );
}

#[test]
fn nothing_is_told_apart_by_the_protocol() {
    play(
        "A: HELLO 3 => %7*
         A: LPOP none => _
         A: LPOP none 1 => _
         A: LPOP none 0 => _
         B: LPOP none => $-1
         B: LPOP none 1 => *-1
         B: LPOP none 0 => *-1
         A: LMPOP 1 none LEFT => _
         B: LMPOP 1 none LEFT => *-1
         A: LINDEX none 0 => _
         A: LRANGE none 0 -1 => *0
         A: LPOS none x => _
         A: LPOS none x COUNT 0 => *0
         A: LMOVE none other LEFT LEFT => _
         A: SORT none => *0
         A: RPUSH l b a => :2
         A: LMPOP 2 none l RIGHT COUNT 5 => *2 $1 l *2 $1 a $1 b
         A: RPUSH l b a => :2
         A: SORT l ALPHA GET # GET no:* => *4 $1 a _ $1 b _
         B: SORT l ALPHA GET # GET no:* => *4 $1 a $-1 $1 b $-1
         A: BITFIELD bits OVERFLOW FAIL SET u1 0 2 GET u1 0 => *2 _ :0
         B: BITFIELD bits OVERFLOW FAIL SET u1 0 2 GET u1 0 => *2 $-1 :0",
    );
}

#[test]
fn a_list_keeps_its_deadline_while_it_changes_and_loses_it_with_its_last_element() {
    play(
        "A: RPUSH l a b c => :3
         A: EXPIREAT l 9999999999 => :1
         A: LSET l 0 x => +OK
         A: LINSERT l AFTER x y => :4
         A: LREM l 1 x => :1
         A: LTRIM l 0 1 => +OK
         A: LMOVE l l LEFT RIGHT => $1 y
         A: RPOP l => $1 y
         A: LMOVE l l LEFT RIGHT => $1 b
         A: EXPIRETIME l => :9999999999
         A: LMOVE l other LEFT RIGHT => $1 b
         A: TTL other => :-1
         A: RPUSH l z => :1
         A: TTL l => :-1
         A: PEXPIRE l 20 => :1
         pass 40
         A: LLEN l => :0
         A: LPUSHX l a => :0
         A: LPUSH l a => :1
         A: TTL l => :-1",
    );
}

#[test]
fn whoever_watches_a_list_is_told_of_every_change_and_of_nothing_else() {
    let mut scene = String::new();
    for (request, reply, changes) in [
        ("RPUSH l x", ":3", true),
        ("LPUSHX l x", ":3", true),
        ("LPOP l", "$1 a", true),
        ("RPOP l 2", "*2 $1 b $1 a", true),
        ("LSET l 0 x", "+OK", true),
        ("LREM l 0 a", ":1", true),
        ("LTRIM l 0 0", "+OK", true),
        ("LMOVE l m LEFT LEFT", "$1 a", true),
        ("LMOVE m l LEFT LEFT", "$1 1", true),
        ("LINSERT l AFTER a x", ":3", true),
        ("LMPOP 1 l LEFT", "*2 $1 l *1 $1 a", true),
        ("SORT m STORE l", ":1", true),
        ("SORT none STORE l", ":0", true),
        ("LPOP l 0", "*0", false),
        ("LSET l 9 x", "-ERR index out of range", false),
        ("LREM l 0 none", ":0", false),
        ("LINSERT l AFTER none x", ":-1", false),
        ("LPUSHX none x", ":0", false),
        ("LRANGE l 0 -1", "*2 $1 a $1 b", false),
        ("SORT l ALPHA", "*2 $1 a $1 b", false),
    ] {
        let outcome = if changes { "*-1" } else { "*1 $-1" };
        scene.push_str(&format!(
            "A: FLUSHALL => +OK
             A: RPUSH l a b => :2
             A: RPUSH m 1 => :1
             A: WATCH l => +OK
             B: {request} => {reply}
             A: MULTI => +OK
             A: GET k => +QUEUED
             A: EXEC => {outcome}\n"
        ));
    }
    play(&scene);
}

#[test]
fn sorting_stores_and_reads_what_other_keys_hold() {
    play(
        "A: RPUSH ids 3 1 2 => :3
         A: MSET weight:1 30 weight:2 10 weight:3 20 => +OK
         A: HSET user:1 name ann => :1
         A: HSET user:2 name bob => :1
         A: SORT ids BY weight:* GET user:*->name GET # => *6 $3 bob $1 2 $-1 $1 3 $3 ann $1 1
         A: SORT ids DESC LIMIT 0 2 STORE top => :2
         A: LRANGE top 0 -1 => *2 $1 3 $1 2
         A: SORT ids BY user:*->name => -ERR One or more scores can't be converted into double
         A: SORT ids BY none STORE top => :3
         A: LRANGE top 0 -1 => *3 $1 3 $1 1 $1 2
         A: EVAL return\\sredis.call('sort','ids','limit',0,1) 0 => *1 $1 1
         A: EVAL_RO return\\sredis.call('sort','ids') 0 => -ERR Write commands are not allowed from read-only scripts. script: *
         A: EVAL_RO return\\sredis.call('sort_ro','ids') 0 => *3 $1 1 $1 2 $1 3",
    );
}

#[test]
fn bits_are_set_counted_and_combined() {
    play(
        "A: SETBIT online:mon 3 1 => :0
         A: SETBIT online:mon 1000 1 => :0
         A: SETBIT online:tue 3 1 => :0
         A: BITOP AND both online:mon online:tue => :126
         A: BITCOUNT both => :1
         A: BITPOS both 1 => :3
         A: BITOP NOT neither both => :126
         A: BITCOUNT neither => :1007
         A: BITCOUNT neither 0 0 BIT => :1
         A: BITPOS neither 0 => :3
         A: GETBIT neither 100000 => :0
         A: GET online:tue => $1 \u{10}
         A: BITFIELD counters INCRBY u8 #3 200 INCRBY u8 #3 100 OVERFLOW SAT INCRBY u8 #3 300 => *3 :200 :44 :255
         A: STRLEN counters => :4
         A: BITFIELD_RO counters GET i8 #3 => *1 :-1
         A: OBJECT ENCODING counters => $3 raw",
    );
}

#[test]
fn short_lists_are_one_buffer_and_long_ones_many() {
    play_as_newer(
        "A: CONFIG SET list-max-listpack-size 3 => +OK
         A: RPUSH l 1 2 3 => :3
         A: OBJECT ENCODING l => $8 listpack
         A: RPUSH l 4 => :4
         A: OBJECT ENCODING l => $9 quicklist
         A: LTRIM l 0 1 => +OK
         A: OBJECT ENCODING l => $9 quicklist
         A: RPOP l => $1 2
         A: OBJECT ENCODING l => $8 listpack
         A: COPY l m => :1
         A: LSET m 5 x => -ERR index out of range
         A: OBJECT ENCODING m => $8 listpack
         A: RPUSH l 2 3 => :3
         A: LINSERT l BEFORE none x => :-1
         A: OBJECT ENCODING l => $9 quicklist",
    );
}

#[test]
fn an_index_of_more_than_32_bits_is_beyond_every_list() {
    // Redis truncates the index to 32 bits and replaces another element.
    play_here(
        "A: RPUSH l a => :1
         A: LSET l 4294967296 x => -ERR index out of range
         A: LSET l -4294967297 x => -ERR index out of range
         A: LINDEX l 4294967296 => $-1",
    );
}
