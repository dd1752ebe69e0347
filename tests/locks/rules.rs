//! The contract of the native locks, rule by rule, over TCP. The clock is frozen unless a scene moves it.

use std::time::Duration;

use portcullis::testing::TestServer;

use crate::common::scenes::play_here;
use crate::common::talk::{call, token, told, until};
use crate::common::wire::Wire;

#[test]
fn rule_1_one_exclusive_holder_or_any_number_of_shared_ones_or_none() {
    play_here(
        "A: LOCK.ACQUIRE a x 1000 => :*
         B: LOCK.ACQUIRE a y 1000 => $-1
         B: LOCK.ACQUIRE a y 1000 SHARED => $-1
         A: LOCK.RELEASE a x => :0
         A: EXISTS a => :0
         A: LOCK.ACQUIRE a x 1000 SHARED => :*
         B: LOCK.ACQUIRE a y 1000 SHARED => :*
         C: LOCK.ACQUIRE a z 1000 => $-1
         A: LOCK.RELEASE a x => :0
         C: LOCK.ACQUIRE a z 1000 => $-1
         B: LOCK.RELEASE a y => :0
         C: LOCK.ACQUIRE a z 1000 => :*
         A: TYPE a => +lock
         A: PTTL a => :1000",
    );
}

#[test]
fn rule_1_a_semaphore_never_has_more_than_its_limit_of_permits_out() {
    play_here(
        "A: SEM.ACQUIRE s 1 1000 LIMIT 3 PERMITS 2 => :*
         A: SEM.ACQUIRE s 2 1000 LIMIT 3 PERMITS 2 => $-1
         A: SEM.ACQUIRE s 3 1000 LIMIT 3 => :*
         A: SEM.ACQUIRE s 4 1000 LIMIT 3 => $-1
         A: TYPE s => +semaphore
         A: SEM.ACQUIRE s 5 1000 LIMIT 5 => -LIMIT semaphore 's' has limit 3, not 5
         A: SEM.ACQUIRE s 5 1000 LIMIT 3 PERMITS 4 => -ERR 4 permits exceed the limit of 3
         A: LOCK.ACQUIRE s x 1000 => -WRONGTYPE Operation against a key holding the wrong kind of value
         B: SEM.ACQUIRE s 6 1000 LIMIT 3 PERMITS 2 WAIT 0
         C: SEM.ACQUIRE s 7 1000 LIMIT 3 WAIT 0
         A: SEM.RELEASE s 3 => :0
         # The first waiter wants two permits. The second one is not served before it.
         A: SEM.RELEASE s 1 => :0
         B <= :*
         C <= :*
         A: SEM.RENEW s 6 5000 => :5000
         A: SEM.RELEASE s 1 => -NOTHELD lock 's' is not held by '1': released 0 ms ago
         pass 1000
         A: SEM.ACQUIRE s 8 1000 LIMIT 3 PERMITS 2 => $-1
         A: SEM.ACQUIRE s 8 1000 LIMIT 3 => :*",
    );
}

#[test]
fn rule_2_grants_are_first_come_first_served() {
    play_here(
        "A: LOCK.ACQUIRE a x 1000 => :*
         B: LOCK.ACQUIRE a b 1000 WAIT 0
         C: LOCK.ACQUIRE a c 1000 WAIT 0
         D: LOCK.ACQUIRE a d 1000 WAIT 0
         A: LOCK.RELEASE a x => :0
         B <= :*
         A: LOCK.ACQUIRE a x 1000 WAIT 0
         B: LOCK.RELEASE a b => :0
         C <= :*
         C: LOCK.RELEASE a c => :0
         D <= :*
         D: LOCK.RELEASE a d => :0
         A <= :*",
    );
}

