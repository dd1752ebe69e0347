//! Broken locks: an administrator ends a grant.

use std::time::Duration;

use portcullis::testing::TestServer;

use crate::common::scenes::play_here;
use crate::common::talk::{call, send, token, told};
use crate::common::wire::{Frame, Wire};
use crate::shown::{ask, get, maps, number, text, until_waiting};

#[test]
fn a_broken_lock_goes_to_the_next_waiter_and_its_holder_is_told() {
    let server = TestServer::builder().frozen(true).start();
    let connect = || Wire::connect(server.addr()).unwrap();
    let (mut a, mut b, mut admin, mut events) = (connect(), connect(), connect(), connect());
    call(&mut admin, "CONFIG SET notify-keyspace-events KEk");
    call(&mut events, "SUBSCRIBE __keyevent@0__:lock.broken");
    call(&mut admin, "CLIENT SETNAME on-call");
    let id = call(&mut admin, "CLIENT ID")[1..].to_owned();
    call(&mut a, "HELLO 3");
    // A delay of the grant does not hold the next one back: an administrator wants the lock to go on.
    let held = token(&mut a, "LOCK.ACQUIRE order ann 100000 SESSION DELAY 5000");
    send(&mut b, "LOCK.ACQUIRE order bob 100000 WAIT 0");
    until_waiting(&mut admin, 1);
    server.clock().advance(Duration::from_millis(40));
    assert_eq!(
        call(&mut admin, &format!("LOCK.BREAK order TOKEN {} REASON x", held + 7)),
        format!("-NOTHELD lock 'order' has no grant with token {}: held by 'ann' for 40 ms with token {held}", held + 7)
    );
    assert_eq!(call(&mut admin, &format!("LOCK.BREAK order TOKEN {held} REASON stuck")), ":1");
    let next = told(&mut b);
    assert!(next.starts_with(':'), "the waiter is served in the same step: {next}");
    assert_eq!(told(&mut a), format!(">5 $9 lock-lost $5 order $3 ann :{held} $6 broken"));
    assert_eq!(told(&mut events), "*3 $7 message $26 __keyevent@0__:lock.broken $5 order");
    server.clock().advance(Duration::from_millis(12));
    assert_eq!(
        call(&mut a, "LOCK.RELEASE order ann"),
        format!("-NOTHELD lock 'order' is not held by 'ann': broken by client {id} 12 ms ago: stuck")
    );
    assert_eq!(
        call(&mut admin, &format!("LOCK.BREAK order TOKEN {held}")),
        format!("-NOTHELD lock 'order' has no grant with token {held}: broken by client {id} 12 ms ago: stuck"),
        "it ends no later grant"
    );
    let why = maps(&mut admin, "LOCK.WHY order");
    let event = why.iter().find(|event| text(event, "event") == "broken").unwrap();
    for (field, value) in [("owner", "ann"), ("by-user", "default"), ("by-name", "on-call"), ("reason", "stuck")] {
        assert_eq!(text(event, field), value, "{field}");
    }
    assert!(text(event, "by-addr").starts_with("127.0.0.1:"));
    assert_eq!((number(event, "token"), number(event, "by").to_string(), number(event, "ago")), (held, id.clone(), 12));
    let info = ask(&mut admin, "LOCK.INFO order");
    let end = get(&info, "last-end");
    assert_eq!((text(end, "event"), text(end, "owner"), text(end, "reason")), ("broken".into(), "ann".into(), "stuck".into()));
    assert_eq!((number(end, "token"), number(end, "by").to_string(), number(end, "ago")), (held, id, 12));
    assert_eq!(number(&ask(&mut admin, "LOCK.STATS"), "broken"), 1);
    assert!(call(&mut admin, "INFO locks").contains(" lock_broken:1 "));
    // The ended session of A ends nothing else.
    drop(a);
    while call(&mut admin, "CLIENT LIST").matches("id=").count() > 3 {}
    assert_eq!(call(&mut b, "LOCK.RELEASE order bob"), ":0");
    server.check_invariants();
}

#[test]
fn one_of_several_grants_is_broken() {
    let server = TestServer::builder().frozen(true).start();
    let connect = || Wire::connect(server.addr()).unwrap();
    let (mut a, mut b, mut c) = (connect(), connect(), connect());
    let shared = [token(&mut a, "LOCK.ACQUIRE doc x 1000 SHARED"), token(&mut a, "LOCK.ACQUIRE doc y 1000 SHARED")];
    send(&mut b, "LOCK.ACQUIRE doc z 1000 WAIT 0");
    let permits = token(&mut a, "SEM.ACQUIRE pool x 1000 LIMIT 3 PERMITS 2");
    token(&mut a, "SEM.ACQUIRE pool y 1000 LIMIT 3");
    send(&mut c, "SEM.ACQUIRE pool z 1000 LIMIT 3 PERMITS 2 WAIT 0");
    until_waiting(&mut a, 2);
    assert_eq!(call(&mut a, &format!("LOCK.BREAK doc TOKEN {}", shared[0])), ":1");
    assert_eq!(call(&mut a, "LOCK.RENEW doc y 1000"), ":1000", "the other holder keeps it");
    assert_eq!(call(&mut a, &format!("LOCK.BREAK doc TOKEN {}", shared[1])), ":1");
    assert!(told(&mut b).starts_with(':'));
    assert_eq!(call(&mut a, &format!("LOCK.BREAK pool TOKEN {permits}")), ":1");
    assert!(told(&mut c).starts_with(':'));
    assert_eq!(call(&mut a, "SEM.RELEASE pool y"), ":0");
    server.check_invariants();
}

