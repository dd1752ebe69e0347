//! The locks under test and the reference, side by side: carries out each operation on both.

mod compare;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::reference::{Held, NEVER, Named, Reference, Said, Tie, Told, Waiting};
use super::{GRACE_MIN_MS, IDS, KEPT_MS, LIMIT, NAMES, OWNERS, Op, SESSIONS, Token, With};
use crate::base::ids::Key;
use crate::base::time::Now;
use crate::lock::grant::{Bound, Client, Mode, SessionNumber};
use crate::lock::history::What;
use crate::lock::history::breaks::Breaker;
use crate::lock::locks::*;
use crate::lock::queue::Wanted;
use crate::lock::*;

/// Who renews grants here, where no connection ends without its grants.
const CONNECTED: (Client, fn(Client) -> bool) = (Client { id: 78, slot: 0, user: UserKey(0) }, |_| true);

/// The names as a map.
#[derive(Default)]
pub(super) struct Map {
    pub(super) held: BTreeMap<&'static str, Option<Lock>>,
    pub(super) taken: BTreeSet<&'static str>,
    pub(super) now_ms: u64,
}

/// One of [`NAMES`] or [`OWNERS`].
pub(super) fn text(name: &[u8]) -> &'static str {
    NAMES.into_iter().chain(OWNERS).find(|known| known.as_bytes() == name).expect("a name")
}

impl Keys for Map {
    fn take(&mut self, Key { name, .. }: Key<'_>, into: &mut Lock) -> Found {
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

    fn put(&mut self, Key { name, .. }: Key<'_>, lock: &mut Lock) {
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

    fn put_back(&mut self, Key { name, .. }: Key<'_>, _: &mut Lock) {
        self.taken.remove(text(name));
    }

    fn happened(&mut self, _: Key<'_>, _: What) {}
}

pub(super) struct World {
    pub(super) map: Map,
    pub(super) locks: Locks,
    pub(super) now: Now,
    pub(super) reference: Reference,
    /// The waiter of each client that waits.
    pub(super) waiters: BTreeMap<u64, u32>,
    pub(super) last_token: u64,
    /// How many connections of each client were lost sight of. A number of a connection is not used again.
    pub(super) lost: BTreeMap<u64, u64>,
}

impl World {
    pub(super) fn new() -> Self {
        let mut world = World {
            map: Map { now_ms: 1000, ..Map::default() },
            locks: Locks::new(5, 1),
            now: Now::new(1_000_000, 0),
            reference: Reference { now: 1000, ..Reference::default() },
            waiters: BTreeMap::new(),
            last_token: 0,
            lost: BTreeMap::new(),
        };
        world.locks.requests.kept_ms = KEPT_MS;
        world
    }

    /// A request that was sent before: what both say. `None` where it is new.
    pub(super) fn repeat(
        &mut self,
        new: &Waiting,
        wait: Option<u64>,
        got: &Result<Acquired, Refusal>,
    ) -> Option<Result<(), TestCaseError>> {
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
                    held.end = held.end.max(now + new.lease).min(held.max_end);
                    held.tie = if tie == Tie::None { held.tie } else { tie };
                }
            }
            self.reference.drop_idle();
        }
        Some(Ok(()))
    }

    /// What a grant of this client is bound to.
    pub(super) fn tie(&self, client: u64, session: bool) -> Tie {
        match self.reference.session_of(client) {
            _ if !session => Tie::None,
            Some(number) => Tie::Session(number),
            None => Tie::Client(client),
        }
    }

    /// The actual number of the session that the reference has under another.
    pub(super) fn actual_session(&self, number: u64) -> Option<u64> {
        let session = self.reference.sessions.get(&number)?;
        self.locks.sessions.find(session.id.as_bytes())
    }

    /// Notes the tokens of new grants.
    pub(super) fn note_tokens(&mut self) {
        for (name, of) in &self.reference.names {
            let lock = self.map.held.get(name).and_then(Option::as_ref);
            for held in &of.holders {
                if let Some(grant) = lock.and_then(|lock| lock.holders.get(held.owner.as_bytes())) {
                    self.reference.tokens.entry(held.grant).or_insert(grant.token);
                }
            }
        }
    }

