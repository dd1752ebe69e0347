//! Held locks are never evicted: plain keys are, and without plain keys nothing is.

use crate::engine::harness::Harness;
use crate::keyspace::eviction::POLICY_NAMES;

const OOM: &str = "-OOM command not allowed when used memory > 'maxmemory'.";

/// The state of all held locks, from the replies of the commands that show it. No reply depends on the time.
fn held(h: &mut Harness) -> Vec<String> {
    let shown = ["LOCK.CHECK held %", "LATCH.DOWN latch 0", "LOCK.GUARD guard 6", "SEM.RENEW semaphore me 9000000", "TYPE held"];
    let replies = |h: &mut Harness| {
        let token = h.run("LOCK.ACQUIRE held me 9000000");
        let of = |request: &str| request.replace('%', token.trim_start_matches(':'));
        let replies: Vec<String> = shown.iter().map(|request| h.run(&of(request))).collect();
        h.run("LOCK.RELEASE held me");
        std::iter::once(token).chain(replies).collect()
    };
    replies(h)
}

#[test]
fn an_hour_of_pressure_takes_nothing_that_is_held_under_any_policy() {
    for policy in POLICY_NAMES {
        let mut h = Harness::new();
        for request in [
            "LOCK.ACQUIRE held me 9000000",
            "LOCK.ACQUIRE shared me 9000000 SHARED",
            "LOCK.ACQUIRE shared you 9000000 SHARED",
            "SEM.ACQUIRE semaphore me 9000000 LIMIT 3",
            "LATCH.SET latch 3 PX 9000000",
            "LOCK.GUARD guard 7",
            "EXPIRE guard 9000",
        ] {
            h.run(request);
        }
        let before = held(&mut h);
        // Room for tables, which grow as keys come and go, and for some keys.
        let max = h.engine.keyspace.bytes() + 1_000_000;
        assert_eq!(h.run(&format!("CONFIG SET maxmemory-policy {policy} maxmemory {max}")), "+OK");
        let value = vec![b'v'; 5000];
        let mut refused = 0;
        for second in 0..3600 {
            for n in 0..3 {
                let key = format!("k{second}-{n}");
                refused += u32::from(h.args(&[b"SET", key.as_bytes(), &value, b"EX", b"100000"]) != b"+OK\r\n");
            }
            // Without checking all invariants each time.
            h.now.advance_us(1_000_000);
            while h.engine.advance(h.now) {}
        }
        h.engine.check_invariants();
        let evicted = h.engine.keyspace.stats.evicted;
        assert!(
            if policy == "noeviction" { refused > 10_000 } else { evicted > 10_000 && refused == 0 },
            "{policy}: {evicted}, {refused}"
        );
        h.run("CONFIG SET maxmemory 0");
        assert_eq!(held(&mut h), before, "{policy}");
        assert_eq!(h.run("LOCK.ACQUIRE held other 1000"), "$-1", "{policy}");
        assert_eq!(h.run("LOCK.ACQUIRE shared other 1000"), "$-1", "{policy}");
    }
}

#[test]
fn a_server_full_of_what_is_held_refuses_and_rests() {
    for policy in POLICY_NAMES {
        let mut h = Harness::new();
        for n in 0..200 {
            h.args(&[b"LOCK.ACQUIRE", format!("lock{n}").as_bytes(), b"me", b"9000000"]);
            h.args(&[b"LOCK.GUARD", format!("guard{n}").as_bytes(), b"7"]);
            h.args(&[b"LATCH.SET", format!("latch{n}").as_bytes(), b"7", b"PX", b"9000000"]);
        }
        let max = h.engine.keyspace.bytes() / 2;
        assert_eq!(h.run(&format!("CONFIG SET maxmemory-policy {policy} maxmemory {max}")), "+OK");
        h.pass(1);
        for request in ["SET k v", "LOCK.ACQUIRE more me 1000", "LATCH.SET more 1", "LOCK.GUARD more 1"] {
            assert_eq!(h.run(request), OOM, "{policy}");
            assert!(!h.engine.memory.evicting, "{policy}: nothing can go, so there is nothing to go on with");
            assert_ne!(h.engine.next_deadline(), Some(0), "{policy}");
        }
        // Commands that free memory or need none still run.
        let renewed = h.run("LOCK.RENEW lock1 me 9000000");
        assert_eq!(renewed, ":9000000", "{policy}");
        assert_eq!(h.run("LOCK.RELEASE lock1 me"), ":0", "{policy}");
        assert_eq!(h.run("DBSIZE"), ":599", "{policy}");
        assert_eq!(h.engine.keyspace.stats.evicted, 0, "{policy}");
    }
}

#[test]
fn few_plain_keys_are_found_among_very_many_locks() {
    for policy in ["allkeys-lru", "allkeys-random", "volatile-ttl"] {
        let mut h = Harness::new();
        for n in 0..20_000 {
            h.args(&[b"LOCK.ACQUIRE", format!("lock{n}").as_bytes(), b"me", b"9000000"]);
        }
        for n in 0..3 {
            h.args(&[b"SET", format!("k{n}").as_bytes(), &[b'v'; 1000], b"EX", b"100000"]);
        }
        let max = h.engine.keyspace.bytes() - 100;
        assert_eq!(h.run(&format!("CONFIG SET maxmemory-policy {policy} maxmemory {max}")), "+OK");
        for _ in 0..4 {
            h.pass(1000);
            h.run("GET nosuch");
        }
        assert_eq!(h.engine.keyspace.stats.evicted, 1, "{policy}");
        assert_eq!(h.run("DBSIZE"), ":20002", "{policy}");
        assert_eq!(h.run("SET new v"), "+OK", "{policy}: there is room again");
    }
}
