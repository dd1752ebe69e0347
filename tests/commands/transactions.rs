//! `MULTI`, `EXEC`, `WATCH` with several clients, here and on redis-server.

use std::time::{Duration, Instant};

use portcullis::testing::{Resp3Frame, TestServer};

use crate::common::scenes::{play, play_here};
use crate::common::wire::Wire;

#[test]
fn what_is_queued_runs_in_one_step() {
    play(
        "A: MULTI => +OK
         A: SET k 1 => +QUEUED
         A: INCR k => +QUEUED
         B: GET k => $-1
         A: GET k => +QUEUED
         A: EXEC => *3 +OK :2 $1 2
         A: EXEC => -ERR EXEC without MULTI
         A: DISCARD => -ERR DISCARD without MULTI
         A: MULTI => +OK
         A: EXEC => *0
         A: MULTI => +OK
         A: SET k 9 => +QUEUED
         A: DISCARD => +OK
         A: GET k => $1 2
         A: UNWATCH => +OK",
    );
}

#[test]
fn an_error_of_a_command_is_an_element_and_the_rest_goes_on() {
    play(
        "A: SET k text => +OK
         A: MULTI => +OK
         A: INCR k => +QUEUED
         A: HSET k f v => +QUEUED
         A: SELECT 99 => +QUEUED
         A: SET k 2 => +QUEUED
         A: EXEC => *4 -ERR value is not an integer or out of range \
            -WRONGTYPE Operation against a key holding the wrong kind of value -ERR DB index is out of range +OK
         A: GET k => $1 2",
    );
}

#[test]
fn what_cannot_be_queued_makes_exec_fail() {
    play(
        "A: MULTI => +OK
         A: SET k 1 => +QUEUED
         A: NOSUCH a => -ERR unknown command 'NOSUCH', with args beginning with: 'a' \n\
         A: SET k 2 => +QUEUED
         A: EXEC => -EXECABORT Transaction discarded because of previous errors.
         A: EXISTS k => :0
         A: MULTI => +OK
         A: SET k => -ERR wrong number of arguments for 'set' command
         A: DISCARD => +OK
         A: MULTI => +OK
         A: CLIENT NOSUCH => -ERR unknown subcommand 'NOSUCH'. Try CLIENT HELP.
         A: EXEC => -EXECABORT Transaction discarded because of previous errors.
         # Errors of commands that are not queued do not fail the transaction.
         A: MULTI => +OK
         A: MULTI => -ERR MULTI calls can not be nested
         A: WATCH k => -ERR WATCH inside MULTI is not allowed
         A: SET k 3 => +QUEUED
         A: EXEC => *1 +OK
         A: MULTI => +OK
         A: EXEC now => -EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command
         A: EXEC => -ERR EXEC without MULTI
         A: EXEC now => -EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command",
    );
}

#[test]
fn some_commands_are_not_queued() {
    play(
        "A: MULTI => +OK
         A: SAVE => -ERR Command not allowed inside a transaction
         A: SHUTDOWN => -ERR Command not allowed inside a transaction
         A: EXEC => -EXECABORT Transaction discarded because of previous errors.
         A: MULTI => +OK
         A: UNWATCH => +QUEUED
         A: RESET => +RESET
         A: EXEC => -ERR EXEC without MULTI
         A: MULTI => +OK
         A: QUIT => +OK",
    );
}

#[test]
fn a_script_may_be_queued_but_may_not_queue() {
    play(
        r"A: EVAL return\sredis.call('multi') 0 => -ERR This Redis command is not allowed from script*
          A: EVAL return\sredis.call('watch','k') 0 => -ERR This Redis command is not allowed from script*
          A: MULTI => +OK
          A: SET k 5 => +QUEUED
          A: EVAL return\sredis.call('incr',KEYS[1]) 1 k => +QUEUED
          A: EVAL nonsense 0 => +QUEUED
          A: GET k => +QUEUED
          A: EXEC => *4 +OK :6 -ERR Error compiling script*",
    );
}

