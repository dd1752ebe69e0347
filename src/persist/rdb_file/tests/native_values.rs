//! Native locks and what belongs to them, written and loaded.

use super::*;
use crate::base::ids::Key;
use crate::base::time::Now;
use crate::keyspace::rdb::parts::put_string;
use crate::lock::grant::Owner;
use crate::lock::requests::{Answer, Answered, Remembered};
use crate::lock::sessions::Session;
use crate::lock::{Bound, Client, Grant, Lock, Mode};
use crate::persist::natives::clock::Moment;
use crate::persist::natives::{self, Refusal, name};

pub(super) fn with_locks() -> Harness {
    let mut h = Harness::new();
    for request in [
        "LOCK.SESSION mine GRACE 5000",
        "LOCK.ACQUIRE plain me 60000 REQUEST first",
        "LOCK.ACQUIRE plain me 60000 REQUEST second",
        "LOCK.ACQUIRE shared a 60000 SHARED",
        "LOCK.ACQUIRE shared b 70000 SHARED MAXHOLD 90000",
        "LOCK.ACQUIRE bound me 60000 SESSION",
        "LOCK.ACQUIRE gone me 60000 REQUEST before",
        "LOCK.RELEASE gone me REQUEST after",
        "LOCK.ACQUIRE delayed me 60000 DELAY 3000",
        "SEM.ACQUIRE sem a 60000 LIMIT 5 PERMITS 2",
        "SEM.ACQUIRE sem b 30000 LIMIT 5",
        "LATCH.SET latch 3",
        "LATCH.SET timed 4 PX 40000",
        "LOCK.GUARD guard 17",
        "SET plain-key v",
        "SELECT 5",
        "LOCK.ACQUIRE plain other 60000",
        "SELECT 0",
    ] {
        assert!(!h.run(request).starts_with('-'), "{request}: {}", h.run(request));
    }
    for n in 0..20 {
        h.run(&format!("SEM.ACQUIRE many owner{n} 60000 LIMIT 50"));
    }
    h
}

/// A reply without what another process does not know: connections and their users, and how often a name was granted before.
fn masked(reply: &str) -> String {
    let words: Vec<&str> = reply.split(' ').collect();
    let is_masked = |at: usize| words[..at].ends_with(&["client"]) || words[..at].ends_with(&["granted"]);
    let masked = words.iter().enumerate().map(|(at, word)| if is_masked(at) { ":masked" } else { word }).collect::<Vec<_>>();
    masked.join(" ").replace("$4 user $7 default ", "$4 user $0  ")
}

/// What clients see of native locks.
fn natives(h: &mut Harness) -> Vec<String> {
    let mut seen = Vec::new();
    for key in ["plain", "shared", "bound", "gone", "delayed"] {
        seen.push(masked(&h.run(&format!("LOCK.INFO {key}"))));
    }
    for key in ["sem", "many"] {
        seen.push(masked(&h.run(&format!("SEM.INFO {key}"))));
    }
    let requests =
        ["TYPE latch", "PTTL latch", "PTTL timed", "LATCH.DOWN timed 1", "TYPE guard", "LOCK.SESSION mine", "PTTL plain"];
    seen.extend(requests.iter().map(|request| h.run(request)));
    h.run("SELECT 5");
    seen.push(masked(&h.run("LOCK.INFO plain")));
    h.run("SELECT 0");
    seen
}

