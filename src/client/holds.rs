//! Counts how many guards of this client hold each lock for owners that callers have named.
//!
//! The server counts how many times an owner has acquired a lock. When a connection breaks before the reply to an acquire, the
//! server's count may exceed the number of guards by one. This module remembers that, and the last guard releases all holds.
//! Because an owner has a single lease, which each acquire and renewal restarts, no guard may shorten the lease of another.

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
    /// Whether the server may count more holds than there are guards.
    surplus: bool,
    /// The longest lease of the guards so far.
    lease_ms: u64,
}

fn key(name: &[u8], owner: &[u8]) -> Key {
    (name.to_vec(), owner.to_vec())
}

impl Holds {
    fn with<T>(&self, work: impl FnOnce(&mut HashMap<Key, Hold>) -> T) -> T {
        work(&mut self.of.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The lease of the guards with this name and owner, if there are any.
    pub fn lease_ms(&self, name: &[u8], owner: &[u8]) -> Option<u64> {
        self.with(|of| of.get(&key(name, owner)).filter(|hold| hold.guards > 0).map(|hold| hold.lease_ms))
    }

    /// Adds a guard with this lease.
    pub fn add(&self, name: &[u8], owner: &[u8], lease_ms: u64) {
        self.with(|of| {
            let hold = of.entry(key(name, owner)).or_default();
            hold.guards += 1;
            hold.lease_ms = hold.lease_ms.max(lease_ms);
        });
    }

    /// Records that an acquire without a guard, or a failed release, may have left a hold on the server.
    pub fn unsure(&self, name: &[u8], owner: &[u8]) {
        self.with(|of| of.entry(key(name, owner)).or_default().surplus = true);
    }

    /// Removes a guard. Returns whether to release all holds that the server counts.
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

    /// Records that an acquire that may have been carried out led to no guard. Returns whether to release all holds that the
    /// server counts now, because no guard will do so later.
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
