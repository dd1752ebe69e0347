//! Injected faults between clients and the server, over TCP.

use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

use portcullis::testing::TestServer;

use crate::common::servers::Server;
use crate::common::talk::{call, play, send, told, until, until_blocked};
use crate::common::wire::Wire;

/// A server with a frozen clock, a connection that injects faults, and a client called `victim`.
fn scene() -> (TestServer, Wire, Wire) {
    let server = TestServer::builder().frozen(true).start();
    let (root, mut victim) = (Wire::connect(server.addr()).unwrap(), Wire::connect(server.addr()).unwrap());
    play(&mut victim, &[("CLIENT SETNAME victim", "+OK")]);
    (server, root, victim)
}

#[test]
fn an_error_is_the_reply_and_nothing_is_done() {
    let (server, mut root, mut victim) = scene();
    assert_eq!(root.call(&["FAULT", "ADD", "f", "ERROR", "OOM no\r\nroom", "ON", "set", "TIMES", "2"]).unwrap().raw, b"+OK\r\n");
    play(&mut victim, &[("set k v", "-OOM no  room"), ("EXISTS k", ":0"), ("MULTI", "+OK"), ("SET k v", "-OOM no  room")]);
    assert!(call(&mut victim, "EXEC").starts_with("-EXECABORT"));
    play(&mut victim, &[("SET k v", "+OK")]);
    // An EXEC that fails leaves no transaction behind.
    play(&mut root, &[("FAULT ADD f ERROR LATER ON exec TIMES 1", "+OK")]);
    play(&mut victim, &[("MULTI", "+OK"), ("SET k w", "+QUEUED"), ("EXEC", "-LATER"), ("GET k", "$1 v")]);
    server.check_invariants();
}

#[test]
fn a_dropped_request_is_not_carried_out_and_a_dropped_reply_is_of_one_that_was() {
    let (server, mut root, mut victim) = scene();
    play(&mut root, &[("FAULT ADD f DROP ON set CLIENT victim TIMES 1", "+OK")]);
    send(&mut victim, "SET k 1");
    // The next reply is that to the next request.
    play(&mut victim, &[("EXISTS k", ":0")]);
    play(&mut root, &[("FAULT ADD f DROP-REPLY ON set CLIENT vic* TIMES 1", "+OK")]);
    send(&mut victim, "SET k 2");
    play(&mut victim, &[("GET k", "$1 2"), ("SET k 3", "+OK")]);
    server.check_invariants();
}

#[test]
fn the_reply_to_one_that_waits_is_lost_too() {
    let (server, mut root, mut victim) = scene();
    play(&mut root, &[("FAULT ADD f DROP-REPLY ON blpop", "+OK")]);
    send(&mut victim, "BLPOP queue 0");
    until_blocked(&mut root, 1);
    play(&mut root, &[("RPUSH queue job", ":1"), ("LLEN queue", ":0")]);
    play(&mut victim, &[("PING", "+PONG")]);
    send(&mut victim, "BLPOP queue 10");
    until_blocked(&mut root, 1);
    play(&mut root, &[("CLOCK ADVANCE 10000", "+OK"), ("FAULT RESET", ":1")]);
    play(&mut victim, &[("PING", "+PONG")]);
    // A connection that is to be closed after a blocking command is closed when the wait is over.
    play(&mut root, &[("FAULT ADD f CLOSE-AFTER ON blpop", "+OK")]);
    send(&mut victim, "BLPOP queue 0");
    until_blocked(&mut root, 1);
    assert!(!victim.has_input());
    play(&mut root, &[("RPUSH queue job", ":1"), ("LLEN queue", ":0")]);
    assert_eq!(victim.reply().unwrap_err().kind(), ErrorKind::UnexpectedEof);
    server.check_invariants();
}

#[test]
fn connections_are_closed_or_reset_before_or_after() {
    let server = TestServer::builder().frozen(true).start();
    let mut root = Wire::connect(server.addr()).unwrap();
    for (what, error, done) in [
        ("CLOSE", ErrorKind::UnexpectedEof, ":0"),
        ("RESET", ErrorKind::ConnectionReset, ":0"),
        ("CLOSE-AFTER", ErrorKind::UnexpectedEof, ":1"),
        ("RESET-AFTER", ErrorKind::ConnectionReset, ":1"),
    ] {
        let mut victim = Wire::connect(server.addr()).unwrap();
        play(&mut root, &[("FLUSHALL", "+OK"), (&format!("FAULT ADD f {what} ON set TIMES 1"), "+OK")]);
        // Earlier requests are answered, later ones are not executed.
        victim.queue(&["PING"]);
        victim.queue(&["SET", "k", "v"]);
        victim.queue(&["SET", "behind", "v"]);
        victim.flush().unwrap();
        assert_eq!(told(&mut victim), "+PONG", "{what}");
        assert_eq!(victim.reply().unwrap_err().kind(), error, "{what}");
        play(&mut root, &[("EXISTS k", done), ("EXISTS behind", ":0")]);
    }
    server.check_invariants();
}

