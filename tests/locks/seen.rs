//! What commands show of locks: holders and their clients, every kind of name, choices, trees, and figures of the present.

use std::collections::BTreeMap;
use std::time::Duration;

use portcullis::testing::TestServer;

use crate::common::talk::{call, send, token, told};
use crate::common::wire::{Frame, Wire};
use crate::shown::{ask, find, get, maps, names, number, of, text, until_clients, until_waiting};

fn start() -> TestServer {
    TestServer::builder().frozen(true).start()
}

fn pass(server: &TestServer, ms: u64) {
    server.clock().advance(Duration::from_millis(ms));
}

#[test]
fn a_holder_is_known_after_its_connection_has_ended() {
    let server = start();
    let connect = || Wire::connect(server.addr()).unwrap();
    let (mut a, mut b, mut control) = (connect(), connect(), connect());
    call(&mut control, "ACL SETUSER app on nopass ~* &* +@all");
    call(&mut a, "AUTH app x");
    call(&mut a, "CLIENT SETNAME worker-7");
    call(&mut b, "CLIENT SETNAME worker-8");
    token(&mut a, "LOCK.ACQUIRE order ann 100000");
    for _ in 0..3 {
        assert_eq!(call(&mut control, "LOCK.RENEW order ann 100000"), ":100000");
    }
    send(&mut b, "LOCK.ACQUIRE order bob 1000 WAIT 0");
    until_waiting(&mut control, 1);
    pass(&server, 250);
    let info = ask(&mut control, "LOCK.INFO order");
    assert_eq!(
        names(&info),
        ["kind", "mode", "fence", "holders", "oldest-wait", "waiters", "last-end", "granted", "contended", "expired"]
    );
    assert_eq!((text(&info, "kind"), number(&info, "oldest-wait")), ("lock".to_owned(), 250));
    assert_eq!(get(&info, "last-end"), &Frame::NilBulk);
    let holder = &of(&info, "holders")[0];
    let addr = text(holder, "addr");
    assert!(addr.starts_with("127.0.0.1:"));
    assert_eq!((text(holder, "client-name"), text(holder, "user")), ("worker-7".to_owned(), "app".to_owned()));
    assert_eq!((get(holder, "gone"), number(holder, "renewed")), (&Frame::NilBulk, 3));
    assert_eq!(text(&of(&info, "waiters")[0], "client-name"), "worker-8");
    drop(a);
    until_clients(&mut control, 2);
    pass(&server, 1_500);
    for request in ["LOCK.INFO order", "LOCK.LIST", "LOCK.GRAPH"] {
        let reply = ask(&mut control, request);
        let info = if request == "LOCK.INFO order" { &reply } else { &reply.elements().unwrap()[0] };
        let holder = &of(info, "holders")[0];
        assert_eq!(number(holder, "gone"), 1_500, "{request}");
        assert_eq!((text(holder, "client-name"), text(holder, "user")), ("worker-7".to_owned(), "app".to_owned()), "{request}");
        assert_eq!(text(holder, "addr"), addr, "{request}");
    }
    // Whoever renews the lease lives, and is shown from then on.
    let mut renewer = connect();
    call(&mut renewer, "CLIENT SETNAME renewer");
    let left = number(&of(&ask(&mut control, "LOCK.INFO order"), "holders")[0], "lease");
    assert_eq!(call(&mut renewer, &format!("LOCK.RENEW order ann {left}")), format!(":{left}"));
    let info = ask(&mut control, "LOCK.INFO order");
    let holder = &of(&info, "holders")[0];
    assert_eq!((get(holder, "gone"), text(holder, "client-name")), (&Frame::NilBulk, "renewer".to_owned()));
    drop(renewer);
    until_clients(&mut control, 2);
    let info = ask(&mut control, "LOCK.INFO order");
    let holder = &of(&info, "holders")[0];
    assert_eq!((number(holder, "gone"), text(holder, "client-name")), (0, "renewer".to_owned()));
    // The waiter is granted the lock by the end of the lease; then the end is known.
    pass(&server, 98_250);
    assert!(told(&mut b).starts_with(':'));
    let info = ask(&mut control, "LOCK.INFO order");
    let end = get(&info, "last-end");
    assert_eq!((text(end, "event"), text(end, "owner"), get(end, "by")), ("expired".into(), "ann".into(), &Frame::NilBulk));
    server.check_invariants();
}

