//! A naive model of the native locks, after guide/native-locks.md: plain lists, in which every operation looks at everything.
//!
//! It has time in whole milliseconds, four names in one database, and connections by their numbers. It does not know the values
//! of fencing tokens: it numbers grants, and its driver finds out their tokens.

use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of ends of leases and waits at one instant. More of them mean an endless loop in the model.
const ROUNDS_MAX: usize = 10_000;

/// Milliseconds for which the replies to requests are kept after the grant has ended, and the maximum number of replies for an
/// owner and name.
const REPLIES_KEPT_MS: u64 = 60_000;
const REPLIES_MAX: usize = 4;

/// The model's number of a grant.
pub type GrantId = usize;

/// An attempt to acquire names.
#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
    pub conn: u64,
    pub owner: usize,
    /// One name, or several at once.
    pub names: Vec<usize>,
    pub all: bool,
    pub exclusive: bool,
    /// The permits, and the limit of the semaphore; 0 for a lock.
    pub permits: u64,
    pub limit: u64,
    pub lease: u64,
    pub max_hold: Option<u64>,
    pub delay: u64,
    pub tie: Tie,
    /// The client's id of this request.
    pub request: Option<usize>,
}

impl Attempt {
    /// An attempt to acquire names exclusively and at once, without options.
    pub fn new(conn: u64, owner: usize, names: Vec<usize>, lease: u64) -> Attempt {
        Attempt {
            conn,
            owner,
            names,
            all: false,
            exclusive: true,
            permits: 1,
            limit: 0,
            lease,
            max_hold: None,
            delay: 0,
            tie: Tie::None,
            request: None,
        }
    }
}

/// What ends a grant beside its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tie {
    None,
    /// The end of the connection that acquired it.
    Connection,
    /// The end of the session with this number.
    Session(u64),
}

/// A named session.
#[derive(Clone, Debug)]
struct Session {
    number: u64,
    id: usize,
    grace: u64,
    /// Its connection; without one, `end` is when the session ends.
    conn: Option<u64>,
    end: u64,
}

/// The reply to a request.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Reply {
    Granted(GrantId),
    /// The number of holds that were left.
    Released(u64),
}

/// The remembered replies to an owner's requests for a name.
#[derive(Clone, Debug, Default)]
struct Replies {
    list: Vec<(usize, Reply)>,
    forget: Option<u64>,
}

/// What a release or a renewal refers to.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    pub name: usize,
    pub owner: usize,
    pub semaphore: bool,
    /// The grant whose token is given, if a token is given.
    pub grant: Option<GrantId>,
}

/// A waiting attempt.
#[derive(Clone, Debug)]
pub struct Waiter {
    pub attempt: Attempt,
    pub deadline: Option<u64>,
    serial: u64,
}

/// The grant of a name to an owner.
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
    /// Whether several connections may have waited for the grant at once, each with its own tie.
    pub fn has_several_ties(&self) -> bool {
        self.holds > 1 && self.tie != Tie::None
    }
}

/// The state of a name.
#[derive(Clone, Debug, Default)]
pub enum Name {
    #[default]
    Free,
    /// A key that is not a lock, with the time of its end.
    Plain(Option<u64>),
    /// A lock, or with a limit a semaphore. It may have no holders and be held back until a time.
    Held { limit: u64, holders: Vec<Grant>, held_back: Option<u64> },
}

/// A message to a connection.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// The tokens of these grants; as an array if several names were requested.
    Granted(Vec<GrantId>, bool),
    /// Nothing was granted, and the wait, if there was one, is over. As an array's nil if several names were requested.
    Nil(bool),
    /// A push message: the grant of this name and owner ended for this reason.
    Lost(usize, usize, GrantId, &'static str),
}

impl Message {
    /// The grants that the message announces.
    pub fn grants(&self) -> &[GrantId] {
        if let Message::Granted(grants, _) = self { grants } else { &[] }
    }
}

/// The reason of a refusal.
#[derive(Clone, Debug, PartialEq)]
pub enum Refusal {
    WrongType,
    /// The semaphore has this limit.
    Limit(u64),
    NotHeld,
    /// The request was granted before, and the grant of this name has ended.
    Ended(usize),
    Deadlock,
    /// The owner has held the name for this long, which is not less than the maximum that it gives.
    HeldTooLong(u64),
}

/// The immediate outcome of an attempt.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    Granted(Vec<GrantId>),
    Busy,
    Waits,
}

