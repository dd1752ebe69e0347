//! Clients of a leader that is cut off, stopped or killed: those that hold a lock by a session hold it until its lease ends and learn of
//! the loss, and those that wait are not left waiting.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::nodes::{Cluster, PATIENCE, ask, info_of};
use crate::partitions::behind_proxies;
use crate::session::Session;

/// The lease of what is held: longer than the grace of a session and a change of leaders.
const LEASE: Duration = Duration::from_secs(8);
/// Within this time a leader that is cut off closes connections: a second, and what a busy machine takes.
const CLOSED_WITHIN: Duration = Duration::from_secs(3);

/// Holders of locks by a session, each with the name of its lock.
fn holders(leader: SocketAddr) -> Vec<(String, Session)> {
    let lease = LEASE.as_millis();
    let hold = |name: &str, first: &[&str], acquire: String| {
        let mut session = Session::open(leader);
        for request in first {
            let reply = session.ask(request);
            assert!(!reply.starts_with('-'), "{request}: {reply}");
        }
        let reply = session.ask(&acquire);
        assert!(!reply.starts_with('-') && reply != "_", "{acquire}: {reply}");
        (name.to_owned(), session)
    };
    vec![
        hold("unnamed", &[], format!("LOCK.ACQUIRE unnamed me {lease} SESSION")),
        hold("named", &["LOCK.SESSION s1 GRACE 500"], format!("LOCK.ACQUIRE named me {lease} SESSION")),
        hold("all", &["LOCK.SESSION s2"], format!("LOCK.ACQUIREALL 2 all all2 me {lease} SESSION")),
        hold("subscribed", &["HELLO 3", "SUBSCRIBE news"], format!("LOCK.ACQUIRE subscribed me {lease} SESSION")),
    ]
}

/// Requests that wait at a leader, each on a connection of its own.
const WAITING: [&str; 12] = [
    "LOCK.ACQUIRE taken you 1000 WAIT 0",
    "LOCK.ACQUIREALL 2 taken other you 1000 WAIT 60000",
    "SEM.ACQUIRE full you 1000 LIMIT 1 WAIT 0",
    "LATCH.AWAIT latch WAIT 0",
    "BLPOP none 0",
    "BRPOP none 0",
    "BLMOVE none to LEFT RIGHT 0",
    "BLMPOP 0 1 none LEFT",
    "BZPOPMIN none 0",
    "XREAD BLOCK 0 STREAMS none $",
    "WAIT 3 0",
    "WAITAOF 0 3 0",
];

fn waiting(leader: SocketAddr) -> Vec<(&'static str, Session)> {
    let mut other = Session::open(leader);
    for request in ["LOCK.ACQUIRE taken me 600000", "SEM.ACQUIRE full me 600000 LIMIT 1", "LATCH.SET latch 1", "SET written 1"] {
        assert!(!other.ask(request).starts_with('-'), "{request}");
    }
    let wait = |request: &'static str| {
        let mut session = Session::open(leader);
        // A write of its own, for WAIT.
        assert_eq!(session.ask("SET written 1"), "+OK");
        session.send(request);
        (request, session)
    };
    let (waiting, began) = (WAITING.map(wait).into(), Instant::now());
    while !info_of(leader, "clients", "blocked_clients").is_ok_and(|count| count == WAITING.len().to_string()) {
        assert!(began.elapsed() < PATIENCE, "some of them do not wait");
        std::thread::sleep(Duration::from_millis(20));
    }
    waiting
}

/// Waits until another node leads.
fn another_leader(cluster: &mut Cluster, than: usize) -> usize {
    let others = [(than + 1) % 3, (than + 2) % 3];
    let is_master = |cluster: &Cluster, node: usize| crate::nodes::role(cluster.clients[node]).is_ok_and(|role| role == "master");
    cluster.wait("another leader", |cluster| others.into_iter().find(|node| is_master(cluster, *node)))
}

