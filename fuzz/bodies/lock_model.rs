//! A naive model of the native locks, after guide/native-locks.md: plain lists, in which every operation looks at everybody.
//!
//! It knows time in whole milliseconds, four names in one database, and connections by their numbers. What it does not know is which
//! number a fencing token is: it numbers grants, and its driver finds out which tokens they have.

use std::collections::{BTreeMap, BTreeSet};

/// How often leases and waits can end at one instant before the model is taken to run in circles.
const ROUNDS_MAX: usize = 10_000;

/// Milliseconds for which the answers to requests are kept after the grant has ended, and how many of an owner and name are.
const KEPT_MS: u64 = 60_000;
const ANSWERS: usize = 4;

/// A grant as the model numbers them.
pub type GrantId = usize;

/// What a connection asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Wish {
    pub conn: u64,
    pub owner: usize,
    /// One name, or several at once.
    pub names: Vec<usize>,
    pub all: bool,
    pub exclusive: bool,
    /// Permits, and the limit of the semaphore; 0 for a lock.
    pub permits: u64,
    pub limit: u64,
    pub lease: u64,
    pub max_hold: Option<u64>,
    pub delay: u64,
    pub tie: Tie,
    /// What the client calls this attempt.
    pub request: Option<usize>,
}

/// What a grant ends with beside its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tie {
    None,
    /// The connection that acquired it.
    Connection,
    /// The session with this number.
    Session(u64),
}

/// A named session.
#[derive(Clone, Debug)]
struct Session {
    number: u64,
    id: usize,
    grace: u64,
    /// Its connection, and when it ends where it has none.
    conn: Option<u64>,
    end: u64,
}

/// What a request was answered.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Said {
    Granted(GrantId),
    /// Holds that were left.
    Released(u64),
}

/// What is remembered of an owner's requests for a name.
#[derive(Clone, Debug, Default)]
struct Answers {
    said: Vec<(usize, Said)>,
    forget: Option<u64>,
}

/// What a release or a renewal is about.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    pub name: usize,
    pub owner: usize,
    pub semaphore: bool,
    /// The grant whose token is given, where one is.
    pub grant: Option<GrantId>,
}

/// One that waits.
#[derive(Clone, Debug)]
pub struct Waiter {
    pub wish: Wish,
    pub deadline: Option<u64>,
    serial: u64,
}

/// That an owner holds a name.
#[derive(Clone, Debug)]
pub struct Grant {
    pub id: GrantId,
    pub owner: usize,
    pub holds: u64,
    pub exclusive: bool,
    pub permits: u64,
    pub end: u64,
    granted: u64,
    max_end: Option<u64>,
    delay: u64,
    pub tie: Tie,
    /// The connection that acquired it.
    pub conn: u64,
}

impl Grant {
    /// Several connections may have waited for it at once, of which each would have it end with itself.
    pub fn is_tied_by_several(&self) -> bool {
        self.holds > 1 && self.tie != Tie::None
    }
}

/// What a name is.
#[derive(Clone, Debug, Default)]
pub enum Name {
    #[default]
    Free,
    /// A key that is no lock, until it ends.
    Plain(Option<u64>),
    /// A lock, or with a limit a semaphore; perhaps without a holder and held back until then.
    Held { limit: u64, holders: Vec<Grant>, held_back: Option<u64> },
}

/// What a connection is told.
#[derive(Clone, Debug, PartialEq)]
pub enum Told {
    /// The tokens of these grants; as an array where several were asked for.
    Granted(Vec<GrantId>, bool),
    /// Nothing was granted, and the wait, if there was one, is over.
    Nil(bool),
    /// A grant of this name and owner ended, for this reason; a push.
    Lost(usize, usize, GrantId, &'static str),
}

/// Why something is refused.
#[derive(Clone, Debug, PartialEq)]
pub enum Refusal {
    WrongType,
    /// A semaphore has this limit.
    Limit(u64),
    NotHeld,
    /// The request was granted before, and the grant of this name has ended.
    Ended(usize),
    Deadlock,
    /// The owner has held the name for so long, which is no less than the maximum that it gives.
    HeldTooLong(u64),
}

/// What comes of an attempt at once.
#[derive(Clone, Debug, PartialEq)]
pub enum Attempt {
    Granted(Vec<GrantId>),
    Busy,
    Waits,
}

/// All of it.
#[derive(Default)]
pub struct Model {
    pub now: u64,
    pub names: [Name; 4],
    /// In the order of their places: those who share a name and want it alone stand before all others.
    pub waiting: Vec<Waiter>,
    /// Who was told what, in order.
    pub told: Vec<(u64, Told)>,
    /// The name of each grant.
    pub granted: Vec<usize>,
    serial: u64,
    sessions: Vec<Session>,
    /// By name and owner.
    answers: BTreeMap<(usize, usize), Answers>,
}

impl Name {
    fn holders(&self) -> &[Grant] {
        match self {
            Name::Held { holders, .. } => holders,
            _ => &[],
        }
    }