#[test]
fn every_kind_of_name_is_shown() {
    let server = start();
    let connect = || Wire::connect(server.addr()).unwrap();
    let (mut a, mut b, mut c) = (connect(), connect(), connect());
    let fields = |wire: &mut Wire, name: &str| -> BTreeMap<String, Frame> {
        let info = ask(wire, &format!("LOCK.INFO {name}"));
        names(&info).into_iter().map(|name| (name.clone(), get(&info, &name).clone())).collect()
    };
    let bulk = |text: &str| Frame::Bulk(text.into());
    let int = |number: i64| Frame::Integer(number.to_string().into());
    call(&mut a, "LATCH.SET gate 2 PX 5000");
    call(&mut b, "CLIENT SETNAME gatekeeper");
    send(&mut b, "LATCH.AWAIT gate WAIT 3000");
    call(&mut a, "LOCK.GUARD ledger 34");
    call(&mut a, &format!("SET plain {} PX 9000", "v".repeat(300)));
    call(&mut a, "HSET hash field secret");
    call(&mut a, "RPUSH list x");
    send(&mut c, "LOCK.ACQUIRE plain bob 1000 WAIT 0");
    until_waiting(&mut a, 1);
    while call(&mut a, "CLIENT LIST").matches("flags=b").count() < 2 {}
    pass(&server, 1_200);
    let gate = fields(&mut a, "gate");
    assert_eq!((&gate["kind"], &gate["count"], &gate["ttl"]), (&bulk("latch"), &int(2), &int(3_800)));
    assert_eq!(gate["oldest-wait"], int(1_200));
    let waiter = &gate["waiters"].elements().unwrap()[0];
    assert_eq!(
        (number(waiter, "waited"), number(waiter, "left"), text(waiter, "client-name")),
        (1_200, 1_800, "gatekeeper".into())
    );
    let ledger = fields(&mut a, "ledger");
    assert_eq!((&ledger["kind"], &ledger["token"], &ledger["ttl"]), (&bulk("guard"), &int(34), &int(-1)));
    let plain = fields(&mut a, "plain");
    assert_eq!((&plain["kind"], &plain["value"]), (&bulk("string"), &bulk(&"v".repeat(256))));
    assert_eq!((&plain["idle"], &plain["ttl"], &plain["oldest-wait"]), (&int(1), &int(7_800), &int(1_200)));
    assert_eq!(text(&plain["waiters"].elements().unwrap()[0], "owner"), "bob");
    for (name, kind) in [("hash", "hash"), ("list", "list")] {
        let shown = fields(&mut a, name);
        assert_eq!((&shown["kind"], shown.get("value")), (&bulk(kind), None), "only strings have one");
    }
    assert_eq!(text(&fields(&mut a, "hash")["fields"], "field"), "secret");
    assert_eq!(call(&mut a, "LOCK.INFO none"), "$-1");
    token(&mut a, "SEM.ACQUIRE pool x 1000 LIMIT 2");
    assert_eq!(text(&ask(&mut a, "LOCK.INFO pool"), "kind"), "semaphore");
    // A user who may not read a key does not see it in lists.
    let listed = |wire: &mut Wire| maps(wire, "LOCK.LIST KIND string").len();
    assert_eq!(listed(&mut a), 1);
    call(&mut a, "ACL SETUSER app on nopass ~other* %W~plain +@all");
    call(&mut a, "AUTH app x");
    assert_eq!(listed(&mut a), 0);
    server.check_invariants();
}

/// The writer of a plain key: its client's name, and how long its connection has been gone.
fn writer(wire: &mut Wire, key: &str) -> Option<(String, Option<i64>)> {
    let info = ask(wire, &format!("LOCK.INFO {key}"));
    match get(&info, "writer") {
        Frame::NilBulk => None,
        writer => Some((text(writer, "client-name"), (get(writer, "gone") != &Frame::NilBulk).then(|| number(writer, "gone")))),
    }
}

#[test]
fn a_plain_lock_tells_who_wrote_it_last() {
    let server = start();
    let connect = |name: &str| {
        let mut wire = Wire::connect(server.addr()).unwrap();
        call(&mut wire, &format!("CLIENT SETNAME {name}"));
        wire
    };
    let (mut a, mut b, mut control) = (connect("ann"), connect("bob"), connect("control"));
    let by = |name: &str| Some((name.to_owned(), None));
    // Each way in which libraries take a lock.
    for (key, command) in [
        ("set", "SET set x NX PX 90000"),
        ("setnx", "SETNX setnx x"),
        ("swap", "GETSET swap x"),
        ("swap2", "SET swap2 x GET"),
        ("equal", "SET equal x IFNE y"),
        ("hset", "HSET hset x 1"),
        ("hsetnx", "HSETNX hsetnx x 1"),
        ("reentrant", "EVAL return(redis.call('hincrby',KEYS[1],ARGV[1],1)) 1 reentrant x"),
    ] {
        call(&mut a, command);
        assert_eq!(writer(&mut control, key), by("ann"), "{command}");
    }
    // A refused attempt is no change, and neither is another lease.
    for (key, command) in [
        ("set", "SET set y NX"),
        ("set", "SET set y IFEQ y"),
        ("set", "PEXPIRE set 80000"),
        ("setnx", "SETNX setnx y"),
        ("hsetnx", "HSETNX hsetnx x 2"),
    ] {
        call(&mut b, command);
        assert_eq!(writer(&mut control, key), by("ann"), "{command}");
    }
    // Its next writer, in place or not, and over a change of its name.
    for (key, command) in [
        ("set", "SET set y XX PX 90000"),
        ("set", "SET set longer XX KEEPTTL"),
        ("setnx", "GETSET setnx y"),
        ("reentrant", "HSET reentrant x 3"),
        ("hset", "HSET hset x 2"),
    ] {
        call(&mut b, command);
        assert_eq!(writer(&mut control, key), by("bob"), "{command}");
    }
    call(&mut control, "RENAME set renamed");
    call(&mut control, "RENAME reentrant again");
    assert_eq!((writer(&mut control, "renamed"), writer(&mut control, "again")), (by("bob"), by("bob")));
    // A change by a command that says nothing of its writer.
    for (key, command) in [("renamed", "SET renamed z"), ("setnx", "APPEND setnx z"), ("again", "HSET again f long")] {
        call(&mut a, command);
        assert_eq!(writer(&mut control, key), None, "{command}");
    }
    call(&mut a, "SET number 1 NX");
    call(&mut b, "INCR number");
    assert_eq!(writer(&mut control, "number"), None);
    // What is no lock.
    call(&mut a, "SET cached x PX 90000");
    assert_eq!(writer(&mut control, "cached"), None);
    // The connection ends, and the lock stays.
    drop(b);
    while call(&mut control, "CLIENT LIST").contains("name=bob") {}
    call(&mut control, "CLOCK ADVANCE 1500");
    assert_eq!(writer(&mut control, "hset"), Some(("bob".to_owned(), Some(1500))));
    let info = ask(&mut control, "LOCK.INFO hset");
    assert_eq!(text(get(&info, "fields"), "x"), "2");
    send(&mut a, "LOCK.ACQUIRE hset cy 1000 WAIT 0");
    until_waiting(&mut control, 1);
    let seen = diagnosis(&mut control).join("\n");
    assert!(seen.contains(" named bob), whose connection ended 1.5 s ago."), "{seen}");
    server.check_invariants();
}