/// The state of the model.
#[derive(Default)]
pub struct Model {
    pub now: u64,
    pub names: [Name; 4],
    /// In queue order. Owners that share a name and want to hold it exclusively come first.
    pub waiting: Vec<Waiter>,
    /// Messages with their connections, in order.
    pub messages: Vec<(u64, Message)>,
    /// The name of each grant.
    pub granted: Vec<usize>,
    serial: u64,
    sessions: Vec<Session>,
    closed: BTreeSet<u64>,
    /// By name and owner.
    replies: BTreeMap<(usize, usize), Replies>,
}

impl Name {
    fn holders(&self) -> &[Grant] {
        match self {
            Name::Held { holders, .. } => holders,
            _ => &[],
        }
    }

    /// The grant of an owner.
    pub fn grant_of(&self, owner: usize) -> Option<&Grant> {
        self.holders().iter().find(|grant| grant.owner == owner)
    }

    /// The milliseconds at which the key ends. `None` if there is no key, `Some(None)` if it does not end.
    pub fn end(&self) -> Option<Option<u64>> {
        match self {
            Name::Free => None,
            Name::Plain(end) => Some(*end),
            Name::Held { holders, held_back, .. } => Some(holders.iter().map(|grant| grant.end).chain(*held_back).max()),
        }
    }
}

impl Model {
    /// A model at a time.
    pub fn new(now: u64) -> Model {
        Model { now, ..Model::default() }
    }

    /// The waiters for a name, in queue order.
    pub fn queue(&self, name: usize) -> impl Iterator<Item = &Waiter> {
        self.waiting.iter().filter(move |waiter| waiter.attempt.names.contains(&name))
    }

    /// Whether a connection waits.
    pub fn waits(&self, conn: u64) -> bool {
        self.waiting.iter().any(|waiter| waiter.attempt.conn == conn)
    }

    /// Whether a name can be granted beside its present holders, and is not held back.
    fn is_grantable(&self, name: usize, attempt: &Attempt) -> bool {
        let (limit, holders, held_back) = match &self.names[name] {
            Name::Free => return true,
            Name::Plain(_) => return false,
            Name::Held { limit, holders, held_back } => (*limit, holders, held_back),
        };
        if held_back.is_some() || limit != attempt.limit {
            return false;
        }
        if limit > 0 {
            return holders.iter().map(|grant| grant.permits).sum::<u64>() + attempt.permits <= limit;
        }
        let others_exclude = |grant: &Grant| grant.owner != attempt.owner && (grant.exclusive || attempt.exclusive);
        // An exclusive holder excludes its own shared holds too.
        !holders.iter().any(others_exclude) && (attempt.exclusive || !holders.iter().any(|grant| grant.exclusive))
    }

    /// Whether an owner holds the name in the requested way already, so that a grant is one more hold.
    fn reenters(&self, name: usize, attempt: &Attempt) -> bool {
        self.names[name].grant_of(attempt.owner).is_some_and(|grant| attempt.limit > 0 || grant.exclusive || !attempt.exclusive)
    }

    /// Carries out an attempt. With `wait` it may wait, for a number of milliseconds or without limit.
    pub fn acquire(&mut self, attempt: Attempt, wait: Option<Option<u64>>) -> Result<Outcome, Refusal> {
        if let Some(again) = attempt.request.and_then(|id| self.repeat(&attempt, id, wait)) {
            return again;
        }
        for &name in &attempt.names {
            match self.names[name] {
                Name::Held { limit, .. } if (limit > 0) != (attempt.limit > 0) => return Err(Refusal::WrongType),
                Name::Held { limit, .. } if limit != attempt.limit => return Err(Refusal::Limit(limit)),
                _ => {}
            }
        }
        if !attempt.all
            && self.reenters(attempt.names[0], &attempt)
            && let (Some(grant), Some(max)) = (self.names[attempt.names[0]].grant_of(attempt.owner), attempt.max_hold)
            && grant.granted + max <= self.now
        {
            return Err(Refusal::HeldTooLong(self.now - grant.granted));
        }
        let upgrades = !attempt.all && self.names[attempt.names[0]].grant_of(attempt.owner).is_some();
        let now_free = |name: usize| {
            let alone = self.names[name].grant_of(attempt.owner).is_some_and(|grant| grant.exclusive);
            let first = upgrades || self.queue(name).next().is_none();
            (attempt.all && alone) || (first && self.is_grantable(name, &attempt))
        };
        if (!attempt.all && self.reenters(attempt.names[0], &attempt)) || attempt.names.iter().all(|&name| now_free(name)) {
            let grants = attempt.names.iter().map(|&name| self.hold(name, &attempt, false)).collect();
            self.grant_waiters();
            return Ok(Outcome::Granted(grants));
        }
        let Some(wait) = wait else { return Ok(Outcome::Busy) };
        if attempt.limit <= 1 && self.closes_cycle(&attempt, upgrades) {
            return Err(Refusal::Deadlock);
        }
        self.serial += 1;
        let waiter = Waiter { attempt, deadline: wait.map(|ms| self.now + ms), serial: self.serial };
        let place = if upgrades { 0 } else { self.waiting.len() };
        self.waiting.insert(place, waiter);
        Ok(Outcome::Waits)
    }

