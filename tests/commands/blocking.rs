//! Blocking commands, `CLIENT UNBLOCK` and `CLIENT PAUSE`: several clients over TCP, here and on redis-server.

use std::time::{Duration, Instant};

use portcullis::testing::{Resp3Frame, TestServer};

use crate::common::scenes::{play, play_as_newer, play_here};
use crate::common::wire::Wire;

#[test]
fn what_is_there_is_taken_at_once() {
    play(
        "A: RPUSH l 1 2 3 4 5 6 7 => :7
         A: BLPOP none l 0 => *2 $1 l $1 1
         A: BRPOP l none 0 => *2 $1 l $1 7
         A: BLMOVE l m LEFT RIGHT 0 => $1 2
         A: BRPOPLPUSH l m 0 => $1 6
         A: BLMPOP 0 2 none l RIGHT COUNT 2 => *2 $1 l *2 $1 5 $1 4
         A: BLMPOP 0 1 l LEFT => *2 $1 l *1 $1 3
         A: EXISTS l => :0
         A: LRANGE m 0 -1 => *2 $1 6 $1 2
         A: HELLO 3 => %7*
         A: BLPOP m 0 => *2 $1 m $1 6",
    );
}

#[test]
fn arguments_are_checked_as_redis_does() {
    play(
        "A: BLPOP l x => -ERR timeout is not a float or out of range
         A: BLPOP l -1 => -ERR timeout is negative
         A: BLPOP l -0.5 => -ERR timeout is negative
         A: BLPOP l nan => -ERR timeout is not a float or out of range
         A: BLPOP l => -ERR wrong number of arguments for 'blpop' command
         A: BLMOVE a b UP LEFT 0 => -ERR syntax error
         A: BLMOVE a b LEFT LEFT x => -ERR timeout is not a float or out of range
         A: BLMPOP 0 0 l LEFT => -ERR numkeys should be greater than 0
         A: BLMPOP 0 2 l LEFT => -ERR syntax error
         A: BLMPOP x 1 l LEFT => -ERR timeout is not a float or out of range
         A: BLMPOP 0 1 l LEFT COUNT 0 => -ERR count should be greater than 0
         A: BLMPOP 0 1 l LEFT COUNT 1 COUNT 2 => -ERR syntax error
         A: SET s text => +OK
         A: BLPOP none s 0 => -WRONGTYPE Operation against a key holding the wrong kind of value
         A: BLMOVE s l LEFT LEFT 0 => -WRONGTYPE Operation against a key holding the wrong kind of value
         A: BLMPOP 0 1 s LEFT => -WRONGTYPE Operation against a key holding the wrong kind of value",
    );
}

#[test]
fn sorted_sets_are_waited_for_too() {
    play(
        "A: ZADD z 1 one 2 two 3 three 4 four => :4
         A: BZPOPMIN none z 0 => *3 $1 z $3 one $1 1
         A: BZPOPMAX z none 0 => *3 $1 z $4 four $1 4
         A: BZMPOP 0 2 none z MAX COUNT 9 => *2 $1 z *2 *2 $5 three $1 3 *2 $3 two $1 2
         A: EXISTS z => :0
         A: BZPOPMIN z x => -ERR timeout is not a float or out of range
         A: BZMPOP 0 1 z UP => -ERR syntax error
         A: BZMPOP 0 1 z MIN COUNT 0 => -ERR count should be greater than 0
         A: MULTI => +OK
         A: BZPOPMIN z 0 => +QUEUED
         A: BZMPOP 0 1 z MIN => +QUEUED
         A: EXEC => *2 *-1 *-1
         A: BZPOPMIN y z 0
         B: HELLO 3 => %7*
         B: BZPOPMAX z 0
         C: BZMPOP 0 1 z MIN
         D: BLPOP z 0
         E: BZPOPMIN z 0.6
         F: ZADD z 1.5 a 2 b 3 c => :3
         A <= *3 $1 z $1 a $3 1.5
         B <= *3 $1 z $1 c ,3
         C <= *2 $1 z *1 *2 $1 b $1 2
         pass 800
         E <= *-1
         F: RPUSH z x => :1
         D <= *2 $1 z $1 x
         A: BZPOPMIN z 0
         F: ZADD y 1 a => :1
         F: ZUNIONSTORE z 1 y => :1
         A <= *3 $1 z $1 a $1 1
         A: BZPOPMIN z 0
         F: ZADD z XX 1 a => :0
         F: ZINCRBY z 2 b => $1 2
         A <= *3 $1 z $1 b $1 2",
    );
}

