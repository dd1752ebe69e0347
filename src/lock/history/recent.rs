//! The latest events of all locks that an operator asks about: broken grants, refused deadlocks, ended leases and sessions.

use std::iter::Peekable;

use crate::base::ids::Key;
use crate::base::kept::{Dated, Kept, Memory, block};
use crate::lock::grant::Reason;
use crate::lock::history::{Event, What};

/// Number of ended leases and sessions that are remembered, of breaks, and of deadlocks.
const ENDS: usize = 128;
const BREAKS: usize = 64;
const DEADLOCKS: usize = 64;
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

impl Dated for Notable {
    fn at_ms(&self) -> u64 {
        self.event.at_ms
    }

    fn heap_bytes(&self) -> usize {
        let owner = if self.event.owner.spilled() { block(self.event.owner.len()) } else { 0 };
        block(self.name.capacity()) + owner
    }
}

/// The latest events. Each kind has places of its own: leases that end, and clients that try again after a deadlock, push no break
/// out.
#[derive(Debug, Default)]
pub struct Recent {
    /// Ended leases and sessions.
    pub ends: Kept<Notable>,
    /// Breaks.
    pub breaks: Kept<Notable>,
    /// Refused deadlocks.
    pub deadlocks: Kept<Notable>,
}

impl Recent {
    /// Remembers an event if it is of such a kind.
    #[inline]
    pub fn note(&mut self, key: Key<'_>, event: &Event) {
        let (events, max) = match event.what {
            What::Ended { reason: Reason::Broken, .. } => (&mut self.breaks, BREAKS),
            What::Ended { reason: Reason::Lease | Reason::MaxHold | Reason::Session, .. } => (&mut self.ends, ENDS),
            What::Deadlock => (&mut self.deadlocks, DEADLOCKS),
            _ => return,
        };
        add(events, max, key, event);
    }

    /// Bytes of the events.
    pub fn bytes(&self) -> usize {
        self.ends.bytes() + self.breaks.bytes() + self.deadlocks.bytes()
    }

    /// The events, the latest first.
    pub fn latest(&self) -> impl Iterator<Item = &Notable> {
        let mut kinds = [&self.breaks, &self.deadlocks, &self.ends].map(|events| events.latest().peekable());
        std::iter::from_fn(move || {
            let latest = kinds.iter_mut().filter_map(|kind| kind.peek().map(|notable| notable.event.at_ms)).max()?;
            let is_it = |kind: &mut Peekable<_>| kind.peek().is_some_and(|notable: &&Notable| notable.event.at_ms == latest);
            let at = kinds.iter_mut().position(is_it)?;
            kinds[at].next()
        })
    }
}

fn add(events: &mut Kept<Notable>, max: usize, key: Key<'_>, event: &Event) {
    let free = if events.len() >= max { events.pop_oldest() } else { None };
    let mut kept = free.map(|oldest| oldest.name).unwrap_or_default();
    kept.clear();
    kept.shrink_to(KEPT_NAME);
    kept.extend_from_slice(key.name);
    events.push(Notable { db: key.db, name: kept, event: event.clone() }, max);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::grant::{Client, Owner};

    #[test]
    fn the_latest_come_first_and_ended_leases_push_no_break_out() {
        let mut recent = Recent::default();
        let mut note = |at_ms: u64, name: &str, what: What| {
            recent.note(
                Key { db: 1, name: name.as_bytes() },
                &Event { at_ms, what, owner: Owner::from_slice(b"o"), client: Client::default() },
            );
        };
        note(1, "broken", What::Ended { reason: Reason::Broken, token: 1 });
        for at_ms in 2..1000 {
            note(at_ms, "lease", What::Ended { reason: Reason::Lease, token: at_ms });
            note(at_ms, "ordinary", What::Released { token: at_ms });
        }
        (0..100).for_each(|_| note(999, "deadlock", What::Deadlock));
        let names: Vec<&[u8]> = recent.latest().map(|notable| &notable.name[..]).collect();
        assert_eq!(names.len(), ENDS + DEADLOCKS + 1);
        assert_eq!((names[0], names[DEADLOCKS], names[ENDS + DEADLOCKS]), (&b"deadlock"[..], &b"lease"[..], &b"broken"[..]));
        assert!(recent.latest().is_sorted_by(|a, b| a.event.at_ms >= b.event.at_ms));
    }
}