#[test]
fn a_delayed_request_is_carried_out_when_its_time_has_come() {
    let (server, mut root, mut victim) = scene();
    play(&mut root, &[("FAULT ADD f DELAY 500 ON set", "+OK")]);
    victim.queue(&["SET", "k", "v", "PX", "1000"]);
    victim.queue(&["GET", "k"]);
    victim.flush().unwrap();
    let begin = Instant::now();
    while !call(&mut root, "FAULT LIST").contains("fired :1") {
        assert!(begin.elapsed() < Duration::from_secs(10));
    }
    server.check_invariants();
    play(&mut root, &[("CLOCK ADVANCE 499", "+OK"), ("EXISTS k", ":0"), ("CLOCK ADVANCE 1", "+OK"), ("PTTL k", ":1000")]);
    assert_eq!([told(&mut victim), told(&mut victim)], ["+OK", "$1 v"]);
    // A delayed request whose client has left is not executed.
    send(&mut victim, "SET gone v");
    while !call(&mut root, "FAULT LIST").contains("fired :2") {}
    drop(victim);
    while !call(&mut root, "INFO clients").contains("connected_clients:1 ") {}
    play(&mut root, &[("CLOCK ADVANCE 500", "+OK"), ("EXISTS gone", ":0")]);
    server.check_invariants();
}

#[test]
fn what_orders_faults_meets_none() {
    let (_server, mut root, mut victim) = scene();
    play(&mut root, &[("FAULT ADD all ERROR down", "+OK")]);
    play(
        &mut victim,
        &[("PING", "-down"), ("nonsense", "-down"), ("CLOCK FREEZE", "+OK"), ("FAULT DEL all", ":1"), ("PING", "+PONG")],
    );
}

#[test]
fn whoever_believes_to_have_no_lock_has_it_and_a_token_shows_it() {
    let (server, mut root, mut victim) = scene();
    play(&mut root, &[("FAULT ADD lost RESET-AFTER ON set CLIENT victim TIMES 1", "+OK")]);
    send(&mut victim, "SET lock mine NX PX 10000");
    assert_eq!(victim.reply().unwrap_err().kind(), ErrorKind::ConnectionReset);
    let mut again = Wire::connect(server.addr()).unwrap();
    // No client can acquire the lock again, but its value shows the owner.
    play(&mut again, &[("SET lock mine NX PX 10000", "$-1"), ("GET lock", "$4 mine")]);
    play(&mut root, &[("CLOCK ADVANCE 10000", "+OK"), ("SET lock other NX PX 10000", "+OK")]);
}

#[test]
fn the_program_has_faults_only_where_it_was_asked_to() {
    let program = Path::new(env!("CARGO_BIN_EXE_portcullis"));
    let server = Server::portcullis(program).unwrap();
    let mut wire = Wire::connect(server.addr).unwrap();
    play(&mut wire, &[("FAULT ADD f DROP", "-ERR FAULT works only in test mode: start the server with --test-mode")]);
    let server = Server::portcullis_with(program, &["--test-mode"]).unwrap();
    let mut wire = Wire::connect(server.addr).unwrap();
    play(&mut wire, &[("FAULT ADD f ERROR down TIMES 1", "+OK"), ("PING", "-down"), ("PING", "+PONG")]);
}

