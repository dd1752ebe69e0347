//! Keyspace events of every class and their order, here and on redis-server.

use crate::common::scenes::{play, play_as_newer};

/// A scene in which client A receives all events that B's requests cause. Each request comes with its events, `event key`.
fn scene(classes: &str, steps: &[(&str, &str, &[&str])]) -> String {
    let mut lines = format!(
        "B: CONFIG SET notify-keyspace-events {classes} => +OK\n\
         A: PSUBSCRIBE __keyevent@0__:* => *3 $10 psubscribe $16 __keyevent@0__:* :1\n"
    );
    for (request, reply, events) in steps {
        lines += &match *reply {
            "" => format!("B: {request} ...\nB <= *\n"),
            reply => format!("B: {request} => {reply}\n"),
        };
        for event in *events {
            let (name, key) = event.split_once(' ').expect("an event and its key");
            let channel = format!("__keyevent@0__:{name}");
            lines += &format!("A <= *4 $8 pmessage $16 __keyevent@0__:* ${} {channel} ${} {key}\n", channel.len(), key.len());
        }
    }
    lines + "B: CONFIG SET notify-keyspace-events K => +OK\n"
}

#[test]
fn lists_tell_what_happens_to_them() {
    play(&scene(
        "El",
        &[
            ("RPUSH l a b c", ":3", &["rpush l"]),
            ("LPUSH l z", ":4", &["lpush l"]),
            ("LPOP l", "$1 z", &["lpop l"]),
            ("RPOP l", "$1 c", &["rpop l"]),
            ("LSET l 0 x", "+OK", &["lset l"]),
            ("LINSERT l BEFORE b y", ":3", &["linsert l"]),
            ("LREM l 1 y", ":1", &["lrem l"]),
            ("LTRIM l 0 0", "+OK", &["ltrim l"]),
            ("LMOVE l m LEFT RIGHT", "$1 x", &["rpush m", "lpop l"]),
            ("SET s 1", "+OK", &[]),
        ],
    ));
}

#[test]
fn sets_tell_what_happens_to_them() {
    play(&scene(
        "Esg",
        &[
            ("SADD s a b c", ":3", &["sadd s"]),
            ("SREM s a", ":1", &["srem s"]),
            ("SMOVE s t b", ":1", &["srem s", "sadd t"]),
            ("SPOP s", "$1 c", &["spop s", "del s"]),
            ("SUNIONSTORE u t", ":1", &["sunionstore u"]),
            ("SINTERSTORE u t none", ":0", &["del u"]),
            ("SADD t b", ":0", &[]),
        ],
    ));
}

#[test]
fn sorted_sets_tell_what_happens_to_them() {
    play(&scene(
        "Ezg",
        &[
            ("ZADD z 1 a 2 b 3 c 4 d", ":4", &["zadd z"]),
            ("ZINCRBY z 2 a", "$1 3", &["zincr z"]),
            ("ZADD z INCR 1 a", "$1 4", &["zincr z"]),
            ("ZREM z a", ":1", &["zrem z"]),
            ("ZPOPMIN z", "*2 $1 b $1 2", &["zpopmin z"]),
            ("ZPOPMAX z", "*2 $1 d $1 4", &["zpopmax z"]),
            ("ZRANGESTORE y z 0 -1", ":1", &["zrangestore y"]),
            ("ZREMRANGEBYSCORE z -inf +inf", ":1", &["zremrangebyscore z", "del z"]),
            ("ZUNIONSTORE x 1 y", ":1", &["zunionstore x"]),
        ],
    ));
}

#[test]
fn streams_tell_what_happens_to_them() {
    play(&scene(
        "Etg",
        &[
            ("XADD x 1-1 f v", "$3 1-1", &["xadd x"]),
            ("XADD x 2-1 f v", "$3 2-1", &["xadd x"]),
            ("XDEL x 1-1", ":1", &["xdel x"]),
            ("XTRIM x MAXLEN 0", ":1", &["xtrim x"]),
            ("XGROUP CREATE x g 0", "+OK", &["xgroup-create x"]),
            ("XGROUP CREATECONSUMER x g c", ":1", &["xgroup-createconsumer x"]),
            ("XGROUP SETID x g $", "+OK", &["xgroup-setid x"]),
            ("XGROUP DELCONSUMER x g c", ":0", &["xgroup-delconsumer x"]),
            ("XGROUP DESTROY x g", ":1", &["xgroup-destroy x"]),
            ("XSETID x 5-5", "+OK", &["xsetid x"]),
        ],
    ));
}

#[test]
fn misses_and_new_keys_are_classes_of_their_own() {
    play(&scene(
        "Emn",
        &[
            ("GET k", "$-1", &["keymiss k"]),
            ("SET k 1", "+OK", &["new k"]),
            ("SET k 2", "+OK", &[]),
            ("RPUSH l 1", ":1", &["new l"]),
            ("SADD s 1", ":1", &["new s"]),
            ("ZADD z 1 1", ":1", &["new z"]),
            ("HSET h f v", ":1", &["new h"]),
            ("HGET none f", "$-1", &["keymiss none"]),
            ("XADD x 1-1 f v", "$3 1-1", &["new x"]),
            ("RENAME k k2", "+OK", &["new k2"]),
            ("COPY l l2", ":1", &["new l2"]),
            ("LRANGE none 0 -1", "*0", &["keymiss none"]),
        ],
    ));
    // All classes except those two.
    play(&scene("EA", &[("GET k", "$-1", &[]), ("SET k 1 EX 100", "+OK", &["set k", "expire k"]), ("DEL k", ":1", &["del k"])]));
}

#[test]
fn hashes_tell_of_their_fields_deadlines() {
    play_as_newer(&scene(
        "Ehg",
        &[
            ("HSET h f v g w", ":2", &["hset h"]),
            ("HEXPIRE h 100 FIELDS 1 f", "*1 :1", &["hexpire h"]),
            ("HPERSIST h FIELDS 1 f", "*1 :1", &["hpersist h"]),
            ("HINCRBY h n 1", ":1", &["hincrby h"]),
            ("HDEL h f g n", ":3", &["hdel h", "del h"]),
        ],
    ));
}
