//! `KEYS` in a large database: a walk over its keys a few at a time, between the requests of others.
//!
//! The client waits until it is done, and gets one reply. What the reply has is what a complete `SCAN` gives, without its repetitions: each
//! key that is there during the whole of the walk once, and those that come or go meanwhile or not. In a transaction or a script, and where
//! there is no clock that runs (simulations), it is one step, as on Redis.

use std::collections::VecDeque;

use crate::engine::Engine;
use crate::engine::command::Command;
use crate::engine::context::Context;
use crate::engine::glob;
use crate::engine::session::{SessionFlags, SessionId};
use crate::engine::time::Now;
use crate::resp::reply::{Sink, WireReply};

/// Databases with no more keys than this are gone through in one step.
pub const WALKED_FROM: usize = 1024;
/// Keys that are visited in one turn of [`Engine::advance`].
const SLICE: u32 = 512;
/// Room for the length of the reply, which is known at the end, in front of what it consists of.
const HEADROOM: usize = 32;

/// One walk.
struct Walk {
    session: SessionId,
    command: &'static Command,
    db: u32,
    /// What keys have to match; all of them do where there is none.
    pattern: Option<Box<[u8]>>,
    cursor: u64,
    /// How many match so far, and the reply that they make.
    found: usize,
    reply: Vec<u8>,
    /// How long it has taken, in nanoseconds.
    ns: u64,
}

/// The walks that go on.
#[derive(Default)]
pub struct Walks(VecDeque<Walk>);

impl Walks {
    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes that what a session has walked over so far takes up.
    pub fn bytes(&self, id: SessionId) -> usize {
        self.0.iter().find(|walk| walk.session == id).map_or(0, |walk| walk.reply.len())
    }
}

impl Context<'_> {
    /// Has the session wait for all keys that match; false where they are to be had in one step.
    pub fn walk(&mut self, pattern: Option<&[u8]>) -> bool {
        if self.db().len() <= WALKED_FROM || !self.engine.time_passes() || !self.may_block() {
            return false;
        }
        let (session, command, db) = (self.session, self.command, self.db);
        let pattern = pattern.map(Box::from);
        let walk = Walk { session, command, db, pattern, cursor: 0, found: 0, reply: vec![0; HEADROOM], ns: 0 };
        self.engine.walks.0.push_back(walk);
        self.session().flags |= SessionFlags::BLOCKED;
        true
    }
}

impl Engine {
    /// Whether a client waits for a walk. Then [`Engine::advance`] has something to do, even if no time passes.
    #[inline]
    pub fn walking(&self) -> bool {
        !self.walks.is_empty()
    }

    /// Goes on with one of the walks.
    #[cold]
    pub(super) fn walk_on(&mut self, now: Now, budget: &mut u32) {
        let Some(mut walk) = self.walks.0.pop_front() else { return };
        let began_ns = self.look(now);
        let count = SLICE.min((*budget).max(1));
        *budget -= count.min(*budget);
        let protocol = self.sessions[walk.session.0 as usize].protocol;
        let mut reply = WireReply::new(&mut walk.reply, protocol);
        walk.cursor = self.keyspace.db(walk.db, now).scan(walk.cursor, count as usize, |entry| {
            if walk.pattern.as_ref().is_none_or(|pattern| glob::matches(pattern, entry.key(), false)) {
                walk.found += 1;
                reply.bulk(entry.key());
            }
        });
        walk.ns += self.look(now).saturating_sub(began_ns);
        if walk.cursor != 0 {
            self.walks.0.push_back(walk);
        } else {
            self.end_walk(now, walk);
        }
    }

    fn end_walk(&mut self, now: Now, walk: Walk) {
        let Walk { session: id, command, found, mut reply, ns, .. } = walk;
        let counted = self.command_stats.of(command);
        counted.calls += 1;
        counted.ns += ns;
        let session = &mut self.sessions[id.0 as usize];
        session.flags.remove(SessionFlags::BLOCKED);
        if session.silenced() {
            self.discard(reply);
        } else {
            let mut head = Vec::with_capacity(HEADROOM);
            WireReply::new(&mut head, session.protocol).array(found);
            let start = HEADROOM - head.len();
            reply[start..HEADROOM].copy_from_slice(&head);
            if session.out.is_empty() {
                // What lies before it counts as written: to move all of it would hold others up.
                (session.out, session.sent) = (reply, start);
            } else {
                session.out.extend_from_slice(&reply[start..]);
                self.discard(reply);
            }
        }
        self.wake_up(now, id);
    }

