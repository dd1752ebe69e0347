use std::collections::BTreeSet;

use crate::base::ids::SessionId;
use crate::engine::harness::Harness;
use crate::engine::session::SessionFlags;

/// Sends a request while time passes; the reply arrives later.
fn ask(h: &mut Harness, words: &str) {
    h.engine.begin_times(h.now, 0, Some(|| 0));
    assert_eq!(h.run(words), "");
}

/// The unsent output of the session.
fn replied(h: &mut Harness) -> String {
    let session = &mut h.engine.clients.sessions[h.session];
    let out = std::mem::take(&mut session.out);
    String::from_utf8(out[std::mem::take(&mut session.sent)..].to_vec()).unwrap_or_default()
}

fn blocked(h: &Harness) -> bool {
    h.engine.clients.sessions[h.session].flags.contains(SessionFlags::BLOCKED)
}

#[test]
fn keys_of_a_large_database_are_walked_over_a_few_a_turn() {
    let mut h = Harness::new();
    (0..5000).for_each(|n| assert_eq!(h.args(&[b"SET", format!("k{n}").as_bytes(), b"v"]), b"+OK\r\n"));
    ask(&mut h, "KEYS k*");
    assert!(blocked(&h) && h.engine.next_deadline() == Some(0));
    let mut turns = 0;
    while blocked(&h) {
        assert_eq!(replied(&mut h), "");
        h.engine.advance(h.now);
        h.engine.check_invariants();
        turns += 1;
        if turns == 3 {
            // Other sessions continue meanwhile; keys that they add or remove may or may not be in the reply.
            let other = h.engine.connect(h.now, Default::default());
            h.engine.execute(h.now, other, &[b"DEL", b"k1", b"k2"]);
            h.engine.execute(h.now, other, &[b"SET", b"new", b"v"]);
        }
    }
    assert!((10..=12).contains(&turns), "{turns} turns for 5000 keys");
    let reply = replied(&mut h);
    let mut lines = reply.split("\r\n");
    let count: usize = lines.next().and_then(|head| head.strip_prefix('*')).and_then(|n| n.parse().ok()).unwrap_or(0);
    let keys: Vec<&str> = lines.filter(|line| line.starts_with('k')).collect();
    assert_eq!(keys.len(), count);
    assert!((4998..=5000).contains(&count), "{count}");
    let distinct: BTreeSet<&str> = keys.iter().copied().collect();
    assert_eq!(distinct.len(), count, "a key twice");
    assert!((3..5000).all(|n| distinct.contains(format!("k{n}").as_str())), "one is missing");
    assert_eq!(h.engine.diagnosis.command_stats.of(crate::commands::lookup(b"keys").unwrap_or_else(|| unreachable!())).calls, 1);
}

#[test]
fn a_common_subsequence_of_long_strings_is_sought_in_slices() {
    let mut h = Harness::new();
    for (key, unit) in ["abc", "cba"].iter().enumerate() {
        h.args(&[b"SET", format!("k{key}").as_bytes(), unit.repeat(1_000).as_bytes()]);
    }
    let whole = ["LEN", "", "IDX"].map(|option| h.run(&format!("LCS k0 k1 {option}")));
    for (option, whole) in ["LEN", "", "IDX"].into_iter().zip(whole) {
        ask(&mut h, &format!("LCS k0 k1 {option}"));
        let mut turns = 0;
        while blocked(&h) {
            assert_eq!(replied(&mut h), "");
            h.engine.advance(h.now);
            h.engine.check_invariants();
            turns += 1;
        }
        assert!(turns > 60, "{turns} turns for nine million cells");
        assert_eq!(replied(&mut h).trim_end().replace("\r\n", " "), whole);
    }
}

/// Waits until the session's job has ended. Returns the number of turns that it took.
fn turns(h: &mut Harness) -> usize {
    let mut turns = 0;
    while blocked(h) {
        assert_eq!(replied(h), "");
        h.engine.advance(h.now);
        if turns % 16 == 0 {
            h.engine.check_invariants();
        }
        turns += 1;
    }
    turns
}

