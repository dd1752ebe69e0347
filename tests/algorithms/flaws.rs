//! The known flaws of each algorithm. These tests show that the server runs the algorithms exactly, with their flaws.

use redis::{Connection, cmd};

use crate::Arena;
use crate::locks::{LOCKS, Lock, RELEASE, Reentrant, Terms};

const YEAR_MS: u64 = 365 * 24 * 3600 * 1000;

fn query<T: redis::FromRedisValue>(connection: &mut Connection, words: &[&str]) -> T {
    let mut command = cmd(words[0]);
    command.arg(&words[1..]).query(connection).unwrap()
}

/// The lock of a client whose clock is ahead of the server's by some milliseconds.
fn lock(arena: &Arena, number: &str, key: &str, owner: &str, ahead_ms: i64) -> Box<dyn Lock> {
    let (_, _, make) = LOCKS.iter().find(|(name, ..)| name.starts_with(number)).unwrap();
    let now = arena.unix_ms() + ahead_ms;
    make(Terms { key: key.to_owned(), owner: owner.to_owned(), lease_ms: 60_000 }, std::sync::Arc::new(move || now))
}

#[test]
fn without_an_expiry_a_crashed_holder_locks_for_ever() {
    Arena::each_frozen("for ever", |arena| {
        let (key, mut connection) = (arena.key("lock"), arena.connect());
        assert!(lock(arena, "1", &key, "crashes", 0).acquire(&mut connection));
        arena.advance_ms(10 * YEAR_MS);
        assert!(!lock(arena, "1", &key, "waits", 0).acquire(&mut connection));
    });
}

#[test]
fn a_crash_between_setnx_and_expire_locks_for_ever() {
    Arena::each_frozen("between", |arena| {
        let (key, mut connection) = (arena.key("lock"), arena.connect());
        assert!(query::<bool>(&mut connection, &["SETNX", &key, "crashes here"]));
        arena.advance_ms(10 * YEAR_MS);
        assert_eq!(query::<i64>(&mut connection, &["PTTL", &key]), -1);
        assert!(!lock(arena, "2", &key, "waits", 0).acquire(&mut connection));
    });
}

#[test]
fn a_clock_that_is_fast_steals_a_lock_with_a_time_stamp() {
    Arena::each_frozen("steals", |arena| {
        let (key, mut connection) = (arena.key("lock"), arena.connect());
        let mut holder = lock(arena, "3", &key, "holder", 0);
        assert!(holder.acquire(&mut connection));
        assert!(!lock(arena, "3", &key, "punctual", 0).acquire(&mut connection));
        assert!(lock(arena, "3", &key, "five minutes ahead", 300_000).acquire(&mut connection));
        // The holder cannot notice it: there is no owner, and the stamp in the key is in the future.
        assert!(holder.release(&mut connection));
        assert!(!arena.own().exists(&key), "and so he frees what is the thief's");
    });
}

#[test]
fn a_loser_of_getset_overwrites_the_winners_time_stamp() {
    Arena::each_frozen("overwrites", |arena| {
        let (key, mut connection) = (arena.key("lock"), arena.connect());
        let now = arena.unix_ms();
        let (past, first, second) = ((now - 1).to_string(), (now + 1000).to_string(), (now + 9000).to_string());
        query::<()>(&mut connection, &["SET", &key, &past]);
        // Both clients have seen that the stamp is in the past.
        assert_eq!(query::<String>(&mut connection, &["GETSET", &key, &first]), past, "the first has it");
        assert_eq!(query::<String>(&mut connection, &["GETSET", &key, &second]), first, "the second has not");
        assert_eq!(arena.own().get(&key), Some(second), "but has made the lease eight seconds longer");
    });
}