#[test]
fn rule_2_a_shared_request_queues_behind_an_exclusive_one() {
    play_here(
        "A: LOCK.ACQUIRE a x 9000 SHARED => :*
         B: LOCK.ACQUIRE a y 9000 WAIT 0
         C: LOCK.ACQUIRE a z 9000 SHARED => $-1
         C: LOCK.ACQUIRE a z 9000 SHARED WAIT 0
         D: LOCK.ACQUIRE a w 9000 SHARED WAIT 0
         A: LOCK.RELEASE a x => :0
         B <= :*
         # Both shared waiters are adjacent and are granted the lock together.
         B: LOCK.RELEASE a y => :0
         C <= :*
         D <= :*
         # When the exclusive waiter gives up, the shared ones behind it join the holders.
         B: LOCK.ACQUIRE a y 9000 WAIT 100
         A: LOCK.ACQUIRE a x 9000 SHARED WAIT 0
         pass 100
         B <= $-1
         A <= :*",
    );
}

#[test]
fn rule_3_a_freed_lock_is_granted_in_the_same_step() {
    play_here(
        "A: LOCK.ACQUIRE a x 1000 => :*
         B: LOCK.ACQUIRE a b 1000 WAIT 0
         # The releasing client cannot acquire the lock again before the waiter.
         A: MULTI => +OK
         A: LOCK.RELEASE a x => +QUEUED
         A: LOCK.ACQUIRE a x 1000 => +QUEUED
         A: EXEC => *2 :0 $-1
         B <= :*
         C: LOCK.ACQUIRE a c 1000 WAIT 0
         # At the end of the lease the waiter is granted the lock, before any other client.
         pass 1000
         C <= :*
         A: SET a 1 NX => $-1
         B: LOCK.ACQUIRE a b 1000 WAIT 0
         A: DEL a => :1
         B <= :*
         C: LOCK.ACQUIRE a c 1000 WAIT 0
         A: FLUSHALL => +OK
         C <= :*
         A: LOCK.ACQUIRE a x 1000 WAIT 0
         D: EVAL return\\sredis.call('lock.release',KEYS[1],ARGV[1]) 1 a c => :0
         A <= :*",
    );
}

#[test]
fn rule_3_a_session_ends_and_the_next_one_is_served() {
    play_here(
        "A: LOCK.ACQUIRE a x 100000 SESSION => :*
         A: LOCK.ACQUIRE b x 100000 => :*
         B: LOCK.ACQUIRE a y 1000 WAIT 0
         A closes
         B <= :*
         # A lock without SESSION stays held.
         B: LOCK.ACQUIRE b y 1000 => $-1
         # A wait ends with its connection.
         C: LOCK.ACQUIRE a z 1000 WAIT 0
         D: LOCK.ACQUIRE a w 1000 WAIT 0
         C closes
         B: LOCK.RELEASE a y => :0
         D <= :*
         B: LOCK.RELEASE a x => -NOTHELD lock 'a' is not held by 'x': its connection was closed 0 ms ago",
    );
}

#[test]
fn rule_4_the_same_owner_acquires_again_at_once() {
    let server = TestServer::builder().frozen(true).start();
    let (mut a, mut b) = (Wire::connect(server.addr()).unwrap(), Wire::connect(server.addr()).unwrap());
    let first = token(&mut a, "LOCK.ACQUIRE a x 1000");
    server.clock().advance(Duration::from_millis(600));
    assert_eq!(token(&mut b, "LOCK.ACQUIRE a x 1000"), first, "the same token, from another connection too");
    assert_eq!(call(&mut a, "PTTL a"), ":1000", "the lease begins anew");
    assert_eq!(call(&mut a, "LOCK.RELEASE a x"), ":1");
    assert_eq!(call(&mut a, "LOCK.CHECK a 1"), ":0");
    assert_eq!(call(&mut a, &format!("LOCK.CHECK a {first}")), ":1");
    assert_eq!(call(&mut a, "LOCK.RELEASE a x"), ":0");
    assert_eq!(call(&mut a, &format!("LOCK.CHECK a {first}")), ":0");
    let second = token(&mut a, "LOCK.ACQUIRE a x 1000");
    assert!(second > first);
    token(&mut a, "LOCK.ACQUIRE a x 1000");
    assert_eq!(call(&mut a, "LOCK.RELEASE a x ALL"), ":0");
    server.check_invariants();
}

