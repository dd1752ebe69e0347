//! After the death of its holder a lock becomes free at the end of the lease, and not a millisecond before. The test sets the
//! clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::Arena;
use crate::exclusion::known;
use crate::locks::{Clock, LOCKS, Make, Reentrant, Terms};

const LEASE_MS: i64 = 30_000;

/// A clock that clients share and the test sets.
fn set_clock(at: &Arc<AtomicI64>) -> Clock {
    let at = at.clone();
    Arc::new(move || at.load(Ordering::SeqCst))
}

/// The number of winners if eight clients try at once.
fn winners(arena: &Arena, make: Make, key: &str, generation: usize, clock: &Clock) -> usize {
    let won = arena.together(|number, connection| {
        let owner = format!("client-{generation}-{number}");
        make(Terms { key: key.to_owned(), owner, lease_ms: LEASE_MS }, clock.clone()).acquire(connection)
    });
    won.into_iter().filter(|won| *won).count()
}

#[test]
fn a_dead_holders_lock_is_taken_by_one_of_eight_on_time_and_never_before() {
    Arena::each_frozen("leases", |arena| {
        for (name, frees, make) in LOCKS {
            assert!(known(arena, name));
            let key = arena.key(name);
            let at = Arc::new(AtomicI64::new(arena.unix_ms()));
            let clock = set_clock(&at);
            let advance = |ms: i64| {
                arena.advance_ms(ms as u64);
                at.fetch_add(ms, Ordering::SeqCst);
            };
            // If clients check the stamp, the lock is still held in the last millisecond of the lease.
            let slack = if name.starts_with('3') { 2 } else { 0 };
            assert_eq!(winners(arena, *make, &key, 0, &clock), 1, "{name}");
            for generation in 1..=10 {
                advance(LEASE_MS - 1);
                assert_eq!(winners(arena, *make, &key, generation * 2, &clock), 0, "{name}: before its time");
                advance(1 + slack);
                assert_eq!(winners(arena, *make, &key, generation * 2 + 1, &clock), usize::from(*frees), "{name}: on time");
            }
        }
    });
}

#[test]
fn a_renewed_lease_counts_from_the_renewal() {
    Arena::each_frozen("renewal", |arena| {
        let key = arena.key("lock");
        let mut connection = arena.connect();
        let take = |owner: &str| redis::cmd("SET").arg(&key).arg(owner).arg("NX").arg("PX").arg(LEASE_MS).to_owned();
        assert!(take("me").query::<bool>(&mut connection).unwrap());
        let renew = redis::Script::new(crate::locks::RENEW);
        for _ in 0..20 {
            arena.advance_ms(LEASE_MS as u64 - 1);
            assert!(!take("you").query::<bool>(&mut connection).unwrap());
            assert!(!renew.key(&key).arg("you").arg(LEASE_MS).invoke::<bool>(&mut connection).unwrap());
            assert!(renew.key(&key).arg("me").arg(LEASE_MS).invoke::<bool>(&mut connection).unwrap());
        }
        // The same as one command: the server compares the token.
        let native = redis::cmd("SET").arg(&key).arg("me").arg("IFEQ").arg("me").arg("PX").arg(LEASE_MS).to_owned();
        arena.advance_ms(LEASE_MS as u64 - 1);
        assert!(native.query::<bool>(&mut connection).unwrap());
        arena.advance_ms(LEASE_MS as u64 - 1);
        assert!(!take("you").query::<bool>(&mut connection).unwrap());
        arena.advance_ms(1);
        assert!(!native.query::<bool>(&mut connection).unwrap(), "a renewal never takes a lock that is free");
        assert!(take("you").query::<bool>(&mut connection).unwrap());
    });
}

#[test]
fn a_watchdog_keeps_a_lock_for_as_long_as_its_holder_lives() {
    Arena::each_frozen("watchdog", |arena| {
        let key = arena.key("lock");
        let lock = |owner: &str| Reentrant(Terms { key: key.clone(), owner: owner.to_owned(), lease_ms: LEASE_MS });
        let (holder, mut connection) = (lock("holder"), arena.connect());
        assert_eq!(holder.enter(&mut connection), None);
        // An hour of work, with a renewal every third of the lease, while seven other clients try to acquire the lock.
        for _ in 0..360 {
            arena.advance_ms(LEASE_MS as u64 / 3);
            assert!(holder.renew(&mut connection));
        }
        let waits = arena.together(|number, connection| lock(&format!("waiter-{number}")).enter(connection));
        assert!(waits.iter().all(|wait| *wait == Some(LEASE_MS)), "{waits:?}");
        // The holder dies right after a renewal.
        arena.advance_ms(LEASE_MS as u64 - 1);
        let waits = arena.together(|number, connection| lock(&format!("waiter-{number}")).enter(connection));
        assert!(waits.iter().all(|wait| *wait == Some(1)), "{waits:?}");
        arena.advance_ms(1);
        assert!(!holder.renew(&mut connection), "a watchdog that comes late learns that the lock is gone");
        let waits = arena.together(|number, connection| lock(&format!("waiter-{number}")).enter(connection));
        assert_eq!(waits.iter().filter(|wait| wait.is_none()).count(), 1);
        assert_eq!(holder.leave(&mut connection), None, "what is somebody else's is not given back");
    });
}

#[test]
fn every_level_of_a_reentrant_lock_renews_its_lease() {
    Arena::each_frozen("levels", |arena| {
        let lock = Reentrant(Terms { key: arena.key("lock"), owner: "me".into(), lease_ms: LEASE_MS });
        let other = Reentrant(Terms { owner: "you".into(), ..lock.0.clone() });
        let mut connection = arena.connect();
        for _ in 0..5 {
            assert_eq!(lock.enter(&mut connection), None);
            arena.advance_ms(LEASE_MS as u64 - 1);
        }
        for level in (0..5).rev() {
            assert_eq!(other.enter(&mut connection), Some(1));
            assert_eq!(lock.leave(&mut connection), Some(level == 0));
            if level > 0 {
                arena.advance_ms(LEASE_MS as u64 - 1);
            }
        }
        assert_eq!(lock.leave(&mut connection), None);
        assert_eq!(other.enter(&mut connection), None);
    });
}
