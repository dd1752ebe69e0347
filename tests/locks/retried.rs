//! Repeated requests for native locks, tokens that name a grant, and named sessions: what a client needs after its connection
//! broke. The clock is frozen unless a scene moves it.

use std::time::Duration;

use portcullis::testing::TestServer;

use crate::common::scenes::play_here;
use crate::common::talk::{call, token};
use crate::common::wire::Wire;

fn server() -> (TestServer, Wire, Wire) {
    let server = TestServer::builder().frozen(true).start();
    let wires = [(); 2].map(|()| Wire::connect(server.addr()).unwrap());
    let [a, b] = wires;
    (server, a, b)
}

#[test]
fn an_acquisition_that_is_sent_again_is_one() {
    let (server, mut a, mut b) = server();
    let first = token(&mut a, "LOCK.ACQUIRE l x 1000 REQUEST r");
    server.clock().advance(Duration::from_millis(300));
    assert_eq!(token(&mut b, "LOCK.ACQUIRE l x 1000 REQUEST r"), first);
    assert_eq!(call(&mut b, "PTTL l"), ":1000", "the lease is what the second connection counts on");
    assert_eq!(token(&mut b, "LOCK.ACQUIRE l x 500 REQUEST r"), first);
    assert_eq!(call(&mut b, "PTTL l"), ":1000", "which never makes it shorter");
    assert_eq!(call(&mut a, "LOCK.RELEASE l x"), ":0", "there is one hold");
    // A late copy does not acquire the lock again.
    let refused = "-NOTHELD lock 'l' is not held by 'x': released 0 ms ago";
    assert_eq!(call(&mut b, "LOCK.ACQUIRE l x 1000 REQUEST r WAIT 0"), refused);
    let second = token(&mut a, "LOCK.ACQUIRE l x 1000 REQUEST s");
    assert!(second > first);
    let other = format!("-NOTHELD lock 'l' is not held by 'x': held by 'x' for 0 ms with token {second}");
    assert_eq!(call(&mut b, "LOCK.ACQUIRE l x 1000 REQUEST r"), other);
    assert_eq!(token(&mut b, "LOCK.ACQUIRE l x 1000 REQUEST s"), second);
    assert_eq!(call(&mut b, "LOCK.ACQUIRE l y 1000 REQUEST s"), "$-1", "of another owner it is another request");
    server.clock().advance(Duration::from_millis(1000));
    let ended = "-NOTHELD lock 'l' is not held by 'x': its lease ended 0 ms ago";
    assert_eq!(call(&mut b, "LOCK.ACQUIRE l x 1000 REQUEST s"), ended);
    // After a minute the id can be used for another attempt.
    server.clock().advance(Duration::from_millis(59_999));
    assert!(call(&mut b, "LOCK.ACQUIRE l x 1000 REQUEST s").starts_with("-NOTHELD"));
    server.clock().advance(Duration::from_millis(1));
    assert!(token(&mut b, "LOCK.ACQUIRE l x 1000 REQUEST s") > second);
    server.check_invariants();
}

#[test]
fn what_frees_a_lock_by_force_is_no_way_for_a_late_copy() {
    for force in ["DEL l", "FLUSHALL"] {
        let (server, mut a, mut b) = server();
        token(&mut a, "LOCK.ACQUIRE l x 1000 REQUEST r");
        call(&mut b, force);
        assert!(
            call(&mut a, "LOCK.ACQUIRE l x 1000 REQUEST r")
                .starts_with("-NOTHELD lock 'l' is not held by 'x': deleted by client")
        );
        assert!(call(&mut b, "LOCK.ACQUIRE l x 1000 REQUEST r2").starts_with(':'));
        server.check_invariants();
    }
}