    /// The grant of an owner.
    pub fn of(&self, owner: usize) -> Option<&Grant> {
        self.holders().iter().find(|grant| grant.owner == owner)
    }

    /// The milliseconds after which there is no such key any more; `None` where there is none now, `Some(None)` where it stays.
    pub fn end(&self) -> Option<Option<u64>> {
        match self {
            Name::Free => None,
            Name::Plain(end) => Some(*end),
            Name::Held { holders, held_back, .. } => Some(holders.iter().map(|grant| grant.end).chain(*held_back).max()),
        }
    }
}

impl Model {
    /// A model at an instant.
    pub fn new(now: u64) -> Model {
        Model { now, ..Model::default() }
    }

    /// Those who wait for a name, in line.
    pub fn queue(&self, name: usize) -> impl Iterator<Item = &Waiter> {
        self.waiting.iter().filter(move |waiter| waiter.wish.names.contains(&name))
    }

    /// Whether a connection waits.
    pub fn waits(&self, conn: u64) -> bool {
        self.waiting.iter().any(|waiter| waiter.wish.conn == conn)
    }

    /// Whether a wish for a name goes together with its holders, and it is not held back.
    fn goes(&self, name: usize, wish: &Wish) -> bool {
        let (limit, holders, held_back) = match &self.names[name] {
            Name::Free => return true,
            Name::Plain(_) => return false,
            Name::Held { limit, holders, held_back } => (*limit, holders, held_back),
        };
        if held_back.is_some() || limit != wish.limit {
            return false;
        }
        if limit > 0 {
            return holders.iter().map(|grant| grant.permits).sum::<u64>() + wish.permits <= limit;
        }
        let others_exclude = |grant: &Grant| grant.owner != wish.owner && (grant.exclusive || wish.exclusive);
        // An owner that has it alone has it alone.
        !holders.iter().any(others_exclude) && (wish.exclusive || !holders.iter().any(|grant| grant.exclusive))
    }

    /// Whether an owner has what it wishes for already, so that it is had once more.
    fn reenters(&self, name: usize, wish: &Wish) -> bool {
        self.names[name].of(wish.owner).is_some_and(|grant| wish.limit > 0 || grant.exclusive || !wish.exclusive)
    }

    /// Carries out an attempt; with `wait` it may wait, for so long or without limit.
    pub fn acquire(&mut self, wish: Wish, wait: Option<Option<u64>>) -> Result<Attempt, Refusal> {
        if let Some(again) = wish.request.and_then(|id| self.again(&wish, id, wait)) {
            return again;
        }
        for &name in &wish.names {
            match self.names[name] {
                Name::Held { limit, .. } if (limit > 0) != (wish.limit > 0) => return Err(Refusal::WrongType),
                Name::Held { limit, .. } if limit != wish.limit => return Err(Refusal::Limit(limit)),
                _ => {}
            }
        }
        if !wish.all
            && self.reenters(wish.names[0], &wish)
            && let (Some(grant), Some(max)) = (self.names[wish.names[0]].of(wish.owner), wish.max_hold)
            && grant.granted + max <= self.now
        {
            return Err(Refusal::HeldTooLong(self.now - grant.granted));
        }
        let upgrades = !wish.all && self.names[wish.names[0]].of(wish.owner).is_some();
        let now_free = |name: usize| {
            let alone = self.names[name].of(wish.owner).is_some_and(|grant| grant.exclusive);
            let first = upgrades || self.queue(name).next().is_none();
            (wish.all && alone) || (first && self.goes(name, &wish))
        };
        if (!wish.all && self.reenters(wish.names[0], &wish)) || wish.names.iter().all(|&name| now_free(name)) {
            let grants = wish.names.iter().map(|&name| self.hold(name, &wish, false)).collect();
            self.serve();
            return Ok(Attempt::Granted(grants));
        }
        let Some(wait) = wait else { return Ok(Attempt::Busy) };
        if wish.limit <= 1 && self.closes_cycle(&wish, upgrades) {
            return Err(Refusal::Deadlock);
        }
        self.serial += 1;
        let waiter = Waiter { wish, deadline: wait.map(|ms| self.now + ms), serial: self.serial };
        let place = if upgrades { 0 } else { self.waiting.len() };
        self.waiting.insert(place, waiter);
        Ok(Attempt::Waits)
    }