    /// Handles a repeated request, which is not carried out again. `None` if the request is new.
    fn repeat(&mut self, attempt: &Attempt, id: usize, wait: Option<Option<u64>>) -> Option<Result<Outcome, Refusal>> {
        let same = |waiter: &Waiter| {
            let old = &waiter.attempt;
            old.owner == attempt.owner && old.request == Some(id) && old.names == attempt.names && old.all == attempt.all
        };
        if let Some(at) = self.waiting.iter().position(same) {
            self.messages.push((self.waiting[at].attempt.conn, Message::Nil(attempt.all)));
            let Some(wait) = wait else {
                self.waiting.remove(at);
                self.grant_waiters();
                return Some(Ok(Outcome::Busy));
            };
            let waiter = &mut self.waiting[at];
            (waiter.attempt.conn, waiter.deadline) = (attempt.conn, wait.map(|ms| self.now + ms));
            if attempt.tie != Tie::None {
                waiter.attempt.tie = attempt.tie;
            }
            return Some(Ok(Outcome::Waits));
        }
        let known: Vec<Option<GrantId>> = attempt.names.iter().map(|&name| self.granted_to(name, attempt.owner, id)).collect();
        if known.iter().all(Option::is_none) {
            return None;
        }
        for (&name, known) in attempt.names.iter().zip(&known) {
            if self.names[name].grant_of(attempt.owner).map(|grant| grant.id) != *known || known.is_none() {
                return Some(Err(Refusal::Ended(name)));
            }
        }
        let tie = self.usable(attempt.tie);
        for &name in &attempt.names {
            let Name::Held { holders, .. } = &mut self.names[name] else { continue };
            for grant in holders.iter_mut().filter(|grant| grant.owner == attempt.owner) {
                grant.end = grant.end.max(self.now + attempt.lease).min(grant.max_end.unwrap_or(u64::MAX));
                // Without a tie of its own, the grant goes over to the connection that has the reply.
                if tie != Tie::None || grant.tie == Tie::None {
                    (grant.tie, grant.conn) = (tie, attempt.conn);
                }
            }
        }
        self.drop_idle_sessions();
        Some(Ok(Outcome::Granted(known.into_iter().flatten().collect())))
    }

    /// The grant that was the reply to an owner's request.
    fn granted_to(&self, name: usize, owner: usize, id: usize) -> Option<GrantId> {
        self.replies.get(&(name, owner))?.list.iter().find_map(|&(of, reply)| match reply {
            Reply::Granted(grant) if of == id => Some(grant),
            _ => None,
        })
    }

    fn remember(&mut self, name: usize, owner: usize, id: usize, reply: Reply, ended: bool) {
        let replies = self.replies.entry((name, owner)).or_default();
        replies.list.push((id, reply));
        if replies.list.len() > REPLIES_MAX {
            replies.list.remove(0);
        }
        replies.forget = ended.then_some(self.now + REPLIES_KEPT_MS);
    }

    fn note_end(&mut self, name: usize, owner: usize) {
        let forget = Some(self.now + REPLIES_KEPT_MS);
        self.replies.entry((name, owner)).and_modify(|replies| replies.forget = forget);
    }

    /// Grants a name.
    fn hold(&mut self, name: usize, attempt: &Attempt, has_waited: bool) -> GrantId {
        let grant = self.hold_now(name, attempt, has_waited);
        if let Some(id) = attempt.request {
            self.remember(name, attempt.owner, id, Reply::Granted(grant), false);
        }
        self.drop_idle_sessions();
        grant
    }