#[test]
fn native_locks_come_back() {
    let mut h = with_locks();
    let file = file(&h);
    assert!(file.starts_with(b"REDIS0010"));
    let mut other = Harness::new();
    let tally = load_in_pieces(&mut other, &file, LoadOptions { session_grace_ms: 2000, ..LoadOptions::default() }, 5).unwrap();
    assert_eq!(tally, Tally { loaded: 1, natives: 10, ..Tally::default() });
    let records = h.engine.keyspace().lock_records();
    assert_eq!(other.engine.keyspace().lock_records().requests, records.requests);
    assert_eq!(records.requests.len(), 2);
    let (before, after) = (h.engine.keyspace().images(None), other.engine.keyspace().images(None));
    assert_eq!(before.len(), 11);
    for (key, image) in &before {
        match (image.lock(), after[key].lock()) {
            (Some(before), Some(after)) => {
                let stays = |lock: &crate::lock::Lock| {
                    let grants = lock.holders.iter().cloned();
                    let grants = grants.map(|grant| crate::lock::Grant { client: Default::default(), ..grant });
                    (lock.limit, lock.held_back_ms, grants.collect::<Vec<_>>())
                };
                assert_eq!(stays(after), stays(before), "{key:?}");
            }
            (None, None) => {}
            _ => panic!("{key:?}"),
        }
    }
    let tokens = |h: &Harness| h.engine.keyspace().changes.locks.as_ref().unwrap().next_token();
    assert_eq!(tokens(&other), tokens(&h));
    // The session has no connection yet. Another one takes it over.
    assert_eq!(other.run("LOCK.SESSION mine"), ":1");
    let (before, after) = (natives(&mut h), natives(&mut other));
    assert_eq!(after, before);
    other.script(&[("LOCK.GUARD guard 16", &h.run("LOCK.GUARD guard 16")), ("LATCH.DOWN latch 2", ":1")]);
    // A repeated request gets its first answer.
    assert_eq!(other.run("LOCK.ACQUIRE plain me 60000 REQUEST first"), h.run("LOCK.ACQUIRE plain me 60000 REQUEST first"));
    assert_eq!(other.run("LOCK.RELEASE gone me REQUEST after"), h.run("LOCK.RELEASE gone me REQUEST after"));
    other.pass(60_000);
    other.pass(30_000);
    assert_eq!(other.run("DBSIZE"), ":3");
}

#[test]
fn a_session_whose_client_does_not_come_back_ends_after_its_grace() {
    let h = with_locks();
    let mut other = Harness::new();
    load(&mut other, &file(&h)).unwrap();
    other.pass(4999);
    other.script(&[("EXISTS bound", ":1")]);
    other.pass(1);
    other.script(&[("EXISTS bound", ":0"), ("EXISTS plain", ":1")]);
}

#[test]
fn a_grant_of_a_connection_ends_with_the_process_and_its_delay_begins() {
    let mut h = Harness::new();
    assert!(h.run("LOCK.ACQUIRE l me 60000 SESSION DELAY 3000").starts_with(':'));
    let mut other = Harness::new();
    load(&mut other, &file(&h)).unwrap();
    other.script(&[("LOCK.ACQUIRE l you 1000", "$-1")]);
    other.pass(3000);
    assert!(other.run("LOCK.ACQUIRE l you 1000").starts_with(':'));
}

/// What is left of a lease of 60 seconds before and after a restart, in microseconds. Arguments: the boots before and after; the
/// microseconds that pass by the boot clock and the wall clock; fractions of a millisecond, in microseconds, of the monotonic clock
/// and the boot clock before, and of the monotonic clock after.
fn rest_of_a_lease(boots: (u8, u8), boot_us: u64, wall_us: i64, fractions: [u64; 3]) -> [i64; 2] {
    let [mono_before, boot_before, mono_after] = fractions;
    let mut h = Harness::new();
    h.now = Now::new(h.now.mono_us() / 1000 * 1000 + mono_before, h.now.wall_offset_ms());
    h.run("LOCK.ACQUIRE l me 60000");
    let boot = |id, us: u64| BootClock { id: [id; 16], now_ms: us / 1000 };
    let options = Options { boot: boot(boots.0, 1_000_000 + boot_before), ..PLAIN };
    let file = slices(&h, options, 1 << 20).concat();
    let mut other = Harness::new();
    let unix_ms = (h.now.unix_us() + wall_us).div_euclid(1000);
    other.now = crate::base::time::Now::new(5_000_000 + mono_after, unix_ms - 5000);
    let options = LoadOptions { boot: boot(boots.1, 1_000_000 + boot_before + boot_us), ..LoadOptions::default() };
    load_in_pieces(&mut other, &file, options, 1000).unwrap();
    [h, other].map(|h| {
        let images = h.engine.keyspace().images(None);
        let end_ms = images[&Key { db: 0, name: b"l" }.to_buf()].lock().unwrap().holders.only().unwrap().end_ms;
        end_ms as i64 * 1000 - h.now.mono_us() as i64
    })
}