#[test]
fn what_cannot_be_broken_is_refused_and_unchanged() {
    play_here(
        "A: SET plain v => +OK
         A: LATCH.SET latch 1 => :1
         A: LOCK.GUARD guard 5 => +OK
         A: LOCK.BREAK plain TOKEN 1 => -WRONGTYPE plain is a plain key, which has no grant to break: DEL plain ends it
         A: LOCK.BREAK latch TOKEN 1 => -WRONGTYPE Operation against a key holding the wrong kind of value
         A: LOCK.BREAK guard TOKEN 5 => -WRONGTYPE Operation against a key holding the wrong kind of value
         A: LOCK.BREAK none TOKEN 1 => -NOTHELD lock 'none' has no grant with token 1: never held
         A: LOCK.BREAK none TOKEN => -ERR wrong number of arguments for 'lock.break' command, usage: LOCK.BREAK key TOKEN token [REASON reason]
         A: LOCK.BREAK none REASON x => -ERR syntax error
         A: LOCK.BREAK none TOKEN 1 REASON => -ERR syntax error
         A: LOCK.BREAK none TOKEN 1 BECAUSE x => -ERR syntax error
         A: LOCK.BREAK none TOKEN -1 => -ERR value is not an integer or out of range
         A: DBSIZE => :3
         # In a transaction and in a script it works as other commands do.
         B: MULTI => +OK
         B: LOCK.BREAK none TOKEN 1 => +QUEUED
         B: EXEC => *1 -NOTHELD lock 'none' has no grant with token 1: never held
         A: LOCK.ACQUIRE a x 1000 REQUEST r => :*
         A: LOCK.RELEASE a x => :0
         A: LOCK.ACQUIRE a x 10 => :*
         pass 10
         A: DBSIZE => :3",
    );
    let server = TestServer::builder().frozen(true).start();
    let mut wire = Wire::connect(server.addr()).unwrap();
    let held = token(&mut wire, "LOCK.ACQUIRE a x 1000");
    assert_eq!(call(&mut wire, &format!("LOCK.BREAK a TOKEN {held} REASON {}", "x".repeat(129))), ":1");
    let why = call(&mut wire, "LOCK.WHY a");
    assert!(why.ends_with(&format!("$6 reason $128 {}", "x".repeat(128))), "{why}");
    for (how, request, cause) in [
        ("a", "LOCK.RELEASE a x", "released 3 ms ago"),
        ("b", "DEL b", "deleted by client"),
        ("c", "FLUSHALL", "deleted by client"),
    ] {
        let held = token(&mut wire, &format!("LOCK.ACQUIRE {how} x 1000"));
        call(&mut wire, request);
        server.clock().advance(Duration::from_millis(3));
        let refused = call(&mut wire, &format!("LOCK.BREAK {how} TOKEN {held}"));
        let start = format!("-NOTHELD lock '{how}' has no grant with token {held}: {cause}");
        assert!(refused.starts_with(&start), "{refused}");
    }
    // A broken request is not granted again when it comes twice.
    let held = token(&mut wire, "LOCK.ACQUIRE d x 1000 REQUEST r");
    assert_eq!(call(&mut wire, &format!("LOCK.BREAK d TOKEN {held}")), ":1");
    let again = call(&mut wire, "LOCK.ACQUIRE d x 1000 REQUEST r");
    assert!(again.starts_with("-NOTHELD lock 'd' is not held by 'x': broken by client"), "{again}");
    assert_eq!(call(&mut wire, "EXISTS d"), ":0");
    server.check_invariants();
}

#[test]
fn who_may_take_locks_may_not_break_them() {
    let server = TestServer::builder().frozen(true).start();
    let connect = || Wire::connect(server.addr()).unwrap();
    let (mut admin, mut user) = (connect(), connect());
    let names = |reply: Frame| -> Vec<String> {
        let text = |frame: &Frame| String::from_utf8(frame.text().unwrap().to_vec()).unwrap();
        reply.elements().unwrap().iter().map(text).collect()
    };
    assert!(names(ask(&mut admin, "ACL CAT")).contains(&"lockadmin".to_owned()));
    assert_eq!(names(ask(&mut admin, "ACL CAT lockadmin")), ["lock.recent", "lock.leaks", "lock.break"]);
    let info = ask(&mut admin, "COMMAND INFO lock.break");
    assert_eq!(
        names(info.elements().unwrap()[0].elements().unwrap()[6].clone()),
        ["@write", "@slow", "@dangerous", "@lockadmin"]
    );
    assert_eq!(call(&mut admin, "ACL SETUSER app on nopass ~* &* -@all +@lock"), "+OK");
    // Nor may whoever has what is left without administration.
    assert_eq!(call(&mut admin, "ACL SETUSER most on nopass ~* &* +@all -@admin -@dangerous"), "+OK");
    for request in ["LOCK.BREAK order TOKEN 1", "LOCK.RECENT", "LOCK.LEAKS", "LOCK.SLOWLOG GET"] {
        assert!(call(&mut admin, &format!("ACL DRYRUN most {request}")).contains("has no permissions to run"), "{request}");
    }
    assert_eq!(call(&mut admin, "ACL SETUSER keeper on nopass ~order* &* -@all +@lockadmin"), "+OK");
    assert_eq!(call(&mut user, "AUTH app x"), "+OK");
    let held = token(&mut user, "LOCK.ACQUIRE order x 1000");
    let refused = "-NOPERM User app has no permissions to run the 'lock.break' command";
    assert_eq!(call(&mut user, &format!("LOCK.BREAK order TOKEN {held}")), refused);
    assert_eq!(call(&mut admin, "AUTH keeper x"), "+OK");
    assert!(call(&mut admin, &format!("LOCK.BREAK other TOKEN {held}")).starts_with("-NOPERM "), "the key counts, too");
    assert_eq!(call(&mut admin, &format!("LOCK.BREAK order TOKEN {held}")), ":1");
}