    fn hold_now(&mut self, name: usize, attempt: &Attempt, has_waited: bool) -> GrantId {
        let (now, next) = (self.now, self.granted.len());
        let tie = self.usable(attempt.tie);
        let tie_before = self.names[name].grant_of(attempt.owner).map_or(Tie::None, |grant| self.usable(grant.tie));
        let of = &mut self.names[name];
        if let Name::Free = of {
            *of = Name::Held { limit: attempt.limit, holders: Vec::new(), held_back: None };
        }
        let Name::Held { holders, .. } = of else { unreachable!("a plain key is never granted") };
        let mut end = now + attempt.lease;
        let Some(grant) = holders.iter_mut().find(|grant| grant.owner == attempt.owner) else {
            let max_end = attempt.max_hold.map(|ms| now + ms);
            holders.push(Grant {
                id: next,
                owner: attempt.owner,
                holds: 1,
                exclusive: attempt.exclusive,
                permits: attempt.permits,
                end: end.min(max_end.unwrap_or(u64::MAX)),
                granted: now,
                max_end,
                delay: attempt.delay,
                tie,
                conn: attempt.conn,
            });
            self.granted.push(name);
            return next;
        };
        let upgrade = attempt.limit == 0 && !grant.exclusive && attempt.exclusive;
        if has_waited {
            // A lease that was granted already is not shortened.
            end = end.max(grant.end);
        }
        if upgrade {
            let before = std::mem::replace(&mut grant.id, next);
            (grant.granted, grant.exclusive, grant.conn) = (now, true, attempt.conn);
            grant.tie = if tie == Tie::None { tie_before } else { tie };
            self.granted.push(name);
            let replies = self.replies.get_mut(&(name, attempt.owner)).map(|replies| &mut replies.list);
            let of_grant = |(_, reply): &&mut (usize, Reply)| *reply == Reply::Granted(before);
            replies.into_iter().flatten().filter(of_grant).for_each(|(_, reply)| *reply = Reply::Granted(next));
        } else if tie != Tie::None && grant.tie == Tie::None {
            (grant.tie, grant.conn) = (tie, attempt.conn);
        }
        grant.holds += 1;
        if let Some(ms) = attempt.max_hold {
            grant.max_end = Some(grant.max_end.unwrap_or(u64::MAX).min(grant.granted + ms));
        }
        grant.delay = grant.delay.max(attempt.delay);
        grant.end = end.min(grant.max_end.unwrap_or(u64::MAX));
        grant.id
    }

    /// Grants what can be granted to the waiters, in queue order.
    fn grant_waiters(&mut self) {
        self.drop_idle_sessions();
        let granted = |model: &Model, at: usize| {
            let attempt = &model.waiting[at].attempt;
            let first = |name: usize| model.queue(name).next().is_some_and(|first| first.attempt.conn == attempt.conn);
            (!attempt.all && model.reenters(attempt.names[0], attempt))
                || attempt.names.iter().all(|&name| first(name) && model.is_grantable(name, attempt))
        };
        while let Some(at) = (0..self.waiting.len()).find(|&at| granted(self, at)) {
            let attempt = self.waiting.remove(at).attempt;
            let grants = attempt.names.iter().map(|&name| self.hold(name, &attempt, true)).collect();
            self.messages.push((attempt.conn, Message::Granted(grants, attempt.all)));
        }
    }

