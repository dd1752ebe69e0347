//! Uses of locks.

use std::sync::Arc;
use std::time::Duration;

use redis::{Connection, Script, cmd};

use crate::exclusion::{known, system_clock};
use crate::locks::{LOCKS, Reentrant, Terms};
use crate::{Arena, CLIENTS, Guarded};

fn get(connection: &mut Connection, key: &str) -> i64 {
    cmd("GET").arg(key).query(connection).unwrap()
}

#[test]
fn stock_is_sold_to_the_last_piece_and_never_oversold_under_each_lock() {
    Arena::each("stock", |arena| {
        for (name, _, make) in LOCKS.iter().filter(|(name, ..)| known(arena, name)) {
            let (key, stock) = (arena.key(&format!("lock:{name}")), arena.key(&format!("stock:{name}")));
            cmd("SET").arg(&stock).arg(60).exec(&mut arena.connect()).unwrap();
            let sold = arena.together(|number, connection| {
                let terms = Terms { key: key.clone(), owner: format!("till-{number}"), lease_ms: 60_000 };
                let mut lock = make(terms, system_clock());
                let mut sold = 0;
                loop {
                    while !lock.acquire(connection) {
                        std::thread::sleep(Duration::from_micros(200));
                    }
                    // Read, think, write: only a lock makes this right.
                    let left = get(connection, &stock);
                    if left > 0 {
                        std::thread::yield_now();
                        cmd("SET").arg(&stock).arg(left - 1).exec(connection).unwrap();
                        sold += 1;
                    }
                    assert!(lock.release(connection), "{name}");
                    if left == 0 {
                        return sold;
                    }
                }
            });
            assert_eq!(sold.iter().sum::<i64>(), 60, "{name}: {sold:?}");
            assert_eq!(get(&mut arena.connect(), &stock), 0, "{name}");
        }
    });
}

#[test]
fn a_flash_sale_in_one_script_sells_each_buyer_one_piece_at_most() {
    const BUY: &str = "
        if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 1 then return -2 end
        local left = tonumber(redis.call('GET', KEYS[1]) or '0')
        if left <= 0 then return -1 end
        redis.call('HSET', KEYS[2], ARGV[1], 1)
        return redis.call('DECR', KEYS[1])";
    Arena::each("sale", |arena| {
        let (stock, buyers) = (arena.key("stock"), arena.key("buyers"));
        cmd("SET").arg(&stock).arg(50).exec(&mut arena.connect()).unwrap();
        let bought = arena.together(|_, connection| {
            let buy = |buyer: usize| {
                let script = Script::new(BUY);
                script.key(&stock).key(&buyers).arg(format!("buyer-{buyer}")).invoke::<i64>(&mut *connection).unwrap()
            };
            // All eight clients act for the same hundred buyers.
            (0..100).map(buy).filter(|left| *left >= 0).count()
        });
        assert_eq!(bought.iter().sum::<usize>(), 50);
        assert_eq!(get(&mut arena.connect(), &stock), 0);
        assert_eq!(cmd("HLEN").arg(&buyers).query::<usize>(&mut arena.connect()).unwrap(), 50);
    });
}

#[test]
fn a_scheduled_job_runs_on_one_node_of_the_cluster_each_time() {
    Arena::each_frozen("job", |arena| {
        for minute in 0..60 {
            let ran = arena.together(|node, connection| {
                let mut claim = cmd("SET");
                claim.arg(format!("{}report:{minute}", arena.prefix)).arg(node).arg("NX").arg("EX").arg(300);
                claim.query::<bool>(connection).unwrap()
            });
            assert_eq!(ran.into_iter().filter(|ran| *ran).count(), 1, "minute {minute}");
            arena.advance_ms(60_000);
        }
        assert_eq!(arena.own().dbsize(), 4, "claims end by themselves");
    });
}