#[test]
fn leases_run_on_while_the_server_is_down_and_never_end_early() {
    let rest = |boots, boot_ms: u64, wall_ms: i64| rest_of_a_lease(boots, boot_ms * 1000, wall_ms * 1000, [0; 3])[1] / 1000;
    // By the boot clock within one boot, whatever the wall clock says. A millisecond is left over.
    assert_eq!(rest((1, 1), 20_000, 20_000), 40_001);
    assert_eq!(rest((1, 1), 20_000, 5_000_000), 40_001);
    assert_eq!(rest((1, 1), 20_000, -5_000_000), 40_001);
    // By the wall clock otherwise, but never more than the lease.
    assert_eq!(rest((1, 2), 20_000, 30_000), 30_001);
    assert_eq!(rest((1, 2), 20_000, -5_000_000), 60_000);
    assert_eq!(rest((1, 2), 20_000, 59_999), 2);
    // An unknown boot is no other boot.
    assert_eq!(rest((0, 0), 20_000, 30_000), 30_001);
}

#[test]
fn no_fraction_of_a_millisecond_ends_a_lease_early() {
    for n in 0..500u64 {
        let fractions = [n * 37 % 1000, n * 101 % 1000, n * 53 % 1000];
        let passed_us = 20_000_000 + n * 7 % 3000;
        let [before_us, after_us] = rest_of_a_lease((1, 1), passed_us, 0, fractions);
        let late_us = after_us - (before_us - passed_us as i64);
        assert!((0..4000).contains(&late_us), "{late_us} µs late with {fractions:?}");
    }
}

#[test]
fn deadlines_of_latches_and_guards_are_those_of_the_wall_clock() {
    let h = with_locks();
    let file = slices(&h, Options { boot: BootClock { id: [1; 16], now_ms: 1000 }, ..PLAIN }, 1 << 20).concat();
    let mut other = Harness::new();
    other.now = h.now;
    other.now = Now::new(other.now.mono_us(), other.now.wall_offset_ms() + 15_000);
    let boot = BootClock { id: [1; 16], now_ms: 1000 };
    load_in_pieces(&mut other, &file, LoadOptions { boot, ..LoadOptions::default() }, 1000).unwrap();
    // By the boot clock, no time has passed.
    other.script(&[("PTTL timed", ":25000"), ("PTTL plain", ":60000")]);
}

fn moment() -> Moment {
    Moment { now: Harness::new().now, boot: BootClock::default() }
}

/// A native record as an item of a file.
fn aux(name: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut item = vec![opcode::AUX];
    put_string(&mut item, name);
    put_string(&mut item, payload);
    item
}

fn session(number: u64, id: &[u8]) -> Vec<u8> {
    let session = Session { id: id.into(), user: b"u"[..].into(), grace_ms: 5000, client: None, end_ms: 0, grants: 0 };
    aux(name::SESSION, &natives::session(&moment(), number, &session))
}

fn requests() -> Vec<u8> {
    let answers = [Answered { id: b"r"[..].into(), answer: Answer::Granted(5) }].into_iter().collect();
    aux(name::REQUESTS, &natives::requests(&moment(), b"a", b"o", &Remembered { answers, forget_ms: 0 }))
}

/// A lock with a grant of this token that is bound to the session 7.
fn bound(name: &[u8], token: u64) -> Vec<u8> {
    let mut lock = Lock::default();
    lock.holders.insert(Grant {
        owner: Owner::from_slice(b"o"),
        token,
        holds: 1,
        mode: Mode::Exclusive,
        permits: 1,
        renewed: 0,
        granted_ms: 1,
        end_ms: moment().now.mono_ms() + 60_000,
        max_end_ms: 0,
        delay_ms: 0,
        bound: Bound::Session(crate::lock::grant::SessionNumber::new(7)),
        client: Client::default(),
    });
    aux(name::LOCK, &natives::lock(&moment(), name, &lock))
}