    /// Whether a new wait would close a cycle of owners that wait for each other.
    fn closes_cycle(&self, new: &Attempt, upgrade: bool) -> bool {
        let mut line: Vec<&Attempt> = self.waiting.iter().map(|waiter| &waiter.attempt).collect();
        line.insert(if upgrade { 0 } else { line.len() }, new);
        let awaited = |owner: usize| {
            let mut owners = BTreeSet::new();
            for (place, attempt) in line.iter().enumerate().filter(|(_, attempt)| attempt.owner == owner && attempt.limit <= 1) {
                for &name in &attempt.names {
                    let holders = self.names[name].holders().iter().map(|grant| (grant.owner, grant.exclusive));
                    let ahead = line[..place].iter().filter(|other| other.names.contains(&name));
                    let others = holders.chain(ahead.map(|other| (other.owner, other.exclusive)));
                    owners.extend(
                        others.filter(|(other, exclusive)| *other != owner && (*exclusive || attempt.exclusive)).map(|o| o.0),
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

    /// The holder that a release or a renewal refers to.
    fn holder(&mut self, claim: &Claim) -> Result<&mut Grant, Refusal> {
        let is_it = |grant: &&mut Grant| grant.owner == claim.owner && claim.grant.is_none_or(|id| id == grant.id);
        match &mut self.names[claim.name] {
            Name::Plain(_) => Err(Refusal::WrongType),
            Name::Held { limit, .. } if (*limit > 0) != claim.semaphore => Err(Refusal::WrongType),
            Name::Held { holders, .. } => holders.iter_mut().find(is_it).ok_or(Refusal::NotHeld),
            Name::Free => Err(Refusal::NotHeld),
        }
    }

    /// Releases one hold, all holds, or permits. Returns the number of holds left.
    pub fn release(&mut self, claim: &Claim, all: bool, request: Option<usize>) -> Result<u64, Refusal> {
        let (name, owner) = (claim.name, claim.owner);
        let list = self.replies.get(&(name, owner)).map(|replies| &replies.list[..]).unwrap_or_default();
        let before = list.iter().find_map(|&(id, reply)| match reply {
            Reply::Released(left) if request == Some(id) => Some(left),
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
            self.remember(name, owner, id, Reply::Released(left), left == 0);
        }
        self.grant_waiters();
        Ok(left)
    }

    /// Restarts a lease, or keeps it with `None`. Returns what is left of it. A connection takes over the grant of one that has ended.
    pub fn renew(&mut self, claim: &Claim, lease: Option<u64>, conn: u64) -> Result<u64, Refusal> {
        let now = self.now;
        let before = self.holder(claim)?.conn;
        let is_closed = self.closed.contains(&before);
        let grant = self.holder(claim)?;
        if let Some(lease) = lease {
            grant.end = (now + lease).min(grant.max_end.unwrap_or(u64::MAX));
        }
        if is_closed && grant.tie == Tie::None {
            grant.conn = conn;
        }
        Ok(grant.end - now)
    }

    /// Removes holders from a name and returns them.
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

    /// Sends the end of a grant to its connection, or to the connection that acquired it.
    fn push_lost(&mut self, name: usize, grant: &Grant, reason: &'static str) {
        let conn = if self.conn_of(grant) == 0 { grant.conn } else { self.conn_of(grant) };
        self.messages.push((conn, Message::Lost(name, grant.owner, grant.id, reason)));
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

    /// Writes a plain key. Returns false if the name is a lock.
    pub fn set(&mut self, name: usize, end: Option<u64>) -> bool {
        if let Name::Held { .. } = self.names[name] {
            return false;
        }
        self.names[name] = Name::Plain(end);
        true
    }

    /// Deletes a name. Returns whether it existed.
    pub fn delete(&mut self, name: usize) -> bool {
        let was = self.clear(name);
        self.grant_waiters();
        was
    }

    /// Deletes all names in one step.
    pub fn flush(&mut self) {
        for name in 0..self.names.len() {
            self.clear(name);
        }
        self.grant_waiters();
    }

    fn clear(&mut self, name: usize) -> bool {
        let was = std::mem::take(&mut self.names[name]);
        for grant in was.holders() {
            self.push_lost(name, grant, "deleted");
            self.note_end(name, grant.owner);
        }
        !matches!(was, Name::Free)
    }

    /// Ends the wait of a connection.
    pub fn stop_waiting(&mut self, conn: u64) {
        self.waiting.retain(|waiter| waiter.attempt.conn != conn);
        self.grant_waiters();
    }

    /// Closes a connection, with everything that is tied to it.
    pub fn close(&mut self, conn: u64) {
        self.closed.insert(conn);
        self.waiting.retain(|waiter| waiter.attempt.conn != conn);
        let over = self.leave_session(conn);
        self.end_tied(|grant| grant.tie == Tie::Connection && grant.conn == conn, None);
        over.into_iter().for_each(|session| self.end_session(&session));
    }

    /// Ends tied grants. With `notify`, sends a message to that connection, or to the one that acquired the grant.
    fn end_tied(&mut self, tied: impl Fn(&Grant) -> bool, notify: Option<Option<u64>>) {
        for name in 0..self.names.len() {
            let limit = match self.names[name] {
                Name::Held { limit, .. } => limit,
                _ => continue,
            };
            for grant in self.drop_holders(name, &tied) {
                if let Some(conn) = notify {
                    self.messages.push((conn.unwrap_or(grant.conn), Message::Lost(name, grant.owner, grant.id, "session")));
                }
                self.hold_back(name, limit, self.now + grant.delay);
            }
        }
        self.grant_waiters();
    }

    fn session(&self, number: u64) -> Option<&Session> {
        self.sessions.iter().find(|session| session.number == number)
    }

    /// Ends the grants that are tied to an ended session.
    fn end_session(&mut self, session: &Session) {
        self.end_tied(|grant| grant.tie == Tie::Session(session.number), Some(session.conn));
    }

    /// The effective tie: a session without a connection cannot be tied to, so the connection is.
    fn usable(&self, tie: Tie) -> Tie {
        match tie {
            Tie::Session(number) if self.session(number).is_none_or(|session| session.conn.is_none()) => Tie::Connection,
            tie => tie,
        }
    }

    /// The tie of a grant that a connection requests with SESSION.
    pub fn tie_of(&self, conn: u64) -> Tie {
        let own = self.sessions.iter().find(|session| session.conn == Some(conn));
        own.map_or(Tie::Connection, |session| Tie::Session(session.number))
    }

    /// The connection that a grant belongs to; 0 if its session has none.
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

    /// Ends sessions that have neither a connection nor a grant.
    fn drop_idle_sessions(&mut self) {
        let idle = |session: &Session| session.conn.is_none() && self.grants_of(session.number) == 0;
        let idle: Vec<u64> = self.sessions.iter().filter(|session| idle(session)).map(|session| session.number).collect();
        self.sessions.retain(|session| !idle.contains(&session.number));
    }

    /// Detaches a connection from its session, whose grace period begins. Returns the session if it ends at once.
    fn leave_session(&mut self, conn: u64) -> Option<Session> {
        let at = self.sessions.iter().position(|session| session.conn == Some(conn))?;
        let (number, grace) = (self.sessions[at].number, self.sessions[at].grace);
        if grace == 0 || self.grants_of(number) == 0 {
            return Some(self.sessions.remove(at));
        }
        (self.sessions[at].conn, self.sessions[at].end) = (None, self.now + grace);
        None
    }

    /// Attaches a connection to a named session. Returns the session's number of grants.
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

    /// Ends the session with an id. Returns its number of grants.
    pub fn end_named(&mut self, id: usize) -> u64 {
        let Some(at) = self.sessions.iter().position(|session| session.id == id) else { return 0 };
        let session = self.sessions.remove(at);
        let grants = self.grants_of(session.number);
        self.end_session(&session);
        grants
    }

    /// The time of the next timed event.
    pub fn next(&self) -> Option<u64> {
        let names = self.names.iter().flat_map(|name| match name {
            Name::Free => Vec::new(),
            Name::Plain(end) => end.iter().copied().collect(),
            Name::Held { holders, held_back, .. } => holders.iter().map(|grant| grant.end).chain(*held_back).collect(),
        });
        let sessions = self.sessions.iter().filter(|session| session.conn.is_none()).map(|session| session.end);
        names.chain(self.waiting.iter().filter_map(|waiter| waiter.deadline)).chain(sessions).min()
    }

    /// Advances to a time and handles its timed events. There must be no earlier event.
    pub fn advance_to(&mut self, now: u64) {
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
                        self.push_lost(name, &grant, reason);
                        self.hold_back(name, limit, grant.end + grant.delay);
                    }
                }
                _ => {}
            }
        }
        self.grant_waiters();
        // A wait that could be granted at the instant of its own end is granted.
        for _ in 0..ROUNDS_MAX {
            let over = self.waiting.iter().filter(|waiter| waiter.deadline.is_some_and(|at| at <= now));
            let Some(over) = over.min_by_key(|waiter| waiter.serial) else { return self.end_sessions() };
            let (conn, all) = (over.attempt.conn, over.attempt.all);
            self.messages.push((conn, Message::Nil(all)));
            self.stop_waiting(conn);
        }
        panic!("time does not settle");
    }

    /// Ends sessions whose grace period is over, and forgets replies.
    fn end_sessions(&mut self) {
        let now = self.now;
        while let Some(at) = self.sessions.iter().position(|session| session.conn.is_none() && session.end <= now) {
            let session = self.sessions.remove(at);
            self.end_session(&session);
        }
        self.replies.retain(|_, replies| replies.forget.is_none_or(|at| at > now));
    }

    /// Sets the tie of a grant from the server's. The tie depends on the order of events at one instant, which no contract fixes.
    pub fn adopt(&mut self, name: usize, owner: usize, conn: u64, session: Option<usize>) {
        let number = self.sessions.iter().find(|of| Some(of.id) == session).map(|session| session.number);
        if let Name::Held { holders, .. } = &mut self.names[name]
            && let Some(grant) = holders.iter_mut().find(|grant| grant.owner == owner && grant.has_several_ties())
        {
            (grant.conn, grant.tie) = (conn, number.map_or(Tie::Connection, Tie::Session));
        }
    }
}