#[test]
fn a_take_over_by_del_and_setnx_has_two_winners() {
    Arena::each_frozen("two winners", |arena| {
        let (key, mut connection) = (arena.key("lock"), arena.connect());
        query::<()>(&mut connection, &["SET", &key, &(arena.unix_ms() - 1).to_string()]);
        // Both clients have seen that the stamp is in the past. The second one is a little late.
        let mut take_over =
            || query::<bool>(&mut connection, &["DEL", &key]) && query::<bool>(&mut connection, &["SETNX", &key, "until"]);
        assert!(take_over());
        assert!(take_over());
    });
}

#[test]
fn a_del_without_a_look_at_the_owner_frees_somebody_elses_lock() {
    Arena::each_frozen("del", |arena| {
        for number in ["2", "17"] {
            let (key, mut connection) = (arena.key(number), arena.connect());
            let mut paused = lock(arena, number, &key, "paused", 0);
            assert!(paused.acquire(&mut connection));
            arena.advance_ms(60_000);
            assert!(lock(arena, number, &key, "next", 0).acquire(&mut connection));
            assert!(paused.release(&mut connection), "it is told that all is well");
            assert!(!arena.own().exists(&key), "and the next one holds nothing");
        }
        // If the token is compared, that does not happen.
        for number in ["4", "5", "6"] {
            let (key, mut connection) = (arena.key(number), arena.connect());
            let mut paused = lock(arena, number, &key, "paused", 0);
            assert!(paused.acquire(&mut connection));
            arena.advance_ms(60_000);
            assert!(lock(arena, number, &key, "next", 0).acquire(&mut connection));
            assert!(!paused.release(&mut connection));
            assert!(arena.own().exists(&key));
        }
    });
}

#[test]
fn get_and_del_as_two_commands_race() {
    Arena::each_frozen("race", |arena| {
        let (key, mut connection) = (arena.key("lock"), arena.connect());
        assert!(lock(arena, "4", &key, "me", 0).acquire(&mut connection));
        assert_eq!(query::<String>(&mut connection, &["GET", &key]), "me", "it is mine: I may delete it");
        arena.advance_ms(60_000);
        assert!(lock(arena, "4", &key, "you", 0).acquire(&mut connection));
        assert!(query::<bool>(&mut connection, &["DEL", &key]), "and it was yours");
        // A script has no gap between the two commands.
        assert!(lock(arena, "4", &key, "you", 0).acquire(&mut connection));
        assert!(!redis::Script::new(RELEASE).key(&key).arg("me").invoke::<bool>(&mut connection).unwrap());
    });
}

#[test]
fn a_pause_longer_than_the_lease_lets_two_into_the_critical_section() {
    Arena::each_frozen("pause", |arena| {
        for number in ["2", "4", "5", "6", "17"] {
            let (key, mut connection) = (arena.key(number), arena.connect());
            assert!(lock(arena, number, &key, "paused", 0).acquire(&mut connection));
            // The holder is inside and paused, and has not released the lock when the next one enters.
            arena.advance_ms(60_000);
            assert!(lock(arena, number, &key, "next", 0).acquire(&mut connection), "{number}");
        }
    });
}

#[test]
fn a_watchdog_renews_for_a_holder_who_is_dead_and_lapses_for_one_who_is_stuck() {
    Arena::each_frozen("watchdog", |arena| {
        let lock = |owner: &str| Reentrant(Terms { key: format!("{}lock", arena.prefix), owner: owner.into(), lease_ms: 30_000 });
        let mut connection = arena.connect();
        assert_eq!(lock("the thread died").enter(&mut connection), None);
        for _ in 0..6 * 60 * 24 {
            arena.advance_ms(10_000);
            assert!(lock("the thread died").renew(&mut connection), "the process lives, and its timer with it");
        }
        assert_eq!(lock("waits").enter(&mut connection), Some(30_000), "a day later");
        // The event loop stalls for longer than the lease, so the holder does not learn of the end.
        arena.advance_ms(30_000);
        assert_eq!(lock("waits").enter(&mut connection), None);
        assert!(!lock("the thread died").renew(&mut connection));
    });
}