/// Nobody else is granted what was held since `granted` before its lease ends, and then somebody is.
fn held_until_the_lease_ends(cluster: &Cluster, first: usize, names: &[String], granted: Instant) {
    let leader = cluster.clients[first];
    while granted.elapsed() < LEASE - Duration::from_millis(500) {
        for name in names {
            // The clock of the cluster stands still without a leader, so a lease ends no sooner than this. A late reply says nothing.
            let got = ask(leader, &["LOCK.ACQUIRE", name, "you", "1000"]).unwrap_or_default();
            assert!(!got.starts_with(':'), "{name} is granted after {:?}: {got}", granted.elapsed());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    for name in names {
        // A new leader on a busy machine may lose the leadership again, and closes the connection of who waits.
        let leads =
            |reply: &String| !["-READONLY", "-MASTERDOWN", "-CLUSTERDOWN", "-UNBLOCKED"].iter().any(|no| reply.starts_with(no));
        let ask_next =
            |at: usize| ask(cluster.clients[at % 3], &["LOCK.ACQUIRE", name, "you", "1000", "WAIT", "9000"]).ok().filter(leads);
        let began = Instant::now();
        let got = (first..).take_while(|_| began.elapsed() < PATIENCE).find_map(ask_next).expect("a leader that answers");
        assert!(got.starts_with(':') && granted.elapsed() >= LEASE, "{name} after {:?}: {got}", granted.elapsed());
    }
}

#[test]
fn a_leader_that_is_cut_off_closes_who_holds_by_a_session_or_waits_and_no_grant_ends_early() {
    let (mut cluster, cuts) = behind_proxies();
    let leader = cluster.leader();
    let mut waiting = waiting(cluster.clients[leader]);
    let granted = Instant::now();
    let mut holders = holders(cluster.clients[leader]);
    cuts.isolate(leader);
    let cut = Instant::now();
    for (what, session) in &mut waiting {
        assert!(session.closes() && cut.elapsed() < CLOSED_WITHIN, "{what} after {:?}", cut.elapsed());
    }
    println!("waits are closed {:?} after the cut", cut.elapsed());
    for (name, session) in &mut holders {
        assert!(session.closes() && cut.elapsed() < CLOSED_WITHIN, "{name} after {:?}", cut.elapsed());
    }
    println!("session holders are closed {:?} after the cut", cut.elapsed());
    let next = another_leader(&mut cluster, leader);
    let names: Vec<String> = holders.iter().map(|(name, _)| name.clone()).collect();
    held_until_the_lease_ends(&cluster, next, &names, granted);
}

#[test]
fn a_leader_that_was_stopped_answers_nobody_who_holds_by_a_session_or_waits() {
    let mut cluster = Cluster::start();
    let leader = cluster.leader();
    let mut waiting = waiting(cluster.clients[leader]);
    let granted = Instant::now();
    let mut holders = holders(cluster.clients[leader]);
    cluster.pause(leader);
    let next = another_leader(&mut cluster, leader);
    holders.iter_mut().for_each(|(_, session)| session.send("ECHO before"));
    cluster.resume(leader);
    for (what, session) in &mut waiting {
        assert!(session.next().is_err(), "{what} is answered");
    }
    for (name, session) in &mut holders {
        let got = session.next();
        assert!(got.is_err(), "the holder of {name} is answered: {got:?}");
    }
    let names: Vec<String> = holders.iter().map(|(name, _)| name.clone()).collect();
    held_until_the_lease_ends(&cluster, next, &names, granted);
}

/// An owner that has come back to the next leader is bound to its new connection.
#[test]
fn a_grant_ends_with_the_connection_on_which_its_owner_has_come_back() {
    let mut cluster = Cluster::start();
    let leader = cluster.leader();
    let holders = holders(cluster.clients[leader]);
    cluster.kill(leader);
    let next = another_leader(&mut cluster, leader);
    let next = cluster.clients[next];
    drop(holders);
    let lease = LEASE.as_millis();
    let is_held = |name: &str| !ask(next, &["LOCK.ACQUIRE", name, "you", "1"]).unwrap().starts_with(':');
    let until_free = |name: &str| {
        let got = Session::open(next).ask(&format!("LOCK.ACQUIRE {name} you 1 WAIT 2000"));
        assert!(got.starts_with(':'), "{name} is not free after the end of its owner's connection: {got}");
    };
    assert!(["unnamed", "named", "all", "all2", "subscribed"].into_iter().all(is_held));
    // By RENEW.
    let mut session = Session::open(next);
    assert!(session.ask(&format!("LOCK.RENEW unnamed me {lease}")).starts_with(':'));
    drop(session);
    until_free("unnamed");
    // By ACQUIRE, with and without SESSION.
    let mut session = Session::open(next);
    assert!(session.ask(&format!("LOCK.ACQUIRE subscribed me {lease}")).starts_with(':'));
    drop(session);
    until_free("subscribed");
    // By the name of the session, with its grace.
    let mut session = Session::open(next);
    assert_eq!(session.ask("LOCK.SESSION s1"), ":1");
    drop(session);
    std::thread::sleep(Duration::from_millis(50));
    assert!(is_held("named"), "it has its grace");
    until_free("named");
    // A renewal of one grant takes its session over, and so all of its grants.
    let mut session = Session::open(next);
    assert!(session.ask(&format!("LOCK.RENEW all me {lease}")).starts_with(':'));
    drop(session);
    until_free("all2");
    until_free("all");
}
