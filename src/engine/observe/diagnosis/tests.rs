//! One client fills what is remembered for diagnosis with the longest texts that it may send.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::MEMORIES;
use crate::base::ids::SessionId;
use crate::engine::Engine;
use crate::engine::environment::Usage;
use crate::engine::harness::Harness;
use crate::engine::session::Peer;

/// The budget of the flood.
const BUDGET: u64 = 1 << 20;

/// Bytes of each memory.
fn bytes(engine: &mut Engine) -> [usize; 9] {
    MEMORIES.map(|of| of(engine).map_or(0, |memory| memory.bytes()))
}

/// A text of a length that is like no other.
fn text(number: usize, length: usize) -> Vec<u8> {
    format!("{number:0length$}").into_bytes()
}

impl Harness {
    fn connect(&mut self) -> SessionId {
        let id = self.engine.connect(self.now, Peer { addr: "10.0.0.9:4711".into(), ..Peer::default() });
        self.run_by(id, &[b"CLIENT", b"SETNAME", &text(id.index(), 10_000)]);
        id
    }

    fn run_by(&mut self, id: SessionId, args: &[&[u8]]) -> Vec<u8> {
        self.engine.execute(self.now, id, args);
        std::mem::take(&mut self.engine.clients.sessions[id].out)
    }

    fn leave(&mut self, id: SessionId) {
        self.engine.disconnect(self.now, id);
    }

    /// Configures, and carries out what the driver is to do then.
    fn configure(&mut self, directives: &str) {
        assert_eq!(self.run(&format!("CONFIG SET {directives}")), "+OK");
        self.engine.take_actions();
        self.engine.finish_actions(self.now);
    }

    /// Lets milliseconds pass. Looks at no invariants, which takes long.
    fn wait(&mut self, ms: u64) {
        self.now.advance_us(ms * 1000);
        while self.engine.advance(self.now) {}
    }
}

/// The integer of a reply.
fn integer(reply: &[u8]) -> Vec<u8> {
    reply.strip_prefix(b":").unwrap().strip_suffix(b"\r\n").unwrap().to_vec()
}

/// A few seconds of the flood: something for every memory.
fn flood(h: &mut Harness, number: usize) {
    let [a, b] = [h.connect(), h.connect()];
    let name = |kind: usize| [b"m:", &text(8 * number + kind, 4000)[..]].concat();
    let owner = |of: usize| text(2 * number + of, 1024);
    let (id, long) = (text(number, 64), text(number, 20_000));
    // A wait that times out, a repeated request, a release.
    h.run_by(a, &[b"LOCK.ACQUIRE", &name(0), &owner(0), b"900000", b"REQUEST", &id]);
    h.run_by(b, &[b"LOCK.ACQUIRE", &name(0), &owner(1), b"900000", b"WAIT", b"100"]);
    h.wait(200);
    assert_eq!(h.run_by(a, &[b"LOCK.RELEASE", &name(0), &owner(0), b"REQUEST", &id]), b":0\r\n");
    // A lease that ends.
    h.run_by(a, &[b"LOCK.ACQUIRE", &name(1), &owner(0), b"50"]);
    // A deadlock.
    for (by, of, lock) in [(a, 0, 2), (b, 1, 3)] {
        h.run_by(by, &[b"LOCK.ACQUIRE", &name(lock), &owner(of), b"900000", b"SESSION"]);
    }
    h.run_by(a, &[b"LOCK.ACQUIRE", &name(3), &owner(0), b"900000", b"WAIT", b"0", b"SESSION"]);
    let refused = h.run_by(b, &[b"LOCK.ACQUIRE", &name(2), &owner(1), b"900000", b"WAIT", b"0"]);
    assert!(refused.starts_with(b"-DEADLOCK"));
    // A break.
    let token = integer(&h.run_by(b, &[b"LOCK.ACQUIRE", &name(4), &owner(1), b"900000"]));
    assert_eq!(h.run_by(b, &[b"LOCK.BREAK", &name(4), b"TOKEN", &token, b"REASON", &long]), b":1\r\n");
    // Refused requests and logins, and slow requests with many arguments.
    assert!(h.run_by(b, &[b"AUTH", &long, &long]).starts_with(b"-WRONGPASS"));
    h.run_by(b, &[b"AUTH", b"mallory", b"pw"]);
    assert!(h.run_by(b, &[b"LOCK.INFO", &long]).starts_with(b"-NOPERM"));
    h.run_by(b, &[&[&b"LOCK.LIST"[..]], &[&long[..]; 40][..]].concat());
    h.leave(b);
    h.leave(a);
    h.wait(3700);
}

