//! The helpers of the test server: faults, snapshots, restarts, leaked locks.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use portcullis::testing::{Fault, FaultRule, Frame, Pace, TestServer, When};

use crate::common::reserved;
use crate::common::talk::{call, play, send, token, told, until};
use crate::common::wire::Wire;

fn said(test: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(test)).expect_err("it panics");
    panic.downcast_ref::<String>().cloned().unwrap_or_default()
}

#[test]
fn a_server_within_a_program_with_another_allocator_reserves_nothing() {
    let server = TestServer::builder().start();
    let mut wire = Wire::connect(server.addr()).unwrap();
    assert_eq!(call(&mut wire, "SET k v"), "+OK");
    assert!(!reserved::as_much_as_the_memory());
}

#[test]
fn rules_are_the_same_as_values_and_as_words() {
    let server = TestServer::builder()
        .fault(FaultRule::new("a", Fault::PaceReply(Pace::Trickle { bytes: 3, every_ms: 5 })).on("lock.*").client("w-*").after(2))
        .fault("b ERROR 'OOM no room' PROBABILITY 0.25 TIMES 3")
        .start();
    server.faults().add(FaultRule::new("c", Fault::Restart { when: When::AfterReply, lose: Some(2) }));
    let mut wire = Wire::connect(server.addr()).unwrap();
    for words in
        ["A TRICKLE 3 5 ON lock.* CLIENT w-* AFTER 2", "B ERROR x PROBABILITY 0.25 TIMES 3", "C RESTART-AFTER-REPLY LOSE 2"]
    {
        assert_eq!(call(&mut wire, &format!("FAULT ADD {words}")), "+OK", "{words}");
    }
    let rules = server.faults().rules();
    for at in 0..3 {
        let (value, words) = (&rules[at], &rules[at + 3]);
        assert_eq!((&value.on, &value.client, value.times, value.after), (&words.on, &words.client, words.times, words.after));
        assert_eq!(value.probability.to_bits(), words.probability.to_bits());
        if at != 1 {
            assert_eq!(value.fault, words.fault);
        }
    }
    assert_eq!(rules[1].fault, Fault::Error("OOM no room".to_owned()));
    assert!(server.faults().remove("a") && !server.faults().remove("a"));
    assert_eq!(server.faults().clear(), 5);
    assert_eq!(said(|| server.faults().add("a EXPLODE")), "no fault: a EXPLODE: ERR syntax error");
    assert_eq!(said(|| server.faults().add("a ERROR 'x")), "no fault: a ERROR 'x: UnbalancedQuotes");
    assert!("".parse::<FaultRule>().is_err());
}

