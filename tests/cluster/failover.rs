//! Leaders that are killed under load: no grant that a client was told of is lost, no token is given twice, and no lock has two
//! holders.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::nodes::{Asker, Cluster};

/// The locks that clients share.
const NAMES: [&str; 4] = ["a", "b", "c", "d"];
/// Longer than any test: a lock that is free again without a release was lost.
const LEASE_MS: &str = "600000";

/// What all clients know.
#[derive(Default)]
struct Known {
    /// Who holds each lock, by what the clients were told, and do not try to release.
    held: HashMap<&'static str, String>,
    /// The clients by their tokens.
    tokens: HashMap<i64, String>,
    /// The last token of each lock.
    last: HashMap<&'static str, i64>,
}

fn run(number: usize, clients: Vec<std::net::SocketAddr>, known: &Mutex<Known>, ends: &AtomicBool, granted: &AtomicU64) {
    let owner = format!("client:{number}");
    let mut asker = Asker { clients, last: number % 3 };
    let mut request = 0;
    while !ends.load(Ordering::Relaxed) {
        request += 1;
        let (name, id) = (NAMES[(number + request) % NAMES.len()], request.to_string());
        let reply = asker.ask(&["LOCK.ACQUIRE", name, &owner, LEASE_MS, "REQUEST", &id]);
        let Some(token) = reply.strip_prefix(':').and_then(|token| token.parse::<i64>().ok()) else {
            assert_eq!(reply, "$-1", "{name} of {owner}");
            continue;
        };
        {
            let mut known = known.lock().unwrap();
            assert_eq!(known.held.insert(name, owner.clone()), None, "{name} has two holders: the second is {owner}");
            assert_eq!(known.tokens.insert(token, owner.clone()), None, "token {token} was given twice");
            let last = known.last.insert(name, token).unwrap_or(0);
            assert!(token > last, "{name} had token {last} before {token}");
        }
        granted.fetch_add(1, Ordering::Relaxed);
        assert_eq!(asker.ask(&["LOCK.CHECK", name, &token.to_string()]), ":1", "the grant {token} of {name} to {owner} is lost");
        known.lock().unwrap().held.remove(name);
        let release = format!("r{id}");
        let reply = asker.ask(&["LOCK.RELEASE", name, &owner, "TOKEN", &token.to_string(), "REQUEST", &release]);
        assert_eq!(reply, ":0", "the release of {name} by {owner}");
    }
}

#[test]
fn what_clients_were_told_survives_every_leader() {
    let kills = if std::env::var_os("PORTCULLIS_FULL_SIZE").is_some_and(|value| !value.is_empty()) { 200 } else { 3 };
    let mut cluster = Cluster::start();
    let (known, ends, granted) = (Mutex::default(), AtomicBool::new(false), AtomicU64::new(0));
    let stays = cluster.ask_leader(&["LOCK.ACQUIRE", "stays", "test", LEASE_MS]);
    cluster.ask_leader(&["SET", "stays:too", "value"]);
    let mut gaps = Vec::new();
    std::thread::scope(|scope| {
        for number in 0..8 {
            let clients = cluster.clients.clone();
            let (known, ends, granted) = (&known, &ends, &granted);
            scope.spawn(move || run(number, clients, known, ends, granted));
        }
        // A client that fails ends the test by its panic, when the others have ended.
        for _ in 0..kills {
            let before = granted.load(Ordering::Relaxed);
            cluster.wait("grants", |_| (granted.load(Ordering::Relaxed) > before + 20).then_some(()));
            let leader = cluster.leader();
            let began = Instant::now();
            cluster.kill(leader);
            let before = granted.load(Ordering::Relaxed);
            cluster.wait("a grant after the kill", |_| (granted.load(Ordering::Relaxed) > before).then_some(()));
            gaps.push(began.elapsed());
            assert_eq!(cluster.ask_leader(&["LOCK.CHECK", "stays", stays.trim_start_matches(':')]), ":1");
            assert_eq!(cluster.ask_leader(&["GET", "stays:too"]), "value");
            cluster.start_node(leader);
            cluster.until_follows(leader);
        }
        ends.store(true, Ordering::Relaxed);
    });
    gaps.sort();
    let at = |percent: usize| gaps[(gaps.len() - 1) * percent / 100].as_millis();
    println!(
        "{kills} leaders killed, {} grants; without a grant for {} ms (least), {} ms (median), {} ms (p90), {} ms (p99), {} ms (most)",
        granted.into_inner(),
        at(0),
        at(50),
        at(90),
        at(99),
        at(100)
    );
    assert!(gaps.iter().all(|gap| *gap < Duration::from_secs(20)));
}
