//! The naive reference: plain lists. It finds out who can be granted what by looking at every holder and waiter, and finds cycles
//! by walking from owner to owner.

use std::collections::{BTreeMap, BTreeSet};

use super::{KEPT_MS, OWNERS};
use crate::lock::grant::Mode;
use crate::lock::requests;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Held {
    pub(super) owner: &'static str,
    pub(super) holds: u32,
    pub(super) mode: Mode,
    pub(super) permits: u32,
    pub(super) granted: u64,
    pub(super) end: u64,
    /// The lease is never extended beyond this.
    pub(super) max_end: u64,
    pub(super) delay: u64,
    pub(super) tie: Tie,
    /// Identifies the grant; [`Reference::tokens`] has the actual token.
    pub(super) grant: u64,
}

/// What a grant ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tie {
    None,
    Client(u64),
    /// A session, by the number that the reference gives it.
    Session(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// A grant.
    Granted(u64),
    /// The remaining holds of a release.
    Released(u32),
}

/// An answer to a request, and the step of the answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answered {
    pub(super) id: &'static str,
    pub(super) said: Said,
    pub(super) step: u64,
}

/// The remembered requests of an owner for a name.
#[derive(Clone, Debug, Default)]
pub(super) struct Answers {
    pub(super) said: Vec<Answered>,
    pub(super) forget: Option<u64>,
}

#[derive(Clone, Debug)]
pub(super) struct Named {
    pub(super) id: &'static str,
    pub(super) grace: u64,
    pub(super) client: Option<u64>,
    /// [`NEVER`] if nobody knows whether its connection lives.
    pub(super) end: u64,
}

/// The end of a session that has none.
pub(super) const NEVER: u64 = u64::MAX;

#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) client: u64,
    pub(super) owner: &'static str,
    pub(super) names: Vec<&'static str>,
    pub(super) mode: Mode,
    pub(super) permits: u32,
    pub(super) limit: u32,
    pub(super) upgrade: bool,
    pub(super) all: bool,
    pub(super) lease: u64,
    pub(super) extra: u64,
    /// Milliseconds; 0 without a limit.
    pub(super) max_hold: u64,
    pub(super) tie: Tie,
    pub(super) deadline: Option<u64>,
    pub(super) serial: u64,
    pub(super) request: Option<&'static str>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Name {
    pub(super) plain: bool,
    pub(super) held_back: u64,
    pub(super) holders: Vec<Held>,
}

/// The final result that a client was told.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Told {
    Granted(u64, usize),
    TimedOut(u64),
    Refused(u64),
}

#[derive(Default)]
pub(super) struct Reference {
    pub(super) now: u64,
    pub(super) names: BTreeMap<&'static str, Name>,
    /// In the order of their places.
    pub(super) waiting: Vec<Waiting>,
    pub(super) told: Vec<Told>,
    pub(super) serial: u64,
    /// Number of comparisons of the whole state.
    pub(super) step: u64,
    pub(super) grants: u64,
    /// The tokens of grants, as they were found.
    pub(super) tokens: BTreeMap<u64, u64>,
    pub(super) answers: BTreeMap<(&'static str, &'static str), Answers>,
    pub(super) sessions: BTreeMap<u64, Named>,
    /// Connections with grants of which nobody knows whether they live.
    pub(super) unseen: BTreeSet<u64>,
}

impl Reference {
    /// What a grant can be tied to now.
    pub(super) fn usable(&self, tie: Tie, client: u64) -> Tie {
        match tie {
            Tie::Session(number) if self.sessions.get(&number).is_none_or(|session| session.client.is_none()) => {
                Tie::Client(client)
            }
            tie => tie,
        }
    }

    pub(super) fn session_of(&self, client: u64) -> Option<u64> {
        self.sessions.iter().find(|(_, session)| session.client == Some(client)).map(|(&number, _)| number)
    }

    pub(super) fn named(&self, id: &str) -> Option<u64> {
        self.sessions.iter().find(|(_, session)| session.id == id).map(|(&number, _)| number)
    }

    pub(super) fn grants_of(&self, tie: Tie) -> usize {
        self.names.values().flat_map(|of| &of.holders).filter(|held| held.tie == tie).count()
    }

    /// Ends sessions with neither a connection nor a grant.
    pub(super) fn drop_idle(&mut self) {
        let idle = |(number, session): (&u64, &Named)| {
            (session.client.is_none() && self.grants_of(Tie::Session(*number)) == 0).then_some(*number)
        };
        let idle: Vec<u64> = self.sessions.iter().filter_map(idle).collect();
        self.sessions.retain(|number, _| !idle.contains(number));
    }