#[test]
fn rule_4_a_shared_holder_who_wants_to_be_alone_goes_first() {
    play_here(
        "A: LOCK.ACQUIRE a x 9000 SHARED => :*
         B: LOCK.ACQUIRE a y 9000 SHARED => :*
         C: LOCK.ACQUIRE a z 9000 WAIT 0
         A: LOCK.ACQUIRE a x 9000 => $-1
         A: LOCK.ACQUIRE a x 9000 WAIT 0
         B: LOCK.RELEASE a y => :0
         A <= :*
         B: LOCK.ACQUIRE a y 9000 SHARED => $-1
         A: LOCK.RELEASE a x => :1
         A: LOCK.RELEASE a x => :0
         C <= :*",
    );
}

#[test]
fn rule_5_tokens_grow_strictly_in_the_order_of_grants() {
    let server = TestServer::builder().frozen(true).start();
    let mut wire = Wire::connect(server.addr()).unwrap();
    let mut last = 0;
    for round in 0..50 {
        for name in ["a", "b", "c"] {
            let mode = if round % 2 == 0 { "" } else { "SHARED" };
            let got = token(&mut wire, &format!("LOCK.ACQUIRE {name} owner-{round} 1000 {mode}"));
            assert!(got > last && got < 1 << 53, "{got} after {last}");
            last = got;
            assert_eq!(call(&mut wire, &format!("LOCK.RELEASE {name} owner-{round}")), ":0");
        }
    }
    let all = call(&mut wire, "LOCK.ACQUIREALL 3 c a b x 1000");
    let tokens: Vec<i64> = all.split(" :").skip(1).map(|token| token.parse().unwrap()).collect();
    assert!(tokens.len() == 3 && tokens[0] > last && tokens.is_sorted(), "{all}");
}

#[test]
fn rule_6_release_and_renew_by_anyone_but_a_holder_change_nothing() {
    play_here(
        "A: LOCK.RELEASE a x => -NOTHELD lock 'a' is not held by 'x': never held
         A: LOCK.ACQUIRE a y 1000 => :*
         pass 250
         A: LOCK.RELEASE a x => -NOTHELD lock 'a' is not held by 'x': held by 'y' for 250 ms
         A: LOCK.RENEW a x 5000 => -NOTHELD lock 'a' is not held by 'x': held by 'y' for 250 ms
         A: PTTL a => :750
         A: LOCK.RENEW a y 5000 => :5000
         A: PTTL a => :5000
         pass 5000
         A: LOCK.RELEASE a y => -NOTHELD lock 'a' is not held by 'y': its lease ended 0 ms ago
         pass 40
         A: LOCK.RENEW a y 5000 => -NOTHELD lock 'a' is not held by 'y': its lease ended 40 ms ago
         A: EXISTS a => :0
         A: LOCK.ACQUIRE a x 1000 => :*
         A: LOCK.RELEASE a x => :0
         A: LOCK.RELEASE a x => -NOTHELD lock 'a' is not held by 'x': released 0 ms ago
         A: LOCK.ACQUIRE a x 1000 => :*
         B: DEL a => :1
         pass 7
         A: LOCK.RELEASE a x => -NOTHELD lock 'a' is not held by 'x': deleted by client *",
    );
}

#[test]
fn rule_7_a_wait_that_would_close_a_cycle_is_refused_with_the_cycle() {
    play_here(
        "A: LOCK.ACQUIRE a x 9000 => :*
         B: LOCK.ACQUIRE b y 9000 => :*
         B: LOCK.ACQUIRE a y 9000 WAIT 0
         A: LOCK.ACQUIRE b x 9000 WAIT 0 => -DEADLOCK 'x' waits for 'b' held by 'y', who waits for 'a' held by 'x'
         # Other clients are not affected, and the refused request changed nothing.
         A: LOCK.RELEASE a x => :0
         B <= :*
         # Two shared holders that both want an exclusive hold.
         A: LOCK.ACQUIRE c x 9000 SHARED => :*
         B: LOCK.ACQUIRE c y 9000 SHARED => :*
         A: LOCK.ACQUIRE c x 9000 WAIT 0
         B: LOCK.ACQUIRE c y 9000 WAIT 0 => -DEADLOCK 'y' waits for 'c' held by 'x', who waits for 'c' held by 'y'
         B: LOCK.RELEASE c y => :0
         A <= :*
         # A semaphore with one permit counts as a lock.
         C: SEM.ACQUIRE s z 9000 LIMIT 1 => :*
         A: SEM.ACQUIRE s x 9000 LIMIT 1 WAIT 0
         C: LOCK.ACQUIRE c z 9000 WAIT 0 => -DEADLOCK 'z' waits for 'c' held by 'x', who waits for 's' held by 'z'",
    );
}