#[test]
fn lists_are_chosen_by_owner_kind_wait_and_age() {
    let server = start();
    let connect = || Wire::connect(server.addr()).unwrap();
    let mut control = connect();
    let mut waiters: Vec<Wire> = (0..5).map(|_| connect()).collect();
    let list = |wire: &mut Wire, options: &str| -> Vec<String> {
        maps(wire, &format!("LOCK.LIST {options}")).iter().map(|map| text(map, "name")).collect()
    };
    let sorted = |mut names: Vec<String>| {
        names.sort();
        names
    };
    token(&mut control, "LOCK.ACQUIRE old ann 900000");
    token(&mut control, "LOCK.ACQUIRE crowd ann 900000");
    send(&mut waiters[0], "LOCK.ACQUIRE old bob 1000 WAIT 0");
    until_waiting(&mut control, 1);
    pass(&server, 400);
    for (number, waiter) in waiters.iter_mut().enumerate().skip(1).take(3) {
        send(waiter, &format!("LOCK.ACQUIRE crowd w{number} 1000 WAIT 0"));
    }
    until_waiting(&mut control, 4);
    token(&mut control, "LOCK.ACQUIRE idle bob 900000");
    token(&mut control, "SEM.ACQUIRE pool cy 900000 LIMIT 2");
    token(&mut control, "SEM.ACQUIRE pool dan 900000 LIMIT 2");
    call(&mut control, "LATCH.SET gate 1");
    call(&mut control, "LOCK.GUARD ledger 7");
    call(&mut control, "SET plain v");
    send(&mut waiters[4], "LOCK.ACQUIRE plain eve 1000 WAIT 0");
    until_waiting(&mut control, 5);
    pass(&server, 100);
    assert_eq!(list(&mut control, "CONTENDED"), ["crowd", "old", "plain"], "the longest queues first");
    assert_eq!(list(&mut control, "WAITING 0"), ["old", "crowd", "plain"], "the longest wait first");
    assert_eq!(list(&mut control, "WAITING 100"), ["old", "crowd", "plain"]);
    assert_eq!(list(&mut control, "WAITING 101"), ["old"]);
    assert_eq!(list(&mut control, "WAITING 501"), [""; 0]);
    assert_eq!(sorted(list(&mut control, "")), ["crowd", "idle", "old", "plain", "pool"]);
    assert_eq!(list(&mut control, "OWNER ann"), ["crowd", "old"]);
    assert_eq!(list(&mut control, "OWNER bob"), ["old", "idle"], "what it waits for and what it holds");
    assert_eq!(list(&mut control, "OWNER dan"), ["pool"]);
    assert_eq!(list(&mut control, "OWNER nobody"), [""; 0]);
    assert_eq!(list(&mut control, "HELD 500"), ["crowd", "old"]);
    assert_eq!(sorted(list(&mut control, "HELD 100")), ["crowd", "idle", "old", "pool"]);
    assert_eq!(list(&mut control, "KIND semaphore"), ["pool"]);
    assert_eq!(list(&mut control, "KIND LATCH"), ["gate"]);
    assert_eq!(list(&mut control, "KIND guard"), ["ledger"]);
    assert_eq!(list(&mut control, "KIND string"), ["plain"]);
    assert_eq!(sorted(list(&mut control, "KIND lock")), ["crowd", "idle", "old"]);
    assert_eq!(list(&mut control, "KIND lock HELD 500 WAITING 101 OWNER ann MATCH o*"), ["old"]);
    assert_eq!(list(&mut control, "COUNT 1"), ["crowd"]);
    assert_eq!(list(&mut control, "COUNT 4").len(), 4);
    // Numbers, and no more holders and waiters than wanted.
    let crowd = &maps(&mut control, "LOCK.LIST CONTENDED SHOW 2")[0];
    assert_eq!((number(crowd, "holding"), number(crowd, "waiting"), of(crowd, "waiters").len()), (1, 3, 2));
    assert_eq!(text(&of(crowd, "waiters")[0], "owner"), "w1");
    let pool = &maps(&mut control, "LOCK.LIST KIND semaphore SHOW 1")[0];
    assert_eq!((number(pool, "holding"), number(pool, "permits"), of(pool, "holders").len()), (2, 2, 1));
    assert!(find(&maps(&mut control, "LOCK.LIST")[0], "waiting").is_none());
    // A semaphore is listed as long as permits are out.
    assert_eq!(call(&mut control, "SEM.RELEASE pool cy"), ":0");
    assert_eq!(list(&mut control, "KIND semaphore MATCH p*"), ["pool"]);
    assert_eq!(list(&mut control, "KIND semaphore MATCH q*"), [""; 0]);
    assert_eq!(call(&mut control, "SEM.RELEASE pool dan"), ":0");
    assert_eq!(list(&mut control, "KIND semaphore"), [""; 0]);
    for n in 0..300 {
        token(&mut control, &format!("LOCK.ACQUIRE many reader:{n} 100000 SHARED"));
    }
    let why = call(&mut control, "LOCK.WHY many");
    assert!((100..200).contains(&why.matches(" granted ").count()), "{why}");
    let long_pattern = format!("LOCK.LIST MATCH {}", "x".repeat(1025));
    for (request, error) in [
        ("LOCK.LIST SHOW 0", "-ERR syntax error"),
        ("LOCK.LIST WAITING", "-ERR syntax error"),
        ("LOCK.LIST WAITING x", "-ERR value is not an integer or out of range"),
        ("LOCK.LIST HELD -1", "-ERR syntax error"),
        ("LOCK.LIST FOO x", "-ERR syntax error"),
        (long_pattern.as_str(), "-ERR pattern is too long"),
    ] {
        assert_eq!(call(&mut control, request), error);
    }
    server.check_invariants();
}