#[test]
fn a_late_reply_is_of_a_request_that_was_carried_out_at_once() {
    let (server, mut root, mut victim) = scene();
    play(&mut root, &[("FAULT ADD f DELAY-REPLY 500 ON incr CLIENT victim TIMES 1", "+OK")]);
    for request in ["PING", "INCR n", "GET n", "INCR n"] {
        victim.queue(&request.split(' ').collect::<Vec<_>>());
    }
    victim.flush().unwrap();
    // Replies to earlier requests are sent, and later requests are executed.
    assert_eq!(told(&mut victim), "+PONG");
    until(&mut root, "GET n", "$1 2");
    server.check_invariants();
    play(&mut root, &[("CLOCK ADVANCE 499", "+OK")]);
    assert!(!victim.has_input());
    play(&mut root, &[("CLOCK ADVANCE 1", "+OK")]);
    assert!(victim.has_input(), "it is there before the clock's reply is");
    assert_eq!([told(&mut victim), told(&mut victim), told(&mut victim)], [":1", "$1 1", ":2"]);
    server.check_invariants();
    // With a blocking command the reply is late by this time, and so are the messages to the client before it.
    play(&mut root, &[("FAULT ADD f DELAY-REPLY 500 ON blpop CLIENT victim", "+OK")]);
    send(&mut victim, "BLPOP queue 10");
    until_blocked(&mut root, 1);
    play(
        &mut root,
        &[("CLOCK ADVANCE 2000", "+OK"), ("RPUSH queue job", ":1"), ("CLOCK ADVANCE 499", "+OK"), ("LLEN queue", ":0")],
    );
    assert!(!victim.has_input());
    play(&mut root, &[("CLOCK ADVANCE 1", "+OK")]);
    assert_eq!(told(&mut victim), "*2 $5 queue $3 job");
    // A connection that ends with a reply ends when the reply has been written.
    play(&mut root, &[("FAULT ADD f DELAY-REPLY 500 ON quit", "+OK")]);
    send(&mut victim, "QUIT");
    until(&mut root, "FAULT LIST", "fired :1");
    play(&mut root, &[("CLOCK ADVANCE 500", "+OK")]);
    assert_eq!(told(&mut victim), "+OK");
    assert_eq!(victim.reply().unwrap_err().kind(), ErrorKind::UnexpectedEof);
    server.check_invariants();
}

#[test]
fn a_late_reply_comes_by_itself_on_a_clock_that_runs() {
    let (server, mut root, mut victim) = scene();
    server.clock().resume();
    play(&mut root, &[("FAULT ADD f DELAY-REPLY 30 ON set TIMES 1", "+OK")]);
    let begin = Instant::now();
    play(&mut victim, &[("SET k v", "+OK")]);
    assert!(begin.elapsed() >= Duration::from_millis(30) && begin.elapsed() < Duration::from_secs(5));
    // A connection that is closed meanwhile leaves nothing behind.
    play(&mut root, &[("FAULT ADD f DELAY-REPLY 3600000 ON set TIMES 1", "+OK")]);
    send(&mut victim, "SET k w");
    until(&mut root, "GET k", "$1 w");
    drop(victim);
    until(&mut root, "INFO clients", "connected_clients:1 ");
    server.check_invariants();
}

#[test]
fn a_reply_trickles() {
    let (server, mut root, mut victim) = scene();
    play(&mut root, &[("SET k 0123456789", "+OK"), ("FAULT ADD f TRICKLE 4 10 ON get TIMES 1", "+OK")]);
    send(&mut victim, "GET k");
    send(&mut victim, "PING");
    until(&mut root, "FAULT LIST", "fired :1");
    let mut so_far = String::new();
    for part in ["$10\r", "\n012", "3456", "789\r"] {
        so_far += part;
        assert_eq!(victim.raw_now(part.len()).unwrap(), part.as_bytes(), "after {so_far:?}");
        assert!(!victim.has_input());
        play(&mut root, &[("CLOCK ADVANCE 9", "+OK")]);
        assert!(!victim.has_input());
        play(&mut root, &[("CLOCK ADVANCE 1", "+OK")]);
    }
    assert_eq!(victim.raw_now(8).unwrap(), b"\n+PONG\r\n");
    // A jump of the clock releases as many bytes at once.
    play(&mut root, &[("FAULT ADD f TRICKLE 1 1 ON get TIMES 1", "+OK")]);
    send(&mut victim, "GET k");
    until(&mut root, "FAULT LIST", "fired :1");
    play(&mut root, &[("CLOCK ADVANCE 16", "+OK")]);
    assert_eq!(told(&mut victim), "$10 0123456789");
    server.check_invariants();
}

#[test]
fn an_outbox_that_is_held_back_does_not_grow_without_end() {
    let (server, mut root, mut victim) = scene();
    let value = "x".repeat(64 << 10);
    play(&mut root, &[(&format!("SET k {value}"), "+OK"), ("FAULT ADD f DELAY-REPLY 1000 ON ping CLIENT victim TIMES 1", "+OK")]);
    victim.queue(&["PING"]);
    for _ in 0..64 {
        victim.queue(&["GET", "k"]);
    }
    victim.flush().unwrap();
    until(&mut root, "INFO commandstats", "cmdstat_get:calls=4,");
    for _ in 0..100 {
        play(&mut root, &[("PING", "+PONG")]);
    }
    assert!(call(&mut root, "INFO commandstats").contains("cmdstat_get:calls=4,"), "no more are carried out for now");
    play(&mut root, &[("CLOCK ADVANCE 1000", "+OK")]);
    assert_eq!(told(&mut victim), "+PONG");
    for _ in 0..64 {
        assert_eq!(victim.reply().unwrap().raw.len(), value.len() + 10);
    }
    server.check_invariants();
}