#[test]
fn time_outs_beyond_what_can_be_counted_are_refused() {
    play_as_newer(
        "A: BLPOP l 1e300 => -ERR timeout is out of range
         A: BLPOP l inf => -ERR timeout is out of range
         A: BLPOP l 9223372036854775 => -ERR timeout is out of range",
    );
}

#[test]
fn first_come_first_served_across_clients_and_keys() {
    play(
        "A: BLPOP x l 0
         B: BRPOP l x 0
         C: BLPOP l 0
         D: BLMPOP 0 2 y l LEFT COUNT 9
         F: RPUSH l 1 2 3 4 5 => :5
         A <= *2 $1 l $1 1
         B <= *2 $1 l $1 5
         C <= *2 $1 l $1 2
         D <= *2 $1 l *2 $1 3 $1 4
         F: EXISTS l => :0
         F: RPUSH x 1 => :1
         F: LRANGE x 0 -1 => *1 $1 1",
    );
}

#[test]
fn a_transaction_feeds_when_it_has_ended() {
    // Redis 7.0 serves the key that became ready first, and not the first key of the request.
    play_as_newer(
        "A: BLPOP x y 0
         B: BLPOP y x 0
         C: BLPOP z 0
         F: MULTI => +OK
         F: RPUSH y 1 => +QUEUED
         F: RPUSH x 2 => +QUEUED
         F: DEL y => +QUEUED
         F: RPUSH y 3 4 => +QUEUED
         F: RPUSH z 5 => +QUEUED
         F: DEL z => +QUEUED
         F: SET z text => +QUEUED
         F: EXEC => *7 :1 :1 :1 :2 :1 :1 +OK
         A <= *2 $1 x $1 2
         B <= *2 $1 y $1 3
         F: LRANGE y 0 -1 => *1 $1 4
         F: DEL z => :1
         F: LPUSH z 6 => :1
         C <= *2 $1 z $1 6",
    );
    play(
        r"A: BLPOP l 0
          B: BLPOP l 0
          F: EVAL redis.call('rpush',KEYS[1],1)redis.call('rpush',KEYS[1],2)return\sredis.call('llen',KEYS[1]) 1 l => :2
          A <= *2 $1 l $1 1
          B <= *2 $1 l $1 2",
    );
}

#[test]
fn within_a_transaction_or_a_script_nobody_waits() {
    play(
        r"A: MULTI => +OK
          A: BLPOP l 0 => +QUEUED
          A: BLMOVE l m LEFT LEFT 0 => +QUEUED
          A: BLMPOP 0 1 l LEFT => +QUEUED
          A: RPUSH l 1 => +QUEUED
          A: BLPOP l 0 => +QUEUED
          A: EXEC => *5 *-1 $-1 *-1 :1 *2 $1 l $1 1
          A: BLPOP l x => -ERR timeout is not a float or out of range
          A: HELLO 3 => %7*
          A: MULTI => +OK
          A: BLPOP l 0 => +QUEUED
          A: BLMOVE l m LEFT LEFT 0 => +QUEUED
          A: EXEC => *2 _ _",
    );
    play_as_newer(
        r"A: EVAL return\sredis.call('blpop',KEYS[1],0) 1 l => $-1
          A: RPUSH l 1 => :1
          A: EVAL return\sredis.call('blpop',KEYS[1],0) 1 l => *2 $1 l $1 1",
    );
}