/// A node in words: `  name via(waiters/blocked)`.
fn tree(wire: &mut Wire, request: &str) -> Vec<String> {
    let line = |node: &Frame| {
        let via = get(node, "via").text().map(|via| String::from_utf8_lossy(via).into_owned()).unwrap_or_default();
        let indent = " ".repeat(number(node, "depth") as usize);
        let cut = if get(node, "cut").integer() == Some(1) { " cut" } else { "" };
        format!("{indent}{} {via}({}/{}){cut}", text(node, "name"), number(node, "waiters"), number(node, "blocked"))
    };
    maps(wire, request).iter().map(line).collect()
}

#[test]
fn the_graph_shows_which_lock_blocks_which() {
    let server = start();
    let connect = || Wire::connect(server.addr()).unwrap();
    let mut control = connect();
    let mut waiters: Vec<Wire> = (0..6).map(|_| connect()).collect();
    assert_eq!(tree(&mut control, "LOCK.GRAPH"), [""; 0]);
    for (name, owner) in [("root", "ann"), ("mid", "bob"), ("low", "cy"), ("other", "dan"), ("idle", "x")] {
        token(&mut control, &format!("LOCK.ACQUIRE {name} {owner} 900000"));
    }
    let waits = [("root", "bob"), ("mid", "cy"), ("low", "x"), ("low", "y"), ("other", "w"), ("root", "z")];
    for (count, (waiter, (name, owner))) in waiters.iter_mut().zip(waits).enumerate() {
        send(waiter, &format!("LOCK.ACQUIRE {name} {owner} 1000 WAIT 0"));
        until_waiting(&mut control, count as i64 + 1);
        pass(&server, 10);
    }
    let whole = ["root (2/5)", " mid bob(1/3)", "  low cy(2/2)", "other (1/1)"];
    assert_eq!(tree(&mut control, "LOCK.GRAPH"), whole);
    let nodes = maps(&mut control, "LOCK.GRAPH");
    assert_eq!(
        names(&nodes[0]),
        ["depth", "name", "via", "waiters", "oldest-wait", "blocked", "holders", "cut", "elsewhere", "partial"]
    );
    assert!(nodes.iter().all(|node| get(node, "elsewhere") == &Frame::NilBulk && get(node, "partial").integer() == Some(0)));
    assert_eq!(nodes.iter().map(|node| number(node, "oldest-wait")).collect::<Vec<_>>(), [60, 50, 40, 20]);
    assert_eq!(text(&of(&nodes[2], "holders")[0], "owner"), "cy");
    assert_eq!(tree(&mut control, "LOCK.GRAPH COUNT 2"), ["root (2/5)", " mid bob(1/3) cut"]);
    assert_eq!(tree(&mut control, "LOCK.GRAPH mid"), whole[..3]);
    assert_eq!(tree(&mut control, "LOCK.GRAPH other"), ["other (1/1)"]);
    // A lock without waiters is below the one for which its holder waits.
    assert_eq!(tree(&mut control, "LOCK.GRAPH idle"), ["root (2/5)", " mid bob(1/3)", "  low cy(2/2)", "   idle x(0/0)"]);
    assert_eq!(tree(&mut control, "LOCK.GRAPH none"), [""; 0]);
    call(&mut control, "SET plain v");
    assert_eq!(tree(&mut control, "LOCK.GRAPH plain COUNT 5"), ["plain (0/0)"]);
    for request in ["LOCK.GRAPH a b", "LOCK.GRAPH a COUNT", "LOCK.GRAPH a LIMIT 3"] {
        assert_eq!(call(&mut control, request), "-ERR syntax error", "{request}");
    }
    assert_eq!(call(&mut control, "LOCK.GRAPH COUNT 0"), "-ERR count must be between 1 and 10000");
    // When the root is free, its waiters are served, and the trees are others.
    assert_eq!(call(&mut control, "LOCK.RELEASE root ann"), ":0");
    assert!(told(&mut waiters[0]).starts_with(':'));
    assert_eq!(tree(&mut control, "LOCK.GRAPH"), ["mid (1/3)", " low cy(2/2)", "other (1/1)", "root (1/1)"]);
    server.check_invariants();
}

#[test]
fn the_graph_says_that_a_holder_waits_in_another_database() {
    let server = start();
    let connect = || Wire::connect(server.addr()).unwrap();
    let (mut control, mut there, mut bob, mut last) = (connect(), connect(), connect(), connect());
    assert_eq!(call(&mut there, "SELECT 1"), "+OK");
    token(&mut there, "LOCK.ACQUIRE there ann 900000");
    token(&mut bob, "LOCK.ACQUIRE here bob 900000");
    assert_eq!(call(&mut bob, "SELECT 1"), "+OK");
    send(&mut bob, "LOCK.ACQUIRE there bob 900000 WAIT 0");
    until_waiting(&mut control, 1);
    send(&mut last, "LOCK.ACQUIRE here last 900000 WAIT 0");
    until_waiting(&mut control, 2);
    let elsewhere = |wire: &mut Wire, request: &str| {
        let nodes = maps(wire, request);
        let there = get(&nodes[0], "elsewhere");
        (nodes.len(), number(there, "db"), text(there, "name"), text(there, "owner"))
    };
    let told = (1, 1, "there".to_owned(), "bob".to_owned());
    assert_eq!(elsewhere(&mut control, "LOCK.GRAPH"), told);
    assert_eq!(elsewhere(&mut control, "LOCK.GRAPH here"), told);
    let nodes = maps(&mut there, "LOCK.GRAPH");
    assert!(nodes.len() == 1 && get(&nodes[0], "elsewhere") == &Frame::NilBulk);
    let lines = diagnosis(&mut control);
    assert_eq!(lines[2], "    bob waits for there in database 1: LOCK.DOCTOR there says what holds it up.");
    server.check_invariants();
}

