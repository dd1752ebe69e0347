//! Tests of all sorted set commands.

use crate::commands::keyspace_events::Listener;
use crate::engine::harness::Harness;

const WRONG_TYPE: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value";

#[test]
fn members_are_added_scored_ranked_and_removed() {
    Harness::new().script(&[
        ("ZADD z 1 a 2 b 3 c", ":3"),
        ("ZADD z 1 a 5 b 0.5 d", ":1"),
        ("ZADD z CH 1 a 6 b 0 e", ":2"),
        ("ZRANGE z 0 -1 WITHSCORES", "*10 $1 e $1 0 $1 d $3 0.5 $1 a $1 1 $1 c $1 3 $1 b $1 6"),
        ("ZSCORE z d", "$3 0.5"),
        ("ZSCORE z x", "$-1"),
        ("ZMSCORE z a x b", "*3 $1 1 $-1 $1 6"),
        ("ZMSCORE none a", "*1 $-1"),
        ("ZCARD z", ":5"),
        ("ZRANK z a", ":2"),
        ("ZREVRANK z a", ":2"),
        ("ZREVRANK z b WITHSCORE", "*2 :0 $1 6"),
        ("ZRANK z x", "$-1"),
        ("ZRANK z x WITHSCORE", "*-1"),
        ("ZRANK z a WITHSCORES", "-ERR syntax error"),
        ("ZRANK z a WITHSCORE x", "-ERR wrong number of arguments for 'zrank' command"),
        ("ZREM z a x a", ":1"),
        ("ZREM z b c d e", ":4"),
        ("EXISTS z", ":0"),
        ("ZCARD z", ":0"),
        ("TYPE z", "+none"),
        ("ZADD z 1 a", ":1"),
        ("TYPE z", "+zset"),
        ("SCAN 0 TYPE zset", "*2 $1 0 *1 $1 z"),
        ("COPY z y", ":1"),
        ("ZRANGE y 0 -1", "*1 $1 a"),
        ("OBJECT ENCODING y", "$8 listpack"),
    ]);
}

#[test]
fn zadd_has_conditions_and_increments() {
    Harness::new().script(&[
        ("ZADD z XX 1 a", ":0"),
        ("EXISTS z", ":0"),
        ("ZADD z XX INCR 1 a", "$-1"),
        ("ZADD z NX 1 a", ":1"),
        ("ZADD z NX 2 a", ":0"),
        ("ZADD z NX INCR 2 a", "$-1"),
        ("ZADD z GT 0 a 1 b", ":1"),
        ("ZADD z GT CH 2 a", ":1"),
        ("ZADD z LT CH 3 a 0 b", ":1"),
        ("ZADD z XX LT INCR -5 a", "$2 -3"),
        ("ZADD z GT INCR -5 a", "$-1"),
        ("ZINCRBY z 2.5 a", "$4 -0.5"),
        ("ZINCRBY z inf a", "$3 inf"),
        ("ZINCRBY z -inf a", "-ERR resulting score is not a number (NaN)"),
        ("ZINCRBY z 1 new", "$1 1"),
        ("ZADD z NX XX 1 a", "-ERR XX and NX options at the same time are not compatible"),
        ("ZADD z GT NX 1 a", "-ERR GT, LT, and/or NX options at the same time are not compatible"),
        ("ZADD z GT LT 1 a", "-ERR GT, LT, and/or NX options at the same time are not compatible"),
        ("ZADD z INCR 1 a 2 b", "-ERR INCR option supports a single increment-element pair"),
        ("ZADD z 1 a 2", "-ERR syntax error"),
        ("ZADD z NX CH", "-ERR syntax error"),
        ("ZADD z nan a", "-ERR value is not a valid float"),
        ("ZADD z 1 a x b", "-ERR value is not a valid float"),
        ("ZADD z 0x10 h", ":1"),
        ("ZSCORE z h", "$2 16"),
        ("SET s v", "+OK"),
        ("ZADD s 1 a", WRONG_TYPE),
        ("ZADD s x a", "-ERR value is not a valid float"),
        ("ZINCRBY s 1 a", WRONG_TYPE),
        ("ZRANGE s 0 -1", WRONG_TYPE),
        ("ZRANGE s x -1", "-ERR value is not an integer or out of range"),
        ("ZUNION 1 s", WRONG_TYPE),
        ("ZPOPMIN s", WRONG_TYPE),
        ("ZSCAN s 0", WRONG_TYPE),
    ]);
}