    /// An attempt that was made before: it is not made again. `None` where it is new.
    fn again(&mut self, wish: &Wish, id: usize, wait: Option<Option<u64>>) -> Option<Result<Attempt, Refusal>> {
        let same = |waiter: &Waiter| {
            let old = &waiter.wish;
            old.owner == wish.owner && old.request == Some(id) && old.names == wish.names && old.all == wish.all
        };
        if let Some(at) = self.waiting.iter().position(same) {
            self.told.push((self.waiting[at].wish.conn, Told::Nil(wish.all)));
            let Some(wait) = wait else {
                self.waiting.remove(at);
                self.serve();
                return Some(Ok(Attempt::Busy));
            };
            let waiter = &mut self.waiting[at];
            (waiter.wish.conn, waiter.deadline) = (wish.conn, wait.map(|ms| self.now + ms));
            if wish.tie != Tie::None {
                waiter.wish.tie = wish.tie;
            }
            return Some(Ok(Attempt::Waits));
        }
        let known: Vec<Option<GrantId>> = wish.names.iter().map(|&name| self.granted_to(name, wish.owner, id)).collect();
        if known.iter().all(Option::is_none) {
            return None;
        }
        for (&name, known) in wish.names.iter().zip(&known) {
            if self.names[name].of(wish.owner).map(|grant| grant.id) != *known || known.is_none() {
                return Some(Err(Refusal::Ended(name)));
            }
        }
        let tie = self.usable(wish.tie);
        for &name in &wish.names {
            let Name::Held { holders, .. } = &mut self.names[name] else { continue };
            for grant in holders.iter_mut().filter(|grant| grant.owner == wish.owner) {
                grant.end = grant.end.max(self.now + wish.lease).min(grant.max_end.unwrap_or(u64::MAX));
                if tie != Tie::None {
                    (grant.tie, grant.conn) = (tie, wish.conn);
                }
            }
        }
        self.drop_idle();
        Some(Ok(Attempt::Granted(known.into_iter().flatten().collect())))
    }

    /// The grant that an owner's request was given.
    fn granted_to(&self, name: usize, owner: usize, id: usize) -> Option<GrantId> {
        self.answers.get(&(name, owner))?.said.iter().find_map(|&(of, said)| match said {
            Said::Granted(grant) if of == id => Some(grant),
            _ => None,
        })
    }

    fn remember(&mut self, name: usize, owner: usize, id: usize, said: Said, ended: bool) {
        let answers = self.answers.entry((name, owner)).or_default();
        answers.said.push((id, said));
        if answers.said.len() > ANSWERS {
            answers.said.remove(0);
        }
        answers.forget = ended.then_some(self.now + KEPT_MS);
    }

    fn note_end(&mut self, name: usize, owner: usize) {
        let forget = Some(self.now + KEPT_MS);
        self.answers.entry((name, owner)).and_modify(|answers| answers.forget = forget);
    }

    /// Grants a name.
    fn hold(&mut self, name: usize, wish: &Wish, has_waited: bool) -> GrantId {
        let grant = self.hold_now(name, wish, has_waited);
        if let Some(id) = wish.request {
            self.remember(name, wish.owner, id, Said::Granted(grant), false);
        }
        self.drop_idle();
        grant
    }

