//! Leaders that are killed under load: no grant that a client was told of is lost, no token is given twice, and no lock has two
//! holders.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::nodes::{Asker, Cluster, full_size};

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

/// Clients at work.
#[derive(Default)]
pub struct Load {
    known: Mutex<Known>,
    ends: AtomicBool,
    granted: AtomicU64,
}

impl Load {
    /// Number of grants so far.
    pub fn grants(&self) -> u64 {
        self.granted.load(Ordering::Relaxed)
    }

    /// Runs clients during `work`. One that finds a fault panics, and so does this when all have ended. Each waits for the others'
    /// locks, so that a client that fails ends the progress.
    pub fn during(cluster: &mut Cluster, clients: usize, work: impl FnOnce(&mut Cluster, &Load)) -> Load {
        let load = Load::default();
        std::thread::scope(|scope| {
            for number in 0..clients {
                let (addrs, load) = (cluster.clients.clone(), &load);
                scope.spawn(move || run(number, addrs, load));
            }
            // If the work fails, the clients must end, too.
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(cluster, &load)));
            load.ends.store(true, Ordering::Relaxed);
            if let Err(panic) = outcome {
                std::panic::resume_unwind(panic);
            }
        });
        load
    }

    /// Waits until clients were granted so many more locks. Returns how long that took.
    #[track_caller]
    pub fn wait_for_grants(&self, cluster: &mut Cluster, more: u64, when: &str) -> Duration {
        let (began, before) = (Instant::now(), self.grants());
        cluster.wait(&format!("grants, {when}"), |_| (self.grants() >= before + more).then_some(()));
        began.elapsed()
    }
}

fn run(number: usize, clients: Vec<std::net::SocketAddr>, load: &Load) {
    let Load { known, ends, granted } = load;
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
    let kills = if full_size() { 200 } else { 3 };
    let mut cluster = Cluster::start();
    let stays = cluster.ask_leader(&["LOCK.ACQUIRE", "stays", "test", LEASE_MS]);
    cluster.ask_leader(&["SET", "stays:too", "value"]);
    let mut gaps = Vec::new();
    let load = Load::during(&mut cluster, 8, |cluster, load| {
        for _ in 0..kills {
            load.wait_for_grants(cluster, 20, "before the kill");
            let leader = cluster.leader();
            let began = Instant::now();
            cluster.kill(leader);
            load.wait_for_grants(cluster, 1, "after the kill");
            gaps.push(began.elapsed());
            assert_eq!(cluster.ask_leader(&["LOCK.CHECK", "stays", stays.trim_start_matches(':')]), ":1");
            assert_eq!(cluster.ask_leader(&["GET", "stays:too"]), "value");
            cluster.start_node(leader);
            cluster.until_follows(leader);
        }
    });
    gaps.sort();
    let at = |percent: usize| gaps[(gaps.len() - 1) * percent / 100].as_millis();
    println!(
        "{kills} leaders killed, {} grants; without a grant for {} ms (least), {} ms (median), {} ms (p90), {} ms (p99), {} ms (most)",
        load.grants(),
        at(0),
        at(50),
        at(90),
        at(99),
        at(100)
    );
    assert!(gaps.iter().all(|gap| *gap < Duration::from_secs(20)));
}

#[test]
fn a_broken_grant_stays_broken_under_the_next_leader() {
    let mut cluster = Cluster::start();
    let token = |reply: String| reply.trim_start_matches(':').to_owned();
    let ended = token(cluster.ask_leader(&["LOCK.ACQUIRE", "order", "ann", LEASE_MS]));
    let stays = token(cluster.ask_leader(&["LOCK.ACQUIRE", "other", "ann", LEASE_MS]));
    assert_eq!(cluster.ask_leader(&["LOCK.BREAK", "order", "TOKEN", &ended, "REASON", "stuck"]), ":1");
    let leader = cluster.leader();
    cluster.kill(leader);
    assert_eq!(cluster.ask_leader(&["LOCK.CHECK", "order", &ended]), ":0");
    assert_eq!(cluster.ask_leader(&["LOCK.CHECK", "other", &stays]), ":1");
    let next = token(cluster.ask_leader(&["LOCK.ACQUIRE", "order", "bob", LEASE_MS, "REQUEST", "once"]));
    assert!(next.parse::<u64>().unwrap() > ended.parse().unwrap(), "{next} after {ended}");
}