#[test]
fn rule_7_rings_of_any_size_are_refused_at_the_closing_wait() {
    for size in [2usize, 3, 10, 100] {
        let server = TestServer::builder().frozen(true).start();
        let mut wires: Vec<Wire> = (0..size).map(|_| Wire::connect(server.addr()).unwrap()).collect();
        for (at, wire) in wires.iter_mut().enumerate() {
            token(wire, &format!("LOCK.ACQUIRE lock{at} owner{at} 100000"));
        }
        for (at, wire) in wires.iter_mut().enumerate().take(size - 1) {
            let args = [
                "LOCK.ACQUIRE".into(),
                format!("lock{}", at + 1),
                format!("owner{at}"),
                "100000".into(),
                "WAIT".into(),
                "0".into(),
            ];
            wire.queue(&args);
            wire.flush().unwrap();
        }
        let mut control = Wire::connect(server.addr()).unwrap();
        while !call(&mut control, "LOCK.STATS").contains(&format!("waiting :{} ", size - 1)) {}
        let refused = call(&mut wires[size - 1], &format!("LOCK.ACQUIRE lock0 owner{} 100000 WAIT 0", size - 1));
        let closing =
            format!("-DEADLOCK 'owner{}' waits for 'lock0' held by 'owner0', who waits for 'lock1' held by 'owner1'", size - 1);
        assert!(refused.starts_with(&closing), "{refused}");
        assert!(refused.ends_with(&format!("held by 'owner{}'", size - 1)), "{refused}");
        assert_eq!(refused.matches("waits for").count(), size.min(16));
        // The last holder releases its lock, and the ring unwinds.
        for at in (0..size).rev() {
            assert_eq!(call(&mut wires[at], &format!("LOCK.RELEASE lock{at} owner{at}")), ":0");
            if at > 0 {
                let granted = wires[at - 1].reply().unwrap();
                assert!(granted.raw.starts_with(b":"), "{}", String::from_utf8_lossy(&granted.raw));
            }
        }
        server.check_invariants();
    }
}

#[test]
fn rule_8_several_locks_are_taken_in_one_step_or_not_at_all() {
    play_here(
        "A: LOCK.ACQUIRE b x 9000 => :*
         B: LOCK.ACQUIREALL 3 a b c y 9000 => *-1
         B: EXISTS a c => :0
         B: LOCK.ACQUIREALL 3 a b c y 9000 WAIT 0
         # Names in the opposite order do not cause a deadlock.
         C: LOCK.ACQUIREALL 3 c b a z 9000 WAIT 0
         # A waiter is in all queues: later clients do not get the names that are free.
         D: LOCK.ACQUIRE a w 9000 => $-1
         A: LOCK.RELEASE b x => :0
         B <= *3 :*
         B: LOCK.RELEASE a y => :0
         B: LOCK.RELEASE b y => :0
         B: LOCK.RELEASE c y => :0
         C <= *3 :*
         D: LOCK.ACQUIREALL 2 a a w 9000 => -ERR duplicate lock name
         D: LOCK.ACQUIREALL 0 w 9000 => -ERR wrong number of arguments for 'lock.acquireall' command*
         D: LOCK.ACQUIREALL 2 a w 9000 => -ERR syntax error
         D: LOCK.ACQUIREALL 2 a d w 9000 WAIT 50
         D: PING ...
         pass 50
         D <= *-1
         D <= +PONG",
    );
}

