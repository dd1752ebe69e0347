//! Invariants between the parts of the engine.

use crate::engine::Engine;
use crate::engine::pubsub;
use crate::engine::session::SessionFlags;
use crate::keyspace::interests::NIL;

impl Engine {
    /// Panics if the state violates an invariant. Visits the whole state.
    pub fn check_invariants(&self) {
        self.keyspace.space.check_invariants();
        self.scripting.interpreters.check_invariants();
        assert!(self.scripting.touched || !self.scripting.interpreters.has_garbage(), "garbage of scripts is known");
        for &id in &self.clients.pending_writes {
            assert!(self.clients.sessions.contains(id), "a session with output to write is gone");
        }
        self.clients.pubsub.check_invariants();
        assert_eq!(
            self.keyspace.changes.has_listeners,
            self.clients.pubsub.has_listeners(),
            "events are published if a session listens"
        );
        self.keyspace.changes.check_invariants();
        self.check_held();
        self.check_access_invariants();
        self.check_client_memory();
        self.check_observers();
        assert_eq!(self.slow_path, self.find_slow_path(), "slow_path is up to date");
        for (id, session) in self.clients.sessions.iter() {
            for kind in pubsub::Kind::ALL {
                let counted = self.clients.pubsub.subscriptions(kind, id);
                assert_eq!(session.subscriptions[kind.index()] as usize, counted, "a session counts its subscriptions");
            }
            let subscribed = session.flags.contains(SessionFlags::SUBSCRIBED);
            assert_eq!(session.subscriptions != [0; 3], subscribed, "a session knows whether it has subscriptions");
            let multi = session.flags.contains(SessionFlags::MULTI);
            assert_eq!(session.transaction.is_some(), multi, "a transaction between MULTI and EXEC");
            assert!(!session.flags.contains(SessionFlags::IN_EXEC), "EXEC is one step");
            let (waits, held) = (session.waiter != NIL || session.lock_waiter != NIL, session.held != 0);
            let delayed = self.testing.faults.delays(id) || self.work.jobs.has(id);
            assert_eq!(session.flags.contains(SessionFlags::BLOCKED), waits || held || delayed, "blocked by something");
            self.testing.gates.check(id, session.flags);
            if session.waiter != NIL {
                self.keyspace.changes.waits.check_waiter(session.waiter, id);
            }
            if held {
                self.clients.pause.check_held(session.held, id);
            }
        }
    }
}
