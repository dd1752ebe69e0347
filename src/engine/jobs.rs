//! What would take long in one step, done a little at a time between the requests of others: `KEYS` in a large database, a list of
//! thousands of clients or channels, the end of very many subscriptions.
//!
//! The client waits until it is done, and gets the reply that it would have got. What a list has is each of those that are there during
//! the whole of the walk once, and those that come or go meanwhile or not. In a transaction or a script, and where there is no clock that
//! runs (simulations), it is one step, as on Redis.

use std::collections::VecDeque;

use crate::base::glob;
use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::Engine;
use crate::engine::command::Command;
use crate::engine::context::Context;
use crate::engine::session::SessionFlags;
use crate::resp::reply::{Protocol, Sink, WireReply};

/// What consists of no more than this is gone through in one step.
pub const WALKED_FROM: usize = 1024;
/// Room for the head of the reply, which is known at the end, in front of what it consists of.
const HEADROOM: usize = 32;

/// What a walk goes over, and what it does with each.
pub(crate) trait Course: Send {
    /// How many are visited in one turn of [`Engine::advance`].
    fn slice(&self) -> u32 {
        512
    }

    /// Visits `count` more for the session, at least one; gives whether those were the last. What the reply is to consist of goes to the
    /// end of `reply`.
    fn go_on(&mut self, engine: &mut Engine, now: Now, id: SessionId, count: u32, reply: &mut Vec<u8>) -> bool;

    /// What the reply is to be when all were visited.
    fn kind(&self) -> ReplyKind;

    /// Lets go of what it holds of the engine's, at its end or before.
    fn leave(&mut self, _: &mut Engine) {}
}

/// What the reply to a walk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyKind {
    /// An array of so many.
    Array(usize),
    /// A text.
    Text,
    /// There is none beyond what was told meanwhile.
    Told,
}

/// One walk.
struct Walk {
    session: SessionId,
    command: &'static Command,
    course: Box<dyn Course>,
    /// What the reply consists of so far.
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

    /// Whether a session waits for one.
    pub fn has(&self, id: SessionId) -> bool {
        self.0.iter().any(|walk| walk.session == id)
    }

    /// Bytes that what a session has walked over so far takes up.
    pub fn bytes(&self, id: SessionId) -> usize {
        self.0.iter().find(|walk| walk.session == id).map_or(0, |walk| walk.reply.len())
    }
}

impl Context<'_> {
    /// Whether to walk over so many, where others would have to wait long otherwise.
    pub(crate) fn may_walk(&mut self, len: usize) -> bool {
        len > WALKED_FROM && self.engine.time_passes() && self.may_block()
    }

    /// Has the session wait until all of a course is done. The handler must not have replied, and [`Context::may_walk`].
    pub(crate) fn walk(&mut self, course: impl Course + 'static) {
        let (session, command) = (self.session, self.command);
        let walk = Walk { session, command, course: Box::new(course), reply: vec![0; HEADROOM], ns: 0 };
        self.engine.walks.0.push_back(walk);
        self.session().flags |= SessionFlags::BLOCKED;
    }
}

/// The keys of a database.
pub(crate) struct Keys {
    db: u32,
    /// What they have to match; all of them do where there is none.
    pattern: Option<Box<[u8]>>,
    cursor: u64,
    found: usize,
}

impl Keys {
    /// Those of the database with this number that match.
    pub(crate) fn new(db: u32, pattern: Option<&[u8]>) -> Keys {
        Keys { db, pattern: pattern.map(Box::from), cursor: 0, found: 0 }
    }
}

impl Course for Keys {
    fn go_on(&mut self, engine: &mut Engine, now: Now, _: SessionId, count: u32, reply: &mut Vec<u8>) -> bool {
        // A string is the same in both.
        let mut reply = WireReply::new(reply, Protocol::Resp2);
        self.cursor = engine.keyspace.db(self.db, now).scan(self.cursor, count as usize, |entry| {
            if self.pattern.as_ref().is_none_or(|pattern| glob::matches(pattern, entry.key(), false)) {
                self.found += 1;
                reply.bulk(entry.key());
            }
        });
        self.cursor == 0
    }

    fn kind(&self) -> ReplyKind {
        ReplyKind::Array(self.found)
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
        let count = walk.course.slice().min((*budget).max(1));
        *budget -= count.min(*budget);
        let all = walk.course.go_on(self, now, walk.session, count, &mut walk.reply);
        walk.ns += self.look(now).saturating_sub(began_ns);
        if all {
            self.end_walk(now, walk);
        } else {
            self.walks.0.push_back(walk);
        }
    }

    fn end_walk(&mut self, now: Now, walk: Walk) {
        let Walk { session: id, command, mut course, mut reply, ns } = walk;
        course.leave(self);
        let counted = self.command_stats.of(command);
        counted.calls += 1;
        counted.ns += ns;
        let session = &mut self.sessions[id.0 as usize];
        session.flags.remove(SessionFlags::BLOCKED);
        let kind = course.kind();
        if session.silenced() || kind == ReplyKind::Told {
            self.discard(reply);
        } else {
            let mut head = Vec::with_capacity(HEADROOM);
            let mut writer = WireReply::new(&mut head, session.protocol);
            match kind {
                ReplyKind::Array(found) => writer.array(found),
                _ => {
                    writer.verbatim_head(*b"txt", reply.len() - HEADROOM);
                    reply.extend_from_slice(b"\r\n");
                }
            }
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
            && let Some(mut walk) = self.walks.0.remove(at)
        {
            walk.course.leave(self);
            self.discard(walk.reply);
        }
    }
}

#[cfg(test)]
mod tests;
