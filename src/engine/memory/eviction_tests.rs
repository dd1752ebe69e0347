use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::engine::harness::Harness;
use crate::engine::jobs::long_run::Verdict;
use crate::engine::pubsub::Kind;
use crate::keyspace::eviction::*;

/// Number of existing keys among `count` numbered ones with this prefix.
fn present(h: &mut Harness, prefix: &str, count: usize) -> usize {
    let now = h.now;
    (0..count).filter(|n| h.engine.keyspace.db(0, now).contains(format!("{prefix}{n}").as_bytes())).count()
}

/// Limits memory so that this percentage of the keys' memory, besides their tables, has room, and waits until the limit holds.
fn bound(h: &mut Harness, policy: &str, percent: usize) {
    let tables = h.engine.keyspace.table_bytes();
    let max = tables + (h.engine.keyspace.bytes() - tables) * percent / 100;
    assert_eq!(h.run(&format!("CONFIG SET maxmemory-policy {policy} maxmemory {max}")), "+OK");
    h.pass(1);
    assert!(!h.engine.memory.evicting);
}

#[test]
fn names_are_read() {
    for name in POLICY_NAMES {
        let Some(policy) = Policy::named(name) else {
            assert_eq!(name, "noeviction");
            continue;
        };
        assert_eq!(policy.volatile, name.starts_with("volatile"));
        assert_eq!(policy.order == Order::Ttl, name == "volatile-ttl");
    }
}

#[test]
fn what_was_used_longest_ago_goes_first() {
    for policy in ["allkeys-lru", "volatile-lru"] {
        let mut h = Harness::new();
        for n in 0..200 {
            h.run(&format!("SET old{n} {n} EX 1000"));
            h.run(&format!("SET new{n} {n} EX 1000"));
        }
        h.pass(60_000);
        for n in 0..200 {
            h.run(&format!("GET new{n}"));
        }
        bound(&mut h, policy, 75);
        let evicted = h.engine.keyspace.stats.evicted;
        assert!(evicted >= 50, "{policy}: {evicted}");
        assert!(present(&mut h, "new", 200) >= 190, "{policy}");
        assert_eq!(present(&mut h, "old", 200) + present(&mut h, "new", 200) + evicted as usize, 400);
    }
}

#[test]
fn what_is_used_least_often_goes_first() {
    let mut h = Harness::new();
    h.run("CONFIG SET maxmemory-policy allkeys-lfu lfu-log-factor 0");
    for n in 0..200 {
        h.run(&format!("SET seldom{n} {n}"));
        h.run(&format!("SET often{n} {n}"));
    }
    for _ in 0..5 {
        for n in 0..200 {
            h.args(&[b"GET", format!("often{n}").as_bytes()]);
        }
    }
    bound(&mut h, "allkeys-lfu", 75);
    assert!(h.engine.keyspace.stats.evicted >= 50);
    assert!(present(&mut h, "often", 200) >= 190);
}

#[test]
fn what_ends_next_goes_first() {
    let mut h = Harness::new();
    for n in 0..200 {
        h.run(&format!("SET soon{n} {n} EX {}", 100 + n));
        h.run(&format!("SET late{n} {n} EX {}", 100_000 + n));
        h.run(&format!("SET ever{n} {n}"));
    }
    bound(&mut h, "volatile-ttl", 80);
    assert!(h.engine.keyspace.stats.evicted >= 50);
    assert!(present(&mut h, "late", 200) >= 190);
    assert_eq!(present(&mut h, "ever", 200), 200);
}

#[test]
fn few_keys_with_deadlines_are_found_among_many_freed_timers() {
    let mut h = Harness::new();
    for n in 0..20_000 {
        h.args(&[b"SET", format!("k{n}").as_bytes(), b"v", b"EX", b"1000"]);
    }
    for n in 0..20_000 {
        if n % 10_000 != 77 {
            h.args(&[b"PERSIST", format!("k{n}").as_bytes()]);
        }
    }
    assert_eq!(h.run("CONFIG SET maxmemory-policy volatile-lru maxmemory 1000"), "+OK");
    h.pass(1);
    assert_eq!(h.run("EXISTS k77 k10077"), ":0");
    assert_eq!(h.run("DBSIZE"), ":19998");
    assert_eq!(h.run("SET k v"), "-OOM command not allowed when used memory > 'maxmemory'.");
}