#[test]
fn who_is_served_may_feed_others() {
    play(
        "A: BLPOP c 0
         B: BLMOVE b c LEFT LEFT 0
         C: BLMOVE a b LEFT LEFT 0
         F: RPUSH a x => :1
         C <= $1 x
         B <= $1 x
         A <= *2 $1 c $1 x
         F: DBSIZE => :0
         A: BRPOPLPUSH r r 0
         B: BRPOPLPUSH r r 0
         F: RPUSH r 1 2 => :2
         A <= $1 2
         B <= $1 1
         F: LRANGE r 0 -1 => *2 $1 1 $1 2
         # A destination of another type is an error, and the next waiter gets the element.
         F: SET s text => +OK
         A: BLMOVE q s LEFT LEFT 0
         B: BLPOP q 0
         F: RPUSH q 1 => :1
         A <= -WRONGTYPE Operation against a key holding the wrong kind of value
         B <= *2 $1 q $1 1",
    );
}

#[test]
fn whatever_makes_the_key_a_list_feeds() {
    play(
        "F: RPUSH src 3 1 2 => :3
         A: BLPOP l 0
         F: COPY src l => :1
         A <= *2 $1 l $1 3
         F: DEL l => :1
         A: BLPOP l 0
         F: LMOVE src l LEFT LEFT => $1 3
         A <= *2 $1 l $1 3
         A: BLPOP l 0
         F: RENAME src l => +OK
         A <= *2 $1 l $1 1
         F: SELECT 1 => +OK
         F: RPUSH l 9 => :1
         F: SELECT 0 => +OK
         F: DEL l => :1
         A: BLPOP l 0
         F: SWAPDB 0 1 => +OK
         A <= *2 $1 l $1 9
         F: SELECT 1 => +OK
         F: RPUSH l 8 => :1
         A: BLPOP l 0
         F: MOVE l 0 => :1
         A <= *2 $1 l $1 8
         # Neither another type nor LPUSHX on a missing list serves the waiter.
         F: SELECT 0 => +OK
         A: BLPOP l 0
         F: LPUSHX l 1 => :0
         F: SET l text => +OK
         F: DEL l => :1
         F: RPUSH l 7 => :1
         A <= *2 $1 l $1 7",
    );
}

#[test]
fn time_is_over_when_it_was_said() {
    play(
        "A: BLPOP l 0.6
         B: HELLO 3 => %7*
         B: BLMOVE l m LEFT LEFT 0.6
         C: BLMOVE l m LEFT LEFT 0.6
         D: BLMPOP 0.6 1 l LEFT
         E: BLPOP l 0
         pass 800
         A <= *-1
         B <= _
         C <= *-1
         D <= *-1
         F: RPUSH l 1 => :1
         E <= *2 $1 l $1 1",
    );
}

#[test]
fn the_virtual_clock_ends_a_wait_to_the_millisecond() {
    let server = TestServer::builder().frozen(true).start();
    let mut wire = Wire::connect(server.addr()).expect("a connection");
    wire.queue(&["BLPOP", "l", "3600.5"]);
    wire.flush().expect("sent");
    until(|| info(&server, "blocked_clients") == "1");
    assert_eq!(info(&server, "clients_in_timeout_table"), "1");
    assert_eq!(info(&server, "total_blocking_keys"), "1");
    server.clock().advance(Duration::from_millis(3_600_499));
    assert_eq!(info(&server, "blocked_clients"), "1");
    server.clock().advance(Duration::from_millis(1));
    assert_eq!(info(&server, "blocked_clients"), "0");
    assert_eq!(wire.reply().expect("a reply").raw, b"*-1\r\n");
    server.check_invariants();
}