#[test]
fn rule_9_a_lease_ends_on_time_and_its_events_with_it() {
    play_here(
        "A: CONFIG SET notify-keyspace-events KEkx => +OK
         S: SUBSCRIBE __keyevent@0__:lock.granted __keyevent@0__:lock.expired __keyevent@0__:expired => *3*
         S <= *3*
         S <= *3*
         A: LOCK.ACQUIRE a x 100 => :*
         S <= *3 $7 message $27 __keyevent@0__:lock.granted $1 a
         pass 99
         A: PTTL a => :1
         pass 1
         S <= *3 $7 message $22 __keyevent@0__:expired $1 a
         S <= *3 $7 message $27 __keyevent@0__:lock.expired $1 a
         A: EXISTS a => :0",
    );
}

#[test]
fn waits_are_bounded_and_scripts_and_transactions_do_not_wait() {
    play_here(
        "A: LOCK.ACQUIRE a x 9000 => :*
         B: LOCK.ACQUIRE a y 9000 WAIT 30
         pass 29
         pass 1
         B <= $-1
         B: MULTI => +OK
         B: LOCK.ACQUIRE a y 9000 WAIT 0 => +QUEUED
         B: EXEC => *1 $-1
         B: EVAL return\\sredis.call('lock.acquire','a','y',9000,'WAIT',0) 0 => $-1
         B: LOCK.ACQUIRE a y 9000 WAIT 0
         A: CLIENT UNBLOCK <B> => :1
         B <= $-1
         B: LOCK.ACQUIRE a y 9000 WAIT 0
         A: CLIENT UNBLOCK <B> ERROR => :1
         B <= -UNBLOCKED client unblocked via CLIENT UNBLOCK
         A: LOCK.ACQUIRE a x 0 => -ERR lease is out of range, must be at least 1 ms
         A: LOCK.ACQUIRE a x z => -ERR value is not an integer or out of range
         A: LOCK.ACQUIRE a x 1 WAIT => -ERR syntax error
         A: LOCK.ACQUIRE a x 1 WAIT -1 => -ERR timeout is negative
         A: LOCK.ACQUIRE a x => -ERR wrong number of arguments for 'lock.acquire' command*",
    );
}

#[test]
fn a_lock_lives_beside_plain_keys() {
    play_here(
        "A: SET a token NX PX 100 => +OK
         # A native lock waits for the plain key of the same name.
         B: LOCK.ACQUIRE a y 1000 => $-1
         B: LOCK.ACQUIRE a y 1000 WAIT 0
         pass 100
         B <= :*
         A: SET a token NX PX 100 => $-1
         A: SETNX a token => :0
         A: SET a token => -WRONGTYPE Operation against a key holding the wrong kind of value
         A: EXPIRE a 10 => -WRONGTYPE Operation against a key holding the wrong kind of value
         A: PERSIST a => -WRONGTYPE Operation against a key holding the wrong kind of value
         A: RENAME a b => -WRONGTYPE Operation against a key holding the wrong kind of value
         A: GET a => -WRONGTYPE Operation against a key holding the wrong kind of value
         A: HSET a f v => -WRONGTYPE Operation against a key holding the wrong kind of value
         A: COPY a b => -WRONGTYPE Operation against a key holding the wrong kind of value
         A: DUMP a => -WRONGTYPE Operation against a key holding the wrong kind of value
         A: SUNIONSTORE a none => -WRONGTYPE Operation against a key holding the wrong kind of value
         A: MSET b 1 a 2 => -WRONGTYPE Operation against a key holding the wrong kind of value
         A: EXISTS a b => :1
         A: KEYS * => *1 $1 a
         A: SCAN 0 => *2 $1 0 *1 $1 a
         A: TTL a => :1
         A: DEL a => :1
         A: HSET a f v => :1
         B: LOCK.ACQUIRE a y 1000 WAIT 0
         A: HDEL a f => :1
         B <= :*
         A: LOCK.RELEASE a y => :0
         A: SET p 1 => +OK
         B: LOCK.ACQUIRE p y 1000 WAIT 0
         A: RENAME p q => +OK
         B <= :*",
    );
}

