//! Waiters of a command that exists only here: `TAKE key [key …] timeout` takes a field out of a hash, or waits for one.

use super::*;
use crate::engine::command::{Command, Flags};
use crate::engine::harness::Harness;
use crate::engine::pause::Mode;
use crate::engine::request::Request;
use crate::engine::session::Peer;
use crate::keyspace::change::Event;
use crate::store::values::hash::FieldTtl;

static TAKE: Command =
    Command { name: "take", arity: -3, flags: Flags::WRITE, handler: |cx, args| take(cx, args, Wake::HASH), ..Command::DEFAULT };
/// As `TAKE`, and also woken when the key is gone.
static TAKE_OR_GONE: Command = Command { name: "take", handler: |cx, args| take(cx, args, Wake::HASH | Wake::GONE), ..TAKE };
/// Takes a field of the first hash and puts it into the second.
static PASS: Command = Command { name: "pass", arity: 4, flags: Flags::WRITE, handler: pass, ..Command::DEFAULT };

fn pop(cx: &mut Context<'_>, key: &[u8]) -> Result<Option<Vec<u8>>> {
    let mut db = cx.db();
    let first = db.hash(key)?.and_then(|hash| hash.iter().next().map(|field| field.name.to_vec()));
    if let Some(field) = &first {
        let mut edit = db.edit_hash(key)?.unwrap();
        edit.remove(field);
        edit.finish(&[Event::HDEL]);
    }
    Ok(first)
}

fn take(cx: &mut Context<'_>, args: &[&[u8]], wake: Wake) -> Result {
    let keys = &args[1..args.len() - 1];
    let deadline = deadline(cx.now, args[args.len() - 1])?;
    for key in keys {
        if let Some(field) = pop(cx, key)? {
            cx.reply.array(2);
            cx.reply.bulk(key);
            cx.reply.bulk(&field);
            return Ok(());
        }
    }
    if cx.may_block() {
        cx.block(args, keys.iter().copied(), wake, deadline);
    } else {
        cx.reply.null_array();
    }
    Ok(())
}

fn pass(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let deadline = deadline(cx.now, args[3])?;
    match pop(cx, args[1])? {
        Some(field) => {
            let mut db = cx.db();
            let mut edit = db.edit_or_create_hash(args[2])?;
            edit.set(&field, b"", FieldTtl::Clear);
            edit.finish(&[Event::HSET]);
            cx.reply.bulk(&field);
        }
        None => cx.block(args, [args[1]].into_iter(), Wake::HASH, deadline),
    }
    Ok(())
}

/// An engine with one session that feeds and several that wait.
struct Scene {
    h: Harness,
}

impl Scene {
    fn new() -> Self {
        Scene { h: Harness::new() }
    }

    fn connect(&mut self) -> SessionId {
        self.h.engine.connect(self.h.now, Peer::default())
    }

    /// A request of a session by a row of this module.
    fn ask(&mut self, id: SessionId, row: &'static Command, words: &str) {
        let args: Vec<&[u8]> = words.split_whitespace().map(str::as_bytes).collect();
        self.h.engine.execute_request(self.h.now, id, Request { row: Some(row), ..Request::new(&args) });
        self.h.engine.check_invariants();
    }

    /// A new session that waits.
    fn waiter(&mut self, row: &'static Command, words: &str) -> SessionId {
        let id = self.connect();
        self.ask(id, row, words);
        assert!(self.blocked(id), "{words}");
        id
    }

    fn blocked(&self, id: SessionId) -> bool {
        self.h.engine.clients.sessions[id].flags.contains(SessionFlags::BLOCKED)
    }

    /// The output that a session was sent.
    #[track_caller]
    fn got(&mut self, id: SessionId) -> String {
        let out = std::mem::take(&mut self.h.engine.clients.sessions[id].out);
        String::from_utf8_lossy(&out).trim_end().replace("\r\n", " ")
    }

    /// The sessions that the server has to look at.
    fn pending_writes(&mut self) -> Vec<SessionId> {
        let mut pending_writes = Vec::new();
        self.h.engine.take_pending_writes(&mut pending_writes);
        pending_writes
    }

    fn hear(&mut self, ids: &[SessionId]) -> Vec<String> {
        ids.iter().map(|&id| self.got(id)).collect()
    }
}

#[test]
fn what_is_there_is_taken_at_once() {
    let mut s = Scene::new();
    s.h.run("HSET h f v");
    let id = s.connect();
    s.ask(id, &TAKE, "TAKE none h 0");
    assert_eq!((s.got(id).as_str(), s.blocked(id)), ("*2 $1 h $1 f", false));
}

