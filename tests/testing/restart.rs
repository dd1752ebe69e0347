//! Servers that a test kills and restarts, or fails over, over TCP.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use portcullis::testing::TestServer;

use crate::common::talk::{call, play, send, token, told, until, until_blocked};
use crate::common::wire::Wire;

fn scene() -> (TestServer, impl Fn() -> Wire) {
    let server = TestServer::builder().frozen(true).start();
    let addr = server.addr();
    (server, move || Wire::connect(addr).unwrap())
}

/// Whether a connection is closed. Data before the end is ignored.
fn is_closed(wire: &mut Wire) -> bool {
    loop {
        match wire.reply() {
            Ok(_) => {}
            // An incomplete reply, whose end does not come.
            Err(error) if error.kind() == ErrorKind::InvalidData => {}
            Err(error) => return matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset),
        }
    }
}

#[test]
fn every_connection_is_closed_and_nothing_is_left() {
    let (server, connect) = scene();
    let (mut root, mut idle, mut subscriber, mut waiter, mut queued) = (connect(), connect(), connect(), connect(), connect());
    play(&mut root, &[("SET k v", "+OK"), ("SELECT 2", "+OK"), ("SET k v", "+OK"), ("SELECT 0", "+OK")]);
    play(&mut idle, &[("PING", "+PONG"), ("MULTI", "+OK"), ("SET a b", "+QUEUED")]);
    call(&mut subscriber, "SUBSCRIBE news");
    send(&mut waiter, "BLPOP queue 0");
    token(&mut root, "LOCK.ACQUIRE door ann 1000");
    send(&mut queued, "LOCK.ACQUIRE door bob 1000 WAIT 0");
    until_blocked(&mut root, 2);
    let clock = call(&mut root, "CLOCK INFO");
    assert!(clock.ends_with("$15 blocked-clients :2"), "{clock}");
    let clock = clock.replace("clients :2", "clients :0");
    play(&mut root, &[("FAULT RESTART", "+OK")]);
    for wire in [&mut root, &mut idle, &mut subscriber, &mut waiter, &mut queued] {
        assert!(is_closed(wire));
    }
    let mut root = connect();
    until(&mut root, "INFO clients", "connected_clients:1 ");
    play(
        &mut root,
        &[("DBSIZE", ":0"), ("SELECT 2", "+OK"), ("DBSIZE", ":0"), ("PUBSUB CHANNELS", "*0"), ("CLOCK INFO", &clock)],
    );
    assert!(call(&mut root, "INFO stats").contains("total_connections_received:1 "));
    server.check_invariants();
    // The restarted server works like any other.
    play(&mut root, &[("SET k v PX 100", "+OK"), ("CLOCK ADVANCE 100", "+OK"), ("DBSIZE", ":0")]);
}

#[test]
fn what_was_sent_behind_it_is_not_carried_out() {
    let (server, connect) = scene();
    let mut wire = connect();
    for request in ["SET a 1", "FAULT RESTART", "SET b 1"] {
        wire.queue(&request.split(' ').collect::<Vec<_>>());
    }
    wire.flush().unwrap();
    assert_eq!([told(&mut wire), told(&mut wire)], ["+OK", "+OK"]);
    assert!(is_closed(&mut wire));
    assert_eq!(server.keys(), [] as [&str; 0]);
    server.check_invariants();
}

#[test]
fn a_failover_gives_the_same_lock_to_two() {
    let (server, connect) = scene();
    let mut root = connect();
    play(&mut root, &[("FAULT ADD failover RESTART-AFTER-REPLY LOSE 1 ON set CLIENT ann TIMES 1", "+OK")]);
    let (mut ann, mut bob) = (connect(), connect());
    play(&mut ann, &[("CLIENT SETNAME ann", "+OK")]);
    play(&mut bob, &[("SET other 1 PX 5000", "+OK"), ("SET door bob NX PX 10000", "+OK"), ("DEL door", ":1")]);
    // Ann gets the lock, but her server forgets the grant.
    play(&mut ann, &[("SET door ann NX PX 10000", "+OK")]);
    assert!(is_closed(&mut ann) && is_closed(&mut bob));
    let mut bob = connect();
    play(&mut bob, &[("SET door bob NX PX 10000", "+OK"), ("PTTL other", ":5000"), ("FAULT DEL failover", ":1")]);
    server.check_invariants();
}