#[test]
fn a_delay_holds_the_next_grant_back_unless_it_was_released() {
    play_here(
        "A: LOCK.ACQUIRE a x 100 DELAY 50 => :*
         B: LOCK.ACQUIRE a y 100 WAIT 0
         pass 149
         B: PING ...
         pass 1
         B <= :*
         B <= +PONG
         B: LOCK.RELEASE a y => :0
         A: LOCK.ACQUIRE a x 100 DELAY 50 => :*
         A: LOCK.RELEASE a x => :0
         B: LOCK.ACQUIRE a y 100 DELAY 50 => :*
         A: DEL a => :1
         A: LOCK.ACQUIRE a x 100 DELAY 50 => :*
         pass 100
         B: LOCK.ACQUIRE a y 100 => $-1
         A: LOCK.ACQUIRE a x 100 => $-1
         A: PTTL a => :50
         pass 50
         A: EXISTS a => :0
         A: LOCK.ACQUIRE a x 100 => :*",
    );
}

#[test]
fn no_renewal_carries_a_grant_beyond_its_maxhold() {
    play_here(
        "A: HELLO 3 => %7*
         A: LOCK.ACQUIRE a x 100 MAXHOLD 250 => :*
         pass 90
         A: LOCK.RENEW a x 100 => :100
         pass 90
         A: LOCK.RENEW a x 100 => :70
         A: LOCK.ACQUIRE a x 100 => :*
         A: PTTL a => :70
         pass 70
         A <= >5 $9 lock-lost $1 a $1 x :*
         A: LOCK.RENEW a x 100 => -NOTHELD lock 'a' is not held by 'x': its lease ended 0 ms ago",
    );
}

#[test]
fn a_maxhold_that_is_over_is_refused_and_changes_nothing() {
    play_here(
        "A: HELLO 3 => %7*
         A: LOCK.ACQUIRE a x 1000 => :*
         pass 22
         A: LOCK.ACQUIRE a x 36 MAXHOLD 22 => -ERR MAXHOLD 22 is over: 'x' has held lock 'a' for 22 ms
         A: PTTL a => :978
         A: LOCK.ACQUIRE a x 36 MAXHOLD 19 REQUEST r => -ERR MAXHOLD 19 is over: 'x' has held lock 'a' for 22 ms
         A: LOCK.ACQUIRE a x 36 MAXHOLD 23 REQUEST r => :*
         A: PTTL a => :1
         A: LOCK.RELEASE a x => :1
         pass 1
         A <= >5 $9 lock-lost $1 a $1 x :*",
    );
    // A new grant has its own bound: here an upgrade from a shared to an exclusive hold.
    play_here(
        "A: LOCK.ACQUIRE a x 1000 SHARED => :*
         pass 22
         A: LOCK.ACQUIRE a x 36 SHARED MAXHOLD 19 => -ERR MAXHOLD 19 is over: 'x' has held lock 'a' for 22 ms
         A: LOCK.ACQUIRE a x 36 MAXHOLD 19 => :*
         A: PTTL a => :19",
    );
}

#[test]
fn whoever_loses_a_lock_is_told_on_resp3() {
    let server = TestServer::builder().frozen(true).start();
    let (mut a, mut b) = (Wire::connect(server.addr()).unwrap(), Wire::connect(server.addr()).unwrap());
    call(&mut a, "HELLO 3");
    let held = token(&mut a, "LOCK.ACQUIRE a x 100");
    server.clock().advance(Duration::from_millis(100));
    let lost = |reason: &str, token| format!(">5 $9 lock-lost $1 a $1 x :{token} ${} {reason}", reason.len());
    assert_eq!(told(&mut a), lost("lease", held));
    let held = token(&mut a, "LOCK.ACQUIRE a x 100");
    call(&mut b, "DEL a");
    assert_eq!(told(&mut a), lost("deleted", held));
    let held = token(&mut a, "LOCK.ACQUIRE a x 1000 MAXHOLD 50");
    server.clock().advance(Duration::from_millis(50));
    assert_eq!(told(&mut a), lost("maxhold", held));
    token(&mut a, "LOCK.ACQUIRE a x 1000");
    assert_eq!(call(&mut a, "LOCK.RELEASE a x"), ":0");
    assert_eq!(call(&mut a, "PING"), "+PONG", "nothing is told of what was given back");
}

