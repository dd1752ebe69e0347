use crate::base::ids::SessionId;
use crate::engine::harness::Harness;
use crate::engine::session::{Peer, SessionFlags};

impl Harness {
    fn more_sessions(&mut self, count: usize) -> Vec<SessionId> {
        (0..count).map(|_| self.engine.connect(self.now, Peer::default())).collect()
    }

    fn run_as(&mut self, id: SessionId, words: &str) -> String {
        let own = std::mem::replace(&mut self.session, id);
        let reply = self.run(words);
        self.session = own;
        reply
    }

    fn closed(&self, id: SessionId) -> bool {
        self.engine.clients.sessions[id].flags.contains(SessionFlags::CLOSE_NOW)
    }

    /// Makes the driver hold this many bytes of a session's request.
    fn hold(&mut self, id: SessionId, bytes: u32) {
        self.engine.clients.sessions[id].query_buffer = bytes;
        if self.engine.counts_clients() {
            self.engine.count_client(id);
        }
        self.engine.check_invariants();
    }
}

#[test]
fn the_largest_go_first_and_no_more_than_must() {
    let mut h = Harness::new();
    let all = h.more_sessions(6);
    for (&id, kib) in all.iter().zip([100, 900, 200, 1000, 3000, 600]) {
        h.hold(id, kib << 10);
    }
    h.run("CLIENT NO-EVICT ON");
    assert_eq!(h.run("CONFIG SET maxmemory-clients 3mb"), "+OK");
    assert!(!h.closed(all[4]), "not in the middle of a command");
    h.run("PING");
    let closed = |h: &Harness| all.iter().map(|&id| h.closed(id)).collect::<Vec<_>>();
    assert_eq!(closed(&h), [false, false, false, false, true, false]);
    assert_eq!(h.engine.diagnosis.stats.evicted_clients, 1);
    // Of the sessions with the same power of two, the one that reached it first.
    assert_eq!(h.run("CONFIG SET maxmemory-clients 2mb"), "+OK");
    h.run("PING");
    assert_eq!(closed(&h), [false, true, false, false, true, false]);
    assert_eq!(h.run("CONFIG SET maxmemory-clients 1kb"), "+OK");
    h.run("PING");
    assert_eq!(closed(&h), [false, true, true, true, true, true], "128 KiB they may have");
    h.hold(h.session, 200 << 10);
    assert_eq!(h.run("PING"), "+PONG", "one that is not to be closed is not");
    assert!(h.closed(all[0]) && !h.closed(h.session));
    for id in all {
        h.engine.disconnect(h.now, id);
    }
    h.engine.check_invariants();
    assert_eq!(h.run("CONFIG SET maxmemory-clients 0"), "+OK");
}

#[test]
fn a_percentage_is_one_of_maxmemory() {
    let mut h = Harness::new();
    let id = h.more_sessions(1)[0];
    h.hold(id, 1 << 20);
    h.script(&[("CLIENT NO-EVICT ON", "+OK"), ("CONFIG SET maxmemory-clients 10%", "+OK"), ("PING", "+PONG")]);
    assert!(!h.closed(id), "what has no bound has no tenth");
    h.script(&[("CONFIG SET maxmemory 20mb", "+OK"), ("PING", "+PONG")]);
    assert!(!h.closed(id));
    h.script(&[("CONFIG SET maxmemory 10mb", "+OK"), ("PING", "+PONG")]);
    assert!(h.closed(id));
}

#[test]
fn one_that_is_closed_for_its_own_request_has_no_reply() {
    let mut h = Harness::new();
    let id = h.more_sessions(1)[0];
    assert_eq!(h.run("CONFIG SET maxmemory-clients 200kb"), "+OK");
    let mut watched = 0;
    while h.run_as(id, &format!("WATCH key:{watched}")) == "+OK" {
        watched += 1;
    }
    assert!((500..5000).contains(&watched), "{watched} keys");
    assert!(h.closed(id) && !h.closed(h.session));
    h.engine.disconnect(h.now, id);
    h.pass(100);
    assert_eq!(h.run("PING"), "+PONG");
}
