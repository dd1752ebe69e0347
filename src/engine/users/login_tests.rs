//! Logins of addresses from which others have failed.

#![allow(clippy::unwrap_used)]

use crate::base::ids::SessionId;
use crate::engine::harness::Harness;
use crate::engine::session::{Peer, SessionFlags};
use crate::engine::users::guesses::Source;

/// An engine with a password, and a session on this machine.
fn start() -> Harness {
    let mut h = Harness::new();
    assert_eq!(h.run("CONFIG SET requirepass right"), "+OK");
    h
}

fn connect(h: &mut Harness, addr: &str) -> SessionId {
    h.engine.connect(h.now, Peer { addr: addr.into(), ..Peer::default() })
}

/// Sends a request. Returns the reply; empty if it waits.
fn ask(h: &mut Harness, id: SessionId, words: &str) -> String {
    let args: Vec<&[u8]> = words.split_whitespace().map(str::as_bytes).collect();
    h.engine.execute(h.now, id, &args);
    h.engine.check_invariants();
    h.outbox(id)
}

fn waits(h: &Harness, id: SessionId) -> bool {
    h.engine.clients.sessions[id].flags.contains(SessionFlags::BLOCKED)
}

const WRONG: &str = "-WRONGPASS invalid username-password pair or user is disabled.";

/// Makes logins of an address fail until they wait a second.
fn fail_often(h: &mut Harness, addr: &str) {
    let id = connect(h, addr);
    for _ in 0..8 {
        if ask(h, id, "AUTH wrong").is_empty() {
            h.pass(1000);
            assert_eq!(h.outbox(id), WRONG);
        }
    }
    h.engine.disconnect(h.now, id);
}

#[test]
fn a_login_waits_after_failures_and_the_right_password_gets_in() {
    let mut h = start();
    fail_often(&mut h, "192.0.2.1:1");
    for request in ["AUTH right", "HELLO 3 AUTH default right"] {
        // Another port is the same client; the wait is the same for a right and a wrong password.
        let [right, wrong] = ["192.0.2.1:2", "192.0.2.1:3"].map(|addr| connect(&mut h, addr));
        assert_eq!(ask(&mut h, right, request), "");
        assert_eq!(ask(&mut h, wrong, "AUTH wrong"), "");
        h.pass(999);
        assert!(waits(&h, right) && waits(&h, wrong), "{request}");
        h.pass(1);
        assert!(!waits(&h, right) && !waits(&h, wrong), "{request}");
        assert_eq!(h.outbox(wrong), WRONG);
        let reply = h.outbox(right);
        assert!(reply.starts_with(if request == "AUTH right" { "+OK" } else { "%7" }), "{request}: {reply}");
        assert_eq!(ask(&mut h, right, "SET a 1"), "+OK");
    }
    assert_eq!(h.engine.users.log.denied()[0], 10, "each failure is in the log");
}

#[test]
fn other_addresses_and_this_machine_do_not_wait() {
    let mut h = start();
    fail_often(&mut h, "[2001:db8::1]:1");
    let neighbour = connect(&mut h, "[2001:db8::2]:1");
    assert_eq!(ask(&mut h, neighbour, "AUTH right"), "", "one machine has all addresses of a network");
    for addr in ["[2001:db8:0:1::1]:1", "192.0.2.7:1"] {
        let id = connect(&mut h, addr);
        assert_eq!(ask(&mut h, id, "AUTH right"), "+OK", "{addr}");
    }
    for (addr, unix) in [("127.0.0.1:1", false), ("[::1]:1", false), ("/run/p.sock:0", true), ("192.0.2.9:1", true)] {
        let id = h.engine.connect(h.now, Peer { addr: addr.into(), unix, ..Peer::default() });
        (0..20).for_each(|_| assert_eq!(ask(&mut h, id, "AUTH wrong"), WRONG, "{addr}"));
        assert_eq!(ask(&mut h, id, "AUTH right"), "+OK", "{addr}");
    }
    assert_eq!(h.run("CONFIG SET login-delay-max 0"), "+OK");
    let id = connect(&mut h, "[2001:db8::3]:1");
    assert_eq!(ask(&mut h, id, "AUTH wrong"), WRONG, "it is switched off");
}

#[test]
fn a_wait_cannot_be_cut_short_or_gone_around() {
    let mut h = start();
    assert_eq!(h.run("ACL SETUSER low on >low +@all ~*"), "+OK");
    let low = connect(&mut h, "192.0.2.1:9");
    assert_eq!(ask(&mut h, low, "AUTH low low"), "+OK");
    fail_often(&mut h, "192.0.2.1:1");
    let waiting = connect(&mut h, "192.0.2.1:2");
    assert_eq!(ask(&mut h, waiting, "AUTH right"), "");
    let client = h.engine.clients.sessions[waiting].id;
    assert_eq!(h.run(&format!("CLIENT UNBLOCK {client}")), ":0");
    assert_eq!(h.run(&format!("CLIENT UNBLOCK {client} ERROR")), ":0");
    assert!(waits(&h, waiting));
    for words in ["MULTI", "AUTH right"] {
        ask(&mut h, low, words);
    }
    let reply = ask(&mut h, low, "EXEC");
    assert!(reply.contains("-ERR Too many logins from this address have failed"), "{reply}");
    // It leaves before its turn: nothing is tried for it.
    h.engine.disconnect(h.now, waiting);
    h.pass(5000);
    assert_eq!(ask(&mut h, low, "AUTH right"), "+OK", "after a while nobody waits");
}

#[test]
fn a_login_waits_a_bounded_time_among_many_guesses() {
    let mut h = start();
    fail_often(&mut h, "192.0.2.1:1");
    let guessers: Vec<SessionId> = (0..500).map(|port| connect(&mut h, &format!("192.0.2.1:{port}"))).collect();
    for &id in &guessers {
        assert_eq!(ask(&mut h, id, "AUTH wrong"), "");
    }
    let right = connect(&mut h, "192.0.2.1:900");
    assert_eq!(ask(&mut h, right, "AUTH right"), "");
    // Nobody else notices.
    assert_eq!(h.run("SET a 1"), "+OK");
    h.pass(1000);
    assert_eq!(h.outbox(right), "+OK");
    assert!(guessers.into_iter().all(|id| h.outbox(id) == WRONG));
}

#[test]
fn a_clock_that_is_set_holds_nobody_back_and_forgets_no_failure() {
    for by_us in [86_400_000_000, -100_000_000] {
        let mut h = start();
        h.pass(200_000);
        fail_often(&mut h, "192.0.2.1:1");
        let first = connect(&mut h, "192.0.2.1:2");
        assert_eq!(ask(&mut h, first, "AUTH right"), "");
        let mut now = h.now;
        now.shift_us(by_us);
        h.engine.move_marks(now, by_us);
        h.engine.check_invariants();
        assert!(!waits(&h, first), "it is tried");
        assert_eq!(h.outbox(first), "+OK");
        assert!(h.engine.login_due(now, Source::of_client("192.0.2.1:3").unwrap()).is_some(), "the next one waits, as before");
        now.shift_us(61_000_000);
        assert!(h.engine.login_due(now, Source::of_client("192.0.2.1:3").unwrap()).is_none(), "a minute later it does not");
    }
}
