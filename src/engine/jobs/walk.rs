//! Begins walks, continues them in slices, and replies at their end.

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::Engine;
use crate::engine::context::Context;
use crate::engine::jobs::{Course, ReplyKind, Walk};
use crate::engine::session::SessionFlags;
use crate::resp::reply::{Sink, WireReply};

/// Work on up to this many elements is done in one step.
const WALKED_FROM: usize = 1024;
/// Room in front of the reply's elements for its head, which is known only at the end.
const HEADROOM: usize = 32;

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

impl Engine {
    /// Whether a client waits for a walk. If so, [`Engine::advance`] has work even if no time passes.
    #[inline]
    pub fn walking(&self) -> bool {
        !self.walks.is_empty()
    }

    /// Continues one of the walks.
    #[cold]
    pub(in crate::engine) fn walk_on(&mut self, now: Now, budget: &mut u32) {
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
    pub(in crate::engine) fn forget_walk(&mut self, id: SessionId) {
        if let Some(at) = self.walks.0.iter().position(|walk| walk.session == id)
            && let Some(mut walk) = self.walks.0.remove(at)
        {
            walk.course.leave(self);
            self.discard(walk.reply);
        }
    }
}