#[test]
fn first_come_first_served_across_clients_and_keys() {
    let mut s = Scene::new();
    let a = s.waiter(&TAKE, "TAKE x h 0");
    let b = s.waiter(&TAKE, "TAKE h x 0");
    let c = s.waiter(&TAKE, "TAKE h 0");
    let d = s.waiter(&TAKE, "TAKE h h 0");
    assert_eq!(s.h.run("HSET h 1 v 2 v 3 v"), ":3");
    assert_eq!(s.hear(&[a, b, c, d]), ["*2 $1 h $1 1", "*2 $1 h $1 2", "*2 $1 h $1 3", ""]);
    assert_eq!(s.pending_writes(), [a, b, c]);
    assert_eq!(s.h.run("HSET x 1 v"), ":1");
    assert_eq!(s.h.run("EXISTS x"), ":1", "no session waits for it any more");
    assert_eq!(s.h.run("HSET h 4 v"), ":1");
    assert_eq!(s.hear(&[a, b, c, d]), ["", "", "", "*2 $1 h $1 4"]);
    assert!(s.h.engine.keyspace.changes.waits.is_empty());
}

#[test]
fn a_transaction_and_a_script_feed_when_they_have_ended() {
    let mut s = Scene::new();
    let a = s.waiter(&TAKE, "TAKE x y 0");
    let b = s.waiter(&TAKE, "TAKE y x 0");
    for words in ["MULTI", "HSET y 1 v", "HSET x 1 v", "HDEL y 1", "HSET y 2 v"] {
        s.h.run(words);
        assert_eq!(s.hear(&[a, b]), ["", ""]);
    }
    assert_eq!(s.h.run("EXEC"), "*4 :1 :1 :1 :1");
    // `y` became ready first, and who came first is served: by the request's own order of keys.
    assert_eq!(s.hear(&[a, b]), ["*2 $1 x $1 1", "*2 $1 y $1 2"]);
    let c = s.waiter(&TAKE, "TAKE z 0");
    let script = "redis.call('HSET','z','1','v') redis.call('HSET','z','2','v') return redis.call('HLEN','z')";
    assert_eq!(s.h.args(&[b"EVAL", script.as_bytes(), b"0"]), b":2\r\n");
    assert_eq!(s.got(c), "*2 $1 z $1 1");
}

#[test]
fn within_a_transaction_nobody_waits() {
    let mut s = Scene::new();
    let id = s.connect();
    s.h.session = id;
    s.h.run("MULTI");
    s.ask(id, &TAKE, "TAKE h 0");
    assert_eq!(s.got(id), "+QUEUED");
    assert_eq!(s.h.run("EXEC"), "*1 *-1");
}

#[test]
fn who_is_served_may_feed_others() {
    let mut s = Scene::new();
    let a = s.waiter(&TAKE, "TAKE c 0");
    let b = s.waiter(&PASS, "PASS b c 0");
    let c = s.waiter(&PASS, "PASS a b 0");
    assert_eq!(s.h.run("HSET a f v"), ":1");
    assert_eq!(s.hear(&[a, b, c]), ["*2 $1 c $1 f", "$1 f", "$1 f"]);
    assert_eq!(s.h.run("DBSIZE"), ":0");
    // In a ring, the element goes round as long as a session waits.
    let a = s.waiter(&PASS, "PASS a a 0");
    let b = s.waiter(&PASS, "PASS a a 0");
    assert_eq!(s.h.run("HSET a f v"), ":1");
    assert_eq!(s.hear(&[a, b]), ["$1 f", "$1 f"]);
    // An error is a reply as well.
    s.h.run("SET to text");
    s.h.run("DEL a");
    let a = s.waiter(&PASS, "PASS a to 0");
    s.h.run("HSET a f v");
    assert!(s.got(a).starts_with("-WRONGTYPE"));
}

