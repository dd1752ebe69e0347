//! Counts how many guards of this client hold a lock for the same owner. Only owners that callers have named can have several.
//!
//! The server counts how many times an owner has acquired a lock. When a connection breaks before the reply to an acquire, the
//! server's count may exceed the number of guards by one. This module remembers such a surplus, so that the last guard releases
//! all holds. An owner has a single lease, which each acquire and renewal restarts. This module knows the longest lease of the
//! guards, so that no guard shortens the lease of another.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Name of the lock, and owner.
type Key = (Vec<u8>, Vec<u8>);

#[derive(Default)]
pub(crate) struct Holds {
    entries: Mutex<HashMap<Key, Entry>>,
}

#[derive(Clone, Copy, Default)]
struct Entry {
    guards: u32,
    /// Whether the server may count more holds than there are guards.
    surplus: bool,
    /// The longest lease of the guards, including guards that are gone while others remain.
    lease_ms: u64,
}

fn key(name: &[u8], owner: &[u8]) -> Key {
    (name.to_vec(), owner.to_vec())
}

impl Holds {
    fn with<T>(&self, work: impl FnOnce(&mut HashMap<Key, Entry>) -> T) -> T {
        work(&mut self.entries.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The longest lease of the guards with this name and owner; `None` if there are no guards.
    pub fn lease_ms(&self, name: &[u8], owner: &[u8]) -> Option<u64> {
        self.with(|entries| entries.get(&key(name, owner)).filter(|entry| entry.guards > 0).map(|entry| entry.lease_ms))
    }

    /// Adds a guard with this lease.
    pub fn add(&self, name: &[u8], owner: &[u8], lease_ms: u64) {
        self.with(|entries| {
            let entry = entries.entry(key(name, owner)).or_default();
            entry.guards += 1;
            entry.lease_ms = entry.lease_ms.max(lease_ms);
        });
    }

    /// Records that an acquire without a guard, or a failed release, may have left a hold on the server.
    pub fn mark_surplus(&self, name: &[u8], owner: &[u8]) {
        self.with(|entries| entries.entry(key(name, owner)).or_default().surplus = true);
    }

    /// Removes a guard. Returns whether its release has to release all holds that the server counts.
    pub fn remove(&self, name: &[u8], owner: &[u8]) -> bool {
        self.with(|entries| {
            let key = key(name, owner);
            let Some(entry) = entries.get_mut(&key) else { return false };
            entry.guards = entry.guards.saturating_sub(1);
            let entry = *entry;
            if entry.guards == 0 {
                entries.remove(&key);
            }
            entry.guards == 0 && entry.surplus
        })
    }

    /// Forgets a surplus if there is no guard that will release it. Returns whether there was one: the caller then has to release
    /// all holds that the server counts.
    pub fn take_surplus(&self, name: &[u8], owner: &[u8]) -> bool {
        self.with(|entries| {
            let key = key(name, owner);
            match entries.get(&key) {
                Some(entry) if entry.guards == 0 => entries.remove(&key).is_some_and(|entry| entry.surplus),
                _ => false,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_guard_releases_a_surplus() {
        let holds = Holds::default();
        holds.add(b"a", b"x", 500);
        holds.mark_surplus(b"a", b"x");
        holds.add(b"a", b"x", 300);
        holds.add(b"a", b"y", 100);
        assert_eq!(holds.lease_ms(b"a", b"x"), Some(500));
        assert_eq!(holds.lease_ms(b"b", b"x"), None);
        assert!(!holds.take_surplus(b"a", b"x"));
        assert!(!holds.remove(b"a", b"x"));
        assert!(holds.remove(b"a", b"x"));
        assert!(!holds.remove(b"a", b"y"), "owner y has no surplus");
        holds.mark_surplus(b"b", b"x");
        assert!(holds.take_surplus(b"b", b"x"));
        assert!(holds.with(|entries| entries.is_empty()));
    }
}
