use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::base::ids::{KeyBuf, SessionId};
use crate::engine::Action;
use crate::engine::harness::Harness;
use crate::engine::observe::turns::Task;
use crate::engine::request::Request;
use crate::engine::session::{Peer, SessionFlags};
use crate::resp::reply::Protocol;

fn harness() -> Harness {
    let mut h = Harness::new();
    h.engine.testing.mode = true;
    h
}

/// Carries out the actions of the last commands. The existing sessions are closed, and a new one is used.
fn carry_out(h: &mut Harness) {
    for action in h.engine.take_actions() {
        let Action::Restart { last, lose } = action else { continue };
        h.engine.restart(h.now, Some(last), lose);
    }
    h.engine.check_invariants();
    let ids: Vec<SessionId> = h.engine.clients.sessions.iter().map(|(id, _)| id).collect();
    for id in ids {
        let closing = SessionFlags::CLOSE_NOW | SessionFlags::CLOSE_AFTER_REPLY;
        assert!(h.engine.clients.sessions[id].flags.intersects(closing), "{id:?} stays");
        h.engine.disconnect(h.now, id);
    }
    h.session = h.engine.connect(h.now, Peer::default());
    h.engine.check_invariants();
}

#[test]
fn a_restart_leaves_sessions_their_last_command() {
    let mut h = harness();
    h.run("LPUSH l a");
    h.run("FAULT RESTART");
    for action in h.engine.take_actions() {
        let Action::Restart { last, lose } = action else { continue };
        h.engine.restart(h.now, Some(last), lose);
    }
    // The server counts the turn that restarted it afterwards.
    h.engine.note_turn(h.now, Task::Client(h.session), 5_000_000, None);
    assert_eq!(h.engine.diagnosis.turns.longest.as_ref().and_then(|longest| longest.command.as_deref()), Some("fault|restart"));
}

/// The whole state: for each key its lock or its `DEBUG DIGEST-VALUE`, and its deadline; and the function libraries.
fn state(h: &mut Harness) -> (BTreeMap<KeyBuf, String>, Vec<Box<[u8]>>) {
    let images = h.engine.keyspace.images(None);
    let mut all = BTreeMap::new();
    for (key, image) in images {
        let shown = match image.lock() {
            Some(lock) => format!("{lock:?}"),
            None => format!("{image:?}").chars().filter(|c| !c.is_ascii_digit()).take(20).collect(),
        };
        let deadline = h.engine.keyspace.end_of(key.db, &key.name);
        let id = h.engine.connect(h.now, Peer::default());
        h.engine.clients.sessions[id].db = key.db;
        // With the time standing where nothing has ended, so that looking ends nothing.
        let then = crate::base::time::Now::new(0, 0);
        h.engine.execute(then, id, &[b"DEBUG", b"DIGEST-VALUE", &key.name]);
        let digest = String::from_utf8_lossy(&std::mem::take(&mut h.engine.clients.sessions[id].out)).into_owned();
        h.engine.disconnect(then, id);
        all.insert(key, format!("{shown} {deadline:?} {digest}"));
    }
    (all, h.engine.library_sources())
}