#[test]
fn a_turn_evicts_a_bounded_number_and_time_goes_on_with_it() {
    let mut h = Harness::new();
    for n in 0..5000 {
        h.args(&[b"SET", format!("k{n}").as_bytes(), b"v"]);
    }
    h.run("CONFIG SET maxmemory-policy allkeys-random maxmemory 1");
    let mut turns = 0;
    while h.engine.has_work(h.now) {
        let before = h.engine.keyspace.stats.evicted;
        h.engine.advance(h.now);
        assert!(h.engine.keyspace.stats.evicted - before <= 200);
        turns += 1;
    }
    assert!(turns >= 25, "{turns}");
    h.engine.check_invariants();
    assert_eq!(h.run("DBSIZE"), ":0");
    assert!(h.run("INFO stats").contains("evicted_keys:5000 "));
}

#[test]
fn a_command_waits_for_its_own_part_only_and_runs() {
    let mut h = Harness::new();
    for n in 0..5000 {
        h.args(&[b"SET", format!("k{n}").as_bytes(), b"v"]);
    }
    h.run("CONFIG SET maxmemory-policy allkeys-lru maxmemory 2000");
    assert_eq!(h.run("SET new v"), "+OK", "there will be room");
    assert!(h.engine.keyspace.stats.evicted < 400);
    assert_eq!(h.args(&[b"SET", b"big", &[b'v'; 3000]]), b"-OOM command not allowed when used memory > 'maxmemory'.\r\n");
    h.pass(1);
    assert!(h.engine.keyspace.bytes() <= 2000 || h.run("DBSIZE") == ":0");
}

#[test]
fn what_is_evicted_is_told_and_fails_who_watches_it() {
    let mut h = Harness::new();
    h.script(&[
        ("CONFIG SET notify-keyspace-events Ee", "+OK"),
        ("SET k v", "+OK"),
        ("SET free v EX 100", "+OK"),
        ("WATCH free", "+OK"),
    ]);
    let other = h.engine.connect(h.now, Default::default());
    h.engine.execute(h.now, other, &[b"PSUBSCRIBE", b"*"]);
    assert_eq!(h.engine.clients.pubsub.subscriptions(Kind::Pattern, other), 1);
    h.engine.clients.sessions[other].out.clear();
    h.run("CONFIG SET maxmemory-policy volatile-random maxmemory 1");
    h.pass(1);
    let told = String::from_utf8_lossy(&h.engine.clients.sessions[other].out).into_owned();
    assert!(told.contains("__keyevent@0__:evicted\r\n$4\r\nfree\r\n"), "{told}");
    h.script(&[
        ("EXISTS k free", ":1"),
        ("MULTI", "+OK"),
        ("GET k", "+QUEUED"),
        ("EXEC", "*-1"),
        ("MULTI", "+OK"),
        ("SET k w", "-OOM command not allowed when used memory > 'maxmemory'."),
        ("EXEC", "-EXECABORT Transaction discarded because of previous errors."),
        ("GET k", "$1 v"),
    ]);
}

#[test]
fn nothing_is_evicted_while_a_script_runs() {
    let mut h = Harness::new();
    for n in 0..300 {
        h.run(&format!("SET k{n} v"));
    }
    let max = h.engine.keyspace.bytes() + 200;
    h.run(&format!("CONFIG SET maxmemory-policy allkeys-random maxmemory {max}"));
    let script =
        b"local n = redis.call('DBSIZE') for i = 1, 50 do redis.call('SET', 'new' .. i, 'v') end return redis.call('DBSIZE') - n";
    assert_eq!(h.args(&[b"EVAL", script, b"0"]), b":50\r\n");
    h.pass(1000);
    h.run("SET last v");
    assert!(h.engine.keyspace.stats.evicted >= 40);
}

