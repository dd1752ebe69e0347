//! Native locks for administrators: INFO, the directives that bound the history, LATENCY, and the effects on holders and waiters
//! when databases are emptied or swapped. The clock is frozen unless a scene moves it.

use std::collections::BTreeMap;
use std::time::Duration;

use portcullis::testing::TestServer;

use crate::common::scenes::play_here;
use crate::common::talk::{call, send, told};
use crate::common::wire::Wire;

/// The fields of INFO's section about locks.
fn info(wire: &mut Wire) -> BTreeMap<String, u64> {
    let reply = wire.call(&["INFO", "locks"]).unwrap();
    let text = String::from_utf8(reply.frame.text().unwrap().to_vec()).unwrap();
    assert!(text.starts_with("# Locks\r\n"), "{text}");
    text.lines().filter_map(|line| line.split_once(':')).map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect()
}

fn until_waiting(control: &mut Wire, count: u64) {
    while info(control)["lock_waiters"] != count {}
}

#[test]
fn info_counts_what_is_held_who_waits_and_what_has_happened() {
    let server = TestServer::builder().frozen(true).start();
    let connect = || Wire::connect(server.addr()).unwrap();
    let (mut a, mut b, mut c) = (connect(), connect(), connect());
    assert!(info(&mut a).iter().all(|(name, value)| *value == 0 || name == "lock_last_fence"));
    let token = call(&mut a, "LOCK.ACQUIRE one x 1000 SESSION");
    call(&mut a, "LOCK.ACQUIRE two x 1000 SHARED");
    call(&mut a, "LOCK.ACQUIRE two y 1000 SHARED");
    call(&mut a, "LOCK.ACQUIRE two y 1000 SHARED");
    call(&mut a, "SEM.ACQUIRE s x 500 LIMIT 5 PERMITS 2");
    call(&mut a, "SEM.ACQUIRE s y 500 LIMIT 5 PERMITS 3");
    send(&mut b, "LOCK.ACQUIRE one z 1000 WAIT 0");
    until_waiting(&mut a, 1);
    let fields = info(&mut a);
    let first: u64 = token[1..].parse().unwrap();
    for (name, value) in [
        ("lock_held", 2),
        ("lock_semaphores_held", 1),
        ("lock_permits_out", 5),
        ("lock_holders", 5),
        ("lock_session_holders", 1),
        ("lock_waiters", 1),
        ("lock_contended", 1),
        ("lock_longest_queue", 1),
        ("lock_grants", 5),
        ("lock_immediate_grants", 5),
        ("lock_queued_grants", 0),
        ("lock_remembered_names", 3),
        ("lock_last_fence", first + 4),
    ] {
        assert_eq!(fields[name], value, "{name}");
    }
    server.clock().advance(Duration::from_millis(500));
    assert_eq!(call(&mut a, "LOCK.RELEASE one x"), ":0");
    assert!(told(&mut b).starts_with(':'));
    assert_eq!(call(&mut c, "LOCK.ACQUIRE one w 1000"), "$-1");
    send(&mut c, "LOCK.ACQUIRE one w 1000 WAIT 10");
    until_waiting(&mut a, 1);
    server.clock().advance(Duration::from_millis(10));
    assert_eq!(told(&mut c), "$-1");
    assert_eq!(call(&mut a, "DEL two"), ":1");
    let fields = info(&mut a);
    for (name, value) in [
        ("lock_held", 1),
        ("lock_semaphores_held", 0),
        ("lock_permits_out", 0),
        ("lock_holders", 1),
        ("lock_session_holders", 0),
        ("lock_waiters", 0),
        ("lock_contended", 0),
        ("lock_grants", 6),
        ("lock_queued_grants", 1),
        ("lock_releases", 1),
        ("lock_expiries", 2),
        ("lock_deletions", 2),
        ("lock_timeouts", 1),
        ("lock_deadlocks_refused", 0),
    ] {
        assert_eq!(fields[name], value, "{name}");
    }
    // The resolution of waits is an eighth.
    assert!((500_000..=562_500).contains(&fields["lock_wait_usec_p50"]), "{fields:?}");
    assert_eq!(fields["lock_wait_usec_p50"], fields["lock_wait_usec_max"]);
    for asked in ["", "all", "everything", "default", "LOCKS"] {
        assert!(call(&mut a, &format!("INFO {asked}")).contains("# Locks lock_held:1 "), "{asked}");
    }
    call(&mut a, "CONFIG RESETSTAT");
    let fields = info(&mut a);
    assert_eq!((fields["lock_held"], fields["lock_grants"], fields["lock_wait_usec_max"]), (1, 0, 0));
    call(&mut a, "FLUSHALL");
    let fields = info(&mut a);
    assert_eq!((fields["lock_held"], fields["lock_holders"], fields["lock_deletions"]), (0, 0, 1));
    server.check_invariants();
}