#[test]
fn an_hour_of_the_longest_texts_is_bounded_and_has_no_write_of_others_refused() {
    /// Bytes that the process is said to have allocated.
    static ALLOCATED: AtomicU64 = AtomicU64::new(0);
    let mut h = Harness::new();
    h.engine.host.environment.usage = Some(|| Usage { allocated: ALLOCATED.load(Relaxed), ..Usage::default() });
    h.run("ACL SETUSER mallory on >pw ~m:* -@all +@lock +@lockadmin");
    h.configure("slowlog-log-slower-than 0 slowlog-max-len 1000000 acllog-max-len 1000000 login-delay-max 0");
    h.configure("lock-slowlog-log-slower-than 0 lock-slowlog-max-len 65536 lock-requests-max 1000");
    h.configure(&format!("diagnostics-max-memory {BUDGET} maxmemory 64mb"));
    let mut filled = [false; 9];
    for number in 0..900 {
        ALLOCATED.store(0, Relaxed);
        h.wait(100);
        flood(&mut h, number);
        let present = bytes(&mut h.engine);
        let all: usize = present.iter().sum();
        assert!(all as u64 <= BUDGET, "{present:?} after {number} rounds");
        filled.iter_mut().zip(present).for_each(|(filled, bytes)| *filled |= bytes > 0);
        let not_counted = h.engine.not_counted();
        assert!(not_counted <= BUDGET + 512_000, "{not_counted} after {number} rounds");
        if number % 100 == 0 {
            h.engine.check_invariants();
        }
        // Others have nearly all of the limit for their data.
        ALLOCATED.store((64 << 20) - 1000 + not_counted, Relaxed);
        assert_eq!(h.args(&[b"SET", b"others", b"value"]), b"+OK\r\n", "after {number} rounds");
    }
    assert_eq!(filled, [true; 9], "everything was remembered: {:?}", bytes(&mut h.engine));
    let held = h.engine.keyspace.changes.locks.as_ref().unwrap().held.total();
    assert_eq!((held.grants, h.run("DBSIZE").as_str()), (0, ":1"), "what is left is for diagnosis");
    ALLOCATED.store((64 << 20) + h.engine.not_counted(), Relaxed);
    h.pass(200);
    assert!(h.args(&[b"SET", b"others", b"value"]).starts_with(b"-OOM"), "the data count");
}

#[test]
fn the_oldest_of_all_is_forgotten_first_and_a_lower_budget_works_in_slices() {
    let mut h = Harness::new();
    h.configure("slowlog-log-slower-than 0");
    h.run("GET slow");
    h.configure("slowlog-log-slower-than -1");
    h.pass(10);
    h.run("AUTH nobody pw");
    h.pass(10);
    h.run("LOCK.ACQUIRE brief x 5");
    h.pass(5);
    h.pass(5);
    let id = h.connect();
    h.run_by(id, &[b"LOCK.ACQUIRE", b"held", b"y", b"900000"]);
    h.pass(10);
    h.leave(id);
    let mut order = Vec::new();
    loop {
        let before = bytes(&mut h.engine);
        let all: usize = before.iter().sum();
        if all == 0 {
            break;
        }
        h.configure(&format!("diagnostics-max-memory {}", all - 1));
        let after = bytes(&mut h.engine);
        order.push(before.iter().zip(after).position(|(before, after)| after < *before).unwrap());
    }
    order.dedup();
    assert_eq!(order, [0, 1, 4, 6, 4, 2], "the slow request, the login, the lease that ended, the lock, its client");
    assert_eq!(h.run("LOCK.WHY held").matches("$7 granted").count(), 1, "of a lock that is held, its grant is shown");

    h.configure("diagnostics-max-memory 16mb");
    (0..2000).for_each(|n| drop(h.run_by(h.session, &[b"LOCK.ACQUIRE", &text(n, 20), b"x", b"900000"])));
    h.configure("diagnostics-max-memory 0");
    let left = h.engine.diagnosis_bytes();
    assert!(left > 0 && h.engine.has_work(h.now), "{left} bytes are freed in further turns");
    h.pass(1);
    assert_eq!((h.engine.diagnosis_bytes(), h.engine.has_work(h.now)), (0, false));
    h.run("LOCK.ACQUIRE none x 900000");
    assert_eq!(h.engine.diagnosis_bytes(), 0, "nothing is remembered");
    h.engine.check_invariants();
}