#[test]
fn a_watched_key_that_changes_makes_exec_do_nothing() {
    play(
        "A: SET k 1 => +OK
         A: WATCH k other => +OK
         B: SET k 2 => +OK
         A: MULTI => +OK
         A: SET k 3 => +QUEUED
         A: EXEC => *-1
         A: GET k => $1 2
         # EXEC ended the watch.
         B: SET k 4 => +OK
         A: MULTI => +OK
         A: GET k => +QUEUED
         A: EXEC => *1 $1 4
         # Commands that change nothing do not count.
         A: WATCH k none => +OK
         B: DEL none => :0
         B: SETNX k 9 => :0
         B: GET k => $1 4
         B: PERSIST k => :0
         A: MULTI => +OK
         A: PING => +QUEUED
         A: EXEC => *1 +PONG
         # The client's own changes count too.
         A: WATCH k => +OK
         A: INCR k => :5
         A: MULTI => +OK
         A: PING => +QUEUED
         A: EXEC => *-1
         # Not another client's transaction, and not a change in another database.
         A: WATCH k => +OK
         B: SELECT 1 => +OK
         B: SET k x => +OK
         B: SELECT 0 => +OK
         A: MULTI => +OK
         A: EXEC => *0
         A: WATCH k => +OK
         B: MULTI => +OK
         B: EXPIRE k 100 => +QUEUED
         B: EXEC => *1 :1
         A: MULTI => +OK
         A: EXEC => *-1
         A: HELLO 3 => %7*
         A: WATCH k => +OK
         B: DEL k => :1
         A: MULTI => +OK
         A: EXEC => _",
    );
}

#[test]
fn keys_of_several_databases_may_be_watched_until_all_are_forgotten() {
    play(
        "A: WATCH k => +OK
         A: SELECT 1 => +OK
         A: WATCH k => +OK
         B: SET k 1 => +OK
         A: MULTI => +OK
         A: EXEC => *-1
         A: WATCH k => +OK
         A: SELECT 0 => +OK
         A: MULTI => +OK
         A: SELECT 1 => +QUEUED
         A: SET k 5 => +QUEUED
         A: EXEC => *2 +OK +OK
         A: GET k => $1 5
         A: WATCH k => +OK
         B: SELECT 1 => +OK
         B: SET k 1 => +OK
         A: UNWATCH => +OK
         A: MULTI => +OK
         A: EXEC => *0
         A: WATCH k => +OK
         B: SET k 1 => +OK
         A: MULTI => +OK
         A: DISCARD => +OK
         A: MULTI => +OK
         A: EXEC => *0
         A: WATCH k => +OK
         B: SET k 1 => +OK
         A: RESET => +RESET
         A: MULTI => +OK
         A: EXEC => *0
         # A later WATCH does not undo the effect of the change.
         A: WATCH a => +OK
         A: SET a 1 => +OK
         A: WATCH b => +OK
         A: MULTI => +OK
         A: EXEC => *-1",
    );
}

#[test]
fn whole_databases_touch_the_keys_that_are_in_there() {
    for flush in ["FLUSHDB", "FLUSHALL"] {
        play(&format!(
            "A: SET k 1 => +OK
             A: WATCH k => +OK
             B: {flush} => +OK
             A: MULTI => +OK
             A: EXEC => *-1
             A: WATCH k => +OK
             B: SET other 1 => +OK
             B: {flush} => +OK
             A: MULTI => +OK
             A: EXEC => *0"
        ));
    }
    play(
        "A: SET k 1 => +OK
         A: WATCH k => +OK
         B: SWAPDB 0 1 => +OK
         A: MULTI => +OK
         A: EXEC => *-1
         A: WATCH k => +OK
         B: SWAPDB 0 1 => +OK
         A: MULTI => +OK
         A: EXEC => *-1
         A: WATCH none => +OK
         B: SWAPDB 0 1 => +OK
         A: MULTI => +OK
         A: EXEC => *0
         # The same value in the other database is a change nevertheless.
         A: SET k 1 => +OK
         A: WATCH k => +OK
         B: SWAPDB 0 1 => +OK
         A: MULTI => +OK
         A: EXEC => *-1
         A: SELECT 3 => +OK
         A: WATCH k => +OK
         B: SWAPDB 0 1 => +OK
         A: MULTI => +OK
         A: EXEC => *0",
    );
}

