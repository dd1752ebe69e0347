//! No command comes between the end of a lease and the grant to the first waiter, even before the timer has fired, and however
//! many leases end at once.

use super::*;
use crate::engine::harness::Harness;
use crate::engine::request::STEPS_BEFORE_REQUEST;
use crate::engine::session::Peer;
use crate::lock::locks::DUE_STEPS;

/// Maximum number of leases that are settled before a command.
const ONE: usize = (STEPS_BEFORE_REQUEST / DUE_STEPS) as usize;

impl Harness {
    /// Executes a request for another session. Returns the output that it was sent.
    fn say(&mut self, id: SessionId, words: &str) -> String {
        let args: Vec<&[u8]> = words.split_whitespace().map(str::as_bytes).collect();
        self.engine.execute(self.now, id, &args);
        self.told(id)
    }

    fn told(&mut self, id: SessionId) -> String {
        let out = std::mem::take(&mut self.engine.clients.sessions[id].out);
        String::from_utf8_lossy(&out).trim_end().replace("\r\n", " ")
    }

    fn join(&mut self) -> SessionId {
        self.engine.connect(self.now, Peer::default())
    }
}

#[test]
fn nobody_comes_in_before_those_who_wait_for_a_lock_or_a_plain_key() {
    for (held, lease) in [("SET a token NX PX 100", 100), ("LOCK.ACQUIRE a token 100", 100)] {
        for barging in ["SET a other NX", "SETNX a other", "LOCK.ACQUIRE a other 100"] {
            let mut h = Harness::new();
            assert_ne!(h.run(held), "$-1");
            let waiter = h.join();
            assert_eq!(h.say(waiter, "LOCK.ACQUIRE a waiter 1000 WAIT 0"), "");
            // Time has passed, and the timer has not fired.
            h.now.advance_us(lease * 1000);
            let refused = h.run(barging);
            assert!(refused == "$-1" || refused == ":0", "{barging}: {refused}");
            assert!(h.told(waiter).starts_with(':'), "{held}, {barging}");
        }
    }
}

#[test]
fn the_end_of_a_plain_key_is_looked_out_for_as_it_changes() {
    let mut h = Harness::new();
    h.run("SET a token");
    let waiter = h.join();
    assert_eq!(h.say(waiter, "LOCK.ACQUIRE a waiter 1000 WAIT 0"), "");
    for (change, ms) in
        [("PEXPIRE a 100", 50), ("PEXPIRE a 100", 99), ("PERSIST a", 500), ("SET a b PX 5", 4), ("GETEX a PX 7", 6)]
    {
        h.run(change);
        h.now.advance_us(ms * 1000);
        assert_eq!(h.run("SET a other NX"), "$-1");
        assert_eq!(h.told(waiter), "", "{change}");
    }
    h.now.advance_us(1000);
    assert_eq!(h.run("SET a other NX"), "$-1");
    assert!(h.told(waiter).starts_with(':'));
}

/// Creates many contended leases that end in one millisecond, before the timer fires. Returns the waiters.
fn many_due(h: &mut Harness, count: usize) -> Vec<SessionId> {
    let waiters: Vec<SessionId> = (0..count)
        .map(|at| {
            assert!(h.say(h.session, &format!("LOCK.ACQUIRE lock:{at} holder 100")).starts_with(':'));
            let waiter = h.join();
            assert_eq!(h.say(waiter, &format!("LOCK.ACQUIRE lock:{at} waiter:{at} 100000 WAIT 0")), "");
            waiter
        })
        .collect();
    h.now.advance_us(100_000);
    waiters
}

#[test]
fn a_command_settles_the_expired_leases_of_its_own_keys_first() {
    let mut h = Harness::new();
    let count = 5 * ONE;
    let waiters = many_due(&mut h, count);
    let served = |h: &Harness| waiters.iter().filter(|id| !h.engine.clients.sessions[**id].out.is_empty()).count();
    assert_eq!(h.say(h.session, "PING"), "+PONG");
    assert_eq!(served(&h), ONE, "so many and no more");
    // First come, first served: names are settled in the order in which their leases have ended.
    assert!(waiters[..ONE].iter().all(|id| !h.engine.clients.sessions[*id].out.is_empty()));
    let last = waiters[count - 1];
    assert_eq!(h.say(h.session, &format!("SET lock:{} other NX", count - 1)), "$-1", "no request gets ahead of the waiters");
    assert!(h.told(last).starts_with(':'));
    assert_eq!(served(&h), 2 * ONE);
    let script = format!("EVAL return\u{1}redis.call('setnx','lock:{}','other') 0", count - 2);
    let args: Vec<Vec<u8>> = script.split(' ').map(|word| word.replace('\u{1}', " ").into_bytes()).collect();
    let args: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
    assert_eq!(h.args(&args), b":0\r\n", "nor does a script, whatever keys it names");
    assert!(h.told(waiters[count - 2]).starts_with(':'));
    assert_eq!(h.say(h.session, &format!("LOCK.ACQUIRE lock:{} other 100", count - 3)), "$-1");
    assert!(h.told(waiters[count - 3]).starts_with(':'));
    assert_eq!(h.say(h.session, "DBSIZE"), format!(":{count}"), "DBSIZE counts all of them as held");
    assert_eq!(served(&h), count - 3);
    h.engine.check_invariants();
}