#[test]
fn what_is_remembered_of_long_waits_is_bounded_by_directives() {
    play_here(
        "A: CONFIG GET lock-slowlog-* => *4 $28 lock-slowlog-log-slower-than $4 1000 $20 lock-slowlog-max-len $3 128
         A: CONFIG SET lock-slowlog-log-slower-than 10 lock-slowlog-max-len 2 => +OK
         A: LOCK.ACQUIRE a x 90000 => :*
         B: LOCK.ACQUIRE a y 90000 WAIT 9
         pass 9
         B <= $-1
         A: LOCK.SLOWLOG LEN => :0
         B: LOCK.ACQUIRE a y 90000 WAIT 10
         pass 10
         B <= $-1
         B: LOCK.ACQUIRE a y 90000 WAIT 11
         pass 11
         B <= $-1
         B: LOCK.ACQUIRE a y 90000 WAIT 12
         pass 12
         B <= $-1
         A: HELLO 3 => %7*
         A: LOCK.SLOWLOG GET => *2 %8 $2 id :2 $4 time :*
         A: CONFIG SET lock-slowlog-max-len 1 => +OK
         A: LOCK.SLOWLOG GET => *1 %8 $2 id :2 $4 time :*
         A: CONFIG SET lock-slowlog-log-slower-than -1 => +OK
         B: LOCK.ACQUIRE a y 90000 WAIT 5000
         pass 5000
         B <= $-1
         A: LOCK.SLOWLOG GET => *1 %8 $2 id :2 $4 time :*
         A: CONFIG SET lock-slowlog-max-len 0 => +OK
         A: LOCK.SLOWLOG LEN => :0
         A: CONFIG SET lock-slowlog-log-slower-than 0 lock-slowlog-max-len 8 => +OK
         A: LOCK.RELEASE a x => :0
         B: LOCK.ACQUIRE a y 90000 WAIT 0 => :*
         A: LOCK.SLOWLOG LEN => :0
         A: CONFIG SET lock-slowlog-max-len 65537 => -ERR CONFIG SET failed (possibly related to argument 'lock-slowlog-max-len') - argument must be between 0 and 65536 inclusive
         A: CONFIG SET lock-slowlog-log-slower-than -2 => -ERR CONFIG SET failed (possibly related to argument 'lock-slowlog-log-slower-than') - argument must be between -1 and 9223372036854775807 inclusive",
    );
}

#[test]
fn what_is_remembered_of_each_lock_is_bounded_by_directives() {
    let server = TestServer::builder().frozen(true).config("lock-history-max-names", "3").start();
    let mut wire = Wire::connect(server.addr()).unwrap();
    let events = |wire: &mut Wire, name: &str| call(wire, &format!("LOCK.WHY {name}")).matches("$5 event").count();
    for name in ["a", "b", "c", "d"] {
        for _ in 0..10 {
            assert!(call(&mut wire, &format!("LOCK.ACQUIRE {name} x 1000")).starts_with(':'));
            assert_eq!(call(&mut wire, &format!("LOCK.RELEASE {name} x")), ":0");
        }
    }
    assert_eq!(["a", "b", "c", "d"].map(|name| events(&mut wire, name)), [0, 16, 16, 16]);
    assert_eq!(info(&mut wire)["lock_remembered_names"], 3);
    assert_eq!(call(&mut wire, "CONFIG SET lock-history-max-events 3 lock-history-max-names 2"), "+OK");
    assert_eq!(events(&mut wire, "d"), 3);
    server.clock().advance(Duration::from_millis(1));
    assert_eq!(["b", "c", "d"].map(|name| events(&mut wire, name)), [0, 3, 3]);
    assert_eq!(call(&mut wire, "CONFIG SET lock-history-max-names 0"), "+OK");
    server.clock().advance(Duration::from_millis(1));
    assert_eq!(info(&mut wire)["lock_remembered_names"], 0);
    call(&mut wire, "LOCK.ACQUIRE a x 1000");
    call(&mut wire, "LOCK.RELEASE a x");
    assert_eq!(events(&mut wire, "a"), 0);
    assert_eq!(call(&mut wire, "LOCK.RELEASE a x"), "-NOTHELD lock 'a' is not held by 'x': never held", "nothing else is known");
    assert!(call(&mut wire, "CONFIG SET lock-history-max-events 0").starts_with("-ERR CONFIG SET failed"));
    server.check_invariants();
}