#[test]
fn a_running_clock_ends_waits_on_time() {
    let server = TestServer::start();
    let mut wires: Vec<Wire> = (0..50).map(|_| Wire::connect(server.addr()).expect("a connection")).collect();
    let begin = Instant::now();
    for wire in &mut wires {
        wire.queue(&["BLPOP", "l", "0.2"]);
        wire.flush().expect("sent");
    }
    for wire in &mut wires {
        assert_eq!(wire.reply().expect("a reply").raw, b"*-1\r\n");
        assert!(begin.elapsed() >= Duration::from_millis(199), "not before");
    }
    assert!(begin.elapsed() < Duration::from_secs(5), "on time, as far as a busy machine lets it");
}

#[test]
fn what_is_pipelined_behind_waits_too_and_goes_on_in_order() {
    play(
        "A: BLPOP l 0
         A: SET k 1 ...
         A: INCR k ...
         A: BLPOP l 0 ...
         A: INCR k ...
         F: GET k => $-1
         F: RPUSH l x => :1
         A <= *2 $1 l $1 x
         A <= +OK
         A <= :2
         F: GET k => $1 2
         F: RPUSH l y => :1
         A <= *2 $1 l $1 y
         A <= :3",
    );
    // All requests in one write, with a malformed one at the end.
    let server = TestServer::start();
    let mut wire = Wire::connect(server.addr()).expect("a connection");
    wire.send_raw(b"PING\r\nBLPOP l 0\r\nSET k 1\r\nBLPOP l 0\r\nGET k\r\n*1\r\n!bad\r\n").expect("sent");
    assert_eq!(wire.reply().expect("a reply").raw, b"+PONG\r\n");
    until(|| info(&server, "blocked_clients") == "1");
    assert_eq!(server.get("k"), None);
    server.execute(&["RPUSH", "l", "a", "b"]);
    for expected in [&b"*2\r\n$1\r\nl\r\n$1\r\na\r\n"[..], b"+OK\r\n", b"*2\r\n$1\r\nl\r\n$1\r\nb\r\n", b"$1\r\n1\r\n"] {
        assert_eq!(wire.reply().expect("a reply").raw, expected);
    }
    assert!(wire.reply().expect("a reply").frame.is_error("ERR Protocol error"));
    assert!(wire.reply().is_err(), "closed");
    server.check_invariants();
}

#[test]
fn a_client_that_leaves_takes_nothing_with_it() {
    play(
        "A: BLPOP l 0
         B: BLPOP l 0
         A closes
         F: RPUSH l 1 => :1
         B <= *2 $1 l $1 1
         F: EXISTS l => :0
         A: BLPOP l 0
         B: BLPOP l 0
         F: CLIENT KILL ID <A> => :1
         F: RPUSH l 2 => :1
         B <= *2 $1 l $1 2",
    );
}

#[test]
fn what_is_piled_up_behind_a_wait_is_bounded() {
    let server = TestServer::builder().config("client-query-buffer-limit", "1mb").start();
    let mut wire = Wire::connect(server.addr()).expect("a connection");
    wire.send_raw(b"BLPOP l 0\r\n").expect("sent");
    until(|| info(&server, "blocked_clients") == "1");
    let request = b"PING\r\n".repeat(20_000);
    let cut = (0..100).any(|_| wire.send_raw(&request).is_err());
    assert!(cut || wire.reply().is_err());
    until(|| info(&server, "blocked_clients") == "0");
    server.check_invariants();
}