/// 1,000 locks, with waiters for each tenth; 10 semaphores; and 1,000 plain keys.
fn locks() -> Harness {
    let mut h = Harness::new();
    for n in 0..1_000 {
        h.run(&format!("LOCK.ACQUIRE lock:{n} owner:{} 100000", n % 7));
        h.run(&format!("SET plain:{n} x"));
        if n % 100 == 0 {
            h.run(&format!("SEM.ACQUIRE pool:{n} owner 100000 LIMIT 2"));
        }
        for waiter in (0..n % 3 + 1).filter(|_| n % 10 == 0) {
            let other = h.engine.connect(h.now, Default::default());
            let owner = format!("waiter:{n}:{waiter}");
            h.now.advance_us(10);
            h.engine.execute(
                h.now,
                other,
                &[b"LOCK.ACQUIRE", format!("lock:{n}").as_bytes(), owner.as_bytes(), b"1", b"WAIT", b"99999"],
            );
        }
    }
    h
}

#[test]
fn locks_of_a_large_database_are_listed_in_slices() {
    let mut h = locks();
    for (options, found) in [
        ("COUNT 10000", 1_010),
        ("COUNT 400", 400),
        ("", 100),
        ("CONTENDED COUNT 10000", 100),
        ("CONTENDED SHOW 1 COUNT 70", 70),
        ("WAITING 0 COUNT 10000", 100),
        ("OWNER owner:3 COUNT 10000 SHOW 1", 143),
        ("OWNER waiter:30:0", 1),
        ("KIND semaphore COUNT 7", 7),
        ("KIND lock MATCH lock:*5 COUNT 10000", 100),
        ("MATCH nosuch COUNT 10000", 0),
    ] {
        let request = format!("LOCK.LIST {options}");
        h.engine.begin_times(h.now, 0, None);
        let whole = h.run(&request);
        assert!(whole.starts_with(&format!("*{found}")), "{request}: {}", &whole[..40.min(whole.len())]);
        ask(&mut h, &request);
        assert!(turns(&mut h) > 1, "{request}");
        assert_eq!(replied(&mut h).trim_end().replace("\r\n", " "), whole, "{request}");
    }
    assert_eq!(h.run("LOCK.LIST COUNT 10001"), "-ERR count must be between 1 and 10000");
}

#[test]
fn locks_that_are_still_held_are_sought_in_slices() {
    let mut h = locks();
    h.engine.begin_times(h.now, 0, None);
    let whole = h.run("LOCK.LEAKS");
    assert!(whole.starts_with("*1010 "), "{}", &whole[..40]);
    ask(&mut h, "LOCK.LEAKS");
    assert!(turns(&mut h) > 15);
    assert_eq!(replied(&mut h).trim_end().replace("\r\n", " "), whole);
}

#[test]
fn locks_that_end_while_they_are_listed_are_not_shown() {
    let mut h = locks();
    ask(&mut h, "LOCK.LIST COUNT 10000");
    let other = h.engine.connect(h.now, Default::default());
    for n in 0..950 {
        if n % 200 == 0 {
            h.engine.advance(h.now);
        }
        h.engine.execute(h.now, other, &[b"DEL", format!("lock:{n}").as_bytes()]);
    }
    h.engine.execute(h.now, other, &[b"FLUSHALL"]);
    h.engine.execute(h.now, other, &[b"LOCK.ACQUIRE", b"last", b"owner", b"1000"]);
    turns(&mut h);
    let reply = replied(&mut h);
    let shown: usize = reply[1..].lines().next().and_then(|count| count.parse().ok()).unwrap_or(usize::MAX);
    assert_eq!(reply.matches("\r\nname\r\n").count(), shown);
}

#[test]
fn it_is_one_step_in_a_transaction_and_without_a_clock() {
    let mut h = Harness::new();
    (0..2000).for_each(|n| drop(h.args(&[b"SET", format!("k{n}").as_bytes(), b"v"])));
    assert!(h.run("KEYS k1").starts_with("*1 $2 k1"), "time stands still");
    h.engine.begin_times(h.now, 0, Some(|| 0));
    h.script(&[("MULTI", "+OK"), ("KEYS k1", "+QUEUED"), ("EXEC", "*1 *1 $2 k1")]);
    h.engine.begin_times(h.now, 0, Some(|| 0));
    assert!(h.run("EVAL return(#redis.call('keys','*')) 0").starts_with(":2000"));
}