#[test]
fn a_restart_loses_everything_but_what_tests_have_ordered() {
    let mut h = harness();
    let library: &[&[u8]] = &[b"FUNCTION", b"LOAD", b"#!lua name=lib\nredis.register_function('f', function() return 1 end)"];
    assert_eq!(h.args(library), b"$3\r\nlib\r\n");
    h.script(&[
        ("CONFIG SET maxmemory 1gb", "+OK"),
        ("ACL SETUSER ann on nopass ~* +@all", "+OK"),
        ("FAULT ADD f ERROR no ON echo AFTER 1", "+OK"),
        ("SET k v", "+OK"),
        ("EVAL return(1) 0", ":1"),
        ("SELECT 3", "+OK"),
        ("RPUSH l a b", ":2"),
        ("SUBSCRIBE c", "*3 $9 subscribe $1 c :1"),
    ]);
    h.session = h.engine.connect(h.now, Peer::default());
    let (other, run_id) = (h.engine.connect(h.now, Peer::default()), h.engine.host.run_id.clone());
    h.engine.execute(h.now, other, &[b"BLPOP", b"nothing", b"0"]);
    let token: u64 = h.run("LOCK.ACQUIRE lock me 1000")[1..].parse().unwrap();
    h.pass(500);
    h.script(&[("WATCH k", "+OK"), ("MULTI", "+OK"), ("FAULT RESTART", "-ERR Command not allowed inside a transaction")]);
    h.script(&[("DISCARD", "+OK"), ("FAULT RESTART", "+OK")]);
    assert!(h.engine.keyspace.db(0, h.now).contains(b"k"), "the driver has yet to do it");
    carry_out(&mut h);
    let sha = "SCRIPT EXISTS e0e1f9fabfc9d4800c877a703b823ac0578ff8db";
    h.script(&[
        ("DBSIZE", ":0"),
        ("LOCK.INFO lock", "$-1"),
        ("FUNCTION LIST", "*0"),
        (sha, "*1 :0"),
        ("PUBSUB CHANNELS *", "*0"),
        ("CONFIG GET maxmemory", "*2 $9 maxmemory $10 1073741824"),
    ]);
    assert!(h.run("ACL LIST").contains("user ann on nopass"));
    assert!(h.run("FAULT LIST").contains("$1 f $4 what $8 ERROR no"));
    assert_ne!(h.engine.host.run_id, run_id);
    assert_eq!(h.engine.host.run_id.len(), 40);
    let info = h.run("INFO server stats");
    assert!(info.contains("uptime_in_seconds:0 ") && info.contains("total_connections_received:1 "), "{info}");
    let next: u64 = h.run("LOCK.ACQUIRE lock me 1000")[1..].parse().unwrap();
    assert!(next > token, "tokens begin at the clock");
    h.run("FAULT RESTART");
    carry_out(&mut h);
    let again: u64 = h.run("LOCK.ACQUIRE lock me 1000")[1..].parse().unwrap();
    assert_eq!(again, next + 1, "though the clock stands still, no token comes again");
}

#[test]
fn a_failover_loses_the_last_writes() {
    let mut h = harness();
    h.script(&[
        ("SET before 1", "+OK"),
        ("FAULT RESTART LOSE 1", "-ERR only the last 0 writes are kept; FAULT JOURNAL sets their number"),
    ]);
    h.script(&[
        ("FAULT JOURNAL 3", "+OK"),
        ("FAULT RESTART LOSE 4", "-ERR only the last 3 writes are kept; FAULT JOURNAL sets their number"),
        ("SET a 1 PX 5000", "+OK"),
        ("GET a", "$1 1"),
        ("MULTI", "+OK"),
        ("SET b 1", "+QUEUED"),
        ("RPUSH l x y", "+QUEUED"),
        ("EXEC", "*2 +OK :2"),
        ("DEL before", ":1"),
        ("DEL before", ":0"),
        ("FAULT RESTART LOSE 1", ":1"),
    ]);
    carry_out(&mut h);
    h.script(&[("GET before", "$1 1"), ("LRANGE l 0 -1", "*2 $1 x $1 y"), ("PTTL a", ":5000"), ("FAULT RESTART LOSE 1", ":1")]);
    carry_out(&mut h);
    // The transaction was one write, and the journal goes on where it was.
    h.script(&[("EXISTS b l", ":0"), ("GET a", "$1 1"), ("SET c 1", "+OK"), ("FAULT RESTART LOSE 3", ":2")]);
    carry_out(&mut h);
    h.script(&[("KEYS *", "*1 $6 before"), ("FAULT JOURNAL 0", "+OK"), ("FAULT RESTART LOSE 0", ":0")]);
    carry_out(&mut h);
    h.script(&[("KEYS *", "*1 $6 before")]);
    // A rule makes the journal keep as many writes as it may lose.
    h.script(&[("FAULT ADD f RESTART LOSE 2 ON nosuch", "+OK"), ("SET d 1", "+OK"), ("FAULT RESTART LOSE 2", ":1")]);
    carry_out(&mut h);
    h.script(&[("KEYS *", "*1 $6 before"), ("FAULT RESET", ":1")]);
    assert_eq!(h.engine.journal_limit(), 0);
}

