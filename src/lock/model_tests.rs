//! Locks against a naive reference: random operations by random owners over a few names, with leases that end, waits that time out,
//! requests that are sent again, connections that close, named sessions that outlive them or are taken over, and restarts. The reference keeps plain lists, finds who can be granted what by looking at everybody, and cycles by
//! walking from owner to owner.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::test_runner::RngAlgorithm;

use super::*;
use crate::engine::time::Now;
use crate::lock::history::What;
use crate::lock::locks::Cause;
use crate::lock::queue::Wanted;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const OWNERS: [&str; 5] = ["v", "w", "x", "y", "z"];
/// The last name is that of a semaphore.
const LIMIT: u32 = 3;
const SESSIONS: [&str; 2] = ["s", "t"];
const IDS: [&str; 4] = ["q", "r", "u", "p"];
/// Milliseconds for which answers are kept, and a session waits at least after a restart.
const KEPT_MS: u64 = 25;
const GRACE_MIN_MS: u64 = 7;

#[derive(Clone, Debug)]
enum Op {
    Acquire { name: usize, owner: usize, shared: bool, session: bool, extra: u64, with: With },
    AcquireAll { first: usize, count: usize, owner: usize, with: With },
    Semaphore { owner: usize, permits: u32, with: With },
    Release { name: usize, owner: usize, all: bool, token: Token, request: Option<usize> },
    Renew { name: usize, owner: usize, lease: u64, token: Token },
    NameSession { client: u64, session: usize, grace: Option<u64> },
    EndSession { session: usize },
    Restart,
    Delete { name: usize },
    Plain { name: usize },
    Close { client: u64 },
    Leave { client: u64 },
    Flush,
    Pass { ms: u64 },
}

/// What all acquisitions have.
#[derive(Clone, Debug)]
struct With {
    client: u64,
    lease: u64,
    wait: Option<u64>,
    request: Option<usize>,
}

/// Which token is given.
#[derive(Clone, Copy, Debug)]
enum Token {
    None,
    /// That of the owner's grant.
    Current,
    /// One that was given before.
    Old,
}

fn op() -> impl Strategy<Value = Op> {
    let (name, owner, client) = (0..3usize, 0..5usize, 1..9u64);
    let lease = prop_oneof![3 => 1..30u64, 1 => 100..200u64];
    let wait = prop_oneof![1 => Just(None), 2 => (1..40u64).prop_map(Some), 2 => Just(Some(0))];
    let request = prop_oneof![2 => Just(None), 1 => (0..IDS.len()).prop_map(Some)];
    let token = prop_oneof![4 => Just(Token::None), 2 => Just(Token::Current), 1 => Just(Token::Old)];
    let with = (client.clone(), lease.clone(), wait, request.clone()).prop_map(|(client, lease, wait, request)| With {
        client,
        lease,
        wait,
        request,
    });
    let acquire = (name.clone(), owner.clone(), any::<bool>(), any::<bool>(), 0..12u64, with.clone());
    prop_oneof![
        12 => acquire.prop_map(|(name, owner, shared, session, extra, with)| Op::Acquire {
            name, owner, shared, session, extra, with }),
        3 => (0..3usize, 1..4usize, owner.clone(), with.clone()).prop_map(
            |(first, count, owner, with)| Op::AcquireAll { first, count, owner, with }),
        3 => (owner.clone(), 1..=LIMIT, with).prop_map(|(owner, permits, with)| Op::Semaphore { owner, permits, with }),
        8 => (0..4usize, owner.clone(), any::<bool>(), token.clone(), request).prop_map(
            |(name, owner, all, token, request)| Op::Release { name, owner, all, token, request }),
        2 => (0..4usize, owner, lease, token).prop_map(|(name, owner, lease, token)| Op::Renew { name, owner, lease, token }),
        2 => (client.clone(), 0..2usize, prop_oneof![Just(None), (0..20u64).prop_map(Some)]).prop_map(
            |(client, session, grace)| Op::NameSession { client, session, grace }),
        1 => prop_oneof![(0..2usize).prop_map(|session| Op::EndSession { session }), Just(Op::Restart)],
        1 => (0..4usize).prop_map(|name| Op::Delete { name }),
        1 => name.prop_map(|name| Op::Plain { name }),
        1 => client.clone().prop_map(|client| Op::Close { client }),
        1 => client.prop_map(|client| Op::Leave { client }),
        1 => prop_oneof![9 => Just(Op::Pass { ms: 1 }), 1 => Just(Op::Flush)],
        6 => (1..15u64).prop_map(|ms| Op::Pass { ms }),
    ]
}

/// The names as a map.
#[derive(Default)]
struct Map {
    held: BTreeMap<&'static str, Option<Lock>>,
    taken: BTreeSet<&'static str>,
    now_ms: u64,
}

/// One of [`NAMES`] or [`OWNERS`].
fn text(name: &[u8]) -> &'static str {
    NAMES.into_iter().chain(OWNERS).find(|known| known.as_bytes() == name).expect("a name")
}

impl Keys for Map {
    fn take(&mut self, _: u32, name: &[u8], into: &mut Lock) -> Found {
        assert!(into.is_free() && into.limit == 0, "a lock is taken into one that is free");
        assert!(!self.taken.contains(text(name)), "what was taken is put back before it is taken again");
        match self.held.get(text(name)) {
            None => Found::Free,
            Some(None) => Found::Plain,
            Some(Some(lock)) => {
                self.taken.insert(text(name));
                *into = lock.clone();
                Found::Lock
            }
        }
    }

    fn put(&mut self, _: u32, name: &[u8], lock: &mut Lock) {
        self.taken.remove(text(name));
        if lock.is_free() {
            if !matches!(self.held.get(text(name)), Some(None)) {
                self.held.remove(text(name));
            }
        } else {
            lock.holders.check_invariants();
            assert!(lock.deadline_ms() > self.now_ms, "what has ended is not kept");
            self.held.insert(text(name), Some(std::mem::take(lock)));
        }
    }