#[test]
fn who_leaves_or_wants_no_reply_ends_it() {
    let mut h = Harness::new();
    (0..3000).for_each(|n| drop(h.args(&[b"SET", format!("k{n}").as_bytes(), b"v"])));
    ask(&mut h, "KEYS *");
    h.engine.advance(h.now);
    h.engine.disconnect(h.now, h.session);
    assert!(!h.engine.has_jobs());
    h.session = h.engine.connect(h.now, Default::default());
    h.run("CLIENT REPLY OFF");
    ask(&mut h, "KEYS *");
    h.pass(0);
    assert!(!blocked(&h) && replied(&mut h).is_empty());
}

#[test]
fn a_database_that_is_emptied_meanwhile_ends_it() {
    let mut h = Harness::new();
    (0..3000).for_each(|n| drop(h.args(&[b"SET", format!("k{n}").as_bytes(), b"v"])));
    ask(&mut h, "KEYS nosuch*");
    h.engine.advance(h.now);
    let other = h.engine.connect(h.now, Default::default());
    h.engine.execute(h.now, other, &[b"FLUSHALL"]);
    h.pass(0);
    assert_eq!(replied(&mut h), "*0\r\n");
}

/// Executes a request while time stands still and again while it passes. Returns both replies, and the number of turns of the
/// second.
fn in_one_step_and_in_many(h: &mut Harness, words: &str) -> (String, String, usize) {
    h.engine.begin_times(h.now, 0, None);
    let args: Vec<&[u8]> = words.split_whitespace().map(str::as_bytes).collect();
    h.engine.execute(h.now, h.session, &args);
    let at_once = replied(h);
    ask(h, words);
    let mut turns = 0;
    while blocked(h) {
        assert_eq!(replied(h), "");
        h.engine.advance(h.now);
        h.engine.check_invariants();
        turns += 1;
    }
    (at_once, replied(h), turns)
}

/// Subscribes to channels numbered from 0, a hundred per request; the confirmations are dropped.
fn subscribe(h: &mut Harness, id: SessionId, word: &str, prefix: &str, count: usize) {
    for from in (0..count).step_by(100) {
        let names: Vec<String> = (from..from + 100).map(|n| format!("{prefix}{n}")).collect();
        let args: Vec<&[u8]> = std::iter::once(word).chain(names.iter().map(String::as_str)).map(str::as_bytes).collect();
        h.engine.execute(h.now, id, &args);
    }
    h.engine.clients.sessions[id].out.clear();
}

#[test]
fn thousands_of_clients_are_listed_a_few_a_turn() {
    for hello in ["HELLO 2", "HELLO 3"] {
        let mut h = Harness::new();
        h.run(hello);
        let others: Vec<SessionId> = (0..3000).map(|_| h.engine.connect(h.now, Default::default())).collect();
        subscribe(&mut h, others[0], "SUBSCRIBE", "c", 100);
        for words in ["CLIENT LIST", "CLIENT LIST TYPE normal", "CLIENT LIST TYPE pubsub"] {
            // What has been counted by then differs, in one digit each.
            let same =
                |text: &str| text.lines().map(|line| line.split(" tot-net").next().unwrap_or("")).collect::<Vec<_>>().join("\n");
            let (at_once, in_many, turns) = in_one_step_and_in_many(&mut h, words);
            assert_eq!(same(&at_once), same(&in_many), "{hello} {words}");
            assert_eq!(turns, 3001usize.div_ceil(256));
        }
        // One that goes meanwhile is not shown, nor is another in its place.
        ask(&mut h, "CLIENT LIST");
        h.engine.advance(h.now);
        let gone = h.engine.clients.sessions[others[2999]].id;
        h.engine.disconnect(h.now, others[2999]);
        assert_eq!(h.engine.connect(h.now, Default::default()).number(), others[2999].number());
        h.pass(0);
        let reply = replied(&mut h);
        assert_eq!(reply.lines().filter(|line| line.contains("id=")).count(), 3000);
        assert!(!reply.contains(&format!("id={gone} ")));
    }
}

