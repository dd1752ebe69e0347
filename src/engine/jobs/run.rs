//! Begins jobs, continues them in slices, and replies at their end.

use crate::base::error::Error;
use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::Engine;
use crate::engine::context::Context;
use crate::engine::jobs::{Job, ReplyKind, Work};
use crate::engine::session::SessionFlags;
use crate::resp::reply::{Sink, WireReply};

/// Work on up to this many elements is done in one step.
const ONE_STEP_MAX: usize = 1024;
/// Room in front of the reply's elements for its head, which is known only at the end.
const HEADROOM: usize = 32;

impl Context<'_> {
    /// Whether to work in slices over this many elements, because one step would delay others for too long.
    pub(crate) fn may_start_job(&mut self, len: usize) -> bool {
        len > ONE_STEP_MAX && self.engine.time_passes() && self.may_block()
    }

    /// Blocks the session until the job is done. The handler must not have replied, and must have checked
    /// [`Context::may_start_job`].
    pub(crate) fn start_job(&mut self, work: impl Work + 'static) {
        let (session, command) = (self.session, self.command);
        let job = Job { session, command, work: Box::new(work), reply: vec![0; HEADROOM], ns: 0 };
        self.engine.work.jobs.0.push_back(job);
        self.session().flags |= SessionFlags::BLOCKED;
    }
}

impl Engine {
    /// Whether a client waits for a job. If so, [`Engine::advance`] has work even if no time passes.
    #[inline]
    pub fn has_jobs(&self) -> bool {
        !self.work.jobs.is_empty()
    }

    /// Whether a session waits for a job.
    pub fn has_job(&self, id: SessionId) -> bool {
        self.work.jobs.has(id)
    }

    /// Continues one of the jobs.
    #[cold]
    pub(in crate::engine) fn run_jobs(&mut self, now: Now, budget: &mut u32) {
        let Some(mut job) = self.work.jobs.0.pop_front() else { return };
        let began_ns = self.look(now);
        let count = job.work.slice().min((*budget).max(1));
        *budget -= count.min(*budget);
        let all = job.work.go_on(self, now, job.session, count, &mut job.reply);
        job.ns += self.look(now).saturating_sub(began_ns);
        if all {
            self.finish_job(now, job);
        } else {
            self.work.jobs.0.push_back(job);
        }
    }

    fn finish_job(&mut self, now: Now, job: Job) {
        let Job { session: id, command, mut work, mut reply, ns } = job;
        work.leave(self);
        let counted = self.diagnosis.command_stats.of(command);
        counted.calls += 1;
        counted.ns += ns;
        let Some(session) = self.clients.sessions.get_mut(id) else { return };
        session.flags.remove(SessionFlags::BLOCKED);
        let kind = work.kind();
        if session.silenced() || kind == ReplyKind::AlreadySent {
            self.discard(reply);
        } else {
            let mut head = Vec::with_capacity(HEADROOM);
            let mut writer = WireReply::new(&mut head, session.protocol);
            match kind {
                ReplyKind::Array(found) => writer.array(found),
                ReplyKind::Whole => {}
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

    /// Ends a session's job that only a leader may do, with an error. Returns false if the session waits for none.
    pub(in crate::engine) fn fail_job(&mut self, now: Now, id: SessionId, error: &Error) -> bool {
        let Some(command) = self.work.jobs.0.iter().find(|job| job.session == id).map(|job| job.command) else { return false };
        if !command.needs_leader() {
            return false;
        }
        self.forget_job(id);
        self.diagnosis.command_stats.of(command).failed += 1;
        self.diagnosis.stats.error(error);
        let session = &mut self.clients.sessions[id];
        session.flags.remove(SessionFlags::BLOCKED);
        if !session.silenced() {
            WireReply::new(&mut session.out, session.protocol).error(error.text());
        }
        self.wake_up(now, id);
        true
    }

    /// Ends a session's job, if any.
    pub(in crate::engine) fn forget_job(&mut self, id: SessionId) {
        if let Some(at) = self.work.jobs.0.iter().position(|job| job.session == id)
            && let Some(mut job) = self.work.jobs.0.remove(at)
        {
            job.work.leave(self);
            self.discard(job.reply);
        }
    }
}