    fn put_back(&mut self, _: u32, name: &[u8], _: &mut Lock) {
        self.taken.remove(text(name));
    }

    fn happened(&mut self, _: u32, _: &[u8], _: What) {}
}

#[derive(Clone, Debug, PartialEq)]
struct Held {
    owner: &'static str,
    holds: u32,
    mode: Mode,
    permits: u32,
    end: u64,
    delay: u64,
    tie: Tie,
    /// Tells grants apart; the actual token is known by [`Reference::tokens`].
    grant: u64,
}

/// What a grant ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tie {
    None,
    Client(u64),
    /// A session, by the number that the reference gives it.
    Session(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    /// A grant.
    Granted(u64),
    /// Holds that were left.
    Released(u32),
}

/// What is remembered of an owner's requests for a name.
#[derive(Clone, Debug, Default)]
struct Answers {
    said: Vec<(&'static str, Said)>,
    forget: Option<u64>,
}

#[derive(Clone, Debug)]
struct Named {
    id: &'static str,
    grace: u64,
    client: Option<u64>,
    end: u64,
}

#[derive(Clone, Debug)]
struct Waiting {
    client: u64,
    owner: &'static str,
    names: Vec<&'static str>,
    mode: Mode,
    permits: u32,
    limit: u32,
    upgrade: bool,
    all: bool,
    lease: u64,
    extra: u64,
    tie: Tie,
    deadline: Option<u64>,
    serial: u64,
    request: Option<&'static str>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Name {
    plain: bool,
    held_back: u64,
    holders: Vec<Held>,
}

/// What a client was told in the end.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Told {
    Granted(u64, usize),
    TimedOut(u64),
    Refused(u64),
}

#[derive(Default)]
struct Reference {
    now: u64,
    names: BTreeMap<&'static str, Name>,
    /// In the order of their places.
    waiting: Vec<Waiting>,
    told: Vec<Told>,
    serial: u64,
    grants: u64,
    /// The tokens of grants, as they were found.
    tokens: BTreeMap<u64, u64>,
    answers: BTreeMap<(&'static str, &'static str), Answers>,
    sessions: BTreeMap<u64, Named>,
}

impl Reference {
    /// What a grant can be tied to now.
    fn usable(&self, tie: Tie, client: u64) -> Tie {
        match tie {
            Tie::Session(number) if self.sessions.get(&number).is_none_or(|session| session.client.is_none()) => {
                Tie::Client(client)
            }
            tie => tie,
        }
    }

    fn session_of(&self, client: u64) -> Option<u64> {
        self.sessions.iter().find(|(_, session)| session.client == Some(client)).map(|(&number, _)| number)
    }

    fn named(&self, id: &str) -> Option<u64> {
        self.sessions.iter().find(|(_, session)| session.id == id).map(|(&number, _)| number)
    }

    fn grants_of(&self, tie: Tie) -> usize {
        self.names.values().flat_map(|of| &of.holders).filter(|held| held.tie == tie).count()
    }

    /// Sessions end that have neither a connection nor a grant.
    fn drop_idle(&mut self) {
        let idle = |(number, session): (&u64, &Named)| {
            (session.client.is_none() && self.grants_of(Tie::Session(*number)) == 0).then_some(*number)
        };
        let idle: Vec<u64> = self.sessions.iter().filter_map(idle).collect();
        self.sessions.retain(|number, _| !idle.contains(number));
    }

    /// Ends all that is tied to something.
    fn end_tied(&mut self, tie: Tie) {
        let now = self.now;
        for (name, of) in &mut self.names {
            let (ended, left): (Vec<_>, Vec<_>) = of.holders.drain(..).partition(|held| held.tie == tie);
            of.holders = left;
            for held in ended {
                if held.delay > 0 {
                    of.held_back = of.held_back.max(now + held.delay);
                }
                Self::note_end(&mut self.answers, now, name, held.owner);
            }
        }
        self.drop_idle();
        self.serve();
    }

    fn note_end(
        answers: &mut BTreeMap<(&'static str, &'static str), Answers>,
        now: u64,
        name: &'static str,
        owner: &'static str,
    ) {
        if let Some(answers) = answers.get_mut(&(name, owner)) {
            answers.forget = Some(now + KEPT_MS);
        }
    }

    fn remember(&mut self, name: &'static str, owner: &'static str, id: &'static str, said: Said, ended: bool) {
        let answers = self.answers.entry((name, owner)).or_default();
        answers.said.push((id, said));
        if answers.said.len() > requests::ANSWERS {
            answers.said.remove(0);
        }
        answers.forget = ended.then_some(self.now + KEPT_MS);
    }

    /// The grant that a request was given.
    fn granted(&self, name: &'static str, owner: &'static str, id: &str) -> Option<u64> {
        let said = &self.answers.get(&(name, owner))?.said;
        said.iter().find_map(|&(of, said)| match said {
            Said::Granted(grant) if of == id => Some(grant),
            _ => None,
        })
    }

    fn leave_session(&mut self, client: u64) {
        let Some(number) = self.session_of(client) else { return };
        let grants = self.grants_of(Tie::Session(number));
        let now = self.now;
        if let Some(session) = self.sessions.get_mut(&number) {
            (session.client, session.end) = (None, now + session.grace);
            if grants == 0 || session.grace == 0 {
                self.sessions.remove(&number);
                self.end_tied(Tie::Session(number));
            }
        }
    }

    fn name(&mut self, name: &'static str) -> &mut Name {
        self.names.entry(name).or_default()
    }

    fn queue(&self, name: &str) -> Vec<&Waiting> {
        self.waiting.iter().filter(|waiting| waiting.names.contains(&name)).collect()
    }

    fn can_hold(&self, name: &str, waiting: &Waiting) -> bool {
        let Some(of) = self.names.get(name) else { return true };
        if of.plain || of.held_back > self.now {
            return false;
        }
        if waiting.limit > 0 {
            return of.holders.iter().map(|held| held.permits).sum::<u32>() + waiting.permits <= waiting.limit;
        }
        let others = || of.holders.iter().filter(|held| held.owner != waiting.owner);
        match waiting.mode {
            Mode::Exclusive => others().next().is_none(),
            Mode::Shared => of.holders.iter().all(|held| held.mode == Mode::Shared),
        }
    }