#[test]
fn records_that_come_twice_or_too_late_are_refused() {
    let reason = |items: &[Vec<u8>]| fault_of(&sealed("0010", &items.concat())).reason;
    let mut h = Harness::new();
    let file = sealed("0010", &[session(7, b"x"), session(8, b"y"), requests(), bound(b"a", 5), bound(b"b", 6)].concat());
    assert_eq!(load(&mut h, &file).unwrap().natives, 2);
    h.engine.check_invariants();
    let twice = |what: &str| Reason::Repeated(what.to_owned());
    assert_eq!(reason(&[session(7, b"x"), session(7, b"y")]), twice("the session 'y'"));
    assert_eq!(reason(&[session(7, b"x"), session(8, b"x")]), twice("the session 'x'"));
    assert_eq!(reason(&[requests(), requests()]), twice("the requests of 'o'"));
    assert_eq!(reason(&[session(7, b"x"), bound(b"a", 5), bound(b"b", 5)]), twice("the token 5"));
    assert_eq!(reason(&[bound(b"a", 5), session(7, b"x")]), Reason::Late("PORTCULLIS.SESSION".to_owned()));
    assert_eq!(reason(&[bound(b"a", 5), requests()]), Reason::Late("PORTCULLIS.REQUESTS".to_owned()));
    assert_eq!(reason(&[session(7, b"x"), bound(b"a", 5), bound(b"a", 6)]), Reason::Duplicate(b"a"[..].into(), 0));
    let of_another_database = [requests(), vec![opcode::SELECTDB, 3], requests()].concat();
    assert!(load(&mut Harness::new(), &sealed("0010", &of_another_database)).is_ok());
}

#[test]
fn remembered_requests_are_those_of_their_databases() {
    let mut h = Harness::new();
    for (db, request) in
        [(3, "LOCK.ACQUIRE l a 1000 REQUEST x"), (0, "LOCK.ACQUIRE l a 1000 REQUEST y"), (3, "LOCK.ACQUIRE l b 1 REQUEST z")]
    {
        h.run(&format!("SELECT {db}"));
        h.run(request);
    }
    let mut other = Harness::new();
    other.now = h.now;
    load(&mut other, &file(&h)).unwrap();
    let records = h.engine.keyspace().lock_records();
    assert_eq!(records.requests.keys().map(|whose| whose.home).collect::<Vec<_>>(), [0, 3]);
    assert_eq!(other.engine.keyspace().lock_records().requests, records.requests);
}

#[test]
fn fields_of_ours_in_another_form_are_refused() {
    let h = with_locks();
    let file = file(&h);
    let at = file.windows(name::LOCK.len()).position(|window| window == name::LOCK).unwrap();
    let mut newer = file.clone();
    // Behind the name and the length of the payload, which takes two bytes.
    let version = at + name::LOCK.len() + 1 + usize::from(newer[at + name::LOCK.len()] >= 0x40);
    newer[version] += 2;
    let mut other = Harness::new();
    let fault = load(&mut other, &newer).unwrap_err();
    assert_eq!(fault.reason, Reason::Native("PORTCULLIS.LOCK".to_owned(), Refusal::Newer(3)));
    assert_eq!(
        fault.reason.to_string(),
        "Portcullis: a record in version 3 of its format, from a newer version of Portcullis (PORTCULLIS.LOCK)"
    );
    let reason = |name: &[u8], payload: &[u8]| fault_of(&sealed("0010", &aux(name, payload))).reason;
    let refused = |name: &str, refusal| Reason::Native(name.to_owned(), refusal);
    assert_eq!(reason(b"PORTCULLIS.DOOR", b""), refused("PORTCULLIS.DOOR", Refusal::Unknown));
    assert_eq!(reason(b"PORTCULLIS.FORGET", b"x"), refused("PORTCULLIS.FORGET", Refusal::Malformed));
    assert_eq!(reason(b"PORTCULLIS.CONSUMERS", b"\x01\x05x"), refused("PORTCULLIS.CONSUMERS", Refusal::Malformed));
}