#[test]
fn databases_that_change_places_and_keys_that_move_feed_too() {
    let mut s = Scene::new();
    for feed in ["SWAPDB 0 1", "MOVE h 0", "COPY h h DB 0"] {
        s.h.run("FLUSHALL");
        let a = s.waiter(&TAKE, "TAKE h 0");
        s.h.run("SELECT 1");
        s.h.run("HSET h f v");
        assert_eq!(s.got(a), "");
        s.h.run(feed);
        assert_eq!(s.got(a), "*2 $1 h $1 f", "{feed}");
        s.h.run("SELECT 0");
    }
    let a = s.waiter(&TAKE, "TAKE h 0");
    s.h.run("HSET other f v");
    s.h.run("RENAME other h");
    assert_eq!(s.got(a), "*2 $1 h $1 f");
    // A key of another type serves no waiter.
    let a = s.waiter(&TAKE, "TAKE h 0");
    s.h.run("SET h text");
    assert!(s.blocked(a));
    s.h.run("DEL h");
    s.h.run("HSET h f v");
    assert_eq!(s.got(a), "*2 $1 h $1 f");
}

#[test]
fn the_end_of_a_key_wakes_those_who_say_so() {
    let mut s = Scene::new();
    for end in ["DEL s", "SET s x", "RENAME s t", "FLUSHDB", "FLUSHALL", "SWAPDB 0 1", "PEXPIRE s 0"] {
        s.h.run("FLUSHALL");
        s.h.run("SET s text");
        let a = s.connect();
        s.ask(a, &TAKE_OR_GONE, "TAKE h 0");
        let b = s.waiter(&TAKE, "TAKE h 0");
        // It waits for a key that does not exist, so it waits again whatever happens.
        s.h.run("DEL h");
        assert!(s.blocked(a) && s.blocked(b), "{end}");
        s.h.engine.unblock(s.h.now, a, None);
        s.h.engine.unblock(s.h.now, b, None);
        assert_eq!(s.hear(&[a, b]), ["*-1", "*-1"]);
    }
    // A waiter whose key has another type at the second execution replies with the error.
    s.h.run("FLUSHALL");
    let a = s.waiter(&TAKE_OR_GONE, "TAKE h 0");
    let b = s.waiter(&TAKE, "TAKE h 0");
    assert_eq!(s.h.engine.keyspace.changes.waits.keys_waited_on_removal(), 1);
    s.h.run("SET h text");
    assert!(s.got(a).starts_with("-WRONGTYPE"));
    assert!(s.blocked(b));
}

#[test]
fn time_is_over_to_the_millisecond_and_in_order() {
    let mut s = Scene::new();
    let start = s.h.now.mono_ms();
    assert_eq!(s.h.engine.next_deadline(), None);
    let a = s.waiter(&TAKE, "TAKE h 0.2");
    let b = s.waiter(&TAKE, "TAKE h 0.1005");
    let c = s.waiter(&TAKE, "TAKE h x 0.1");
    let d = s.waiter(&TAKE, "TAKE h 0");
    assert_eq!(s.h.engine.next_deadline(), Some(start + 100));
    s.h.pass(99);
    assert_eq!(s.hear(&[a, b, c, d]), ["", "", "", ""]);
    s.h.pass(1);
    assert_eq!(s.hear(&[a, b, c, d]), ["", "", "*-1", ""]);
    assert_eq!(s.h.engine.next_deadline(), Some(start + 101));
    s.h.pass(99);
    assert_eq!(s.hear(&[a, b, c, d]), ["", "*-1", "", ""]);
    s.h.run("HSET h f v");
    assert_eq!(s.hear(&[a, b, c, d]), ["*2 $1 h $1 f", "", "", ""]);
    assert_eq!(s.h.engine.next_deadline(), None);
    let id = s.connect();
    for (timeout, error) in [
        ("x", "-ERR timeout is not a float or out of range"),
        ("-1", "-ERR timeout is negative"),
        ("-0.5", "-ERR timeout is negative"),
        ("9223372036854775", "-ERR timeout is out of range"),
        ("inf", "-ERR timeout is out of range"),
        ("-0x1", "-ERR timeout is negative"),
        ("1e400", "-ERR timeout is out of range"),
        ("1e9999", "-ERR timeout is not a float or out of range"),
        ("nan", "-ERR timeout is not a float or out of range"),
    ] {
        s.ask(id, &TAKE, &format!("TAKE h {timeout}"));
        assert_eq!(s.got(id), error, "{timeout}");
    }
    // A positive time-out never means for ever, however short it is. It may be hexadecimal.
    for timeout in ["1e-400", "0x.004"] {
        s.ask(id, &TAKE, &format!("TAKE h {timeout}"));
        s.h.pass(1);
        assert_eq!(s.got(id), "*-1", "{timeout}");
    }
}

