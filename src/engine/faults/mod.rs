//! Faults ordered by tests: which requests they affect, and how.
//!
//! Rules are checked in the order in which they were added, and the first one that fires decides. Randomness comes from a seeded
//! sequence of its own: equal rules, seeds and requests give equal faults. The driver checks [`Faults::armed`], and nothing else
//! while no rule can fire.

pub mod gates;
pub mod journal;
pub mod leaks;
pub mod restart;
pub mod rules;
pub mod test_mode;

use std::collections::BTreeMap;

use crate::base::arguments::Arguments;
use crate::base::error::Error;
use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::command::{Command, Flags};
use crate::engine::faults::rules::{Fault, Rule, When};
use crate::engine::request::Request;
use crate::engine::session::SessionFlags;
use crate::engine::{ADVANCE_BUDGET, Action, Engine};
use crate::resp::reply::WireReply;

/// Maximum number of rules.
pub const RULES_MAX: usize = 1000;

/// The rules, their random sequence, and delayed requests.
#[derive(Debug, Default)]
pub struct Faults {
    rules: Vec<Rule>,
    armed: bool,
    random: u64,
    /// Delayed requests, by the time of their execution (monotonic milliseconds) and a number.
    delayed: BTreeMap<(u64, u64), (SessionId, Arguments)>,
    last: u64,
    /// Number of last writes that a test wants kept.
    pub journal: u64,
}

impl Faults {
    /// Without rules, with the random sequence of a seed.
    pub fn new(seed: u64) -> Self {
        Faults { random: seed, ..Faults::default() }
    }

    /// Whether any rule can fire.
    #[inline]
    pub fn armed(&self) -> bool {
        self.armed
    }

    /// The rules, in order.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Adds a rule. A rule with the same name is replaced in its place. Returns false if there are too many rules.
    pub fn add(&mut self, rule: Rule) -> bool {
        match self.rules.iter().position(|known| known.name == rule.name) {
            Some(index) => self.rules[index] = rule,
            None if self.rules.len() >= RULES_MAX => return false,
            None => self.rules.push(rule),
        }
        self.update();
        true
    }

    /// Removes a rule. Returns false if no rule has that name.
    pub fn remove(&mut self, name: &[u8]) -> bool {
        let before = self.rules.len();
        self.rules.retain(|rule| rule.name != name);
        self.update();
        self.rules.len() < before
    }

    /// Removes all rules. Returns their number. Delayed requests stay delayed.
    pub fn clear(&mut self) -> usize {
        self.armed = false;
        std::mem::take(&mut self.rules).len()
    }

    /// The maximum number of writes that a rule may lose.
    pub fn loses(&self) -> u64 {
        let lost = self.rules.iter().map(|rule| if let Fault::Restart { lose, .. } = rule.fault { lose.unwrap_or(0) } else { 0 });
        lost.max().unwrap_or(0)
    }

    /// Restarts the random sequence.
    pub fn seed(&mut self, seed: u64) {
        self.random = seed;
    }

    fn update(&mut self) {
        self.armed = self.rules.iter().any(|rule| !rule.spent());
    }