#[test]
fn a_key_that_ends_meanwhile_was_changed() {
    play(
        "A: SET k 1 PX 400 => +OK
         A: WATCH k => +OK
         pass 600
         A: MULTI => +OK
         A: EXEC => *-1
         # A key that expires without being removed is a change too.
         B: DEBUG SET-ACTIVE-EXPIRE 0 => +OK
         A: SET k 1 PX 400 => +OK
         A: WATCH k => +OK
         pass 600
         A: MULTI => +OK
         A: EXEC => *-1
         # The removal of a key that had expired before WATCH is no change.
         A: WATCH k => +OK
         B: GET k => $-1
         A: MULTI => +OK
         A: EXEC => *0
         A: SET k 1 PX 30 => +OK
         pass 60
         A: WATCH k => +OK
         A: MULTI => +OK
         A: EXEC => *0
         A: WATCH k => +OK
         B: FLUSHDB => +OK
         A: MULTI => +OK
         A: EXEC => *0
         A: SET k 1 PX 30 => +OK
         pass 60
         A: WATCH k => +OK
         B: SWAPDB 0 1 => +OK
         A: MULTI => +OK
         A: EXEC => *0
         A: WATCH k => +OK
         B: SWAPDB 0 1 => +OK
         A: MULTI => +OK
         A: EXEC => *0
         A: SET k 1 PX 30 => +OK
         pass 60
         A: WATCH k => +OK
         B: SET k 2 => +OK
         A: MULTI => +OK
         A: EXEC => *-1",
    );
}

#[test]
fn time_stands_still_within_exec() {
    play_here(
        "A: SET k 1 PX 100 => +OK
         A: MULTI => +OK
         A: PTTL k => +QUEUED
         A: DEBUG SLEEP 1 => +QUEUED
         A: PTTL k => +QUEUED
         A: GET k => +QUEUED
         A: EXEC => *4 :100 +OK :100 $1 1
         A: GET k => $-1",
    );
}

#[test]
fn clients_are_listed_with_their_transactions() {
    let server = TestServer::start();
    let mut a = Wire::connect(server.addr()).expect("a connection");
    let mut b = Wire::connect(server.addr()).expect("a connection");
    let id = b.call(&["CLIENT", "ID"]).expect("a reply").frame.integer().expect("a number").to_string();
    let mut listed = |names: [&str; 4]| {
        let list = a.call(&["CLIENT", "LIST", "ID", &id]).expect("a reply").raw;
        let list = String::from_utf8_lossy(&list).into_owned();
        names.map(|name| {
            let found = list.split(' ').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
            found.unwrap_or_else(|| panic!("no {name} in {list}")).to_owned()
        })
    };
    let names = ["flags", "multi", "watch", "multi-mem"];
    assert_eq!(listed(names), ["N", "-1", "0", "0"]);
    b.call(&["WATCH", "k", "l", "k"]).expect("a reply");
    assert_eq!(listed(names), ["N", "-1", "2", "0"]);
    b.call(&["MULTI"]).expect("a reply");
    b.call(&["SET", "k", &"v".repeat(10_000)]).expect("a reply");
    let [flags, multi, watch, memory] = listed(names);
    assert_eq!([&*flags, &multi, &watch], ["x", "1", "2"]);
    assert!(memory.parse::<usize>().is_ok_and(|bytes| (10_000..11_000).contains(&bytes)), "{memory}");
    server.execute(&["SET", "k", "v"]);
    assert_eq!(listed(names)[0], "xd");
    let info = |field: &str| {
        let info = server.execute(&["INFO", "clients"]);
        let info = info.as_str().expect("a text").to_owned();
        info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':').map(str::to_owned))
    };
    assert_eq!(info("watching_clients").as_deref(), Some("1"));
    // After an error nothing more is queued for a transaction.
    b.call(&["GET", "k"]).expect("a reply");
    assert_eq!(listed(names)[1], "1");
    b.call(&["EXEC"]).expect("a reply");
    assert_eq!(listed(names), ["N", "-1", "0", "0"]);
    assert_eq!((info("watching_clients").as_deref(), info("total_watched_keys").as_deref()), (Some("0"), Some("0")));
}

#[test]
fn a_transaction_that_runs_is_listed_as_long_as_it_was() {
    play(
        r"A: MULTI => +OK
          A: PING => +QUEUED
          A: EVAL return\sredis.call('ping') 0 => +QUEUED
          A: CLIENT INFO => +QUEUED
          A: EXEC => *3 +PONG +PONG $*",
    );
    let server = TestServer::start();
    let mut wire = Wire::connect(server.addr()).expect("a connection");
    for request in [&["MULTI"][..], &["PING"], &["CLIENT", "INFO"], &["CLIENT", "LIST"]] {
        wire.call(request).expect("a reply");
    }
    let replies = wire.call(&["EXEC"]).expect("a reply").frame;
    for shown in &replies.elements().expect("an array")[1..] {
        let shown = String::from_utf8_lossy(shown.text().expect("a text")).into_owned();
        assert!(shown.contains(" flags=x ") && shown.contains(" multi=3 ") && !shown.contains(" multi-mem=0 "), "{shown}");
    }
    let info = wire.call(&["CLIENT", "INFO"]).expect("a reply").raw;
    assert!(String::from_utf8_lossy(&info).contains(" multi=-1 "));
}