#[test]
fn a_grant_that_was_not_heard_of_is_given_again_under_a_larger_token() {
    let mut h = harness();
    h.script(&[("FAULT JOURNAL 10", "+OK")]);
    let lost: u64 = h.run("LOCK.ACQUIRE door ann 1000")[1..].parse().unwrap();
    h.script(&[("FAULT RESTART LOSE 1", ":1")]);
    carry_out(&mut h);
    let next: u64 = h.run("LOCK.ACQUIRE door bob 1000")[1..].parse().unwrap();
    assert_eq!(next, lost + 1);
    // A grant after a wait is a write of its own, even where it was time that had it made.
    let waiter = h.engine.connect(h.now, Peer::default());
    h.engine.execute(h.now, waiter, &[b"LOCK.ACQUIRE", b"door", b"cid", b"1000", b"WAIT", b"0"]);
    h.pass(1000);
    assert_eq!(h.engine.clients.sessions[waiter].out, format!(":{}\r\n", next + 1).into_bytes());
    h.script(&[("FAULT RESTART LOSE 1", ":1")]);
    carry_out(&mut h);
    h.script(&[("LOCK.INFO door", "$-1")]);
    // Closed connections have lost the grants bound to them, with the lock delay that they requested.
    h.run("LOCK.ACQUIRE door dan 60000 SESSION DELAY 50");
    h.script(&[("FAULT RESTART LOSE 0", ":0")]);
    carry_out(&mut h);
    h.script(&[("LOCK.ACQUIRE door eve 1000", "$-1")]);
    h.pass(50);
    assert!(h.run("LOCK.ACQUIRE door eve 1000").starts_with(':'));
}

#[test]
fn rules_have_it_started_again_before_or_after_a_request() {
    for (what, left, told) in [
        ("RESTART LOSE 1", "*1 $3 k-0", ""),
        ("RESTART-AFTER LOSE 1", "*2 $3 k-0 $3 k-1", ""),
        ("RESTART-AFTER LOSE 0", "*3 $3 k-0 $3 k-1 $3 k-2", ""),
        ("RESTART-AFTER-REPLY LOSE 2", "*1 $3 k-0", "+OK"),
        ("RESTART-AFTER-REPLY", "*0", "+OK"),
    ] {
        let mut h = harness();
        h.script(&[(&format!("FAULT ADD f {what} ON set AFTER 2 TIMES 1"), "+OK")]);
        for i in 0..3 {
            h.engine.execute_with_faults(h.now, h.session, Request::new(&[b"SET", format!("k-{i}").as_bytes(), b"v"]));
            let reply = std::mem::take(&mut h.engine.clients.sessions[h.session].out);
            assert_eq!(String::from_utf8_lossy(&reply).trim_end(), if i < 2 { "+OK" } else { told }, "{what}");
        }
        assert!(h.run("FAULT LIST").contains(&format!("what ${} {what} ", what.len())), "{what}");
        carry_out(&mut h);
        h.script(&[("SORT nosuch", "*0")]);
        let mut keys: Vec<String> = h.run("KEYS *").split(' ').map(str::to_owned).collect();
        keys[1..].sort();
        let mut expected: Vec<String> = left.split(' ').map(str::to_owned).collect();
        expected[1..].sort();
        assert_eq!(keys, expected, "{what}");
    }
}

