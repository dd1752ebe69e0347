//! Replies that are held back after their requests were executed: late ones, and those that arrive a few bytes at a time.
//!
//! A gate stands at a position in a session's output; the bytes behind it are not written until it opens. The driver does the
//! writing: [`crate::engine::Engine::passable`] tells it how much may be written now. Sessions without gates are not affected.
//!
//! ```text
//!   written ┊ +OK␍␊ ┃ $5␍␊hel ┃ lo␍␊ …        ┃ a gate, and when it opens
//!           └─────── may go
//! ```
//!
//! This file has the gates; `hold.rs` sets them up for replies and opens them.

mod hold;

use std::collections::{BTreeMap, VecDeque};

use crate::base::ids::SessionId;
use crate::base::time::Now;

/// How a reply arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// This many milliseconds late.
    Late(u64),
    /// This many bytes at a time, with this many milliseconds in between.
    Trickle {
        /// Bytes; 0 counts as 1.
        bytes: u64,
        /// Milliseconds.
        every_ms: u64,
    },
}

/// A position that output does not pass before a certain time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gate {
    /// The position, in bytes of the session's whole output.
    at: u64,
    /// Time of opening, in monotonic milliseconds.
    due_ms: u64,
    /// Trickle: the gate moves on by this many bytes, opens again after this many milliseconds, and so on up to this position.
    steps: Option<(u64, u64, u64)>,
}

/// All gates.
#[derive(Debug)]
pub struct Gates {
    of: BTreeMap<SessionId, VecDeque<Gate>>,
    /// The paces of replies to blocked requests.
    awaited: BTreeMap<SessionId, Pace>,
    next_ms: u64,
}

impl Default for Gates {
    fn default() -> Self {
        Gates { of: BTreeMap::new(), awaited: BTreeMap::new(), next_ms: u64::MAX }
    }
}

impl Gates {
    /// The time at which the next gate opens, in monotonic milliseconds; `u64::MAX` without gates.
    #[inline]
    pub fn next_ms(&self) -> u64 {
        self.next_ms
    }

    /// The position up to which a session's output may be written, in bytes of its whole output.
    fn end(&self, id: SessionId) -> u64 {
        self.of.get(&id).and_then(VecDeque::front).map_or(u64::MAX, |gate| gate.at)
    }

    /// Holds back the output between two positions, at a pace.
    fn hold(&mut self, now: Now, id: SessionId, (from, to): (u64, u64), pace: Pace) {
        let gate = match pace {
            Pace::Late(ms) => Gate { at: from, due_ms: now.deadline_in(ms), steps: None },
            Pace::Trickle { bytes, every_ms } => {
                // With 0 bytes at a time, the reply would never arrive.
                let bytes = bytes.max(1);
                if to - from <= bytes {
                    return;
                }
                Gate { at: from + bytes, due_ms: now.deadline_in(every_ms), steps: Some((bytes, every_ms, to)) }
            }
        };
        self.of.entry(id).or_default().push_back(gate);
        self.update();
    }

    /// Opens the gates that are due. Returns the sessions with more output to write, each with whether it has no gate left.
    fn open(&mut self, now: Now) -> Vec<(SessionId, bool)> {
        let mut opened = Vec::new();
        self.of.retain(|&id, gates| {
            let before = gates.len();
            let mut moved = false;
            while let Some(gate) = gates.front_mut()
                && now.reached(gate.due_ms)
            {
                let Some((bytes, every_ms, to)) = gate.steps.filter(|&(bytes, _, to)| gate.at + bytes < to) else {
                    gates.pop_front();
                    continue;
                };
                moved = true;
                // Without a pause in between, everything at once.
                gate.at = if every_ms == 0 { to } else { gate.at + bytes };
                gate.due_ms = gate.due_ms.saturating_add(every_ms);
            }
            if moved || gates.len() < before {
                opened.push((id, gates.is_empty()));
            }
            !gates.is_empty()
        });
        self.update();
        opened
    }

    fn update(&mut self) {
        self.next_ms = self.of.values().filter_map(VecDeque::front).map(|gate| gate.due_ms).min().unwrap_or(u64::MAX);
    }

    /// Forgets a session.
    pub(crate) fn forget(&mut self, id: SessionId) {
        self.awaited.remove(&id);
        if self.of.remove(&id).is_some() {
            self.update();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: SessionId = SessionId::new(3, 1);

    fn at(ms: u64) -> Now {
        Now::new(ms * 1000, 1_700_000_000_000)
    }

    #[test]
    fn a_late_reply_holds_back_what_comes_behind_it() {
        let mut gates = Gates::default();
        gates.hold(at(0), ID, (10, 15), Pace::Late(100));
        gates.hold(at(10), ID, (20, 25), Pace::Late(50));
        assert_eq!((gates.end(ID), gates.next_ms()), (10, 100));
        assert_eq!(gates.open(at(99)), []);
        assert_eq!(gates.open(at(100)), [(ID, true)], "the second one was to be open before");
        assert_eq!((gates.end(ID), gates.next_ms()), (u64::MAX, u64::MAX));
    }

    #[test]
    fn a_trickle_opens_step_by_step() {
        let mut gates = Gates::default();
        let pace = Pace::Trickle { bytes: 4, every_ms: 10 };
        gates.hold(at(0), ID, (100, 104), pace);
        assert_eq!(gates.end(ID), u64::MAX, "it is all of it");
        gates.hold(at(0), ID, (100, 111), pace);
        assert_eq!((gates.end(ID), gates.next_ms()), (104, 10));
        assert_eq!(gates.open(at(10)), [(ID, false)]);
        assert_eq!((gates.end(ID), gates.next_ms()), (108, 20));
        assert_eq!(gates.open(at(20)), [(ID, true)]);
        // When much time passes at once, everything opens that would have opened meanwhile.
        gates.hold(at(20), ID, (200, 1000), pace);
        assert_eq!(gates.open(at(120)), [(ID, false)]);
        assert_eq!((gates.end(ID), gates.next_ms()), (244, 130));
        gates.forget(ID);
        assert_eq!((gates.end(ID), gates.next_ms()), (u64::MAX, u64::MAX));
        gates.hold(at(200), ID, (2000, 2002), Pace::Trickle { bytes: 0, every_ms: 10 });
        assert_eq!((gates.end(ID), gates.next_ms()), (2001, 210));
        assert_eq!(gates.open(at(210)), [(ID, true)], "none at a time is one");
        gates.hold(at(200), ID, (2000, 3000), Pace::Trickle { bytes: 1, every_ms: 0 });
        assert_eq!(gates.open(at(200)), [(ID, true)]);
    }
}