    fn hold_now(&mut self, name: usize, wish: &Wish, has_waited: bool) -> GrantId {
        let (now, next) = (self.now, self.granted.len());
        let tie = self.usable(wish.tie);
        let tie_before = self.names[name].of(wish.owner).map_or(Tie::None, |grant| self.usable(grant.tie));
        let of = &mut self.names[name];
        if let Name::Free = of {
            *of = Name::Held { limit: wish.limit, holders: Vec::new(), held_back: None };
        }
        let Name::Held { holders, .. } = of else { unreachable!("a plain key is never granted") };
        let mut end = now + wish.lease;
        let Some(grant) = holders.iter_mut().find(|grant| grant.owner == wish.owner) else {
            let max_end = wish.max_hold.map(|ms| now + ms);
            holders.push(Grant {
                id: next,
                owner: wish.owner,
                holds: 1,
                exclusive: wish.exclusive,
                permits: wish.permits,
                end: end.min(max_end.unwrap_or(u64::MAX)),
                granted: now,
                max_end,
                delay: wish.delay,
                tie,
                conn: wish.conn,
            });
            self.granted.push(name);
            return next;
        };
        let upgrade = wish.limit == 0 && !grant.exclusive && wish.exclusive;
        if has_waited {
            // What was promised already is not made shorter.
            end = end.max(grant.end);
        }
        if upgrade {
            let before = std::mem::replace(&mut grant.id, next);
            (grant.granted, grant.exclusive, grant.conn) = (now, true, wish.conn);
            grant.tie = if tie == Tie::None { tie_before } else { tie };
            self.granted.push(name);
            let answers = self.answers.get_mut(&(name, wish.owner)).map(|answers| &mut answers.said);
            let of_it = |(_, said): &&mut (usize, Said)| *said == Said::Granted(before);
            answers.into_iter().flatten().filter(of_it).for_each(|(_, said)| *said = Said::Granted(next));
        } else if tie != Tie::None && grant.tie == Tie::None {
            (grant.tie, grant.conn) = (tie, wish.conn);
        }
        grant.holds += 1;
        if let Some(ms) = wish.max_hold {
            grant.max_end = Some(grant.max_end.unwrap_or(u64::MAX).min(grant.granted + ms));
        }
        grant.delay = grant.delay.max(wish.delay);
        grant.end = end.min(grant.max_end.unwrap_or(u64::MAX));
        grant.id
    }

    /// Grants all that can be granted to those who wait, those in front first.
    fn serve(&mut self) {
        self.drop_idle();
        let granted = |model: &Model, at: usize| {
            let wish = &model.waiting[at].wish;
            let first = |name: usize| model.queue(name).next().is_some_and(|first| first.wish.conn == wish.conn);
            (!wish.all && model.reenters(wish.names[0], wish))
                || wish.names.iter().all(|&name| first(name) && model.goes(name, wish))
        };
        while let Some(at) = (0..self.waiting.len()).find(|&at| granted(self, at)) {
            let wish = self.waiting.remove(at).wish;
            let grants = wish.names.iter().map(|&name| self.hold(name, &wish, true)).collect();
            self.told.push((wish.conn, Told::Granted(grants, wish.all)));
        }
    }

    /// Whether a new wait would close a cycle of owners that wait for each other.
    fn closes_cycle(&self, new: &Wish, upgrade: bool) -> bool {
        let mut line: Vec<&Wish> = self.waiting.iter().map(|waiter| &waiter.wish).collect();
        line.insert(if upgrade { 0 } else { line.len() }, new);
        let awaited = |owner: usize| {
            let mut owners = BTreeSet::new();
            for (place, wish) in line.iter().enumerate().filter(|(_, wish)| wish.owner == owner && wish.limit <= 1) {
                for &name in &wish.names {
                    let holders = self.names[name].holders().iter().map(|grant| (grant.owner, grant.exclusive));
                    let ahead = line[..place].iter().filter(|other| other.names.contains(&name));
                    let others = holders.chain(ahead.map(|other| (other.owner, other.exclusive)));
                    owners.extend(
                        others.filter(|(other, exclusive)| *other != owner && (*exclusive || wish.exclusive)).map(|o| o.0),
                    );
                }
            }
            owners
        };
        let (mut seen, mut next) = (BTreeSet::new(), vec![new.owner]);
        while let Some(owner) = next.pop() {
            for other in awaited(owner) {
                if other == new.owner {
                    return true;
                }
                if seen.insert(other) {
                    next.push(other);
                }
            }
        }
        false
    }

