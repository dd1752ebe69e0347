//! Long work, done in slices between the requests of other sessions: `KEYS` in a large database, a list of thousands of clients
//! or channels, the end of very many subscriptions.
//!
//! The client waits until the work is done, and gets the usual reply. A list contains each element that exists during the whole
//! walk exactly once; elements that come or go meanwhile may or may not be in it. In a transaction or a script, and without a
//! running clock (simulations), the work is one step, as in Redis.

use std::collections::VecDeque;

use crate::base::glob;
use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::Engine;
use crate::engine::command::Command;
use crate::engine::context::Context;
use crate::engine::session::SessionFlags;
use crate::resp::reply::{Protocol, Sink, WireReply};

/// Work on up to this many elements is done in one step.
pub const WALKED_FROM: usize = 1024;
/// Room in front of the reply's elements for its head, which is known only at the end.
const HEADROOM: usize = 32;

/// The work of a walk: what it visits, and what it does with each element.
pub(crate) trait Course: Send {
    /// Number of elements visited in one turn of [`Engine::advance`].
    fn slice(&self) -> u32 {
        512
    }

    /// Visits `count` more elements for the session, at least one. Returns whether those were the last. Appends the elements of
    /// the reply to `reply`.
    fn go_on(&mut self, engine: &mut Engine, now: Now, id: SessionId, count: u32, reply: &mut Vec<u8>) -> bool;

    /// The type of the reply, when all elements were visited.
    fn kind(&self) -> ReplyKind;

    /// Releases the engine's resources that the walk holds, at its end or before.
    fn leave(&mut self, _: &mut Engine) {}
}

/// The type of a walk's reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyKind {
    /// An array with this many elements.
    Array(usize),
    /// A text.
    Text,
    /// None, besides what was sent meanwhile.
    Told,
}

/// One walk.
struct Walk {
    session: SessionId,
    command: &'static Command,
    course: Box<dyn Course>,
    /// The elements of the reply so far.
    reply: Vec<u8>,
    /// Time spent so far, in nanoseconds.
    ns: u64,
}

/// The walks in progress.
#[derive(Default)]
pub struct Walks(VecDeque<Walk>);

impl Walks {
    /// Whether there are no walks.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a session waits for a walk.
    pub fn has(&self, id: SessionId) -> bool {
        self.0.iter().any(|walk| walk.session == id)
    }

    /// Bytes of the reply that a session's walk has gathered so far.
    pub fn bytes(&self, id: SessionId) -> usize {
        self.0.iter().find(|walk| walk.session == id).map_or(0, |walk| walk.reply.len())
    }
}

impl Context<'_> {
    /// Whether to walk in slices over this many elements, because one step would delay others for too long.
    pub(crate) fn may_walk(&mut self, len: usize) -> bool {
        len > WALKED_FROM && self.engine.time_passes() && self.may_block()
    }

    /// Blocks the session until a course is done. The handler must not have replied, and must have checked [`Context::may_walk`].
    pub(crate) fn walk(&mut self, course: impl Course + 'static) {
        let (session, command) = (self.session, self.command);
        let walk = Walk { session, command, course: Box::new(course), reply: vec![0; HEADROOM], ns: 0 };
        self.engine.walks.0.push_back(walk);
        self.session().flags |= SessionFlags::BLOCKED;
    }
}

/// A walk over the keys of a database.
pub(crate) struct Keys {
    db: u32,
    /// The pattern that keys must match; `None` matches all.
    pattern: Option<Box<[u8]>>,
    cursor: u64,
    found: usize,
}

impl Keys {
    /// The keys of this database that match.
    pub(crate) fn new(db: u32, pattern: Option<&[u8]>) -> Keys {
        Keys { db, pattern: pattern.map(Box::from), cursor: 0, found: 0 }
    }
}

impl Course for Keys {
    fn go_on(&mut self, engine: &mut Engine, now: Now, _: SessionId, count: u32, reply: &mut Vec<u8>) -> bool {
        // Bulk strings are the same in both protocols.
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
    /// Whether a client waits for a walk. If so, [`Engine::advance`] has work even if no time passes.
    #[inline]
    pub fn walking(&self) -> bool {
        !self.walks.is_empty()
    }

    /// Continues one of the walks.
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
                // The room before the reply counts as written: moving the whole reply would delay others.
                (session.out, session.sent) = (reply, start);
            } else {
                session.out.extend_from_slice(&reply[start..]);
                self.discard(reply);
            }
        }
        self.wake_up(now, id);
    }

    /// Ends a session's walk, if any.
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
