//! `CLIENT PAUSE`: holds back write commands or all commands for a while, and stops expiry.
//!
//! A held request keeps its session blocked. When the pause is over, held requests run in the order of their arrival, a few at a
//! time. Keys that reach their deadlines meanwhile are invisible, but are removed only afterwards, so that the data do not
//! change.
//!
//! This file has the state of a pause; `hold.rs` begins and ends one, holds requests back and resumes them.

mod hold;

use std::collections::BTreeMap;

use crate::base::arguments::Arguments;
use crate::base::ids::SessionId;
use crate::engine::command::flags::Flags;

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
    /// Moves its end, as the clock was set to another time.
    pub(in crate::engine) fn move_end(&mut self, by_ms: i64) {
        self.until_ms = self.until_ms.saturating_add_signed(by_ms);
    }

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
        assert!(self.held.get(&number).is_some_and(|held| held.0 == id), "a session's held request is its own");
    }
}