#[test]
fn a_request_that_waits_moves_to_the_newer_connection() {
    play_here(
        "A: LOCK.ACQUIRE l x 1000 => :*
         B: LOCK.ACQUIRE l y 1000 WAIT 50 REQUEST r
         C: LOCK.ACQUIRE l z 1000 WAIT 0
         D: LOCK.ACQUIRE l y 1000 WAIT 100 REQUEST r
         B <= $-1
         pass 50
         B: PING => +PONG
         A: LOCK.RELEASE l x => :0
         D <= :*
         D: LOCK.RELEASE l y => :0
         C <= :*
         # The new time limit applies. After it the request waits again, behind the others.
         D: LOCK.ACQUIRE l y 1000 WAIT 20 REQUEST s
         E: LOCK.ACQUIRE l w 1000 WAIT 0
         pass 20
         D <= $-1
         D: LOCK.ACQUIRE l y 1000 WAIT 0 REQUEST s
         C: LOCK.RELEASE l z => :0
         E <= :*
         # A repetition that does not wait gives up the place.
         A: LOCK.ACQUIRE l y 1000 REQUEST s => $-1
         D <= $-1
         A: LOCK.INFO l => *20*",
    );
    play_here(
        "A: LOCK.ACQUIRE m x 1000 => :*
         B: LOCK.ACQUIREALL 2 l m y 1000 WAIT 0 REQUEST r
         C: LOCK.ACQUIREALL 2 l m y 1000 WAIT 0 REQUEST r
         B <= *-1
         D: SEM.ACQUIRE s x 1000 LIMIT 1 => :*
         B: SEM.ACQUIRE s y 1000 LIMIT 1 WAIT 0 REQUEST r
         E: SEM.ACQUIRE s y 1000 LIMIT 1 WAIT 0 REQUEST r
         B <= $-1
         A: LOCK.RELEASE m x => :0
         C <= *2*
         D: SEM.RELEASE s x => :0
         E <= :*
         B: LOCK.RELEASE l y REQUEST q => :0
         B: LOCK.ACQUIREALL 2 l m y 1000 REQUEST r => -NOTHELD lock 'l' is not held by 'y': released 0 ms ago",
    );
}

#[test]
fn several_names_are_granted_again_as_they_were() {
    let (server, mut a, mut b) = server();
    let reply = call(&mut a, "LOCK.ACQUIREALL 2 l m x 1000 REQUEST r");
    assert_eq!(call(&mut b, "LOCK.ACQUIREALL 2 l m x 1000 REQUEST r"), reply);
    assert_eq!(call(&mut b, "LOCK.RELEASE m x"), ":0");
    let refused = "-NOTHELD lock 'm' is not held by 'x': released 0 ms ago";
    assert_eq!(call(&mut b, "LOCK.ACQUIREALL 2 l m x 1000 REQUEST r"), refused);
    let semaphore = token(&mut a, "SEM.ACQUIRE s x 1000 LIMIT 3 PERMITS 2 REQUEST r");
    assert_eq!(token(&mut b, "SEM.ACQUIRE s x 1000 LIMIT 3 PERMITS 2 REQUEST r"), semaphore);
    assert_eq!(call(&mut b, &format!("SEM.RENEW s x 500 TOKEN {semaphore}")), ":500");
    assert!(call(&mut b, &format!("SEM.RELEASE s x TOKEN {}", semaphore - 1)).starts_with("-NOTHELD"));
    assert_eq!(call(&mut b, &format!("SEM.RELEASE s x ALL TOKEN {semaphore} REQUEST q")), ":0");
    assert_eq!(call(&mut a, &format!("SEM.RELEASE s x ALL TOKEN {semaphore} REQUEST q")), ":0");
    server.check_invariants();
}