#[test]
fn others_may_end_a_wait() {
    play(
        "A: BLPOP l 0
         F: CLIENT UNBLOCK <A> => :1
         A <= *-1
         F: CLIENT UNBLOCK <A> => :0
         A: BLPOP l 0
         F: CLIENT UNBLOCK <A> TIMEOUT => :1
         A <= *-1
         A: BLPOP l 0
         F: CLIENT UNBLOCK <A> error => :1
         A <= -UNBLOCKED client unblocked via CLIENT UNBLOCK
         F: CLIENT UNBLOCK 999999 => :0
         F: CLIENT UNBLOCK x => -ERR value is not an integer or out of range
         F: CLIENT UNBLOCK 1 NOW => -ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR
         F: CLIENT UNBLOCK => -ERR wrong number of arguments for 'client|unblock' command
         F: CLIENT PAUSE 1 WRITE ALL => -ERR unknown subcommand or wrong number of arguments for 'PAUSE'. Try CLIENT HELP.
         A: BLPOP l 0
         F: RPUSH l 1 => :1
         A <= *2 $1 l $1 1",
    );
}

#[test]
fn a_pause_of_writes_holds_them_back_in_order() {
    play(
        r"F: SET k 1 => +OK
          F: CLIENT PAUSE 100000 WRITE => +OK
          A: APPEND k 2
          B: APPEND k 3
          F: GET k => $1 1
          C: MULTI => +OK
          C: GET k => +QUEUED
          C: EXEC => *1 $1 1
          C: MULTI => +OK
          C: SET other 1
          D: EVAL return\s1 0
          E: PUBLISH ch x
          G: NOSUCH => -ERR unknown command 'NOSUCH', with args beginning with:
          G: APPEND k => -ERR wrong number of arguments for 'append' command
          G: EVAL_RO return\s1 0 => :1
          F: CLIENT UNPAUSE => +OK
          A <= :2
          B <= :3
          C <= +QUEUED
          C: EXEC => *1 +OK
          D <= :1
          E <= :0
          F: GET k => $3 123
          F: CLIENT PAUSE x => -ERR timeout is not an integer or out of range
          F: CLIENT PAUSE -1 => -ERR timeout is negative
          F: CLIENT PAUSE 1 NONE => -ERR CLIENT PAUSE mode must be WRITE or ALL",
    );
}

#[test]
fn a_pause_of_all_ends_by_itself() {
    play(
        "A: PING => +PONG
         B: PING => +PONG
         F: CLIENT PAUSE 100 => +OK
         A: PING ...
         A: ECHO x ...
         B: SET k v ...
         pass 300
         A <= +PONG
         A <= $1 x
         B <= +OK
         F: CLIENT PAUSE 100000 WRITE => +OK
         A: SET k w
         A closes
         F: CLIENT UNPAUSE => +OK
         F: GET k => $1 v",
    );
}

#[test]
fn who_waits_is_fed_by_what_was_held_back() {
    play(
        "A: BLPOP l 0
         F: CLIENT PAUSE 100000 WRITE => +OK
         B: RPUSH l 1
         C: BLPOP l 0
         F: CLIENT UNPAUSE => +OK
         B <= :1
         A <= *2 $1 l $1 1
         F: RPUSH l 2 => :1
         C <= *2 $1 l $1 2
         # A timeout does not wait for the end of a pause.
         A: BLPOP l 0.6
         F: CLIENT PAUSE 100000 WRITE => +OK
         pass 800
         A <= *-1
         F: CLIENT UNPAUSE => +OK",
    );
}

#[test]
fn nothing_ends_during_a_pause_though_it_is_not_seen() {
    play(
        "F: SET k v PX 400 => +OK
         F: CLIENT PAUSE 100000 WRITE => +OK
         pass 600
         F: GET k => $-1
         F: DBSIZE => :1
         F: CLIENT UNPAUSE => +OK
         F: GET k => $-1
         F: DBSIZE => :0",
    );
}

#[test]
fn a_pause_begun_in_a_transaction_lets_the_rest_of_it_write() {
    play_here(
        "A: BLPOP l 0
         F: MULTI => +OK
         F: CLIENT PAUSE 100000 WRITE => +QUEUED
         F: RPUSH l 1 => +QUEUED
         F: EXEC => *2 +OK :1
         F: LLEN l => :1
         F: CLIENT UNPAUSE => +OK
         A <= *2 $1 l $1 1",
    );
}