    fn has_alone(&self, name: &str, owner: &str) -> bool {
        let holders = self.names.get(name).map(|of| &of.holders[..]).unwrap_or_default();
        holders.iter().any(|held| held.owner == owner && held.mode == Mode::Exclusive)
    }

    fn hold(&mut self, name: &'static str, waiting: &Waiting, has_waited: bool) {
        let now = self.now;
        let tie = self.usable(waiting.tie, waiting.client);
        self.grants += 1;
        let new = self.grants;
        let held_tie = self.name(name).holders.iter().find(|held| held.owner == waiting.owner).map(|held| held.tie);
        // A grant that is replaced is tied to nothing for a moment, in which its session may end.
        let kept_tie = match held_tie {
            Some(Tie::Client(_)) => Tie::Client(waiting.client),
            Some(tie) => self.usable(tie, waiting.client),
            None => Tie::None,
        };
        let of = self.name(name);
        let end = now + waiting.lease;
        let mut grant = new;
        if let Some(held) = of.holders.iter_mut().find(|held| held.owner == waiting.owner) {
            held.holds += 1;
            if held.mode == Mode::Shared && waiting.mode == Mode::Exclusive {
                held.mode = Mode::Exclusive;
                held.tie = if tie == Tie::None { kept_tie } else { tie };
            } else if tie != Tie::None && held.tie == Tie::None {
                held.tie = tie;
            }
            grant = held.grant;
            held.delay = held.delay.max(waiting.extra);
            held.end = if has_waited { held.end.max(end) } else { end };
        } else {
            of.holders.push(Held {
                owner: waiting.owner,
                holds: 1,
                mode: waiting.mode,
                permits: waiting.permits,
                end,
                delay: waiting.extra,
                tie,
                grant,
            });
        }
        self.tokens.remove(&grant);
        if let Some(id) = waiting.request {
            self.remember(name, waiting.owner, id, Said::Granted(grant), false);
        }
        self.drop_idle();
    }

    /// Grants whatever can be.
    fn serve(&mut self) {
        'again: loop {
            for at in 0..self.waiting.len() {
                let waiting = self.waiting[at].clone();
                let own = |name: &&'static str| {
                    let of = self.names.get(name)?;
                    of.holders.iter().find(|held| held.owner == waiting.owner)
                };
                // In another connection its owner has been granted what goes for this one.
                let reenters = !waiting.all
                    && own(&waiting.names[0]).is_some_and(|held| held.mode == Mode::Exclusive || waiting.mode == held.mode);
                let first =
                    waiting.names.iter().all(|name| self.queue(name).first().is_some_and(|first| first.client == waiting.client));
                if reenters || (first && waiting.names.iter().all(|name| self.can_hold(name, &waiting))) {
                    self.waiting.remove(at);
                    for name in &waiting.names {
                        self.hold(name, &waiting, true);
                    }
                    self.told.push(Told::Granted(waiting.client, waiting.names.len()));
                    continue 'again;
                }
            }
            return;
        }
    }

    /// Whether somebody who waits for this has to wait for that owner.
    fn waits_for(&self, waiting: &Waiting, before: &[&Waiting], owner: &str) -> bool {
        if waiting.owner == owner {
            return false;
        }
        waiting.names.iter().any(|name| {
            let holders = self.names.get(name).map(|of| &of.holders[..]).unwrap_or_default();
            let holds = holders.iter().any(|held| held.owner == owner && !held.mode.goes_with(waiting.mode));
            let ahead = before
                .iter()
                .any(|other| other.owner == owner && other.names.contains(name) && !other.mode.goes_with(waiting.mode));
            holds || ahead
        })
    }

    /// Whether a wait closes a cycle: walks from owner to owner.
    fn closes_cycle(&self, new: &Waiting) -> bool {
        let mut all: Vec<&Waiting> = self.waiting.iter().collect();
        let at = if new.upgrade { 0 } else { all.len() };
        all.insert(at, new);
        let edges = |owner: &str| -> Vec<&'static str> {
            let mut to = Vec::new();
            for (place, waiting) in all.iter().enumerate() {
                if waiting.owner == owner && waiting.limit <= 1 {
                    to.extend(OWNERS.iter().filter(|of| self.waits_for(waiting, &all[..place], of)));
                }
            }
            to
        };
        let (mut seen, mut next) = (BTreeSet::new(), vec![new.owner]);
        while let Some(owner) = next.pop() {
            for to in edges(owner) {
                if to == new.owner {
                    return true;
                }
                if seen.insert(to) {
                    next.push(to);
                }
            }
        }
        false
    }

    /// One millisecond passes.
    fn tick(&mut self) {
        self.now += 1;
        let now = self.now;
        for (name, of) in &mut self.names {
            let (ended, left): (Vec<_>, Vec<_>) = of.holders.drain(..).partition(|held| held.end <= now);
            of.holders = left;
            for held in ended {
                if held.delay > 0 {
                    of.held_back = of.held_back.max(held.end + held.delay);
                }
                Self::note_end(&mut self.answers, now, name, held.owner);
            }
            if of.held_back <= now {
                of.held_back = 0;
            }
        }
        self.drop_idle();
        self.serve();
        let mut over: Vec<&Waiting> =
            self.waiting.iter().filter(|waiting| waiting.deadline.is_some_and(|at| at <= now)).collect();
        over.sort_by_key(|waiting| waiting.serial);
        let over: Vec<u64> = over.into_iter().map(|waiting| waiting.client).collect();
        for client in over {
            // Whoever was granted something by the end of another's wait has not waited in vain.
            if self.waiting.iter().any(|waiting| waiting.client == client) {
                self.leave(client);
                self.told.push(Told::TimedOut(client));
                self.serve();
            }
        }
        let over = |session: &Named| session.client.is_none() && session.end <= now;
        let over: Vec<u64> = self.sessions.iter().filter(|(_, session)| over(session)).map(|(&number, _)| number).collect();
        self.sessions.retain(|number, _| !over.contains(number));
        over.into_iter().for_each(|number| self.end_tied(Tie::Session(number)));
        self.answers.retain(|_, answers| answers.forget.is_none_or(|at| at > now));
    }

    fn leave(&mut self, client: u64) {
        self.waiting.retain(|waiting| waiting.client != client);
    }
}