#[test]
fn a_release_that_is_sent_again_ends_nothing_more() {
    let (server, mut a, mut b) = server();
    let first = token(&mut a, "LOCK.ACQUIRE l x 1000");
    token(&mut a, "LOCK.ACQUIRE l x 1000");
    assert_eq!(call(&mut a, "LOCK.RELEASE l x REQUEST q"), ":1");
    assert_eq!(call(&mut b, "LOCK.RELEASE l x REQUEST q"), ":1", "the first reply again");
    assert_eq!(call(&mut a, &format!("LOCK.RELEASE l x TOKEN {first} REQUEST p")), ":0");
    assert_eq!(call(&mut b, &format!("LOCK.RELEASE l x TOKEN {first} REQUEST p")), ":0");
    let second = token(&mut a, "LOCK.ACQUIRE l x 1000");
    assert_eq!(call(&mut b, &format!("LOCK.RELEASE l x TOKEN {first} REQUEST p")), ":0", "and no later grant");
    let other = format!("-NOTHELD lock 'l' is not held by 'x': held by 'x' for 0 ms with token {second}");
    assert_eq!(call(&mut b, &format!("LOCK.RELEASE l x TOKEN {first}")), other);
    assert_eq!(call(&mut b, &format!("LOCK.RENEW l x 5000 TOKEN {first}")), other);
    assert_eq!(call(&mut b, "PTTL l"), ":1000");
    // A refused release has no effect, so its repetition is a new request.
    assert_eq!(call(&mut b, &format!("LOCK.RELEASE l x TOKEN {first} REQUEST o")), other);
    assert_eq!(call(&mut b, &format!("LOCK.RENEW l x 2000 TOKEN {second}")), ":2000");
    assert_eq!(call(&mut b, &format!("LOCK.RELEASE l x TOKEN {second} REQUEST o")), ":0");
    server.check_invariants();
}

#[test]
fn ids_have_between_1_and_64_bytes() {
    let (server, mut a, _) = server();
    for len in [0, 1, 64, 65, 100_000] {
        let id = vec![b'i'; len];
        let fits = (1..=64).contains(&len);
        let acquired = a.call(&[&b"LOCK.ACQUIRE"[..], b"l", b"x", b"1000", b"REQUEST", &id]).unwrap();
        assert_eq!(acquired.frame.integer().is_some(), fits, "{len}");
        let released = a.call(&[&b"LOCK.RELEASE"[..], b"l", b"x", b"REQUEST", &id]).unwrap();
        assert_eq!(released.frame.integer(), fits.then_some(0), "{len}");
        let session = a.call(&[&b"LOCK.SESSION"[..], &id]).unwrap();
        assert_eq!(session.frame.integer(), fits.then_some(0), "{len}");
        if !fits {
            assert!(acquired.frame.is_error("ERR request id must have 1 to 64 bytes"));
            assert!(session.frame.is_error("ERR session id must have 1 to 64 bytes"));
        }
    }
    server.check_invariants();
}

#[test]
fn grants_of_a_named_session_stay_for_its_grace() {
    play_here(
        "A: LOCK.ACQUIRE before x 100000 SESSION => :*
         A: LOCK.SESSION s GRACE 50 => :0
         A: LOCK.ACQUIRE l x 100000 SESSION => :*
         A: SEM.ACQUIRE p x 100000 LIMIT 1 SESSION => :*
         A: LOCK.ACQUIRE plain x 100000 => :*
         B: LOCK.ACQUIRE before y 1000 WAIT 0
         C: LOCK.ACQUIRE l y 1000 WAIT 0
         A closes
         B <= :*
         pass 49
         B: EXISTS l p plain => :3
         pass 1
         C <= :*
         B: EXISTS p => :0
         B: EXISTS plain => :1
         B: LOCK.SESSION s => :0",
    );
}