#[test]
fn the_holder_and_the_last_end_are_among_the_events_whatever_came_since() {
    let server = start();
    let mut wire = Wire::connect(server.addr()).unwrap();
    token(&mut wire, "LOCK.ACQUIRE order ann 900000");
    assert_eq!(call(&mut wire, "LOCK.RELEASE order ann"), ":0");
    let held = token(&mut wire, "LOCK.ACQUIRE order bob 900000");
    pass(&server, 1_000);
    for _ in 0..100 {
        assert_eq!(call(&mut wire, "LOCK.ACQUIRE order cy 1000"), "$-1");
    }
    let events = |wire: &mut Wire, name: &str| -> Vec<String> {
        let why = maps(wire, &format!("LOCK.WHY {name}"));
        let line = |event: &Frame| format!("{} {}", text(event, "event"), text(event, "owner"));
        why.iter().map(line).filter(|line| line != "refused cy").collect()
    };
    assert_eq!(events(&mut wire, "order"), ["released ann", "granted bob"]);
    let why = maps(&mut wire, "LOCK.WHY order");
    assert_eq!((number(&why[1], "token"), number(&why[1], "waited"), number(&why[1], "ago")), (held, 0, 1_000));
    let end = get(&ask(&mut wire, "LOCK.INFO order"), "last-end").clone();
    assert_eq!((text(&end, "event"), text(&end, "owner"), number(&end, "token")), ("released".into(), "ann".into(), held - 1));
    // Of a name that was forgotten the present grants are shown, though not how long they have waited.
    call(&mut wire, "CONFIG SET lock-history-max-names 1");
    token(&mut wire, "LOCK.ACQUIRE second dan 900000");
    token(&mut wire, "LOCK.ACQUIRE third eve 900000");
    let why = maps(&mut wire, "LOCK.WHY order");
    assert_eq!(why.len(), 1);
    assert_eq!((text(&why[0], "owner"), number(&why[0], "token")), ("bob".into(), held));
    assert_eq!(get(&why[0], "waited"), &Frame::NilBulk);
    server.check_invariants();
}

#[test]
fn the_latest_events_of_all_databases_are_told() {
    let server = start();
    let mut wire = Wire::connect(server.addr()).unwrap();
    let mut waiter = Wire::connect(server.addr()).unwrap();
    assert_eq!(maps(&mut wire, "LOCK.RECENT").len(), 0);
    call(&mut wire, "CLIENT SETNAME desk");
    let broken = token(&mut wire, "LOCK.ACQUIRE stuck ann 900000");
    assert_eq!(call(&mut wire, &format!("LOCK.BREAK stuck TOKEN {broken} REASON lunch")), ":1");
    token(&mut wire, "LOCK.ACQUIRE quiet ann 900000");
    assert_eq!(call(&mut wire, "LOCK.RELEASE quiet ann"), ":0");
    pass(&server, 10);
    call(&mut wire, "SELECT 5");
    token(&mut wire, "LOCK.ACQUIRE short ann 500");
    pass(&server, 500);
    call(&mut wire, "SELECT 0");
    token(&mut wire, "LOCK.ACQUIRE one ann 900000");
    token(&mut wire, "LOCK.ACQUIRE two bob 900000");
    send(&mut waiter, "LOCK.ACQUIRE two ann 900000 WAIT 0");
    until_waiting(&mut wire, 1);
    assert!(call(&mut wire, "LOCK.ACQUIRE one bob 900000 WAIT 0").starts_with("-DEADLOCK"));
    pass(&server, 5);
    let events = maps(&mut wire, "LOCK.RECENT");
    let line = |event: &Frame| {
        format!("{} {}/{} {}", text(event, "event"), number(event, "db"), text(event, "name"), text(event, "owner"))
    };
    assert_eq!(events.iter().map(line).collect::<Vec<_>>(), ["deadlock 0/one bob", "expired 5/short ann", "broken 0/stuck ann"]);
    assert_eq!(events.iter().map(|event| number(event, "ago")).collect::<Vec<_>>(), [5, 5, 515]);
    let by = (text(&events[2], "by-name"), text(&events[2], "by-user"), text(&events[2], "reason"), number(&events[2], "token"));
    assert_eq!(by, ("desk".to_owned(), "default".to_owned(), "lunch".to_owned(), broken));
    assert!(find(&events[0], "token").is_none() && find(&events[1], "reason").is_none());
    assert_eq!(maps(&mut wire, "LOCK.RECENT COUNT 2").len(), 2);
    assert_eq!(call(&mut wire, "LOCK.RECENT COUNT 0"), "-ERR syntax error");
    assert_eq!(call(&mut wire, "LOCK.RECENT COUNT x"), "-ERR value is not an integer or out of range");
    call(&mut wire, "CONFIG SET lock-history-max-names 0");
    assert_eq!(maps(&mut wire, "LOCK.RECENT").len(), 0, "there is no history");
    call(&mut wire, "CONFIG SET lock-history-max-names 10");
    assert_eq!(maps(&mut wire, "LOCK.RECENT").len(), 0, "what was forgotten stays forgotten");
    server.check_invariants();
}