#[test]
fn others_see_the_beginning_of_a_long_name_and_the_client_all_of_it() {
    let mut h = Harness::new();
    let id = h.engine.connect(h.now, Peer::default());
    let name = "ä".repeat(2 << 20);
    // A name of this character is not allowed, and one with a NUL may have any behind it.
    let set = [b"\0", name.as_bytes()].concat();
    assert_eq!(h.run_by(id, &[b"CLIENT", b"SETNAME", &set]), b"+OK\r\n");
    assert_eq!(h.run_by(id, &[b"CLIENT", b"GETNAME"]).len(), set.len() + "$4194305\r\n\r\n".len());
    for n in 0..100 {
        h.run_by(id, &[b"LOCK.ACQUIRE", &text(n, 5), b"x", b"900000"]);
    }
    let waiter = h.connect();
    h.run_by(waiter, &[b"LOCK.ACQUIRE", &text(1, 5), b"y", b"900000", b"WAIT", b"0"]);
    assert!(h.args(&[b"LOCK.LIST"]).len() < 100_000);
    let shown = h.run("LOCK.INFO 00001");
    assert!(shown.contains("$127 \0ääää") && !shown.contains(&"ä".repeat(64)), "{shown}");
    assert!(shown.contains(&format!("$128 {} ", "0".repeat(128))), "{shown}");
    let plain = "n".repeat(1000);
    let [full, brief] = [&plain[..], &plain[..128]].map(|name| format!(" name={name} "));
    assert_eq!(h.run(&format!("CLIENT SETNAME {plain}")), "+OK");
    assert_eq!(h.run(&format!("CLIENT SETINFO LIB-NAME {plain}")), "+OK");
    let own = h.run("CLIENT INFO");
    assert!(own.contains(&full) && own.contains(&format!("lib-name={plain} ")), "{own}");
    let all = h.run("CLIENT LIST");
    assert!(all.contains(&brief) && all.contains(&format!("lib-name={} ", &plain[..128])) && all.len() < 3000, "{all}");
    h.run("AUTH nobody pw");
    assert!(h.run("ACL LOG").contains(&brief));
    h.configure("slowlog-log-slower-than 0");
    h.run("GET k");
    assert!(h.run("SLOWLOG GET").contains(&format!("$128 {}", &plain[..128])));
}

#[test]
fn owners_have_a_greatest_length() {
    let mut h = Harness::new();
    for request in [
        "LOCK.ACQUIRE a % 1000",
        "LOCK.ACQUIREALL 2 a b % 1000",
        "LOCK.RENEW a % 1000",
        "LOCK.RELEASE a %",
        "LOCK.LIST OWNER %",
        "SEM.ACQUIRE s % 1000 LIMIT 2",
        "SEM.RENEW s % 1000",
        "SEM.RELEASE s %",
    ] {
        let [fits, long] = [1024, 1025].map(|length| request.replace('%', &"o".repeat(length)));
        assert_eq!(h.run(&long), "-ERR owner is too long", "{request}");
        let reply = h.run(&fits);
        assert!(!reply.starts_with("-ERR"), "{request}: {reply}");
    }
}