#[test]
fn another_connection_takes_a_session_over() {
    play_here(
        "A: LOCK.SESSION s GRACE 50 => :0
         A: LOCK.ACQUIRE l x 100000 SESSION => :*
         A: LOCK.ACQUIRE m x 100000 SESSION => :*
         A closes
         pass 49
         B: LOCK.SESSION s => :2
         pass 1000
         B: LOCK.RELEASE m x => :0
         # The session belongs to the newer connection. The end of the older one has no effect.
         C: LOCK.SESSION s GRACE 10 => :1
         B closes
         pass 1000
         C: EXISTS l => :1
         # A connection that names another session leaves its own.
         C: LOCK.SESSION t => :0
         pass 9
         C: EXISTS l => :1
         pass 1
         C: EXISTS l => :0
         # A session without GRACE ends with its connection.
         C: LOCK.ACQUIRE l x 100000 SESSION => :*
         D: LOCK.ACQUIRE l y 1000 WAIT 0
         C: RESET => +RESET
         D <= :*",
    );
    play_here(
        "A: LOCK.SESSION s GRACE 1000 => :0
         A: LOCK.ACQUIRE l x 100000 SESSION => :*
         B: LOCK.ACQUIRE l y 1000 WAIT 0
         C: LOCK.SESSION s END => :1
         B <= :*
         C: LOCK.SESSION s END => :0
         # The named session has ended, so the grants of a connection end with it again.
         A: LOCK.ACQUIRE m x 100000 SESSION => :*
         A closes
         C: LOCK.ACQUIRE m y 1000 WAIT 0 => :*",
    );
}

#[test]
fn the_connection_that_repeats_a_request_is_told_of_the_loss() {
    play_here(
        "A: HELLO 3 => %7*
         B: HELLO 3 => %7*
         A: LOCK.ACQUIRE l x 9000 REQUEST r => :*
         B: LOCK.ACQUIRE l x 9000 REQUEST r => :*
         C: DEL l => :1
         B <= >5 $9 lock-lost $1 l $1 x :*
         A: PING => +PONG
         # A grant that is bound to its connection stays with it.
         A: LOCK.ACQUIRE l x 9000 SESSION REQUEST s => :*
         B: LOCK.ACQUIRE l x 9000 REQUEST s => :*
         C: DEL l => :1
         A <= >5 $9 lock-lost $1 l $1 x :*
         B: PING => +PONG",
    );
}

#[test]
fn the_connection_that_renews_takes_the_grant_of_an_ended_one_over() {
    play_here(
        "A: HELLO 3 => %7*
         B: HELLO 3 => %7*
         A: LOCK.ACQUIRE l x 9000 => :*
         # The connection that acquired it keeps it as long as it is there.
         B: LOCK.RENEW l x 9000 => :9000
         A closes
         pass 1000
         B: LOCK.RENEW l x keep => :8000
         B: LOCK.RENEW l x KEEP TOKEN 1 => -NOTHELD lock 'l' is not held by 'x': *
         B: LOCK.RENEW l y KEEP => -NOTHELD *
         C: DEL l => :1
         B <= >5 $9 lock-lost $1 l $1 x :*
         F: SEM.ACQUIRE s x 9000 LIMIT 1 => :*
         pass 1000
         B: SEM.RENEW s x KEEP => :8000
         B: LOCK.RENEW s x KEEPS => -ERR value is not an integer or out of range
         # A grant that is bound to a connection or a session is that one's.
         D: LOCK.SESSION s GRACE 60000 => :0
         D: LOCK.ACQUIRE l x 9000 SESSION => :*
         D closes
         B: LOCK.RENEW l x 9000 => :9000
         E: HELLO 3 => %7*
         E: LOCK.SESSION s => :1
         C: DEL l => :1
         E <= >5 $9 lock-lost $1 l $1 x :*
         B: PING => +PONG",
    );
}

#[test]
fn the_connection_that_has_a_session_is_told_what_it_loses() {
    // The session was taken over from the connection that acquired the lock, which is still open.
    play_here(
        "A: HELLO 3 => %7*
         B: HELLO 3 => %7*
         A: LOCK.SESSION s GRACE 1000 => :0
         A: LOCK.ACQUIRE l x 100000 SESSION => :*
         A: LOCK.ACQUIRE m x 50 SESSION => :*
         B: LOCK.SESSION s => :2
         pass 50
         B <= >5 $9 lock-lost $1 m $1 x :*
         C: LOCK.SESSION s END => :1
         B <= >5 $9 lock-lost $1 l $1 x :*
         A: PING => +PONG",
    );
    // While the session has no connection, the connection that acquired the lock gets the message, even if it has left the
    // session.
    play_here(
        "A: HELLO 3 => %7*
         A: LOCK.SESSION s GRACE 1000 => :0
         A: LOCK.ACQUIRE l x 100000 SESSION => :*
         A: LOCK.ACQUIRE m x 50 SESSION => :*
         A: LOCK.SESSION t => :0
         pass 50
         A <= >5 $9 lock-lost $1 m $1 x :*
         C: DEL l => :1
         A <= >5 $9 lock-lost $1 l $1 x :*",
    );
}

