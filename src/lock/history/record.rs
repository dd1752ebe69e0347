//! The remembered events of one name: the last ones, and those that explain its present state, however long ago they were.

use std::collections::VecDeque;

use crate::lock::history::{Counts, Event, What};

/// Maximum number of present grants whose events are kept beyond the last events.
const KEPT_MAX: usize = 16;

/// The remembered events of a name.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) db: u32,
    pub(super) name: Vec<u8>,
    pub(super) hash: u32,
    /// The last events, the oldest first.
    pub(super) events: VecDeque<Event>,
    /// Events before those, the oldest first: the grants of present holders, and the last end of a grant if there is no later one.
    pub(super) kept: Vec<Event>,
    pub(super) counts: Counts,
    /// Neighbours in the order of last use.
    pub(super) older: u32,
    pub(super) newer: u32,
}

impl Record {
    /// Adds an event behind all others.
    #[inline]
    pub(super) fn push(&mut self, event: Event, events_max: usize) {
        if !self.kept.is_empty() {
            self.outdate(event.what, &event.owner);
        }
        self.events.push_back(event);
        self.trim(events_max);
    }

    /// Adds an event before the one at an index.
    pub(super) fn insert(&mut self, at: usize, event: Event, events_max: usize) {
        self.outdate(event.what, &event.owner);
        self.events.insert(at, event);
        self.trim(events_max);
    }

    fn trim(&mut self, events_max: usize) {
        while self.events.len() > events_max
            && let Some(event) = self.events.pop_front()
        {
            // Events that nobody needs again are the usual case: others follow them.
            let is_needed = match event.what {
                What::Granted { .. } => {
                    let next = self.events.front();
                    !next.is_some_and(|next| next.what.is_end() && next.owner == event.owner) && !self.is_over(&event)
                }
                what => what.is_end() && !self.events.iter().rev().any(|later| later.what.is_end()),
            };
            if is_needed {
                self.keep(event);
            }
        }
    }

    /// Whether a later event shows that the grant of an event has ended or was replaced.
    fn is_over(&self, granted: &Event) -> bool {
        let of_grant = |what: What| what.is_end() || matches!(what, What::Granted { .. });
        self.events.iter().any(|later| of_grant(later.what) && later.owner == granted.owner)
    }

    #[cold]
    fn keep(&mut self, event: Event) {
        if event.what.is_end() {
            self.kept.retain(|kept| !kept.what.is_end());
        } else if self.kept.len() > KEPT_MAX {
            let oldest = self.kept.iter().position(|kept| !kept.what.is_end()).unwrap_or(0);
            self.kept.remove(oldest);
        }
        self.kept.push(event);
    }

    /// Removes the kept events that a new one makes unimportant.
    #[cold]
    fn outdate(&mut self, what: What, owner: &[u8]) {
        let (end, grant) = (what.is_end(), matches!(what, What::Granted { .. }));
        self.kept.retain(|kept| match kept.what {
            What::Granted { .. } => !(end || grant) || kept.owner[..] != *owner,
            _ => !end,
        });
    }

    /// All events, the oldest first, without those beyond a bound that was lowered.
    pub(super) fn iter(&self, events_max: usize) -> impl DoubleEndedIterator<Item = &Event> {
        self.kept.iter().chain(self.events.range(self.events.len().saturating_sub(events_max)..))
    }
}