    /// A random number from 0 (included) to 1 (excluded), by splitmix64.
    fn chance(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// The fault for a request, if any: for a command by its full name, from a client with this name and address.
    pub fn decide(&mut self, command: &[u8], client: &[u8], addr: &[u8]) -> Option<Fault> {
        for index in 0..self.rules.len() {
            let rule = &mut self.rules[index];
            if rule.spent() || !rule.is_for(command, client, addr) {
                continue;
            }
            rule.matched += 1;
            if rule.matched <= rule.after {
                continue;
            }
            let probability = rule.probability;
            if probability < 1.0 && self.chance() >= probability {
                continue;
            }
            let rule = &mut self.rules[index];
            rule.fired += 1;
            let fault = rule.fault.clone();
            self.update();
            return Some(fault);
        }
        None
    }

    /// The time of the first delayed request, in monotonic milliseconds; `u64::MAX` without one.
    #[inline]
    pub fn next_ms(&self) -> u64 {
        self.delayed.first_key_value().map_or(u64::MAX, |(&(due_ms, _), _)| due_ms)
    }

    /// Whether a request of the session is delayed.
    pub fn delays(&self, id: SessionId) -> bool {
        self.delayed.values().any(|(session, _)| *session == id)
    }

    /// Drops all delayed requests.
    pub(super) fn forget_all(&mut self) {
        self.delayed.clear();
    }

    /// Drops a session's delayed requests.
    pub(super) fn forget(&mut self, id: SessionId) {
        if !self.delayed.is_empty() {
            self.delayed.retain(|_, (session, _)| *session != id);
        }
    }
}

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
        let session = &self.sessions[id.0 as usize];
        let client = session.name.as_deref().unwrap_or_default();
        let fault = self.faults.decide(&command, client, session.addr.as_bytes());
        let session = &mut self.sessions[id.0 as usize];
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
                self.hold_reply(now, id, given, pace);
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
                self.act(Action::Restart { last: id, lose });
            }
            Some(Fault::CloseAfter { reset }) => {
                // A blocked request completes first, too.
                session.flags |= SessionFlags::REPLY_SKIP_NEXT | SessionFlags::CLOSE_WHEN_DONE;
                session.flags.set(SessionFlags::RESET_SOCKET, reset);
                self.execute_request(now, id, request);
                let session = &mut self.sessions[id.0 as usize];
                if !session.flags.contains(SessionFlags::BLOCKED) {
                    session.flags |= SessionFlags::CLOSE_AFTER_REPLY;
                }
            }
        }
    }

    /// Skips a request: if its reply was to be discarded, that counts as done.
    fn pass_over(&mut self, id: SessionId) {
        self.sessions[id.0 as usize].begin_reply();
    }

    fn fail(&mut self, id: SessionId, name: &[u8], text: String) {
        self.pass_over(id);
        let error = Error::new(text);
        // A request that could not be queued makes EXEC fail, and an EXEC that fails ends its transaction without running it.
        let is_exec = self.commands.lookup(name).is_some_and(Command::is_exec);
        let said = self.refused(id, is_exec, error.clone());
        let error = if is_exec { error } else { said };
        let session = &mut self.sessions[id.0 as usize];
        let (mut out, protocol) = (std::mem::take(&mut session.out), session.protocol);
        let start = out.len();
        self.refuse(&error, &mut WireReply::new(&mut out, protocol));
        let session = &mut self.sessions[id.0 as usize];
        if session.silenced() {
            out.truncate(start);
        }
        session.out = out;
    }

    fn delay(&mut self, now: Now, id: SessionId, ms: u64, args: &[&[u8]]) {
        self.pass_over(id);
        self.faults.last += 1;
        let due = (now.deadline_in(ms), self.faults.last);
        self.faults.delayed.insert(due, (id, Arguments::new(args)));
        self.sessions[id.0 as usize].flags |= SessionFlags::BLOCKED;
    }

    /// Executes the delayed requests that are due; if there are many, some of them.
    pub(super) fn end_delays(&mut self, now: Now) {
        for _ in 0..ADVANCE_BUDGET {
            if !now.reached(self.faults.next_ms()) {
                return;
            }
            self.end_delay(now);
        }
    }

    /// Executes all delayed requests now, whenever they are due.
    pub(super) fn end_all_delays(&mut self, now: Now) {
        while !self.faults.delayed.is_empty() {
            self.end_delay(now);
        }
        self.mark_journal(false);
    }

    /// Executes the first delayed request.
    fn end_delay(&mut self, now: Now) {
        let Some((_, (id, args))) = self.faults.delayed.pop_first() else { return };
        let session = &mut self.sessions[id.0 as usize];
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
