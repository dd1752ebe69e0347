//! Native locks and what belongs to them, written and loaded.

use super::*;
use crate::keyspace::rdb::parts::{put_length, put_string};
use crate::persist::rdb_file::natives::BootTime;

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

/// What clients see of native locks.
fn natives(h: &mut Harness) -> Vec<String> {
    let mut seen = Vec::new();
    for key in ["plain", "shared", "bound", "gone", "delayed"] {
        seen.push(h.run(&format!("LOCK.INFO {key}")));
    }
    for request in ["SEM.INFO sem", "SEM.INFO many", "TYPE latch", "PTTL latch", "PTTL timed", "LATCH.DOWN timed 1", "TYPE guard"]
    {
        seen.push(h.run(request));
    }
    h.run("SELECT 5");
    seen.push(h.run("LOCK.INFO plain"));
    h.run("SELECT 0");
    // Numbers of connections are those of another process.
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
    let records = h.engine.keyspace.lock_records();
    assert_eq!(other.engine.keyspace.lock_records().requests, records.requests);
    assert_eq!(records.requests.len(), 2);
    let (before, after) = (h.engine.keyspace.images(None), other.engine.keyspace.images(None));
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
    let tokens = |h: &Harness| h.engine.keyspace.changes.locks.as_ref().unwrap().next_token();
    assert_eq!(tokens(&other), tokens(&h));
    // The session has no connection yet. Another one takes it over.
    assert_eq!(other.run("LOCK.SESSION mine"), ":1");
    let (before, after) = (natives(&mut h), natives(&mut other));
    assert_eq!(after.len(), before.len());
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

/// The rest of a lease of 60 seconds after a restart: the boot ids before and after, the milliseconds that the boot clock and the
/// wall clock tell.
fn rest_of_a_lease(boots: (&[u8], &[u8]), boot_ms: u64, wall_ms: i64) -> i64 {
    let mut h = Harness::new();
    h.run("LOCK.ACQUIRE l me 60000");
    let boot = |id: &[u8], ms| Some(BootTime { id: id.into(), ms });
    let file = slices(&h, Options { boot: boot(boots.0, 1000), ..PLAIN }, 1 << 20).concat();
    let mut other = Harness::new();
    other.now = crate::base::time::Now::new(5_000_300, h.now.unix_ms() + wall_ms - 5000);
    let options = LoadOptions { boot: boot(boots.1, 1000 + boot_ms), ..LoadOptions::default() };
    load_in_pieces(&mut other, &file, options, 1000).unwrap();
    other.run("PTTL l").trim_start_matches(':').parse().unwrap()
}

#[test]
fn leases_run_on_while_the_server_is_down_and_never_end_early() {
    // By the boot clock within one boot, whatever the wall clock says.
    assert_eq!(rest_of_a_lease((b"a", b"a"), 20_000, 20_000), 40_000);
    assert_eq!(rest_of_a_lease((b"a", b"a"), 20_000, 5_000_000), 40_000);
    assert_eq!(rest_of_a_lease((b"a", b"a"), 20_000, -5_000_000), 40_000);
    // By the wall clock otherwise, but never more than the lease.
    assert_eq!(rest_of_a_lease((b"a", b"b"), 20_000, 30_000), 30_000);
    assert_eq!(rest_of_a_lease((b"a", b"b"), 20_000, -5_000_000), 60_000);
    assert_eq!(rest_of_a_lease((b"a", b"b"), 20_000, 59_999), 1);
}

#[test]
fn fields_of_ours_in_another_form_are_refused() {
    let h = with_locks();
    let file = file(&h);
    let at = file.windows(15).position(|window| window == b"portcullis-lock").unwrap();
    let mut newer = file.clone();
    // Behind the name and the length of the value.
    newer[at + 15 + 1] += 1;
    let mut other = Harness::new();
    let fault = load(&mut other, &newer).unwrap_err();
    assert_eq!(fault.reason, Reason::Native("portcullis-lock".to_owned()));
    let mut items = vec![opcode::AUX];
    put_string(&mut items, b"portcullis-newest");
    put_length(&mut items, 0);
    assert_eq!(fault_of(&sealed("0010", &items)).reason, Reason::Native("portcullis-newest".to_owned()));
}