#[test]
fn many_time_outs_at_once_are_done_in_pieces() {
    let mut s = Scene::new();
    let mut all = Vec::new();
    for _ in 0..2000 {
        let id = s.connect();
        s.h.engine.execute_request(s.h.now, id, Request { row: Some(&TAKE), ..Request::new(&[b"TAKE".as_slice(), b"h", b"1"]) });
        all.push(id);
    }
    s.h.now.advance_us(1_000_000);
    let mut turns = 1;
    while s.h.engine.advance(s.h.now) {
        turns += 1;
    }
    assert_eq!(turns, 4);
    s.h.engine.check_invariants();
    assert!(all.into_iter().all(|id| s.got(id) == "*-1"));
}

#[test]
fn a_client_that_leaves_takes_nothing() {
    let mut s = Scene::new();
    let a = s.waiter(&TAKE, "TAKE h 0");
    let b = s.waiter(&TAKE, "TAKE h 0");
    s.h.engine.disconnect(s.h.now, a);
    s.h.run("HSET h f v");
    assert_eq!(s.got(b), "*2 $1 h $1 f");
    // Nor does a session that is about to be closed.
    let a = s.waiter(&TAKE, "TAKE h 0");
    let b = s.waiter(&TAKE, "TAKE h 0");
    let client = s.h.engine.clients.sessions[a].id;
    assert_eq!(s.h.run(&format!("CLIENT KILL ID {client}")), ":1");
    s.h.run("HSET h f v");
    assert_eq!(s.hear(&[a, b]), ["", "*2 $1 h $1 f"]);
    assert!(s.h.engine.keyspace.changes.waits.is_empty());
}

#[test]
fn a_wait_for_many_keys_is_forgotten_in_pieces() {
    let mut s = Scene::new();
    let keys: Vec<String> = (0..10_000).map(|i| format!("k{i}")).collect();
    let a = s.waiter(&TAKE, &format!("TAKE {} 0", keys.join(" ")));
    let b = s.waiter(&TAKE, "TAKE k9999 0");
    s.h.run("HSET k5000 f v");
    assert_eq!(s.got(a), "*2 $5 k5000 $1 f");
    s.h.run("HSET k9999 f v");
    assert_eq!(s.got(b), "*2 $5 k9999 $1 f");
    assert_eq!(s.h.engine.next_deadline(), Some(0));
    s.h.pass(0);
    assert!(s.h.engine.keyspace.changes.waits.is_empty());
    assert_eq!(s.h.engine.next_deadline(), None);
}

#[test]
fn others_may_end_a_wait() {
    let mut s = Scene::new();
    let a = s.waiter(&TAKE, "TAKE h 0");
    let client = s.h.engine.clients.sessions[a].id;
    assert_eq!(s.h.run(&format!("CLIENT UNBLOCK {client}")), ":1");
    assert_eq!(s.got(a), "*-1");
    assert_eq!(s.h.run(&format!("CLIENT UNBLOCK {client}")), ":0");
    s.ask(a, &TAKE, "TAKE h 0");
    assert_eq!(s.h.run(&format!("CLIENT UNBLOCK {client} error")), ":1");
    assert_eq!(s.got(a), "-UNBLOCKED client unblocked via CLIENT UNBLOCK");
    s.h.script(&[
        ("CLIENT UNBLOCK 99", ":0"),
        ("CLIENT UNBLOCK x", "-ERR value is not an integer or out of range"),
        ("CLIENT UNBLOCK 1 NOW", "-ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR"),
    ]);
}

#[test]
fn a_reply_that_is_not_wanted_is_not_sent_later_either() {
    let mut s = Scene::new();
    let a = s.connect();
    s.h.engine.execute(s.h.now, a, &[b"CLIENT", b"REPLY", b"SKIP"]);
    s.ask(a, &TAKE, "TAKE h 0");
    s.h.run("HSET h f v");
    assert_eq!(s.got(a), "");
    s.ask(a, &TAKE, "TAKE h 0.001");
    s.h.pass(1);
    assert_eq!(s.got(a), "*-1");
}

