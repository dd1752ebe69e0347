//! `CLIENT PAUSE`: for a while, commands that write, or all of them, are held back, and nothing ends.
//!
//! What is held back keeps its session blocked. When the pause is over, held requests are executed in the order in which they came, a few at a
//! time. Keys whose deadline comes meanwhile are not seen, but removed only afterwards, so that the data stand still.

use std::collections::BTreeMap;

use crate::base::arguments::Arguments;
use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::command::{Command, Flags};
use crate::engine::session::SessionFlags;
use crate::engine::{ADVANCE_BUDGET, Engine};

/// What a pause holds back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// Commands that write.
    Write,
    /// All commands.
    All,
}

/// The pause, if there is one, and what was held back by it.
#[derive(Debug, Default)]
pub struct Pause {
    mode: Option<Mode>,
    /// When it is over, monotonic milliseconds.
    until_ms: u64,
    /// Requests by the order in which they came, numbered from 1. A session knows the number of its own.
    held: BTreeMap<u64, (SessionId, Arguments)>,
    last: u64,
}

impl Pause {
    /// Whether there is one.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.mode.is_some()
    }

    /// Number of requests that are held back.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// When something is to be done about it, in monotonic milliseconds; the end of time where nothing is.
    #[inline]
    pub fn next_ms(&self) -> u64 {
        match (self.mode, self.held.is_empty()) {
            (Some(_), _) => self.until_ms,
            (None, true) => u64::MAX,
            (None, false) => 0,
        }
    }

    /// Whether it holds a command back that does this.
    pub fn holds(&self, flags: Flags) -> bool {
        match self.mode {
            None => false,
            Some(Mode::All) => true,
            Some(Mode::Write) => flags.intersects(Flags::WRITE.union(Flags::MAY_REPLICATE)),
        }
    }

    /// Forgets a request that is held back; nothing for 0.
    pub(super) fn forget(&mut self, number: u64) {
        self.held.remove(&number);
    }

    /// Bytes of a request that is held back; 0 for none.
    pub fn bytes(&self, number: u64) -> usize {
        self.held.get(&number).map_or(0, |(_, args)| args.bytes())
    }

    /// Panics unless a request is this session's.
    pub fn check_held(&self, number: u64, id: SessionId) {
        assert!(self.held.get(&number).is_some_and(|held| held.0 == id), "a session knows what of it is held back");
    }
}

impl Engine {
    /// Begins a pause. One that is on already becomes no shorter by it and holds back no less.
    pub fn pause(&mut self, mode: Mode, until_ms: u64) {
        self.pause.until_ms = if self.pause.is_on() { self.pause.until_ms.max(until_ms) } else { until_ms };
        self.pause.mode = self.pause.mode.max(Some(mode));
        self.update_circumstances();
        self.keyspace.keep_ended = true;
    }

    /// Ends the pause.
    pub fn unpause(&mut self) {
        self.pause.mode = None;
        self.update_circumstances();
        self.keyspace.keep_ended = false;
        self.keyspace.changes.attention = true;
    }

    /// Ends the pause where its time is over.
    pub(super) fn end_pause(&mut self, now: Now) {
        if self.pause.is_on() && now.reached(self.pause.until_ms) {
            self.unpause();
        }
    }

    /// Lets a queued command that writes after a pause has begun in the same transaction end keys all the same.
    pub(super) fn hold_expiry(&mut self, command: &Command) {
        let writes = command.flags.intersects(Flags::WRITE.union(Flags::MAY_REPLICATE));
        self.keyspace.keep_ended = self.pause.is_on() && !writes;
    }

    /// Holds a request back.
    pub(super) fn hold(&mut self, id: SessionId, args: &[&[u8]]) {
        self.pause.last += 1;
        let number = self.pause.last;
        self.pause.held.insert(number, (id, Arguments::new(args)));
        let session = &mut self.sessions[id.0 as usize];
        session.held = number;
        session.flags |= SessionFlags::BLOCKED;
    }

    /// Executes what was held back by a pause that is over; if that is much, some of it.
    pub(super) fn resume_held(&mut self, now: Now) {
        for _ in 0..ADVANCE_BUDGET {
            if self.pause.is_on() {
                return;
            }
            let Some((_, (id, args))) = self.pause.held.pop_first() else { return };
            let session = &mut self.sessions[id.0 as usize];
            session.held = 0;
            session.resume();
            if session.flags.contains(SessionFlags::CLOSE_NOW) {
                continue;
            }
            self.perform_again(now, id, None, &args.borrow());
            self.serve_ready(now);
            self.attend_locks(now);
            self.wake_up(now, id);
        }
    }
}