#[test]
fn very_many_channels_are_listed_a_few_a_turn() {
    let mut h = Harness::new();
    let listener = h.engine.connect(h.now, Default::default());
    subscribe(&mut h, listener, "SUBSCRIBE", "c", 5000);
    subscribe(&mut h, listener, "SSUBSCRIBE", "s", 2000);
    for (words, count) in
        [("PUBSUB CHANNELS", 5000), ("PUBSUB CHANNELS c1*", 1111), ("PUBSUB CHANNELS x", 0), ("PUBSUB SHARDCHANNELS", 2000)]
    {
        let (at_once, in_many, turns) = in_one_step_and_in_many(&mut h, words);
        assert!(at_once.starts_with(&format!("*{count}\r\n")), "{words}: {}", &at_once[..20.min(at_once.len())]);
        assert_eq!(at_once, in_many, "{words}");
        assert_eq!(turns, if words.contains("SHARD") { 4 } else { 10 });
    }
    // Where it has come to, channels go; others come all the time.
    ask(&mut h, "PUBSUB CHANNELS");
    for turn in 0..20 {
        h.engine.advance(h.now);
        let at = 512 + 514 * turn;
        let gone = [format!("c{at}"), format!("c{}", at + 1)];
        h.engine.execute(h.now, listener, &[b"UNSUBSCRIBE", gone[0].as_bytes(), gone[1].as_bytes()]);
        subscribe(&mut h, listener, "SUBSCRIBE", &format!("new{turn}:"), 600);
        h.engine.check_invariants();
    }
    assert!(!blocked(&h), "there is an end to it");
    let reply = replied(&mut h);
    let old: Vec<usize> = reply.lines().filter_map(|line| line.strip_prefix('c')?.parse().ok()).collect();
    let stayed = (0..5000).filter(|n| *n < 512 || (n - 512) % 514 > 1);
    assert!(old.into_iter().eq(stayed));
    // Channels without subscribers are not listed, and a client that leaves leaves no subscription behind.
    ask(&mut h, "PUBSUB CHANNELS");
    h.engine.advance(h.now);
    h.engine.disconnect(h.now, listener);
    h.engine.disconnect(h.now, h.session);
    h.session = h.engine.connect(h.now, Default::default());
    h.pass(0);
    assert!(!h.engine.has_jobs());
    assert_eq!(h.run("PUBSUB CHANNELS"), "*0");
}

#[test]
fn very_many_waits_are_followed_a_few_a_turn() {
    let count = 600;
    for hello in ["HELLO 2", "HELLO 3"] {
        let mut h = Harness::new();
        h.run("ACL SETUSER ann on nopass ~lock1* +@all");
        let acquire = |h: &mut Harness, name: &str, owner: &str| {
            let id = h.engine.connect(h.now, Default::default());
            h.engine.execute(h.now, id, &[b"LOCK.ACQUIRE", name.as_bytes(), owner.as_bytes(), b"900000", b"WAIT", b"0"]);
            id
        };
        for n in 0..count {
            acquire(&mut h, &format!("lock{n}"), &format!("owner{n}"));
        }
        acquire(&mut h, "lock1-idle", "owner3");
        // Four of five holders wait for the next lock, and each lock has another waiter.
        let waits =
            (0..count).flat_map(|n| [(n % 5 > 0).then(|| (n, format!("owner{}", n - 1))), Some((n, format!("waiter{n}")))]);
        let waiters: Vec<SessionId> = waits.flatten().map(|(n, owner)| acquire(&mut h, &format!("lock{n}"), &owner)).collect();
        h.run(hello);
        for user in ["", "AUTH ann x"] {
            h.run(user);
            for (words, nodes, least) in [
                ("LOCK.GRAPH", 100, 4),
                ("LOCK.GRAPH COUNT 10000", count, 10),
                ("LOCK.GRAPH lock11 COUNT 500", 5, 1),
                ("LOCK.GRAPH lock1-idle", 2, 1),
                ("LOCK.DOCTOR", 0, 6),
            ] {
                let (at_once, in_many, turns) = in_one_step_and_in_many(&mut h, words);
                assert_eq!(at_once, in_many, "{hello} {user} {words}");
                if user.is_empty() {
                    assert!(turns >= least, "{turns} turns for {words}");
                    assert_eq!(at_once.matches("oldest-wait").count(), nodes, "{words}");
                }
            }
        }
        h.run("AUTH default x");
        // Waiters leave meanwhile, and with them the locks that they wait for.
        ask(&mut h, "LOCK.GRAPH COUNT 10000");
        for id in waiters {
            h.engine.advance(h.now);
            h.engine.disconnect(h.now, id);
        }
        let reply = replied(&mut h);
        let nodes = reply.matches("oldest-wait").count();
        assert!(!blocked(&h) && nodes > 100 && nodes < count, "{nodes} nodes");
        assert!(reply.starts_with(&format!("*{nodes}\r\n")));
        // Who leaves ends it.
        for n in 0..3 * count {
            acquire(&mut h, &format!("new{}", n / 3), &format!("new-owner{n}"));
        }
        for words in ["LOCK.GRAPH", "LOCK.DOCTOR"] {
            ask(&mut h, words);
            h.engine.advance(h.now);
            h.engine.disconnect(h.now, h.session);
            assert!(!h.engine.has_jobs());
            h.session = h.engine.connect(h.now, Default::default());
        }
    }
}