#[test]
fn a_snapshot_is_put_back_with_as_much_time_left_as_there_was() {
    let mut h = harness();
    h.engine.clients.sessions[h.session].protocol = Protocol::Resp3;
    let library: &[&[u8]] = &[b"FUNCTION", b"LOAD", b"#!lua name=lib\nredis.register_function('f', function() return 1 end)"];
    h.args(library);
    let script = h.run("SCRIPT LOAD return(7)").split(' ').nth(1).unwrap().to_owned();
    for request in [
        "SET s v PX 1000",
        "HSET h a 1 b 2",
        "HPEXPIRE h 500 FIELDS 1 a",
        "XADD x 1-1 f v",
        "XGROUP CREATE x g 0",
        "XREADGROUP GROUP g c STREAMS x >",
        "SELECT 1",
        "ZADD z 1 a 2 b",
        "SELECT 0",
        "LOCK.ACQUIRE one ann 800 MAXHOLD 2000",
        "LOCK.ACQUIRE one ann 800",
        "LOCK.ACQUIRE bound me 800 SESSION",
        "SEM.ACQUIRE s3 a 300 LIMIT 3 PERMITS 2",
        "SEM.ACQUIRE s3 b 900 LIMIT 3",
        "LATCH.SET latch 3",
        "LOCK.GUARD guard 17",
        "SET appended x",
        "APPEND appended y",
    ] {
        let reply = h.run(request);
        assert!(!reply.starts_with('-'), "{request}: {reply}");
    }
    let tokens = h.run("LOCK.ACQUIRE one ann 800");
    let snapshot = h.engine.snapshot(h.now);
    h.pass(100);
    let before = state(&mut h);
    // Another test.
    h.pass(5000);
    h.run("FLUSHALL");
    h.run("SET other v");
    h.run("FUNCTION FLUSH");
    h.run("SCRIPT FLUSH");
    let other = h.engine.connect(h.now, Peer::default());
    h.engine.execute(h.now, other, &[b"LOCK.ACQUIRE", b"held", b"x", b"1000000", b"SESSION"]);
    let waiter = h.engine.connect(h.now, Peer::default());
    h.engine.execute(h.now, waiter, &[b"LOCK.ACQUIRE", b"held", b"y", b"1000", b"WAIT", b"0"]);
    h.script(&[("WATCH s", "+OK")]);
    h.engine.restore(h.now, &snapshot).unwrap();
    h.engine.check_invariants();
    assert_eq!(h.engine.clients.sessions[waiter].out, b"$-1\r\n", "its wait is over");
    let told = String::from_utf8_lossy(&std::mem::take(&mut h.engine.clients.sessions[h.session].out)).into_owned();
    assert_eq!(told.matches("lock-lost").count(), 0, "its leases had ended before: {told}");
    let later = 5100;
    h.script(&[("MULTI", "+OK"), ("PING", "+QUEUED"), ("EXEC", "_")]);
    h.script(&[
        ("PTTL s", ":1000"),
        ("HPTTL h FIELDS 2 a b", "*2 :500 :-1"),
        ("PTTL one", ":800"),
        ("LOCK.ACQUIRE held z 1000", &format!(":{}", tokens[1..].parse::<u64>().unwrap() + 5)),
        ("LOCK.RELEASE held z", ":0"),
        ("EXISTS other", ":0"),
        ("FCALL f 0", ":1"),
        (&format!("EVALSHA {script} 0"), ":7"),
        ("XPENDING x g", "*4 :1 $3 1-1 $3 1-1 *1 *2 $1 c $1 1"),
        ("LOCK.GUARD guard 16", "-STALE token 16 is behind 17 for 'guard'"),
        ("LATCH.DOWN latch", ":2"),
        ("SEM.ACQUIRE s3 c 300 LIMIT 3", "_"),
        ("OBJECT ENCODING appended", "$3 raw"),
        ("LOCK.RELEASE bound me", ":0"),
    ]);
    h.engine.restore(h.now, &snapshot).unwrap();
    let told = String::from_utf8_lossy(&std::mem::take(&mut h.engine.clients.sessions[h.session].out)).into_owned();
    assert_eq!(told.matches("lock-lost").count(), 3, "{told}");
    h.pass(100);
    let after = state(&mut h);
    // Equal except for the times, which are all later by the same amount.
    assert_eq!(before.1, after.1);
    assert_eq!(before.0.keys().collect::<Vec<_>>(), after.0.keys().collect::<Vec<_>>());
    for ((key, before), after) in before.0.iter().zip(after.0.values()) {
        if h.engine.keyspace.image(key.as_key()).is_some_and(|image| image.lock().is_none()) {
            let (digest, ends) = (before.rsplit(' ').next(), h.engine.keyspace.end_of(key.db, &key.name));
            assert_eq!(digest, after.rsplit(' ').next(), "{key:?}");
            let end = |at_ms: u64| if at_ms == u64::MAX { u64::MAX } else { at_ms - later };
            assert!(before.contains(&format!("{:?}", ends.map(end))), "{key:?}: {before} {ends:?}");
        }
    }
    // The remaining leases elapse as they would have.
    h.pass(199);
    h.script(&[("SEM.ACQUIRE s3 c 300 LIMIT 3", "_")]);
    h.pass(1);
    assert!(h.run("PING").starts_with(">5 $9 lock-lost $2 s3 $1 a "));
    assert!(h.run("SEM.ACQUIRE s3 c 300 LIMIT 3").starts_with(':'));
    h.script(&[("LOCK.RENEW one ann 100000", ":1700")]);
    // A grant bound to a closed connection is not restored.
    h.engine.disconnect(h.now, h.session);
    h.session = h.engine.connect(h.now, Peer::default());
    h.engine.restore(h.now, &snapshot).unwrap();
    h.engine.check_invariants();
    h.script(&[("EXISTS bound one", ":1")]);
}