#[test]
fn nothing_is_evicted_while_others_interrupt_a_script() {
    let mut h = Harness::new();
    for n in 0..300 {
        h.args(&[b"SET", format!("k{n}").as_bytes(), b"v"]);
    }
    let max = h.engine.keyspace.bytes() - 2000;
    let other = h.engine.connect(h.now, Default::default());
    h.engine.scripting.supervisor = Some(Box::new(move |engine, now, _, first| {
        if first {
            // Much is to give way now, as far as these know.
            engine.config.maxmemory = max as u64;
            engine.update_slow_path();
            engine.config.maxmemory_policy = "allkeys-random";
            engine.configure_eviction();
            engine.memory.evicting = true;
        }
        for request in [&[&b"SET"[..], b"new", b"v"][..], &[b"MULTI"], &[b"EXEC"], &[b"RESET"]] {
            engine.execute(now, other, request);
        }
        engine.advance(now);
        let out = std::mem::take(&mut engine.clients.sessions[other].out);
        let busy = b"-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.\r\n";
        assert!(out.starts_with(busy) && out.ends_with(b"+RESET\r\n"), "{}", String::from_utf8_lossy(&out));
        assert_eq!(engine.keyspace.stats.evicted, 0, "in the middle of a script");
        assert!(engine.memory.evicting && engine.next_deadline() != Some(0), "eviction waits without keeping the processor busy");
        Verdict::Continue
    }));
    let script = b"for i = 1, 1e5 do end return redis.call('DBSIZE')";
    assert_eq!(h.args(&[b"EVAL", script, b"0"]), b":300\r\n");
    assert_eq!(h.engine.next_deadline(), Some(0));
    h.pass(1);
    assert!(h.engine.keyspace.stats.evicted >= 20, "{}", h.engine.keyspace.stats.evicted);
    h.engine.check_invariants();
}

#[test]
fn uses_are_counted_under_lfu_and_timed_otherwise() {
    let mut h = Harness::new();
    let no_lfu = "-ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching between \
                  policies at runtime LRU and LFU data will take some time to adjust.";
    let no_lru = "-ERR An LFU maxmemory policy is selected, idle time not tracked. Please note that when switching between policies at \
                  runtime LRU and LFU data will take some time to adjust.";
    h.script(&[
        ("SET n 1", "+OK"),
        ("OBJECT FREQ n", no_lfu),
        ("OBJECT FREQ nosuch", "$-1"),
        ("OBJECT IDLETIME n", ":0"),
        ("CONFIG SET maxmemory-policy volatile-lfu lfu-log-factor 0", "+OK"),
        ("OBJECT IDLETIME n", no_lru),
        ("OBJECT IDLETIME nosuch", "$-1"),
        ("SET k 1 EX 1000", "+OK"),
        ("OBJECT FREQ k", ":5"),
        ("SET k 2 KEEPTTL", "+OK"),
        ("OBJECT FREQ k", ":6"),
        ("INCR k", ":3"),
        ("GET k", "$1 3"),
        ("OBJECT FREQ k", ":8"),
        ("RENAME k l", "+OK"),
        ("OBJECT FREQ l", ":8"),
        ("HSET h f v", ":1"),
        ("HGET h f", "$1 v"),
        ("OBJECT FREQ h", ":6"),
        ("CLIENT NO-TOUCH ON", "+OK"),
        ("GET l", "$1 3"),
        ("OBJECT FREQ l", ":8"),
    ]);
    let payload = h.args(&[b"DUMP", b"l"]);
    let payload = &payload[payload.iter().position(|&b| b == b'\n').unwrap() + 1..payload.len() - 2];
    for (option, value, frequency) in [(&b"FREQ"[..], &b"77"[..], ":77"), (b"IDLETIME", b"77", ":5")] {
        assert_eq!(h.args(&[b"RESTORE", b"r", b"0", payload, b"REPLACE", option, value]), b"+OK\r\n");
        assert_eq!(h.run("OBJECT FREQ r"), frequency);
    }
    h.pass(3 * 60_000);
    h.script(&[("OBJECT FREQ l", ":5"), ("CONFIG SET lfu-decay-time 0", "+OK"), ("OBJECT FREQ l", ":8")]);
}