#[test]
fn ranges_by_rank_score_and_member() {
    Harness::new().script(&[
        ("ZADD z 1 a 2 b 2 c 3 d inf e", ":5"),
        ("ZRANGE z 1 2", "*2 $1 b $1 c"),
        ("ZRANGE z -2 -1 REV", "*2 $1 b $1 a"),
        ("ZREVRANGE z 0 0 WITHSCORES", "*2 $1 e $3 inf"),
        ("ZRANGE z 3 2", "*0"),
        ("ZRANGE z -100 100", "*5 $1 a $1 b $1 c $1 d $1 e"),
        ("ZRANGEBYSCORE z (1 3", "*3 $1 b $1 c $1 d"),
        ("ZRANGEBYSCORE z -inf (2 WITHSCORES", "*2 $1 a $1 1"),
        ("ZRANGEBYSCORE z 2 +inf LIMIT 1 2", "*2 $1 c $1 d"),
        ("ZRANGEBYSCORE z 2 +inf LIMIT 1 -1", "*3 $1 c $1 d $1 e"),
        ("ZRANGEBYSCORE z 2 +inf LIMIT -1 2", "*0"),
        ("ZREVRANGEBYSCORE z 3 1 LIMIT 1 2", "*2 $1 c $1 b"),
        ("ZRANGE z (3 1 BYSCORE REV", "*3 $1 c $1 b $1 a"),
        ("ZRANGE z 0 -1 LIMIT 0 1", "-ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX"),
        ("ZRANGE z - + BYLEX WITHSCORES", "-ERR syntax error, WITHSCORES not supported in combination with BYLEX"),
        ("ZREVRANGE z 0 1 REV", "-ERR syntax error"),
        ("ZRANGEBYSCORE z x 1", "-ERR min or max is not a float"),
        ("ZRANGEBYLEX z a c", "-ERR min or max not valid string range item"),
        ("ZCOUNT z (1 3", ":3"),
        ("ZCOUNT z 3 1", ":0"),
        ("ZCOUNT z x 1", "-ERR min or max is not a float"),
        ("ZADD l 0 a 0 b 0 c 0 d", ":4"),
        ("ZRANGEBYLEX l [b (d", "*2 $1 b $1 c"),
        ("ZREVRANGEBYLEX l + (a LIMIT 1 1", "*1 $1 c"),
        ("ZRANGE l + - BYLEX REV", "*4 $1 d $1 c $1 b $1 a"),
        ("ZLEXCOUNT l - (c", ":2"),
        ("ZLEXCOUNT l + -", ":0"),
        ("ZREMRANGEBYLEX l (a [c", ":2"),
        ("ZRANGE l 0 -1", "*2 $1 a $1 d"),
        ("ZREMRANGEBYRANK z -1 -1", ":1"),
        ("ZREMRANGEBYSCORE z 2 2", ":2"),
        ("ZREMRANGEBYRANK z 5 9", ":0"),
        ("ZRANGE z 0 -1", "*2 $1 a $1 d"),
        ("ZREMRANGEBYRANK z 0 -1", ":2"),
        ("EXISTS z", ":0"),
        ("ZRANGESTORE out l 0 -1 REV", ":2"),
        ("ZRANGE out 0 -1", "*2 $1 a $1 d"),
        ("ZRANGESTORE out l (d + BYLEX", ":0"),
        ("EXISTS out", ":0"),
        ("ZRANGESTORE out l 0 -1 WITHSCORES", "-ERR syntax error"),
        ("ZRANGESTORE l none 0 -1", ":0"),
        ("EXISTS l", ":0"),
    ]);
}