#[test]
fn a_client_that_waits_is_not_idle() {
    let server = TestServer::builder().frozen(true).config("timeout", "10").start();
    let mut waits = Wire::connect(server.addr()).expect("a connection");
    let mut idle = Wire::connect(server.addr()).expect("a connection");
    idle.call(&["PING"]).expect("a reply");
    waits.queue(&["BLPOP", "l", "100"]);
    waits.flush().expect("sent");
    until(|| info(&server, "blocked_clients") == "1");
    server.clock().advance(Duration::from_secs(60));
    assert!(idle.call(&["PING"]).is_err());
    server.execute(&["RPUSH", "l", "x"]);
    assert_eq!(waits.reply().expect("a reply").raw, b"*2\r\n$1\r\nl\r\n$1\r\nx\r\n");
    server.clock().advance(Duration::from_secs(60));
    assert!(waits.call(&["PING"]).is_err(), "now it was");
}

#[test]
fn hand_off_is_fair_among_many() {
    let server = TestServer::start();
    let mut waiters: Vec<Wire> = (0..64).map(|_| Wire::connect(server.addr()).expect("a connection")).collect();
    let mut feeder = Wire::connect(server.addr()).expect("a connection");
    for (i, wire) in waiters.iter_mut().enumerate() {
        wire.queue(&["BLPOP", "l", "0"]);
        wire.flush().expect("sent");
        until(|| info(&server, "blocked_clients") == (i + 1).to_string());
    }
    for round in 0..5 {
        for wire in &mut waiters {
            feeder.call(&["RPUSH", "l", &round.to_string()]).expect("a reply");
            assert_eq!(wire.reply().expect("its turn").raw, format!("*2\r\n$1\r\nl\r\n$1\r\n{round}\r\n").as_bytes());
            wire.queue(&["BLPOP", "l", "0"]);
            wire.flush().expect("sent");
        }
        until(|| info(&server, "blocked_clients") == "64");
    }
    drop(waiters);
    until(|| info(&server, "blocked_clients") == "0");
    server.check_invariants();
}

fn info(server: &TestServer, field: &str) -> String {
    let info = server.execute(&["INFO", "clients"]);
    let text = info.as_str().expect("a text").to_owned();
    let found = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    found.unwrap_or_else(|| panic!("no {field}")).to_owned()
}

#[track_caller]
fn until(mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !done() {
        assert!(Instant::now() < end, "it never comes");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn one_who_waits_for_replicas_waits_for_the_whole_time() {
    play(
        "A: WAIT 0 0 => :0
         A: WAIT -1 100 => :0
         A: WAIT x 0 => -ERR value is not an integer or out of range
         A: WAIT 1 x => -ERR timeout is not an integer or out of range
         A: WAIT 1 -1 => -ERR timeout is negative
         A: MULTI => +OK
         A: WAIT 1 0 => +QUEUED
         A: EXEC => *1 :0
         A: WAIT 1 300
         B: WAIT 2 0
         C: EVAL return\\stonumber(redis.call('exists','k')) 0 => :0
         pass 400
         A <= :0
         C: CLIENT UNBLOCK <B> => :1
         B <= :0
         B: WAIT 2 0
         C: CLIENT UNBLOCK <B> ERROR => :1
         B <= -UNBLOCKED client unblocked via CLIENT UNBLOCK
         B: WAIT 2 0
         B closes
         A: PING => +PONG",
    );
    play_as_newer(
        "A: WAITAOF 0 0 0 => *2 :0 :0
         A: EVAL return\\sredis.call('wait',1,0) 0 => :0
         A: WAITAOF 1 0 0 => -ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.
         A: WAITAOF 0 1 200
         B: WAITAOF 0 1 0
         pass 300
         A <= *2 :0 :0
         C: CLIENT UNBLOCK <B> => :1
         B <= *2 :0 :0",
    );
}
