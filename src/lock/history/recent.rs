//! The latest events of all locks that an operator asks about: broken grants, refused deadlocks, ended leases and sessions.

use std::collections::VecDeque;

use crate::lock::grant::Reason;
use crate::lock::history::{Event, What};

/// Number of ended leases and sessions that are remembered, and of all other events.
const ENDS: usize = 256;
const OTHERS: usize = 256;
/// Capacity that the place of a long name keeps for the next name, in bytes.
const KEPT_NAME: usize = 64;

/// An event of a name.
#[derive(Clone, Debug)]
pub struct Notable {
    /// The database.
    pub db: u32,
    /// The name.
    pub name: Vec<u8>,
    /// What happened.
    pub event: Event,
}

/// The latest events. Leases that end have places of their own, so that they push no break and no deadlock out.
#[derive(Debug, Default)]
pub struct Recent {
    ends: VecDeque<Notable>,
    others: VecDeque<Notable>,
}

impl Recent {
    /// Remembers an event if it is of such a kind.
    #[inline]
    pub fn note(&mut self, db: u32, name: &[u8], event: &Event) {
        match event.what {
            What::Ended { reason: Reason::Broken, .. } | What::Deadlock => add(&mut self.others, OTHERS, (db, name, event)),
            What::Ended { reason: Reason::Lease | Reason::MaxHold | Reason::Session, .. } => {
                add(&mut self.ends, ENDS, (db, name, event));
            }
            _ => {}
        }
    }

    /// The events, the latest first.
    pub fn latest(&self) -> impl Iterator<Item = &Notable> {
        let (mut ends, mut others) = (self.ends.iter().rev().peekable(), self.others.iter().rev().peekable());
        std::iter::from_fn(move || match (ends.peek(), others.peek()) {
            (Some(end), Some(other)) if end.event.at_ms > other.event.at_ms => ends.next(),
            (_, Some(_)) => others.next(),
            _ => ends.next(),
        })
    }
}

fn add(events: &mut VecDeque<Notable>, max: usize, (db, name, event): (u32, &[u8], &Event)) {
    let free = if events.len() >= max { events.pop_front() } else { None };
    let mut kept = free.map(|oldest| oldest.name).unwrap_or_default();
    kept.clear();
    kept.shrink_to(KEPT_NAME);
    kept.extend_from_slice(name);
    events.push_back(Notable { db, name: kept, event: event.clone() });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::grant::{Client, Owner};

    #[test]
    fn the_latest_come_first_and_ended_leases_push_no_break_out() {
        let mut recent = Recent::default();
        let mut note = |at_ms: u64, name: &str, what: What| {
            recent.note(1, name.as_bytes(), &Event { at_ms, what, owner: Owner::from_slice(b"o"), client: Client::default() });
        };
        note(1, "broken", What::Ended { reason: Reason::Broken, token: 1 });
        for at_ms in 2..1000 {
            note(at_ms, "lease", What::Ended { reason: Reason::Lease, token: at_ms });
            note(at_ms, "ordinary", What::Released { token: at_ms });
        }
        note(999, "deadlock", What::Deadlock);
        let names: Vec<&[u8]> = recent.latest().map(|notable| &notable.name[..]).collect();
        assert_eq!(names.len(), ENDS + 2);
        assert_eq!((names[0], names[1], names[ENDS + 1]), (&b"deadlock"[..], &b"lease"[..], &b"broken"[..]));
        assert!(recent.latest().is_sorted_by(|a, b| a.event.at_ms >= b.event.at_ms));
    }
}