#[test]
fn pops() {
    let mut h = Harness::new();
    h.script(&[
        ("ZADD z 1 a 2 b 3 c 4 d 5 e 6 f 7 g", ":7"),
        ("ZPOPMIN z", "*2 $1 a $1 1"),
        ("ZPOPMAX z 2", "*4 $1 g $1 7 $1 f $1 6"),
        ("ZPOPMIN z 0", "*0"),
        ("ZPOPMIN z -1", "-ERR value is out of range, must be positive"),
        ("ZPOPMIN z x", "-ERR value is out of range, must be positive"),
        ("ZPOPMIN z 1 1", "-ERR syntax error"),
        ("ZPOPMIN none", "*0"),
        ("ZMPOP 2 none z MIN", "*2 $1 z *1 *2 $1 b $1 2"),
        ("ZMPOP 1 none MAX COUNT 2", "*-1"),
        ("ZMPOP 0 z MIN", "-ERR numkeys should be greater than 0"),
        ("ZMPOP 9 z MIN", "-ERR syntax error"),
        ("ZMPOP 1 z MID", "-ERR syntax error"),
        ("ZMPOP 1 z MIN COUNT 0", "-ERR count should be greater than 0"),
        ("ZMPOP 1 z MIN COUNT 1 COUNT 1", "-ERR syntax error"),
        ("ZMPOP 9223372036854775807 z MIN", "-ERR syntax error"),
    ]);
    h.run("HELLO 3");
    h.script(&[
        ("ZPOPMIN z", "*2 $1 c ,3"),
        ("ZPOPMAX z 1", "*1 *2 $1 e ,5"),
        ("ZMPOP 1 z MAX COUNT 9", "*2 $1 z *1 *2 $1 d ,4"),
        ("ZMPOP 1 z MAX COUNT 9", "_"),
        ("EXISTS z", ":0"),
    ]);
}

#[test]
fn unions_intersections_and_differences() {
    let mut h = Harness::new();
    h.script(&[
        ("ZADD a 1 x 2 y 3 z", ":3"),
        ("ZADD b 10 y 20 z 30 w", ":3"),
        ("ZUNION 2 a b WITHSCORES", "*8 $1 x $1 1 $1 y $2 12 $1 z $2 23 $1 w $2 30"),
        ("ZUNION 2 a b WEIGHTS 2 0 AGGREGATE MAX WITHSCORES", "*8 $1 w $1 0 $1 x $1 2 $1 y $1 4 $1 z $1 6"),
        ("ZINTER 2 a b AGGREGATE MIN", "*2 $1 y $1 z"),
        ("ZINTER 2 a none", "*0"),
        ("ZINTER 2 a a WITHSCORES", "*6 $1 x $1 2 $1 y $1 4 $1 z $1 6"),
        ("ZDIFF 2 a b WITHSCORES", "*2 $1 x $1 1"),
        ("ZDIFF 2 a a", "*0"),
        ("ZDIFF 3 a none none", "*3 $1 x $1 y $1 z"),
        ("ZDIFF 1 none", "*0"),
        ("ZINTERCARD 2 a b", ":2"),
        ("ZINTERCARD 2 a b LIMIT 1", ":1"),
        ("ZINTERCARD 2 a b LIMIT 0", ":2"),
        ("ZINTERCARD 2 a b LIMIT -1", "-ERR LIMIT can't be negative"),
        ("ZINTERCARD 2 a b LIMIT x", "-ERR LIMIT can't be negative"),
        ("ZINTERCARD 2 a b WITHSCORES", "-ERR syntax error"),
        ("ZUNIONSTORE out 2 a b", ":4"),
        ("ZSCORE out y", "$2 12"),
        ("ZINTERSTORE out 2 a b WEIGHTS inf -inf", ":2"),
        ("ZRANGE out 0 -1 WITHSCORES", "*4 $1 y $1 0 $1 z $1 0"),
        ("ZDIFFSTORE a 2 a b", ":1"),
        ("ZRANGE a 0 -1", "*1 $1 x"),
        ("ZDIFFSTORE a 2 a a", ":0"),
        ("EXISTS a", ":0"),
        ("ZUNION 0 a", "-ERR at least 1 input key is needed for 'zunion' command"),
        ("ZUNIONSTORE out x a", "-ERR value is not an integer or out of range"),
        ("ZUNION 2 a", "-ERR syntax error"),
        ("ZUNION 1 b WEIGHTS x", "-ERR weight value is not a float"),
        ("ZUNION 1 b WEIGHTS", "-ERR syntax error"),
        ("ZUNION 1 b AGGREGATE AVG", "-ERR syntax error"),
        ("ZUNIONSTORE out 1 b WITHSCORES", "-ERR syntax error"),
        ("ZDIFF 1 b WEIGHTS 1", "-ERR syntax error"),
    ]);
    h.run("HELLO 3");
    h.script(&[("ZUNION 1 b WITHSCORES", "*3 *2 $1 y ,10 *2 $1 z ,20 *2 $1 w ,30"), ("ZUNION 1 none WITHSCORES", "*0")]);
}