#[derive(Clone, Debug)]
enum Step {
    Set(u8, usize, bool),
    Hash(u8, usize),
    Deadline(u8, bool),
    Delete(u8),
    Bound(u16),
    Pass(u16),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (any::<u8>(), 0..3000usize, any::<bool>()).prop_map(|(key, len, volatile)| Step::Set(key, len, volatile)),
        2 => (any::<u8>(), 1..200usize).prop_map(|(key, fields)| Step::Hash(key, fields)),
        2 => (any::<u8>(), any::<bool>()).prop_map(|(key, volatile)| Step::Deadline(key, volatile)),
        1 => any::<u8>().prop_map(Step::Delete),
        1 => any::<u16>().prop_map(Step::Bound),
        1 => (0..3000u16).prop_map(Step::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    /// No key is evicted that the policy excludes, and memory is below the limit once there is time.
    #[test]
    fn keys_go_only_where_the_policy_lets_them(policy in 0..POLICY_NAMES.len(), steps in prop::collection::vec(step(), 1..120)) {
        let name = POLICY_NAMES[policy];
        let mut h = Harness::new();
        h.run(&format!("CONFIG SET maxmemory-policy {name} maxmemory 100000"));
        // Whether keys have deadlines, as far as they must be there.
        let mut model: BTreeMap<String, bool> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Set(key, len, volatile) => {
                    let (key, value) = (format!("k{key}"), vec![b'v'; len]);
                    let mut args: Vec<&[u8]> = vec![b"SET", key.as_bytes(), &value];
                    if volatile {
                        args.extend([&b"EX"[..], b"100000"]);
                    }
                    if h.args(&args) == b"+OK\r\n" {
                        model.insert(key, volatile);
                    }
                }
                Step::Hash(key, fields) => {
                    let key = format!("h{key}");
                    let names: Vec<String> = (0..fields).map(|n| format!("field{n}")).collect();
                    let mut args: Vec<&[u8]> = vec![b"HSET", key.as_bytes()];
                    args.extend(names.iter().flat_map(|name| [name.as_bytes(), b"value"]));
                    if h.args(&args).starts_with(b":") {
                        model.entry(key).or_default();
                    }
                }
                Step::Deadline(key, volatile) => {
                    let key = format!("k{key}");
                    let request = if volatile { format!("EXPIRE {key} 100000") } else { format!("PERSIST {key}") };
                    if h.run(&request) == ":1" {
                        model.insert(key, volatile);
                    }
                }
                Step::Delete(key) => {
                    let key = format!("k{key}");
                    h.run(&format!("DEL {key}"));
                    model.remove(&key);
                }
                Step::Bound(max) => drop(h.run(&format!("CONFIG SET maxmemory {}", 40_000 + 3 * u32::from(max)))),
                Step::Pass(ms) => h.pass(u64::from(ms)),
            }
            h.engine.check_invariants();
            let now = h.now;
            for (key, volatile) in &model {
                let may_go = name != "noeviction" && (!name.starts_with("volatile") || *volatile);
                prop_assert!(may_go || h.engine.keyspace.db(0, now).contains(key.as_bytes()), "{name}: {key}");
            }
            // What went may come back as another sort of key.
            model.retain(|key, _| h.engine.keyspace.db(0, now).contains(key.as_bytes()));
        }
        // What a key's end gives back is estimated until memory is measured again.
        for _ in 0..4 {
            h.pass(1000);
            h.run("GET nosuch");
            h.pass(1);
        }
        let (bytes, max) = (h.engine.keyspace.bytes() as u64, h.engine.config.maxmemory);
        let left = match name {
            "noeviction" => 0,
            _ if name.starts_with("volatile") => h.engine.keyspace.db(0, h.now).volatile(),
            _ => h.engine.keyspace.db(0, h.now).len(),
        };
        prop_assert!(bytes <= max || left == 0, "{name}: {bytes} of {max}, {left} may still go");
        if name == "noeviction" {
            prop_assert_eq!(h.engine.keyspace.stats.evicted, 0);
        }
    }
}