#[test]
fn a_token_that_was_lost_does_not_come_again() {
    let (server, connect) = scene();
    let mut wire = connect();
    play(&mut wire, &[("FAULT JOURNAL 100", "+OK")]);
    let lost = token(&mut wire, "LOCK.ACQUIRE door ann 10000");
    play(&mut wire, &[("FAULT RESTART LOSE 1", ":1")]);
    let mut wire = connect();
    let next = token(&mut wire, "LOCK.ACQUIRE door bob 10000");
    assert!(next > lost);
    play(&mut wire, &[(&format!("LOCK.GUARD resource {next}"), "+OK")]);
    assert!(call(&mut wire, &format!("LOCK.GUARD resource {lost}")).starts_with("-STALE"));
    // The waiter is gone, and the holder's lease continues.
    let mut waiter = connect();
    send(&mut waiter, "LOCK.ACQUIRE door cid 10000 WAIT 0");
    until_blocked(&mut wire, 1);
    play(&mut wire, &[("FAULT RESTART LOSE 0", ":0")]);
    assert!(is_closed(&mut waiter));
    let mut wire = connect();
    play(&mut wire, &[("PTTL door", ":10000"), ("CLOCK ADVANCE 10000", "+OK"), ("EXISTS door", ":0")]);
    server.check_invariants();
}

#[test]
fn a_rule_that_fires_while_a_script_runs_long_waits_for_its_end() {
    let server = TestServer::builder().config("busy-reply-threshold", "1").start();
    let connect = || Wire::connect(server.addr()).unwrap();
    let (mut root, mut script, mut victim) = (connect(), connect(), connect());
    play(&mut root, &[("FAULT ADD f RESTART ON ping TIMES 1", "+OK"), ("SET k v", "+OK")]);
    script.queue(&["EVAL", "while true do end", "0"]);
    script.flush().unwrap();
    until(&mut root, "GET k", "-BUSY");
    send(&mut victim, "PING");
    until(&mut root, "FAULT LIST", "-BUSY");
    play(&mut root, &[("SCRIPT KILL", "+OK")]);
    assert!(is_closed(&mut victim) && is_closed(&mut root) && is_closed(&mut script));
    assert_eq!(server.dbsize(), 0);
    server.check_invariants();
}

#[test]
fn it_takes_no_time() {
    let (server, connect) = scene();
    // The shortest of many rounds: in some of them other programs have the processor.
    let shortest = (0..200).map(|round| {
        let mut wire = connect();
        let begin = Instant::now();
        play(&mut wire, &[("SET k v", "+OK"), ("FAULT RESTART", "+OK")]);
        assert!(is_closed(&mut wire), "{round}");
        begin.elapsed()
    });
    let shortest = shortest.min().unwrap();
    assert!(shortest < Duration::from_millis(100), "{shortest:?}");
    server.check_invariants();
}

#[test]
fn sessions_may_be_in_any_state() {
    let server =
        TestServer::builder().frozen(true).config("maxmemory-clients", "100mb").config("notify-keyspace-events", "KEA").start();
    let connect = || Wire::connect(server.addr()).unwrap();
    for lose in ["", " LOSE 1"] {
        let mut root = connect();
        let requests = [
            "MONITOR",
            "SUBSCRIBE a",
            "PSUBSCRIBE *",
            "SSUBSCRIBE a",
            "CLIENT TRACKING on BCAST",
            "WATCH k",
            "MULTI",
            "CLIENT REPLY OFF",
            "BLPOP queue 100",
            "LOCK.ACQUIRE held y 1000 WAIT 100000",
            "SET late 1",
            "ECHO slow",
            "LOCK.ACQUIRE bound z 1000 SESSION",
        ];
        play(&mut root, &[("FAULT JOURNAL 10", "+OK"), ("FAULT ADD d DELAY 1000 ON set", "+OK")]);
        play(&mut root, &[("FAULT ADD e TRICKLE 1 1000 ON echo", "+OK")]);
        token(&mut root, "LOCK.ACQUIRE held x 100000");
        let mut others: Vec<Wire> = requests
            .iter()
            .map(|request| {
                let mut wire = connect();
                call(&mut wire, "HELLO 3");
                send(&mut wire, request);
                wire
            })
            .collect();
        server.until_blocked(3);
        until(&mut root, "INFO commandstats", "cmdstat_echo:calls=1,");
        let mut paused = connect();
        play(&mut root, &[("CLIENT PAUSE 100000 WRITE", "+OK")]);
        send(&mut paused, "INCR n");
        server.until_blocked(4);
        server.check_invariants();
        assert!(call(&mut root, &format!("FAULT RESTART{lose}")).starts_with(['+', ':']));
        for wire in others.iter_mut().chain([&mut paused, &mut root]) {
            assert!(is_closed(wire));
        }
        server.check_invariants();
        let mut root = connect();
        until(&mut root, "INFO clients", "connected_clients:1 ");
        play(&mut root, &[("FAULT RESET", ":2"), ("INCR n", ":1"), ("DEL n", ":1"), ("PUBLISH a x", ":0")]);
        server.clock().advance(Duration::from_secs(1000));
        assert_eq!(server.keys(), [] as [&str; 0]);
        server.check_invariants();
    }
}