#[test]
fn differences_are_the_same_by_either_way() {
    let mut h = Harness::new();
    for n in 0..40 {
        h.args(&[b"ZADD", b"all", n.to_string().as_bytes(), format!("m{n}").as_bytes()]);
    }
    let mut request = String::from("ZDIFF 31 all");
    for n in 0..30 {
        h.run(&format!("ZADD one{n} 1 m{n}"));
        request.push_str(&format!(" one{n}"));
    }
    let left: String = (30..40).map(|n| format!(" $3 m{n}")).collect();
    assert_eq!(h.run(&request), format!("*10{left}"));
}

#[test]
fn scores_are_written_as_redis_writes_them() {
    let mut h = Harness::new();
    h.script(&[
        ("ZADD z -0 a 0.1 b 1e20 c 1.5e300 d 17179869184 e", ":5"),
        ("ZRANGE z 0 -1 WITHSCORES", "*10 $1 a $1 0 $1 b $3 0.1 $1 e $11 17179869184 $1 c $5 1e+20 $1 d $8 1.5e+300"),
        ("ZADD z INCR -0 new", "$2 -0"),
        ("ZREM z a c d e new", ":5"),
        ("ZSCAN z 0", "*2 $1 0 *2 $1 b $3 0.1"),
        ("CONFIG SET zset-max-listpack-entries 0", "+OK"),
        ("ZADD z -0 a", ":1"),
        ("OBJECT ENCODING z", "$8 skiplist"),
        ("ZSCORE z a", "$2 -0"),
        ("ZADD z 0 a", ":0"),
        ("ZSCORE z a", "$2 -0"),
        ("ZSCAN z 0 MATCH b", "*2 $1 0 *2 $1 b $19 0.10000000000000001"),
    ]);
}

#[test]
fn encodings_change_where_redis_changes_them() {
    let mut h = Harness::new();
    let pairs = |from: usize, to: usize| (from..to).map(|n| format!(" {n} m{n}")).collect::<String>();
    assert_eq!(h.run(&format!("ZADD z{}", pairs(0, 128))), ":128");
    h.script(&[("OBJECT ENCODING z", "$8 listpack"), ("ZADD z 5 m1", ":0"), ("OBJECT ENCODING z", "$8 listpack")]);
    h.script(&[("ZADD z 1 more", ":1"), ("OBJECT ENCODING z", "$8 skiplist"), ("ZREMRANGEBYRANK z 0 -2", ":128")]);
    h.script(&[("OBJECT ENCODING z", "$8 skiplist"), ("ZUNIONSTORE z 1 z", ":1"), ("OBJECT ENCODING z", "$8 listpack")]);
    // That many pairs would not fit into a listpack if the members were different.
    let same: String = (0..129).map(|n| format!(" {n} one")).collect();
    assert_eq!(h.run(&format!("ZADD same{same}")), ":1");
    h.script(&[("OBJECT ENCODING same", "$8 skiplist"), ("ZSCORE same one", "$3 128")]);
    let long = "l".repeat(65);
    h.run(&format!("ZADD long 1 {long}"));
    h.script(&[("OBJECT ENCODING long", "$8 skiplist"), ("ZRANGESTORE long2 long 0 -1", ":1")]);
    h.script(&[("OBJECT ENCODING long2", "$8 skiplist"), ("COPY long long3", ":1"), ("ZCARD long3", ":1")]);
}