const LEAKS: &str =
    "LOCK.LEAKS also lists plain keys that look like locks. Clients poll such keys, so they are not among the waiters.";

/// The lines of `LOCK.DOCTOR`, without addresses and numbers of clients and tokens.
fn diagnosis(wire: &mut Wire) -> Vec<String> {
    let lines = ask(wire, "LOCK.DOCTOR");
    let line = |line: &Frame| String::from_utf8(line.text().unwrap().to_vec()).unwrap();
    lines.elements().unwrap().iter().map(line).collect()
}

#[test]
fn the_doctor_names_the_root_its_holder_and_the_cure() {
    let server = start();
    let connect = || Wire::connect(server.addr()).unwrap();
    let mut control = connect();
    assert_eq!(diagnosis(&mut control), ["Nobody waits for a lock in this database, and no native lock is held in any.", LEAKS]);
    token(&mut control, "LOCK.ACQUIRE alone ann 9000");
    pass(&server, 1_500);
    // The age of the oldest grant is exact to a second.
    let idle = diagnosis(&mut control);
    assert!(
        idle.len() == 2
            && idle[0].starts_with("Nobody waits for a lock in this database. 1 grant in all databases, the oldest for "),
        "{idle:?}"
    );
    let mut batch = connect();
    call(&mut batch, "CLIENT SETNAME nightly");
    let root = token(&mut batch, "LOCK.ACQUIRE ledger batch 900000");
    drop(batch);
    until_clients(&mut control, 1);
    let mut waiters: Vec<Wire> = (0..4).map(|_| connect()).collect();
    token(&mut waiters[0], "LOCK.ACQUIRE report web-1 900000");
    send(&mut waiters[0], "LOCK.ACQUIRE ledger web-1 900000 WAIT 0");
    until_waiting(&mut control, 1);
    for (number, waiter) in waiters.iter_mut().enumerate().skip(1) {
        send(waiter, &format!("LOCK.ACQUIRE report w{number} 1000 WAIT 0"));
    }
    until_waiting(&mut control, 4);
    pass(&server, 60_000);
    let told = diagnosis(&mut control);
    assert_eq!(told[0], "4 clients wait for ledger (1 directly, 3 behind those), the longest for 1 min.");
    let [begin, end] = [
        "    ledger is held by batch for 1 min; its connection (127.0.0.1:",
        ", named nightly) ended 1 min ago; its lease ends in 14 min.",
    ];
    assert!(told[1].starts_with(begin) && told[1].ends_with(end), "{told:?}");
    assert_eq!(told[2], format!("    To end that grant and no later one: LOCK.BREAK ledger TOKEN {root} REASON \"why\""));
    assert_eq!(
        told[3],
        "In all databases 4 clients wait for 2 locks. LOCK.GRAPH shows which lock blocks which, LOCK.LIST CONTENDED all of them."
    );
    assert_eq!(told[4..], [LEAKS]);
    // The cure works as it stands. Then one holder has two locks that others wait for.
    assert_eq!(call(&mut control, &format!("LOCK.BREAK ledger TOKEN {root} REASON why")), ":1");
    assert!(self::told(&mut waiters[0]).starts_with(':'));
    let mut last = connect();
    send(&mut last, "LOCK.ACQUIRE ledger w9 1000 WAIT 0");
    until_waiting(&mut control, 4);
    let told = diagnosis(&mut control);
    assert_eq!(told[0], "4 clients wait for 2 locks of one holder: report, ledger; the longest for 1 min.");
    assert!(
        told[1].starts_with("    report is held by web-1 for ") && told[1].contains(") is connected; its lease ends in "),
        "{told:?}"
    );
    assert!(told[3].starts_with("    ledger is held by web-1 for 0 ms; "), "{told:?}");
    server.check_invariants();
}

#[test]
fn the_doctor_knows_what_is_no_lock_and_quotes_names() {
    let server = start();
    let connect = || Wire::connect(server.addr()).unwrap();
    let (mut control, mut a, mut b) = (connect(), connect(), connect());
    call(&mut control, "SET old-lock me PX 90000");
    send(&mut a, "LOCK.ACQUIRE old-lock ann 1000 WAIT 0");
    until_waiting(&mut control, 1);
    let told = diagnosis(&mut control);
    assert_eq!(told[0], "1 client waits for old-lock, the longest for 0 ms.");
    assert_eq!(
        told[1],
        "    old-lock is a plain key of type string, which expires in 1 min. LOCK.INFO old-lock shows it, and DEL old-lock ends it."
    );
    for owner in ["x", "y"] {
        token(&mut control, &format!("SEM.ACQUIRE pool {owner} 90000 LIMIT 2"));
    }
    let name: &[&[u8]] = &[b"LOCK.ACQUIRE", b"a \"b\"\n", b"one two", b"90000"];
    control.call(name).unwrap();
    let wait: &[&[u8]] = &[b"LOCK.ACQUIRE", b"a \"b\"\n", b"bob", b"90000", b"WAIT", b"0"];
    b.queue(wait);
    b.flush().unwrap();
    until_waiting(&mut control, 2);
    let all = diagnosis(&mut control).join("\n");
    assert!(all.contains("1 client waits for \"a \\\"b\\\"\\x0a\", the longest"), "{all}");
    assert!(all.contains(" is held by \"one two\" for "), "{all}");
    let mut c = connect();
    send(&mut c, "SEM.ACQUIRE pool z 1000 LIMIT 2 WAIT 0");
    until_waiting(&mut control, 3);
    let all = diagnosis(&mut control).join("\n");
    assert!(all.contains("pool is held by x for ") && all.contains(", and 1 other holder, which LOCK.INFO shows."), "{all}");
    // The one to look at is the one that is gone; and other databases are named.
    let mut gone = connect();
    let (mut d, mut more) = (connect(), Vec::new());
    call(&mut d, "SELECT 3");
    token(&mut control, "LOCK.ACQUIRE shared-by-two stays 90000 SHARED");
    token(&mut gone, "LOCK.ACQUIRE shared-by-two went 90000 SHARED");
    call(&mut control, "LOCK.RENEW shared-by-two stays 90000");
    drop(gone);
    for number in 0..2 {
        // More wait for it than for any other: only the three with the most waiters are told.
        let mut waiter = connect();
        send(&mut waiter, &format!("LOCK.ACQUIRE shared-by-two w{number} 1000 WAIT 0"));
        more.push(waiter);
    }
    until_waiting(&mut control, 5);
    until_clients(&mut control, 7);
    let all = diagnosis(&mut control).join("\n");
    assert!(all.contains("shared-by-two is held by went for ") && !all.contains("held by stays"), "{all}");
    token(&mut d, "LOCK.ACQUIRE far x 90000");
    let mut f = connect();
    call(&mut f, "SELECT 3");
    send(&mut f, "LOCK.ACQUIRE far y 1000 WAIT 0");
    until_waiting(&mut control, 6);
    let last = diagnosis(&mut control).iter().rev().nth(1).unwrap().clone();
    assert!(last.starts_with("In all databases 6 clients wait for 5 locks, also behind SELECT 3. "), "{last}");
    server.check_invariants();
}