#[test]
fn a_subscriber_is_told_what_another_connection_has_lost() {
    let server = TestServer::builder().frozen(true).start();
    let connect = || Wire::connect(server.addr()).unwrap();
    let (mut holder, mut ears, mut all, mut other) = (connect(), connect(), connect(), connect());
    let number = call(&mut holder, "CLIENT ID").split_off(1);
    let (channel, pattern) = (format!("__portcullis__:lock-lost:{number}"), "__portcullis__:lock-lost:*");
    call(&mut ears, &format!("SUBSCRIBE {channel}"));
    call(&mut all, &format!("PSUBSCRIBE {pattern}"));
    let mut tells = |message: String| {
        let said = format!("${} {channel} ${} {message}", channel.len(), message.len());
        assert_eq!(told(&mut ears), format!("*3 $7 message {said}"));
        assert_eq!(told(&mut all), format!("*4 $8 pmessage ${} {pattern} {said}", pattern.len()));
    };

    let held = token(&mut holder, "LOCK.ACQUIRE a x 100");
    server.clock().advance(Duration::from_millis(100));
    tells(format!("{held} lease a"));
    // A name is the rest of the message, whatever it contains.
    holder.queue(&["LOCK.ACQUIRE", "a b 1", "x", "100", "MAXHOLD", "50"]);
    holder.flush().unwrap();
    let held = told(&mut holder).split_off(1);
    server.clock().advance(Duration::from_millis(50));
    tells(format!("{held} maxhold a b 1"));
    let held = token(&mut holder, "SEM.ACQUIRE s x 100 LIMIT 2");
    call(&mut other, "DEL s");
    tells(format!("{held} deleted s"));
    // The grant outlives the connection that acquired it.
    let held = token(&mut holder, "LOCK.ACQUIRE a x 1000");
    drop(holder);
    until(&mut other, "INFO clients", "connected_clients:3 ");
    assert_eq!(call(&mut other, &format!("LOCK.BREAK a TOKEN {held}")), ":1");
    tells(format!("{held} broken a"));

    // No message comes for a release, nor for what another connection loses.
    token(&mut other, "LOCK.ACQUIRE a x 1000");
    assert_eq!(call(&mut other, "LOCK.RELEASE a x"), ":0");
    token(&mut other, "LOCK.ACQUIRE a x 100");
    server.clock().advance(Duration::from_millis(100));
    call(&mut other, &format!("PUBLISH {channel} end"));
    assert_eq!(told(&mut ears).rsplit(' ').next(), Some("end"));
}

#[test]
fn long_waits_are_kept_for_a_look() {
    play_here(
        "A: HELLO 3 => %7*
         A: LOCK.ACQUIRE a x 9000 => :*
         B: LOCK.ACQUIRE a y 9000 WAIT 999
         pass 999
         B <= $-1
         A: LOCK.SLOWLOG LEN => :0
         B: LOCK.ACQUIRE a y 9000 WAIT 0
         pass 1500
         A: LOCK.RELEASE a x => :0
         B <= :*
         A: LOCK.SLOWLOG LEN => :1
         A: LOCK.SLOWLOG GET => *1 %8 $2 id :0 $4 time :*
         A: LOCK.SLOWLOG GET 0 => *0
         A: LOCK.SLOWLOG GET -2 => -ERR count should be greater than or equal to -1
         A: LOCK.SLOWLOG RESET => +OK
         A: LOCK.SLOWLOG LEN => :0
         A: LOCK.SLOWLOG MORE => -ERR unknown subcommand*",
    );
}

#[test]
fn a_guard_refuses_what_is_behind() {
    play_here(
        "A: LOCK.GUARD r 33 => +OK
         A: LOCK.GUARD r 33 => +OK
         A: LOCK.GUARD r 34 => +OK
         A: LOCK.GUARD r 33 => -STALE token 33 is behind 34 for 'r'
         A: TYPE r => +guard
         A: PTTL r => :-1
         A: EXPIRE r 10 => :1
         A: LOCK.GUARD r 35 => +OK
         A: TTL r => :10
         A: DEL r => :1
         A: LOCK.GUARD r 1 => +OK
         A: SET s x => +OK
         A: LOCK.GUARD s 1 => -WRONGTYPE Operation against a key holding the wrong kind of value",
    );
}