const KEYS: [&str; 4] = ["a", "b", "c", "d"];

/// Requests of all kinds. `$` stands for a key, `#` for a small number.
const REQUESTS: [&str; 52] = [
    "SET $ v#",
    "SET $ v# PX 1#0",
    "APPEND $ x#",
    "SETRANGE $ # y",
    "INCR $",
    "DEL $",
    "DEL $ $",
    "RENAME $ $",
    "COPY $ $ DB 1 REPLACE",
    "MOVE $ 1",
    "PEXPIRE $ 2#",
    "PERSIST $",
    "RPUSH $ x# y z",
    "LPOP $",
    "LMOVE $ $ LEFT RIGHT",
    "LINSERT $ BEFORE y w#",
    "LREM $ 1 y",
    "HSET $ f# v g w#",
    "HDEL $ f#",
    "HPEXPIRE $ 3# FIELDS 1 g",
    "ZADD $ # m# 3 n",
    "ZREM $ n",
    "ZPOPMIN $",
    "SADD $ # x y#",
    "SPOP $",
    "XADD $ * f v#",
    "XGROUP CREATE $ g 0 MKSTREAM",
    "XREADGROUP GROUP g c# STREAMS $ >",
    "XTRIM $ MAXLEN #",
    "XAUTOCLAIM $ g other 0 0",
    "SUNIONSTORE $ $ $",
    "PFADD $ x# y",
    "SETBIT $ # 1",
    "GETDEL $",
    "GETEX $ PX 9#",
    "LOCK.ACQUIRE $ me 3#",
    "LOCK.ACQUIRE $ o# 2# SHARED",
    "LOCK.ACQUIRE $ me 40 DELAY #",
    "LOCK.ACQUIREALL 2 a b o# 2#",
    "LOCK.RELEASE $ me",
    "LOCK.RELEASE $ o#",
    "LOCK.RENEW $ me 5#",
    "SEM.ACQUIRE $ o# 3# LIMIT 3 PERMITS 2",
    "SEM.RELEASE $ o#",
    "LATCH.SET $ #",
    "LATCH.DOWN $",
    "LOCK.GUARD $ #",
    "FLUSHDB",
    "SWAPDB 0 1",
    "SELECT #",
    "GET $",
    "FLUSHALL",
];

#[derive(Clone, Debug)]
enum Step {
    Run(String),
    /// In one transaction.
    Together(Vec<String>),
    Wait(String),
    Load(u8),
    Pass(u64),
}