#[test]
fn trimming_a_list_touches_it_though_nothing_goes() {
    play(
        "B: RPUSH l a => :1
         A: WATCH l => +OK
         B: LTRIM l 0 -1 => +OK
         A: MULTI => +OK
         A: PING => +QUEUED
         A: EXEC => *-1
         A: WATCH l => +OK
         B: LTRIM none 0 -1 => +OK
         B: LREM l 0 b => :0
         A: MULTI => +OK
         A: PING => +QUEUED
         A: EXEC => *1 +PONG",
    );
}

#[test]
fn what_groups_do_with_a_stream_touches_no_key() {
    play(
        "B: XADD s 1-1 f v => $3 1-1
         A: WATCH s => +OK
         B: XGROUP CREATE s g 0 => +OK
         B: XGROUP CREATECONSUMER s g c => :1
         B: XREADGROUP GROUP g c STREAMS s > => *1*
         B: XCLAIM s g d 0 1-1 => *1*
         B: XACK s g 1-1 => :1
         B: XGROUP SETID s g 0 => +OK
         B: XGROUP DELCONSUMER s g c => :0
         B: XGROUP DESTROY s g => :1
         B: XSETID s 5-5 => +OK
         A: MULTI => +OK
         A: PING => +QUEUED
         A: EXEC => *1 +PONG
         A: WATCH s => +OK
         B: XDEL s 1-1 => :1
         A: MULTI => +OK
         A: PING => +QUEUED
         A: EXEC => *-1
         A: WATCH new => +OK
         B: XGROUP CREATE new g 0 MKSTREAM => +OK
         A: MULTI => +OK
         A: PING => +QUEUED
         A: EXEC => *-1",
    );
}

#[test]
fn shards_are_not_subscribed_to_within_a_transaction() {
    play(
        "A: MULTI => +OK
         A: SSUBSCRIBE news => +QUEUED
         A: PING => +QUEUED
         A: EXEC => *2 -ERR SSUBSCRIBE isn't allowed for a DENY BLOCKING client +PONG",
    );
}

#[test]
fn replies_that_are_not_wanted_are_not_sent() {
    let server = TestServer::start();
    let mut wire = Wire::connect(server.addr()).expect("a connection");
    for request in [&["CLIENT", "REPLY", "OFF"][..], &["MULTI"], &["SET", "k", "v"], &["EXEC"]] {
        wire.queue(request);
    }
    assert_eq!(wire.call(&["CLIENT", "REPLY", "ON"]).expect("a reply").raw, b"+OK\r\n");
    wire.queue(&["CLIENT", "REPLY", "SKIP"]);
    wire.queue(&["MULTI"]);
    assert_eq!(wire.call(&["GET", "k"]).expect("a reply").raw, b"+QUEUED\r\n");
    assert_eq!(wire.call(&["EXEC"]).expect("a reply").raw, b"*1\r\n$1\r\nv\r\n");
}

#[test]
fn a_queue_beyond_the_query_buffer_limit_closes_the_client_alone() {
    let server = TestServer::builder().config("client-query-buffer-limit", "1mb").start();
    for request in [&["SET", "k", &"v".repeat(100_000)][..], &["PING"]] {
        let mut wire = Wire::connect(server.addr()).expect("a connection");
        wire.call(&["MULTI"]).expect("a reply");
        let closed = (0..200_000).any(|_| wire.call(request).is_err());
        assert!(closed, "{}", request[0]);
    }
    let mut wire = Wire::connect(server.addr()).expect("a connection");
    let closed = (0..200_000).any(|i| wire.call(&["WATCH", &i.to_string()]).is_err());
    assert!(closed, "who watches without end");
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let info = server.execute(&["INFO", "clients"]);
        if info.as_str().is_some_and(|info| info.contains("total_watched_keys:0\r\n")) {
            break;
        }
        assert!(Instant::now() < end, "what was watched is forgotten");
        std::thread::sleep(Duration::from_millis(1));
    }
    server.check_invariants();
}
