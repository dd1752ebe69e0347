//! How often the owners that callers have named hold their locks by guards of this client.
//!
//! The server counts how often an owner has acquired a lock. When a connection breaks before the reply to an acquire, that count may be one
//! more than the guards there are. So it is noted here, and the last guard gives back all of it. And as an owner has one lease, which each
//! acquire and renewal begins anew, no guard may shorten that of another.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

type Key = (Vec<u8>, Vec<u8>);

#[derive(Default)]
pub(crate) struct Holds {
    of: Mutex<HashMap<Key, Hold>>,
}

#[derive(Clone, Copy, Default)]
struct Hold {
    guards: u32,
    /// Whether the server may count more.
    surplus: bool,
    /// The longest lease of its guards so far.
    lease_ms: u64,
}

fn key(name: &[u8], owner: &[u8]) -> Key {
    (name.to_vec(), owner.to_vec())
}

impl Holds {
    fn with<T>(&self, work: impl FnOnce(&mut HashMap<Key, Hold>) -> T) -> T {
        work(&mut self.of.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The lease of the guards of this name and owner, where there are any.
    pub fn lease_ms(&self, name: &[u8], owner: &[u8]) -> Option<u64> {
        self.with(|of| of.get(&key(name, owner)).filter(|hold| hold.guards > 0).map(|hold| hold.lease_ms))
    }

    /// There is one guard more, with this lease.
    pub fn add(&self, name: &[u8], owner: &[u8], lease_ms: u64) {
        self.with(|of| {
            let hold = of.entry(key(name, owner)).or_default();
            hold.guards += 1;
            hold.lease_ms = hold.lease_ms.max(lease_ms);
        });
    }

    /// An acquire may have been carried out for which there is no guard, or a release may not.
    pub fn unsure(&self, name: &[u8], owner: &[u8]) {
        self.with(|of| of.entry(key(name, owner)).or_default().surplus = true);
    }

    /// There is one guard less; whether all that the server counts is to be given back.
    pub fn remove(&self, name: &[u8], owner: &[u8]) -> bool {
        self.with(|of| {
            let key = key(name, owner);
            let Some(hold) = of.get_mut(&key) else { return false };
            hold.guards = hold.guards.saturating_sub(1);
            let hold = *hold;
            if hold.guards == 0 {
                of.remove(&key);
            }
            hold.guards == 0 && hold.surplus
        })
    }

    /// Nothing came of an acquire that may have been carried out; whether all that the server counts is to be given back now, as no guard
    /// will do so later.
    pub fn forget(&self, name: &[u8], owner: &[u8]) -> bool {
        self.with(|of| {
            let key = key(name, owner);
            match of.get(&key) {
                Some(hold) if hold.guards == 0 => of.remove(&key).is_some_and(|hold| hold.surplus),
                _ => false,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_guard_gives_back_what_may_be_too_many() {
        let holds = Holds::default();
        holds.add(b"a", b"x", 500);
        holds.unsure(b"a", b"x");
        holds.add(b"a", b"x", 300);
        holds.add(b"a", b"y", 100);
        assert_eq!(holds.lease_ms(b"a", b"x"), Some(500));
        assert_eq!(holds.lease_ms(b"b", b"x"), None);
        assert!(!holds.forget(b"a", b"x"));
        assert!(!holds.remove(b"a", b"x"));
        assert!(holds.remove(b"a", b"x"));
        assert!(!holds.remove(b"a", b"y"), "nothing is unsure about that one");
        holds.unsure(b"b", b"x");
        assert!(holds.forget(b"b", b"x"));
        assert!(holds.with(|of| of.is_empty()));
    }
}