#[test]
fn chance_follows_from_the_seed_of_the_server() {
    let run = |seed: u64| {
        let server = TestServer::builder().seed(seed).fault("f ERROR no ON ping PROBABILITY 0.5").start();
        let mut wire = Wire::connect(server.addr()).unwrap();
        (0..64).map(|_| call(&mut wire, "PING") == "-no").collect::<Vec<_>>()
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

#[test]
fn a_snapshot_is_put_back_between_tests() {
    let server = TestServer::builder().frozen(true).start();
    let mut wire = Wire::connect(server.addr()).unwrap();
    play(&mut wire, &[("RPUSH jobs a b", ":2"), ("SET k v PX 5000", "+OK")]);
    let granted = token(&mut wire, "LOCK.ACQUIRE door ann 10000 SESSION");
    let fixture = server.snapshot();
    let mut waiter = Wire::connect(server.addr()).unwrap();
    let mut subscriber = Wire::connect(server.addr()).unwrap();
    call(&mut subscriber, "SUBSCRIBE news");
    for _ in 0..3 {
        play(&mut wire, &[("LPOP jobs", "$1 a"), ("SELECT 5", "+OK"), ("SET stray 1", "+OK"), ("SELECT 0", "+OK")]);
        play(&mut wire, &[("LOCK.RELEASE door ann", ":0"), ("WATCH k", "+OK")]);
        send(&mut waiter, "BLPOP nothing 0");
        server.until_blocked(1);
        server.clock().advance(Duration::from_secs(3600));
        server.restore(&fixture);
        assert_eq!(told(&mut waiter), "*-1");
        play(&mut wire, &[("MULTI", "+OK"), ("PING", "+QUEUED"), ("EXEC", "*-1")]);
        play(&mut wire, &[("LRANGE jobs 0 -1", "*2 $1 a $1 b"), ("PTTL k", ":5000"), ("SELECT 5", "+OK"), ("DBSIZE", ":0")]);
        play(&mut wire, &[("SELECT 0", "+OK"), ("PTTL door", ":10000"), (&format!("LOCK.CHECK door {granted}"), ":1")]);
        play(&mut wire, &[("PUBLISH news x", ":1")]);
        assert_eq!(told(&mut subscriber), "*3 $7 message $4 news $1 x");
        server.check_invariants();
    }
    // The restored grant is tied to its connection.
    drop(wire);
    let mut wire = Wire::connect(server.addr()).unwrap();
    until(&mut wire, "EXISTS door", ":0");
    server.restore(&fixture);
    play(&mut wire, &[("EXISTS door k", ":1")]);
    // Restored on another server, with another uptime.
    let other = TestServer::builder().frozen(true).start();
    other.restore(&fixture);
    assert_eq!(other.ttl("k"), Some(Duration::from_millis(5000)));
    other.check_invariants();
    let other = TestServer::builder().seed(1).start();
    assert_eq!(said(|| other.restore(&fixture)), "a snapshot of a server with another seed");
    assert_eq!(other.dbsize(), 0);
}

#[test]
fn a_snapshot_needs_the_databases_that_it_has_keys_in() {
    let server = TestServer::start();
    let mut wire = Wire::connect(server.addr()).unwrap();
    play(&mut wire, &[("SET k v", "+OK"), ("SELECT 9", "+OK"), ("SET k v", "+OK")]);
    let fixture = server.snapshot();
    let other = TestServer::builder().databases(9).start();
    assert_eq!(said(|| other.restore(&fixture)), "a snapshot of a server with more databases");
    assert_eq!(other.dbsize(), 0);
    let other = TestServer::builder().databases(10).start();
    other.restore(&fixture);
    assert_eq!(other.dbsize(), 1);
}

#[test]
fn nothing_that_one_test_has_held_up_comes_about_in_the_next() {
    let server = TestServer::builder().frozen(true).journal(10).fault("slow DELAY 1000 ON set").start();
    let empty = server.snapshot();
    let [mut delayed, mut paused, mut pausing] = std::array::from_fn(|_| Wire::connect(server.addr()).unwrap());
    send(&mut delayed, "SET k v");
    server.until_blocked(1);
    call(&mut pausing, "CLIENT PAUSE 5000");
    send(&mut paused, "CLIENT PAUSE 5000");
    server.until_blocked(2);
    send(&mut pausing, "APPEND k v");
    server.until_blocked(3);
    assert!(call(&mut Wire::connect(server.addr()).unwrap(), "CLOCK INFO").ends_with("$15 blocked-clients :3"));
    server.restore(&empty);
    server.check_invariants();
    assert_eq!(told(&mut delayed), "+OK");
    assert_eq!(told(&mut paused), "+OK");
    assert_eq!(told(&mut pausing), ":2");
    play(&mut pausing, &[("APPEND other v", ":1"), ("CLOCK ADVANCE 10000", "+OK"), ("EXISTS k", ":0")]);
    assert_eq!(server.restart_losing(1), 1);
    assert_eq!(server.dbsize(), 0);
}

#[test]
fn leaked_locks_are_named() {
    let server = TestServer::builder().frozen(true).start();
    server.assert_no_leaked_locks();
    let mut wire = Wire::connect(server.addr()).unwrap();
    play(&mut wire, &[("CLIENT SETNAME worker-1", "+OK"), ("SET user:1 x", "+OK"), ("SET block:7 x", "+OK")]);
    server.assert_no_leaked_locks();
    let granted = token(&mut wire, "LOCK.ACQUIRE door ann 10000");
    play(&mut wire, &[("SELECT 2", "+OK"), ("SET lock:order:7 bob NX PX 30000", "+OK")]);
    let id = call(&mut wire, "CLIENT ID");
    server.clock().advance(Duration::from_millis(1500));
    let text = said(|| server.assert_no_leaked_locks());
    let start = format!(
        "2 locks are still held:\n  door (lock) held by 'ann' for 1500 ms, token {granted}, ends in 8500 ms, by client {} at 127.0.0.1:",
        &id[1..]
    );
    assert!(text.starts_with(&start), "{text}\n{start}");
    let middle = format!(
        ", 'worker-1'\n  lock:order:7 (string in database 2) held by 'bob', last used 1 s ago, ends in 28500 ms, last written by client {} at 127.0.0.1:",
        &id[1..]
    );
    assert!(text.contains(&middle) && text.ends_with(", 'worker-1'"), "{text}\n{middle}");
    // The same over the wire, for tests in any language.
    assert!(call(&mut wire, "FAULT LEAKS").contains("$4 text $"));
    play(&mut wire, &[("SELECT 0", "+OK"), ("LOCK.RELEASE door ann", ":0")]);
    assert_eq!(
        call(&mut wire, "FAULT LEAKS user:*"),
        "*1 *24 $2 db :0 $4 name $6 user:1 $4 type $6 string $6 holder $1 x $5 token $-1 $6 age-ms $-1 $6 ttl-ms $-1 $9 client-id $-1 \
         $11 client-addr $-1 $11 client-name $-1 $14 client-gone-ms $-1 $4 text $68 user:1 (string) held by 'x', last used 1 s ago, never ends by itself"
    );
    assert_eq!(server.leaked_locks().len(), 1);
    server.clock().advance(Duration::from_millis(28_500));
    server.assert_no_leaked_locks();
    // The author of the test names the keys that are locks.
    let server = TestServer::builder().lock_keys("held:*").lock_keys("*.pid").start();
    for (key, leaks) in [("lock:a", 0), ("held:a", 1), ("b.pid", 2)] {
        server.execute(&["SET", key, "x"]);
        assert_eq!(server.leaked_locks().len(), leaks, "{key}");
    }
}

#[test]
fn a_server_is_started_again_from_rust() {
    let server = TestServer::builder().journal(2).start();
    let mut wire = Wire::connect(server.addr()).unwrap();
    play(&mut wire, &[("SET a 1", "+OK"), ("SET b 1", "+OK"), ("SET c 1", "+OK")]);
    assert!(said(|| assert_eq!(server.restart_losing(3), 0)).starts_with("the last 2 writes are kept, not 3"));
    assert_eq!(server.restart_losing(2), 2);
    assert!(wire.reply().is_err());
    assert_eq!(server.keys(), ["a"]);
    server.restart();
    assert_eq!(server.dbsize(), 0);
    assert_eq!(server.execute(&["FAULT", "RESTART"]), Frame::SimpleString { data: "OK".into(), attributes: None });
    server.check_invariants();
}

#[test]
fn clients_are_had_at_once() {
    let server = TestServer::builder().frozen(true).start();
    let begin = Instant::now();
    crate::common::clients::run(async {
        let client = server.client().await;
        client.command(&["SET", "k", "v"]).await.unwrap();
    });
    assert_eq!(server.get("k").as_deref(), Some("v"));
    assert_eq!(server.blocked_clients(), 0);
    assert!(begin.elapsed() < Duration::from_secs(5));
}