struct World {
    map: Map,
    locks: Locks,
    now: Now,
    reference: Reference,
    /// The waiter of each client that waits.
    waiters: BTreeMap<u64, u32>,
    last_token: u64,
}

impl World {
    fn new() -> Self {
        let mut world = World {
            map: Map { now_ms: 1000, ..Map::default() },
            locks: Locks::new(5, 1),
            now: Now::new(1_000_000, 0),
            reference: Reference { now: 1000, ..Reference::default() },
            waiters: BTreeMap::new(),
            last_token: 0,
        };
        world.locks.requests.kept_ms = KEPT_MS;
        world
    }

    /// A request that was sent before: what both say. `None` where it is new.
    fn repeat(&mut self, new: &Waiting, wait: Option<u64>, got: &Result<Acquired, Refusal>) -> Option<Result<(), TestCaseError>> {
        let id = new.request?;
        let same =
            |old: &Waiting| old.owner == new.owner && old.request == Some(id) && old.names == new.names && old.all == new.all;
        if let Some(at) = self.reference.waiting.iter().position(same) {
            let old = self.reference.waiting[at].client;
            self.reference.told.push(Told::TimedOut(old));
            let place = &mut self.reference.waiting[at];
            if let Some(ms) = wait {
                place.client = new.client;
                place.deadline = (ms > 0).then(|| self.now.deadline_in(ms));
                place.tie = if new.tie == Tie::None { place.tie } else { new.tie };
                if place.tie == Tie::Client(old) {
                    place.tie = Tie::Client(new.client);
                }
                let waiter = self.waiters.get(&old).copied();
                if *got != Ok(Acquired::Waits(waiter.unwrap_or(u32::MAX))) {
                    return Some(Err(TestCaseError::fail(format!("does not take {old}'s place over: {new:?} {got:?}"))));
                }
                self.waiters.extend(waiter.map(|waiter| (new.client, waiter)));
            } else {
                self.reference.waiting.remove(at);
                self.reference.serve();
                if *got != Ok(Acquired::Busy) {
                    return Some(Err(TestCaseError::fail(format!("waits: {new:?} {got:?}"))));
                }
            }
            return Some(Ok(()));
        }
        let known: Vec<Option<u64>> = new.names.iter().map(|name| self.reference.granted(name, new.owner, id)).collect();
        if known.iter().all(Option::is_none) {
            return None;
        }
        let now = self.reference.now;
        let tie = self.reference.usable(new.tie, new.client);
        let holds = |reference: &Reference, (name, grant): (&&'static str, &Option<u64>)| {
            let holders = reference.names.get(name).map(|of| &of.holders[..]).unwrap_or_default();
            holders.iter().any(|held| held.owner == new.owner && Some(held.grant) == *grant)
        };
        let all = new.names.iter().zip(&known).all(|of| holds(&self.reference, of));
        let right = match got {
            Ok(Acquired::Granted(token)) => all && self.reference.tokens.get(&known[0].unwrap_or(0)) == Some(token),
            Err(Refusal::Ended(..)) => !all,
            _ => false,
        };
        if !right {
            return Some(Err(TestCaseError::fail(format!("sent again: {new:?} {got:?}, holds: {all}"))));
        }
        if all {
            for name in &new.names {
                let of = self.reference.name(name);
                for held in of.holders.iter_mut().filter(|held| held.owner == new.owner) {
                    held.end = held.end.max(now + new.lease);
                    held.tie = if tie == Tie::None { held.tie } else { tie };
                }
            }
            self.reference.drop_idle();
        }
        Some(Ok(()))
    }

    /// What a grant of this client is bound to.
    fn tie(&self, client: u64, session: bool) -> Tie {
        match self.reference.session_of(client) {
            _ if !session => Tie::None,
            Some(number) => Tie::Session(number),
            None => Tie::Client(client),
        }
    }

    /// The actual number of the session that the reference has under another.
    fn actual_session(&self, number: u64) -> Option<u64> {
        let session = self.reference.sessions.get(&number)?;
        self.locks.sessions.find(session.id.as_bytes())
    }

    /// Notes the tokens of new grants.
    fn note_tokens(&mut self) {
        for (name, of) in &self.reference.names {
            let lock = self.map.held.get(name).and_then(Option::as_ref);
            for held in &of.holders {
                if let Some(grant) = lock.and_then(|lock| lock.holders.get(held.owner.as_bytes())) {
                    self.reference.tokens.entry(held.grant).or_insert(grant.token);
                }
            }
        }
    }

    fn token(&self, name: &'static str, owner: &'static str, which: Token) -> Option<u64> {
        let holders = self.reference.names.get(name).map(|of| &of.holders[..]).unwrap_or_default();
        let held = holders.iter().find(|held| held.owner == owner);
        let token = held.and_then(|held| self.reference.tokens.get(&held.grant)).copied();
        match which {
            Token::None => None,
            Token::Current => Some(token.unwrap_or(1)),
            Token::Old => Some(self.reference.tokens.values().copied().filter(|&old| Some(old) != token).max().unwrap_or(0)),
        }
    }