    /// The holder that a release or a renewal is about.
    fn holder(&mut self, claim: &Claim) -> Result<&mut Grant, Refusal> {
        let is_it = |grant: &&mut Grant| grant.owner == claim.owner && claim.grant.is_none_or(|id| id == grant.id);
        match &mut self.names[claim.name] {
            Name::Plain(_) => Err(Refusal::WrongType),
            Name::Held { limit, .. } if (*limit > 0) != claim.semaphore => Err(Refusal::WrongType),
            Name::Held { holders, .. } => holders.iter_mut().find(is_it).ok_or(Refusal::NotHeld),
            Name::Free => Err(Refusal::NotHeld),
        }
    }

    /// Gives a lock back once or altogether, or permits; gives how often it is still held.
    pub fn release(&mut self, claim: &Claim, all: bool, request: Option<usize>) -> Result<u64, Refusal> {
        let (name, owner) = (claim.name, claim.owner);
        let said = self.answers.get(&(name, owner)).map(|answers| &answers.said[..]).unwrap_or_default();
        let before = said.iter().find_map(|&(id, said)| match said {
            Said::Released(left) if request == Some(id) => Some(left),
            _ => None,
        });
        if let Some(left) = before {
            return Ok(left);
        }
        let grant = self.holder(claim)?;
        grant.holds = if all || claim.semaphore { 0 } else { grant.holds - 1 };
        let left = grant.holds;
        if left == 0 {
            self.drop_holders(name, |grant| grant.owner == owner);
        }
        if let Some(id) = request {
            self.remember(name, owner, id, Said::Released(left), left == 0);
        }
        self.serve();
        Ok(left)
    }

    /// Begins a lease anew; gives how long it is.
    pub fn renew(&mut self, claim: &Claim, lease: u64) -> Result<u64, Refusal> {
        let now = self.now;
        let grant = self.holder(claim)?;
        grant.end = (now + lease).min(grant.max_end.unwrap_or(u64::MAX));
        Ok(grant.end - now)
    }

    /// Takes holders out of a name; gives them.
    fn drop_holders(&mut self, name: usize, which: impl Fn(&Grant) -> bool) -> Vec<Grant> {
        let Name::Held { holders, held_back, .. } = &mut self.names[name] else { return Vec::new() };
        let (gone, left): (Vec<Grant>, Vec<Grant>) = std::mem::take(holders).into_iter().partition(which);
        *holders = left;
        if holders.is_empty() && held_back.is_none() {
            self.names[name] = Name::Free;
        }
        gone.iter().for_each(|grant| self.note_end(name, grant.owner));
        gone
    }

    /// Tells the connection that has a grant, or else the one that acquired it, that it has ended.
    fn lose(&mut self, name: usize, grant: &Grant, reason: &'static str) {
        let conn = if self.conn_of(grant) == 0 { grant.conn } else { self.conn_of(grant) };
        self.told.push((conn, Told::Lost(name, grant.owner, grant.id, reason)));
    }

    fn hold_back(&mut self, name: usize, limit: u64, until: u64) {
        if until <= self.now {
            return;
        }
        if let Name::Free = self.names[name] {
            self.names[name] = Name::Held { limit, holders: Vec::new(), held_back: None };
        }
        if let Name::Held { held_back, .. } = &mut self.names[name] {
            *held_back = Some(held_back.unwrap_or(0).max(until));
        }
    }

    /// Writes a plain key; false where the name is a lock.
    pub fn set(&mut self, name: usize, end: Option<u64>) -> bool {
        if let Name::Held { .. } = self.names[name] {
            return false;
        }
        self.names[name] = Name::Plain(end);
        true
    }

    /// Deletes a name; whether there was any.
    pub fn delete(&mut self, name: usize) -> bool {
        let was = self.clear(name);
        self.serve();
        was
    }

