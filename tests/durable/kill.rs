//! SIGKILL at random moments, under load: nothing that a client was told is lost.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::random::Random;
use crate::common::wire::{Frame, Wire};
use crate::load::{Client, LockInfo, ROUNDING_MS};
use crate::process::{Folder, Server, full_size, wait_for};

/// The locks that clients share.
const NAMES: [&str; 4] = ["shared:0", "shared:1", "shared:2", "shared:3"];
/// Their leases. The short ones end between two requests, during a restart, and never.
const LEASES_MS: [u64; 4] = [5, 60, 400, 600_000];

/// A grant of a shared lock that a client was told of.
#[derive(Clone, Debug)]
struct Grant {
    name: &'static str,
    token: i64,
    lease_ms: u64,
    /// When the lease began at the earliest.
    since: Instant,
}

impl Grant {
    /// Whether the lease certainly goes on at this moment.
    fn lives_at(&self, now: Instant) -> bool {
        now < self.since + Duration::from_millis(self.lease_ms)
    }
}

/// A request that may have been carried out or not.
#[derive(Clone, Debug)]
enum Unanswered {
    Acquire { name: &'static str, lease_ms: u64, since: Instant, request: u64, found: Option<i64> },
    Release { request: u64 },
}

/// A client's part in the shared locks: it holds at most one at a time.
pub struct Shared {
    owner: String,
    sent: u64,
    grant: Option<Grant>,
    unanswered: Option<Unanswered>,
}

impl Shared {
    pub fn new(number: usize) -> Shared {
        Shared { owner: format!("client:{number}"), sent: 0, grant: None, unanswered: None }
    }

    /// Makes a request. Pushes a new token.
    pub fn step(&mut self, wire: &mut Wire, random: &mut Random, tokens: &mut Vec<i64>) -> io::Result<()> {
        self.sent += 1;
        match &mut self.grant {
            None => {
                let (name, lease_ms) = (*random.pick(&NAMES), *random.pick(&LEASES_MS));
                let (since, request) = (Instant::now(), self.sent);
                self.unanswered = Some(Unanswered::Acquire { name, lease_ms, since, request, found: None });
                self.repeat(wire, tokens)
            }
            // A long lease is kept over several requests, and sometimes over a kill. A short one may end by itself.
            Some(grant) if random.one_in(if grant.lease_ms > 1000 { 8 } else { 3 }) => {
                self.unanswered = Some(Unanswered::Release { request: self.sent });
                self.repeat(wire, tokens)
            }
            Some(grant) if random.one_in(3) => {
                let (lease, token) = (grant.lease_ms.to_string(), grant.token.to_string());
                let began = Instant::now();
                let reply = wire.call(&["LOCK.RENEW", grant.name, &self.owner, &lease, "TOKEN", &token])?.frame;
                match reply.integer() {
                    Some(_) => grant.since = began,
                    None => self.lost(&reply),
                }
                Ok(())
            }
            Some(_) => Ok(()),
        }
    }

    /// Makes the unanswered request again, on a new connection and with the same request id, or for the first time.
    pub fn repeat(&mut self, wire: &mut Wire, tokens: &mut Vec<i64>) -> io::Result<()> {
        match self.unanswered.clone() {
            None => return Ok(()),
            Some(Unanswered::Acquire { name, lease_ms, since, request, found }) => {
                let (lease, request) = (lease_ms.to_string(), request.to_string());
                let reply = wire.call(&["LOCK.ACQUIRE", name, &self.owner, &lease, "REQUEST", &request])?.frame;
                if let Some(token) = reply.integer() {
                    match found {
                        Some(found) => assert_eq!(token, found, "another grant of {name} for the same request of {}", self.owner),
                        None => tokens.push(token),
                    }
                    self.grant = Some(Grant { name, token, lease_ms, since });
                } else {
                    let ended = reply.is_error("NOTHELD") || reply == Frame::NilBulk;
                    let lives = found.is_some() && Instant::now() < since + Duration::from_millis(lease_ms);
                    assert!(ended && !lives, "{name} of {}: {reply:?}", self.owner);
                }
            }
            Some(Unanswered::Release { request }) => {
                let Some(grant) = &self.grant else { panic!("a release without a grant") };
                let (token, request) = (grant.token.to_string(), request.to_string());
                let reply = wire.call(&["LOCK.RELEASE", grant.name, &self.owner, "TOKEN", &token, "REQUEST", &request])?.frame;
                match reply.integer() {
                    Some(left) => assert_eq!(left, 0),
                    None => self.lost(&reply),
                }
                self.grant = None;
            }
        }
        self.unanswered = None;
        Ok(())
    }