    /// All but the locks, their sessions and requests is lost.
    fn restart(&mut self) {
        let old = std::mem::replace(&mut self.locks, Locks::new(5, 1));
        self.locks.requests.kept_ms = KEPT_MS;
        self.locks.set_next_token(old.next_token());
        for (number, session) in old.sessions.iter() {
            let end_ms = self.now.deadline_in(session.grace_ms.max(GRACE_MIN_MS)).max(session.end_ms);
            self.locks.adopt_session(number, sessions::Session { client: None, end_ms, ..session.clone() });
        }
        let mut requests: Vec<_> = old.requests.iter().collect();
        requests.sort_by_key(|(_, remembered)| remembered.forget_ms);
        for (whose, remembered) in requests {
            self.locks.adopt_requests(whose, remembered.clone());
        }
        for name in NAMES {
            if let Some(Some(lock)) = self.map.held.get(name).cloned() {
                self.map.held.remove(name);
                self.locks.adopt(&mut self.map, self.now, (0, name.as_bytes()), lock, |_| false);
            }
        }
        self.locks.finish_adopting(&mut self.map, self.now);
        self.waiters.clear();
        let reference = &mut self.reference;
        reference.waiting.clear();
        let now = reference.now;
        for session in reference.sessions.values_mut() {
            let before = if session.client.is_none() { session.end } else { 0 };
            (session.client, session.end) = (None, before.max(now + session.grace.max(GRACE_MIN_MS)));
        }
        (1..9).for_each(|client| reference.end_tied(Tie::Client(client)));
        reference.drop_idle();
    }

    fn is_waiting(&self, client: u64) -> bool {
        self.waiters.contains_key(&client)
    }

    /// Asks both for the same.
    fn acquire(&mut self, new: Waiting, wait: Option<u64>) -> Result<(), TestCaseError> {
        if self.is_waiting(new.client) {
            return Ok(());
        }
        let client = Client { id: new.client, slot: 0 };
        let wanted = Wanted {
            mode: new.mode,
            permits: new.permits,
            limit: new.limit,
            lease_ms: new.lease,
            max_hold_ms: 0,
            delay_ms: new.extra as u32,
            bound: match new.tie {
                Tie::None => Bound::Lease,
                Tie::Client(_) => Bound::Connection,
                Tie::Session(number) => self.actual_session(number).map_or(Bound::Connection, Bound::Session),
            },
        };
        let id = new.request.map(str::as_bytes);
        let request = Request { owner: new.owner.as_bytes(), client, wanted, id };
        let deadline = wait.map(|ms| (ms > 0).then(|| self.now.deadline_in(ms)));
        let names: Vec<&[u8]> = new.names.iter().map(|name| name.as_bytes()).collect();
        let got = if new.all {
            let got = self.locks.acquire_all(&mut self.map, self.now, 0, &names, &request, deadline);
            got.map(|got| match got {
                Ok(tokens) => {
                    assert_eq!(tokens.len(), names.len());
                    Acquired::Granted(tokens[0])
                }
                Err(Some(waiter)) => Acquired::Waits(waiter),
                Err(None) => Acquired::Busy,
            })
        } else {
            self.locks.acquire(&mut self.map, self.now, (0, names[0]), &request, deadline)
        };
        self.locks.work(&mut self.map, self.now);

        if let Some(compared) = self.repeat(&new, wait, &got) {
            return compared;
        }
        // The reference.
        let mut new = new;
        let own = |name: &str, reference: &Reference| {
            let holders = reference.names.get(name).map(|of| of.holders.clone()).unwrap_or_default();
            holders.into_iter().find(|held| held.owner == new.owner)
        };
        let held = if new.all { None } else { own(new.names[0], &self.reference) };
        let reenters = held.as_ref().is_some_and(|held| held.mode == Mode::Exclusive || held.mode == new.mode);
        new.upgrade = held.is_some() && !reenters;
        let upgrade = new.upgrade;
        let unclaimed = new.names.iter().all(|name| {
            upgrade || self.reference.queue(name).is_empty() || (new.all && self.reference.has_alone(name, new.owner))
        });
        let can = reenters || (unclaimed && new.names.iter().all(|name| self.reference.can_hold(name, &new)));
        match got {
            Ok(Acquired::Granted(_)) => {
                prop_assert!(can, "granted what is not free: {new:?}");
                for name in new.names.clone() {
                    self.reference.hold(name, &new, false);
                }
                self.reference.serve();
            }
            Ok(Acquired::Busy) => prop_assert!(!can && wait.is_none(), "refused what is free: {new:?}"),
            Ok(Acquired::Waits(waiter)) => {
                prop_assert!(!can && wait.is_some(), "waits for what is free: {new:?}");
                let cycle = new.limit <= 1 && self.reference.closes_cycle(&new);
                prop_assert!(!cycle, "closes a cycle: {new:?}");
                new.deadline = deadline.flatten();
                self.reference.serial += 1;
                new.serial = self.reference.serial;
                self.waiters.insert(new.client, waiter);
                let at = if upgrade { 0 } else { self.reference.waiting.len() };
                self.reference.waiting.insert(at, new);
            }
            Err(Refusal::Deadlock(text)) => {
                prop_assert!(!can && wait.is_some() && self.reference.closes_cycle(&new), "no cycle: {new:?}");
                let text = String::from_utf8_lossy(&text).into_owned();
                let begins = format!("'{}' waits for '", new.owner);
                prop_assert!(text.starts_with(&begins) && text.ends_with(&format!("by '{}'", new.owner)), "{}", text);
            }
            Err(other) => prop_assert!(false, "{other:?}"),
        }
        Ok(())
    }