#[test]
fn very_many_subscriptions_end_a_few_a_turn() {
    for (subscribing, word, kind) in
        [("SUBSCRIBE", "unsubscribe", 0), ("PSUBSCRIBE", "punsubscribe", 1), ("SSUBSCRIBE", "sunsubscribe", 2)]
    {
        let mut h = Harness::new();
        let id = h.session;
        subscribe(&mut h, id, subscribing, "c", 3000);
        h.run("SUBSCRIBE stays");
        h.run("PSUBSCRIBE stays*");
        let others = if kind == 2 { 0 } else { 1 };
        let own = if kind == 2 { 0 } else { 1 };
        ask(&mut h, word);
        h.engine.advance(h.now);
        let first = replied(&mut h);
        assert_eq!(first.matches(word).count(), 256);
        let last_count = 3000 - 256 + others + own;
        assert!(first.starts_with(&format!("*3\r\n${}\r\n{word}\r\n$2\r\nc0\r\n:", word.len())));
        assert!(first.ends_with(&format!("$4\r\nc255\r\n:{last_count}\r\n")), "{}", &first[first.len() - 40..]);
        // It receives messages only on its remaining subscriptions.
        let other = h.engine.connect(h.now, Default::default());
        let publish = if kind == 2 { "SPUBLISH" } else { "PUBLISH" };
        for (channel, receivers) in [("c0", ":0\r\n"), ("c2999", ":1\r\n")] {
            h.engine.execute(h.now, other, &[publish.as_bytes(), channel.as_bytes(), b"m"]);
            let out = std::mem::take(&mut h.engine.clients.sessions[other].out);
            assert_eq!(out, receivers.as_bytes());
        }
        assert!(replied(&mut h).contains("c2999\r\n$1\r\nm"));
        let mut turns = 1;
        while blocked(&h) {
            h.engine.advance(h.now);
            h.engine.check_invariants();
            turns += 1;
        }
        assert_eq!(turns, 12);
        let rest = replied(&mut h);
        let left = 3000 - 256 + usize::from(kind == 0) + usize::from(kind == 1);
        assert_eq!(rest.matches(word).count(), left);
        assert_eq!(h.engine.clients.sessions[id].subscriptions[kind], 0);
        // One that is left without any is told so once.
        assert_eq!(h.run(word).matches(word).count(), 1);
    }
}

#[test]
fn unsubscribing_in_steps_respects_closing_and_reply_off() {
    let mut h = Harness::new();
    h.run("HELLO 3");
    h.run("CLIENT REPLY OFF");
    let id = h.session;
    subscribe(&mut h, id, "SUBSCRIBE", "c", 2000);
    ask(&mut h, "UNSUBSCRIBE");
    while blocked(&h) {
        h.engine.advance(h.now);
    }
    assert_eq!(replied(&mut h).matches(">3\r\n").count(), 2000, "these are pushes");
    subscribe(&mut h, id, "SUBSCRIBE", "c", 2000);
    ask(&mut h, "UNSUBSCRIBE");
    h.engine.advance(h.now);
    h.engine.clients.sessions[id].flags |= SessionFlags::CLOSE_NOW;
    h.engine.advance(h.now);
    assert!(!h.engine.has_jobs());
    h.engine.disconnect(h.now, id);
    h.session = h.engine.connect(h.now, Default::default());
    h.pass(0);
    assert_eq!(h.run("PUBSUB CHANNELS"), "*0");
}