#[test]
fn figures_tell_of_the_present() {
    let server = start();
    let connect = || Wire::connect(server.addr()).unwrap();
    let (mut control, mut a, mut b, mut c) = (connect(), connect(), connect(), connect());
    let stats = |wire: &mut Wire| ask(wire, "LOCK.STATS");
    token(&mut a, "LOCK.ACQUIRE order ann 900000 SESSION");
    token(&mut control, "LOCK.ACQUIRE quick x 900000");
    token(&mut control, "SEM.ACQUIRE pool x 900000 LIMIT 2");
    send(&mut b, "LOCK.ACQUIRE order bob 1000 WAIT 0");
    until_waiting(&mut control, 1);
    pass(&server, 44_610);
    send(&mut c, "LOCK.ACQUIRE order cy 1000 WAIT 0");
    until_waiting(&mut control, 2);
    token(&mut control, "LOCK.ACQUIRE late x 900000");
    let now = stats(&mut control);
    let figures = ["oldest-wait-ms", "longest-hold-ms", "held", "grants-renewed", "broken", "session-ends-held"];
    assert_eq!(figures.map(|figure| number(&now, figure)), [44_610, 44_610, 4, 0, 0, 0]);
    // No wait is over: the percentiles are those of the present ones, and none exceeds the longest.
    assert_eq!(number(&now, "wait-us-p99"), 44_610_000);
    assert_eq!(number(&now, "wait-us-max"), 44_610_000);
    assert_eq!(number(&now, "wait-us-p50"), 0);
    let text = call(&mut control, "INFO locks") + " ";
    for line in ["lock_oldest_wait_ms:44610", "lock_longest_hold_ms:44610", "lock_wait_usec_max:44610000", "lock_held:3"] {
        assert!(text.contains(&format!(" {line} ")), "{line}: {text}");
    }
    for _ in 0..2 {
        call(&mut control, "LOCK.RENEW quick x 900000");
    }
    call(&mut control, "SEM.RENEW pool x 900000");
    assert_eq!(number(&stats(&mut control), "grants-renewed"), 2);
    assert_eq!(call(&mut control, "LOCK.RELEASE quick x"), ":0");
    assert_eq!(number(&stats(&mut control), "grants-renewed"), 1);
    drop(a);
    assert!(told(&mut b).starts_with(':'));
    let now = stats(&mut control);
    assert_eq!(figures.map(|figure| number(&now, figure)), [0, 44_610, 3, 1, 0, 1], "the semaphore is the oldest");
    assert_eq!(number(&now, "wait-us-max"), 44_610_000);
    assert_eq!(call(&mut control, "SEM.RELEASE pool x"), ":0");
    assert!((0..=1_023).contains(&number(&stats(&mut control), "longest-hold-ms")), "known to the second");
    call(&mut control, "FLUSHALL");
    pass(&server, 5);
    assert!(told(&mut c).starts_with(':'), "the waiter has it now");
    let now = stats(&mut control);
    assert_eq!(figures.map(|figure| number(&now, figure)), [0, 5, 1, 0, 0, 1]);
    server.check_invariants();
}

#[test]
fn leaks_have_a_command_of_their_own() {
    let server = TestServer::builder().frozen(true).start();
    let connect = || Wire::connect(server.addr()).unwrap();
    let (mut a, mut control) = (connect(), connect());
    call(&mut a, "CLIENT SETNAME worker");
    token(&mut a, "LOCK.ACQUIRE order ann 900000");
    call(&mut control, "SET job-lock owner-1");
    call(&mut control, "SET other x");
    drop(a);
    until_clients(&mut control, 1);
    pass(&server, 70);
    let leaks = maps(&mut control, "LOCK.LEAKS");
    assert_eq!(leaks.iter().map(|leak| text(leak, "name")).collect::<Vec<_>>(), ["job-lock", "order"]);
    assert_eq!((text(&leaks[1], "client-name"), number(&leaks[1], "client-gone-ms")), ("worker".into(), 70));
    assert_eq!(text(&leaks[0], "holder"), "owner-1");
    assert_eq!(
        maps(&mut control, "LOCK.LEAKS oth*").iter().map(|leak| text(leak, "name")).collect::<Vec<_>>(),
        ["order", "other"]
    );
    // Who may not read a key does not see that it is there.
    call(&mut control, "ACL SETUSER keeper on nopass ~other* -@all +@lockadmin +@lock");
    call(&mut control, "AUTH keeper x");
    let leaks = maps(&mut control, "LOCK.LEAKS oth* order*");
    assert_eq!(leaks.iter().map(|leak| text(leak, "name")).collect::<Vec<_>>(), ["other"]);
}