    pub(super) fn token(&self, name: &'static str, owner: &'static str, which: Token) -> Option<u64> {
        let holders = self.reference.names.get(name).map(|of| &of.holders[..]).unwrap_or_default();
        let held = holders.iter().find(|held| held.owner == owner);
        let token = held.and_then(|held| self.reference.tokens.get(&held.grant)).copied();
        match which {
            Token::None => None,
            Token::Current => Some(token.unwrap_or(1)),
            Token::Old => Some(self.reference.tokens.values().copied().filter(|&old| Some(old) != token).max().unwrap_or(0)),
        }
    }

    /// Keeps only sessions, with these ends, and requests. The locks must be adopted then.
    fn renew_locks(&mut self, end_ms: impl Fn(Now, &sessions::Session) -> u64) {
        let old = std::mem::replace(&mut self.locks, Locks::new(5, 1));
        self.locks.requests.kept_ms = KEPT_MS;
        self.locks.set_next_token(old.next_token());
        for (number, session) in old.sessions.iter() {
            let end_ms = end_ms(self.now, session);
            self.locks.adopt_session(number, sessions::Session { client: None, end_ms, ..session.clone() });
        }
        let mut requests: Vec<_> = old.requests.iter().collect();
        requests.sort_by_key(|(_, remembered)| remembered.forget_ms);
        for (whose, remembered) in requests {
            self.locks.adopt_requests(whose, remembered.clone());
        }
    }

    fn adopt_locks(&mut self, fate: Fate) {
        for name in NAMES {
            if let Some(Some(lock)) = self.map.held.get(name).cloned() {
                self.map.held.remove(name);
                self.locks.adopt(&mut self.map, self.now, Key { db: 0, name: name.as_bytes() }, lock, |_| fate);
            }
        }
        self.locks.finish_adopting(&mut self.map, self.now);
        self.waiters.clear();
    }

    /// All but the locks, their sessions and requests is lost.
    pub(super) fn restart(&mut self) {
        self.renew_locks(|now, session| now.deadline_in(session.grace_ms.max(GRACE_MIN_MS)).max(session.end_ms));
        self.adopt_locks(Fate::Gone);
        let reference = &mut self.reference;
        reference.waiting.clear();
        let now = reference.now;
        for session in reference.sessions.values_mut() {
            let before = if session.client.is_none() && session.end != NEVER { session.end } else { 0 };
            (session.client, session.end) = (None, before.max(now + session.grace.max(GRACE_MIN_MS)));
        }
        reference.unseen.clear();
        let ties = reference.names.values().flat_map(|of| of.holders.iter().map(|held| held.tie));
        let ties: Vec<Tie> = ties.filter(|tie| matches!(tie, Tie::Client(_))).collect();
        ties.into_iter().for_each(|tie| reference.end_tied(tie));
        reference.drop_idle();
    }

    /// As [`World::restart`], but the clients may work on: another server leads from now on.
    pub(super) fn take_over(&mut self) {
        let clients: Vec<u64> = (1..9).map(|client| self.connection(client)).collect();
        self.renew_locks(|_, session| session.end_ms);
        self.adopt_locks(Fate::Unknown);
        self.reference.waiting.clear();
        for client in clients {
            self.reference.lose_sight(client);
        }
        (1..9).for_each(|client| *self.lost.entry(client).or_default() += 1);
    }

    /// The number of the present connection of a client.
    pub(super) fn connection(&self, client: u64) -> u64 {
        client + 10 * self.lost.get(&client).copied().unwrap_or(0)
    }

    pub(super) fn is_waiting(&self, client: u64) -> bool {
        self.waiters.contains_key(&client)
    }