    /// Ends a session's walk, if it has one.
    pub(super) fn forget_walk(&mut self, id: SessionId) {
        if let Some(at) = self.walks.0.iter().position(|walk| walk.session == id)
            && let Some(walk) = self.walks.0.remove(at)
        {
            self.discard(walk.reply);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::engine::harness::Harness;

    /// Sends a request at a time that passes; the reply comes later.
    fn ask(h: &mut Harness, words: &str) {
        h.engine.begin_batch(h.now, 0, Some(|| 0));
        assert_eq!(h.run(words), "");
    }

    /// What the session's outbox has yet to send.
    fn replied(h: &mut Harness) -> String {
        let session = &mut h.engine.sessions[h.session.0 as usize];
        let out = std::mem::take(&mut session.out);
        String::from_utf8(out[std::mem::take(&mut session.sent)..].to_vec()).unwrap_or_default()
    }

    fn blocked(h: &Harness) -> bool {
        h.engine.sessions[h.session.0 as usize].flags.contains(SessionFlags::BLOCKED)
    }

    #[test]
    fn keys_of_a_large_database_are_walked_over_a_few_a_turn() {
        let mut h = Harness::new();
        (0..5000).for_each(|n| assert_eq!(h.args(&[b"SET", format!("k{n}").as_bytes(), b"v"]), b"+OK\r\n"));
        ask(&mut h, "KEYS k*");
        assert!(blocked(&h) && h.engine.next_deadline() == Some(0));
        let mut turns = 0;
        while blocked(&h) {
            assert_eq!(replied(&mut h), "");
            h.engine.advance(h.now);
            h.engine.check_invariants();
            turns += 1;
            if turns == 3 {
                // Others go on meanwhile; what they add or take away may be among the keys, or not.
                let other = h.engine.connect(h.now, Default::default());
                h.engine.execute(h.now, other, &[b"DEL", b"k1", b"k2"]);
                h.engine.execute(h.now, other, &[b"SET", b"new", b"v"]);
            }
        }
        assert!((10..=12).contains(&turns), "{turns} turns for 5000 keys");
        let reply = replied(&mut h);
        let mut lines = reply.split("\r\n");
        let count: usize = lines.next().and_then(|head| head.strip_prefix('*')).and_then(|n| n.parse().ok()).unwrap_or(0);
        let keys: Vec<&str> = lines.filter(|line| line.starts_with('k')).collect();
        assert_eq!(keys.len(), count);
        assert!((4998..=5000).contains(&count), "{count}");
        let distinct: BTreeSet<&str> = keys.iter().copied().collect();
        assert_eq!(distinct.len(), count, "a key twice");
        assert!((3..5000).all(|n| distinct.contains(format!("k{n}").as_str())), "one is missing");
        assert_eq!(h.engine.command_stats.of(crate::commands::lookup(b"keys").unwrap_or_else(|| unreachable!())).calls, 1);
    }

    #[test]
    fn it_is_one_step_in_a_transaction_and_without_a_clock() {
        let mut h = Harness::new();
        (0..2000).for_each(|n| drop(h.args(&[b"SET", format!("k{n}").as_bytes(), b"v"])));
        assert!(h.run("KEYS k1").starts_with("*1 $2 k1"), "time stands still");
        h.engine.begin_batch(h.now, 0, Some(|| 0));
        h.script(&[("MULTI", "+OK"), ("KEYS k1", "+QUEUED"), ("EXEC", "*1 *1 $2 k1")]);
        h.engine.begin_batch(h.now, 0, Some(|| 0));
        assert!(h.run("EVAL return(#redis.call('keys','*')) 0").starts_with(":2000"));
    }

    #[test]
    fn who_leaves_or_wants_no_reply_ends_it() {
        let mut h = Harness::new();
        (0..3000).for_each(|n| drop(h.args(&[b"SET", format!("k{n}").as_bytes(), b"v"])));
        ask(&mut h, "KEYS *");
        h.engine.advance(h.now);
        h.engine.disconnect(h.now, h.session);
        assert!(!h.engine.walking());
        h.session = h.engine.connect(h.now, Default::default());
        h.run("CLIENT REPLY OFF");
        ask(&mut h, "KEYS *");
        h.pass(0);
        assert!(!blocked(&h) && replied(&mut h).is_empty());
    }

    #[test]
    fn a_database_that_is_emptied_meanwhile_ends_it() {
        let mut h = Harness::new();
        (0..3000).for_each(|n| drop(h.args(&[b"SET", format!("k{n}").as_bytes(), b"v"])));
        ask(&mut h, "KEYS nosuch*");
        h.engine.advance(h.now);
        let other = h.engine.connect(h.now, Default::default());
        h.engine.execute(h.now, other, &[b"FLUSHALL"]);
        h.pass(0);
        assert_eq!(replied(&mut h), "*0\r\n");
    }
}