#[test]
fn long_waits_are_events_of_the_latency_monitor() {
    play_here(
        "A: LOCK.ACQUIRE a x 90000 => :*
         B: LOCK.ACQUIRE a y 90000 WAIT 200
         pass 200
         B <= $-1
         A: LATENCY LATEST => *0
         A: CONFIG SET latency-monitor-threshold 100 => +OK
         B: LOCK.ACQUIRE a y 90000 WAIT 99
         pass 99
         B <= $-1
         A: LATENCY LATEST => *0
         B: LOCK.ACQUIRE a y 90000 WAIT 0
         pass 150
         A: LOCK.RELEASE a x => :0
         B <= :*
         B: LOCK.ACQUIRE a y 90000 => :*
         pass 1000
         A: LOCK.ACQUIRE a x 90000 WAIT 120
         pass 120
         A <= $-1
         A: LATENCY LATEST => *1 *4 $9 lock-wait :* 
         A: LATENCY HISTORY lock-wait => *2 *2 :*
         A: LATENCY RESET lock-wait => :1
         A: LATENCY LATEST => *0",
    );
}

fn lost(name: &str, token: &str) -> String {
    format!(">5 $9 lock-lost ${} {name} $1 x {token} $7 deleted", name.len())
}

#[test]
fn whoever_loses_a_lock_by_a_flush_is_told() {
    for flush in ["FLUSHALL", "FLUSHDB", "FLUSHALL ASYNC"] {
        let server = TestServer::builder().frozen(true).start();
        let connect = || Wire::connect(server.addr()).unwrap();
        let (mut a, mut b, mut c) = (connect(), connect(), connect());
        call(&mut a, "HELLO 3");
        call(&mut b, "HELLO 3");
        let free = call(&mut a, "LOCK.ACQUIRE free x 100000");
        let session = call(&mut a, "LOCK.ACQUIRE bound x 100000 SESSION");
        let contended = call(&mut a, "LOCK.ACQUIRE contended x 100000");
        let permits = call(&mut a, "SEM.ACQUIRE sem x 100000 LIMIT 3 PERMITS 2");
        send(&mut b, "LOCK.ACQUIRE contended y 100000 WAIT 0");
        until_waiting(&mut c, 1);
        let id = call(&mut c, "CLIENT ID")[1..].to_owned();
        assert_eq!(call(&mut c, flush), "+OK");
        // The waiter was granted the lock in the same step, before any other client.
        assert_eq!(call(&mut c, "LOCK.ACQUIRE contended z 1000"), "$-1", "{flush}");
        assert!(told(&mut b).starts_with(':'));
        server.clock().advance(Duration::from_millis(5));
        let mut pushes: Vec<String> = (0..4).map(|_| told(&mut a)).collect();
        pushes.sort();
        let mut expected = [lost("free", &free), lost("bound", &session), lost("contended", &contended), lost("sem", &permits)];
        expected.sort();
        assert_eq!(pushes, expected, "{flush}");
        assert_eq!(call(&mut a, "PING"), "+PONG", "each is told once");
        for name in ["free", "contended"] {
            let by = format!("-NOTHELD lock '{name}' is not held by 'x': deleted by client {id} 5 ms ago");
            assert_eq!(call(&mut a, &format!("LOCK.RELEASE {name} x")), by);
        }
        let why = call(&mut a, "LOCK.WHY contended");
        let events: Vec<&str> = why.split("$5 event ").skip(1).map(|event| event.split(' ').nth(1).unwrap()).collect();
        assert_eq!(events, ["granted", "queued", "deleted", "granted", "refused"], "{flush}");
        assert_eq!(info(&mut c)["lock_session_holders"], 0);
        // The grant of the ended session does not end a second time with its connection.
        call(&mut c, "LOCK.ACQUIRE bound x 1000");
        drop(a);
        while call(&mut c, "CLIENT LIST").matches("id=").count() > 2 {}
        assert_eq!(call(&mut c, "LOCK.RELEASE bound x"), ":0");
        server.check_invariants();
    }
}

