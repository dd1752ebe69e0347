//! What goes wrong between clients and the server because a test ordered it, over TCP.

#![allow(clippy::unwrap_used)]

mod common;

use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

use common::servers::Server;
use common::talk::{call, play, send, told, until_blocked};
use common::wire::Wire;
use portcullis::testing::TestServer;

/// A server whose clock stands still, one who orders faults, and a client called `victim` that meets them.
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
    // What comes next is the reply to the next request.
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
    // A connection that is closed after a wait is closed when it is over.
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
        // What was sent before is answered, what comes behind is not carried out.
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
    // One whose client has gone meanwhile is not carried out.
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
    // To take it once more does not work, for anybody; its value tells whose it is.
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