    fn step(&mut self, op: Op) -> Result<(), TestCaseError> {
        let blank = Waiting {
            client: 0,
            owner: OWNERS[0],
            names: Vec::new(),
            mode: Mode::Exclusive,
            permits: 1,
            limit: 0,
            upgrade: false,
            all: false,
            lease: 1,
            extra: 0,
            tie: Tie::None,
            deadline: None,
            serial: 0,
            request: None,
        };
        match op {
            Op::Acquire { name, owner, shared, session, extra, with: With { client, lease, wait, request } } => {
                let mode = if shared { Mode::Shared } else { Mode::Exclusive };
                // Mostly none.
                let extra = extra.saturating_sub(8);
                let (owner, names) = (OWNERS[owner], vec![NAMES[name]]);
                let (tie, request) = (self.tie(client, session), request.map(|id| IDS[id]));
                self.acquire(Waiting { client, owner, names, mode, lease, extra, tie, request, ..blank }, wait)?;
            }
            Op::AcquireAll { first, count, owner, with: With { client, lease, wait, request } } => {
                let names = (0..count).map(|at| NAMES[(first + at) % 3]).collect();
                let request = request.map(|id| IDS[id]);
                self.acquire(Waiting { client, owner: OWNERS[owner], names, lease, all: true, request, ..blank }, wait)?;
            }
            Op::Semaphore { owner, permits, with: With { client, lease, wait, request } } => {
                let (owner, names, request) = (OWNERS[owner], vec![NAMES[3]], request.map(|id| IDS[id]));
                self.acquire(Waiting { client, owner, names, permits, limit: LIMIT, lease, request, ..blank }, wait)?;
            }
            Op::Release { name, owner, all, token, request } => {
                let (name, owner, request) = (NAMES[name], OWNERS[owner], request.map(|id| IDS[id]));
                let token = self.token(name, owner, token);
                let claim = Claim { owner: owner.as_bytes(), semaphore: name == "d", token };
                let id = request.map(str::as_bytes);
                let got = self.locks.release(&mut self.map, self.now, (0, name.as_bytes()), &claim, all, id);
                let before = request.and_then(|id| {
                    let said = &self.reference.answers.get(&(name, owner))?.said;
                    said.iter().find_map(|&(of, said)| match said {
                        Said::Released(left) if of == id => Some(left),
                        _ => None,
                    })
                });
                if let Some(left) = before {
                    prop_assert_eq!(got, Ok(left), "a release that is sent again has the first answer");
                    return self.compare();
                }
                let now = self.reference.now;
                let tokens = self.reference.tokens.clone();
                let of = self.reference.name(name);
                let meant = |held: &Held| token.is_none() || tokens.get(&held.grant) == token.as_ref();
                let at = of.holders.iter().position(|held| held.owner == owner && meant(held));
                match (got, at) {
                    (Ok(left), Some(at)) => {
                        let holds = if all { 0 } else { of.holders[at].holds - 1 };
                        prop_assert_eq!(left, holds);
                        of.holders[at].holds = holds;
                        if holds == 0 {
                            of.holders.remove(at);
                            Reference::note_end(&mut self.reference.answers, now, name, owner);
                        }
                        if let Some(id) = request {
                            self.reference.remember(name, owner, id, Said::Released(holds), holds == 0);
                        }
                        self.reference.drop_idle();
                        self.reference.serve();
                    }
                    (Err(Refusal::NotHeld(cause)), None) => {
                        if let Cause::HeldBy { owner: holder, .. } = &cause {
                            let holder = String::from_utf8_lossy(holder).into_owned();
                            prop_assert!(of.holders.iter().any(|held| held.owner == holder));
                        }
                        let other = of.holders.iter().any(|held| held.owner == owner);
                        prop_assert_eq!(matches!(cause, Cause::OtherToken { .. }), other, "of another grant");
                    }
                    (Err(Refusal::WrongType), None) => prop_assert!(of.plain),
                    (got, at) => prop_assert!(false, "{got:?} {at:?}"),
                }
            }
            Op::Renew { name, owner, lease, token } => {
                let (name, owner) = (NAMES[name], OWNERS[owner]);
                let token = self.token(name, owner, token);
                let claim = Claim { owner: owner.as_bytes(), semaphore: name == "d", token };
                let got = self.locks.renew(&mut self.map, self.now, (0, name.as_bytes()), &claim, lease);
                let now = self.reference.now;
                let tokens = self.reference.tokens.clone();
                let meant = |held: &Held| token.is_none() || tokens.get(&held.grant) == token.as_ref();
                let held = self.reference.name(name).holders.iter_mut().find(|held| held.owner == owner && meant(held));
                prop_assert_eq!(got.is_ok(), held.is_some());
                if let (Some(held), Ok(left)) = (held, got) {
                    prop_assert_eq!(left, lease);
                    held.end = now + lease;
                }
            }
            Op::Delete { name } => {
                let name = NAMES[name];
                match self.map.held.remove(name) {
                    Some(Some(lock)) => self.locks.deleted(self.now, (0, name.as_bytes()), lock, Client::default()),
                    _ => self.locks.gone(0, name.as_bytes()),
                }
                self.locks.work(&mut self.map, self.now);
                let now = self.reference.now;
                for held in self.reference.names.remove(name).into_iter().flat_map(|of| of.holders) {
                    Reference::note_end(&mut self.reference.answers, now, name, held.owner);
                }
                self.reference.drop_idle();
                self.reference.serve();
            }
            Op::NameSession { client, session, grace } => {
                if self.is_waiting(client) {
                    return Ok(());
                }
                let id = SESSIONS[session];
                let of = (id.as_bytes(), &b"user"[..]);
                let got = self.locks.name_session(self.now, Client { id: client, slot: 0 }, of, grace);
                self.locks.end_over(&mut self.map, self.now, &mut 1000);
                let known = self.reference.named(id);
                let left = self.reference.session_of(client).filter(|&number| Some(number) != known);
                let now = self.reference.now;
                let mut over = None;
                if let Some(number) = left {
                    let grants = self.reference.grants_of(Tie::Session(number));
                    if let Some(session) = self.reference.sessions.get_mut(&number) {
                        (session.client, session.end) = (None, now + session.grace);
                        over = (grants == 0 || session.grace == 0).then_some(number);
                    }
                    self.reference.sessions.retain(|&number, _| Some(number) != over);
                }
                let number = known.unwrap_or_else(|| {
                    self.reference.serial += 1;
                    self.reference.serial
                });
                let new = Named { id, grace: 0, client: None, end: 0 };
                let named = self.reference.sessions.entry(number).or_insert(new);
                (named.client, named.grace) = (Some(client), grace.unwrap_or(named.grace));
                prop_assert_eq!(got, Ok(self.reference.grants_of(Tie::Session(number)) as u64));
                over.into_iter().for_each(|number| self.reference.end_tied(Tie::Session(number)));
                let other = self.locks.name_session(self.now, Client { id: 99, slot: 0 }, (id.as_bytes(), b"other"), None);
                prop_assert!(other.is_err(), "another user takes it over");
            }
            Op::EndSession { session } => {
                let of = (SESSIONS[session].as_bytes(), &b"user"[..]);
                let got = self.locks.end_session(&mut self.map, self.now, of, &mut 1000);
                self.locks.end_over(&mut self.map, self.now, &mut 1000);
                let number = self.reference.named(SESSIONS[session]);
                let tie = Tie::Session(number.unwrap_or(0));
                prop_assert_eq!(got, Ok(self.reference.grants_of(tie) as u64));
                if let Some(number) = number {
                    self.reference.sessions.remove(&number);
                    self.reference.end_tied(tie);
                }
            }
            Op::Restart => self.restart(),
            Op::Plain { name } => {
                let name = NAMES[name];
                if !self.map.held.contains_key(name) && self.reference.queue(name).is_empty() {
                    self.map.held.insert(name, None);
                    self.reference.name(name).plain = true;
                }
            }
            Op::Close { client } => {
                if let Some(waiter) = self.waiters.remove(&client) {
                    self.locks.leave(&mut self.map, self.now, waiter);
                    self.locks.work(&mut self.map, self.now);
                    self.reference.leave(client);
                    self.reference.serve();
                }
                self.locks.leave_session(self.now, client);
                // In pieces, for what it is worth: nobody else does anything in between.
                while !self.locks.end_bound(&mut self.map, self.now, client, &mut 2) {}
                self.locks.end_over(&mut self.map, self.now, &mut 1000);
                let session = self.reference.session_of(client).filter(|&number| {
                    self.reference.sessions[&number].grace == 0 || self.reference.grants_of(Tie::Session(number)) == 0
                });
                if session.is_none() {
                    self.reference.leave_session(client);
                }
                self.reference.sessions.retain(|&number, _| Some(number) != session);
                self.reference.end_tied(Tie::Client(client));
                session.into_iter().for_each(|number| self.reference.end_tied(Tie::Session(number)));
            }
            Op::Leave { client } => {
                if let Some(waiter) = self.waiters.remove(&client) {
                    self.locks.leave(&mut self.map, self.now, waiter);
                    self.locks.work(&mut self.map, self.now);
                    self.reference.leave(client);
                    self.reference.serve();
                }
            }
            Op::Flush => {
                let origin = Origin {
                    db: 0,
                    home: 0,
                    at_ms: self.now.mono_ms(),
                    by: Client::default(),
                    next_token: self.locks.next_token(),
                };
                self.locks.flushed(origin);
                for (name, lock) in std::mem::take(&mut self.map.held) {
                    if let Some(lock) = lock {
                        self.locks.lost_with_database(origin, name.as_bytes(), lock);
                    }
                }
                self.locks.work(&mut self.map, self.now);
                let now = self.reference.now;
                for (name, of) in std::mem::take(&mut self.reference.names) {
                    of.holders.iter().for_each(|held| Reference::note_end(&mut self.reference.answers, now, name, held.owner));
                }
                self.reference.drop_idle();
                self.reference.serve();
            }
            Op::Pass { ms } => {
                for _ in 0..ms {
                    self.tick()?;
                }
            }
        }
        self.compare()
    }