#[test]
fn a_cause_is_known_before_the_holder_is_told() {
    play_here(
        "A: LOCK.ACQUIRE a x 1000 => :*
         B: MULTI => +OK
         B: FLUSHALL => +QUEUED
         B: LOCK.RELEASE a x => +QUEUED
         B: LOCK.ACQUIRE a y 1000 => +QUEUED
         B: EXEC => *3 +OK -NOTHELD lock 'a' is not held by 'x': deleted by client *",
    );
}

#[test]
fn many_holders_of_one_lock_are_told_when_it_is_deleted() {
    let server = TestServer::builder().frozen(true).start();
    let connect = || Wire::connect(server.addr()).unwrap();
    let (mut a, mut b) = (connect(), connect());
    call(&mut a, "HELLO 3");
    for delete in ["DEL s", "FLUSHALL"] {
        for owner in 0..3000 {
            send(&mut a, &format!("SEM.ACQUIRE s {owner} 100000 LIMIT 4000"));
        }
        (0..3000).for_each(|_| assert!(told(&mut a).starts_with(':')));
        call(&mut b, delete);
        assert_eq!(info(&mut b)["lock_permits_out"], 0, "at once");
        assert!(call(&mut b, "SEM.ACQUIRE s new 1 LIMIT 7").starts_with(':'), "nothing is left of it");
        server.clock().advance(Duration::from_millis(5));
        for owner in 0..3000 {
            let push = told(&mut a);
            assert!(push.contains(&format!(" {owner} ")) && push.ends_with("$7 deleted"), "in the order of their tokens: {push}");
        }
        server.check_invariants();
    }
}

#[test]
fn while_writes_are_paused_no_lock_changes_hands() {
    play_here(
        "A: LOCK.ACQUIRE a x 10 => :*
         A: SET p 1 PX 10 => +OK
         B: LOCK.ACQUIRE a y 1000 WAIT 0
         C: LOCK.ACQUIRE p y 1000 WAIT 0
         A: CLIENT PAUSE 50 WRITE => +OK
         pass 10
         B: PING ...
         C: PING ...
         pass 40
         B <= :*
         C <= :*
         B <= +PONG
         C <= +PONG",
    );
}

#[test]
fn databases_change_places_and_locks_with_them() {
    play_here(
        "A: LOCK.ACQUIRE a x 1000 SESSION => :*
         A: LOCK.ACQUIRE b x 300 SHARED => :*
         A: LOCK.ACQUIRE b y 500 SHARED => :*
         B: LOCK.ACQUIRE a y 1000 WAIT 0
         C: SWAPDB 0 1 => +OK
         # The waiter stays in its database, where the name is free now.
         B <= :*
         A: LOCK.RELEASE a x => -NOTHELD lock 'a' is not held by 'x': held by 'y' for 0 ms
         C: SELECT 1 => +OK
         C: LOCK.ACQUIRE a z 1000 => $-1
         # A shared lock keeps working in the other database: the second holder is alone when the first lease has ended.
         pass 300
         C: LOCK.ACQUIRE b y 500 => :*
         # A grant that is tied to a connection ends with it in any database.
         C: LOCK.ACQUIRE a z 1000 WAIT 0
         A closes
         C <= :*",
    );
}