#[test]
fn a_request_that_is_sent_again_brings_its_grant_into_the_newer_connection() {
    play_here(
        "A: LOCK.ACQUIRE l x 100000 SESSION REQUEST r => :*
         B: LOCK.ACQUIRE l x 100000 SESSION REQUEST r => :*
         A closes
         B: EXISTS l => :1
         C: LOCK.ACQUIRE l y 1000 WAIT 0
         B closes
         C <= :*",
    );
}

#[test]
fn a_session_belongs_to_its_user() {
    play_here(
        "A: ACL SETUSER ann on nopass ~* +@all => +OK
         A: LOCK.SESSION s GRACE 1000 => :0
         A: LOCK.ACQUIRE l x 100000 SESSION => :*
         B: AUTH ann any => +OK
         B: LOCK.SESSION s => -NOPERM session 's' belongs to another user
         B: LOCK.SESSION s END => -NOPERM session 's' belongs to another user
         A: LOCK.SESSION s => :1",
    );
}

#[test]
fn what_a_session_is_can_be_seen() {
    let (server, mut a, mut b) = server();
    call(&mut a, "LOCK.SESSION s GRACE 1000");
    call(&mut a, "LOCK.ACQUIRE l x 1000 SESSION REQUEST r");
    assert!(call(&mut b, "LOCK.INFO l").contains("session :1 $10 session-id $1 s"), "{}", call(&mut b, "LOCK.INFO l"));
    let stats = call(&mut b, "LOCK.STATS");
    assert!(stats.contains("sessions :1 ") && stats.contains("requests-remembered :1 "), "{stats}");
    call(&mut b, "LOCK.SESSION s");
    let id = call(&mut b, "CLIENT ID");
    assert!(call(&mut b, "LOCK.INFO l").contains(&format!("client {id}")), "it is the connection that has the session");
    server.check_invariants();
}

#[test]
fn sessions_and_requests_outlive_a_restart_that_keeps_the_data() {
    let server = TestServer::builder().frozen(true).start();
    let connect = || Wire::connect(server.addr()).unwrap();
    let mut a = connect();
    call(&mut a, "FAULT JOURNAL 100");
    token(&mut a, "LOCK.ACQUIRE bound x 100000 SESSION");
    call(&mut a, "LOCK.SESSION s GRACE 10");
    let granted = token(&mut a, "LOCK.ACQUIRE l x 100000 SESSION REQUEST r");
    call(&mut a, "LOCK.SESSION t GRACE 60000");
    token(&mut a, "LOCK.ACQUIRE m x 100000 SESSION");
    token(&mut a, "LOCK.ACQUIRE n x 1000 REQUEST q");
    call(&mut a, "LOCK.RELEASE n x REQUEST o");
    call(&mut a, "FAULT RESTART LOSE 0");
    let mut b = connect();
    assert_eq!(call(&mut b, "EXISTS l m bound"), ":2", "what was bound to a connection alone is gone");
    assert_eq!(token(&mut b, "LOCK.ACQUIRE l x 100000 REQUEST r"), granted);
    assert_eq!(call(&mut b, "LOCK.RELEASE n x REQUEST o"), ":0");
    assert!(call(&mut b, "LOCK.ACQUIRE n x 1000 REQUEST q").starts_with("-NOTHELD"));
    // lock-session-grace is 5 s.
    server.clock().advance(Duration::from_millis(4_999));
    assert_eq!(call(&mut b, "LOCK.SESSION t"), ":1");
    server.clock().advance(Duration::from_millis(1));
    assert_eq!(call(&mut b, "EXISTS l m bound"), ":1");
    server.check_invariants();
}