    /// The grant is not held any more, according to the server. Its lease must have ended.
    fn lost(&mut self, reply: &Frame) {
        let grant = self.grant.take();
        assert!(reply.is_error("NOTHELD"), "{reply:?}");
        let lives = grant.as_ref().is_some_and(|grant| grant.lives_at(Instant::now()));
        assert!(!lives, "a lease of {} has ended early: {grant:?}", self.owner);
    }
}

/// Checks the holders of the shared locks after a restart, against what all clients were told.
fn check_shared(wire: &mut Wire, clients: &mut [Client]) {
    for name in NAMES {
        let holder = LockInfo::read(wire, name);
        let now = Instant::now();
        for client in clients.iter().map(|client| &client.shared) {
            let Some(grant) = client.grant.as_ref().filter(|grant| grant.name == name && grant.lives_at(now)) else { continue };
            let may_be_released = matches!(client.unanswered, Some(Unanswered::Release { .. }));
            match &holder {
                Some(holder) if holder.token == grant.token => {
                    let least_ms = grant.lease_ms as i64 - now.duration_since(grant.since).as_millis() as i64 - ROUNDING_MS;
                    assert!(holder.left_ms >= least_ms, "{holder:?} has less than {least_ms} ms");
                    assert_eq!((&holder.owner, holder.holds), (&client.owner, 1));
                }
                _ => assert!(may_be_released, "{} was told {grant:?}, but the holder is {holder:?}", client.owner),
            }
        }
        let Some(holder) = holder else { continue };
        let client = clients.iter_mut().find(|client| client.shared.owner == holder.owner);
        let Client { shared, tokens, .. } = client.unwrap_or_else(|| panic!("nobody is {holder:?}"));
        match (&shared.grant, &mut shared.unanswered) {
            (Some(grant), _) => assert_eq!((grant.name, grant.token), (name, holder.token)),
            (None, Some(Unanswered::Acquire { name: asked, found, .. })) => {
                assert_eq!(*asked, name, "{holder:?}");
                // Another check may have found it before.
                if *found != Some(holder.token) {
                    assert_eq!(*found, None, "two grants for one request: {holder:?}");
                    *found = Some(holder.token);
                    tokens.push(holder.token);
                }
            }
            (None, _) => panic!("{holder:?} did not ask for {name}, or has released it"),
        }
    }
}

/// The tokens of all rounds.
#[derive(Default)]
struct Tokens {
    given: HashMap<i64, u64>,
    /// The largest one of all finished rounds.
    last: i64,
}

impl Tokens {
    /// Takes the tokens that were given in a round.
    fn take(&mut self, clients: &mut [Client], round: u64) {
        let before = self.last;
        for token in clients.iter_mut().flat_map(|client| std::mem::take(&mut client.tokens)) {
            assert!(token > before, "round {round} gave token {token}, earlier ones went up to {before}");
            let earlier = self.given.insert(token, round);
            assert_eq!(earlier, None, "token {token} was given twice");
            self.last = self.last.max(token);
        }
    }
}

#[test]
fn what_was_acknowledged_survives_every_kill() {
    let (rounds, count) = if full_size() { (1000, 64) } else { (5, 16) };
    let seed = std::env::var("PORTCULLIS_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
    println!("PORTCULLIS_SEED={seed}");
    let mut random = Random::new(seed);
    let folder = Folder::new();
    let mut clients: Vec<Client> = (0..count).map(|number| Client::new(number, seed)).collect();
    let (mut tokens, answered, mut rewrites) = (Tokens::default(), AtomicU64::new(0), 0);
    for round in 0..=rounds {
        let args = ["--appendfsync", "always"];
        if random.one_in(4) {
            Server::kill_early(&folder, &args, Duration::from_micros(random.below(20_000)));
        }
        let server = Server::start(&folder, &args);
        let mut wire = server.wire();
        clients.iter_mut().for_each(|client| client.check(&mut wire));
        check_shared(&mut wire, &mut clients);
        tokens.take(&mut clients, round);
        if round == rounds {
            break;
        }
        let (addr, answered) = (server.addr, &answered);
        let until = answered.load(Ordering::Relaxed) + random.below(200 * count as u64);
        std::thread::scope(|scope| {
            let running: Vec<_> = clients.iter_mut().map(|client| scope.spawn(move || client.run(addr, answered))).collect();
            wait_for("answers", || {
                // Every other server makes new bases all the time, the others none.
                if round % 2 == 1 {
                    assert!(wire.call(&["BGREWRITEAOF"]).is_ok());
                }
                let failed = running.iter().any(|client| client.is_finished());
                // Some servers live until there is a base: increments must not become more than a server reads in its life.
                let based = round % 16 != 15 || crate::process::figure(&mut wire, "aof_rewrites") > 0;
                (failed || (based && answered.load(Ordering::Relaxed) >= until)).then_some(())
            });
            rewrites += crate::process::figure(&mut wire, "aof_rewrites");
            server.kill();
        });
    }
    let (answered, tokens) = (answered.into_inner(), tokens.given.len());
    println!("{rounds} kills of {count} clients: {answered} answers and {tokens} tokens are right, over {rewrites} new bases");
    assert!(answered > 100 * rounds && tokens > 0);
}