    fn tick(&mut self) -> Result<(), TestCaseError> {
        self.now.mono_us += 1000;
        self.map.now_ms += 1;
        self.locks.advance(&mut self.map, self.now, &mut 1000);
        // The wheel ends what nobody waits for; what is contended was seen to.
        let ended = |lock: &Lock| lock.deadline_ms() <= self.map.now_ms;
        let over: Vec<&'static str> =
            self.map.held.iter().filter(|(_, lock)| lock.as_ref().is_some_and(ended)).map(|n| *n.0).collect();
        for name in over {
            let Some(Some(lock)) = self.map.held.remove(name) else { continue };
            if let Some(lock) = self.locks.lapsed(&mut self.map, self.now, (0, name.as_bytes()), lock) {
                self.map.held.insert(name, Some(lock));
            }
        }
        self.locks.advance(&mut self.map, self.now, &mut 1000);
        self.locks.requests.forget_some(self.map.now_ms, &mut 1000);
        self.reference.tick();
        self.note_tokens();
        self.compare_told()
    }

    /// Who was told what since the last time.
    fn compare_told(&mut self) -> Result<(), TestCaseError> {
        let mut told = Vec::new();
        for outcome in std::mem::take(&mut self.locks.outcomes) {
            match outcome {
                Outcome::Granted { client, tokens, .. } => told.push(Told::Granted(client.id, tokens.len())),
                Outcome::TimedOut { client, .. } => told.push(Told::TimedOut(client.id)),
                Outcome::Refused { client, .. } => told.push(Told::Refused(client.id)),
                Outcome::Lost { .. } => {}
            }
        }
        for told in &told {
            let (Told::Granted(client, _) | Told::TimedOut(client) | Told::Refused(client)) = told;
            prop_assert!(self.waiters.remove(client).is_some(), "told somebody who does not wait");
        }
        let mut expected = std::mem::take(&mut self.reference.told);
        told.sort();
        expected.sort();
        prop_assert_eq!(told, expected, "who was told what");
        Ok(())
    }