#[test]
fn what_has_ended_and_was_not_seen_to_is_no_deadlock() {
    let mut h = Harness::new();
    let count = 3 * ONE;
    let (x, y) = (h.join(), h.join());
    let before = h.now;
    many_due(&mut h, count);
    let after = std::mem::replace(&mut h.now, before);
    // It ends in the same millisecond as the others, after them.
    assert!(h.say(x, "LOCK.ACQUIRE a x 100").starts_with(':'));
    assert!(h.say(y, "LOCK.ACQUIRE b y 100000").starts_with(':'));
    assert_eq!(h.say(y, "LOCK.ACQUIRE a y 100000 WAIT 0"), "");
    assert!(h.say(x, "LOCK.ACQUIRE b x 100 WAIT 0").starts_with("-DEADLOCK"));
    h.now = after;
    assert_eq!(h.say(x, "LOCK.ACQUIRE b x 100 WAIT 0"), "", "it waits: what it held it holds no more");
    assert!(h.told(y).starts_with(':'));
    assert_eq!(h.engine.keyspace.changes.locks.as_ref().map(|locks| locks.stats.deadlocks), Some(1));
    h.engine.check_invariants();
}

#[test]
fn a_connection_that_ends_with_very_many_grants_ends_them_bit_by_bit() {
    let mut h = Harness::new();
    let holder = h.join();
    for n in 0..5000 {
        assert_ne!(h.say(holder, &format!("LOCK.ACQUIRE l{n} x 100000 SESSION")), "$-1");
    }
    let waiter = h.join();
    assert_eq!(h.say(waiter, "LOCK.ACQUIRE l4999 waiter 1000 WAIT 0"), "");
    h.engine.disconnect(h.now, holder);
    h.engine.check_invariants();
    let mut turns = 0;
    while h.engine.has_client_work() {
        assert_eq!(h.engine.next_deadline(), Some(0));
        h.engine.advance(h.now);
        h.engine.check_invariants();
        turns += 1;
    }
    assert_eq!(turns, 5000 / ENDED_AT_ONCE);
    assert!(h.told(waiter).starts_with(':'));
    assert_eq!(h.run("DBSIZE"), ":1");
    // A usual number of grants ends with the connection.
    let holder = h.join();
    h.say(holder, "LOCK.ACQUIRE other x 100000 SESSION");
    h.engine.disconnect(h.now, holder);
    assert!(!h.engine.has_client_work());
    h.script(&[("EXISTS other", ":0")]);
}

#[test]
fn a_refused_command_still_publishes_what_expired_before_it() {
    for refused in ["MSET a 1 held 2", "RENAME a held"] {
        let mut h = Harness::new();
        h.run("CONFIG SET notify-keyspace-events Ex");
        let listener = h.join();
        h.say(listener, "SUBSCRIBE __keyevent@0__:expired");
        h.script(&[("SET a 1 PX 100", "+OK")]);
        h.run("LOCK.ACQUIRE held token 100000");
        // Time has passed, and the timer has not fired.
        h.now.advance_us(100_000);
        assert!(h.run(refused).starts_with("-WRONGTYPE"), "{refused}");
        assert_eq!(h.told(listener), "*3 $7 message $22 __keyevent@0__:expired $1 a", "{refused}");
    }
}

/// A leader without a majority closes connections whose ends nobody has seen.
#[test]
fn session_grants_of_lost_connections_live_until_their_leases_end_or_their_owners_come_back() {
    let mut h = Harness::new();
    let acquire = |name: &str| format!("LOCK.ACQUIRE {name} me 1000 SESSION");
    let lose = |h: &mut Harness, id: SessionId| {
        h.engine.lose_sight(h.now, id);
        h.engine.disconnect(h.now, id);
        h.engine.check_invariants();
    };
    let (unnamed, named) = (h.join(), h.join());
    assert!(h.say(unnamed, &acquire("a")).starts_with(':') && h.say(unnamed, &acquire("b")).starts_with(':'));
    assert_eq!(h.say(named, "LOCK.SESSION s GRACE 100"), ":0");
    assert!(
        h.say(named, &acquire("c")).starts_with(':') && h.say(named, "SEM.ACQUIRE d me 1000 LIMIT 2 SESSION").starts_with(':')
    );
    lose(&mut h, unnamed);
    lose(&mut h, named);
    let waiter = h.join();
    assert_eq!(h.say(waiter, "LOCK.ACQUIRE a other 1000 WAIT 100"), "");
    let info = h.run("LOCK.DOCTOR");
    assert!(info.contains("it is not known whether its connection lives"), "{info}");
    assert!(h.run("LOCK.INFO a").contains("$4 gone $-1"));
    h.pass(500);
    for name in ["a", "b", "c"] {
        assert_eq!(h.run(&format!("LOCK.ACQUIRE {name} you 1000")), "$-1", "{name} is held");
    }
    // A renewal over another connection binds a grant to it, and the whole session.
    let back = h.join();
    assert_eq!(h.say(back, "LOCK.RENEW a me 1000"), ":1000");
    h.engine.disconnect(h.now, back);
    assert!(h.run("LOCK.ACQUIRE a you 1000").starts_with(':'), "its connection is seen to end");
    assert_eq!(h.run("LOCK.ACQUIRE b you 1000"), "$-1");
    let back = h.join();
    assert_eq!(h.say(back, "SEM.RENEW d me 5000"), ":5000");
    h.engine.disconnect(h.now, back);
    assert_eq!(h.run("LOCK.ACQUIRE c you 1000"), "$-1", "it has its grace");
    h.pass(100);
    assert!(h.run("LOCK.ACQUIRE c you 1000").starts_with(':') && h.run("SEM.INFO d").starts_with("$-1"));
    // The last one ends with its lease.
    h.pass(399);
    assert_eq!(h.run("LOCK.ACQUIRE b you 1000"), "$-1");
    h.pass(1);
    assert!(h.run("LOCK.ACQUIRE b you 1000").starts_with(':'));
}