fn request() -> impl Strategy<Value = String> {
    (0..REQUESTS.len(), [0..KEYS.len(), 0..KEYS.len(), 0..KEYS.len()], 0..3u8).prop_map(|(request, keys, number)| {
        let mut keys = keys.iter();
        let words = REQUESTS[request].split('$').enumerate();
        let text: String = words
            .map(|(i, part)| if i == 0 { part.to_owned() } else { format!("{}{part}", KEYS[*keys.next().unwrap()]) })
            .collect();
        text.replace('#', &number.to_string())
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => request().prop_map(Step::Run),
        2 => proptest::collection::vec(request(), 1..4).prop_map(Step::Together),
        2 => (0..KEYS.len(), 0..3u8).prop_map(|(key, n)| Step::Wait(format!("LOCK.ACQUIRE {} w{n} 20 WAIT 30", KEYS[key]))),
        1 => (0..KEYS.len()).prop_map(|key| Step::Wait(format!("BLPOP {} 0", KEYS[key]))),
        1 => any::<u8>().prop_map(Step::Load),
        2 => (0..20u64).prop_map(Step::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_journal_undone_gives_the_state_of_then(steps in proptest::collection::vec(step(), 1..60), lose in 0..30usize, limit in 1..40u64) {
        let mut h = harness();
        h.run(&format!("FAULT JOURNAL {limit}"));
        // The state after each number of writes.
        let mut then = vec![Some(state(&mut h))];
        let mut writes = 0;
        let mut before = 0;
        for step in steps {
            match step {
                Step::Run(request) => {
                    h.run(&request);
                }
                Step::Together(requests) => {
                    h.run("MULTI");
                    requests.iter().for_each(|request| { h.run(request); });
                    h.run("EXEC");
                }
                Step::Wait(request) => {
                    let waiter = h.engine.connect(h.now, Peer::default());
                    let args: Vec<&[u8]> = request.split(' ').map(str::as_bytes).collect();
                    h.engine.execute(h.now, waiter, &args);
                }
                Step::Load(n) => {
                    let source = format!("#!lua name=l{}\nredis.register_function('f{n}', function() return {n} end)", n % 3);
                    h.args(&[b"FUNCTION", b"LOAD", b"REPLACE", source.as_bytes()]);
                }
                Step::Pass(ms) => h.pass(ms),
            }
            let journal = h.engine.keyspace.changes.journal.as_ref().unwrap();
            prop_assert!(journal.len() as u64 <= limit);
            let now = state(&mut h);
            let journal = h.engine.keyspace.changes.journal.as_ref().unwrap();
            // One step may be several writes, for example when a waiter is served; the states in between are not recorded.
            let written = journal.pushed - before;
            before = journal.pushed;
            writes += written;
            if written > 0 {
                then.resize(writes as usize, None);
                then.push(Some(now));
            } else {
                *then.last_mut().unwrap() = Some(now);
            }
        }
        let reply = h.run(&format!("FAULT RESTART LOSE {}", lose.min(limit as usize)));
        let lost: usize = reply[1..].parse().unwrap();
        prop_assert_eq!(lost as u64, (lose as u64).min(limit).min(writes));
        carry_out(&mut h);
        if let Some(expected) = &then[writes as usize - lost] {
            prop_assert_eq!(&state(&mut h), expected);
        }
        h.pass(100);
    }
}

#[test]
fn what_writes_have_written_over_is_kept_up_to_so_many_bytes() {
    let mut h = harness();
    let long = "x".repeat(300_000);
    h.script(&[("FAULT JOURNAL 100", "+OK")]);
    for n in 0..10 {
        h.script(&[(&format!("SET k {n}{long}"), "+OK")]);
    }
    // A mebibyte in tests: three values that were there before, and no more.
    h.script(&[("FAULT RESTART LOSE 4", ":3")]);
    carry_out(&mut h);
    h.script(&[("GETRANGE k 0 0", "$1 6")]);
    // A single larger write can be lost all the same.
    for _ in 0..2 {
        h.script(&[(&format!("SET k {long}{long}{long}{long}"), "+OK")]);
    }
    h.script(&[("FAULT RESTART LOSE 1", ":1")]);
}