    /// Asks both for the same.
    pub(super) fn acquire(&mut self, new: Waiting, wait: Option<u64>) -> Result<(), TestCaseError> {
        if self.is_waiting(new.client) {
            return Ok(());
        }
        let client = Client { id: new.client, slot: 0, user: UserKey(0) };
        let wanted = Wanted {
            mode: new.mode,
            permits: new.permits,
            limit: new.limit,
            lease_ms: new.lease,
            max_hold_ms: new.max_hold,
            delay_ms: new.extra as u32,
            bound: match new.tie {
                Tie::None => Bound::Lease,
                Tie::Client(_) => Bound::Connection,
                Tie::Session(number) => {
                    self.actual_session(number).map_or(Bound::Connection, |number| Bound::Session(SessionNumber::new(number)))
                }
            },
        };
        let id = new.request.map(str::as_bytes);
        let request = Request { owner: new.owner.as_bytes(), client, wanted, id };
        let deadline = wait.map(|ms| (ms > 0).then(|| self.now.deadline_in(ms)));
        let names: Vec<&[u8]> = new.names.iter().map(|name| name.as_bytes()).collect();
        let got = if new.all {
            let got = self.locks.acquire_all(&mut self.map, self.now, 0, &names, &request, deadline);
            got.map(|got| match got {
                AllAcquired::Granted(tokens) => {
                    assert_eq!(tokens.len(), names.len());
                    Acquired::Granted(tokens[0])
                }
                AllAcquired::Waits(waiter) => Acquired::Waits(waiter),
                AllAcquired::Busy => Acquired::Busy,
            })
        } else {
            self.locks.acquire(&mut self.map, self.now, Key { db: 0, name: names[0] }, &request, deadline)
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
        let over_at = |held: &Held| held.granted + new.max_hold;
        let is_over = reenters && new.max_hold > 0 && held.as_ref().is_some_and(|held| over_at(held) <= self.reference.now);
        new.upgrade = held.is_some() && !reenters;
        let upgrade = new.upgrade;
        let unclaimed = new.names.iter().all(|name| {
            upgrade || self.reference.queue(name).is_empty() || (new.all && self.reference.has_alone(name, new.owner))
        });
        let can = reenters || (unclaimed && new.names.iter().all(|name| self.reference.can_hold(name, &new)));
        match got {
            Ok(Acquired::Granted(_)) => {
                prop_assert!(can && !is_over, "granted what is not free: {new:?}");
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
            Err(Refusal::Deadlock(cycle)) => {
                prop_assert!(!can && wait.is_some() && self.reference.closes_cycle(&new), "no cycle: {new:?}");
                let text = String::from_utf8_lossy(&graph::describe(&cycle, |_| true)).into_owned();
                let begins = format!("'{}' waits for '", new.owner);
                prop_assert!(text.starts_with(&begins) && text.ends_with(&format!("by '{}'", new.owner)), "{}", text);
            }
            Err(Refusal::HeldTooLong { for_ms, at_most_ms }) => {
                prop_assert!(is_over, "not for too long: {new:?}");
                prop_assert_eq!((Some(for_ms), at_most_ms), (held.map(|held| self.reference.now - held.granted), new.max_hold));
            }
            Err(other) => prop_assert!(false, "{other:?}"),
        }
        Ok(())
    }

    pub(super) fn step(&mut self, op: Op) -> Result<(), TestCaseError> {
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
            max_hold: 0,
            tie: Tie::None,
            deadline: None,
            serial: 0,
            request: None,
        };
        match op {
            Op::Acquire { name, owner, shared, session, extra, max_hold, with: With { client, lease, wait, request } } => {
                let client = self.connection(client);
                let mode = if shared { Mode::Shared } else { Mode::Exclusive };
                // Mostly none.
                let extra = extra.saturating_sub(8);
                let (owner, names) = (OWNERS[owner], vec![NAMES[name]]);
                let (tie, request) = (self.tie(client, session), request.map(|id| IDS[id]));
                self.acquire(Waiting { client, owner, names, mode, lease, extra, max_hold, tie, request, ..blank }, wait)?;
            }
            Op::AcquireAll { first, count, owner, with: With { client, lease, wait, request } } => {
                let client = self.connection(client);
                let names = (0..count).map(|at| NAMES[(first + at) % 3]).collect();
                let request = request.map(|id| IDS[id]);
                self.acquire(Waiting { client, owner: OWNERS[owner], names, lease, all: true, request, ..blank }, wait)?;
            }
            Op::Semaphore { owner, permits, with: With { client, lease, wait, request } } => {
                let client = self.connection(client);
                let (owner, names, request) = (OWNERS[owner], vec![NAMES[3]], request.map(|id| IDS[id]));
                self.acquire(Waiting { client, owner, names, permits, limit: LIMIT, lease, request, ..blank }, wait)?;
            }
            Op::Release { name, owner, all, token, request } => {
                let (name, owner, request) = (NAMES[name], OWNERS[owner], request.map(|id| IDS[id]));
                let token = self.token(name, owner, token);
                let claim = Claim { owner: owner.as_bytes(), semaphore: name == "d", token };
                let id = request.map(str::as_bytes);
                let got = self.locks.release(&mut self.map, self.now, Key { db: 0, name: name.as_bytes() }, &claim, all, id);
                let before = request.and_then(|id| {
                    let said = &self.reference.answers.get(&(name, owner))?.said;
                    said.iter().find_map(|answered| match answered.said {
                        Said::Released(left) if answered.id == id => Some(left),
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
                let got = self.locks.renew(
                    &mut self.map,
                    self.now,
                    Key { db: 0, name: name.as_bytes() },
                    &claim,
                    Some(lease),
                    CONNECTED,
                );
                let got = got.map(|renewed| renewed.left_ms);
                let now = self.reference.now;
                let tokens = self.reference.tokens.clone();
                let meant = |held: &Held| token.is_none() || tokens.get(&held.grant) == token.as_ref();
                let held = self.reference.name(name).holders.iter_mut().find(|held| held.owner == owner && meant(held));
                prop_assert_eq!(got.is_ok(), held.is_some());
                if let (Some(held), Ok(left)) = (held, got) {
                    held.end = (now + lease).min(held.max_end);
                    prop_assert_eq!(left, held.end - now);
                }
            }
            Op::Break { name, owner, token } => {
                let (name, owner) = (NAMES[name], OWNERS[owner]);
                let Some(token) = self.token(name, owner, token) else { return Ok(()) };
                let by = (Client { id: 77, slot: 0, user: UserKey(0) }, Breaker { client: 77, ..Breaker::default() });
                let got = self.locks.break_grant(&mut self.map, self.now, Key { db: 0, name: name.as_bytes() }, token, by);
                let now = self.reference.now;
                let tokens = self.reference.tokens.clone();
                let of = self.reference.name(name);
                let at = of.holders.iter().position(|held| tokens.get(&held.grant) == Some(&token));
                match (got, at) {
                    (Ok(told), Some(at)) => {
                        let held = of.holders.remove(at);
                        prop_assert_eq!(&told[..], held.owner.as_bytes());
                        Reference::note_end(&mut self.reference.answers, now, name, held.owner);
                        let claim = Claim { owner: held.owner.as_bytes(), semaphore: name == "d", token: Some(token) };
                        // Its waiter on another connection may have been granted it.
                        let holds = self.map.held.get(name).and_then(Option::as_ref);
                        if holds.is_none_or(|lock| lock.holders.get(claim.owner).is_none()) {
                            let refused = self.locks.renew(
                                &mut self.map,
                                self.now,
                                Key { db: 0, name: name.as_bytes() },
                                &claim,
                                Some(1),
                                CONNECTED,
                            );
                            let broken = Refusal::NotHeld(Cause::Broken { client: 77, ago_ms: 0, why: Box::default() });
                            prop_assert!(refused == Err(Refusal::WrongType) || refused == Err(broken), "the cause is known");
                        }
                        self.reference.drop_idle();
                        self.reference.serve();
                    }
                    (Err(Refusal::NoGrant { token: of, .. }), None) => prop_assert_eq!(of, token),
                    (Err(Refusal::WrongType), None) => prop_assert!(of.plain),
                    (got, at) => prop_assert!(false, "{got:?} {at:?}"),
                }
            }
            Op::Delete { name } => {
                let name = NAMES[name];
                match self.map.held.remove(name) {
                    Some(Some(lock)) => {
                        self.locks.deleted(self.now, Key { db: 0, name: name.as_bytes() }, lock, Client::default())
                    }
                    _ => self.locks.gone(Key { db: 0, name: name.as_bytes() }),
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
                let client = self.connection(client);
                if self.is_waiting(client) {
                    return Ok(());
                }
                let id = SESSIONS[session];
                let of = (id.as_bytes(), &b"user"[..]);
                let got = self.locks.name_session(self.now, Client { id: client, slot: 0, user: UserKey(0) }, of, grace);
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
                let other = self.locks.name_session(
                    self.now,
                    Client { id: 99, slot: 0, user: UserKey(0) },
                    (id.as_bytes(), b"other"),
                    None,
                );
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
            Op::LoseSight { client: of } => {
                let client = self.connection(of);
                if let Some(waiter) = self.waiters.remove(&client) {
                    self.locks.leave(&mut self.map, self.now, waiter);
                    self.locks.work(&mut self.map, self.now);
                    self.reference.leave(client);
                    self.reference.serve();
                }
                self.locks.lose_sight(client);
                self.reference.lose_sight(client);
                *self.lost.entry(of).or_default() += 1;
            }
            Op::TakeOver => self.take_over(),
            Op::ComeBack { name, owner, client, other_user } => {
                let (client, user) = (self.connection(client), if other_user { "other" } else { "user" });
                let by = (Client { id: client, slot: 0, user: UserKey(0) }, user.as_bytes());
                self.locks.come_back(
                    &mut self.map,
                    self.now,
                    Key { db: 0, name: NAMES[name].as_bytes() },
                    OWNERS[owner].as_bytes(),
                    by,
                );
                self.locks.work(&mut self.map, self.now);
                self.reference.come_back(NAMES[name], OWNERS[owner], client, other_user);
            }
            Op::Close { client } => {
                let client = self.connection(client);
                if let Some(waiter) = self.waiters.remove(&client) {
                    self.locks.leave(&mut self.map, self.now, waiter);
                    self.locks.work(&mut self.map, self.now);
                    self.reference.leave(client);
                    self.reference.serve();
                }
                self.locks.leave_session(self.now, client);
                // In pieces, as the server does; here nothing comes in between.
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
                let client = self.connection(client);
                if let Some(waiter) = self.waiters.remove(&client) {
                    self.locks.leave(&mut self.map, self.now, waiter);
                    self.locks.work(&mut self.map, self.now);
                    self.reference.leave(client);
                    self.reference.serve();
                }
            }
            Op::Flush => {
                let deletion = Deletion {
                    db: 0,
                    home: 0,
                    at_ms: self.now.mono_ms(),
                    by: Client::default(),
                    next_token: self.locks.next_token(),
                };
                self.locks.flushed(deletion);
                for (name, lock) in std::mem::take(&mut self.map.held) {
                    if let Some(lock) = lock {
                        self.locks.lost_with_database(deletion, name.as_bytes(), lock);
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

    pub(super) fn tick(&mut self) -> Result<(), TestCaseError> {
        self.now.advance_us(1000);
        self.map.now_ms += 1;
        self.locks.end_due(&mut self.map, self.now, &mut 1000);
        // The wheel ends leases of names without a queue; those of contended names were seen to.
        let ended = |lock: &Lock| lock.deadline_ms() <= self.map.now_ms;
        let over: Vec<&'static str> =
            self.map.held.iter().filter(|(_, lock)| lock.as_ref().is_some_and(ended)).map(|n| *n.0).collect();
        for name in over {
            let Some(Some(lock)) = self.map.held.remove(name) else { continue };
            if let Some(lock) = self.locks.key_expired(&mut self.map, self.now, Key { db: 0, name: name.as_bytes() }, lock) {
                self.map.held.insert(name, Some(lock));
            }
        }
        self.locks.end_due(&mut self.map, self.now, &mut 1000);
        self.locks.requests.forget_some(self.map.now_ms, &mut 1000);
        self.reference.tick();
        self.note_tokens();
        self.compare_told()
    }
}
