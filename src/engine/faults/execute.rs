//! Executes requests with the faults that they meet, and delayed requests when they are due.

use crate::base::arguments::Arguments;
use crate::base::error::Error;
use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::command::{Command, Flags};
use crate::engine::faults::rules::{Fault, When};
use crate::engine::request::Request;
use crate::engine::session::SessionFlags;
use crate::engine::{ADVANCE_BUDGET, Action, Engine};
use crate::resp::reply::WireReply;

impl Engine {
    /// Executes one request as [`Engine::execute_request`] does, with the fault that it may meet.
    #[cold]
    pub fn execute_with_faults(&mut self, now: Now, id: SessionId, request: Request<'_>) {
        let args = request.args;
        let Some(name) = args.first() else { return };
        let resolved = self.commands.resolve(args).ok();
        if resolved.is_some_and(|command| command.flags.contains(Flags::TEST_MODE)) {
            return self.execute_request(now, id, request);
        }
        let command = resolved.map_or_else(|| name.to_vec(), |command| self.commands.full_name(command).as_bytes().to_vec());
        let session = &self.clients.sessions[id];
        let client = session.name.as_deref().unwrap_or_default();
        let fault = self.testing.faults.decide(&command, client, session.addr.as_bytes());
        let session = &mut self.clients.sessions[id];
        match fault {
            None => self.execute_request(now, id, request),
            Some(Fault::Error(text)) => self.fail(id, name, text),
            Some(Fault::Delay(ms)) => self.delay(now, id, ms, args),
            Some(Fault::Drop) => self.pass_over(id),
            Some(Fault::DropReply) => {
                session.flags |= SessionFlags::REPLY_SKIP_NEXT;
                self.execute_request(now, id, request);
            }
            Some(Fault::PaceReply(pace)) => {
                let given = self.given(id);
                self.execute_request(now, id, request);
                self.gate_reply(now, id, given, pace);
            }
            Some(Fault::Close { reset }) => {
                session.flags |= SessionFlags::CLOSE_AFTER_REPLY;
                session.flags.set(SessionFlags::RESET_SOCKET, reset);
            }
            Some(Fault::Restart { when, lose }) => {
                if when == When::Before {
                    self.pass_over(id);
                } else {
                    session.flags.set(SessionFlags::REPLY_SKIP_NEXT, when == When::After);
                    self.execute_request(now, id, request);
                }
                self.ask(Action::Restart { last: id, lose });
            }
            Some(Fault::CloseAfter { reset }) => {
                // A blocked request completes first, too.
                session.flags |= SessionFlags::REPLY_SKIP_NEXT | SessionFlags::CLOSE_WHEN_DONE;
                session.flags.set(SessionFlags::RESET_SOCKET, reset);
                self.execute_request(now, id, request);
                let session = &mut self.clients.sessions[id];
                if !session.flags.contains(SessionFlags::BLOCKED) {
                    session.flags |= SessionFlags::CLOSE_AFTER_REPLY;
                }
            }
        }
    }

    /// Skips a request: if its reply was to be discarded, that counts as done.
    fn pass_over(&mut self, id: SessionId) {
        self.clients.sessions[id].begin_reply();
    }

    fn fail(&mut self, id: SessionId, name: &[u8], text: String) {
        self.pass_over(id);
        let error = Error::new(text);
        // A request that could not be queued makes EXEC fail, and an EXEC that fails ends its transaction without running it.
        let is_exec = self.commands.lookup(name).is_some_and(Command::is_exec);
        let said = self.refused(id, is_exec, error.clone());
        let error = if is_exec { error } else { said };
        let session = &mut self.clients.sessions[id];
        let (mut out, protocol) = (std::mem::take(&mut session.out), session.protocol);
        let start = out.len();
        self.refuse(&error, &mut WireReply::new(&mut out, protocol));
        let session = &mut self.clients.sessions[id];
        if session.silenced() {
            out.truncate(start);
        }
        session.out = out;
    }

    fn delay(&mut self, now: Now, id: SessionId, ms: u64, args: &[&[u8]]) {
        self.pass_over(id);
        self.testing.faults.last += 1;
        let due = (now.deadline_in(ms), self.testing.faults.last);
        self.testing.faults.delayed.insert(due, (id, Arguments::new(args)));
        self.clients.sessions[id].flags |= SessionFlags::BLOCKED;
    }

    /// Executes the delayed requests that are due; if there are many, some of them.
    pub(in crate::engine) fn end_delays(&mut self, now: Now) {
        for _ in 0..ADVANCE_BUDGET {
            if !now.reached(self.testing.faults.next_ms()) {
                return;
            }
            self.end_delay(now);
        }
    }

    /// Executes all delayed requests now, whenever they are due.
    pub(in crate::engine) fn end_all_delays(&mut self, now: Now) {
        while !self.testing.faults.delayed.is_empty() {
            self.end_delay(now);
        }
        self.mark_journal(false);
    }

    /// Executes the first delayed request.
    fn end_delay(&mut self, now: Now) {
        let Some((_, (id, args))) = self.testing.faults.delayed.pop_first() else { return };
        let Some(session) = self.clients.sessions.get_mut(id) else { return };
        session.resume();
        if session.flags.contains(SessionFlags::CLOSE_NOW) {
            return;
        }
        self.settle_journal();
        self.mark_journal(false);
        self.perform_again(now, id, Request::new(&args.borrow()));
        self.mark_journal(true);
        self.serve_ready(now);
        self.wake_up(now, id);
    }
}