    /// Deletes all names in one step.
    pub fn flush(&mut self) {
        for name in 0..self.names.len() {
            self.clear(name);
        }
        self.serve();
    }

    fn clear(&mut self, name: usize) -> bool {
        let was = std::mem::take(&mut self.names[name]);
        for grant in was.holders() {
            self.lose(name, grant, "deleted");
            self.note_end(name, grant.owner);
        }
        !matches!(was, Name::Free)
    }

    /// A connection waits no more.
    pub fn leave(&mut self, conn: u64) {
        self.waiting.retain(|waiter| waiter.wish.conn != conn);
        self.serve();
    }

    /// A connection ends, and with it what was bound to it.
    pub fn close(&mut self, conn: u64) {
        self.waiting.retain(|waiter| waiter.wish.conn != conn);
        let over = self.leave_session(conn);
        self.end_tied(|grant| grant.tie == Tie::Connection && grant.conn == conn, None);
        over.into_iter().for_each(|session| self.end_session(&session));
    }

    /// Ends the grants that are tied to something; where that is a session, their connection is told.
    fn end_tied(&mut self, tied: impl Fn(&Grant) -> bool, told: Option<Option<u64>>) {
        for name in 0..self.names.len() {
            let limit = match self.names[name] {
                Name::Held { limit, .. } => limit,
                _ => continue,
            };
            for grant in self.drop_holders(name, &tied) {
                if let Some(conn) = told {
                    self.told.push((conn.unwrap_or(grant.conn), Told::Lost(name, grant.owner, grant.id, "session")));
                }
                self.hold_back(name, limit, self.now + grant.delay);
            }
        }
        self.serve();
    }

    fn session(&self, number: u64) -> Option<&Session> {
        self.sessions.iter().find(|session| session.number == number)
    }

    /// Ends what is tied to a session that has ended.
    fn end_session(&mut self, session: &Session) {
        self.end_tied(|grant| grant.tie == Tie::Session(session.number), Some(session.conn));
    }

    /// What a grant can be tied to now: a session that has no connection is none.
    fn usable(&self, tie: Tie) -> Tie {
        match tie {
            Tie::Session(number) if self.session(number).is_none_or(|session| session.conn.is_none()) => Tie::Connection,
            tie => tie,
        }
    }

    /// What a grant is tied to that a connection asks for with SESSION.
    pub fn tie_of(&self, conn: u64) -> Tie {
        let own = self.sessions.iter().find(|session| session.conn == Some(conn));
        own.map_or(Tie::Connection, |session| Tie::Session(session.number))
    }

    /// The connection that a grant belongs to; 0 where its session has none.
    pub fn conn_of(&self, grant: &Grant) -> u64 {
        match grant.tie {
            Tie::Session(number) => self.session(number).map_or(grant.conn, |session| session.conn.unwrap_or(0)),
            _ => grant.conn,
        }
    }

    /// The id of the session that a grant is tied to.
    pub fn session_of(&self, grant: &Grant) -> Option<usize> {
        match grant.tie {
            Tie::Session(number) => self.session(number).map(|session| session.id),
            _ => None,
        }
    }

    fn grants_of(&self, number: u64) -> u64 {
        let tied = |grant: &&Grant| grant.tie == Tie::Session(number);
        self.names.iter().flat_map(|name| name.holders()).filter(tied).count() as u64
    }

    /// Sessions end that have neither a connection nor a grant.
    fn drop_idle(&mut self) {
        let idle = |session: &Session| session.conn.is_none() && self.grants_of(session.number) == 0;
        let idle: Vec<u64> = self.sessions.iter().filter(|session| idle(session)).map(|session| session.number).collect();
        self.sessions.retain(|session| !idle.contains(&session.number));
    }

    /// A connection leaves its session, whose grace begins; takes it out where it ends at once.
    fn leave_session(&mut self, conn: u64) -> Option<Session> {
        let at = self.sessions.iter().position(|session| session.conn == Some(conn))?;
        let (number, grace) = (self.sessions[at].number, self.sessions[at].grace);
        if grace == 0 || self.grants_of(number) == 0 {
            return Some(self.sessions.remove(at));
        }
        (self.sessions[at].conn, self.sessions[at].end) = (None, self.now + grace);
        None
    }