    /// Ends all grants with this tie.
    pub(super) fn end_tied(&mut self, tie: Tie) {
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

    pub(super) fn note_end(
        answers: &mut BTreeMap<(&'static str, &'static str), Answers>,
        now: u64,
        name: &'static str,
        owner: &'static str,
    ) {
        if let Some(answers) = answers.get_mut(&(name, owner)) {
            answers.forget = Some(now + KEPT_MS);
        }
    }

    pub(super) fn remember(&mut self, name: &'static str, owner: &'static str, id: &'static str, said: Said, ended: bool) {
        let step = self.step;
        let answers = self.answers.entry((name, owner)).or_default();
        answers.said.push(Answered { id, said, step });
        if answers.said.len() > requests::ANSWERS {
            answers.said.remove(0);
        }
        answers.forget = ended.then_some(self.now + KEPT_MS);
    }

    /// The grant that answered a request.
    pub(super) fn granted(&self, name: &'static str, owner: &'static str, id: &str) -> Option<u64> {
        let said = &self.answers.get(&(name, owner))?.said;
        said.iter().find_map(|answered| match answered.said {
            Said::Granted(grant) if answered.id == id => Some(grant),
            _ => None,
        })
    }

    pub(super) fn leave_session(&mut self, client: u64) {
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

    /// A connection is closed without an end that was seen.
    pub(super) fn lose_sight(&mut self, client: u64) {
        if let Some(number) = self.session_of(client) {
            self.sessions.entry(number).and_modify(|session| (session.client, session.end) = (None, NEVER));
        }
        self.unseen.insert(client);
        self.drop_idle();
    }

    /// An owner comes back on a connection.
    pub(super) fn come_back(&mut self, name: &'static str, owner: &'static str, client: u64, other_user: bool) {
        let own = self.session_of(client);
        let Some(held) = self.names.get_mut(name).and_then(|of| of.holders.iter_mut().find(|held| held.owner == owner)) else {
            return;
        };
        let new = own.map_or(Tie::Client(client), Tie::Session);
        match held.tie {
            Tie::Client(before) if self.unseen.contains(&before) => held.tie = new,
            Tie::Session(number) if self.sessions.get(&number).is_some_and(|of| of.client.is_none() && of.end == NEVER) => {
                if own.is_none() && !other_user {
                    self.sessions.entry(number).and_modify(|session| session.client = Some(client));
                } else {
                    held.tie = new;
                }
            }
            _ => {}
        }
        self.drop_idle();
    }

    pub(super) fn name(&mut self, name: &'static str) -> &mut Name {
        self.names.entry(name).or_default()
    }

    pub(super) fn queue(&self, name: &str) -> Vec<&Waiting> {
        self.waiting.iter().filter(|waiting| waiting.names.contains(&name)).collect()
    }

    pub(super) fn can_hold(&self, name: &str, waiting: &Waiting) -> bool {
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

    pub(super) fn has_alone(&self, name: &str, owner: &str) -> bool {
        let holders = self.names.get(name).map(|of| &of.holders[..]).unwrap_or_default();
        holders.iter().any(|held| held.owner == owner && held.mode == Mode::Exclusive)
    }

    pub(super) fn hold(&mut self, name: &'static str, waiting: &Waiting, has_waited: bool) {
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
        let max_end = |granted: u64| if waiting.max_hold == 0 { u64::MAX } else { granted + waiting.max_hold };
        let mut grant = new;
        if let Some(held) = of.holders.iter_mut().find(|held| held.owner == waiting.owner) {
            held.holds += 1;
            if held.mode == Mode::Shared && waiting.mode == Mode::Exclusive {
                (held.mode, held.granted) = (Mode::Exclusive, now);
                held.tie = if tie == Tie::None { kept_tie } else { tie };
            } else if tie != Tie::None && held.tie == Tie::None {
                held.tie = tie;
            }
            grant = held.grant;
            held.delay = held.delay.max(waiting.extra);
            held.max_end = held.max_end.min(max_end(held.granted));
            held.end = if has_waited { held.end.max(end) } else { end }.min(held.max_end);
        } else {
            of.holders.push(Held {
                owner: waiting.owner,
                holds: 1,
                mode: waiting.mode,
                permits: waiting.permits,
                granted: now,
                end: end.min(max_end(now)),
                max_end: max_end(now),
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

    /// Grants everything that is grantable.
    pub(super) fn serve(&mut self) {
        'again: loop {
            for at in 0..self.waiting.len() {
                let waiting = self.waiting[at].clone();
                let own = |name: &&'static str| {
                    let of = self.names.get(name)?;
                    of.holders.iter().find(|held| held.owner == waiting.owner)
                };
                // The grant of its owner in another connection covers this one.
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

    /// Whether this waiter has to wait for that owner.
    pub(super) fn waits_for(&self, waiting: &Waiting, before: &[&Waiting], owner: &str) -> bool {
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
    pub(super) fn closes_cycle(&self, new: &Waiting) -> bool {
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

    /// Lets one millisecond pass.
    pub(super) fn tick(&mut self) {
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
            // A waiter that is granted something because another wait ended has not timed out.
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

    pub(super) fn leave(&mut self, client: u64) {
        self.waiting.retain(|waiting| waiting.client != client);
    }
}