#[test]
fn what_a_pause_holds_back_goes_on_in_order() {
    let mut s = Scene::new();
    let (a, b, c) = (s.connect(), s.connect(), s.connect());
    s.h.run("SET k 1");
    assert_eq!(s.h.run("CLIENT PAUSE 100 WRITE"), "+OK");
    s.h.engine.execute(s.h.now, a, &[b"APPEND", b"k", b"2"]);
    s.h.engine.execute(s.h.now, b, &[b"APPEND", b"k", b"3"]);
    s.h.engine.execute(s.h.now, c, &[b"GET", b"k"]);
    s.h.engine.check_invariants();
    assert_eq!(s.hear(&[a, b, c]), ["", "", "$1 1"]);
    assert!(s.blocked(a) && s.blocked(b));
    assert_eq!(s.h.engine.next_deadline(), Some(s.h.now.mono_ms() + 100));
    let client = s.h.engine.clients.sessions[a].id;
    assert_eq!(s.h.run(&format!("CLIENT UNBLOCK {client}")), ":0", "it waits for no key");
    s.h.pass(99);
    assert_eq!(s.hear(&[a, b]), ["", ""]);
    s.h.pass(1);
    assert_eq!(s.hear(&[a, b]), [":2", ":3"]);
    assert_eq!((s.pending_writes(), s.h.engine.next_deadline()), (vec![a, b], None));
    // Ended by hand; what was held back of one that is gone is gone with it.
    s.h.run("CLIENT PAUSE 100 WRITE");
    s.h.engine.execute(s.h.now, a, &[b"APPEND", b"k", b"4"]);
    s.h.engine.execute(s.h.now, b, &[b"APPEND", b"k", b"5"]);
    s.h.engine.disconnect(s.h.now, a);
    assert_eq!(s.h.run("CLIENT UNPAUSE"), "+OK");
    assert_eq!(s.got(b), ":4");
    assert_eq!(s.h.run("GET k"), "$4 1235");
    s.h.script(&[
        ("CLIENT PAUSE x", "-ERR timeout is not an integer or out of range"),
        ("CLIENT PAUSE -1", "-ERR timeout is negative"),
        ("CLIENT PAUSE 9223372036854775807", "-ERR timeout is out of range"),
        ("CLIENT PAUSE 1 NONE", "-ERR CLIENT PAUSE mode must be WRITE or ALL"),
    ]);
}

#[test]
fn what_a_pause_has_held_back_serves_those_who_wait_for_locks() {
    for (held, freed) in [("LOCK.ACQUIRE l x 60000", "LOCK.RELEASE l x"), ("SET l plain", "DEL l")] {
        let mut s = Scene::new();
        let (a, b) = (s.connect(), s.connect());
        s.h.run(held);
        s.h.engine.execute(s.h.now, a, &[b"LOCK.ACQUIRE", b"l", b"y", b"60000", b"WAIT", b"0"]);
        s.h.run("CLIENT PAUSE 100");
        let words: Vec<&[u8]> = freed.split(' ').map(str::as_bytes).collect();
        s.h.engine.execute(s.h.now, b, &words);
        assert!(s.blocked(a) && s.blocked(b), "{freed}");
        s.h.pass(100);
        s.h.engine.check_invariants();
        assert!(!s.blocked(a) && !s.blocked(b), "{freed}");
        assert!(s.got(a).starts_with(':'), "{freed}");
    }
}

#[test]
fn a_pause_becomes_no_shorter_and_holds_back_no_less() {
    let mut s = Scene::new();
    let a = s.connect();
    s.h.engine.pause(Mode::All, s.h.now.mono_ms() + 100);
    s.h.engine.pause(Mode::Write, s.h.now.mono_ms() + 50);
    s.h.engine.execute(s.h.now, a, &[b"GET", b"k"]);
    s.h.pass(99);
    assert!(s.blocked(a));
    s.h.pass(1);
    assert_eq!(s.got(a), "$-1");
}

#[test]
fn nothing_ends_during_a_pause_though_it_is_not_seen() {
    let mut s = Scene::new();
    s.h.run("SET k v PX 10");
    s.h.run("HSET h f v");
    s.h.run("HPEXPIRE h 10 FIELDS 1 f");
    s.h.run("CLIENT PAUSE 100 WRITE");
    s.h.pass(50);
    s.h.script(&[("GET k", "$-1"), ("HGET h f", "$-1"), ("EXISTS k h", ":0"), ("DBSIZE", ":2")]);
    s.h.pass(50);
    assert_eq!(s.h.run("DBSIZE"), ":0");
    // A transaction that begins a pause may continue to write.
    s.h.run("SET k v PX 10");
    for words in ["MULTI", "CLIENT PAUSE 100 WRITE", "SET k w", "GET k"] {
        s.h.run(words);
    }
    s.h.now.advance_us(20_000);
    assert_eq!(s.h.run("EXEC"), "*3 +OK +OK $1 w");
    s.h.run("CLIENT UNPAUSE");
}
