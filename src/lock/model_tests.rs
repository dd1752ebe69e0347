//! Locks against a naive reference: random operations by random owners over a few names, with leases that end, waits that time out and
//! connections that close. The reference keeps plain lists, finds who can be granted what by looking at everybody, and cycles by
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

#[derive(Clone, Debug)]
enum Op {
    Acquire { name: usize, owner: usize, client: u64, shared: bool, lease: u64, wait: Option<u64>, session: bool, extra: u64 },
    AcquireAll { first: usize, count: usize, owner: usize, client: u64, lease: u64, wait: Option<u64> },
    Semaphore { owner: usize, client: u64, permits: u32, lease: u64, wait: Option<u64> },
    Release { name: usize, owner: usize, all: bool },
    Renew { name: usize, owner: usize, lease: u64 },
    Delete { name: usize },
    Plain { name: usize },
    Close { client: u64 },
    Leave { client: u64 },
    Flush,
    Pass { ms: u64 },
}

fn op() -> impl Strategy<Value = Op> {
    let (name, owner, client) = (0..3usize, 0..5usize, 1..9u64);
    let lease = prop_oneof![3 => 1..30u64, 1 => 100..200u64];
    let wait = prop_oneof![1 => Just(None), 2 => (1..40u64).prop_map(Some), 2 => Just(Some(0))];
    let acquire =
        (name.clone(), owner.clone(), client.clone(), any::<bool>(), lease.clone(), wait.clone(), any::<bool>(), 0..12u64);
    prop_oneof![
        12 => acquire.prop_map(|(name, owner, client, shared, lease, wait, session, extra)| Op::Acquire {
            name, owner, client, shared, lease, wait, session, extra }),
        3 => (0..3usize, 1..4usize, owner.clone(), client.clone(), lease.clone(), wait.clone()).prop_map(
            |(first, count, owner, client, lease, wait)| Op::AcquireAll { first, count, owner, client, lease, wait }),
        3 => (owner.clone(), client.clone(), 1..=LIMIT, lease.clone(), wait).prop_map(
            |(owner, client, permits, lease, wait)| Op::Semaphore { owner, client, permits, lease, wait }),
        8 => (0..4usize, owner.clone(), any::<bool>()).prop_map(|(name, owner, all)| Op::Release { name, owner, all }),
        2 => (0..4usize, owner, lease).prop_map(|(name, owner, lease)| Op::Renew { name, owner, lease }),
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
    session: Option<u64>,
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
    session: bool,
    deadline: Option<u64>,
    serial: u64,
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
}

impl Reference {
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
        let of = self.name(name);
        let end = now + waiting.lease;
        if let Some(held) = of.holders.iter_mut().find(|held| held.owner == waiting.owner) {
            held.holds += 1;
            if held.mode == Mode::Shared && waiting.mode == Mode::Exclusive {
                held.mode = Mode::Exclusive;
                held.session = if waiting.session || held.session.is_some() { Some(waiting.client) } else { None };
            } else if waiting.session && held.session.is_none() {
                held.session = Some(waiting.client);
            }
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
                session: waiting.session.then_some(waiting.client),
            });
        }
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
        for of in self.names.values_mut() {
            let (ended, left): (Vec<_>, Vec<_>) = of.holders.drain(..).partition(|held| held.end <= now);
            of.holders = left;
            for held in ended {
                if held.delay > 0 {
                    of.held_back = of.held_back.max(held.end + held.delay);
                }
            }
            if of.held_back <= now {
                of.held_back = 0;
            }
        }
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
        World {
            map: Map { now_ms: 1000, ..Map::default() },
            locks: Locks::new(5, 1),
            now: Now::new(1_000_000, 0),
            reference: Reference { now: 1000, ..Reference::default() },
            waiters: BTreeMap::new(),
            last_token: 0,
        }
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
            session: new.session,
        };
        let request = Request { owner: new.owner.as_bytes(), client, wanted };
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
            session: false,
            deadline: None,
            serial: 0,
        };
        match op {
            Op::Acquire { name, owner, client, shared, lease, wait, session, extra } => {
                let mode = if shared { Mode::Shared } else { Mode::Exclusive };
                // Mostly none.
                let extra = extra.saturating_sub(8);
                let (owner, names) = (OWNERS[owner], vec![NAMES[name]]);
                self.acquire(Waiting { client, owner, names, mode, lease, extra, session, ..blank }, wait)?;
            }
            Op::AcquireAll { first, count, owner, client, lease, wait } => {
                let names = (0..count).map(|at| NAMES[(first + at) % 3]).collect();
                self.acquire(Waiting { client, owner: OWNERS[owner], names, lease, all: true, ..blank }, wait)?;
            }
            Op::Semaphore { owner, client, permits, lease, wait } => {
                let (owner, names) = (OWNERS[owner], vec![NAMES[3]]);
                self.acquire(Waiting { client, owner, names, permits, limit: LIMIT, lease, ..blank }, wait)?;
            }
            Op::Release { name, owner, all } => {
                let (name, owner) = (NAMES[name], OWNERS[owner]);
                let got = self.locks.release(&mut self.map, self.now, (0, name.as_bytes()), owner.as_bytes(), (all, name == "d"));
                let of = self.reference.name(name);
                let at = of.holders.iter().position(|held| held.owner == owner);
                match (got, at) {
                    (Ok(left), Some(at)) => {
                        let holds = if all { 0 } else { of.holders[at].holds - 1 };
                        prop_assert_eq!(left, holds);
                        of.holders[at].holds = holds;
                        if holds == 0 {
                            of.holders.remove(at);
                        }
                        self.reference.serve();
                    }
                    (Err(Refusal::NotHeld(cause)), None) => {
                        if let Cause::HeldBy { owner: holder, .. } = cause {
                            let holder = String::from_utf8_lossy(&holder).into_owned();
                            prop_assert!(of.holders.iter().any(|held| held.owner == holder));
                        }
                    }
                    (Err(Refusal::WrongType), None) => prop_assert!(of.plain),
                    (got, at) => prop_assert!(false, "{got:?} {at:?}"),
                }
            }
            Op::Renew { name, owner, lease } => {
                let (name, owner) = (NAMES[name], OWNERS[owner]);
                let got = self.locks.renew(&mut self.map, self.now, (0, name.as_bytes()), owner.as_bytes(), (lease, name == "d"));
                let now = self.reference.now;
                let held = self.reference.name(name).holders.iter_mut().find(|held| held.owner == owner);
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
                self.reference.names.remove(name);
                self.reference.serve();
            }
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
                // In pieces, for what it is worth: nobody else does anything in between.
                while !self.locks.end_session(&mut self.map, self.now, client, &mut 2) {}
                let now = self.reference.now;
                for of in self.reference.names.values_mut() {
                    for held in of.holders.iter().filter(|held| held.session == Some(client) && held.delay > 0) {
                        of.held_back = of.held_back.max(now + held.delay);
                    }
                    of.holders.retain(|held| held.session != Some(client));
                }
                self.reference.serve();
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
                let origin =
                    Origin { db: 0, at_ms: self.now.mono_ms(), by: Client::default(), next_token: self.locks.next_token() };
                self.locks.flushed(origin);
                for (name, lock) in std::mem::take(&mut self.map.held) {
                    if let Some(lock) = lock {
                        self.locks.lost_with_database(origin, name.as_bytes(), lock);
                    }
                }
                self.locks.work(&mut self.map, self.now);
                self.reference.names.clear();
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
        self.reference.tick();
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

    fn compare(&mut self) -> Result<(), TestCaseError> {
        self.compare_told()?;
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
                for held in of.holders.iter_mut().filter(|held| held.holds > 1 && held.session.is_some()) {
                    let bound =
                        lock.holders.get(held.owner.as_bytes()).filter(|grant| grant.session).map(|grant| grant.client.id);
                    held.session = bound.or(held.session);
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
                let got = got.map(|g| (g.holds, g.mode, g.permits, g.end_ms, g.session.then_some(g.client.id)));
                let wanted = (held.holds, held.mode, held.permits, held.end, held.session);
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