    /// Names a connection's session; gives how many grants it has.
    pub fn name_session(&mut self, conn: u64, id: usize, grace: Option<u64>) -> u64 {
        let is_it = |session: &Session| session.id == id;
        let has_it = self.sessions.iter().any(|session| is_it(session) && session.conn == Some(conn));
        let over = if has_it { None } else { self.leave_session(conn) };
        let at = self.sessions.iter().position(is_it).unwrap_or_else(|| {
            self.serial += 1;
            self.sessions.push(Session { number: self.serial, id, grace: 0, conn: None, end: 0 });
            self.sessions.len() - 1
        });
        let session = &mut self.sessions[at];
        (session.conn, session.grace) = (Some(conn), grace.unwrap_or(session.grace));
        let grants = self.grants_of(self.sessions[at].number);
        over.into_iter().for_each(|session| self.end_session(&session));
        grants
    }

    /// Ends the session with an id; gives how many grants it had.
    pub fn end_named(&mut self, id: usize) -> u64 {
        let Some(at) = self.sessions.iter().position(|session| session.id == id) else { return 0 };
        let session = self.sessions.remove(at);
        let grants = self.grants_of(session.number);
        self.end_session(&session);
        grants
    }

    /// When something comes about by itself.
    pub fn next(&self) -> Option<u64> {
        let names = self.names.iter().flat_map(|name| match name {
            Name::Free => Vec::new(),
            Name::Plain(end) => end.iter().copied().collect(),
            Name::Held { holders, held_back, .. } => holders.iter().map(|grant| grant.end).chain(*held_back).collect(),
        });
        let sessions = self.sessions.iter().filter(|session| session.conn.is_none()).map(|session| session.end);
        names.chain(self.waiting.iter().filter_map(|waiter| waiter.deadline)).chain(sessions).min()
    }

    /// Lets all come about that does at an instant: nothing did earlier.
    pub fn pass_to(&mut self, now: u64) {
        assert!(now >= self.now, "time goes on");
        self.now = now;
        for name in 0..self.names.len() {
            match &mut self.names[name] {
                Name::Plain(Some(end)) if *end <= now => self.names[name] = Name::Free,
                Name::Held { limit, held_back, .. } => {
                    let limit = *limit;
                    if held_back.is_some_and(|at| at <= now) {
                        *held_back = None;
                    }
                    for grant in self.drop_holders(name, |grant| grant.end <= now) {
                        let reason = if grant.max_end == Some(grant.end) { "maxhold" } else { "lease" };
                        self.lose(name, &grant, reason);
                        self.hold_back(name, limit, grant.end + grant.delay);
                    }
                }
                _ => {}
            }
        }
        self.serve();
        // A wait that ends in the same instant as what it is for has not been in vain.
        for _ in 0..ROUNDS_MAX {
            let over = self.waiting.iter().filter(|waiter| waiter.deadline.is_some_and(|at| at <= now));
            let Some(over) = over.min_by_key(|waiter| waiter.serial) else { return self.end_sessions() };
            let (conn, all) = (over.wish.conn, over.wish.all);
            self.told.push((conn, Told::Nil(all)));
            self.leave(conn);
        }
        panic!("time does not settle");
    }

    /// Sessions end whose grace is over, and answers are forgotten.
    fn end_sessions(&mut self) {
        let now = self.now;
        while let Some(at) = self.sessions.iter().position(|session| session.conn.is_none() && session.end <= now) {
            let session = self.sessions.remove(at);
            self.end_session(&session);
        }
        self.answers.retain(|_, answers| answers.forget.is_none_or(|at| at > now));
    }

    /// What a grant is tied to, where the order of what ends at one instant decides on it: no contract fixes that order.
    pub fn adopt(&mut self, name: usize, owner: usize, conn: u64, session: Option<usize>) {
        let number = self.sessions.iter().find(|of| Some(of.id) == session).map(|session| session.number);
        if let Name::Held { holders, .. } = &mut self.names[name]
            && let Some(grant) = holders.iter_mut().find(|grant| grant.owner == owner && grant.is_tied_by_several())
        {
            (grant.conn, grant.tie) = (conn, number.map_or(Tie::Connection, Tie::Session));
        }
    }
}
