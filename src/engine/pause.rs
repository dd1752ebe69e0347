//! `CLIENT PAUSE`: holds back write commands or all commands for a while, and stops expiry.
//!
//! A held request keeps its session blocked. When the pause is over, held requests run in the order of their arrival, a few at a
//! time. Keys that reach their deadlines meanwhile are invisible, but are removed only afterwards, so that the data do not
//! change.

use std::collections::BTreeMap;

use crate::base::arguments::Arguments;
use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::command::{Command, Flags};
use crate::engine::request::Request;
use crate::engine::session::SessionFlags;
use crate::engine::{ADVANCE_BUDGET, Engine};

/// Which commands a pause holds back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// Write commands.
    Write,
    /// All commands.
    All,
}

/// The pause, if any, and the held requests.
#[derive(Debug, Default)]
pub struct Pause {
    mode: Option<Mode>,
    /// End of the pause, in monotonic milliseconds.
    until_ms: u64,
    /// Held requests in the order of their arrival, numbered from 1. A session knows the number of its own request.
    held: BTreeMap<u64, (SessionId, Arguments)>,
    last: u64,
}

impl Pause {
    /// Whether a pause is active.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.mode.is_some()
    }

    /// Number of held requests.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// The next time at which the pause needs work, in monotonic milliseconds; `u64::MAX` if never.
    #[inline]
    pub fn next_ms(&self) -> u64 {
        match (self.mode, self.held.is_empty()) {
            (Some(_), _) => self.until_ms,
            (None, true) => u64::MAX,
            (None, false) => 0,
        }
    }

    /// Whether the pause holds back a command with these flags.
    pub fn holds(&self, flags: Flags) -> bool {
        match self.mode {
            None => false,
            Some(Mode::All) => true,
            Some(Mode::Write) => flags.intersects(Flags::WRITE.union(Flags::MAY_REPLICATE)),
        }
    }

    /// Forgets a held request; does nothing for 0.
    pub(super) fn forget(&mut self, number: u64) {
        self.held.remove(&number);
    }

    /// Bytes of a held request; 0 for none.
    pub fn bytes(&self, number: u64) -> usize {
        self.held.get(&number).map_or(0, |(_, args)| args.bytes())
    }

    /// Panics unless the held request belongs to this session.
    pub fn check_held(&self, number: u64, id: SessionId) {
        assert!(self.held.get(&number).is_some_and(|held| held.0 == id), "a session knows what of it is held back");
    }
}

impl Engine {
    /// Begins a pause. An active pause becomes neither shorter nor weaker.
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

    /// Ends the pause if its time is over.
    pub(super) fn end_pause(&mut self, now: Now) {
        if self.pause.is_on() && now.reached(self.pause.until_ms) {
            self.unpause();
        }
    }

    /// Lets a queued write command expire keys, although a pause has begun in the same transaction.
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

    /// Executes the held requests of a pause that is over; if there are many, some of them.
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
            self.perform_again(now, id, Request::new(&args.borrow()));
            self.serve_ready(now);
            self.attend_locks(now);
            self.wake_up(now, id);
        }
    }
}
