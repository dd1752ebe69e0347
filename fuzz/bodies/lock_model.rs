//! A naive model of the native locks, after LOCKS.md: plain lists, in which every operation looks at everybody.
//!
//! It knows time in whole milliseconds, four names in one database, and connections by their numbers. What it does not know is which
//! number a fencing token is: it numbers grants, and whoever drives it finds out what tokens they have.

use std::collections::BTreeSet;

/// How often leases and waits can end at one instant before the model is taken to run in circles.
const ROUNDS_MAX: usize = 10_000;

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
    pub session: bool,
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
    pub session: bool,
    /// The connection that acquired it.
    pub conn: u64,
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

    /// Grants a name.
    fn hold(&mut self, name: usize, wish: &Wish, has_waited: bool) -> GrantId {
        let (now, next) = (self.now, self.granted.len());
        let of = &mut self.names[name];
        if let Name::Free = of {
            *of = Name::Held { limit: wish.limit, holders: Vec::new(), held_back: None };
        }
        let Name::Held { holders, .. } = of else { unreachable!("a plain key is granted to nobody") };
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
                session: wish.session,
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
            (grant.id, grant.granted, grant.exclusive, grant.conn) = (next, now, true, wish.conn);
            grant.session |= wish.session;
            self.granted.push(name);
        } else if wish.session && !grant.session {
            (grant.session, grant.conn) = (true, wish.conn);
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
    fn holder(&mut self, name: usize, owner: usize, semaphore: bool) -> Result<&mut Grant, Refusal> {
        match &mut self.names[name] {
            Name::Plain(_) => Err(Refusal::WrongType),
            Name::Held { limit, .. } if (*limit > 0) != semaphore => Err(Refusal::WrongType),
            Name::Held { holders, .. } => holders.iter_mut().find(|grant| grant.owner == owner).ok_or(Refusal::NotHeld),
            Name::Free => Err(Refusal::NotHeld),
        }
    }

    /// Gives a lock back once or altogether, or permits; gives how often it is still held.
    pub fn release(&mut self, name: usize, owner: usize, all: bool, semaphore: bool) -> Result<u64, Refusal> {
        let grant = self.holder(name, owner, semaphore)?;
        grant.holds = if all || semaphore { 0 } else { grant.holds - 1 };
        let left = grant.holds;
        if left == 0 {
            self.drop_holders(name, |grant| grant.owner == owner);
            self.serve();
        }
        Ok(left)
    }

    /// Begins a lease anew; gives how long it is.
    pub fn renew(&mut self, name: usize, owner: usize, lease: u64, semaphore: bool) -> Result<u64, Refusal> {
        let now = self.now;
        let grant = self.holder(name, owner, semaphore)?;
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
        gone
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
        let was = std::mem::take(&mut self.names[name]);
        for grant in was.holders() {
            self.told.push((grant.conn, Told::Lost(name, grant.owner, grant.id, "deleted")));
        }
        self.serve();
        !matches!(was, Name::Free)
    }

    /// Deletes all names in one step.
    pub fn flush(&mut self) {
        for name in 0..self.names.len() {
            let was = std::mem::take(&mut self.names[name]);
            for grant in was.holders() {
                self.told.push((grant.conn, Told::Lost(name, grant.owner, grant.id, "deleted")));
            }
        }
        self.serve();
    }

    /// A connection waits no more.
    pub fn leave(&mut self, conn: u64) {
        self.waiting.retain(|waiter| waiter.wish.conn != conn);
        self.serve();
    }

    /// A connection ends, and with it what was bound to it.
    pub fn close(&mut self, conn: u64) {
        self.waiting.retain(|waiter| waiter.wish.conn != conn);
        for name in 0..self.names.len() {
            let limit = match self.names[name] {
                Name::Held { limit, .. } => limit,
                _ => continue,
            };
            for grant in self.drop_holders(name, |grant| grant.session && grant.conn == conn) {
                self.hold_back(name, limit, self.now + grant.delay);
            }
        }
        self.serve();
    }

    /// When something comes about by itself.
    pub fn next(&self) -> Option<u64> {
        let names = self.names.iter().flat_map(|name| match name {
            Name::Free => Vec::new(),
            Name::Plain(end) => end.iter().copied().collect(),
            Name::Held { holders, held_back, .. } => holders.iter().map(|grant| grant.end).chain(*held_back).collect(),
        });
        names.chain(self.waiting.iter().filter_map(|waiter| waiter.deadline)).min()
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
                        self.told.push((grant.conn, Told::Lost(name, grant.owner, grant.id, reason)));
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
            let Some(over) = over.min_by_key(|waiter| waiter.serial) else { return };
            let (conn, all) = (over.wish.conn, over.wish.all);
            self.told.push((conn, Told::Nil(all)));
            self.leave(conn);
        }
        panic!("time does not settle");
    }

    /// The connection of a grant, where the order of what ends at one instant decides on it: that is not told by LOCKS.md.
    pub fn adopt(&mut self, name: usize, owner: usize, conn: u64) {
        if let Name::Held { holders, .. } = &mut self.names[name]
            && let Some(grant) = holders.iter_mut().find(|grant| grant.owner == owner && grant.holds > 1 && grant.session)
        {
            grant.conn = conn;
        }
    }
}