#[test]
fn a_call_that_holds_the_lock_may_take_it_again_and_nobody_else() {
    fn outer(lock: &Reentrant, connection: &mut Connection, guarded: &Guarded) -> bool {
        if lock.enter(connection).is_some() {
            return false;
        }
        inner(lock, connection, guarded, 3);
        assert_eq!(lock.leave(connection), Some(true), "the last level");
        true
    }
    fn inner(lock: &Reentrant, connection: &mut Connection, guarded: &Guarded, depth: u32) {
        assert_eq!(lock.enter(connection), None, "the holder never waits for itself");
        if depth == 0 {
            guarded.increment();
        } else {
            inner(lock, connection, guarded, depth - 1);
        }
        assert_eq!(lock.leave(connection), Some(false), "still held");
    }
    Arena::each("reentrant", |arena| {
        let (key, guarded) = (arena.key("lock"), Guarded::default());
        arena.together(|number, connection| {
            let lock = Reentrant(Terms { key: key.clone(), owner: format!("8b6c1f0e:{number}"), lease_ms: 60_000 });
            for _ in 0..15 {
                while !outer(&lock, connection, &guarded) {
                    std::thread::sleep(Duration::from_micros(300));
                }
            }
        });
        guarded.assert_count(15 * CLIENTS as u64, "reentrant");
    });
}

#[test]
fn a_lock_a_row_lets_those_of_other_rows_pass() {
    Arena::each("rows", |arena| {
        let rows: Vec<(String, Guarded)> = (0..4).map(|row| (arena.key(&format!("order:{row}")), Guarded::default())).collect();
        arena.together(|number, connection| {
            for round in 0..60 {
                let (key, guarded) = &rows[(number * 7 + round) % rows.len()];
                let terms = Terms { key: key.clone(), owner: format!("client-{number}"), lease_ms: 60_000 };
                let mut lock = (LOCKS[3].2)(terms, system_clock());
                while !lock.acquire(connection) {
                    std::thread::yield_now();
                }
                guarded.increment();
                assert!(lock.release(connection));
            }
        });
        let total: u64 = rows.iter().map(|(_, guarded)| guarded.count.load(std::sync::atomic::Ordering::SeqCst)).sum();
        assert_eq!(total, 60 * CLIENTS as u64);
        rows.iter().for_each(|(key, guarded)| guarded.assert_count(guarded.count.load(std::sync::atomic::Ordering::SeqCst), key));
    });
}

#[test]
fn work_goes_on_though_every_other_holder_dies() {
    Arena::each_frozen("deaths", |arena| {
        let (key, guarded) = (arena.key("lock"), Guarded::default());
        let mut deaths = 0;
        for round in 0..40 {
            let died = arena.together(|number, connection| {
                let terms = Terms { key: key.clone(), owner: format!("client-{round}-{number}"), lease_ms: 5_000 };
                let mut lock = (LOCKS[3].2)(terms, system_clock());
                if !lock.acquire(connection) {
                    return None;
                }
                guarded.increment();
                let dies = round % 2 == 0;
                if !dies {
                    assert!(lock.release(connection));
                }
                Some(dies)
            });
            let died: Vec<bool> = died.into_iter().flatten().collect();
            assert!(!died.is_empty(), "round {round}: somebody gets it");
            if died.contains(&true) {
                assert_eq!(died.len(), 1, "round {round}: nobody after him, until his lease is over");
                deaths += 1;
                arena.advance_ms(5_000);
            }
        }
        assert_eq!(deaths, 20);
        assert_eq!(guarded.intrusions.load(std::sync::atomic::Ordering::SeqCst), 0);
    });
}

#[test]
fn clocks_minutes_apart_do_not_matter_where_only_the_server_has_one() {
    Arena::each_frozen("skew", |arena| {
        let now = arena.unix_ms();
        for (name, _, make) in LOCKS.iter().filter(|(name, ..)| !name.starts_with('3')) {
            let (key, guarded) = (arena.key(name), Guarded::default());
            arena.together(|number, connection| {
                // Clocks from twelve minutes behind to nine minutes ahead.
                let believes = now + (number as i64 - 4) * 180_000;
                let terms = Terms { key: key.clone(), owner: format!("client-{number}"), lease_ms: 30_000 };
                let mut lock = make(terms, Arc::new(move || believes));
                for _ in 0..10 {
                    while !lock.acquire(connection) {
                        std::thread::sleep(Duration::from_micros(200));
                    }
                    guarded.increment();
                    assert!(lock.release(connection), "{name}");
                }
            });
            guarded.assert_count(10 * CLIENTS as u64, name);
        }
    });
}
