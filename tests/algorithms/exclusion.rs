//! Mutual exclusion: one winner each time, and no lost updates.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::locks::{Clock, LOCKS, Terms};
use crate::{Arena, CLIENTS, Guarded};

const ROUNDS: u64 = 40;

/// The clock of this machine.
pub fn system_clock() -> Clock {
    Arc::new(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64)
}

/// Whether the server has the commands that this lock needs.
pub fn known(arena: &Arena, name: &str) -> bool {
    let Some(command) = ["DELEX", "DELIFEQ"].into_iter().find(|command| name.contains(command)) else { return true };
    let error = redis::cmd(command).exec(&mut arena.connect()).unwrap_err().to_string();
    let known = !error.contains("unknown command");
    assert!(known || arena.server.is_none(), "{command}: {error}");
    known
}

#[test]
fn eight_clients_never_hold_a_lock_together_and_lose_nothing() {
    Arena::each("exclusion", |arena| {
        for (name, _, make) in LOCKS.iter().filter(|(name, ..)| known(arena, name)) {
            let key = arena.key(name);
            let guarded = Guarded::default();
            arena.together(|number, connection| {
                let terms = Terms { key: key.clone(), owner: format!("client-{number}"), lease_ms: 60_000 };
                let mut lock = make(terms, system_clock());
                for _ in 0..ROUNDS {
                    while !lock.acquire(connection) {
                        std::thread::sleep(Duration::from_micros(200));
                    }
                    guarded.increment();
                    assert!(lock.release(connection), "{name}: it was mine");
                }
            });
            guarded.assert_count(ROUNDS * CLIENTS as u64, name);
        }
    });
}

#[test]
fn of_eight_that_try_at_once_one_wins() {
    Arena::each("race", |arena| {
        for (name, _, make) in LOCKS.iter().filter(|(name, ..)| known(arena, name)) {
            for round in 0..10 {
                let key = arena.key(&format!("{name}:{round}"));
                let won = arena.together(|number, connection| {
                    let terms = Terms { key: key.clone(), owner: format!("client-{number}"), lease_ms: 60_000 };
                    make(terms, system_clock()).acquire(connection)
                });
                assert_eq!(won.iter().filter(|won| **won).count(), 1, "{name}");
            }
        }
    });
}