    /// What is remembered of requests, and the sessions.
    fn compare_records(&mut self) -> Result<(), TestCaseError> {
        prop_assert_eq!(self.locks.requests.len(), self.reference.answers.len(), "requests that are remembered");
        for (&(name, owner), answers) in &self.reference.answers {
            let got = self.locks.requests.of(0, name.as_bytes(), owner.as_bytes());
            let Some(got) = got else { return Err(TestCaseError::fail(format!("nothing is remembered of {owner} for {name}"))) };
            prop_assert_eq!(got.forget_ms, answers.forget.unwrap_or(0), "{} for {}", owner, name);
            prop_assert_eq!(got.answers.len(), answers.said.len());
            // Waits of one owner that are granted in the same step are answered in no order that a client can tell.
            for &(id, said) in &answers.said {
                let is_it = |answer| match (answer, said) {
                    (requests::Answer::Released(left), Said::Released(of)) => left == of,
                    (requests::Answer::Granted(token), Said::Granted(grant)) => {
                        self.reference.tokens.get(&grant).is_none_or(|&known| known == token)
                    }
                    _ => false,
                };
                let found = got.answers.iter().any(|answered| *answered.id == *id.as_bytes() && is_it(answered.answer));
                prop_assert!(found, "{:?} of {} for {}, by {}: {:?}", said, owner, name, id, got.answers);
            }
        }
        prop_assert_eq!(self.locks.sessions.count(), self.reference.sessions.len(), "sessions: {:?}", self.reference.sessions);
        for (number, session) in &self.reference.sessions {
            let got = self.actual_session(*number).and_then(|number| self.locks.sessions.get(number));
            let got = got.map(|got| (got.grace_ms, got.client.map(|client| client.id), got.end_ms, got.grants));
            let end = if session.client.is_some() { 0 } else { session.end };
            let grants = self.reference.grants_of(Tie::Session(*number)) as u64;
            prop_assert_eq!(got, Some((session.grace, session.client, end, grants)), "{}", session.id);
        }
        Ok(())
    }

    fn compare(&mut self) -> Result<(), TestCaseError> {
        self.compare_told()?;
        self.note_tokens();
        self.compare_records()?;
        prop_assert!(self.map.taken.is_empty(), "all that was taken was put back");
        self.locks.check_invariants();
        let mut held = crate::lock::held::Held::default();
        for lock in self.map.held.values().flatten().filter(|lock| !lock.holders.is_empty()) {
            held.locks += u64::from(lock.limit == 0);
            held.semaphores += u64::from(lock.limit > 0);
            held.grants += lock.holders.len() as u64;
            held.permits += if lock.limit > 0 { lock.holders.permits() } else { 0 };
        }
        assert_eq!(self.locks.held.total(), held, "what is held is counted");
        let (none, free) = (Name::default(), Lock::default());
        for name in NAMES {
            if let (Some(of), Some(Some(lock))) = (self.reference.names.get_mut(name), self.map.held.get(name)) {
                // Of several connections in which one owner waited for it at a time, any may be the one that it is bound to: where leases
                // of several names end at once, it is a matter of which is seen to first.
                for held in of.holders.iter_mut().filter(|held| held.holds > 1 && matches!(held.tie, Tie::Client(_))) {
                    let bound = lock.holders.get(held.owner.as_bytes()).filter(|grant| grant.bound == Bound::Connection);
                    held.tie = bound.map_or(held.tie, |grant| Tie::Client(grant.client.id));
                }
            }
            let of = self.reference.names.get(name).unwrap_or(&none);
            let lock = self.map.held.get(name);
            prop_assert_eq!(lock.is_some_and(Option::is_none), of.plain);
            let lock = lock.and_then(Option::as_ref).unwrap_or(&free);
            // Nobody looks at the end of it where nobody waits.
            let held_back = if lock.held_back_ms > self.map.now_ms { lock.held_back_ms } else { 0 };
            prop_assert_eq!(held_back, of.held_back, "held back: {}", name);
            prop_assert_eq!(lock.holders.len(), of.holders.len(), "holders of {}", name);
            for held in &of.holders {
                let got = lock.holders.get(held.owner.as_bytes());
                let tie = match held.tie {
                    Tie::None => None,
                    Tie::Client(client) => Some(client),
                    Tie::Session(number) => self.actual_session(number).map(Bound::session_key),
                };
                let token = self.reference.tokens.get(&held.grant).copied().unwrap_or(0);
                let got = got.map(|g| (g.holds, g.mode, g.permits, g.end_ms, g.bound.key(g.client), g.token));
                let wanted = (held.holds, held.mode, held.permits, held.end, tie, token);
                prop_assert_eq!(got, Some(wanted), "{} as a holder of {}", held.owner, name);
            }
            // One alone, or several who share, or as many permits as there are.
            let alone = lock.holders.iter().any(|grant| grant.mode == Mode::Exclusive);
            prop_assert!(lock.limit > 0 || !alone || lock.holders.len() == 1);
            prop_assert!(lock.limit == 0 || lock.holders.permits() <= u64::from(lock.limit));
            let queue = self.locks.queues.find(0, name.as_bytes());
            let links = queue.into_iter().flat_map(|queue| self.locks.queues.links_of(queue));
            let got = links.filter_map(|link| self.locks.queues.waiter(link.waiter)).map(|waiter| waiter.client.id);
            let queued = self.reference.queue(name);
            prop_assert!(got.eq(queued.iter().map(|waiting| waiting.client)), "the queue of {}: {:?}", name, queued);
            if let Some(queue) = queue.and_then(|queue| self.locks.queues.get(queue)).filter(|_| lock.limit <= 1) {
                let mut known =
                    queue.holders.iter().filter_map(|&(owner, mode)| Some((&self.locks.queues.owner(owner)?.name, mode)));
                prop_assert!(known.all(|(owner, mode)| lock.holders.get(owner).is_some_and(|grant| grant.mode == mode)));
                prop_assert_eq!(queue.holders.len(), lock.holders.len(), "a queue knows the holders of its name");
            }
        }
        let token = self.locks.next_token();
        prop_assert!(token >= self.last_token, "tokens grow");
        self.last_token = token;
        Ok(())
    }
}

/// So many times so many steps at most, half of them on average: a million, enough that nothing that goes wrong once in thousands is
/// missed.
const CASES: u32 = 10_500;
/// As many as the environment asks for, as `fuzz/long` does.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(CASES)
}
const STEPS_MAX: usize = 200;

proptest! {
    // The generator of random numbers that is cheap without optimization: the other took a third of the time.
    #![proptest_config(ProptestConfig { cases: cases(), rng_algorithm: RngAlgorithm::XorShift, ..ProptestConfig::default() })]

    #[test]
    fn locks_do_what_a_naive_reference_does(ops in proptest::collection::vec(op(), 1..=STEPS_MAX)) {
        let mut world = World::new();
        for op in ops {
            world.step(op)?;
        }
    }
}