#[test]
fn a_latch_opens_for_all_when_it_was_counted_down() {
    play_here(
        "A: LATCH.SET l 2 => :1
         A: LATCH.SET l 5 => :0
         A: TYPE l => +latch
         B: LATCH.AWAIT l WAIT 0
         C: LATCH.AWAIT l WAIT 50
         A: LATCH.DOWN l => :1
         pass 50
         C <= $-1
         C: LATCH.AWAIT l WAIT 0
         A: LATCH.DOWN l 5 => :0
         B <= :1
         C <= :1
         A: LATCH.AWAIT l WAIT 0 => :1
         A: LATCH.SET l 1 PX 100 => :1
         A: LATCH.DOWN none => $-1
         pass 100
         A: EXISTS l => :0
         A: MULTI => +OK
         A: LATCH.AWAIT l WAIT 0 => +QUEUED
         A: EXEC => *1 $-1",
    );
}

#[test]
fn a_lock_tells_who_holds_it_who_waits_and_what_has_happened() {
    let server = TestServer::builder().frozen(true).start();
    let (mut a, mut b) = (Wire::connect(server.addr()).unwrap(), Wire::connect(server.addr()).unwrap());
    call(&mut a, "HELLO 3");
    assert_eq!(call(&mut a, "LOCK.INFO a"), "_");
    let held = token(&mut a, "LOCK.ACQUIRE a x 1000 SESSION");
    b.queue(&["LOCK.ACQUIRE", "a", "y", "1000", "SHARED", "WAIT", "500"]);
    b.flush().unwrap();
    while !call(&mut a, "LOCK.STATS").contains("$7 waiting :1") {}
    server.clock().advance(Duration::from_millis(100));
    let id = |wire: &mut Wire| call(wire, "CLIENT ID");
    let of_a = id(&mut a);
    let info = call(&mut a, "LOCK.INFO a");
    for part in [
        "%10 $4 kind $4 lock $4 mode $9 exclusive",
        &format!("$5 fence :{held}"),
        &format!(
            "$7 holders *1 %13 $5 owner $1 x $5 token :{held} $5 holds :1 $4 mode $9 exclusive $5 lease :900 $4 held :100 $7 session #t"
        ),
        &format!("$6 client {of_a} $4 addr $"),
        "$11 oldest-wait :100 $7 waiters *1 %7 $5 owner $1 y $4 mode $6 shared $6 waited :100 $4 left :400 $6 client",
        "$8 last-end _ $7 granted :1 $9 contended :1 $7 expired :0",
    ] {
        assert!(info.contains(part), "{part}: {info}");
    }
    token(&mut a, "LOCK.ACQUIRE b x 1000");
    let list = call(&mut a, "LOCK.LIST");
    assert!(
        list.starts_with("*2 %11 $4 name $1 a $4 kind $4 lock ") && list.contains("$4 name $1 b "),
        "the longest queues first: {list}"
    );
    assert!(call(&mut a, "LOCK.LIST CONTENDED").starts_with("*1 %11 $4 name $1 a "));
    assert!(call(&mut a, "LOCK.LIST MATCH b*").starts_with("*1 %11 $4 name $1 b "));
    assert_eq!(call(&mut a, "LOCK.LIST COUNT 0"), "-ERR syntax error");
    server.clock().advance(Duration::from_millis(400));
    assert_eq!(b.reply().unwrap().raw, b"$-1\r\n");
    assert_eq!(call(&mut b, "LOCK.ACQUIRE a y 1000"), "$-1");
    let why = call(&mut a, "LOCK.WHY a");
    let events: Vec<&str> = why.split("$5 event ").skip(1).map(|event| event.split(' ').nth(1).unwrap()).collect();
    assert_eq!(events, ["granted", "queued", "timed-out", "refused"]);
    assert!(why.contains("$3 ago :500") && why.contains(&format!("$5 token :{held} $6 waited :0")), "{why}");
    let stats = call(&mut a, "LOCK.STATS");
    for part in ["$6 grants :2", "$16 immediate-grants :2", "$8 timeouts :1", "$13 longest-queue :1", "$7 waiting :0"] {
        assert!(stats.contains(part), "{part}: {stats}");
    }
    server.check_invariants();
}