#[test]
fn help_and_errors_tell_the_usage() {
    let server = start();
    let mut wire = Wire::connect(server.addr()).unwrap();
    let help = call(&mut wire, "LOCK.HELP");
    for line in [
        "+LOCK.RENEW key owner <lease | KEEP> [TOKEN token]",
        "+LATCH.DOWN key [by]",
        "+LOCK.BREAK key TOKEN token [REASON reason]",
    ] {
        assert!(help.contains(line), "{line}: {help}");
    }
    let rows = ask(&mut wire, "COMMAND LIST FILTERBY ACLCAT lock").elements().unwrap().len();
    // Three are in the category of administrators.
    assert_eq!(maps(&mut wire, "LOCK.HELP").len(), 3 + 2 * (rows + 3));
    for (request, usage) in [
        ("LOCK.RENEW a x", "LOCK.RENEW key owner <lease | KEEP> [TOKEN token]"),
        ("sem.release", "SEM.RELEASE key id [ALL] [TOKEN token] [REQUEST id]"),
        ("LATCH.AWAIT l", "LATCH.AWAIT key WAIT milliseconds"),
        ("LOCK.STATS now", "LOCK.STATS"),
    ] {
        let name = request.split(' ').next().unwrap().to_lowercase();
        let error = format!("-ERR wrong number of arguments for '{name}' command, usage: {usage}");
        assert_eq!(call(&mut wire, request), error);
    }
    assert_eq!(call(&mut wire, "GET"), "-ERR wrong number of arguments for 'get' command", "Redis's commands have Redis's text");
}

#[test]
fn every_grant_and_every_end_is_an_event() {
    let server = start();
    let connect = || Wire::connect(server.addr()).unwrap();
    let (mut control, mut listener, mut a, mut b) = (connect(), connect(), connect(), connect());
    call(&mut control, "CONFIG SET notify-keyspace-events Ek");
    call(&mut listener, "PSUBSCRIBE __keyevent@0__:*");
    let mut next = || {
        let message = listener.reply().unwrap().frame;
        let texts: Vec<String> = message.elements().unwrap()[2..]
            .iter()
            .map(|part| String::from_utf8_lossy(part.text().unwrap()).into_owned())
            .collect();
        format!("{} {}", texts[0].trim_start_matches("__keyevent@0__:lock."), texts[1])
    };
    let mut expect = |events: &[&str]| events.iter().for_each(|event| assert_eq!(next(), *event));
    // Requests in one write, which the server takes on its fast path.
    for _ in 0..20 {
        control.queue(&["LOCK.ACQUIRE", "fast", "x", "1000"]);
        control.queue(&["LOCK.RELEASE", "fast", "x"]);
    }
    control.flush().unwrap();
    (0..40).for_each(|_| assert!(told(&mut control).starts_with(':')));
    (0..20).for_each(|_| expect(&["granted fast", "released fast"]));
    token(&mut a, "LOCK.ACQUIRE l x 100 SESSION");
    send(&mut b, "LOCK.ACQUIRE l y 100 WAIT 0");
    expect(&["granted l", "queued l"]);
    assert_eq!(call(&mut a, "LOCK.RELEASE l x"), ":0");
    assert!(told(&mut b).starts_with(':'));
    expect(&["released l", "granted l"]);
    send(&mut a, "LOCK.ACQUIRE l x 1000 WAIT 0 SESSION");
    expect(&["queued l"]);
    pass(&server, 100);
    assert!(told(&mut a).starts_with(':'), "by the end of a lease");
    expect(&["expired l", "granted l"]);
    send(&mut b, "LOCK.ACQUIRE l y 1000 WAIT 0");
    expect(&["queued l"]);
    drop(a);
    assert!(told(&mut b).starts_with(':'), "by the end of a connection");
    expect(&["expired l", "granted l"]);
    call(&mut control, "DEL l");
    token(&mut control, "LOCK.ACQUIRE r x 1000 SHARED");
    token(&mut control, "LOCK.ACQUIRE r y 1000 SHARED");
    call(&mut control, "LOCK.ACQUIREALL 2 s t x 1000");
    expect(&["granted r", "granted r", "granted s", "granted t"]);
    token(&mut control, "SEM.ACQUIRE p x 1000 LIMIT 2");
    call(&mut control, "SEM.RELEASE p x");
    expect(&["granted p", "released p"]);
    assert!(wire_eval(&mut control).starts_with(':'));
    call(&mut control, "MULTI");
    call(&mut control, "LOCK.RELEASE e x");
    call(&mut control, "EXEC");
    expect(&["granted e", "released e"]);
    pass(&server, 1_000);
    expect(&["expired r", "expired r"]);
    let mut ends = [next(), next()];
    ends.sort();
    assert_eq!(ends, ["expired s", "expired t"]);
}

/// Acquires a lock in a script.
fn wire_eval(wire: &mut Wire) -> String {
    let script = "return redis.call('lock.acquire', KEYS[1], 'x', 1000)";
    String::from_utf8(wire.call(&["EVAL", script, "1", "e"]).unwrap().raw).unwrap()
}