#[test]
fn random_members() {
    let mut h = Harness::new();
    h.script(&[
        ("ZRANDMEMBER z", "$-1"),
        ("ZRANDMEMBER z 5", "*0"),
        ("ZADD z 1 a", ":1"),
        ("ZRANDMEMBER z", "$1 a"),
        ("ZRANDMEMBER z 0", "*0"),
        ("ZRANDMEMBER z -2 WITHSCORES", "*4 $1 a $1 1 $1 a $1 1"),
        ("ZRANDMEMBER z x", "-ERR value is not an integer or out of range"),
        ("ZRANDMEMBER z 1 x", "-ERR syntax error"),
        ("ZRANDMEMBER z -1000000000", "-ERR value is out of range"),
        (
            "ZRANDMEMBER z -9223372036854775808",
            "-ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807",
        ),
    ]);
    for n in 0..1000 {
        h.args(&[b"ZADD", b"big", n.to_string().as_bytes(), format!("m{n}").as_bytes()]);
    }
    for count in [1, 10, 124, 125, 999, 1000, 2000] {
        let reply = h.run(&format!("ZRANDMEMBER big {count}"));
        let members: std::collections::HashSet<&str> = reply.split(' ').filter(|word| word.starts_with('m')).collect();
        assert_eq!(members.len(), count.min(1000));
    }
    let (mut cursor, mut seen) = (String::from("0"), std::collections::HashSet::new());
    loop {
        let reply = h.run(&format!("ZSCAN big {cursor} COUNT 50"));
        let words: Vec<&str> = reply.split(' ').collect();
        seen.extend(words.iter().filter(|word| word.starts_with('m')).map(|word| (*word).to_owned()));
        cursor = words[2].to_owned();
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(seen.len(), 1000);
    h.run("HELLO 3");
    h.script(&[("ZRANDMEMBER z 2 WITHSCORES", "*1 *2 $1 a ,1")]);
}

#[test]
fn events_come_once_a_command_in_redis_s_order() {
    let mut h = Harness::new();
    let listener = Listener::new(&mut h, "Anm");
    for (requests, events) in [
        (&["ZADD z 1 a 2 b"][..], &["z new", "z zadd"][..]),
        (&["ZADD z 1 a", "ZADD z 1 a"], &[]),
        (&["ZADD z 1 a", "ZADD z XX INCR 1 a"], &["z zincr"]),
        (&["ZADD z 1 a", "ZINCRBY z 1 a"], &["z zincr"]),
        (&["ZADD z 1 a 2 b", "ZREM z a x"], &["z zrem"]),
        (&["ZADD z 1 a 2 b", "ZREM z a b"], &["z zrem", "z del"]),
        (&["ZADD z 1 a 2 b", "ZREMRANGEBYSCORE z 1 2"], &["z zremrangebyscore", "z del"]),
        (&["ZADD z 1 a 2 b", "ZREMRANGEBYRANK z 0 0"], &["z zremrangebyrank"]),
        (&["ZADD z 1 a 2 b", "ZREMRANGEBYLEX z - +"], &["z zremrangebylex", "z del"]),
        (&["ZADD z 1 a 2 b", "ZPOPMIN z 2"], &["z zpopmin", "z del"]),
        (&["ZADD z 1 a 2 b", "ZMPOP 2 y z MAX"], &["z zpopmax"]),
        (&["ZADD z 1 a", "ZUNIONSTORE o 2 z y"], &["y keymiss", "o new", "o zunionstore"]),
        (&["ZADD z 1 a", "SET o v", "ZINTERSTORE o 1 z"], &["o zinterstore"]),
        (&["ZADD z 1 a", "SET o v", "ZDIFFSTORE o 2 z z"], &["o del"]),
        (&["ZADD z 1 a", "ZRANGESTORE o z 0 -1"], &["o new", "o zrangestore"]),
        (&["ZADD z 1 a", "ZRANGESTORE z z 5 9"], &["z del"]),
        (&["ZSCORE z a"], &["z keymiss"]),
    ] {
        listener.check(&mut h, requests, events);
    }
}

#[test]
fn a_large_set_is_freed_in_pieces() {
    let mut h = Harness::new();
    for n in 0..3000 {
        h.args(&[b"ZADD", b"z", b"1", format!("m{n}").as_bytes()]);
    }
    let used: usize = h.run("MEMORY USAGE z")[1..].parse().expect("a number");
    assert!((3000 * 40..3000 * 100).contains(&used), "{used} bytes");
    h.run("DEL z");
    assert!(h.engine.keyspace().has_unfreed());
    h.pass(0);
    assert!(!h.engine.keyspace().has_unfreed());
}
